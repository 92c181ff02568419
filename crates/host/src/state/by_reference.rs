//! Replaces large content by references, for one client that cannot take the whole text.
//!
//! The log and the state stay whole. Instead of a long text, image or attachment the client gets a reference of the protocol,
//! whose URI it can read with `resourceRead`. The longest contents are replaced first, and no more of them than necessary.
//!
//! | Inline | By reference |
//! |---|---|
//! | a block of a tool's result, `text` or `embeddedResource` | the block `resource` |
//! | the input of a tool call, a string | a content reference |
//! | an attachment of a message, `embeddedResource` | the attachment `resource` |
//! | a part of an answer, `markdown` | the part `contentRef`, and after it an empty `markdown` with the same id, for later deltas |
//!
//! The protocol has no reference for anything else: deltas, reasoning, texts of messages, `structuredContent`, `_meta`,
//! terminals, annotations. Changesets and edits refer to files by reference already.

mod candidates;
mod fields;
mod reference;
mod replace;
mod shapes;

use breakbulk_proto::Message;
use bytes::Bytes;

use self::candidates::{Candidate, Candidates};
pub(crate) use self::reference::{Reference, SCHEME, Version};

/// A text that was reduced to a limit.
#[derive(Debug, Clone)]
pub(crate) struct ReducedText {
    /// The text with its references. Everything else shares the bytes of the whole text.
    pub(crate) text: Message,
    /// What it contains by reference.
    pub(crate) references: ReferenceStats,
}

/// How much was sent by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReferenceStats {
    /// How many contents.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl ReferenceStats {
    /// The sum of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// The body of an entry that is an action, in at most `max_bytes` bytes; `None` if that is impossible.
pub(crate) fn entry(channel: &str, body: &Bytes, max_bytes: usize) -> Option<ReducedText> {
    fit(body, max_bytes, Candidates::of_entry(channel, body)?)
}

/// An action, in at most `max_bytes` bytes; `None` if that is impossible.
pub(crate) fn action(channel: &str, text: &Bytes, max_bytes: usize) -> Option<ReducedText> {
    fit(text, max_bytes, Candidates::of_action(channel, text)?)
}

/// The JSON of a snapshot, in at most `max_bytes` bytes; `None` if that is impossible.
pub(crate) fn snapshot(channel: &str, text: &Bytes, max_bytes: usize) -> Option<ReducedText> {
    fit(text, max_bytes, Candidates::of_snapshot(channel, text)?)
}

/// The state of a channel, in at most `max_bytes` bytes; `None` if that is impossible.
pub(super) fn state(channel: &str, text: &Bytes, max_bytes: usize) -> Option<ReducedText> {
    fit(text, max_bytes, Candidates::of_state(channel, text)?)
}

/// A completed turn, in at most `max_bytes` bytes; `None` if that is impossible.
pub(super) fn turn(channel: &str, text: &Bytes, max_bytes: usize) -> Option<ReducedText> {
    fit(text, max_bytes, Candidates::of_turn(channel, text)?)
}

/// Replaces contents of a text by references, the longest first, until the text fits.
fn fit(text: &Bytes, max_bytes: usize, mut candidates: Vec<Candidate<'_>>) -> Option<ReducedText> {
    let mut references = ReferenceStats::default();
    if text.len() <= max_bytes {
        return Some(ReducedText { text: Message::from(text.clone()), references });
    }
    // If replacing everything is not enough, nothing is tried.
    let most: usize = candidates.iter().map(|candidate| candidate.raw.len()).sum();
    if text.len().saturating_sub(most) > max_bytes {
        return None;
    }
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.raw.len()));
    let (mut cuts, mut left) = (Vec::new(), text.len());
    for candidate in candidates {
        if left <= max_bytes {
            break;
        }
        let Some(start) = candidate.raw.as_ptr().addr().checked_sub(text.as_ptr().addr()) else { continue };
        let Some(replacement) =
            replace::replacement(&candidate).filter(|replacement| replacement.json.len() < candidate.raw.len())
        else {
            continue;
        };
        left -= candidate.raw.len() - replacement.json.len();
        references = references.and(ReferenceStats { count: 1, bytes: replacement.bytes });
        cuts.push((start..start + candidate.raw.len(), Bytes::from(replacement.json)));
    }
    if left > max_bytes {
        return None;
    }
    cuts.sort_by_key(|(range, _)| range.start);
    let (mut parts, mut at) = (Vec::with_capacity(cuts.len() * 2 + 1), 0);
    for (range, json) in cuts {
        parts.extend([text.slice(at..range.start), json]);
        at = range.end;
    }
    parts.push(text.slice(at..));
    Some(ReducedText { text: parts.into_iter().collect(), references })
}

#[cfg(test)]
mod tests;
