//! Content by its path in a URL, read in pieces: files inside the roots, and results and prompts that are cut in events.
//!
//! | Path | Content |
//! |---|---|
//! | `file/home/me/a%20b.txt` | a file, by its absolute path |
//! | `result/CHAT/TURN/CALL` | the whole result of a call |
//! | `prompt/CHAT/TURN` | all that a person has said |
//!
//! Nothing is held in memory while it is sent but the piece that is next: a file is read by range, a text of a turn that is over
//! from its record in the log (`content/turn_text.rs`), and a text of the running turn from the state of its chat, which has it anyway.

mod turn_text;

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ahp_types::state::{Message, ResponsePart};
use breakbulk_lifecycle::v2::result_pieces;
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::OnceCell;

use self::turn_text::TurnText;
use crate::endpoint::AnswerMemory;
use crate::endpoint::memory::NoMemory;
use crate::error::MethodError;
use crate::files::{FileError, OpenFile};
use crate::host::Services;
use crate::percent;
use crate::size::to_u64;
use crate::state::{State, StateError};

/// The most bytes that are read at once.
const PIECE_BYTES: u64 = 64 << 10;

/// Content that can be read.
#[derive(Debug)]
pub struct ContentReader {
    size: u64,
    etag: String,
    content_type: String,
    source: ContentSource,
}

#[derive(Debug)]
enum ContentSource {
    File(Arc<std::fs::File>),
    Text(Box<TextSource>),
}

/// A text of a turn.
#[derive(Debug)]
struct TextSource {
    state: Arc<State>,
    memory: AnswerMemory,
    name: TextName,
    /// The place of the text in the turn's record, once the turn is completed.
    completed: OnceCell<TurnText>,
}

/// Which text of a turn.
#[derive(Debug, Clone)]
struct TextName {
    chat: String,
    turn: String,
    /// The call whose result it is; without one, it is what a person has said.
    call: Option<String>,
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
    /// A file that is open.
    pub(crate) fn of_file(file: OpenFile) -> Self {
        let OpenFile { file, size, modified, content_type } = file;
        let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let etag = format!("\"{:x}-{size:x}\"", since.as_nanos());
        Self { size, etag, content_type, source: ContentSource::File(Arc::new(file)) }
    }

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
            ContentSource::Text(source) => source.read(range.start..end).await.map_err(io::Error::other),
            ContentSource::File(file) => {
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
        ("file", _) => Ok(ContentReader::of_file(services.open_file(format!("file:///{rest}")).await?)),
        ("result", [chat, turn, call]) => text(services, memory, chat, turn, Some(call.clone())).await,
        ("prompt", [chat, turn]) => text(services, memory, chat, turn, None).await,
        _ => Err(ContentError::NotFound),
    }
}

/// The result of a call, or what a person has said.
async fn text(
    services: &Services,
    memory: &AnswerMemory,
    chat: &str,
    turn: &str,
    call: Option<String>,
) -> Result<ContentReader, ContentError> {
    let state = Arc::clone(services.log_writer().state());
    state.catch_up().await?;
    let name = TextName { chat: chat.to_owned(), turn: turn.to_owned(), call };
    let source = TextSource { state, memory: memory.clone(), name, completed: OnceCell::new() };
    let (size, crc) = match source.measure_active().await? {
        Some(measured) => measured,
        None => {
            let text = source.completed().await?;
            (text.size(), text.crc())
        }
    };
    let content_type = "text/plain".to_owned();
    Ok(ContentReader {
        size,
        etag: format!("\"{size:x}-{crc:08x}\""),
        content_type,
        source: ContentSource::Text(Box::new(source)),
    })
}

impl TextSource {
    /// The length and the CRC-32C of the text; `None` if its turn does not run.
    async fn measure_active(&self) -> Result<Option<(u64, u32)>, ContentError> {
        let TextName { chat, turn, call } = &self.name;
        let measure = |message: &Message, parts: &[ResponsePart]| {
            let pieces = text_pieces(message, parts, call.as_deref())?;
            let mut measured = (0_u64, 0);
            for piece in pieces {
                measured = (
                    measured.0.saturating_add(to_u64(piece.len())),
                    crc32c::crc32c_append(measured.1, piece.as_bytes()),
                );
            }
            Some(measured)
        };
        let measured = self.state.read_active_turn(chat, turn, measure).await?;
        measured.map(|measured| measured.ok_or(ContentError::NotFound)).transpose()
    }

    /// Some bytes of the text, at least one if there are any.
    async fn read(&self, range: Range<u64>) -> Result<Bytes, ContentError> {
        if !self.completed.initialized() {
            let TextName { chat, turn, call } = &self.name;
            let wanted = range.clone();
            let cut = |message: &Message, parts: &[ResponsePart]| {
                text_pieces(message, parts, call.as_deref()).map(|pieces| cut_out(&pieces, wanted))
            };
            if let Some(bytes) = self.state.read_active_turn(chat, turn, cut).await? {
                return bytes.ok_or(ContentError::NotFound);
            }
        }
        self.completed().await?.read(range).await
    }

    async fn completed(&self) -> Result<&TurnText, ContentError> {
        let find = || async {
            let TextName { chat, turn, call } = self.name.clone();
            let find = move |message: &Message, parts: &[ResponsePart]| {
                text_pieces(message, parts, call.as_deref()).map(|pieces| pieces.concat())
            };
            TurnText::find(&self.state, &self.memory, &chat, &turn, find).await
        };
        self.completed.get_or_try_init(find).await
    }
}

/// A text of a turn, in pieces that follow each other.
fn text_pieces<'a>(message: &'a Message, parts: &'a [ResponsePart], call: Option<&str>) -> Option<Vec<Cow<'a, str>>> {
    match call {
        Some(call) => result_pieces(parts, call),
        None => Some(vec![Cow::Borrowed(&message.text)]),
    }
}

/// A range of a text that is in pieces.
fn cut_out(pieces: &[Cow<'_, str>], range: Range<u64>) -> Bytes {
    let (mut found, mut begin) = (Vec::new(), 0_u64);
    for piece in pieces {
        let end = begin.saturating_add(to_u64(piece.len()));
        let at = |place: u64| usize::try_from(place.clamp(begin, end).saturating_sub(begin)).unwrap_or(usize::MAX);
        found.extend_from_slice(piece.as_bytes().get(at(range.start)..at(range.end)).unwrap_or_default());
        begin = end;
    }
    Bytes::from(found)
}

fn name(segment: &str) -> Option<String> {
    String::from_utf8(percent::read(segment)?.into_owned()).ok()
}

impl From<FileError> for ContentError {
    /// A path outside of the roots gets the same answer as one that does not exist.
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
