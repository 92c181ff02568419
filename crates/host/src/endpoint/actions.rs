//! Long actions that are on their way to clients: one copy of each for all who get it, paid for once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use breakbulk_proto::Message;
use bytes::Bytes;

use super::crowd;
use super::memory::{AnswerMemory, Payment};
use crate::lock::lock;
use crate::log::{Entry, Seq};

/// A shorter one is within what a connection may pull: see [`Connection::pull_bytes`](super::connection::Connection).
pub(super) const LONG: usize = 64 << 10;

/// The long entries that somebody is sending.
#[derive(Debug, Default)]
pub(super) struct Actions(Mutex<BTreeMap<Seq, Weak<Paid>>>);

/// An entry's body, as long as somebody has any of it.
#[derive(Debug)]
struct Paid {
    body: Bytes,
    _payment: Payment,
}

impl Actions {
    /// The body of an entry for one client, if it is short, or if somebody gets it already, or if there is memory for it.
    pub(super) fn body(&self, memory: &AnswerMemory, entry: &Entry) -> Option<Bytes> {
        if entry.body.len() <= LONG {
            return Some(entry.body.clone());
        }
        if let Some(body) = self.shared(entry.seq) {
            return Some(body);
        }
        let payment = memory.try_reserve(Self::cost(entry.body.len()))?;
        Some(self.add(entry.seq, entry.body.clone(), payment))
    }

    /// What the body of a long entry costs that goes to many: its bytes, and what they are coded to.
    pub(super) const fn cost(len: usize) -> usize {
        if len <= crowd::LONG { len.saturating_add(len.div_ceil(3).saturating_mul(4)) } else { len }
    }

    /// The body of an entry that somebody gets already.
    pub(super) fn shared(&self, seq: Seq) -> Option<Bytes> {
        let paid = lock(&self.0).get(&seq).and_then(Weak::upgrade)?;
        Some(owned(&paid))
    }

    /// From now on an entry is shared.
    pub(super) fn add(&self, seq: Seq, body: Bytes, payment: Payment) -> Bytes {
        let paid = Arc::new(Paid { body, _payment: payment });
        let mut entries = lock(&self.0);
        entries.retain(|_, paid| paid.strong_count() > 0);
        entries.insert(seq, Arc::downgrade(&paid));
        owned(&paid)
    }
}

fn owned(paid: &Arc<Paid>) -> Bytes {
    Message::from(paid.body.clone()).with_owner(paid).to_bytes()
}
