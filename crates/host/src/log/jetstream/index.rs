//! What the messages of the stream add up to: the channels, where entries are, and which batches were appended.
//!
//! An owner and everybody who follows the log make the same index of the same messages, in their order. It takes memory for
//! channels and for the newest batches, and none for entries. A checkpoint is an index as JSON.
//!
//! Messages may be missing, because they were trimmed or erased. So a message that removes others says everything that the index
//! needs of them, and a run of a channel that is not open yet is accepted: what opened the channel follows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::gaps::Gaps;
use super::super::plan::{ChannelDirectory, KnownChannel};
use super::super::{BatchId, ChannelInfo, Channels, Seq};
use super::places::Places;
use super::rows::RowRanges;
use super::wire::{AppendedBatch, Decision, Group, Head, LogEnd, Run, SavedChannel, SavedSnapshot};

/// A repeated batch is recognized if no more batches than this came after it. Callers repeat a batch within seconds.
const MAX_BATCHES: usize = 32_768;

/// The index of the messages up to a position in the stream.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Index {
    /// The sequence of the last message in the stream.
    pub(super) position: u64,
    /// The number of the present owner.
    pub(super) epoch: u64,
    /// The seq of the next entry.
    pub(super) next: Seq,
    /// The seq of the last entry.
    pub(super) last: Seq,
    pub(super) at_ms: u64,
    pub(super) gaps: Gaps,
    channels: BTreeMap<Arc<str>, IndexedChannel>,
    batches: RecentBatches,
    pub(super) places: Places,
}

/// What is known of a channel.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct IndexedChannel {
    pub(super) session: Option<Arc<str>>,
    /// The seq of its last entry.
    pub(super) last: Seq,
    /// Its entries up to here are gone.
    pub(super) trimmed: Seq,
    pub(super) snapshot: Option<SavedSnapshot>,
    pub(super) rows: RowRanges,
}

/// The newest batches, with the seqs of their entries as ranges.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "VecDeque<AppendedBatch>", into = "VecDeque<AppendedBatch>")]
struct RecentBatches {
    order: VecDeque<AppendedBatch>,
    by_id: HashMap<BatchId, Vec<(Seq, u64)>>,
}

impl Index {
    /// Adds the next message.
    pub(super) fn apply(&mut self, position: u64, head: &Head) {
        self.position = position;
        if let Some(group) = &head.group {
            self.apply_group(group);
        }
        if let Some(run) = &head.run {
            self.apply_run(position, run);
        }
        match &head.decision {
            Some(Decision::Fence { epoch, gap, .. }) => {
                self.epoch = *epoch;
                self.gaps.add(*gap);
                self.next = gap.next;
            }
            Some(Decision::Save(saved)) => self.save(saved),
            Some(Decision::Trim { channel, upto, ends, last, .. }) => {
                self.ends(*ends);
                let known = self.channels.entry(channel.clone()).or_default();
                known.trimmed = known.trimmed.max(*upto);
                known.last = known.last.max(*last);
            }
            Some(Decision::Erase { name, ends, lasts, .. }) => {
                self.ends(*ends);
                self.channels.retain(|uri, channel| !is_of(uri, channel, name));
                for (uri, last) in lasts {
                    if let Some(channel) = self.channels.get_mut(uri) {
                        channel.last = channel.last.max(*last);
                    }
                }
            }
            None => {}
        }
    }

    fn apply_group(&mut self, group: &Group) {
        for (uri, session) in &group.opened {
            self.channels.entry(uri.clone()).or_default().session.clone_from(session);
        }
        for batch in &group.batches {
            self.batches.add(batch.clone());
        }
    }

    fn apply_run(&mut self, position: u64, run: &Run) {
        self.ends(LogEnd { last: run.last(), at_ms: run.at_ms });
        self.places.add(run.first, position);
        let channel = self.channels.entry(run.channel.clone()).or_default();
        channel.last = channel.last.max(run.last());
    }

    fn ends(&mut self, ends: LogEnd) {
        self.last = self.last.max(ends.last);
        self.next = self.next.max(ends.last.saturating_add(1));
        self.at_ms = self.at_ms.max(ends.at_ms);
    }

    fn save(&mut self, saved: &SavedChannel) {
        let Some(channel) = self.channels.get_mut(&saved.channel) else { return };
        if let Some(snapshot) = &saved.snapshot {
            channel.snapshot = Some(snapshot.clone());
        }
        if let Some(from) = saved.cut_rows {
            channel.rows.cut(from);
        }
        if let Some(generation) = &saved.generation {
            saved.rows.iter().for_each(|index| channel.rows.set(*index, generation));
        }
    }

