//! Actions that a client cannot be sent: the first time its link is closed, the next time the action is left out.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Mutex, PoisonError};

use breakbulk_proto::Message;

use super::name::Name;

/// Messages that are remembered; past them, all are forgotten, and each costs one more close.
const MOST: usize = 4096;

/// Which messages closed a link: by client, length and a hash.
#[derive(Debug, Default)]
pub(super) struct Dropped(Mutex<HashSet<(Name, usize, u64)>>);

impl Dropped {
    /// Remembers a message for whose sake this client's link is closed.
    pub(super) fn remember(&self, client: &Name, message: &Message) {
        let mut dropped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if dropped.len() >= MOST {
            dropped.clear();
        }
        dropped.insert((client.clone(), message.len(), hash(message)));
    }

    /// Whether this message has closed this client's link before.
    pub(super) fn knows(&self, client: &Name, message: &Message) -> bool {
        let dropped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody's messages are hashed before there is one to look for.
        !dropped.is_empty() && dropped.contains(&(client.clone(), message.len(), hash(message)))
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
        let [me, you] = ["me", "you"].map(|place| Name::new(place.to_owned(), None));
        let (dropped, message) = (Dropped::default(), Message::from("abcdef"));
        assert!(!dropped.knows(&me, &message));
        dropped.remember(&me, &message);
        assert!(dropped.knows(&me, &message) && !dropped.knows(&you, &message));
        // Another of the same length is another, and does not take its place.
        let other = Message::from("abcdeg");
        assert!(!dropped.knows(&me, &other));
        dropped.remember(&me, &other);
        assert!(dropped.knows(&me, &other) && dropped.knows(&me, &message));
        let pieces: Message = [Bytes::from("abc"), Bytes::from("def")].into_iter().collect();
        assert!(dropped.knows(&me, &pieces));
    }
}
