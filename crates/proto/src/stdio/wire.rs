//! One line of the wire form: `UUID:index:total:data`.

use bytes::BufMut;
use sha2::{Digest, Sha256};

/// Longest frame, its line end not counted: SwiftAgentKit's 61,440 with it.
pub(super) const MAX_FRAME: u64 = 61_439;
/// Longest message that goes raw on one line.
pub(super) const MAX_RAW: u64 = 61_340;
/// Longest payload of a frame.
pub(super) const MAX_PAYLOAD: u64 = 61_384;
/// Most frames of one message, either way: about 57 GiB of full ones, and 6 digits are enough for any index.
pub(super) const MAX_TOTAL: u32 = 1_000_000;
/// Longest header: a UUID, three colons, an index of 6 digits and a total of 7.
pub(super) const MAX_HEADER: u64 = 36 + 3 + 6 + 7;

const UUID_LEN: usize = 36;
/// More digits than any number on the wire: it is something else.
const MAX_DIGITS: usize = 19;

/// A message's name on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(u128);

impl GroupId {
    /// The `n`th name from a seed, in the shape of a random (version 4) UUID.
    pub(super) fn new(seed: &[u8; 32], n: u64) -> Self {
        let digest = Sha256::new().chain_update(seed).chain_update(n.to_be_bytes()).finalize();
        let front = digest.first_chunk::<16>().map_or(0, |front| u128::from_be_bytes(*front));
        let version = front & !(0xf << 76) | 4 << 76;
        Self(version & !(0b11 << 62) | 0b10 << 62)
    }

    /// Reads 8-4-4-4-12 hex digits of any case.
    fn read(text: &[u8; UUID_LEN]) -> Option<Self> {
        let mut value = 0_u128;
        for (at, byte) in text.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = char::from(*byte).to_digit(16)?;
            value = value << 4 | u128::from(digit);
        }
        Some(Self(value))
    }

    /// Writes it in upper case, as SwiftAgentKit does.
    fn write(self, out: &mut impl BufMut) {
        for (at, nibble) in (0..32_u32).rev().enumerate() {
            if matches!(at, 8 | 12 | 16 | 20) {
                out.put_u8(b'-');
            }
            let digit = u32::try_from(self.0 >> nibble.wrapping_mul(4) & 0xf).unwrap_or(0);
            let digit = char::from_digit(digit, 16).unwrap_or('0').to_ascii_uppercase();
            out.put_slice(digit.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

/// What stands before a frame's data. The numbers are as they came: any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: GroupId,
    pub(super) index: u64,
    pub(super) total: u64,
}

impl Header {
    /// Reads the header of a line, and where its data begins. `None` if the line is no frame.
    pub(super) fn read(line: &[u8]) -> Option<(Self, usize)> {
        let (id, rest) = line.split_first_chunk::<UUID_LEN>()?;
        let rest = rest.strip_prefix(b":")?;
        let id = GroupId::read(id)?;
        let (index, rest) = number(rest)?;
        let (total, data) = number(rest)?;
        Some((Self { id, index, total }, line.len().saturating_sub(data.len())))
    }

    pub(super) fn write(self, out: &mut impl BufMut) {
        self.id.write(out);
        out.put_u8(b':');
        put_decimal(out, self.index);
        out.put_u8(b':');
        put_decimal(out, self.total);
        out.put_u8(b':');
    }
}

/// Digits up to a colon, and what follows it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take(MAX_DIGITS).take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at_checked(digits)?;
    if digits.is_empty() {
        return None;
    }
    let value = digits
        .iter()
        .fold(0_u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit.wrapping_sub(b'0'))));
    Some((value, rest.strip_prefix(b":")?))
}

/// Writes a number without allocating.
fn put_decimal(out: &mut impl BufMut, value: u64) {
    let mut power = 1_u64;
    while value.checked_div(power).is_some_and(|left| left >= 10) {
        power = power.saturating_mul(10);
    }
    while power > 0 {
        let digit = value.checked_div(power).and_then(|front| front.checked_rem(10)).unwrap_or(0);
        out.put_u8(b'0'.wrapping_add(u8::try_from(digit).unwrap_or(0)));
        power = power.checked_div(10).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0B4D6F2A-1C3E-4A5B-8C7D-9E0F1A2B3C4D";

    fn read(line: &str) -> Option<(u64, u64, &str)> {
        let (header, at) = Header::read(line.as_bytes())?;
        Some((header.index, header.total, &line[at..]))
    }

    #[test]
    fn a_header_that_is_written_is_read_back() {
        for (index, total) in [(0, 1), (9, 10), (10, 100), (999_999, 1_000_000)] {
            let header = Header { id: GroupId::new(&[7; 32], index), index, total };
            let mut line = Vec::new();
            header.write(&mut line);
            assert!(line.len() as u64 <= MAX_HEADER);
            let at = line.len();
            line.extend_from_slice(b"a:b");
            assert_eq!(Header::read(&line), Some((header, at)));
        }
        let mut line = Vec::new();
        put_decimal(&mut line, u64::MAX);
        assert_eq!(line, u64::MAX.to_string().as_bytes());
    }

    #[test]
    fn data_is_what_follows_the_third_colon_even_nothing() {
        assert_eq!(read(&format!("{ID}:1:3:a:b:")), Some((1, 3, "a:b:")));
        assert_eq!(read(&format!("{}:007:3:", ID.to_lowercase())), Some((7, 3, "")));
    }

    #[test]
    fn a_line_without_a_real_uuid_or_with_other_than_digits_is_no_frame() {
        for line in [
            "".into(),
            ID.into(),
            format!("{ID}:1:3"),
            format!("{ID}:1:"),
            format!("{ID}::3:x"),
            format!("{ID}:-1:3:x"),
            format!("{ID}:+1:3:x"),
            format!("{ID}: 1:3:x"),
            format!("{ID}:1:3.0:x"),
            format!("{ID}:1:{}:x", "9".repeat(20)),
            format!("{}:0:1:x", ID.replace('D', "G")),
            format!("{}:0:1:x", ID.replace('-', "0")),
            format!(" {ID}:0:1:x"),
            "a1b2c3-4d5e-6f7g-8h9i-j0k1l2m3n4o5:0:3:x".into(),
        ] {
            assert_eq!(read(&line), None, "{line}");
        }
    }

    #[test]
    fn ids_are_upper_case_version_4_and_differ_by_seed_and_count() {
        let text = |seed, n| {
            let mut out = Vec::new();
            GroupId::new(&[seed; 32], n).write(&mut out);
            String::from_utf8(out).unwrap()
        };
        let ids: std::collections::BTreeSet<_> = (0..2).flat_map(|seed| (0..200).map(move |n| (seed, n))).collect();
        let texts: std::collections::BTreeSet<_> = ids.iter().map(|(seed, n)| text(*seed, *n)).collect();
        assert_eq!(texts.len(), 400);
        for id in &texts {
            assert_eq!((&id[14..15], id.len()), ("4", 36));
            assert!("89AB".contains(&id[19..20]) && *id == id.to_uppercase(), "{id}");
        }
        assert_eq!(text(1, 1), text(1, 1));
    }
}