    /// A channel that is open.
    pub(super) fn get(&self, uri: &str) -> Option<&IndexedChannel> {
        self.channels.get(uri)
    }

    /// The URIs of a session's channels, or that of a channel.
    pub(super) fn named(&self, name: &str) -> Vec<Arc<str>> {
        self.channels.iter().filter(|(uri, channel)| is_of(uri, channel, name)).map(|(uri, _)| uri.clone()).collect()
    }

    /// What everybody may know of the channels of a session, or of all.
    pub(super) fn infos(&self, session: Option<&str>) -> Vec<ChannelInfo> {
        let of = |channel: &IndexedChannel| session.is_none() || channel.session.as_deref() == session;
        let infos = self.channels.iter().filter(|(_, channel)| of(channel)).map(|(uri, channel)| ChannelInfo {
            channel: uri.clone(),
            session: channel.session.clone(),
            first: channel.trimmed.saturating_add(1),
            last: channel.last,
            snapshot: channel.snapshot.as_ref().map(|snapshot| snapshot.seq),
        });
        infos.collect()
    }

    /// How far each channel is trimmed, for those that are.
    pub(super) fn trims(&self) -> HashMap<Arc<str>, Seq> {
        let trimmed = self.channels.iter().filter(|(_, channel)| channel.trimmed > 0);
        trimmed.map(|(uri, channel)| (uri.clone(), channel.trimmed)).collect()
    }

    /// Whether readers see an entry of this channel.
    pub(super) fn shows(&self, channel: &str, seq: Seq) -> bool {
        self.channels.get(channel).is_some_and(|known| known.trimmed < seq)
    }

    /// The seq of the last entry of these channels, if readers see it.
    pub(super) fn last_shown(&self, channels: &Channels) -> Seq {
        let shown = |channel: &IndexedChannel| channel.last > channel.trimmed;
        let followed = self.channels.iter().filter(|(uri, channel)| channels.contains(uri) && shown(channel));
        followed.map(|(_, channel)| channel.last).max().unwrap_or(0)
    }

    /// The seqs of a batch that is among the newest.
    pub(super) fn batch(&self, id: BatchId) -> Option<Vec<Seq>> {
        let ranges = self.batches.by_id.get(&id)?;
        Some(ranges.iter().flat_map(|(first, count)| *first..first.saturating_add(*count)).collect())
    }

    /// What of a group has to be said again when its first message is removed.
    pub(super) fn still_needed(&self, group: &Group) -> Group {
        let batches = group.batches.iter().filter(|batch| self.batches.by_id.contains_key(&batch.0.0));
        let opened = group.opened.iter().filter(|(uri, _)| self.channels.contains_key(uri));
        Group { batches: batches.cloned().collect(), opened: opened.cloned().collect(), ..Group::default() }
    }
}

/// Whether a channel goes when this session or channel is erased.
fn is_of(uri: &str, channel: &IndexedChannel, name: &str) -> bool {
    uri == name || channel.session.as_deref() == Some(name)
}

impl ChannelDirectory for Index {
    fn channel(&self, uri: &str) -> Option<KnownChannel<'_>> {
        let (uri, channel) = self.channels.get_key_value(uri)?;
        Some(KnownChannel { uri, session: channel.session.as_ref(), last: channel.last })
    }
}

impl RecentBatches {
    fn add(&mut self, batch: AppendedBatch) {
        if self.by_id.insert(batch.0.0, batch.1.clone()).is_some() {
            return;
        }
        self.order.push_back(batch);
        if self.order.len() > MAX_BATCHES
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest.0.0);
        }
    }
}

impl From<VecDeque<AppendedBatch>> for RecentBatches {
    fn from(order: VecDeque<AppendedBatch>) -> Self {
        let by_id = order.iter().map(|batch| (batch.0.0, batch.1.clone())).collect();
        Self { order, by_id }
    }
}

impl From<RecentBatches> for VecDeque<AppendedBatch> {
    fn from(batches: RecentBatches) -> Self {
        batches.order
    }
}

/// Seqs as ranges.
pub(super) fn ranges(seqs: &[Seq]) -> Vec<(Seq, u64)> {
    let mut ranges: Vec<(Seq, u64)> = Vec::new();
    for seq in seqs {
        match ranges.last_mut() {
            Some((first, count)) if first.saturating_add(*count) == *seq => *count += 1,
            _ => ranges.push((*seq, 1)),
        }
    }
    ranges
}
