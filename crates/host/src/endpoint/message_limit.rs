//! The longest message that a client takes, and sending content by reference to a client that cannot take the whole.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use breakbulk::Link as _;
use breakbulk_proto::{MESSAGE_TOO_LARGE, Message};
use bytes::Bytes;
use serde_json::json;
use tracing::info;

use super::connection::Connection;
use super::snapshot_source::ReferenceStats;
use super::wire;
use crate::error::MethodError;
use crate::lock::lock;
use crate::log::Seq;
use crate::size::{to_u64, to_usize};
use crate::state::by_reference;

/// How long a message to a client may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageLimits {
    /// The limit that the client named, or what its link can carry. Nothing longer can be sent.
    pub(super) max: u64,
    /// The limit for replays and snapshots: smaller than `max` if the client named no limit.
    pub(super) assumed: u64,
}

/// The last action that was reduced to a limit, for other clients with the same limit: often all clients have the same one.
#[derive(Debug, Default)]
pub(super) struct LastReducedAction(Mutex<Option<ReducedAction>>);

/// The body of an action that was reduced to a limit.
#[derive(Debug)]
struct ReducedAction {
    seq: Seq,
    limit: u64,
    body: Bytes,
    references: ReferenceStats,
}

/// Longer reduced actions are not remembered: clients with such a large limit are few.
const MOST_KEPT: usize = 256 << 10;

impl LastReducedAction {
    /// The body of an entry, reduced so that its message is no longer than `most`; `None` if that is impossible.
    fn fit(&self, channel: &str, seq: Seq, body: &Bytes, most: u64) -> Option<(Bytes, ReferenceStats)> {
        if let Some(last) = &*lock(&self.0)
            && (last.seq, last.limit) == (seq, most)
        {
            return Some((last.body.clone(), last.references));
        }
        let reduced = by_reference::entry(channel, body, body_limit(most))?;
        let (body, references) = (reduced.text.to_bytes(), reduced.references);
        if body.len() <= MOST_KEPT {
            *lock(&self.0) = Some(ReducedAction { seq, limit: most, body: body.clone(), references });
        }
        Some((body, references))
    }
}

impl Connection {
    /// The message limits of the client.
    pub(super) fn message_limits(&self) -> MessageLimits {
        let said = self.driver.machine().peer().map(|peer| peer.max_message_bytes).or(self.driver.link().offered());
        let most = said.unwrap_or(self.driver.link().capacity().cap);
        MessageLimits { max: most, assumed: said.unwrap_or(self.shared.config.assumed_message_bytes.min(most)) }
    }

    /// Sends an action, with its large content by reference if the client cannot take the whole.
    pub(super) fn send_action(&mut self, channel: &str, seq: Seq, body: &Bytes) {
        let (message, most) = (wire::action(seq, body), self.message_limits().max);
        let last_reduced = &self.shared.last_reduced;
        let reduced = if to_u64(message.len()) > most { last_reduced.fit(channel, seq, body, most) } else { None };
        // If it cannot be reduced enough, the machine closes the connection with a named reason, and the client reconnects to a
        // snapshot that fits.
        let message = match reduced {
            Some((body, references)) => {
                self.note_references(references, most);
                wire::action(seq, &body)
            }
            None => self.shared.shared_encodings.join(seq, message),
        };
        self.send(message);
    }

    /// The message of an action that is for this client alone, reduced to its limit.
    pub(super) fn private_action(&mut self, channel: &str, action: &Message) -> Result<Message, MethodError> {
        let seq = self.client.as_ref().map_or(0, |client| client.reader.position());
        let (message, most) = (wire::private_action(seq, channel, action), self.message_limits().max);
        let size = to_u64(message.len());
        if size <= most {
            return Ok(message);
        }
        let around = size.saturating_sub(to_u64(action.len()));
        let max_bytes = to_usize(most.saturating_sub(around));
        let reduced =
            by_reference::action(channel, &action.to_bytes(), max_bytes).ok_or_else(|| too_large(size, most))?;
        self.note_references(reduced.references, most);
        Ok(wire::private_action(seq, channel, &reduced.text))
    }

    /// Counts and logs content that is sent by reference.
    pub(super) fn note_references(&mut self, references: ReferenceStats, limit: u64) {
        if references.count == 0 {
            return;
        }
        self.shared.counts.add("endpoint-by-reference", 1);
        self.shared.traffic.references.fetch_add(references.count, Relaxed);
        self.shared.traffic.reference_bytes.fetch_add(references.bytes, Relaxed);
        if self.references == ReferenceStats::default() {
            info!(
                limit,
                references = references.count,
                bytes = references.bytes,
                "content is sent by reference: it is longer than the client's message limit"
            );
        }
        self.references = self.references.and(references);
    }
}

/// The longest body of an entry in a message of this length.
pub(super) fn body_limit(most: u64) -> usize {
    to_usize(most.saturating_sub(wire::ENVELOPE))
}

/// The error in place of an answer that is longer than the client's limit.
pub(super) fn too_large(size: u64, limit: u64) -> MethodError {
    let data = json!({"reason": "messageTooLarge", "size": size, "limit": limit});
    MethodError::new(MESSAGE_TOO_LARGE, "MessageTooLarge").with_data(data)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    fn body(bytes: usize) -> Bytes {
        let blocks = json!([{"type": "text", "text": "x".repeat(bytes)}]);
        let result = json!({"success": true, "pastTenseMessage": "did", "content": blocks});
        let action = json!({"type": "chat/toolCallComplete", "turnId": "t", "toolCallId": "c", "result": result});
        json!({"channel": "c", "action": action}).to_string().into()
    }

    #[test]
    fn those_who_take_as_much_share_what_was_made_for_one_and_nobody_else_does() {
        let (last_reduced, large) = (LastReducedAction::default(), body(100_000));
        let (first, references) = last_reduced.fit("c", 1, &large, 1000).unwrap();
        assert_eq!(references, ReferenceStats { count: 1, bytes: 100_000 });
        assert_eq!(last_reduced.fit("c", 1, &large, 1000).unwrap().0.as_ptr(), first.as_ptr());
        assert_ne!(last_reduced.fit("c", 1, &large, 2000).unwrap().0.as_ptr(), first.as_ptr());
        assert!(last_reduced.fit("c", 1, &large, 100).is_none());
        let other = last_reduced.fit("c", 2, &body(90_000), 1000).unwrap();
        assert_eq!(other.1.bytes, 90_000);
        assert!(wire::action(u64::MAX, &other.0).len() <= 1000);
    }
}
