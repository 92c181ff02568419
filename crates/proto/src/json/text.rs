//! Strings read from their exact span, and written; white space taken out.

use std::borrow::Cow;

use bytes::BufMut;

use super::input::is_space;
use super::special::{copy_plain, plain_len};
use crate::message::len64;

/// Reads a string with its quotes; `None` if it is not one, is not UTF-8, or has half of a surrogate pair.
#[must_use]
pub fn string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inside = unquote(raw)?;
    if plain_len(inside) == inside.len() {
        return simdutf8::basic::from_utf8(inside).ok().map(Cow::Borrowed);
    }
    unescaped(inside).and_then(|text| String::from_utf8(text).ok()).map(Cow::Owned)
}

/// Unescapes the inside of a string to the front of `out`, which must be as long. Returns the length of the result, or `None` if it is
/// not the inside of a string, or has half of a surrogate pair.
pub fn unescape(out: &mut [u8], inside: &[u8]) -> Option<usize> {
    let (mut rest, mut len) = (inside, 0_usize);
    loop {
        let run = copy_plain(out.get_mut(len..)?, rest);
        len = len.wrapping_add(run);
        (rest, len) = match rest.get(run..)? {
            [] => return Some(len),
            [b'\\', b'u', tail @ ..] => {
                let (char, tail) = unicode(tail)?;
                (tail, put(out, len, char.encode_utf8(&mut [0; 4]).as_bytes()))
            }
            [b'\\', letter, tail @ ..] => (tail, put(out, len, &[short_escape(*letter)?])),
            _ => return None,
        };
    }
}

/// Appends `text` to `out` as the inside of a string. Escapes only what must be escaped. It adds [`escaped_len`] bytes.
pub fn escape_into(out: &mut impl BufMut, text: &[u8]) {
    let mut escaped = [0; PIECE * 6];
    for piece in text.chunks(PIECE) {
        let len = escape(&mut escaped, piece);
        out.put_slice(escaped.get(..len).unwrap_or_default());
    }
}

/// The exact length that [`escape_into`] writes.
#[must_use]
pub fn escaped_len(text: &[u8]) -> u64 {
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    let extra = blocks.iter().fold(block_extra(rest), |sum, block| sum.saturating_add(block_extra(block)));
    len64(text.len()).saturating_add(extra)
}

/// Copies JSON in pieces, without the white space outside of strings. What is not JSON is copied somehow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compactor {
    in_string: bool,
    /// The last byte was a backslash that escapes the next one.
    escaped: bool,
}

impl Compactor {
    /// Copies the next piece.
    pub fn feed(&mut self, out: &mut Vec<u8>, piece: &[u8]) {
        let mut rest = piece;
        loop {
            let len = match (self.in_string, self.escaped) {
                (true, true) => rest.len().min(1),
                (true, false) => plain_len(rest),
                (false, _) => rest.iter().take_while(|&&byte| byte != b'"' && !is_space(byte)).count(),
            };
            let Some((run, tail)) = rest.split_at_checked(len) else { return };
            out.extend_from_slice(run);
            self.escaped &= len == 0;
            let Some((&byte, tail)) = tail.split_first() else { return };
            rest = tail;
            match byte {
                b'"' => self.in_string = !self.in_string,
                _ if !self.in_string => continue, // white space
                b'\\' => self.escaped = true,
                _ => {}
            }
            out.push(byte);
        }
    }
}

/// What [`unescape`] makes of the inside of a string.
pub(super) fn unescaped(inside: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; inside.len()];
    let len = unescape(&mut out, inside)?;
    out.truncate(len);
    Some(out)
}

/// Escapes to the front of `out`, which must be six times as long as the text. Returns the length of the result.
fn escape(out: &mut [u8], text: &[u8]) -> usize {
    let (mut rest, mut len) = (text, 0_usize);
    while let Some(place) = out.get_mut(len..) {
        let run = copy_plain(place, rest);
        len = len.wrapping_add(run);
        let Some((&byte, tail)) = rest.get(run..).and_then(<[u8]>::split_first) else { break };
        rest = tail;
        // From 0x08 on, all but 0x0b have a letter of their own.
        let hex =
            |nibble: u8| char::from_digit(nibble.into(), 16).and_then(|digit| digit.try_into().ok()).unwrap_or(b'0');
        let letter = b"btnufr".get(usize::from(byte.wrapping_sub(0x08))).copied().unwrap_or(b'u');
        len = match (byte, letter) {
            (b'"' | b'\\', _) => put(out, len, &[b'\\', byte]),
            (_, b'u') => put(out, len, &[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 0xf)]),
            _ => put(out, len, &[b'\\', letter]),
        };
    }
    len
}

/// Copies bytes to an offset, from which on there must be enough space. Returns the offset after them.
#[inline(always)]
fn put(out: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let end = at.wrapping_add(bytes.len());
    if let Some(place) = out.get_mut(at..end) {
        place.copy_from_slice(bytes);
    }
    end
}

/// Bytes escaped at once.
const PIECE: usize = 1 << 10;
/// Bytes counted at once; five times as many still fit a byte.
const BLOCK: usize = 48;

/// How many bytes more than itself a byte takes when escaped. No branches, so that whole blocks are counted at once.
#[inline(always)]
fn extra(byte: u8) -> u8 {
    let short = (byte.wrapping_sub(8) < 6) & (byte != 11);
    let one = (byte == b'"') | (byte == b'\\') | short;
    let five = (byte < 0x20) & !short;
    u8::from(one) | u8::from(five).wrapping_mul(5)
}

