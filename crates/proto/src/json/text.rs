//! Scalars as text: strings and numbers read from their exact span, and strings written.

use std::borrow::Cow;

use bytes::BufMut;

use super::input::is_space;
use super::key::{hex, is_high, join};
use super::special::plain_len;

/// A JSON number, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// An integral value, however it is spelled: `1`, `1.0`, `10e-1`. `-0` is 0.
    Int(i128),
    /// An integral value that does not fit, such as `1e400`.
    Huge {
        /// Whether it is below zero.
        negative: bool,
    },
    /// A value that is not integral, however near to one.
    Fraction,
    /// Not exactly one number.
    NotANumber,
}

impl Number {
    /// The value as an unsigned integer, if it is one and fits.
    #[must_use]
    pub fn to_u64(self) -> Option<u64> {
        match self {
            Self::Int(value) => value.try_into().ok(),
            Self::Huge { .. } | Self::Fraction | Self::NotANumber => None,
        }
    }
}

/// Reads a number. Exact, and linear in the length whatever the exponent.
#[must_use]
pub fn number(raw: &[u8]) -> Number {
    parse_number(raw).unwrap_or(Number::NotANumber)
}

/// Reads a string with its quotes; `None` if it is not one, is not UTF-8, or has half of a surrogate pair.
#[must_use]
pub fn string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inside = unquote(raw)?;
    if plain_len(inside) == inside.len() {
        return simdutf8::basic::from_utf8(inside).ok().map(Cow::Borrowed);
    }
    let mut out = Vec::new();
    unescape_into(&mut out, inside)?;
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// Whether `raw`, a string with its quotes, stands for `want`.
#[must_use]
pub fn string_eq(raw: &[u8], want: &str) -> bool {
    let Some(inside) = unquote(raw) else { return false };
    let left = Pieces { rest: inside }.try_fold(want.as_bytes(), |left, piece| match piece {
        Piece::Run(run) => left.strip_prefix(run),
        Piece::Char(char) => left.strip_prefix(char.encode_utf8(&mut [0; 4]).as_bytes()),
        Piece::Bad => None,
    });
    left.is_some_and(<[u8]>::is_empty)
}

/// Unescapes the inside of a string; `None`, with some of it written, if it is not one or has half of a surrogate pair.
pub fn unescape_into(out: &mut Vec<u8>, inside: &[u8]) -> Option<()> {
    out.reserve(inside.len());
    let mut rest = inside;
    while let Some((run, tail)) = rest.split_at_checked(plain_len(rest)) {
        out.extend_from_slice(run);
        let (byte, tail) = match tail {
            [] => break,
            [b'\\', byte, tail @ ..] => (*byte, tail),
            _ => return None,
        };
        rest = tail;
        let byte = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 0x08,
            b'f' => 0x0c,
            b'u' => {
                let mut pieces = Pieces { rest };
                let char = pieces.unicode()?;
                rest = pieces.rest;
                out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            _ => return None,
        };
        out.push(byte);
    }
    Some(())
}

/// Writes `text` as the inside of a string. Escapes only what must be; `out` must have room for [`escaped_len`] or grow.
pub fn escape_into(out: &mut impl BufMut, text: &[u8]) {
    let mut rest = text;
    while let Some((run, tail)) = rest.split_at_checked(plain_len(rest)) {
        out.put_slice(run);
        let Some((&byte, tail)) = tail.split_first() else { return };
        rest = tail;
        let short = match byte {
            b'"' | b'\\' => byte,
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0c => b'f',
            b'\r' => b'r',
            _ => {
                out.put_slice(&[b'\\', b'u', b'0', b'0', hex_digit(byte >> 4), hex_digit(byte & 0xf)]);
                continue;
            }
        };
        out.put_slice(&[b'\\', short]);
    }
}

/// The exact length that [`escape_into`] writes.
#[must_use]
pub fn escaped_len(text: &[u8]) -> u64 {
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    let extra = blocks.iter().fold(block_extra(rest), |sum, block| sum.saturating_add(block_extra(block)));
    len_u64(text.len()).saturating_add(extra)
}

