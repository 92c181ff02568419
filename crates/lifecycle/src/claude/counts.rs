//! What was skipped, by name and by number, for log lines and metrics.

use std::collections::BTreeMap;

/// How many names are counted separately. The program itself has a few dozen; all others are counted together.
const MAX_NAMES: usize = 128;

/// The longest name that is counted by itself.
const MAX_NAME_BYTES: usize = 64;

/// The name under which names are counted that are too long, have odd characters, or are too many.
const OTHER: &str = "other";

/// Lines and parts of lines that had no effect. Never holds what they said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines that came.
    pub lines: u64,
    /// Lines that were no JSON object with a type, or whose type needs what they lacked.
    pub malformed: u64,
    /// Lines that were over the reader's limit, and were never read.
    pub oversized: u64,
    /// Calls whose input was over the limit.
    pub inputs_cut: u64,
    /// Messages, blocks and calls that were over the limit of a turn.
    pub parts_cut: u64,
    /// Blocks whose text in the `assistant` line differs from the stream. The streamed text is kept.
    pub differing: u64,
    /// Lines of sub-agents whose call had ended.
    pub late: u64,
    ignored: BTreeMap<Box<str>, u64>,
}

impl Counts {
    /// What was ignored, and how often: `keep_alive`, `system/status`, `stream_event/ping`, `block/…`, `delta/…`,
    /// `control_request/…`.
    pub fn ignored(&self) -> impl Iterator<Item = (&str, u64)> {
        self.ignored.iter().map(|(name, times)| (&**name, *times))
    }

    /// How often this was ignored.
    #[must_use]
    pub fn ignored_times(&self, name: &str) -> u64 {
        self.ignored.get(name).copied().unwrap_or(0)
    }

    pub(super) fn ignore(&mut self, name: &str) {
        let name = if is_plain(name) { name } else { OTHER };
        if let Some(times) = self.ignored.get_mut(name) {
            *times = times.saturating_add(1);
            return;
        }
        let name = if self.ignored.len() < MAX_NAMES { name } else { OTHER };
        let times = self.ignored.entry(name.into()).or_insert(0);
        *times = times.saturating_add(1);
    }

    pub(super) fn ignore_within(&mut self, group: &str, name: &str) {
        self.ignore(&format!("{group}/{name}"));
    }
}

/// Whether a name can be shown in a log: short, and of letters, digits and a few marks.
pub(super) fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/');
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(is_plain)
}
