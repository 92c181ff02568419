//! Reads content that was sent by reference, from where it is in the state now.

use std::collections::BTreeMap;
use std::ops::Range;

use ahp_types::commands::{ContentEncoding, ResourceReadResult};
use ahp_types::state::{
    ActiveTurn, ChatState, Message, MessageAttachment, PendingMessage, ResponsePart, SnapshotState, ToolCallState,
    ToolInput, ToolResultContent, Turn,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::by_reference::{Reference, Version};
use super::cache::ChannelCache;
use super::rows::find_last;
use super::{StateError, run_blocking};
use crate::log::Log;
use crate::long_work::BLOCKING_BYTES;

/// A content as it is written inline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The text, or base64.
    pub data: String,
    /// Whether `data` is base64.
    pub is_base64: bool,
    /// Its MIME type.
    pub content_type: String,
}

impl Content {
    /// The answer to `resourceRead`, in the encoding that the client prefers if that is possible.
    #[must_use]
    pub fn encoded(self, encoding: Option<&ContentEncoding>) -> ResourceReadResult {
        let Self { data, is_base64, content_type } = self;
        let (data, encoding) = match (is_base64, encoding) {
            (false, Some(ContentEncoding::Base64)) => (STANDARD.encode(data), ContentEncoding::Base64),
            (false, _) => (data, ContentEncoding::Utf8),
            (true, Some(ContentEncoding::Utf8)) => match STANDARD.decode(&data).map(String::from_utf8) {
                Ok(Ok(text)) => (text, ContentEncoding::Utf8),
                _ => (data, ContentEncoding::Base64),
            },
            (true, _) => (data, ContentEncoding::Base64),
        };
        ResourceReadResult { data, encoding, content_type: Some(content_type) }
    }

    /// Its bytes and its MIME type. What says that it is base64 and is not, is returned as it is.
    pub(crate) fn into_bytes(self) -> (Vec<u8>, String) {
        let Self { data, is_base64, content_type } = self;
        let decoded = if is_base64 { STANDARD.decode(&data).ok() } else { None };
        (decoded.unwrap_or_else(|| data.into_bytes()), content_type)
    }

    fn text(data: &str, content_type: &str) -> Self {
        Self { data: data.to_owned(), is_base64: false, content_type: content_type.to_owned() }
    }

    fn base64(data: &str, content_type: &str) -> Self {
        Self { data: data.to_owned(), is_base64: true, content_type: content_type.to_owned() }
    }

    fn of_block(block: &ToolResultContent) -> Option<Self> {
        match block {
            ToolResultContent::Text(block) => Some(Self::text(&block.text, "text/plain")),
            ToolResultContent::EmbeddedResource(block) => Some(Self::base64(&block.data, &block.content_type)),
            _ => None,
        }
    }

    fn of_attachment(message: &Message, n: &str) -> Option<Self> {
        match message.attachments.as_deref()?.get(n.parse::<usize>().ok()?)? {
            MessageAttachment::EmbeddedResource(attached) => Some(Self::base64(&attached.data, &attached.content_type)),
            _ => None,
        }
    }

    /// The content that the reference was made for. If the content has grown since, its beginning; `None` if it has changed.
    fn checked(mut self, reference: &Reference) -> Option<Self> {
        let Some(version) = reference.version else { return Some(self) };
        let may_have_grown = matches!(reference.steps.last(), Some(("text", _)));
        if may_have_grown && self.data.is_char_boundary(version.bytes) {
            self.data.truncate(version.bytes);
        }
        (version == Version::of(self.data.as_bytes())).then_some(self)
    }
}

/// Finds the content that a reference names.
pub(super) async fn content(cache: &ChannelCache, reference: Reference) -> Result<Content, StateError> {
    // The client that got the reference may be ahead of the state.
    cache.catch_up().await?;
    let guard = cache.lock(&reference.channel).await?;
    let Some(SnapshotState::Chat(chat)) = &guard.state else { return Err(StateError::NotFound) };
    if let Some(found) = in_chat(chat, &reference.path()) {
        return found.checked(&reference).ok_or(StateError::NotFound);
    }
    let (rows, unsaved) = ([guard.turns.range()], guard.turns.unsaved(guard.turns.range()));
    drop(guard);
    in_rows(&*cache.log, &rows, &unsaved, reference).await
}