/// The longest front of `text`, cut at a character, whose escaped length is at most `max`: its bytes, its escaped length.
#[must_use]
pub fn escaped_prefix(text: &[u8], max: u64) -> (usize, u64) {
    let (mut bytes, mut escaped) = (0_usize, 0_u64);
    for block in text.as_chunks::<BLOCK>().0 {
        let with = escaped.saturating_add(len_u64(BLOCK)).saturating_add(block_extra(block));
        if with > max {
            break;
        }
        (bytes, escaped) = (bytes.saturating_add(BLOCK), with);
    }
    for &byte in text.get(bytes..).unwrap_or_default() {
        let with = escaped.saturating_add(width(byte));
        if with > max {
            break;
        }
        (bytes, escaped) = (bytes.saturating_add(1), with);
    }
    while matches!(text.get(bytes), Some(0x80..=0xbf))
        && let Some(before) = bytes.checked_sub(1)
    {
        escaped = escaped.saturating_sub(text.get(before).map_or(0, |&byte| width(byte)));
        bytes = before;
    }
    (bytes, escaped)
}

/// Copies JSON without the white space outside of strings. What is not JSON is copied somehow.
pub fn compact_into(out: &mut Vec<u8>, json: &[u8]) {
    Compactor::new().feed(out, json);
}

/// [`compact_into`] for a text in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compactor {
    in_string: bool,
    /// The last byte was a backslash that escapes the next one.
    escaped: bool,
}

impl Compactor {
    /// Begins a text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

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

fn width(byte: u8) -> u64 {
    u64::from(extra(byte)).saturating_add(1)
}

fn hex_digit(nibble: u8) -> u8 {
    char::from_digit(nibble.into(), 16).and_then(|digit| digit.try_into().ok()).unwrap_or(b'0')
}

fn unquote(raw: &[u8]) -> Option<&[u8]> {
    raw.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// The inside of a string, taken apart.
struct Pieces<'a> {
    rest: &'a [u8],
}

enum Piece<'a> {
    /// Bytes that stand for themselves.
    Run(&'a [u8]),
    /// What an escape stands for.
    Char(char),
    /// Not the inside of a string. What follows has no meaning.
    Bad,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    #[inline]
    fn next(&mut self) -> Option<Piece<'a>> {
        let (run, rest) = self.rest.split_at_checked(plain_len(self.rest))?;
        if !run.is_empty() {
            self.rest = rest;
            return Some(Piece::Run(run));
        }
        if rest.is_empty() {
            return None;
        }
        Some(self.escape().map_or(Piece::Bad, Piece::Char))
    }
}

impl Pieces<'_> {
    fn escape(&mut self) -> Option<char> {
        let [b'\\', byte, rest @ ..] = self.rest else { return None };
        self.rest = rest;
        Some(match byte {
            b'"' | b'\\' | b'/' => char::from(*byte),
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return None,
        })
    }

    /// What follows `\u`: one unit, or two that are a pair.
    fn unicode(&mut self) -> Option<char> {
        let unit = self.unit()?;
        if !is_high(unit) {
            return char::from_u32(unit.into());
        }
        self.rest = self.rest.strip_prefix(b"\\u")?;
        join(unit, self.unit()?)
    }

    /// Four hex digits.
    fn unit(&mut self) -> Option<u16> {
        let (digits, rest) = self.rest.split_first_chunk::<4>()?;
        self.rest = rest;
        digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | hex(digit)?))
    }
}

fn parse_number(raw: &[u8]) -> Option<Number> {
    let (negative, rest) = strip(raw, b"-");
    let (whole, rest) = digits(rest);
    if whole.is_empty() || (whole.len() > 1 && whole.first() == Some(&b'0')) {
        return None;
    }
    let (point, rest) = strip(rest, b".");
    let (part, rest) = if point { digits(rest) } else { (&[][..], rest) };
    if point && part.is_empty() {
        return None;
    }
    let exponent = exponent(rest)?;

    // The value is a string of digits, zeros at both ends trimmed, times a power of ten.
    let all = || whole.iter().chain(part);
    let trailing = all().rev().take_while(|&&digit| digit == b'0').count();
    let len = all().count().saturating_sub(trailing);
    let significant = || all().take(len).skip_while(|&&digit| digit == b'0');
    if significant().next().is_none() {
        return Some(Number::Int(0));
    }
    let power = exponent.saturating_sub(len_i64(part.len())).saturating_add(len_i64(trailing));
    Some(match u32::try_from(power) {
        Ok(power) => integer(negative, significant(), power).map_or(Number::Huge { negative }, Number::Int),
        Err(_) if power < 0 => Number::Fraction,
        Err(_) => Number::Huge { negative },
    })
}

