//! What a client gets when it connects: a replay of what it missed, or snapshots that fit its message limit.

use std::sync::Arc;

use breakbulk_proto::Message;
use tracing::{info, warn};

use super::EndpointInner;
use super::action_list::ActionList;
use super::memory::{AnswerMemory, NoMemory, Reservation};
use super::message_limit::{MessageLimits, body_limit, too_large};
use super::shared_snapshots::SharedSnapshots;
use super::snapshot_source::{ChannelSnapshot, ReducedSnapshot, ReferenceStats, SnapshotError, View};
use super::wire;
use crate::log::{Channels, Entry, EntryKind, Seq, Tail};
use crate::size::{to_u64, to_usize};
use crate::state::by_reference::{self, ReducedText};

/// Bytes around snapshots and between them, which are not counted one by one.
const SLACK: u64 = 4096;
/// How much of the log is read in one step. Each step goes to another thread and back.
const PAGE: usize = 1 << 20;
/// How much is read without a reservation.
const FIRST_PAGE: usize = 48 << 10;
/// Bytes around an action in a replay.
const ITEM: u64 = 32;

/// Snapshots that together fit the message limit of a client.
#[derive(Debug, Default)]
pub(super) struct SnapshotSet {
    pub(super) taken: Vec<TakenSnapshot>,
    /// Channels that do not exist, or do not fit even when reduced.
    pub(super) missing: Vec<Arc<str>>,
    /// What they contain by reference.
    pub(super) references: ReferenceStats,
}

/// A snapshot that was taken.
#[derive(Debug)]
pub(super) struct TakenSnapshot {
    pub(super) channel: Arc<str>,
    pub(super) snapshot: ChannelSnapshot,
    /// Whether it has only the last turns.
    pub(super) is_windowed: bool,
}

/// A channel that the client requested, with the view that is chosen for it.
struct RequestedChannel {
    channel: Arc<str>,
    view: View,
    bytes: u64,
    /// Its reduced snapshot, if the whole one does not fit.
    reduced: Option<ReducedSnapshot>,
}

impl SnapshotSet {
    /// Takes snapshots of these channels. If they are longer than `limit` together, the largest are cut to their last turns; if
    /// that is not enough, the largest get their large content by reference; if that is not enough, the largest are left out.
    ///
    /// # Errors
    /// There was no memory for them in time.
    pub(super) async fn take(
        shared: &EndpointInner,
        memory: &AnswerMemory,
        channels: &[Arc<str>],
        at_least: Seq,
        limit: u64,
    ) -> Result<Self, NoMemory> {
        let (mut snapshots, mut own) = (Self::default(), 0);
        let mut requested = snapshots.measure(shared, channels).await;
        let max_bytes = limit.saturating_sub(SLACK);
        snapshots.cut(shared, &mut requested, max_bytes).await;
        snapshots.reduce_largest(shared, memory, &mut requested, at_least, max_bytes, &mut own).await?;
        // In the order in which they were asked for.
        requested.sort_by_key(|requested| channels.iter().position(|channel| *channel == requested.channel));
        for RequestedChannel { channel, view, reduced, .. } in requested {
            if let Some(ReducedSnapshot { snapshot, references, is_windowed }) = reduced {
                snapshots.references = snapshots.references.and(references);
                snapshots.taken.push(TakenSnapshot { channel, snapshot, is_windowed });
                continue;
            }
            match SharedSnapshots::take(shared, memory, &channel, view, at_least, &mut own).await {
                Ok(snapshot) => {
                    snapshots.taken.push(TakenSnapshot { channel, snapshot, is_windowed: view != View::FULL })
                }
                Err(SnapshotError::NoMemory(error)) => return Err(error),
                Err(error) => snapshots.miss(channel, &error),
            }
        }
        Ok(snapshots)
    }

    async fn measure(&mut self, shared: &EndpointInner, channels: &[Arc<str>]) -> Vec<RequestedChannel> {
        let mut requested: Vec<RequestedChannel> = Vec::new();
        for (n, channel) in channels.iter().enumerate() {
            if channels.iter().take(n).any(|before| before == channel) {
                continue;
            }
            if requested.len() >= shared.config.max_subscriptions {
                self.missing.push(channel.clone());
                continue;
            }
            match shared.snapshot_source.size_of(channel, View::FULL).await {
                Ok(bytes) => {
                    requested.push(RequestedChannel {
                        channel: channel.clone(),
                        view: View::FULL,
                        bytes,
                        reduced: None,
                    });
                }
                Err(error) => self.miss(channel.clone(), &error),
            }
        }
        requested.sort_by_key(|requested| std::cmp::Reverse(requested.bytes));
        requested
    }

