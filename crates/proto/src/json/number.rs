//! Numbers read from their exact span, by value and not by spelling.

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
        if let Self::Int(value) = self { value.try_into().ok() } else { None }
    }
}

/// Reads a number. Exact, and linear in the length whatever the exponent.
#[must_use]
pub fn number(raw: &[u8]) -> Number {
    parse(raw).unwrap_or(Number::NotANumber)
}

fn parse(raw: &[u8]) -> Option<Number> {
    let (negative, rest) = strip(raw, b"-");
    let (whole, rest) = digits(rest);
    let (point, rest) = strip(rest, b".");
    let (part, rest) = if point { digits(rest) } else { (&[][..], rest) };
    let padded = whole.len() > 1 && whole.starts_with(b"0");
    if whole.is_empty() || padded || (point && part.is_empty()) {
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
    let wide = |len: usize| i64::try_from(len).unwrap_or(i64::MAX);
    let power = exponent.saturating_sub(wide(part.len())).saturating_add(wide(trailing));
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
    let [b'e' | b'E', power @ ..] = rest else {
        return rest.is_empty().then_some(0);
    };
    let (digits, after) = digits(power.strip_prefix(b"+").or(power.strip_prefix(b"-")).unwrap_or(power));
    if digits.is_empty() || !after.is_empty() {
        return None;
    }
    let limit = if power.starts_with(b"-") { i64::MIN } else { i64::MAX };
    Some(std::str::from_utf8(power).ok()?.parse().unwrap_or(limit))
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
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
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            let _ = number(&bytes);
        }
    }
}
