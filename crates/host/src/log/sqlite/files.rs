//! The files of a log: a lock, the database, a preallocated write-ahead log, and a reserve of disk space.

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

    fn reserve(&self) -> PathBuf {
        self.dir.join("log.reserve")
    }

    /// Allocates the reserve, if twice as many bytes are free; returns whether it exists.
    pub(super) fn make_reserve(&self, len: u64) -> bool {
        let path = self.reserve();
        if std::fs::metadata(&path).map_or(0, |file| file.len()) == len {
            return true;
        }
        let is_free = free_bytes(&self.dir).is_none_or(|free| free >= len.saturating_mul(2));
        let made = is_free && private(&path).and_then(|file| take_up(&file, len)).is_ok();
        if !made {
            drop(std::fs::remove_file(&path));
        }
        made
    }

    /// Releases the reserve, but for its last part; returns whether there was one.
    pub(super) fn give_up_reserve(&self) -> bool {
        let is_given_up = std::fs::remove_file(self.reserve()).is_ok();
        if is_given_up {
            self.make_last_reserve();
        }
        is_given_up
    }

    /// The part of the reserve that stays when the rest is given up: a checkpoint may have to lengthen the database by a few
    /// pages, also where it has free ones.
    fn last_reserve(&self) -> PathBuf {
        self.dir.join("log.reserve.last")
    }

    /// Allocates the last part of the reserve, if the disk has space for it.
    pub(super) fn make_last_reserve(&self) {
        const LEN: u64 = 1 << 20;
        let path = self.last_reserve();
        if std::fs::metadata(&path).map_or(0, |file| file.len()) != LEN
            && private(&path).and_then(|file| take_up(&file, LEN)).is_err()
        {
            drop(std::fs::remove_file(&path));
        }
    }

    /// Releases the last part of the reserve; returns whether there was one.
    pub(super) fn give_up_last_reserve(&self) -> bool {
        std::fs::remove_file(self.last_reserve()).is_ok()
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
        let mut now = file.seek(SeekFrom::End(0))?;
        if now >= len {
            return Ok(());
        }
        while now < len {
            let piece = ZEROS.get(..usize::try_from(len - now).unwrap_or(usize::MAX)).unwrap_or(&ZEROS);
            file.write_all(piece)?;
            now += piece.len() as u64;
        }
        file.sync_all()
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

/// Free bytes on the disk of a directory.
fn free_bytes(dir: &Path) -> Option<u64> {
    #[cfg(unix)]
    return rustix::fs::statvfs(dir).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    #[cfg(not(unix))]
    return None::<u64>.filter(|_| dir.is_dir());
}

/// Gives a file this length, with blocks that are really allocated.
fn take_up(mut file: &File, len: u64) -> io::Result<()> {
    file.set_len(0)?;
    #[cfg(target_os = "linux")]
    if rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len).is_ok() {
        return file.sync_all();
    }
    let mut left = len;
    while left > 0 {
        let piece = ZEROS.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(&ZEROS);
        file.write_all(piece)?;
        left -= piece.len() as u64;
    }
    file.sync_all()
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
