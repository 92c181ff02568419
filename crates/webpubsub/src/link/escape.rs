//! Frames as the inside of a JSON string, and back.

use breakbulk_proto::{Message, json};
use bytes::Bytes;

/// A stretch without escapes that is at least this long is shared and not copied.
const SHARED: usize = 4 << 10;

/// The pieces of a frame as the inside of a JSON string. Long stretches that need no escapes, such as the base64 of a segment, are not
/// copied.
pub(super) fn escaped_parts(frame: &Message) -> Vec<Bytes> {
    let mut parts = Vec::new();
    let mut copied = Vec::new();
    for part in frame.parts() {
        let mut from = 0;
        // Where something has to be escaped. Control characters are rare, and found by a second look at what lies between.
        for at in memchr::memchr2_iter(b'"', b'\\', part).chain([part.len()]) {
            if at.saturating_sub(from) >= SHARED {
                let run = part.slice(from..at);
                if json::escaped_len(&run) == u64::try_from(run.len()).unwrap_or(u64::MAX) {
                    if !copied.is_empty() {
                        parts.push(std::mem::take(&mut copied).into());
                    }
                    parts.push(run);
                    from = at;
                }
            }
            let end = at.saturating_add(1).min(part.len());
            json::escape_into(&mut copied, part.get(from..end).unwrap_or_default());
            from = end;
        }
    }
    if !copied.is_empty() {
        parts.push(copied.into());
    }
    parts
}

/// What the inside of a JSON string stands for. Not copied if there are no escapes in it.
pub(super) fn unescaped(data: &Bytes, inside: &[u8]) -> Option<Bytes> {
    if memchr::memchr(b'\\', inside).is_none() {
        return Some(data.slice_ref(inside));
    }
    let mut text = Vec::with_capacity(inside.len());
    let mut rest = inside;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (run, escape) = rest.split_at_checked(at)?;
        text.extend_from_slice(run);
        let byte = match escape.get(1)? {
            byte @ (b'"' | b'\\' | b'/') => *byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            // Such escapes may come in pairs.
            _ => return unescaped_slowly(inside),
        };
        text.push(byte);
        rest = escape.get(2..)?;
    }
    text.extend_from_slice(rest);
    Some(text.into())
}

fn unescaped_slowly(inside: &[u8]) -> Option<Bytes> {
    let mut text = vec![0; inside.len()];
    let len = json::unescape(&mut text, inside)?;
    text.truncate(len);
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_escaped_comes_back(pieces in prop::collection::vec((r#"["\\a\n\u{1}é]{0,9}"#, 0..9_000_usize), 0..5)) {
            let frame: Message = pieces.iter().map(|(text, run)| Bytes::from(format!("{text}{}", "x".repeat(*run)))).collect();
            let inside = Bytes::from(escaped_parts(&frame).concat());
            prop_assert_eq!(inside.len() as u64, json::escaped_len(&frame.to_bytes()));
            let quoted = [&b"\""[..], &inside, b"\""].concat();
            prop_assert!(serde_json::from_slice::<String>(&quoted).is_ok());
            prop_assert_eq!(unescaped(&inside, &inside), Some(frame.to_bytes()));
        }
    }

    #[test]
    fn the_base64_of_a_segment_is_shared() {
        let data = Bytes::from("A".repeat(100_000));
        let frame: Message =
            [Bytes::from_static(b"{\"data\":\""), data.clone(), Bytes::from_static(b"\"}")].into_iter().collect();
        let parts = escaped_parts(&frame);
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[1].as_ptr(), data.as_ptr());
    }
}
