//! The files of a log: a lock, the database, and a write-ahead log that is as long as it will ever need to be.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::super::OpenError;

/// Where the files are.
#[derive(Debug, Clone)]
pub(super) struct Files {
    dir: PathBuf,
}

impl Files {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf() }
    }

    pub(super) fn database(&self) -> PathBuf {
        self.dir.join("log.db")
    }

    fn wal(&self) -> PathBuf {
        self.dir.join("log.db-wal")
    }

    /// Makes the directory and takes the lock. The lock lasts as long as the file does, and ends with the process.
    pub(super) fn lock(&self) -> Result<File, OpenError> {
        let failed = |source: io::Error| OpenError::Store { path: self.dir.clone(), source: source.into() };
        create_dir(&self.dir).map_err(failed)?;
        let file = private(&self.dir.join("log.lock")).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse(self.dir.clone())),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Lengthens the write-ahead log with zeros. A commit then overwrites, and its sync need not wait for the file's
    /// new length. SQLite ends at the first frame whose checksum is wrong, and zeros are such a frame.
    ///
    /// To be called with no transaction open. SQLite locks the other two files, so opening this one ends no lock.
    pub(super) fn lengthen_wal(&self, len: u64) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
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

    /// Makes the database's file, so that it and those that SQLite puts beside it are for their owner only. To be called
    /// while no connection is open.
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

    /// Asks the system to forget what it holds of the files in memory, so that what is read next comes from the disk.
    /// To be called while no connection is open: closing a file ends SQLite's locks on it.
    pub(super) fn forget_cached(&self) {
        for path in [self.database(), self.wal()] {
            #[cfg(target_os = "linux")]
            if let Ok(file) = File::open(&path) {
                // Advice: the kernel may decline, and then we compare with what it holds.
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).ok();
            }
            #[cfg(not(target_os = "linux"))]
            drop(path);
        }
    }
}

/// Opens a file that only its owner may read, and makes it if need be.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes a directory that only its owner may look into, and makes its name durable.
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
    // Elsewhere a directory cannot be opened, and its names are durable without.
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