/// The sum of [`extra`] over at most [`BLOCK`] bytes.
#[inline(always)]
fn block_extra(block: &[u8]) -> u64 {
    block.iter().fold(0_u8, |sum, &byte| sum.wrapping_add(extra(byte))).into()
}

fn unquote(raw: &[u8]) -> Option<&[u8]> {
    raw.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// What an escape of one letter stands for.
#[inline(always)]
pub(super) const fn short_escape(letter: u8) -> Option<u8> {
    Some(match letter {
        b'"' | b'\\' | b'/' => letter,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}

/// Reads the character after `\u`: one unit, or a surrogate pair. Returns it, and the rest of the text.
fn unicode(text: &[u8]) -> Option<(char, &[u8])> {
    let (first, rest) = unit(text)?;
    if let Some(char) = char::from_u32(first.into()) {
        return Some((char, rest));
    }
    let (second, rest) = unit(rest.strip_prefix(b"\\u")?)?;
    Some((char::decode_utf16([first, second]).next()?.ok()?, rest))
}

/// The value of a hex digit.
pub(super) fn hex(digit: u8) -> Option<u16> {
    char::from(digit).to_digit(16)?.try_into().ok()
}

/// Four hex digits, and the rest.
fn unit(text: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, rest) = text.split_first_chunk::<4>()?;
    let unit = digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | hex(digit)?))?;
    Some((unit, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        escape_into(&mut out, text);
        out
    }

    fn quoted(inside: &[u8]) -> Vec<u8> {
        [b"\"", inside, b"\""].concat()
    }

    /// Text in which all that must be escaped is frequent.
    fn texts() -> impl Strategy<Value = String> {
        let runs =
            prop_oneof!["[ -~]{0,60}", "[\\x00-\\x1f\"\\\\]{0,8}", "[éß中文🎈\u{7f}\u{2028}]{0,20}", any::<String>()];
        prop::collection::vec(runs, 0..6).prop_map(|runs| runs.concat())
    }

    /// Insides of strings, good and bad.
    fn insides() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            "[a-z\"中 ]{0,9}",
            r#"\\["\\/bfnrtux0]"#,
            r"\\u[0-9a-fA-F]{4}",
            r"\\u[dD][89abAB][0-9a-f]{2}\\u[dD][c-fC-F][0-9a-f]{2}",
            r"\\ud[89abcdef]00",
            r"\\u[0-9g]{1,4}",
            "\n",
        ];
        prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
    }

    #[test]
    fn a_string_needs_both_quotes_and_whole_characters() {
        assert_eq!(string(b"\"ab\""), Some(Cow::Borrowed("ab")));
        for raw in [
            &b"\""[..],
            b"",
            b"\"a",
            b"a\"",
            b"\"a\"b\"",
            b"\"\\\"",
            b"\"\xff\"",
            b"\"\\n\xff\"",
            b"\"\\ud83c\"",
            b"\"\n\"",
        ] {
            assert_eq!(string(raw), None, "{raw:?}");
        }
    }

    #[test]
    fn the_length_of_each_byte_is_foretold() {
        for byte in 0..=u8::MAX {
            assert_eq!(escaped_len(&[byte]), len64(escaped(&[byte]).len()), "{byte}");
        }
    }

    #[test]
    fn only_what_must_be_is_escaped() {
        assert_eq!(
            escaped("\"\\/\u{8}\t\n\u{c}\r\u{0}\u{b}\u{1f}\u{7f}é".as_bytes()),
            "\\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u000b\\u001f\u{7f}é".as_bytes()
        );
    }

    #[test]
    fn white_space_in_strings_is_kept() {
        let mut out = Vec::new();
        Compactor::default().feed(&mut out, b" { \"a \\\" b\" : [ 1 ,\r\n\t\"\\\\\" , \" \" ] } ");
        assert_eq!(out, b"{\"a \\\" b\":[1,\"\\\\\",\" \"]}");
    }

    proptest! {
        #[test]
        fn escaping_agrees_with_serde(text in texts()) {
            let out = escaped(text.as_bytes());
            prop_assert_eq!(quoted(&out), serde_json::to_vec(&text).unwrap());
            prop_assert_eq!(escaped_len(text.as_bytes()), len64(out.len()));
            let mut back = vec![0; out.len()];
            prop_assert_eq!(unescape(&mut back, &out), Some(text.len()));
            prop_assert_eq!(&back[..text.len()], text.as_bytes());
        }

        #[test]
        fn unescaping_agrees_with_serde(inside in insides()) {
            let raw = quoted(inside.as_bytes());
            let want = serde_json::from_slice::<String>(&raw).ok();
            prop_assert_eq!(string(&raw), want.as_deref().map(Cow::Borrowed));
        }

        #[test]
        fn no_bytes_make_the_readers_panic(bytes: Vec<u8>) {
            let _ = (string(&bytes), string(&quoted(&bytes)));
            Compactor::default().feed(&mut Vec::new(), &bytes);
        }

        #[test]
        fn compacting_in_pieces_agrees_with_serde(text in texts(), key in texts(), cut in 0_usize..200) {
            let value = serde_json::json!({ key: [text.clone(), 1, { "b": text }], "c": {} });
            let pretty = serde_json::to_vec_pretty(&value).unwrap();
            let (a, b) = pretty.split_at(cut.min(pretty.len()));
            let (mut out, mut compactor) = (Vec::new(), Compactor::default());
            compactor.feed(&mut out, a);
            compactor.feed(&mut out, b);
            prop_assert_eq!(out, serde_json::to_vec(&value).unwrap());
        }
    }
}
