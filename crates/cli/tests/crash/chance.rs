//! Chance that a seed repeats.

use std::time::Duration;

/// Payloads have at most so many bytes.
const LARGEST: u64 = 300_000;

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Chance of its own for somebody, so that what others draw does not change what he draws.
    pub(crate) fn split(&self, who: u64) -> Self {
        Self::new(Self(self.0 ^ who.wrapping_mul(0x2545_f491_4f6c_dd1d)).next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }

    /// Of 10 bytes to 300 KB, most of them below 4 KB; each doubling is as likely as any other.
    pub(crate) fn size(&mut self) -> usize {
        let doublings = if self.below(4) == 0 { 16 } else { 9 };
        let power = 1_u64 << (3 + self.below(doublings));
        usize::try_from((power + self.below(power)).clamp(10, LARGEST)).unwrap()
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
