//! Sizes as people write them: `65536`, `64KiB`, `1M`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A number of bytes, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Why a text is no size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// It does not begin with digits, or something that is no unit follows.
    #[error(
        "not a number of bytes; allowed are such as 65536, 64KiB or 1M (k, M, G are powers of 1000, KiB, MiB, GiB of 1024)"
    )]
    Malformed,
    /// No bytes at all.
    #[error("at least 1 byte is needed")]
    Zero,
    /// More than can be counted.
    #[error("too many bytes; at most 18446744073709551615 are allowed")]
    TooLarge,
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit: u64 = match unit.to_ascii_lowercase().as_str() {
            _ if number.is_empty() => return Err(SizeError::Malformed),
            "" | "b" => 1,
            "k" | "kb" => 1_000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            _ => return Err(SizeError::Malformed),
        };
        // Only digits are left, so that only their number can be wrong.
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        match number.checked_mul(unit) {
            Some(0) => Err(SizeError::Zero),
            Some(bytes) => Ok(Self(bytes)),
            None => Err(SizeError::TooLarge),
        }
    }
}

/// In the largest unit of which it is a whole number.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 6] =
            [("GiB", 1 << 30), ("G", 1_000_000_000), ("MiB", 1 << 20), ("M", 1_000_000), ("KiB", 1 << 10), ("k", 1000)];
        match UNITS.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => self.0.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_shown_in_the_largest_unit_that_is_exact() {
        for text in ["1", "65535", "61k", "64KiB", "1M", "900k", "32MiB", "2G", "1GiB"] {
            assert_eq!(text.parse::<Size>().map(|size| size.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Size(u64::MAX).to_string().parse(), Ok(Size(u64::MAX)));
    }

    #[test]
    fn suffixes_are_powers_of_1000_or_1024() {
        let sizes = [
            ("1", 1),
            ("65536", 65_536),
            ("61k", 61_000),
            ("1M", 1_000_000),
            ("2G", 2_000_000_000),
            ("64KiB", 65_536),
            ("4MiB", 4 << 20),
            ("1GiB", 1 << 30),
            ("1mb", 1_000_000),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, want) in sizes {
            assert_eq!(text.parse(), Ok(Size(want)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_by_name() {
        for text in ["", "k", "-1", "+1", "1.5M", "1 M", "1T", "0x10"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::Malformed), "{text}");
        }
        for text in ["18446744073709551616", "18446744073709551615k"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::TooLarge), "{text}");
        }
        assert_eq!("0k".parse::<Size>(), Err(SizeError::Zero));
    }
}
