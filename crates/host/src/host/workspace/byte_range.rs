//! `resourceRead` by ranges, for clients that take less than the whole at once.
//!
//! The protocol has no ranges. A client that knows this host asks in the `_meta` of its params, which every other host
//! ignores and answers with the whole. The answer says in its own `_meta` what it has, so the client knows which it got:
//!
//! ```json
//! {"channel":"ahp-root://","uri":"file:///a.log","_meta":{"breakbulk":{"range":{"offset":65536,"length":65536}}}}
//! {"data":"…","encoding":"utf-8","contentType":"text/plain",
//!  "_meta":{"breakbulk":{"range":{"offset":65536,"length":65530,"size":5000000,"etag":"\"18…-4c4b40\""}}}}
//! ```
//!
//! Offsets and lengths are bytes of the content itself, before base64. A part of a text ends between two characters, so it
//! may be a little shorter than what was asked for; a part of no bytes is the end.

use std::ops::Range;

use ahp_types::commands::{ContentEncoding, ResourceReadResult};
use ahp_types::common::JsonObject;
use ahp_types::errors::json_rpc_error_codes::INVALID_PARAMS;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::MethodError;

/// The part of a content that a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct ByteRange {
    offset: u64,
    length: u64,
}

/// A part of a content.
#[derive(Debug)]
pub(super) struct ContentPart {
    /// Where it begins, and its bytes.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    /// How long the whole content is.
    pub(super) size: u64,
    /// Another one if the content changes; `None` if it cannot change.
    pub(super) etag: Option<String>,
    pub(super) content_type: String,
}

impl ByteRange {
    /// What the `_meta` of a `resourceRead` asks for; `None` if it asks for the whole.
    pub(super) fn of(meta: Option<&JsonObject>) -> Result<Option<Self>, MethodError> {
        let Some(range) = meta.and_then(|meta| meta.get("breakbulk")?.get("range")) else { return Ok(None) };
        let why =
            "_meta.breakbulk.range must have an offset and a length, both whole numbers, and the length at least 1";
        let wrong = || MethodError::new(INVALID_PARAMS, why);
        let range = Self::deserialize(range).map_err(|_| wrong())?;
        if range.length == 0 { Err(wrong()) } else { Ok(Some(range)) }
    }

    /// The bytes of a content of this size, at most so many.
    pub(super) fn within(self, size: u64, most: u64) -> Range<u64> {
        let start = self.offset.min(size);
        start..start.saturating_add(self.length.min(most)).min(size)
    }
}

impl ContentPart {
    /// A part of a content that is in memory.
    pub(super) fn of(whole: &[u8], range: ByteRange, most: u64, content_type: String) -> Self {
        let size = u64::try_from(whole.len()).unwrap_or(u64::MAX);
        let Range { start, end } = range.within(size, most);
        let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
        let bytes = whole.get(at(start)..at(end)).unwrap_or_default().to_vec();
        Self { offset: start, bytes, size, etag: None, content_type }
    }

    /// The answer. Text is returned as text where the part has whole characters, unless base64 was asked for.
    pub(super) fn answer(self, encoding: Option<&ContentEncoding>) -> RangeResult {
        let Self { offset, mut bytes, size, etag, content_type } = self;
        let asked_for_text = encoding == Some(&ContentEncoding::Utf8);
        let may_be_text = encoding != Some(&ContentEncoding::Base64) && (asked_for_text || !bytes.contains(&0));
        if may_be_text && let Err(error) = std::str::from_utf8(&bytes) {
            let (whole, is_cut) = (error.valid_up_to(), error.error_len().is_none());
            // A character that the end of the part has cut comes with the next one.
            if is_cut && whole > 0 {
                bytes.truncate(whole);
            }
        }
        let length = bytes.len();
        let text = if may_be_text { String::from_utf8(bytes).map_err(|error| error.into_bytes()) } else { Err(bytes) };
        let (data, encoding) = match text {
            Ok(text) => (text, ContentEncoding::Utf8),
            Err(bytes) => (STANDARD.encode(bytes), ContentEncoding::Base64),
        };
        let mut range = json!({ "offset": offset, "length": length, "size": size });
        if let Some(etag) = etag {
            range["etag"] = json!(etag);
        }
        let meta = json!({ "breakbulk": { "range": range } });
        RangeResult { result: ResourceReadResult { data, encoding, content_type: Some(content_type) }, meta }
    }
}