/// Whether `bytes` begins with `prefix`, and what follows.
fn strip<'a>(bytes: &'a [u8], prefix: &[u8]) -> (bool, &'a [u8]) {
    bytes.strip_prefix(prefix).map_or((false, bytes), |rest| (true, rest))
}

/// The digits at the front, and what follows.
fn digits(bytes: &[u8]) -> (&[u8], &[u8]) {
    let len = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes.split_at_checked(len).unwrap_or((bytes, &[]))
}

/// Reads the end of a number from its `e`; 0 if there is nothing left. Saturates.
fn exponent(rest: &[u8]) -> Option<i64> {
    let [b'e' | b'E', rest @ ..] = rest else {
        return rest.is_empty().then_some(0);
    };
    let (negative, rest) = match rest {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, rest),
    };
    let (digits, after) = digits(rest);
    if digits.is_empty() || !after.is_empty() {
        return None;
    }
    let size = digits
        .iter()
        .fold(0_i64, |sum, &digit| sum.saturating_mul(10).saturating_add(i64::from(digit.wrapping_sub(b'0'))));
    Some(if negative { size.saturating_neg() } else { size })
}

/// `digits`, the first of which is not 0, times a power of ten; `None` if that does not fit.
fn integer<'a>(negative: bool, digits: impl Iterator<Item = &'a u8>, power: u32) -> Option<i128> {
    let mut value = 0_i128;
    for digit in digits {
        let digit = i128::from(digit.wrapping_sub(b'0'));
        value = value.checked_mul(10)?;
        value = if negative { value.checked_sub(digit)? } else { value.checked_add(digit)? };
    }
    value.checked_mul(10_i128.checked_pow(power)?)
}

