//! Deterministic random numbers, and text made from them.

/// A generator of numbers that depend on its seed alone (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Depends on a seed and a text.
    pub(super) fn new(seed: u64, text: &str) -> Self {
        Self(seed ^ hash(text))
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// One of so many.
    pub(super) const fn below(&mut self, count: u64) -> u64 {
        if count == 0 { 0 } else { self.next() % count }
    }
}

/// A number for a text (FNV-1a).
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The most characters that are said at once.
const PIECE: u64 = 12;

/// Cuts a text into small pieces, between characters.
pub(super) fn pieces(text: &str, random: &mut Random) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut chars = text.chars();
    loop {
        let length = 1 + random.below(PIECE);
        let piece: String = chars.by_ref().take(usize::try_from(length).unwrap_or(1)).collect();
        if piece.is_empty() {
            return pieces;
        }
        pieces.push(piece);
    }
}

/// How much of a prompt is said back, in characters.
const QUOTED: usize = 200;

/// A prompt, or how it begins, as a quotation.
pub(super) fn quoted(prompt: &str) -> String {
    let said: String = prompt.chars().take(QUOTED).collect();
    let more = if said.len() < prompt.len() { " …" } else { "" };
    format!("> {}{more}", said.replace('\n', "\n> "))
}

/// Words with one, two, three and four bytes a character, and with what JSON has to escape.
const WORDS: [&str; 12] =
    ["cargo", "bulk", "hold", "crane", "quay", "Fähre", "船", "荷物", "🚢", "\"deck\"", "a\\b", "tab\there"];

/// Text of exactly so many bytes, in numbered lines.
pub(super) fn filler(bytes: u64, random: &mut Random) -> String {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut text = String::with_capacity(bytes);
    let mut line = 0_u64;
    while text.len() < bytes {
        line += 1;
        let start = text.len();
        text.push_str(&format!("demo line {line}:"));
        for _ in 0..8 {
            text.push(' ');
            let word = usize::try_from(random.below(WORDS.len() as u64)).unwrap_or(0);
            text.push_str(WORDS.get(word).copied().unwrap_or_default());
        }
        text.push('\n');
        if text.len() > bytes {
            // The last line is cut to what is left, in plain characters.
            text.truncate(start);
            text.extend(std::iter::repeat_n('.', bytes - start));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filler_has_exactly_the_bytes_asked_for() {
        for bytes in [0, 1, 17, 100, 12_345] {
            assert_eq!(filler(bytes, &mut Random::new(1, "t")).len() as u64, bytes);
        }
    }

    #[test]
    fn the_same_seed_says_the_same_and_another_does_not() {
        let say = |seed| filler(1_000, &mut Random::new(seed, "t"));
        assert_eq!(say(1), say(1));
        assert_ne!(say(1), say(2));
    }

    #[test]
    fn pieces_are_small_and_lose_nothing() {
        let text = filler(5_000, &mut Random::new(3, "t"));
        let pieces = pieces(&text, &mut Random::new(4, "t"));
        assert!(pieces.iter().all(|piece| (1..=12).contains(&piece.chars().count())));
        assert_eq!(pieces.concat(), text);
    }
}
