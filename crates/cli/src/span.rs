//! Spans of time as people write them: `500ms`, `30s`, `2m`, `7d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time, longer than zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

const ALLOWED: &str = "allowed is a whole number and a unit, such as 500ms, 30s, 2m, 1h or 7d";

/// Units, in milliseconds, the longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, millis)| *millis);
        let millis = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        match millis {
            Some(0) => Err("it must be more than zero".to_owned()),
            Some(millis) => Ok(Self(Duration::from_millis(millis))),
            None => Err(ALLOWED.to_owned()),
        }
    }
}

/// In the longest unit of which it is a whole number.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let (name, unit) =
            UNITS.iter().find(|(_, unit)| millis.is_multiple_of(u128::from(*unit))).unwrap_or(&("ms", 1));
        write!(f, "{}{name}", millis / u128::from(*unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_number_and_a_unit() {
        for (text, millis) in
            [("1ms", 1), ("500ms", 500), ("30s", 30_000), ("2m", 120_000), ("1h", 3_600_000), ("7d", 604_800_000)]
        {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(millis))), "{text}");
            assert_eq!(Span(Duration::from_millis(millis)).to_string(), text);
        }
        assert_eq!(Span(Duration::from_secs(90)).to_string(), "90s");
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in
            ["", "30", "s", "0s", "1.5s", "-1s", "1 s", "1w", "1m30s", "99999999999999999999s", "9999999999999999h"]
        {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
