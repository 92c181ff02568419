//! Large messages that go to many clients at about the same time: encoded once for all of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use breakbulk_proto::{Message, SharedMessage};

use crate::lock::lock;
use crate::log::Seq;

/// Shorter messages are encoded faster than they are looked up.
const MIN_SHARED: usize = 64 << 10;
/// Longer messages are not shared: a slow client would keep too much encoded text in memory.
pub(super) const MAX_SHARED: usize = 4 << 20;
/// How many messages are remembered.
const MAX_REMEMBERED: usize = 8;

/// The last large messages, for as long as some connection is sending them.
#[derive(Debug, Default)]
pub(super) struct SharedEncodings(Mutex<VecDeque<(Seq, Weak<SharedMessage>)>>);

impl SharedEncodings {
    /// The message of an entry, for one more client. From the second client on they share its encoding; for a single client
    /// the memory would be wasted.
    pub(super) fn join(&self, seq: Seq, message: Message) -> Message {
        if !(MIN_SHARED..=MAX_SHARED).contains(&message.len()) {
            return message;
        }
        let mut recent = lock(&self.0);
        let Some((_, known)) = recent.iter_mut().find(|(known, _)| *known == seq) else {
            if recent.len() >= MAX_REMEMBERED {
                recent.pop_front();
            }
            recent.push_back((seq, Weak::new()));
            return message;
        };
        let shared = known.upgrade().unwrap_or_else(|| Arc::new(SharedMessage::new(message)));
        *known = Arc::downgrade(&shared);
        shared.message()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    fn message(len: usize) -> Message {
        Message::from("x".repeat(len))
    }

    fn holders(shared_encodings: &SharedEncodings, seq: Seq) -> Option<usize> {
        shared_encodings
            .0
            .lock()
            .unwrap()
            .iter()
            .find(|(known, _)| *known == seq)
            .map(|(_, shared)| shared.strong_count())
    }

    #[test]
    fn all_but_the_first_share_and_the_last_lets_go() {
        let shared_encodings = SharedEncodings::default();
        let all = [0; 4].map(|_| shared_encodings.join(7, message(100_000)));
        assert!(all.iter().all(|one| *one == message(100_000)));
        assert_eq!(holders(&shared_encodings, 7), Some(3));
        drop(all);
        assert_eq!(holders(&shared_encodings, 7), Some(0));
        let late = shared_encodings.join(7, message(100_000));
        assert_eq!((late.len(), holders(&shared_encodings, 7)), (100_000, Some(1)));
    }

    #[test]
    fn short_and_very_long_ones_are_everybodys_own_and_few_are_looked_back_on() {
        let shared_encodings = SharedEncodings::default();
        for len in [MIN_SHARED - 1, MAX_SHARED + 1] {
            shared_encodings.join(1, message(len));
            assert_eq!(holders(&shared_encodings, 1), None);
        }
        for seq in 0..100 {
            shared_encodings.join(seq, message(MIN_SHARED));
        }
        assert_eq!(shared_encodings.0.lock().unwrap().len(), MAX_REMEMBERED);
        assert_eq!((holders(&shared_encodings, 91), holders(&shared_encodings, 92)), (None, Some(0)));
    }
}
