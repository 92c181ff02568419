//! Finds how deep a text is nested, and checks nothing else: for messages that we send, which the receiver checks.

use super::special::plain_len;

/// Bytes that are counted at once, so that a byte holds their count.
const BLOCK: usize = 192;

/// How many opening brackets a text has, those in its strings included. It cannot be nested deeper than that.
///
/// No branches, so that many bytes are counted at once: a text is counted faster than it is read from memory.
pub(crate) fn openings(bytes: &[u8]) -> u64 {
    // The two brackets differ in one bit.
    let count = |block: &[u8]| block.iter().fold(0_u8, |sum, byte| sum.wrapping_add(u8::from(byte | 0x20 == b'{')));
    bytes.chunks(BLOCK).fold(0, |sum, block| sum.saturating_add(count(block).into()))
}

/// How deep a text in pieces is nested, if it is JSON.
pub(crate) fn deepest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut nesting = Nesting::default();
    parts.into_iter().for_each(|part| nesting.feed(part));
    nesting.deepest
}

#[derive(Debug, Default)]
struct Nesting {
    place: Place,
    depth: u64,
    deepest: u64,
}

#[derive(Debug, Default, Clone, Copy)]
enum Place {
    #[default]
    Outside,
    String,
    /// In a string, after a backslash.
    Escape,
}

impl Nesting {
    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let read = match self.place {
                Place::Outside => self.skip_to_string(bytes),
                Place::String => self.skip_in_string(bytes),
                Place::Escape => {
                    self.place = Place::String;
                    1
                }
            };
            bytes = bytes.get(read..).unwrap_or_default();
        }
    }

    /// Counts up to the next string, its quote read; how many bytes that are.
    fn skip_to_string(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'[' | b'{' => {
                    self.depth = self.depth.saturating_add(1);
                    self.deepest = self.deepest.max(self.depth);
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                b'"' => {
                    self.place = Place::String;
                    return at.saturating_add(1);
                }
                _ => {}
            }
        }
        bytes.len()
    }

    fn skip_in_string(&mut self, bytes: &[u8]) -> usize {
        let plain = plain_len(bytes);
        match bytes.get(plain) {
            Some(b'"') => self.place = Place::Outside,
            Some(b'\\') => self.place = Place::Escape,
            _ => {}
        }
        plain.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{Scanner, find};
    use proptest::prelude::*;

    #[test]
    fn brackets_in_strings_do_not_nest() {
        for (text, depth, most) in [
            ("1", 0, 0),
            ("[]", 1, 1),
            (r#"{"a":[{"b":[1]}],"c":[[]]}"#, 4, 6),
            (r#"["[[[\"[[","]",{"\\":"{"}]"#, 2, 8),
            (r#"["\\",[]]"#, 2, 2),
        ] {
            assert_eq!((deepest([text.as_bytes()]), openings(text.as_bytes())), (depth, most), "{text}");
            assert_eq!(deepest(text.as_bytes().chunks(1)), depth, "{text} byte by byte");
        }
        assert_eq!(openings(&[b'['; 100_000]), 100_000);
        assert_eq!(deepest([&[b'['; 100_000][..]]), 100_000);
    }

    /// Texts with many brackets, in strings and out of them.
    fn texts() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("1".to_owned()),
            "[\\[\\]{}\\\\\" a-c]{0,8}".prop_map(|text| serde_json::json!(text).to_string())
        ];
        leaf.prop_recursive(12, 40, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(","))),
                inner.prop_map(|value| format!(r#"{{"[":{value}}}"#)),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_check_takes_a_text_exactly_as_deep_as_is_said(text in texts(), cut in 0_usize..60) {
            let (front, back) = text.as_bytes().split_at(cut.min(text.len()));
            let depth = deepest([front, back]);
            prop_assert!(depth <= openings(text.as_bytes()));
            prop_assert!(find([text.as_bytes()], &[]).is_ok());
            let mut exact = Scanner::with_max_depth((), depth as u32);
            prop_assert!(exact.feed(text.as_bytes()).is_ok());
            if depth > 0 {
                let mut less = Scanner::with_max_depth((), depth as u32 - 1);
                prop_assert!(less.feed(text.as_bytes()).is_err());
            }
        }
    }
}
