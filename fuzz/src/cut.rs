//! Texts, and where to cut them.

/// A text and its cuts: what comes after the last byte 255, which is in no text, are the cuts. So any file is a seed.
pub fn text_and_cuts(data: &[u8]) -> (&[u8], &[u8]) {
    let at = data.iter().rposition(|byte| *byte == 255);
    at.map_or((data, &[]), |at| (&data[..at], &data[at + 1..]))
}

/// Cuts a text at the distances that `cuts` names; the last piece is what is left.
pub fn cut<'a>(mut text: &'a [u8], cuts: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut cuts = cuts.iter();
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let at = cuts.next().map(|cut| usize::from(*cut) % 16);
        done = at.is_none_or(|at| at >= text.len());
        let (piece, rest) = text.split_at(at.unwrap_or(text.len()).min(text.len()));
        text = rest;
        Some(piece)
    })
}
