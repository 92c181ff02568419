//! What a call has produced, in the words of the grammar.

use serde_json::value::RawValue;

use super::wire::{self, Blocks, ContentBlock, Maybe, Structured, Text};
use crate::{Content, Ending, ToolResult};

/// How a call has ended, from the block that says so.
///
/// `title` is the tool's, for people. `structured` is what the tool says for programs, and `never_ran` whether the program
/// says that the call was stopped before it ran.
pub(super) fn ending(
    title: &str,
    block: &ContentBlock<'_>,
    structured: Option<&Structured<'_>>,
    never_ran: bool,
) -> Ending {
    let mut content = block.content.map(contents).unwrap_or_default();
    let Maybe(is_error) = block.is_error;
    if never_ran {
        return Ending::Cancelled { reason: Some(text_of(&content)).filter(|text| !text.is_empty()) };
    }
    if is_error.unwrap_or(false) {
        let error = text_of(&content);
        let error = if error.is_empty() { format!("{title} failed without a reason.") } else { error };
        content.retain(|piece| !matches!(piece, Content::Text(_)));
        return Ending::Done(ToolResult {
            success: false,
            summary: format!("{title} failed"),
            content,
            error: Some(error),
        });
    }
    content.extend(structured.and_then(edit));
    Ending::Done(ToolResult { success: true, summary: format!("Ran {title}"), content, error: None })
}

/// The pieces of a result.
fn contents(raw: &RawValue) -> Vec<Content> {
    match Blocks::read(raw) {
        Some(Blocks::Text(Text(text))) if text.is_empty() => Vec::new(),
        Some(Blocks::Text(Text(text))) => vec![Content::Text(text.into_owned())],
        Some(Blocks::List(blocks)) => blocks.into_iter().map(piece).collect(),
        None => Vec::new(),
    }
}

/// One piece of a result. What is neither text nor a file is shown as it came.
fn piece(raw: &RawValue) -> Content {
    let known = wire::parse::<ContentBlock<'_>>(raw).and_then(|block| {
        if block.kind.as_str() == "text" {
            return block.text.map(|Text(text)| Content::Text(text.into_owned()));
        }
        let source = block.source.0?;
        let mime = source.media_type.to_owned();
        if let Some(Text(data)) = source.data {
            let mime = mime.unwrap_or_else(|| "application/octet-stream".to_owned());
            return Some(Content::Data { base64: data.into_owned(), mime });
        }
        source.url.to_owned().map(|uri| Content::Link { uri, mime })
    });
    known.unwrap_or_else(|| Content::Text(raw.get().to_owned()))
}

fn text_of(content: &[Content]) -> String {
    let texts = content.iter().filter_map(|piece| match piece {
        Content::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The file that a call has written, if it says so.
fn edit(structured: &Structured<'_>) -> Option<Content> {
    let path = structured.file_path.get()?;
    let mut added: u64 = 0;
    let mut removed: u64 = 0;
    let Maybe(hunks) = &structured.patch;
    for Text(line) in hunks.as_ref()?.iter().flat_map(|hunk| &hunk.lines) {
        match line.as_bytes().first() {
            Some(b'+') => added = added.saturating_add(1),
            Some(b'-') => removed = removed.saturating_add(1),
            _ => {}
        }
    }
    if structured.kind.as_str() == "create" {
        let Maybe(content) = &structured.content;
        added = content.as_ref().map_or(0, |Text(text)| u64::try_from(text.lines().count()).unwrap_or(u64::MAX));
    }
    Some(Content::Edit { uri: file_uri(path), added, removed })
}

fn file_uri(path: &str) -> String {
    let mut uri = String::from(if path.starts_with('/') { "file://" } else { "file:///" });
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                uri.push(char::from(byte))
            }
            b'\\' => uri.push('/'),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}
