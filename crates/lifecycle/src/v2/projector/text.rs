//! Texts: what a result reads like, and how long texts are cut.

use std::borrow::Cow;

use ahp_types::common::StringOrMarkdown;
use ahp_types::state::{ToolCallCancellationReason, ToolInput, ToolResultContent};
use serde_json::Value;

/// What a call produced, as one text.
pub(super) fn result(
    content: Option<&Vec<ToolResultContent>>,
    error: Option<&Value>,
    summary: &StringOrMarkdown,
) -> String {
    result_pieces(content, error, summary).concat()
}

/// The same in pieces that follow each other, without a copy of what is long.
pub(super) fn result_pieces<'a>(
    content: Option<&'a Vec<ToolResultContent>>,
    error: Option<&'a Value>,
    summary: &'a StringOrMarkdown,
) -> Vec<Cow<'a, str>> {
    let mut pieces: Vec<Cow<'a, str>> = Vec::new();
    for piece in content.into_iter().flatten().filter_map(content_text) {
        if pieces.iter().any(|before| !before.is_empty()) {
            pieces.push(Cow::Borrowed("\n"));
        }
        pieces.push(piece);
    }
    if pieces.iter().any(|piece| !piece.is_empty()) {
        return pieces;
    }
    let error = error.map(|error| error.get("message").unwrap_or(error));
    vec![match error {
        Some(Value::String(message)) => Cow::Borrowed(message),
        Some(error) => Cow::Owned(error.to_string()),
        None => Cow::Borrowed(summary.as_text()),
    }]
}

/// What is not text is named. A sub-agent is shown by its own blocks.
fn content_text(content: &ToolResultContent) -> Option<Cow<'_, str>> {
    Some(match content {
        ToolResultContent::Text(content) => content.text.as_str().into(),
        ToolResultContent::EmbeddedResource(content) => format!("[{}]", content.content_type).into(),
        ToolResultContent::Resource(content) => content.uri.as_str().into(),
        ToolResultContent::FileEdit(content) => content.after.as_ref().or(content.before.as_ref())?.uri.as_str().into(),
        ToolResultContent::Terminal(content) => content.title.as_str().into(),
        ToolResultContent::Subagent(_) | ToolResultContent::Unknown(_) => return None,
    })
}

/// Why a call did not run, or was stopped.
pub(super) fn cancelled(reason: ToolCallCancellationReason, message: Option<&StringOrMarkdown>) -> String {
    let said = message.map(StringOrMarkdown::as_text).filter(|text| !text.is_empty());
    let text = said.unwrap_or(match reason {
        ToolCallCancellationReason::Denied => "The call was denied.",
        ToolCallCancellationReason::Skipped => "The call was stopped.",
        ToolCallCancellationReason::ResultDenied => "The result was denied.",
    });
    text.to_owned()
}

/// An input that the log has as text.
pub(super) fn input(input: Option<&ToolInput>) -> Option<&str> {
    match input? {
        ToolInput::Inline(text) => Some(text),
        ToolInput::ContentRef(_) => None,
    }
}

/// The input as an object, if it is one.
pub(super) fn object(input: &str) -> Option<Value> {
    serde_json::from_str(input).ok().filter(Value::is_object)
}

/// The longest beginning of a text that has at most `max` bytes.
pub(super) fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or(text)
}

/// How long a text is in JSON, without its quotes.
pub(super) fn encoded_len(text: &str) -> usize {
    text.bytes().fold(0, |len, byte| len.saturating_add(encoded_byte(byte)))
}

/// Cuts a text into pieces of at most `max` bytes in JSON, at least one character each.
pub(super) fn pieces(text: &str, max: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut len = 0_usize;
        let fits = |(_, letter): &(usize, char)| {
            let more =
                if letter.is_ascii() { u8::try_from(*letter).map_or(1, encoded_byte) } else { letter.len_utf8() };
            len = len.saturating_add(more);
            len <= max
        };
        let end = match rest.char_indices().take_while(fits).last() {
            Some((at, letter)) => at.saturating_add(letter.len_utf8()),
            None => rest.chars().next().map_or(0, char::len_utf8),
        };
        let (piece, left) = rest.split_at_checked(end)?;
        rest = left;
        Some(piece)
    })
}

/// How long a byte of a text is in JSON.
const fn encoded_byte(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..=0x1f => 6,
        _ => 1,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_text_and_each_fits() {
        let text = "a\"\\\n\u{1}ü漢🚢".repeat(50);
        for max in [1, 6, 7, 20, 100_000] {
            let all: Vec<&str> = pieces(&text, max).collect();
            assert_eq!(all.concat(), text);
            assert!(all.iter().all(|piece| encoded_len(piece) <= max.max(6)), "{max}");
        }
        assert_eq!(pieces("", 5).count(), 0);
    }

    #[test]
    fn the_length_in_json_is_that_of_serde_json() {
        let text: String = (0..300).filter_map(char::from_u32).chain("🚢".chars()).collect();
        // It leaves the one control character above 0x1f as it is, and so do we.
        assert_eq!(encoded_len(&text) + 2, serde_json::to_string(&text).unwrap().len());
    }

    #[test]
    fn a_cut_falls_between_characters() {
        assert_eq!(cut("aüb", 2), "a");
        assert_eq!(cut("aüb", 3), "aü");
        assert_eq!(cut("aüb", 9), "aüb");
    }
}
