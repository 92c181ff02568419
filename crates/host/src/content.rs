//! Content by its path in a URL, read in pieces: files inside the roots, and results and prompts that are cut in events.
//!
//! | Path | Content |
//! |---|---|
//! | `file/home/me/a%20b.txt` | a file, by its absolute path |
//! | `result/CHAT/TURN/CALL` | the whole result of a call |
//! | `prompt/CHAT/TURN` | all that a person has said |
//!
//! A file is never held in memory. A result or prompt is part of a turn, which the log has in one record: it is held once while
//! it is sent, inside the budget for what is sent.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use breakbulk_lifecycle::v2::result_text;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::endpoint::AnswerMemory;
use crate::endpoint::memory::{NoMemory, Reservation};
use crate::error::MethodError;
use crate::files::{FileError, OpenFile};
use crate::host::Services;
use crate::percent;
use crate::state::StateError;

/// The most bytes that are read at once.
const PIECE_BYTES: u64 = 64 << 10;

/// A text takes about so many times its length in memory while it is found: in its record, parsed, and as a copy.
const TEXT_COPIES: usize = 3;

/// Content that can be read.
#[derive(Debug)]
pub struct ContentReader {
    size: u64,
    etag: String,
    content_type: String,
    source: Source,
}

#[derive(Debug)]
enum Source {
    File(Arc<std::fs::File>),
    Text { text: Bytes, _reservation: Reservation },
}

/// Why there is no such content.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ContentError {
    /// There is nothing at this path, or it may not be read.
    #[error("there is no such content")]
    NotFound,
    /// There is no memory for it now.
    #[error("{0}")]
    Busy(String),
    /// The host cannot read it.
    #[error("{0}")]
    Failed(String),
}

impl ContentReader {
    /// How long it is.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// An entity tag, in its quotes: another one if the content changes.
    #[must_use]
    pub fn etag(&self) -> &str {
        &self.etag
    }

    /// Its MIME type.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The first bytes of a range, at least one if there are any: ask again for the rest.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let end = range.end.min(range.start.saturating_add(PIECE_BYTES)).min(self.size);
        let wanted = end.saturating_sub(range.start);
        match &self.source {
            Source::Text { text, .. } => {
                let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(text.len());
                Ok(text.slice(at(range.start)..at(end).max(at(range.start))))
            }
            Source::File(file) => {
                let file = Arc::clone(file);
                let read = move || {
                    let mut piece = vec![0; usize::try_from(wanted).unwrap_or(0)];
                    let read = file.read_at(&mut piece, range.start)?;
                    piece.truncate(read);
                    Ok(Bytes::from(piece))
                };
                tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
            }
        }
    }
}

/// Finds the content at a path.
pub(crate) async fn find(
    services: &Services,
    memory: &AnswerMemory,
    path: &str,
) -> Result<ContentReader, ContentError> {
    let (kind, rest) = path.split_once('/').ok_or(ContentError::NotFound)?;
    let names: Option<Vec<String>> = rest.split('/').map(name).collect();
    let names = names.ok_or(ContentError::NotFound)?;
    match (kind, &*names) {
        ("file", _) => file(services.open_file(format!("file:///{rest}")).await?),
        ("result", [chat, turn, call]) => text(services, memory, chat, turn, Some(call.clone())).await,
        ("prompt", [chat, turn]) => text(services, memory, chat, turn, None).await,
        _ => Err(ContentError::NotFound),
    }
}

fn file(file: OpenFile) -> Result<ContentReader, ContentError> {
    let OpenFile { file, size, modified, content_type } = file;
    let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let etag = format!("\"{:x}-{size:x}\"", since.as_nanos());
    Ok(ContentReader { size, etag, content_type, source: Source::File(Arc::new(file)) })
}

/// The result of a call, or what a person has said.
async fn text(
    services: &Services,
    memory: &AnswerMemory,
    chat: &str,
    turn: &str,
    call: Option<String>,
) -> Result<ContentReader, ContentError> {
    let state = services.log_writer().state();
    // How long it is, before it is copied.
    let named = call.clone();
    let size_of = move |message: &_, parts: &_| find_text(message, parts, named.as_deref()).map(|text| text.len());
    let size = state.read_turn(chat, turn, size_of).await?.flatten().ok_or(ContentError::NotFound)?;
    let mut reservation = memory.reserve(size.saturating_mul(TEXT_COPIES)).await?;
    let copy = move |message: &_, parts: &_| find_text(message, parts, call.as_deref());
    let text = state.read_turn(chat, turn, copy).await?.flatten().ok_or(ContentError::NotFound)?;
    reservation.shrink(text.len());
    let text = Bytes::from(text);
    let digest = Sha256::digest(&text);
    let etag = digest.iter().take(16).fold("\"".to_owned(), |tag, byte| format!("{tag}{byte:02x}")) + "\"";
    let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
    let content_type = "text/plain".to_owned();
    Ok(ContentReader { size, etag, content_type, source: Source::Text { text, _reservation: reservation } })
}

fn find_text(
    message: &ahp_types::state::Message,
    parts: &[ahp_types::state::ResponsePart],
    call: Option<&str>,
) -> Option<String> {
    match call {
        Some(call) => result_text(parts, call),
        None => Some(message.text.clone()),
    }
}

fn name(segment: &str) -> Option<String> {
    String::from_utf8(percent::read(segment)?.into_owned()).ok()
}

impl From<FileError> for ContentError {
    /// Whoever asks does not learn what is outside of the roots.
    fn from(error: FileError) -> Self {
        match error {
            FileError::System(error) => Self::Failed(error.to_string()),
            _ => Self::NotFound,
        }
    }
}

impl From<StateError> for ContentError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::NotFound | StateError::NotAChat | StateError::Gone => Self::NotFound,
            error => Self::Failed(MethodError::from(error).message),
        }
    }
}

impl From<NoMemory> for ContentError {
    fn from(error: NoMemory) -> Self {
        Self::Busy(error.to_string())
    }
}
