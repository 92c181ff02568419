//! Actions that a client cannot be sent. The first time, its link is closed; the next time, the action is left out.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Mutex, PoisonError};

use breakbulk_proto::Message;

use super::peer_name::PeerName;

/// Messages that are remembered; past them, all are forgotten, and each costs one more close.
const MAX_MESSAGES: usize = 4096;

/// The messages that have closed a link.
#[derive(Debug, Default)]
pub(super) struct UnsendableActions(Mutex<HashSet<ActionFingerprint>>);

/// A message and the client whose link it closed.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ActionFingerprint {
    client: PeerName,
    len: usize,
    hash: u64,
}

impl UnsendableActions {
    /// Remembers a message because of which this client's link is closed.
    pub(super) fn remember(&self, client: &PeerName, message: &Message) {
        let mut actions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if actions.len() >= MAX_MESSAGES {
            actions.clear();
        }
        actions.insert(ActionFingerprint::of(client, message));
    }

    /// Whether this message has closed this client's link before.
    pub(super) fn contains(&self, client: &PeerName, message: &Message) -> bool {
        let actions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // No message is hashed before there is one to compare it with.
        !actions.is_empty() && actions.contains(&ActionFingerprint::of(client, message))
    }
}

impl ActionFingerprint {
    fn of(client: &PeerName, message: &Message) -> Self {
        Self { client: client.clone(), len: message.len(), hash: hash(message) }
    }
}

/// A hash of the text, however it is cut into pieces.
fn hash(message: &Message) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.slices().for_each(|part| hasher.write(part));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_message_is_known_for_its_client_only_and_however_it_is_cut() {
        let [me, you] = ["me", "you"].map(|place| PeerName::new(place.to_owned(), None));
        let (actions, message) = (UnsendableActions::default(), Message::from("abcdef"));
        assert!(!actions.contains(&me, &message));
        actions.remember(&me, &message);
        assert!(actions.contains(&me, &message) && !actions.contains(&you, &message));
        // Another of the same length is another, and does not take its place.
        let other = Message::from("abcdeg");
        assert!(!actions.contains(&me, &other));
        actions.remember(&me, &other);
        assert!(actions.contains(&me, &other) && actions.contains(&me, &message));
        let pieces: Message = [Bytes::from("abc"), Bytes::from("def")].into_iter().collect();
        assert!(actions.contains(&me, &pieces));
    }
}
