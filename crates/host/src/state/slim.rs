//! Large content by reference, for one peer that cannot take the whole: a pure projection of a text.
//!
//! The log and the state stay whole. What one peer gets instead of a long text, image or attachment is a reference of the
//! protocol, whose URI any client gives to `resourceRead`. The longest go first, and no more of them than must.
//!
//! | Inline | By reference |
//! |---|---|
//! | a block of a tool's result, `text` or `embeddedResource` | the block `resource` |
//! | the input of a tool call, a string | a content reference |
//! | an attachment of a message, `embeddedResource` | the attachment `resource` |
//! | a part of an answer, `markdown` | the part `contentRef`, and behind it a `markdown` of the same id, empty: deltas find it |
//!
//! The protocol has no reference for anything else: deltas, reasoning, texts of messages, `structuredContent`, `_meta`,
//! terminals, annotations. What a changeset or an edit has of files is by reference already.

mod place;
mod shapes;
mod sites;
mod swap;
mod table;

use breakbulk_proto::Message;
use bytes::Bytes;

pub(crate) use self::place::{Reference, SCHEME, Version};
use self::sites::{Site, Sites};

/// A text that has become short enough.
#[derive(Debug, Clone)]
pub(crate) struct Slim {
    /// What is left of it: its own bytes around the references.
    pub(crate) text: Message,
    /// What is not.
    pub(crate) moved: Moved,
}

/// What was sent by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// How many contents.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Moved {
    /// With these too.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// The body of an entry that is an action, in at most `room` bytes; `None` if that cannot be.
pub(crate) fn entry(channel: &str, body: &Bytes, room: usize) -> Option<Slim> {
    fit(body, room, Sites::of_entry(channel, body)?)
}

/// An action, in at most `room` bytes; `None` if that cannot be.
pub(crate) fn action(channel: &str, text: &Bytes, room: usize) -> Option<Slim> {
    fit(text, room, Sites::of_action(channel, text)?)
}

/// The JSON of a snapshot, in at most `room` bytes; `None` if that cannot be.
pub(crate) fn snapshot(channel: &str, text: &Bytes, room: usize) -> Option<Slim> {
    fit(text, room, Sites::of_snapshot(channel, text)?)
}

/// The state of a channel, in at most `room` bytes; `None` if that cannot be.
pub(super) fn state(channel: &str, text: &Bytes, room: usize) -> Option<Slim> {
    fit(text, room, Sites::of_state(channel, text)?)
}

/// A completed turn, in at most `room` bytes; `None` if that cannot be.
pub(super) fn turn(channel: &str, text: &Bytes, room: usize) -> Option<Slim> {
    fit(text, room, Sites::of_turn(channel, text)?)
}

/// Puts references into a text, in place of the longest contents first, until it fits.
fn fit(text: &Bytes, room: usize, mut sites: Vec<Site<'_>>) -> Option<Slim> {
    let mut moved = Moved::default();
    if text.len() <= room {
        return Some(Slim { text: Message::from(text.clone()), moved });
    }
    // What cannot be enough is not tried.
    let most: usize = sites.iter().map(|site| site.raw.len()).sum();
    if text.len().saturating_sub(most) > room {
        return None;
    }
    sites.sort_by_key(|site| std::cmp::Reverse(site.raw.len()));
    let (mut cuts, mut left) = (Vec::new(), text.len());
    for site in sites {
        if left <= room {
            break;
        }
        let Some(start) = site.raw.as_ptr().addr().checked_sub(text.as_ptr().addr()) else { continue };
        let Some(swap) = swap::swap(&site).filter(|swap| swap.json.len() < site.raw.len()) else { continue };
        left -= site.raw.len() - swap.json.len();
        moved = moved.and(Moved { count: 1, bytes: swap.bytes });
        cuts.push((start..start + site.raw.len(), Bytes::from(swap.json)));
    }
    if left > room {
        return None;
    }
    cuts.sort_by_key(|(range, _)| range.start);
    let (mut parts, mut at) = (Vec::with_capacity(cuts.len() * 2 + 1), 0);
    for (range, json) in cuts {
        parts.extend([text.slice(at..range.start), json]);
        at = range.end;
    }
    parts.push(text.slice(at..));
    Some(Slim { text: parts.into_iter().collect(), moved })
}

#[cfg(test)]
mod tests;