/// The answer to a request for a range.
#[derive(Debug, Serialize)]
pub(super) struct RangeResult {
    #[serde(flatten)]
    result: ResourceReadResult,
    #[serde(rename = "_meta")]
    meta: serde_json::Value,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    fn part(text: &[u8], offset: u64, length: u64, encoding: Option<&ContentEncoding>) -> (String, bool, u64) {
        let range = ByteRange { offset, length };
        let RangeResult { result, meta } = ContentPart::of(text, range, u64::MAX, "text/plain".into()).answer(encoding);
        let length = meta["breakbulk"]["range"]["length"].as_u64().unwrap();
        (result.data, result.encoding == ContentEncoding::Utf8, length)
    }

    #[test]
    fn a_range_is_inside_of_the_content_and_the_limit_whatever_it_says() {
        for (offset, length, want) in [
            (0, 10, 0..10),
            (95, 10, 95..100),
            (100, 1, 100..100),
            (u64::MAX, 5, 100..100),
            (1, u64::MAX, 1..51),
            (u64::MAX, u64::MAX, 100..100),
        ] {
            assert_eq!(ByteRange { offset, length }.within(100, 50), want);
        }
    }

    #[test]
    fn a_part_of_a_text_has_whole_characters_and_the_parts_are_the_text() {
        let text = "aüb漢c🚢d".as_bytes();
        for length in 4..20 {
            let (mut whole, mut at) = (String::new(), 0);
            while at < text.len() as u64 {
                let (data, is_text, took) = part(text, at, length, None);
                assert!(is_text && took > 0 && took <= length);
                whole.push_str(&data);
                at += took;
            }
            assert_eq!(whole.as_bytes(), text);
        }
    }

    #[test]
    fn what_is_no_text_or_begins_inside_of_a_character_is_base64() {
        assert_eq!(part(b"a\xffb", 0, 3, None), ("Yf9i".into(), false, 3));
        assert_eq!(part("ü".as_bytes(), 1, 1, None), ("vA==".into(), false, 1));
        assert_eq!(part(b"a\0b", 0, 3, None), ("YQBi".into(), false, 3));
        assert_eq!(part(b"a\0b", 0, 3, Some(&ContentEncoding::Utf8)), ("a\0b".into(), true, 3));
        assert_eq!(part(b"abc", 0, 3, Some(&ContentEncoding::Base64)), ("YWJj".into(), false, 3));
        // Less than one character: it cannot be shorter.
        assert_eq!(part("漢".as_bytes(), 0, 2, None), ("5rw=".into(), false, 2));
    }

    #[test]
    fn a_malformed_range_is_refused_and_other_meta_is_ignored() {
        let of = |meta: serde_json::Value| ByteRange::of(meta.as_object());
        assert_eq!(of(json!({})), Ok(None));
        assert_eq!(of(json!({"breakbulk": 5, "other": {"range": 1}})), Ok(None));
        let asked = json!({"breakbulk": {"range": {"offset": 1, "length": 2}}});
        assert_eq!(of(asked), Ok(Some(ByteRange { offset: 1, length: 2 })));
        for range in [json!(1), json!({}), json!({"offset": -1, "length": 1}), json!({"offset": 0, "length": 0})] {
            let error = of(json!({"breakbulk": {"range": range}})).unwrap_err();
            assert_eq!(error.code, INVALID_PARAMS);
        }
    }
}
