//! Chance that a seed repeats.

use std::time::Duration;

/// Payloads have at most so many bytes.
const LARGEST: u64 = 300_000;

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Chance {
    state: u64,
    /// The largest payload.
    largest: u64,
    /// The longest pause between two actions of one client.
    longest_pause_ms: u64,
}

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed, largest: LARGEST, longest_pause_ms: 6 }
    }

    /// The same with so small a load that all of what is missed in half a minute can be replayed.
    pub(crate) const fn light(self) -> Self {
        Self { largest: 400, longest_pause_ms: 60, ..self }
    }

    /// Chance of its own for somebody, so that what others draw does not change what he draws.
    pub(crate) fn split(&self, who: u64) -> Self {
        let state = Self { state: self.state ^ who.wrapping_mul(0x2545_f491_4f6c_dd1d), ..self.clone() }.next();
        Self { state, ..self.clone() }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Between two actions of one client.
    pub(crate) fn pause(&mut self) -> Duration {
        self.millis(0, self.longest_pause_ms)
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }

    /// Of 10 bytes to 300 KB, most of them below 4 KB; each doubling is as likely as any other.
    pub(crate) fn size(&mut self) -> usize {
        let doublings = if self.below(4) == 0 { 16 } else { 9 };
        let power = 1_u64 << (3 + self.below(doublings));
        usize::try_from((power + self.below(power)).clamp(10, self.largest)).unwrap()
    }

    /// A text of this length, which begins with its owner's name.
    pub(crate) fn text(&mut self, name: &str, len: usize) -> String {
        let mut text = format!("{name} ");
        while text.len() < len {
            text.push_str(&format!("{:016x}", self.next()));
        }
        text.truncate(len.max(name.len() + 1));
        text
    }
}
