//! Sizes as people write them: `65536`, `64KiB`, `1M`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| "not a number of bytes, such as 65536, 64KiB or 1M".to_owned())?;
        let unit: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            _ => return Err(format!("unknown unit {unit:?}; k, M, G are powers of 1000, KiB, MiB, GiB of 1024")),
        };
        number.checked_mul(unit).map(Self).ok_or_else(|| format!("too many bytes; allowed are up to {}", u64::MAX))
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
    fn suffixes_are_powers_of_1000_or_1024() {
        for (text, want) in [
            ("0", 0),
            ("65536", 65_536),
            ("61k", 61_000),
            ("1M", 1_000_000),
            ("2G", 2_000_000_000),
            ("64KiB", 65_536),
            ("4MiB", 4 << 20),
            ("1GiB", 1 << 30),
            ("1mb", 1_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Size(want)), "{text}");
        }
    }

    #[test]
    fn a_size_is_shown_in_the_largest_unit_that_is_exact() {
        for text in ["0", "1", "65535", "61k", "64KiB", "1M", "900k", "32MiB", "2G", "1GiB"] {
            assert_eq!(text.parse::<Size>().map(|size| size.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Size(u64::MAX).to_string().parse(), Ok(Size(u64::MAX)));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "k", "-1", "1.5M", "1 M", "1T", "99999999999999999999", "18446744073709551615k"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
