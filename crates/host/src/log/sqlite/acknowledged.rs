//! The highest seq that was acknowledged in a directory, in a file beside the database.
//!
//! It shows that a database ends earlier than it did: because it was replaced by a backup, or because the end of its
//! write-ahead log is missing. It is written after each commit and not synced, so that it costs nothing; after a power cut it
//! may be too low, never too high.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use super::super::Seq;
use super::files::{LogFiles, private};

/// As many digits as the longest seq has, so that writing never changes the file's length.
const DIGITS: usize = 20;

/// The file; `None` if it cannot be opened, and then nothing is known.
pub(super) struct AcknowledgedFile(Option<File>);

impl AcknowledgedFile {
    pub(super) fn open(files: &LogFiles) -> Self {
        Self(private(&files.acknowledged_file()).ok())
    }

    /// The seq in the file; `None` if the file is incomplete.
    pub(super) fn read(&self) -> Option<Seq> {
        read(self.0.as_ref()?)
    }

    /// The seq in the file of a log that another process may be writing to.
    pub(super) fn look(files: &LogFiles) -> Option<Seq> {
        read(&File::open(files.acknowledged_file()).ok()?)
    }

    pub(super) fn write(&self, seq: Seq) {
        let Some(mut file) = self.0.as_ref() else { return };
        let text = format!("{seq:0DIGITS$}\n");
        // Errors are ignored: the file only helps to notice lost entries, and nothing else depends on it.
        drop(file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(text.as_bytes())));
    }
}

fn read(mut file: &File) -> Option<Seq> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(1 + DIGITS as u64).read_to_string(&mut text).ok()?;
    text.strip_suffix('\n').filter(|digits| digits.len() == DIGITS)?.parse().ok()
}
