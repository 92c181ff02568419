//! Times as ISO 8601 text.

use std::time::{Duration, SystemTime};

/// `2026-01-15T12:34:56.789Z`, or nothing for a time before 1970 or after 9999.
#[must_use]
pub fn iso_8601(time: SystemTime) -> Option<String> {
    const LAST: Duration = Duration::from_secs(253_402_300_799); // the last second of 9999
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok().filter(|since| *since <= LAST)?;
    let seconds = since.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let milli = since.subsec_millis();
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z"))
}

/// The time now.
pub(crate) fn now() -> String {
    iso_8601(SystemTime::now()).unwrap_or_default()
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last one of its year, in eras of 400 years.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468; // from 0000-03-01
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Option<String> {
        iso_8601(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn known_times_are_written_as_everybody_writes_them() {
        assert_eq!(at(0).as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(at(951_782_400).as_deref(), Some("2000-02-29T00:00:00.000Z"));
        assert_eq!(at(1_768_480_496).as_deref(), Some("2026-01-15T12:34:56.000Z"));
        assert_eq!(at(4_107_542_399).as_deref(), Some("2100-02-28T23:59:59.000Z"));
        assert_eq!(at(253_402_300_800), None);
        assert_eq!(iso_8601(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), None);
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let mut last = (1970, 1, 1);
        for day in 1..200_000 {
            let (year, month, day) = civil(day);
            let next_day = (year, month, day) == (last.0, last.1, last.2 + 1);
            let next_month = day == 1 && last.2 >= 28 && (year, month) == (last.0, last.1 + 1);
            let next_year = (month, day) == (1, 1) && last == (year - 1, 12, 31);
            assert!(next_day || next_month || next_year, "{last:?} {:?}", (year, month, day));
            last = (year, month, day);
        }
    }
}
