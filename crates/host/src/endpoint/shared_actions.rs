//! Long actions that are being sent: one copy of each for all clients that get it, with one memory reservation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use breakbulk_proto::Message;
use bytes::Bytes;

use super::memory::{AnswerMemory, Reservation};
use super::shared_encodings;
use crate::lock::lock;
use crate::log::{Entry, Seq};

/// Shorter actions fit into what a connection may read from the log without a reservation.
pub(super) const MIN_SHARED_ACTION: usize = 64 << 10;

/// The long entries that some connection is sending.
#[derive(Debug, Default)]
pub(super) struct SharedActions(Mutex<BTreeMap<Seq, Weak<SharedBody>>>);

/// The body of an entry, for as long as somebody holds any of its bytes.
#[derive(Debug)]
struct SharedBody {
    body: Bytes,
    _reservation: Reservation,
}

impl SharedActions {
    /// The body of an entry for one client, if it is short, if it is shared already, or if there is memory for it.
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

    /// Bytes to reserve for the body of a long entry that many clients get: its own, and its base64 encoding.
    pub(super) const fn cost(len: usize) -> usize {
        if len <= shared_encodings::MAX_SHARED { len.saturating_add(len.div_ceil(3).saturating_mul(4)) } else { len }
    }

    /// The body of an entry that some connection is sending.
    pub(super) fn shared(&self, seq: Seq) -> Option<Bytes> {
        let reserved = lock(&self.0).get(&seq).and_then(Weak::upgrade)?;
        Some(owned(&reserved))
    }

    /// Shares the body of an entry from now on.
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