    /// Cuts the largest to their last turns until all fit.
    async fn cut(&mut self, shared: &EndpointInner, requested: &mut [RequestedChannel], max_bytes: u64) {
        let window = View::window(shared.config.window_turns);
        for at in 0..requested.len() {
            if total(requested) <= max_bytes {
                return;
            }
            let Some(large) = requested.get_mut(at) else { return };
            if let Ok(bytes) = shared.snapshot_source.size_of(&large.channel, window).await
                && bytes < large.bytes
            {
                shared.counts.add("endpoint-windowed", 1);
                (large.view, large.bytes) = (window, bytes);
            }
        }
    }

    /// Reduces the largest to what the others leave free, or to an equal share; leaves out those that cannot be reduced enough.
    async fn reduce_largest(
        &mut self,
        shared: &EndpointInner,
        memory: &AnswerMemory,
        requested: &mut Vec<RequestedChannel>,
        at_least: Seq,
        max_bytes: u64,
        own: &mut u64,
    ) -> Result<(), NoMemory> {
        while total(requested) > max_bytes {
            let share = max_bytes / to_u64(requested.len().max(1));
            let largest = requested.iter().enumerate().max_by_key(|(_, requested)| requested.bytes).map(|(at, _)| at);
            let Some(at) = largest else { break };
            let mut large = requested.swap_remove(at);
            let left = max_bytes.saturating_sub(total(requested)).max(share);
            let reduced = if large.reduced.is_none() {
                fitted(shared, memory, &large.channel, large.view, at_least, left, own).await
            } else {
                Ok(None)
            };
            if let Err(SnapshotError::NoMemory(error)) = reduced {
                return Err(error);
            }
            if let Ok(Some(reduced)) = reduced {
                (large.bytes, large.reduced) = (to_u64(reduced.snapshot.body.len()), Some(reduced));
                requested.push(large);
                continue;
            }
            shared.counts.add("endpoint-left-out", 1);
            warn!(
                bytes = large.bytes,
                limit = max_bytes,
                "a channel is left out of an answer: its snapshot is larger than the client's message limit"
            );
            self.missing.push(large.channel);
        }
        Ok(())
    }

    fn miss(&mut self, channel: Arc<str>, error: &SnapshotError) {
        if let SnapshotError::Failed(error) = error {
            warn!(code = error.code, "no snapshot of a channel: {error}");
        }
        self.missing.push(channel);
    }
}

/// A snapshot for a `subscribe`.
#[derive(Debug)]
pub(super) struct SubscribeSnapshot {
    pub(super) snapshot: ChannelSnapshot,
    /// What is in it by reference.
    pub(super) references: ReferenceStats,
    /// Whether it has only the last turns.
    pub(super) is_windowed: bool,
}

impl SubscribeSnapshot {
    /// Takes a snapshot of a channel. If it is longer than `limit`, it is cut to its last turns; if that is not enough, its
    /// large content goes by reference; if that is not enough, this fails.
    pub(super) async fn take(
        shared: &EndpointInner,
        memory: &AnswerMemory,
        channel: &Arc<str>,
        view: View,
        at_least: Seq,
        limit: u64,
    ) -> Result<Self, SnapshotError> {
        let (max_bytes, snapshot_source) = (limit.saturating_sub(SLACK), &shared.snapshot_source);
        let size = snapshot_source.size_of(channel, view).await?;
        let whole =
            |snapshot, view| Self { snapshot, references: ReferenceStats::default(), is_windowed: view != View::FULL };
        if size <= max_bytes {
            return Ok(whole(SharedSnapshots::take(shared, memory, channel, view, at_least, &mut 0).await?, view));
        }
        let turns = shared.config.window_turns;
        let window = View::window(view.turns.map_or(turns, |requested| requested.min(turns)));
        if snapshot_source.size_of(channel, window).await? <= max_bytes {
            shared.counts.add("endpoint-windowed", 1);
            return Ok(whole(SharedSnapshots::take(shared, memory, channel, window, at_least, &mut 0).await?, window));
        }
        match fitted(shared, memory, channel, window, at_least, max_bytes, &mut 0).await? {
            Some(ReducedSnapshot { snapshot, references, is_windowed }) => {
                Ok(Self { snapshot, references, is_windowed })
            }
            None => Err(too_large(size, limit).into()),
        }
    }
}

/// The entries that a client missed.
pub(super) struct Replay {
    /// The actions.
    pub(super) actions: ActionList,
    /// Notifications that are no actions. The answer has no member for them, so they follow it.
    pub(super) notices: Vec<Message>,
    /// What they contain by reference.
    pub(super) references: ReferenceStats,
    /// Continues where the replay ends.
    pub(super) tail: Box<dyn Tail>,
    /// The memory of a long replay.
    pub(super) reservation: Option<Reservation>,
}

