//! Decodes output to text without splitting characters or short escape sequences, and finds titles and directories in it.

use std::path::PathBuf;

use super::claim;
use crate::files::path_of;

/// Decodes bytes to text as they arrive.
#[derive(Debug, Default)]
pub(super) struct OutputDecoder {
    /// The beginning of an incomplete character or escape sequence.
    held: Vec<u8>,
}

/// Text that may be sent, and the title and directory that its escape sequences set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DecodedOutput {
    pub(super) text: String,
    /// The last title that the program gave itself.
    pub(super) title: Option<String>,
    /// The last working directory that the program reported.
    pub(super) cwd: Option<PathBuf>,
}

/// An incomplete sequence that is longer than this is not held back: it is probably an image.
const MAX_HELD: usize = 4096;

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;

impl OutputDecoder {
    /// Takes bytes, returns the complete text. Invalid bytes become U+FFFD.
    pub(super) fn push(&mut self, bytes: &[u8]) -> DecodedOutput {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let mut cut = DecodedOutput::default();
        let end = whole(&all, &mut cut);
        let end = end - if end == all.len() { unfinished(&all) } else { 0 };
        self.held = all.split_off(end);
        cut.text = text_of(all);
        cut
    }

    /// What is left at the end of the output.
    pub(super) fn finish(&mut self) -> DecodedOutput {
        DecodedOutput { text: text_of(std::mem::take(&mut self.held)), ..DecodedOutput::default() }
    }
}

fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The length up to which all sequences are complete; records what they set.
fn whole(bytes: &[u8], cut: &mut DecodedOutput) -> usize {
    let mut at = 0;
    while let Some(start) = bytes[at..].iter().position(|&byte| byte == ESC).map(|found| at + found) {
        let rest = &bytes[start..];
        match sequence_len(rest) {
            Some(len) => {
                note(&rest[..len], cut);
                at = start + len;
            }
            None if rest.len() <= MAX_HELD => return start,
            None => at = start + 1,
        }
    }
    bytes.len()
}

/// The length of the escape sequence that begins here; `None` if its end is not here.
fn sequence_len(bytes: &[u8]) -> Option<usize> {
    match bytes.get(1)? {
        b'[' => ends(bytes, 2, |byte| !(0x20..=0x3f).contains(&byte)),
        b']' | b'P' | b'_' | b'^' | b'X' => string_len(bytes),
        0x20..=0x2f => ends(bytes, 2, |byte| !(0x20..=0x2f).contains(&byte)),
        0x30..=0x7e => Some(2),
        _ => Some(1),
    }
}

/// The length up to the first byte from `from` on that ends it. That byte belongs to it, unless it cannot.
fn ends(bytes: &[u8], from: usize, last: impl Fn(u8) -> bool) -> Option<usize> {
    let found = bytes[from..].iter().position(|&byte| last(byte))? + from;
    Some(found + usize::from((0x30..=0x7e).contains(&bytes[found])))
}

/// A string sequence goes on to BEL or ST, and is given up at CAN, SUB or another escape.
fn string_len(bytes: &[u8]) -> Option<usize> {
    let found = bytes[2..].iter().position(|&byte| matches!(byte, BEL | ESC | 0x18 | 0x1a))? + 2;
    match (bytes[found], bytes.get(found + 1)) {
        (ESC, None) => None,
        (ESC, Some(b'\\')) => Some(found + 2),
        (ESC, Some(_)) => Some(found),
        _ => Some(found + 1),
    }
}

/// `OSC 0` and `OSC 2` name the window, `OSC 7` the working directory.
fn note(sequence: &[u8], cut: &mut DecodedOutput) {
    let Some(inner) = sequence.strip_prefix(b"\x1b]") else { return };
    let inner = inner.strip_suffix(b"\x1b\\").or(inner.strip_suffix(&[BEL])).unwrap_or(inner);
    let Some((code, value)) = std::str::from_utf8(inner).ok().and_then(|text| text.split_once(';')) else { return };
    match code {
        "0" | "2" => cut.title = Some(claim::title(value)),
        "7" => cut.cwd = cwd(value).or(cut.cwd.take()),
        _ => {}
    }
}

/// Shells put the machine's name into the URI: `file://here/command`.
fn cwd(uri: &str) -> Option<PathBuf> {
    let rest = uri.strip_prefix("file://")?;
    path_of(&format!("file://{}", &rest[rest.find('/')?..])).ok()
}

/// The length of a character at the end that is not complete.
fn unfinished(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    let Some(lead) = tail.iter().rposition(|byte| byte & 0xc0 != 0x80) else { return 0 };
    match std::str::from_utf8(&tail[lead..]) {
        Err(error) if error.error_len().is_none() => tail.len() - lead,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_character_and_a_sequence_wait_for_their_end() {
        let mut decoder = OutputDecoder::default();
        assert_eq!(decoder.push(b"a\xe2\x82").text, "a");
        assert_eq!(decoder.push(b"\xac\x1b[3").text, "€");
        assert_eq!(decoder.push(b"1mred\x1b").text, "\x1b[31mred");
        assert_eq!(decoder.finish().text, "\x1b");
    }

    #[test]
    fn titles_and_directories_are_noted_whatever_ends_them() {
        let mut decoder = OutputDecoder::default();
        let cut = decoder.push(b"\x1b]0;first\x07\x1b]2;se\xc3\xa9cond\x1b\\\x1b]7;file://here/a%20b\x07$ ");
        assert_eq!(cut.title.as_deref(), Some("seécond"));
        assert_eq!(cut.cwd, Some(PathBuf::from("/a b")));
        assert_eq!(
            decoder.push(b"\x1b]7;file://\x07\x1b]7;http://x/\x07"),
            DecodedOutput { text: "\x1b]7;file://\x07\x1b]7;http://x/\x07".into(), ..DecodedOutput::default() }
        );
    }

    #[test]
    fn a_sequence_that_does_not_end_is_not_held_for_ever() {
        let mut decoder = OutputDecoder::default();
        let long = [b"\x1bP".as_slice(), &[b'x'; MAX_HELD]].concat();
        assert_eq!(decoder.push(&long).text.len(), long.len());
    }

    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            "\\PC{0,8}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..8),
            prop::sample::select(vec![&b"\x1b"[..], b"\x1b[", b"\x1b]0;", b"\x07", b"\x1b\\", b"\x1b(B", b"\x1b[1;3"])
                .prop_map(<[u8]>::to_vec),
        ]
    }

    proptest! {
        #[test]
        fn however_it_is_cut_all_of_it_arrives(pieces in prop::collection::vec(piece(), 0..24)) {
            let mut decoder = OutputDecoder::default();
            let mut text: String = pieces.iter().map(|piece| decoder.push(piece).text).collect();
            text.push_str(&decoder.finish().text);
            prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }
    }
}