fn len_i64(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
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
    fn an_integral_value_is_read_in_any_spelling() {
        for (raw, want) in [
            ("1", 1),
            ("1.0", 1),
            ("1e0", 1),
            ("10e-1", 1),
            ("0.001e3", 1),
            ("1000E-3", 1),
            ("-0", 0),
            ("-0.0e-7", 0),
            ("0e999999999999999999999", 0),
            ("-12.50e+1", -125),
            ("18446744073709551615", i128::from(u64::MAX)),
            ("1844674407370955161500e-2", i128::from(u64::MAX)),
            ("-170141183460469231731687303715884105728", i128::MIN),
            ("1e38", 10_i128.pow(38)),
        ] {
            assert_eq!(number(raw.as_bytes()), Number::Int(want), "{raw}");
        }
    }

    #[test]
    fn a_value_too_large_is_huge_with_its_sign() {
        for raw in
            ["1e39", "1e400", "1e999999999", "1e99999999999999999999999", "170141183460469231731687303715884105729"]
        {
            assert_eq!(number(raw.as_bytes()), Number::Huge { negative: false }, "{raw}");
            assert_eq!(number(format!("-{raw}").as_bytes()), Number::Huge { negative: true }, "-{raw}");
        }
    }

    #[test]
    fn a_fraction_is_not_an_integer() {
        for raw in ["0.5", "1e-1", "1.0000000000000000000000000000000000000000001", "1e-99999999999999999999", "15e-1"]
        {
            assert_eq!(number(raw.as_bytes()), Number::Fraction, "{raw}");
        }
    }

    #[test]
    fn what_is_not_one_number_is_refused() {
        for raw in
            ["", "-", "01", "1.", ".5", "1e", "1e+", "+1", "1 ", " 1", "1e1.0", "0x1", "NaN", "\"1\"", "--1", "00"]
        {
            assert_eq!(number(raw.as_bytes()), Number::NotANumber, "{raw}");
        }
    }

    #[test]
    fn a_million_digits_are_read_at_once() {
        let raw = format!("1{}e-1000000", "0".repeat(1_000_000));
        assert_eq!(number(raw.as_bytes()), Number::Int(1));
        let raw = format!("0.{}1e1000001", "0".repeat(1_000_000));
        assert_eq!(number(raw.as_bytes()), Number::Int(1));
    }

    #[test]
    fn only_what_fits_is_unsigned() {
        assert_eq!(number(b"1.8446744073709551615e19").to_u64(), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616").to_u64(), None);
        assert_eq!(number(b"-1").to_u64(), None);
        assert_eq!(number(b"1e400").to_u64(), None);
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
    fn a_spelling_does_not_change_what_a_string_equals() {
        assert!(string_eq(br#""m\u0065thod""#, "method"));
        assert!(string_eq(br#""\ud83c\udf88""#, "🎈"));
        assert!(string_eq(br#""""#, ""));
        assert!(!string_eq(br#""method""#, "metho"));
        assert!(!string_eq(br#""metho""#, "method"));
        assert!(!string_eq(br#""a"b""#, "a\"b"));
        assert!(!string_eq(b"method", "method"));
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
        compact_into(&mut out, b" { \"a \\\" b\" : [ 1 ,\r\n\t\"\\\\\" , \" \" ] } ");
        assert_eq!(out, b"{\"a \\\" b\":[1,\"\\\\\",\" \"]}");
    }

    proptest! {
        #[test]
        fn escaping_agrees_with_serde(text in texts()) {
            let out = escaped(text.as_bytes());
            prop_assert_eq!(quoted(&out), serde_json::to_vec(&text).unwrap());
            prop_assert_eq!(escaped_len(text.as_bytes()), len_u64(out.len()));
            let mut back = Vec::new();
            prop_assert_eq!(unescape_into(&mut back, &out), Some(()));
            prop_assert_eq!(back, text.as_bytes());
        }

        #[test]
        fn unescaping_agrees_with_serde(inside in insides(), other in insides()) {
            let raw = quoted(inside.as_bytes());
            let want = serde_json::from_slice::<String>(&raw).ok();
            prop_assert_eq!(string(&raw), want.as_deref().map(Cow::Borrowed));
            if let Some(want) = &want {
                prop_assert!(string_eq(&raw, want));
            }
            prop_assert_eq!(string_eq(&raw, &other), want.as_deref() == Some(&other));
        }

        #[test]
        fn a_prefix_is_the_longest_that_fits(text in texts(), max in 0_u64..400) {
            let (bytes, len) = escaped_prefix(text.as_bytes(), max);
            prop_assert!(text.is_char_boundary(bytes));
            prop_assert_eq!(escaped_len(&text.as_bytes()[..bytes]), len);
            prop_assert!(len <= max);
            if let Some(next) = text[bytes..].chars().next() {
                prop_assert!(escaped_len(&text.as_bytes()[..bytes + next.len_utf8()]) > max);
            }
        }

        #[test]
        fn no_bytes_make_the_readers_panic(bytes: Vec<u8>, max: u64) {
            let _ = (string(&bytes), string(&quoted(&bytes)), string_eq(&quoted(&bytes), "a"), number(&bytes));
            let (prefix, len) = escaped_prefix(&bytes, max % 64);
            prop_assert_eq!(escaped_len(&bytes[..prefix]), len);
            compact_into(&mut Vec::new(), &bytes);
        }

        #[test]
        fn numbers_agree_with_serde(raw in "-?[0-9]{1,3}(\\.[0-9]{0,3})?([eE][+-]?[0-9]{0,2})?") {
            let by_serde = serde_json::from_str::<f64>(&raw).ok();
            match number(raw.as_bytes()) {
                Number::NotANumber => prop_assert_eq!(by_serde, None),
                Number::Int(value) if value.abs() < 1 << 53 => {
                    prop_assert_eq!(by_serde.map(|float| float.to_string()), Some(value.to_string()).map(|text| if text == "0" && raw.starts_with('-') { "-0".into() } else { text }));
                }
                Number::Int(_) => prop_assert!(by_serde.unwrap().abs() >= 9e15),
                Number::Huge { negative } => prop_assert!(by_serde.unwrap().abs() > 1e38 && by_serde.unwrap().is_sign_negative() == negative),
                Number::Fraction => prop_assert!(by_serde.unwrap().fract() != 0.0 || by_serde.unwrap().abs() > 1e15),
            }
        }

        #[test]
        fn compacting_in_pieces_agrees_with_serde(text in texts(), key in texts(), cut in 0_usize..200) {
            let value = serde_json::json!({ key: [text.clone(), 1, { "b": text }], "c": {} });
            let pretty = serde_json::to_vec_pretty(&value).unwrap();
            let (a, b) = pretty.split_at(cut.min(pretty.len()));
            let (mut out, mut compactor) = (Vec::new(), Compactor::new());
            compactor.feed(&mut out, a);
            compactor.feed(&mut out, b);
            prop_assert_eq!(out, serde_json::to_vec(&value).unwrap());
        }
    }
}
