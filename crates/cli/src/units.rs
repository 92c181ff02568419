//! Sizes, times and moments as people read them.

use std::time::{Duration, SystemTime};

use breakbulk::address::Size;
use breakbulk_host::iso_8601;

/// A number of bytes: `999 B`, `12.3 kB`, `4.5 MB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// A number of bytes as a setting has it: `32MiB`, or `1062204 bytes` where no unit is exact.
pub(crate) fn bytes(bytes: u64) -> String {
    let text = Size(bytes).to_string();
    if text.ends_with(|last: char| last.is_ascii_digit()) { format!("{text} bytes") } else { text }
}

/// A time: `1.5 ms`, `2.34 s`.
pub(crate) fn time(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// So many of something: `1 entry`, `2 entries`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Whether this character controls a terminal instead of being shown: control characters, and those that change the
/// direction of writing, with which a text can be made to look like another one.
pub(crate) fn is_terminal_control(c: char) -> bool {
    let is_bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_bidi
}

/// A moment in UTC: `2026-01-15T12:34:56.789Z`.
pub(crate) fn moment(at: SystemTime) -> String {
    iso_8601(at).unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(
            [0, 999, 1_000, 12_345, 4_500_000, 2_000_000_000].map(size),
            ["0 B", "999 B", "1.0 kB", "12.3 kB", "4.5 MB", "2.0 GB"]
        );
        assert_eq!(time(Duration::from_micros(1_500)), "1.5 ms");
        assert_eq!(time(Duration::from_millis(2_340)), "2.34 s");
    }
}
