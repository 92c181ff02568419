//! Snapshots that are being sent: one of each state for all clients that ask for it, made once and with one reservation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use breakbulk_proto::Message;
use bytes::{Bytes, BytesMut};

use super::EndpointInner;
use super::memory::{AnswerMemory, Reservation, WaitTicket};
use super::snapshot_source::{ChannelSnapshot, SnapshotError, View};
use crate::lock::lock;
use crate::log::Seq;
use crate::size::to_usize;

/// Smaller snapshots are made for each client: looking them up would cost as much.
const MIN_SHARED_SNAPSHOT: u64 = 32 << 10;
/// Parts up to this length are copied into larger pieces, because each client has a list of all parts.
const SHORT: usize = 4 << 10;
/// The length of these pieces, about.
const PIECE: usize = 64 << 10;

/// The snapshots that some connection is sending, by channel and view.
#[derive(Debug, Default)]
pub(super) struct SharedSnapshots(Mutex<HashMap<(Arc<str>, View), CacheEntry>>);

#[derive(Debug)]
enum CacheEntry {
    /// Somebody is making the snapshot.
    InProgress,
    Ready(Weak<CachedSnapshot>),
}

/// A snapshot, for as long as somebody holds any of its bytes.
#[derive(Debug)]
struct CachedSnapshot {
    snapshot: ChannelSnapshot,
    /// The last entry of the channel that the snapshot contains.
    version: Seq,
    _reservation: Option<Reservation>,
}

impl SharedSnapshots {
    /// A snapshot of a channel that contains everything up to `at_least`: one that another client gets too, or a new one when
    /// there is memory for it. `already_reserved` is what the same answer has reserved before: if nobody else holds anything,
    /// the rest needs no reservation, because an answer that is larger than all memory would wait for itself.
    pub(super) async fn take(
        shared: &EndpointInner,
        memory: &AnswerMemory,
        channel: &Arc<str>,
        view: View,
        at_least: Seq,
        already_reserved: &mut u64,
    ) -> Result<ChannelSnapshot, SnapshotError> {
        let (snapshot_source, this) = (&shared.snapshot_source, &shared.snapshots);
        let size = snapshot_source.size_of(channel, view).await?;
        let key = (Arc::clone(channel), view);
        let mut turn = memory.turn();
        loop {
            let version =
                if size < MIN_SHARED_SNAPSHOT { None } else { snapshot_source.version(channel, at_least).await? };
            let reservation = match this.look_up(&key, version, &mut turn, to_usize(size), *already_reserved) {
                Lookup::Found(cached) => return Ok(cached.snapshot(at_least)),
                Lookup::Make(reservation) => reservation,
                Lookup::Wait => {
                    turn.wait(to_usize(size)).await?;
                    continue;
                }
            };
            drop(turn);
            *already_reserved = already_reserved.saturating_add(size);
            let in_progress = InProgress { shared, key: version.is_some().then_some(key) };
            let snapshot = snapshot_source.snapshot(channel, view, at_least).await?;
            return Ok(in_progress.finish(snapshot, version, reservation));
        }
    }

    fn look_up(
        &self,
        key: &(Arc<str>, View),
        version: Option<Seq>,
        turn: &mut WaitTicket,
        bytes: usize,
        already_reserved: u64,
    ) -> Lookup {
        let mut entries = lock(&self.0);
        if let Some(version) = version {
            match entries.get(key) {
                Some(CacheEntry::InProgress) => return Lookup::Wait,
                Some(CacheEntry::Ready(cached)) => {
                    if let Some(cached) = cached.upgrade().filter(|cached| cached.version == version) {
                        return Lookup::Found(cached);
                    }
                }
                None => {}
            }
        }
        let Some(reservation) = turn.try_reserve_beside(bytes, already_reserved) else { return Lookup::Wait };
        if version.is_some() {
            entries.retain(|_, entry| !matches!(entry, CacheEntry::Ready(cached) if cached.strong_count() == 0));
            entries.insert(key.clone(), CacheEntry::InProgress);
        }
        Lookup::Make(reservation)
    }
}

enum Lookup {
    Found(Arc<CachedSnapshot>),
    Make(Reservation),
    Wait,
}

/// A snapshot that is being made. If this is dropped before the snapshot is finished, somebody else may make it.
struct InProgress<'a> {
    shared: &'a EndpointInner,
    /// Where others find it; `None` if it is not shared.
    key: Option<(Arc<str>, View)>,
}

impl InProgress<'_> {
    fn finish(
        mut self,
        snapshot: ChannelSnapshot,
        version: Option<Seq>,
        mut reservation: Reservation,
    ) -> ChannelSnapshot {
        let snapshot = ChannelSnapshot { body: coalesced(&snapshot.body), ..snapshot };
        reservation.shrink(snapshot.body.len());
        let cached = CachedSnapshot { snapshot, version: version.unwrap_or(0), _reservation: Some(reservation) };
        let cached = Arc::new(cached);
        // If the snapshot contains later entries than `version`, it is not found under that version, which does no
        // harm.
        if let Some(key) = self.key.take() {
            lock(&self.shared.snapshots.0).insert(key, CacheEntry::Ready(Arc::downgrade(&cached)));
            self.shared.outgoing.wake();
        }
        cached.snapshot(0)
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            lock(&self.shared.snapshots.0).remove(&key);
            self.shared.outgoing.wake();
        }
    }
}

impl CachedSnapshot {
    /// The snapshot for one client. If nothing has happened on the channel since it was made, it counts as one of `at_least`.
    fn snapshot(self: &Arc<Self>, at_least: Seq) -> ChannelSnapshot {
        let ChannelSnapshot { from_seq, body } = &self.snapshot;
        let body = body.with_owner(self);
        match body.parts().split_last() {
            Some((last, before)) if *from_seq < at_least && **last == *end(*from_seq).as_bytes() => {
                let parts = before.iter().cloned().chain([Bytes::from(end(at_least))]);
                ChannelSnapshot { from_seq: at_least, body: parts.collect() }
            }
            _ => ChannelSnapshot { from_seq: *from_seq, body },
        }
    }
}

/// How the text of a snapshot ends.
fn end(from_seq: Seq) -> String {
    format!(r#","fromSeq":{from_seq}}}"#)
}

/// The same text, with its short parts copied into few pieces. The last part stays as it is.
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
