//! The contents of a log in memory, and the laws in their simplest form.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::super::gaps::Gaps;
use super::super::maintenance::now_ms;
use super::super::{
    AppendError, Batch, BatchId, Channels, Entry, ReadError, RetentionPolicy, Save, Seq, Snapshot, WriteError,
};

#[derive(Debug, Default)]
pub(super) struct MemoryState {
    pub(super) last: Seq,
    pub(super) gaps: Gaps,
    at_ms: u64,
    pub(super) entries: BTreeMap<Seq, (Entry, Option<Arc<str>>)>,
    pub(super) channels: BTreeMap<Arc<str>, MemoryChannel>,
    batches: HashMap<BatchId, Vec<Seq>>,
    pub(super) refuse: Option<AppendError>,
}

#[derive(Debug, Default)]
pub(super) struct MemoryChannel {
    pub(super) session: Option<Arc<str>>,
    pub(super) last: Seq,
    pub(super) trimmed: Seq,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) rows: BTreeMap<u64, Bytes>,
}

impl MemoryState {
    pub(super) fn append(&mut self, batch: Batch) -> Result<Vec<Seq>, AppendError> {
        if let Some(error) = &self.refuse {
            return Err(error.clone());
        }
        if let Some(seqs) = self.batches.get(&batch.id) {
            return Ok(seqs.clone());
        }
        for (channel, expected) in batch.expect {
            let last = self.channels.get(&channel).map_or(0, |known| known.last);
            if last != expected {
                return Err(AppendError::Conflict { channel, expected, last });
            }
        }
        let mut opened = BTreeMap::new();
        for (channel, session) in batch.open {
            let known = self.channels.get(&channel).map(|known| &known.session);
            let before = known.or_else(|| opened.get(&channel));
            if before.is_some_and(|before| *before != session) {
                return Err(AppendError::OtherSession(channel));
            }
            opened.insert(channel, session);
        }
        let is_open = |channel: &Arc<str>| self.channels.contains_key(channel) || opened.contains_key(channel);
        if let Some(entry) = batch.entries.iter().find(|entry| !is_open(&entry.channel)) {
            return Err(AppendError::NotOpen(entry.channel.clone()));
        }
        for (channel, session) in opened {
            self.channels.entry(channel).or_insert_with(|| MemoryChannel { session, ..MemoryChannel::default() });
        }
        self.at_ms = self.at_ms.max(now_ms());
        let mut seqs = Vec::new();
        for new in batch.entries {
            self.last = (self.last + 1).max(self.gaps.newest().map_or(0, |gap| gap.next));
            let (seq, at_ms) = (self.last, self.at_ms);
            if let Some(channel) = self.channels.get_mut(&new.channel) {
                channel.last = seq;
            }
            self.entries.insert(seq, (Entry::new(seq, at_ms, new.channel, new.body), new.about));
            seqs.push(seq);
        }
        self.batches.insert(batch.id, seqs.clone());
        Ok(seqs)
    }

    pub(super) fn page(
        &self,
        after: Seq,
        channels: &Channels,
        max_bytes: usize,
    ) -> Result<(Vec<Entry>, Seq), ReadError> {
        let followed = self.channels.iter().filter(|(uri, _)| channels.contains(uri));
        let trimmed = followed.map(|(_, channel)| channel.trimmed).max().unwrap_or(0);
        if after < trimmed {
            return Err(ReadError::Trimmed { first: trimmed + 1 });
        }
        let entries = self.entries.range((Bound::Excluded(after), Bound::Unbounded)).map(|(_, (entry, _))| entry);
        let page = fill(entries.filter(|entry| channels.contains(&entry.channel)).cloned(), max_bytes);
        let position = page.last().map_or(self.last.max(after), |entry| entry.seq);
        Ok((page, position))
    }