impl Replay {
    /// Reads the entries since `after`. `None` if a replay is impossible: they are longer than half of the client's message
    /// limit, more than the configured count, partly trimmed, or contain something that only a snapshot can show. An action
    /// that is longer than the client's limit by itself goes by reference, and counts with its reduced length.
    ///
    /// The first page is read without a reservation; for more, the memory of the longest possible replay is reserved.
    ///
    /// # Errors
    /// There was no memory for it in time.
    pub(super) async fn read(
        shared: &EndpointInner,
        memory: &AnswerMemory,
        after: Seq,
        channels: &[Arc<str>],
        message_limits: MessageLimits,
    ) -> Result<Option<Self>, NoMemory> {
        let tail = shared.log.tail(after, Channels::only(channels.iter().cloned()));
        let most = (message_limits.assumed / 2).saturating_sub(SLACK);
        let first = Self {
            actions: ActionList::default(),
            notices: Vec::new(),
            references: ReferenceStats::default(),
            tail,
            reservation: None,
        };
        let mut left = most;
        let Some((replay, is_all)) = first.read_some(shared, FIRST_PAGE, &mut left, message_limits).await else {
            return Ok(None);
        };
        if is_all {
            return Ok(Some(replay));
        }
        let reservation = memory.reserve(to_usize(most)).await?;
        let Some((mut replay, _)) = replay.read_some(shared, usize::MAX, &mut left, message_limits).await else {
            return Ok(None);
        };
        replay.reservation = Some(reservation);
        Ok(Some(replay))
    }

    /// Reads up to so many bytes, plus the last entry; returns whether that was all. `None` as above.
    async fn read_some(
        mut self,
        shared: &EndpointInner,
        bytes: usize,
        left: &mut u64,
        message_limits: MessageLimits,
    ) -> Option<(Self, bool)> {
        let alone = body_limit(message_limits.max);
        let (replay, mut read) = (&mut self, 0_usize);
        loop {
            if read >= bytes {
                return Some((self, false));
            }
            let page = replay.tail.ready(PAGE.min(bytes)).await;
            let page = page.inspect_err(|error| info!("no replay: {error}")).ok()?;
            if page.is_empty() {
                return Some((self, true));
            }
            for mut entry in page {
                read = read.saturating_add(entry.body.len());
                *left = left.checked_sub(ITEM)?;
                if entry.body.len() > alone {
                    let reduced = reduced_entry(&entry, *left).await?;
                    (entry.body, replay.references) =
                        (reduced.text.to_bytes(), replay.references.and(reduced.references));
                }
                *left = left.checked_sub(to_u64(entry.body.len()))?;
                match entry.kind {
                    EntryKind::Action if is_truncation(&entry) => return None,
                    EntryKind::Action => replay.actions.push(entry.seq, &entry.body),
                    EntryKind::Notification => replay.notices.push(wire::notice(&entry.body)),
                    EntryKind::Initial => return None,
                    EntryKind::Closed | EntryKind::SideChat | EntryKind::Unknown => {}
                }
                if replay.actions.len().saturating_add(replay.notices.len()) > shared.config.max_replay {
                    return None;
                }
            }
        }
    }
}

/// A snapshot that is reduced to so many bytes, when there is memory for it; `None` if it cannot be reduced that far.
async fn fitted(
    shared: &EndpointInner,
    memory: &AnswerMemory,
    channel: &str,
    view: View,
    at_least: Seq,
    most: u64,
    own: &mut u64,
) -> Result<Option<ReducedSnapshot>, SnapshotError> {
    let reservation = {
        let mut turn = memory.turn();
        loop {
            if let Some(reservation) = turn.try_reserve_beside(to_usize(most), *own) {
                break reservation;
            }
            turn.wait(to_usize(most)).await?;
        }
    };
    *own = own.saturating_add(most);
    let reduced = shared.snapshot_source.reduced_snapshot(channel, view, at_least, to_usize(most)).await?;
    Ok(reduced.map(|ReducedSnapshot { snapshot, references, is_windowed }| {
        let snapshot = ChannelSnapshot { body: reservation.attach(&snapshot.body), ..snapshot };
        ReducedSnapshot { snapshot, references, is_windowed }
    }))
}

/// An action that is reduced to so many bytes. It is large, so a blocking thread does it.
async fn reduced_entry(entry: &Entry, max_bytes: u64) -> Option<ReducedText> {
    let (channel, body) = (Arc::clone(&entry.channel), entry.body.clone());
    let reduced = tokio::task::spawn_blocking(move || by_reference::entry(&channel, &body, to_usize(max_bytes)));
    reduced.await.ok().flatten()
}

fn total(requested: &[RequestedChannel]) -> u64 {
    requested.iter().fold(0_u64, |sum, requested| sum.saturating_add(requested.bytes))
}

/// Whether an entry removes turns from a chat. It names the turn that remains, which may be one that a client with only the
/// last turns does not have.
pub(super) fn is_truncation(entry: &Entry) -> bool {
    entry.action_type().is_some_and(|name| name == "chat/truncated")
}
