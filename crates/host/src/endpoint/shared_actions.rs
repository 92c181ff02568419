//! Long actions that are on their way to clients: one copy of each for all who get it, paid for once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use breakbulk_proto::Message;
use bytes::Bytes;

use super::memory::{AnswerMemory, Reservation};
use super::shared_encodings;
use crate::lock::lock;
use crate::log::{Entry, Seq};

/// A shorter one is within what a connection may pull: see [`Connection::pull_bytes`](super::connection::Connection).
pub(super) const MIN_SHARED_ACTION: usize = 64 << 10;

/// The long entries that somebody is sending.
#[derive(Debug, Default)]
pub(super) struct SharedActions(Mutex<BTreeMap<Seq, Weak<SharedBody>>>);

/// An entry's body, as long as somebody has any of it.
#[derive(Debug)]
struct SharedBody {
    body: Bytes,
    _reservation: Reservation,
}

impl SharedActions {
    /// The body of an entry for one client, if it is short, or if somebody gets it already, or if there is memory for it.
    pub(super) fn body(&self, memory: &AnswerMemory, entry: &Entry) -> Option<Bytes> {
        if entry.body.len() <= MIN_SHARED_ACTION {
            return Some(entry.body.clone());
        }
        if let Some(body) = self.shared(entry.seq) {
            return Some(body);
        }
        let reservation = memory.try_reserve(Self::cost(entry.body.len()))?;
        Some(self.add(entry.seq, entry.body.clone(), reservation))
    }

    /// What the body of a long entry costs that goes to many: its bytes, and what they are coded to.
    pub(super) const fn cost(len: usize) -> usize {
        if len <= shared_encodings::MAX_SHARED { len.saturating_add(len.div_ceil(3).saturating_mul(4)) } else { len }
    }

    /// The body of an entry that somebody gets already.
    pub(super) fn shared(&self, seq: Seq) -> Option<Bytes> {
        let reserved = lock(&self.0).get(&seq).and_then(Weak::upgrade)?;
        Some(owned(&reserved))
    }

    /// From now on an entry is shared.
    pub(super) fn add(&self, seq: Seq, body: Bytes, reservation: Reservation) -> Bytes {
        let reserved = Arc::new(SharedBody { body, _reservation: reservation });
        let mut entries = lock(&self.0);
        entries.retain(|_, reserved| reserved.strong_count() > 0);
        entries.insert(seq, Arc::downgrade(&reserved));
        owned(&reserved)
    }
}

fn owned(reserved: &Arc<SharedBody>) -> Bytes {
    Message::from(reserved.body.clone()).with_owner(reserved).to_bytes()
}
