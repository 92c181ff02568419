//! Files for a message that somebody is typing.

use std::path::{Component, Path, PathBuf};

use ahp_types::commands::{CompletionItem, CompletionItemKind, CompletionsParams, CompletionsResult};
use ahp_types::errors::json_rpc_error_codes;
use ahp_types::state::{MessageAttachment, MessageResourceAttachment};
use thiserror::Error;

use super::walk::{DirectoryWalk, WalkEntry};
use crate::error::MethodError;
use crate::files::uri_of;

/// The characters after which a client asks, for `InitializeResult.completionTriggerCharacters`.
pub const TRIGGERS: [char; 2] = ['@', '#'];

/// The trigger for commands of an agent, at the beginning of a message.
pub const COMMAND_TRIGGER: char = '/';

/// What a completion may cost.
#[derive(Debug, Clone)]
pub struct CompleteConfig {
    /// Items in an answer. By default 50.
    pub max_items: usize,
    /// Files and directories that are looked at, of each working directory. By default 20,000.
    pub max_entries: usize,
    /// How deep they may be. By default 12.
    pub max_depth: usize,
}

impl Default for CompleteConfig {
    fn default() -> Self {
        Self { max_items: 50, max_entries: 20_000, max_depth: 12 }
    }
}

/// Why a completion is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompleteError {
    /// The offset is not in the text, or inside of a character.
    #[error("offset {0} is not in the text")]
    Offset(i64),
}

impl CompleteError {
    /// Its code on the wire.
    #[must_use]
    pub const fn code(&self) -> i32 {
        json_rpc_error_codes::INVALID_PARAMS
    }
}

impl From<CompleteError> for MethodError {
    fn from(error: CompleteError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Answers `completions` with files and directories whose path, or whose name, begins with what stands after the trigger
/// character. Near ones come first. Nothing is completed elsewhere in a text.
pub async fn complete(
    dirs: Vec<PathBuf>,
    params: CompletionsParams,
    config: CompleteConfig,
) -> Result<CompletionsResult, CompleteError> {
    let none = Ok(CompletionsResult { items: Vec::new() });
    let token = CompletionToken::of(&params.text, params.offset)?;
    let (Some(token), CompletionItemKind::UserMessage) = (token, params.kind) else { return none };
    let search = move || {
        let found = dirs.iter().flat_map(|dir| token.search(dir, &config));
        CompletionsResult { items: found.take(config.max_items).collect() }
    };
    // The closure has no reason to panic; if it does, nothing was found.
    tokio::task::spawn_blocking(search).await.or(none)
}

/// What is being typed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CompletionToken {
    trigger: char,
    /// After the trigger.
    query: String,
    /// Of the trigger and of the end, in UTF-16 units.
    range: (i64, i64),
}

impl CompletionToken {
    fn of(text: &str, offset: i64) -> Result<Option<Self>, CompleteError> {
        let before = &text[..byte_at(text, offset).ok_or(CompleteError::Offset(offset))?];
        let Some((at, trigger)) = before.char_indices().rfind(|(_, char)| TRIGGERS.contains(char)) else {
            return Ok(None);
        };
        // An address has its `@` inside of a word.
        let stands_alone = !before[..at].ends_with(|char: char| char.is_alphanumeric() || char == '/');
        let query = &before[at + trigger.len_utf8()..];
        if !stands_alone || query.contains(char::is_whitespace) {
            return Ok(None);
        }
        let units = before[at..].encode_utf16().count();
        let start = offset.saturating_sub(i64::try_from(units).unwrap_or(i64::MAX));
        Ok(Some(Self { trigger, query: query.to_owned(), range: (start, offset) }))
    }

    fn search(&self, dir: &Path, config: &CompleteConfig) -> Vec<CompletionItem> {
        let (above, _) = self.query.rsplit_once('/').unwrap_or(("", ""));
        // A path is looked up below the working directory, and nowhere above it.
        if !Path::new(above).components().all(|part| matches!(part, Component::Normal(_))) {
            return Vec::new();
        }
        let Some(walk) = DirectoryWalk::new(dir, Path::new(above), config.max_depth, config.max_entries) else {
            return Vec::new();
        };
        let root = walk.root().to_owned();
        let wanted = self.query.to_lowercase();
        walk.filter_map(|entry| {
            // A name that is not text cannot be typed.
            let path = entry.path.strip_prefix(&root).ok()?.to_str()?.to_owned();
            let lower = path.to_lowercase();
            let name = lower.rsplit('/').next().unwrap_or(&lower);
            let hidden = name.starts_with('.') && !wanted.rsplit('/').next().unwrap_or(&wanted).starts_with('.');
            let matches = lower.starts_with(&wanted) || (!wanted.contains('/') && name.starts_with(&wanted));
            (matches && !hidden).then(|| self.item(&path, &entry))
        })
        .take(config.max_items)
        .collect()
    }

    fn item(&self, path: &str, entry: &WalkEntry) -> CompletionItem {
        let (slash, kind) = if entry.is_dir { ("/", "directory") } else { ("", "document") };
        let size = entry.real.symlink_metadata().ok().filter(|_| !entry.is_dir).map(|facts| facts.len());
        let attachment = MessageAttachment::Resource(MessageResourceAttachment {
            label: path.to_owned(),
            range: None,
            display_kind: Some(kind.into()),
            meta: None,
            uri: uri_of(&entry.path),
            size_hint: size.and_then(|size| size.try_into().ok()),
            content_type: None,
            nonce: None,
            selection: None,
        });
        CompletionItem {
            insert_text: format!("{}{path}{slash}", self.trigger),
            range_start: Some(self.range.0),
            range_end: Some(self.range.1),
            attachment,
        }
    }
}

/// The command that is being typed, without its slash: it begins the message, and the cursor is in its name.
pub(crate) fn typed_command(params: &CompletionsParams) -> Option<&str> {
    let typed = params.text.get(..byte_at(&params.text, params.offset)?)?.strip_prefix(COMMAND_TRIGGER)?;
    (params.kind == CompletionItemKind::UserMessage && !typed.contains(char::is_whitespace)).then_some(typed)
}

/// Where an offset in UTF-16 units is in the text.
fn byte_at(text: &str, offset: i64) -> Option<usize> {
    let offset = usize::try_from(offset).ok()?;
    let mut units = 0;
    for (at, char) in text.char_indices() {
        if units >= offset {
            return (units == offset).then_some(at);
        }
        units += char.len_utf16();
    }
    (units == offset).then_some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_stands_between_trigger_and_cursor() {
        let token = |text: &str, offset| {
            CompletionToken::of(text, offset).map(|token| token.map(|token| (token.query, token.range)))
        };
        assert_eq!(token("see @src/ma now", 11), Ok(Some(("src/ma".into(), (4, 11)))));
        assert_eq!(token("𝄞 @a", 5), Ok(Some(("a".into(), (3, 5)))));
        assert_eq!(token("@", 1), Ok(Some((String::new(), (0, 1)))));
        for (text, offset) in [("no", 2), ("me@here", 7), ("@a b", 4), ("", 0)] {
            assert_eq!(token(text, offset), Ok(None), "{text}");
        }
        for (text, offset) in [("a", 2), ("a", -1), ("𝄞", 1)] {
            assert_eq!(token(text, offset), Err(CompleteError::Offset(offset)), "{text}");
        }
    }
}
