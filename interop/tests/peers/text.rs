//! Text of a wanted size, with characters of every length and some that JSON escapes.

const PIECE: &str = "積荷を小分けにする 🚢 \"größe\" \\ \n";

/// Text that is about `bytes` long when it is written as JSON.
pub(crate) fn text(bytes: usize) -> String {
    PIECE.repeat(bytes / written(PIECE))
}

/// How long a text is in JSON, without its quotes.
pub(crate) fn written(text: &str) -> usize {
    serde_json::to_string(text).unwrap().len() - 2
}

/// A stream of numbers that is the same for the same seed (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
