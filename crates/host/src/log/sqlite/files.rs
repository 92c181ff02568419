//! The files of a log: a lock, the database, a preallocated write-ahead log, and a little disk space to spare.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::OpenError;

/// How often, and after which pause, a lock is tried that another process holds: half a second in all.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// The directory of the files.
#[derive(Debug, Clone)]
pub(super) struct LogFiles {
    dir: PathBuf,
}

impl LogFiles {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf() }
    }

    pub(super) fn database(&self) -> PathBuf {
        self.dir.join("log.db")
    }

    /// A file beside the database.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Puts a new database in the place of the present one, which gets another name. At every moment there is a database. To be
    /// called while no connection is open, and with an empty write-ahead log.
    pub(super) fn replace_database(&self, new: &Path, old_becomes: &Path) -> io::Result<()> {
        File::open(new)?.sync_all()?;
        // Not every file system has hard links.
        std::fs::hard_link(self.database(), old_becomes)
            .or_else(|_| std::fs::copy(self.database(), old_becomes).map(drop))?;
        for name in ["log.db-wal", "log.db-shm"] {
            drop(std::fs::remove_file(self.beside(name)));
        }
        std::fs::rename(new, self.database())?;
        self.sync_names()
    }

    fn wal(&self) -> PathBuf {
        self.dir.join("log.db-wal")
    }

    /// The file with the highest seq that was acknowledged in this directory. It is separate from the database, so that a
    /// restored backup of the database does not reset it.
    pub(super) fn acknowledged_file(&self) -> PathBuf {
        self.dir.join("log.mark")
    }

    /// A file that is there to be made shorter: SQLite makes the index of the write-ahead log anew when it opens a database, also on
    /// a full disk.
    fn spare(&self) -> PathBuf {
        self.dir.join("log.reserve")
    }

    /// Allocates the spare file. What there is of it stays if the disk has no space for the rest.
    pub(super) fn make_spare(&self) {
        const LEN: u64 = 1 << 20;
        let Ok(file) = private(&self.spare()) else { return };
        let now = file.metadata().map_or(0, |file| file.len());
        // An older version kept its reserve in this file, and in another one.
        let made = if now > LEN { file.set_len(LEN) } else { allocate(&file, now, LEN - now) };
        drop(made.and_then(|()| std::fs::remove_file(self.dir.join("log.reserve.last"))));
    }

    /// Makes the spare file shorter; returns false if nothing is left of it. Only a little, because another program may be faster
    /// in taking it.
    pub(super) fn give_up_some_spare(&self) -> bool {
        const STEP: u64 = 128 << 10;
        let Ok(file) = OpenOptions::new().write(true).open(self.spare()) else { return false };
        let now = file.metadata().map_or(0, |file| file.len());
        now > 0 && file.set_len(now.saturating_sub(STEP)).is_ok()
    }

    /// Free bytes on the disk, where the system tells.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        #[cfg(unix)]
        return rustix::fs::statvfs(&self.dir).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        #[cfg(not(unix))]
        return None::<u64>.filter(|_| self.dir.is_dir());
    }

    /// Makes the directory and takes the lock, which lasts until the file is closed or the process ends. Waits for a moment if
    /// the lock is taken: a process that was just started holds the locks of its parent until it runs its own program, and a host
    /// that was just killed may not be gone yet.
    pub(super) fn lock(&self) -> Result<File, OpenError> {
        let failed = |source: io::Error| OpenError::Store { path: self.dir.clone(), source: source.into() };
        create_dir(&self.dir).map_err(failed)?;
        let file = private(&self.dir.join("log.lock")).map_err(failed)?;
        for _ in 0..LOCK_ATTEMPTS {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(OpenError::InUse(self.dir.clone()))
    }

    /// Extends the write-ahead log with zeros, so that a commit overwrites bytes and its sync need not update the length of the
    /// file. SQLite stops reading at the first frame with a wrong checksum, and zeros are such a frame.
    ///
    /// To be called while no transaction is open. SQLite locks the other two files, so opening this one releases no lock.
    pub(super) fn lengthen_wal(&self, len: u64) -> io::Result<()> {
        let mut file = private(&self.wal())?;
        let now = file.seek(SeekFrom::End(0))?;
        if now >= len {
            return Ok(());
        }
        write_zeros(&file, len - now)?;
        file.sync_all()
    }

    /// Overwrites the write-ahead log with zeros, so that no old data is in it. It is not made shorter than `len`: on a full disk,
    /// another program would take its space. Its header goes first, because without that SQLite takes the rest for nothing.
    ///
    /// To be called after a checkpoint with `RESTART`, which has moved all of it into the database: from then on SQLite reads
    /// nothing of it, and the next transaction begins at its start.
    pub(super) fn clear_wal(&self, len: u64) -> io::Result<()> {
        let mut file = private(&self.wal())?;
        file.write_all(&[0; 32])?;
        file.sync_all()?;
        let now = file.metadata()?.len().min(len);
        file.set_len(now)?;
        file.seek(SeekFrom::Start(0))?;
        write_zeros(&file, now)?;
        file.sync_all()?;
        self.lengthen_wal(len)
    }

    /// Makes the file of the database with permissions for its owner only. SQLite gives its other files the same permissions.
    /// To be called while no connection is open.
    pub(super) fn make_database(&self) -> io::Result<()> {
        match self.database().exists() {
            true => Ok(()),
            false => private(&self.database()).map(drop),
        }
    }

    /// Makes the names of new files durable.
    pub(super) fn sync_names(&self) -> io::Result<()> {
        sync_dir(&self.dir)
    }

    /// Asks the system to drop its cache of the files, so that the next reads come from the disk. To be called while no
    /// connection is open: closing a file releases SQLite's locks on it.
    pub(super) fn forget_cached(&self) {
        for path in [self.database(), self.wal()] {
            #[cfg(target_os = "linux")]
            if let Ok(file) = File::open(&path) {
                // The kernel may ignore this. Then the check reads its cache.
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).ok();
            }
            #[cfg(not(target_os = "linux"))]
            drop(path);
        }
    }
}

/// Allocates what is behind the end of a file, up to `until`. The file's length stays as it is. Does nothing where the system cannot
/// do that.
pub(super) fn allocate_behind(file: &File, until: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::io::Errno;
        let end = file.metadata()?.len();
        if until <= end {
            return Ok(());
        }
        let allocated = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, end, until - end);
        // Not every file system can: other errors are none.
        if let Err(full @ (Errno::NOSPC | Errno::DQUOT)) = allocated {
            return Err(full.into());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, until);
    Ok(())
}

/// Lengthens a file to `at + len`, with blocks that are really allocated.
fn allocate(mut file: &File, at: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    #[cfg(target_os = "linux")]
    if rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), at, len).is_ok() {
        return file.sync_all();
    }
    file.seek(SeekFrom::Start(at))?;
    write_zeros(file, len)?;
    file.sync_all()
}

fn write_zeros(mut file: &File, len: u64) -> io::Result<()> {
    let mut left = len;
    while left > 0 {
        let piece = ZEROS.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(&ZEROS);
        file.write_all(piece)?;
        left -= piece.len() as u64;
    }
    Ok(())
}

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Opens or makes a file that only its owner may read.
pub(super) fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).write(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes a directory that only its owner may read, and makes its name durable.
fn create_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => sync_dir(Path::new(".")),
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    // On other systems a directory cannot be opened, and its names are durable anyway.
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