/// Finds the content that a reference names in these rows of its chat.
pub(super) async fn in_rows(
    log: &dyn Log,
    rows: &[Range<u64>],
    unsaved: &BTreeMap<u64, Bytes>,
    reference: Reference,
) -> Result<Content, StateError> {
    let Some(("turn", turn)) = reference.steps.first() else { return Err(StateError::NotFound) };
    let mut found = None;
    for rows in rows.iter().rev() {
        found = match find_last(log, &reference.channel, rows.clone(), unsaved, turn).await {
            // The chat was truncated meanwhile.
            Err(StateError::Gone) => return Err(StateError::NotFound),
            found => found?,
        };
        if found.is_some() {
            break;
        }
    }
    let row = found.ok_or(StateError::NotFound)?;
    let look = move || {
        let turn: Turn = row.turn()?;
        let found = in_turn(&turn.message, &turn.response_parts, reference.path().get(1..).unwrap_or_default());
        found.and_then(|found| found.checked(&reference)).ok_or(StateError::NotFound)
    };
    run_blocking(BLOCKING_BYTES, look).await?
}

/// Finds a content in a chat, outside of its completed turns.
fn in_chat(chat: &ChatState, path: &[(&str, &str)]) -> Option<Content> {
    match path {
        [("draft", n)] => Content::of_attachment(chat.draft.as_ref()?, n),
        [("pending", id), ("attachment", n)] => {
            let is_it = |pending: &&PendingMessage| pending.id == *id;
            let mut waiting = chat.steering_message.iter().chain(chat.queued_messages.iter().flatten());
            Content::of_attachment(&waiting.find(is_it)?.message, n)
        }
        [("turn", id), rest @ ..] => {
            let ActiveTurn { message, response_parts, .. } = chat.active_turn.as_ref().filter(|turn| turn.id == *id)?;
            in_turn(message, response_parts, rest)
        }
        _ => None,
    }
}

fn in_turn(message: &Message, parts: &[ResponsePart], path: &[(&str, &str)]) -> Option<Content> {
    match path {
        [("attachment", n)] => Content::of_attachment(message, n),
        [("text", id)] => parts.iter().find_map(|part| match part {
            ResponsePart::Markdown(part) if part.id == *id => Some(Content::text(&part.content, "text/markdown")),
            _ => None,
        }),
        [("call", id), rest @ ..] => parts.iter().find_map(|part| match part {
            ResponsePart::ToolCall(part) => in_call(&part.tool_call, id, rest),
            _ => None,
        }),
        _ => None,
    }
}

fn in_call(call: &ToolCallState, id: &str, path: &[(&str, &str)]) -> Option<Content> {
    use ToolCallState as S;
    let (call_id, input, blocks, suggestion) = match call {
        S::PendingConfirmation(call) => (&call.tool_call_id, &call.tool_input, None, None),
        S::Running(call) => (&call.tool_call_id, &call.tool_input, call.content.as_ref(), None),
        S::AuthRequired(call) => (&call.tool_call_id, &call.tool_input, call.content.as_ref(), None),
        S::PendingResultConfirmation(call) => (&call.tool_call_id, &call.tool_input, call.content.as_ref(), None),
        S::Completed(call) => (&call.tool_call_id, &call.tool_input, call.content.as_ref(), None),
        S::Cancelled(call) => (&call.tool_call_id, &call.tool_input, None, call.user_suggestion.as_ref()),
        S::Streaming(_) | S::Unknown(_) => return None,
    };
    if call_id != id {
        return None;
    }
    match path {
        [("content", n)] => Content::of_block(blocks?.get(n.parse::<usize>().ok()?)?),
        [("suggestion", n)] => Content::of_attachment(suggestion?, n),
        [("input", "")] => match input {
            Some(ToolInput::Inline(text)) => Some(Content::text(text, "text/plain")),
            _ => None,
        },
        _ => None,
    }
}

/// Finds a content in a chat that is in memory with all its turns.
#[cfg(test)]
pub(super) fn in_whole_chat(chat: &ChatState, uri: &str) -> Option<Content> {
    let reference = Reference::read(uri)?;
    let found = in_chat(chat, &reference.path()).or_else(|| {
        let turn = chat.turns.iter().rev().find(|turn| reference.steps.first() == Some(&("turn", turn.id.clone())))?;
        in_turn(&turn.message, &turn.response_parts, reference.path().get(1..)?)
    });
    found?.checked(&reference)
}
