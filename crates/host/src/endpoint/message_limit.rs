//! What a client takes in one message, and what is sent by reference because it does not take the whole.

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

/// What a client takes in one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageLimits {
    /// More than this cannot be sent: what it has said, or what its link can carry.
    pub(super) max: u64,
    /// What is planned with: less, if it has said nothing and its link can carry anything.
    pub(super) assumed: u64,
}

/// The last action that was made to fit, for others who take as much: where there is one cap, it is everybody's.
#[derive(Debug, Default)]
pub(super) struct LastReducedAction(Mutex<Option<(Seq, u64, Bytes, ReferenceStats)>>);

/// What is longer is made anew for each: it is for somebody who takes much, and they are few.
const MOST_KEPT: usize = 256 << 10;

impl LastReducedAction {
    /// The body of an entry, so that a message with it is no longer than `most`; `None` if that cannot be.
    fn fit(&self, channel: &str, seq: Seq, body: &Bytes, most: u64) -> Option<(Bytes, ReferenceStats)> {
        if let Some((known, limit, body, references)) = &*lock(&self.0)
            && (*known, *limit) == (seq, most)
        {
            return Some((body.clone(), *references));
        }
        let reduced = by_reference::entry(channel, body, body_limit(most))?;
        let (body, references) = (reduced.text.to_bytes(), reduced.references);
        if body.len() <= MOST_KEPT {
            *lock(&self.0) = Some((seq, most, body.clone(), references));
        }
        Some((body, references))
    }
}

impl Connection {
    /// What the client takes.
    pub(super) fn message_limits(&self) -> MessageLimits {
        let said = self.driver.machine().peer().map(|peer| peer.max_message_bytes).or(self.driver.link().offered());
        let most = said.unwrap_or(self.driver.link().capacity().cap);
        MessageLimits { max: most, assumed: said.unwrap_or(self.shared.config.assumed_message_bytes.min(most)) }
    }

    /// Sends an action; by reference what is large in it, if the client cannot take the whole.
    pub(super) fn act(&mut self, channel: &str, seq: Seq, body: &Bytes) {
        let (message, most) = (wire::action(seq, body), self.message_limits().max);
        let last_reduced = &self.shared.last_reduced;
        let reduced = if to_u64(message.len()) > most { last_reduced.fit(channel, seq, body, most) } else { None };
        // What cannot be made to fit ends the connection by name, and the client comes back to a snapshot that does.
        let message = match reduced {
            Some((body, references)) => {
                self.by_reference(references, most);
                wire::action(seq, &body)
            }
            None => self.shared.shared_encodings.join(seq, message),
        };
        self.send(message);
    }

    /// An action for this client alone, which the client can take.
    pub(super) fn aside(&mut self, channel: &str, action: &Message) -> Result<Message, MethodError> {
        let seq = self.client.as_ref().map_or(0, |client| client.reader.position());
        let (message, most) = (wire::aside(seq, channel, action), self.message_limits().max);
        let size = to_u64(message.len());
        if size <= most {
            return Ok(message);
        }
        let around = size.saturating_sub(to_u64(action.len()));
        let max_bytes = to_usize(most.saturating_sub(around));
        let reduced =
            by_reference::action(channel, &action.to_bytes(), max_bytes).ok_or_else(|| too_large(size, most))?;
        self.by_reference(reduced.references, most);
        Ok(wire::aside(seq, channel, &reduced.text))
    }

    /// Something goes to the client by reference.
    pub(super) fn by_reference(&mut self, references: ReferenceStats, limit: u64) {
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
                "what the client cannot take goes by reference"
            );
        }
        self.references = self.references.and(references);
    }
}

/// What is left for the body of an entry.
pub(super) fn body_limit(most: u64) -> usize {
    to_usize(most.saturating_sub(wire::ENVELOPE))
}

/// The answer in place of one that the client cannot take.
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
