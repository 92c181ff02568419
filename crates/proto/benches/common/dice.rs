//! Numbers that look random and are always the same.

/// A linear congruence, of which the high bits are used.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// From 0 up to, but not, `sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    /// A word that a name may have.
    pub(crate) fn word(&mut self) -> &'static str {
        const WORDS: [&str; 12] = [
            "anchor", "ballast", "cargo", "draught", "envelope", "freight", "gantry", "hull", "index", "jetty", "keel",
            "lighter",
        ];
        WORDS[self.roll(WORDS.len())]
    }
}
