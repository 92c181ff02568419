//! The highest seq that was acknowledged in a directory, in a file of its own beside the database.
//!
//! By it a database is found to end sooner than it did: because a backup took its place, or because the end of its
//! write-ahead log is missing. It is written after each commit and not synced, so that it costs nothing; after a power cut
//! it may be behind, never ahead.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use super::super::Seq;
use super::files::{LogFiles, private};

/// As many digits as the longest seq has, so that writing never changes the file's length.
const DIGITS: usize = 20;

/// The file; none where it cannot be opened, and then nothing is known.
pub(super) struct AcknowledgedFile(Option<File>);

impl AcknowledgedFile {
    pub(super) fn open(files: &LogFiles) -> Self {
        Self(private(&files.mark()).ok())
    }

    /// What the file says. One that was not written whole says nothing.
    pub(super) fn read(&self) -> Option<Seq> {
        read(self.0.as_ref()?)
    }

    /// What the file of a log says that somebody else may be writing to.
    pub(super) fn look(files: &LogFiles) -> Option<Seq> {
        read(&File::open(files.mark()).ok()?)
    }

    pub(super) fn write(&self, seq: Seq) {
        let Some(mut file) = self.0.as_ref() else { return };
        let text = format!("{seq:0DIGITS$}\n");
        // It only helps to notice what else would go unnoticed; nothing depends on it.
        drop(file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(text.as_bytes())));
    }
}

fn read(mut file: &File) -> Option<Seq> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(1 + DIGITS as u64).read_to_string(&mut text).ok()?;
    text.strip_suffix('\n').filter(|digits| digits.len() == DIGITS)?.parse().ok()
}
