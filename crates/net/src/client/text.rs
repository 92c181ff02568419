//! Reads JSON texts in pieces without joining them: slices, elements of arrays, scalars, and whether a string occurs in them.

use breakbulk_proto::Message;
use breakbulk_proto::json::{self, Found, Path, Scanner, Span, Utf8, ValueKind, Visit};

/// The shortest text that is an action or a snapshot. An array with so many elements that they must be shorter is refused, because each
/// element costs memory of its own.
const MIN_ELEMENT: usize = 32;

/// Whether a text is one JSON value. What is not JSON must not be sent, because the host would close the connection.
pub(super) fn is_json(text: &Message) -> bool {
    let (mut utf8, mut scanner) = (Utf8::default(), Scanner::new(()));
    let fed = text.slices().all(|part| utf8.feed(part).is_ok() && scanner.feed(part).is_ok());
    fed && utf8.finish().is_ok() && scanner.finish().is_ok()
}

/// A part of a message. Its bytes are shared, not copied.
pub(super) fn slice(message: &Message, span: Span) -> Message {
    let pieces = message.parts().iter().scan(0_u64, |next, part| {
        let at = *next;
        *next = at.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX));
        Some((at, part))
    });
    let cut = pieces.filter_map(|(at, part)| {
        let clip = |offset: u64| usize::try_from(offset.saturating_sub(at)).map_or(part.len(), |n| n.min(part.len()));
        let range = clip(span.start)..clip(span.end);
        (!range.is_empty()).then(|| part.slice(range))
    });
    cut.collect()
}

/// The strings at some paths of a text, unescaped.
pub(super) fn string_at<const N: usize>(text: &Message, paths: &'static [Path; N]) -> [Option<String>; N] {
    let found = json::find(text.slices(), paths).ok();
    std::array::from_fn(|i| string(text, found.as_ref()?.get(i)))
}

/// The string that was found, unescaped.
pub(super) fn string(message: &Message, found: Option<Found>) -> Option<String> {
    let found = found.filter(|found| found.kind == ValueKind::String)?;
    json::string(&message.read(found.span)).map(std::borrow::Cow::into_owned)
}

/// The number that was found, if it is no less than 0.
pub(super) fn number(message: &Message, found: Option<Found>) -> Option<u64> {
    json::number(&message.read(found?.span)).to_u64()
}

/// The integer that was found.
pub(super) fn integer(message: &Message, found: Option<Found>) -> Option<i64> {
    match json::number(&message.read(found?.span)) {
        json::Number::Int(value) => i64::try_from(value).ok(),
        _ => None,
    }
}

/// Reads each element of an array. `None` if it is not an array, or an element cannot be read.
pub(super) fn each<T>(text: &Message, array: Found, read: impl Fn(&Message) -> Option<T>) -> Option<Vec<T>> {
    let array = slice(text, array.span);
    let mut scanner = Scanner::new(Elements::up_to(array.len() / MIN_ELEMENT + 1));
    for part in array.slices() {
        scanner.feed(part).ok()?;
    }
    let elements = scanner.finish().ok()?;
    let spans = elements.spans.filter(|_| elements.is_array)?;
    spans.into_iter().map(|span| read(&slice(&array, span))).collect()
}

/// A visitor that remembers where the elements of an array lie.
struct Elements {
    is_array: bool,
    max_elements: usize,
    /// `None` when there are too many.
    spans: Option<Vec<Span>>,
}

impl Elements {
    const fn up_to(max_elements: usize) -> Self {
        Self { is_array: false, max_elements, spans: Some(Vec::new()) }
    }
}

impl Visit for Elements {
    fn depth(&self) -> usize {
        1
    }

    fn key(&mut self, _: usize, _: Option<&[u8]>) {}

    fn begin(&mut self, depth: usize, kind: ValueKind, at: u64) {
        if depth == 0 {
            self.is_array = kind == ValueKind::Array;
        } else if let Some(spans) = self.spans.as_mut().filter(|spans| spans.len() < self.max_elements) {
            spans.push(Span { start: at, end: at });
        } else {
            self.spans = None;
        }
    }

    fn end(&mut self, depth: usize, at: u64) {
        if depth == 1
            && let Some(last) = self.spans.as_mut().and_then(|spans| spans.last_mut())
        {
            last.end = at;
        }
    }
}

/// Whether `needle` occurs in a text, also across the ends of its pieces.
pub(super) fn contains(rope: &Message, needle: &[u8]) -> bool {
    let Some((first, rest)) = needle.split_first() else {
        return true;
    };
    // The end of the last piece, in which the needle may begin.
    let mut tail: Vec<u8> = Vec::new();
    for part in rope.slices() {
        let joint = part.get(..rest.len()).unwrap_or(part);
        tail.extend_from_slice(joint);
        if tail.windows(needle.len()).any(|window| window == needle) || holds(part, *first, rest) {
            return true;
        }
        if part.len() > rest.len() {
            tail.clear();
            tail.extend_from_slice(part.get(part.len() - rest.len()..).unwrap_or_default());
        } else {
            let surplus = tail.len().saturating_sub(rest.len());
            tail.drain(..surplus);
        }
    }
    false
}

fn holds(part: &[u8], first: u8, rest: &[u8]) -> bool {
    let starts = part.iter().enumerate().filter(|(_, byte)| **byte == first);
    starts.map(|(at, _)| part.get(at + 1..).unwrap_or_default()).any(|after| after.starts_with(rest))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn rope(text: &str, piece: usize) -> Message {
        text.as_bytes().chunks(piece).map(Bytes::copy_from_slice).collect()
    }

    #[test]
    fn a_needle_is_found_wherever_the_pieces_are_cut() {
        let text = r#"{"a":"xx","b":"needle","c":"need"}"#;
        for piece in 1..text.len() + 1 {
            let rope = rope(text, piece);
            assert!(contains(&rope, br#""needle""#), "{piece}");
            assert!(contains(&rope, b"}") && contains(&rope, b"{"), "{piece}");
            assert!(!contains(&rope, br#""needles""#) && !contains(&rope, br#""nee""#), "{piece}");
        }
    }

    #[test]
    fn a_part_is_the_same_wherever_the_pieces_are_cut() {
        for piece in 1..10 {
            assert_eq!(slice(&rope("0123456789", piece), Span { start: 3, end: 7 }), Message::from("3456"));
        }
    }

    #[test]
    fn only_one_whole_value_is_json() {
        for text in [r#"{"a":1"#, "1 2", "", "\"\u{0}\""] {
            assert!(!is_json(&Message::from(text)), "{text:?}");
        }
        assert!(!is_json(&Message::from(&b"\"\xff\""[..])), "not UTF-8");
        assert!(is_json(&rope(r#"{"a":[1,"é"]}"#, 1)));
    }
}
