//! Strings, numbers and white space of JSON, read and written, against serde_json.
#![no_main]

use breakbulk_fuzz::{cut, text_and_cuts};
use breakbulk_proto::json;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let (bytes, cuts) = text_and_cuts(data);
    let theirs = serde_json::from_slice::<Value>(bytes);
    reading(bytes, theirs.as_ref().ok());
    if let Ok(text) = std::str::from_utf8(bytes) {
        writing(text);
    }
    if let Ok(tree) = theirs {
        let mut compact = Vec::new();
        let mut compactor = json::Compactor::default();
        cut(bytes, cuts).for_each(|piece| compactor.feed(&mut compact, piece));
        assert_eq!(serde_json::from_slice::<Value>(&compact).ok(), Some(tree));
        assert!(!compact.contains(&b'\n') && !compact.contains(&b'\r'));
    }
});

/// A string or a number means what serde_json says it means.
fn reading(raw: &[u8], theirs: Option<&Value>) {
    let Some(theirs) = theirs.filter(|_| raw.trim_ascii().len() == raw.len()) else { return };
    assert_eq!(json::string(raw).as_deref(), theirs.as_str());
    if let Some(value) = theirs.as_i64() {
        assert_eq!(json::number(raw), json::Number::Int(value.into()));
    }
}

/// What is escaped comes back, at the length that was foretold.
fn writing(text: &str) {
    let mut escaped = Vec::new();
    json::escape_into(&mut escaped, text.as_bytes());
    assert_eq!(escaped.len() as u64, json::escaped_len(text.as_bytes()));
    let quoted = [&b"\""[..], &escaped, b"\""].concat();
    assert_eq!(serde_json::from_slice::<String>(&quoted).as_deref().ok(), Some(text));
    let mut back = vec![0; escaped.len()];
    let len = json::unescape(&mut back, &escaped).expect("what we escape is the inside of a string");
    assert_eq!(&back[..len], text.as_bytes());
}
