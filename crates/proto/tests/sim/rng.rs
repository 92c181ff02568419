//! Seeded randomness: the same seed makes the same world.

use std::time::Duration;

/// A splitmix64 generator.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0xA24B_AED4_963E_E407).wrapping_add(0x9FB2_1C65_1E98_DF25));
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 for 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True so many times in a hundred.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// So many milliseconds, both bounds included.
    pub(crate) fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.range(low, high))
    }

    /// A seed for a machine's own ids.
    pub(crate) fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&self.next().to_le_bytes()));
        bytes
    }

    /// Text of about `len` bytes: words, and characters of two, three and four bytes.
    pub(crate) fn text(&mut self, len: usize) -> String {
        const WORDS: [&str; 8] = ["cargo", "é", "hold0", "漢字", "berth", "🚢", "quay-", "z"];
        let mut text = String::with_capacity(len + 8);
        while text.len() < len {
            let mut bits = self.next();
            for _ in 0..16 {
                text.push_str(WORDS[(bits & 7) as usize]);
                bits >>= 4;
            }
        }
        let end = (0..=len).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text
    }
}
