//! Content of ACP messages and tool calls, as content of the grammar.

use std::path::Path;

use agent_client_protocol_schema::v1::{ContentBlock, EmbeddedResourceResource, ToolCallContent};
use imara_diff::{Algorithm, Diff, InternedInput};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use crate::Content;

/// What is escaped in the path of a file URI.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Texts that are longer are not compared line by line; all of their lines count as new and gone. 4 MiB: a comparison takes
/// seconds beyond that.
const MAX_COMPARED: usize = 4 << 20;

/// A piece of a message, as text: a block of the grammar holds nothing else.
pub(super) fn as_text(content: ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(image) => image.uri.unwrap_or_else(|| format!("[image: {}]", image.mime_type)),
        ContentBlock::Audio(audio) => format!("[audio: {}]", audio.mime_type),
        ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri),
        ContentBlock::Resource(resource) => match resource.resource {
            EmbeddedResourceResource::TextResourceContents(text) => text.text,
            EmbeddedResourceResource::BlobResourceContents(blob) => format!("[resource: {}]", blob.uri),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

/// What a call has produced. What is of an unknown kind is left out.
pub(super) fn of_tool(content: ToolCallContent) -> Option<Content> {
    match content {
        ToolCallContent::Content(content) => of_block(content.content),
        ToolCallContent::Diff(diff) => {
            let (added, removed) = changed_lines(diff.old_text.as_deref().unwrap_or(""), &diff.new_text);
            Some(Content::Edit { uri: file_uri(&diff.path), added, removed })
        }
        // The host has given the terminal its name: the URI of its channel.
        ToolCallContent::Terminal(terminal) => {
            Some(Content::Link { uri: terminal.terminal_id.0.to_string(), mime: None })
        }
        _ => None,
    }
}

/// What an agent shows of a call of which it tells no input, as a JSON text: the texts, and the edits with what they replace.
pub(super) fn as_input(content: &[ToolCallContent]) -> Option<String> {
    let (mut texts, mut edits) = (Vec::new(), Vec::new());
    for piece in content {
        match piece {
            ToolCallContent::Content(content) => texts.push(as_text(content.content.clone())),
            ToolCallContent::Diff(diff) => {
                let mut edit = Map::from_iter([("path".to_owned(), json!(diff.path))]);
                edit.extend(diff.old_text.as_ref().map(|text| ("oldText".to_owned(), json!(text))));
                edit.insert("newText".to_owned(), json!(diff.new_text));
                edits.push(Value::Object(edit));
            }
            _ => {}
        }
    }
    let mut input = Map::new();
    input.extend((!texts.is_empty()).then(|| ("text".to_owned(), json!(texts.join("\n")))));
    input.extend((!edits.is_empty()).then(|| ("edits".to_owned(), Value::Array(edits))));
    (!input.is_empty()).then(|| Value::Object(input).to_string())
}

fn of_block(block: ContentBlock) -> Option<Content> {
    match block {
        ContentBlock::Image(image) => Some(Content::Data { base64: image.data, mime: image.mime_type }),
        ContentBlock::Audio(audio) => Some(Content::Data { base64: audio.data, mime: audio.mime_type }),
        ContentBlock::ResourceLink(link) => Some(Content::Link { uri: link.uri, mime: link.mime_type }),
        ContentBlock::Resource(resource) => match resource.resource {
            EmbeddedResourceResource::BlobResourceContents(blob) => {
                let mime = blob.mime_type.unwrap_or_else(|| "application/octet-stream".to_owned());
                Some(Content::Data { base64: blob.blob, mime })
            }
            EmbeddedResourceResource::TextResourceContents(text) => Some(Content::Text(text.text)),
            _ => None,
        },
        ContentBlock::Text(text) => Some(Content::Text(text.text)),
        _ => None,
    }
}

/// How many lines are new, and how many are gone.
fn changed_lines(old: &str, new: &str) -> (u64, u64) {
    if old.len().saturating_add(new.len()) > MAX_COMPARED {
        let count = |text: &str| u64::try_from(text.lines().count()).unwrap_or(u64::MAX);
        return (count(new), count(old));
    }
    let diff = Diff::compute(Algorithm::Histogram, &InternedInput::new(old, new));
    (diff.count_additions().into(), diff.count_removals().into())
}

fn file_uri(path: &Path) -> String {
    format!("file://{}", utf8_percent_encode(&path.to_string_lossy(), PATH))
}

/// The names that agents give to the text in the output of a command.
const OUTPUT_TEXTS: [&str; 2] = ["formatted_output", "output"];

/// A JSON value for people: a string as it is, and of an object that has its output as a text only that.
pub(super) fn value_text(value: Value) -> String {
    if let Some(text) = OUTPUT_TEXTS.into_iter().find_map(|name| value.get(name)?.as_str()) {
        return text.to_owned();
    }
    match value {
        Value::String(text) => text,
        value => value.to_string(),
    }
}

/// The first text, without the rest.
pub(super) fn first_text(content: &[Content]) -> Option<&str> {
    content.iter().find_map(|content| match content {
        Content::Text(text) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    })
}

/// An amount of money in millionths. What is no amount is nothing.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is checked to be in range"
)]
pub(super) fn micros(amount: f64) -> u64 {
    let micros = (amount * 1e6).round();
    if micros.is_finite() && (0.0..9e15).contains(&micros) { micros as u64 } else { 0 }
}