    pub(super) fn save(&mut self, save: Save) -> Result<(), WriteError> {
        let last = self.last;
        let Some(channel) = self.channels.get_mut(&save.channel) else { return Err(WriteError::NotOpen(save.channel)) };
        if let Some(&(index, _)) = save.rows.iter().find(|(index, _)| *index > u64::from(u32::MAX)) {
            return Err(WriteError::RowIndex(index));
        }
        if let Some(snapshot) = save.snapshot {
            match &channel.snapshot {
                Some(saved) if saved.seq > snapshot.seq => return Err(WriteError::Older { saved: saved.seq }),
                _ if snapshot.seq > last => return Err(WriteError::Future { seq: snapshot.seq }),
                _ => channel.snapshot = Some(snapshot),
            }
        }
        if let Some(from) = save.cut_rows {
            channel.rows.split_off(&from);
        }
        channel.rows.extend(save.rows);
        Ok(())
    }

    pub(super) fn trim(&mut self, uri: &str, before: Seq) -> Result<u64, WriteError> {
        let Some(channel) = self.channels.get_mut(uri) else { return Err(WriteError::NotOpen(uri.into())) };
        let saved = channel.snapshot.as_ref().map_or(0, |snapshot| snapshot.seq);
        if before > saved.saturating_add(1) {
            return Err(WriteError::NoSnapshot { saved });
        }
        let gone: Vec<Seq> =
            self.entries.range(..before).filter(|(_, (e, _))| *e.channel == *uri).map(|(seq, _)| *seq).collect();
        channel.trimmed = gone.last().copied().unwrap_or(0).max(channel.trimmed);
        gone.iter().for_each(|seq| drop(self.entries.remove(seq)));
        Ok(gone.len() as u64)
    }

    pub(super) fn retain(&mut self, policy: RetentionPolicy) -> Result<u64, WriteError> {
        let oldest = policy.max_age.map_or(0, |age| now_ms().saturating_sub(age.as_millis() as u64));
        let mut used: u64 = self.entries.values().map(|(entry, _)| entry.body.len() as u64).sum();
        let mut cut = 0;
        for (seq, (entry, _)) in &self.entries {
            let over = policy.max_bytes.is_some_and(|most| used > most);
            if entry.at_ms >= oldest && !over {
                break;
            }
            let snapshot = self.channels.get(&entry.channel).and_then(|channel| channel.snapshot.as_ref());
            if snapshot.is_some_and(|snapshot| snapshot.seq >= *seq) {
                used -= entry.body.len() as u64;
            }
            cut = seq + 1;
        }
        let forget = BatchId::at(now_ms().saturating_sub(policy.ids_for.as_millis() as u64));
        self.batches.retain(|id, _| *id >= forget);
        let cuts =
            self.channels.iter().filter_map(|(uri, channel)| Some((uri.clone(), channel.snapshot.as_ref()?.seq + 1)));
        cuts.collect::<Vec<_>>().into_iter().map(|(uri, most)| self.trim(&uri, cut.min(most))).sum()
    }

    pub(super) fn erase(&mut self, name: &str) -> u64 {
        let before = self.entries.len();
        let is_gone = |uri: &str, channel: &MemoryChannel| channel.session.as_deref() == Some(name) || uri == name;
        let channels = &self.channels;
        self.entries.retain(|_, (entry, about)| {
            let channel = channels.get(&entry.channel);
            !channel.is_some_and(|channel| is_gone(&entry.channel, channel)) && about.as_deref() != Some(name)
        });
        self.channels.retain(|uri, channel| !is_gone(uri, channel));
        (before - self.entries.len()) as u64
    }
}

/// As many items as fit, and at least one.
pub(super) fn fill<T: Sized + Weigh>(items: impl Iterator<Item = T>, max_bytes: usize) -> Vec<T> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for item in items {
        bytes += item.weight();
        if bytes > max_bytes && !page.is_empty() {
            break;
        }
        page.push(item);
    }
    page
}

/// How much an item counts against the limit of a page.
pub(super) trait Weigh {
    fn weight(&self) -> usize;
}

impl Weigh for Entry {
    fn weight(&self) -> usize {
        self.body.len()
    }
}

impl Weigh for (u64, Bytes) {
    fn weight(&self) -> usize {
        self.1.len()
    }
}
