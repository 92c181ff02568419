//! Snapshots that are on their way to clients: one of a state for all who ask for it, made once and paid for once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use breakbulk_proto::Message;
use bytes::{Bytes, BytesMut};

use super::Shared;
use super::memory::{AnswerMemory, Payment, Turn};
use super::room::narrow;
use super::views::{Shot, View, ViewError};
use crate::lock::lock;
use crate::log::Seq;

/// A smaller one is made for each client: looking for it would cost as much.
const LARGE: u64 = 32 << 10;
/// Parts up to this long are copied into larger ones: each client has a list of the parts.
const SHORT: usize = 4 << 10;
/// About how long those larger ones are.
const PIECE: usize = 64 << 10;

/// The snapshots that somebody has, by channel and view.
#[derive(Debug, Default)]
pub(super) struct Snapshots(Mutex<HashMap<(Arc<str>, View), Entry>>);

#[derive(Debug)]
enum Entry {
    /// Somebody makes it.
    Making,
    Made(Weak<Made>),
}

/// A snapshot, as long as somebody has any of its bytes.
#[derive(Debug)]
struct Made {
    shot: Shot,
    /// The last entry of the channel that is in it.
    version: Seq,
    _payment: Option<Payment>,
}

impl Snapshots {
    /// A snapshot of a channel after everything up to `at_least`: one that another client gets too, or a new one when there
    /// is memory for it. `own` is what was paid for the same answer before: if nobody else holds anything, the rest of it is
    /// let pass, or an answer that is larger than all memory would wait for itself.
    pub(super) async fn take(
        shared: &Shared,
        memory: &AnswerMemory,
        channel: &Arc<str>,
        view: View,
        at_least: Seq,
        own: &mut u64,
    ) -> Result<Shot, ViewError> {
        let (views, this) = (&shared.views, &shared.snapshots);
        let size = views.size_of(channel, view).await?;
        let key = (Arc::clone(channel), view);
        let mut turn = memory.turn();
        loop {
            let version = if size < LARGE { None } else { views.version(channel, at_least).await? };
            let payment = match this.look(&key, version, &mut turn, narrow(size), *own) {
                Look::There(made) => return Ok(made.shot(at_least)),
                Look::Make(payment) => payment,
                Look::Wait => {
                    turn.wait(narrow(size)).await?;
                    continue;
                }
            };
            drop(turn);
            *own = own.saturating_add(size);
            let making = Making { shared, key: version.is_some().then_some(key) };
            let shot = views.snapshot(channel, view, at_least).await?;
            return Ok(making.made(shot, version, payment));
        }
    }

    fn look(&self, key: &(Arc<str>, View), version: Option<Seq>, turn: &mut Turn, bytes: usize, own: u64) -> Look {
        let mut entries = lock(&self.0);
        if let Some(version) = version {
            match entries.get(key) {
                Some(Entry::Making) => return Look::Wait,
                Some(Entry::Made(made)) => {
                    if let Some(made) = made.upgrade().filter(|made| made.version == version) {
                        return Look::There(made);
                    }
                }
                None => {}
            }
        }
        let Some(payment) = turn.try_reserve_beside(bytes, own) else { return Look::Wait };
        if version.is_some() {
            entries.retain(|_, entry| !matches!(entry, Entry::Made(made) if made.strong_count() == 0));
            entries.insert(key.clone(), Entry::Making);
        }
        Look::Make(payment)
    }
}

enum Look {
    There(Arc<Made>),
    Make(Payment),
    Wait,
}

/// A snapshot that is being made. If it is dropped before that is done, somebody else may try.
struct Making<'a> {
    shared: &'a Shared,
    /// Under which others find it; `None` if they do not.
    key: Option<(Arc<str>, View)>,
}

impl Making<'_> {
    fn made(mut self, shot: Shot, version: Option<Seq>, mut payment: Payment) -> Shot {
        let shot = Shot { body: coalesced(&shot.body), ..shot };
        payment.shrink(shot.body.len());
        let made = Made { shot, version: version.unwrap_or(0), _payment: Some(payment) };
        let made = Arc::new(made);
        // What was seen of the channel before may not be all that is in it: then it is found by nobody, and does no harm.
        if let Some(key) = self.key.take() {
            lock(&self.shared.snapshots.0).insert(key, Entry::Made(Arc::downgrade(&made)));
            self.shared.outgoing.wake();
        }
        made.shot(0)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            lock(&self.shared.snapshots.0).remove(&key);
            self.shared.outgoing.wake();
        }
    }
}

impl Made {
    /// For one client. Where nothing has happened on the channel since it was made, it is as good as one from now.
    fn shot(self: &Arc<Self>, at_least: Seq) -> Shot {
        let Shot { from_seq, body } = &self.shot;
        let body = body.with_owner(self);
        match body.parts().split_last() {
            Some((last, before)) if *from_seq < at_least && **last == *end(*from_seq).as_bytes() => {
                let parts = before.iter().cloned().chain([Bytes::from(end(at_least))]);
                Shot { from_seq: at_least, body: parts.collect() }
            }
            _ => Shot { from_seq: *from_seq, body },
        }
    }
}

/// How the text of a snapshot ends.
fn end(from_seq: Seq) -> String {
    format!(r#","fromSeq":{from_seq}}}"#)
}

/// The same text, with many short parts in few long ones. The last part stays as it is.
fn coalesced(body: &Message) -> Message {
    let Some((last, before)) = body.parts().split_last() else { return body.clone() };
    let (mut parts, mut open) = (Vec::new(), BytesMut::new());
    for part in before {
        if part.len() <= SHORT {
            open.extend_from_slice(part);
        }
        if !open.is_empty() && (part.len() > SHORT || open.len() >= PIECE) {
            parts.push(open.split().freeze());
        }
        if part.len() > SHORT {
            parts.push(part.clone());
        }
    }
    parts.into_iter().chain([open.freeze(), last.clone()]).collect()
}
