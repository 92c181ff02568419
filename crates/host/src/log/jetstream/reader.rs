//! Reading: pages of older entries from the stream, and long bodies, snapshots and rows from the other stream.
//!
//! Any replica may answer, and one may be behind. A page is complete only when it has reached the position that the index had
//! when the read began.

use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};

use super::super::tail::TailSource;
use super::super::window::Window;
use super::super::{
    AppendError, Batch, BoxFuture, ChannelInfo, Channels, DamagedRecord, Entry, Metrics, ReadError, Report, Rows, Save,
    Seq, Snapshot, Usage, WriteError,
};
use super::store::{PublishError, StoreError};
use super::wire::{Decision, Group, Run, SavedChannel, SavedSnapshot, Stored};
use super::writer::{Failure, Writer};
use super::{LongBody, Shared, group};
use crate::lock::lock;

/// Bytes of one read from the stream.
const PAGE: Range<usize> = 64 << 10..4 << 20;
/// How often a replica that is behind is asked again, and how long in between.
const TRIES: u32 = 250;
const WAIT: Duration = Duration::from_millis(20);
/// How many positions of readers are remembered.
const MAX_CURSORS: usize = 1_024;
/// How many bodies, rows or parts are fetched at a time.
const AT_A_TIME: usize = 8;

/// Where in the stream readers go on: a sequence after which, or at which, all entries after a position are.
#[derive(Debug, Default)]
pub(super) struct Cursors(Mutex<HashMap<Seq, u64>>);

impl Cursors {
    fn note(&self, after: Seq, sequence: u64) {
        let mut cursors = lock(&self.0);
        if cursors.len() >= MAX_CURSORS {
            cursors.clear();
        }
        cursors.insert(after, sequence);
    }

    fn find(&self, after: Seq) -> Option<u64> {
        lock(&self.0).get(&after).copied()
    }
}

/// What a read returns.
struct Wanted<'a> {
    seqs: Range<Seq>,
    max_bytes: usize,
    /// Whether readers see the entry with this seq, of the channel of its run.
    shows: &'a (dyn Fn(&str, Seq) -> bool + Sync),
}

impl<'a> Wanted<'a> {
    /// A whole run.
    fn whole(run: &Run, shows: &'a (dyn Fn(&str, Seq) -> bool + Sync)) -> Self {
        Self { seqs: run.first..run.last().saturating_add(1), max_bytes: usize::MAX, shows }
    }
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.0)
    }
}

impl TailSource for Shared {
    fn last(&self) -> tokio::sync::watch::Receiver<Seq> {
        self.last.subscribe()
    }

    fn window<T>(&self, look: impl FnOnce(&Window) -> T) -> T {
        look(&self.view().window)
    }

    fn page<'a>(
        self: &'a Arc<Self>,
        after: Seq,
        last: Seq,
        channels: &'a Channels,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<(Vec<Entry>, Seq), ReadError>> {
        let seqs = after.saturating_add(1)..last.saturating_add(1);
        Box::pin(self.entries(seqs, channels, max_bytes))
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl Shared {
    /// The entries of one channel.
    pub(super) async fn read(&self, uri: &str, range: Range<Seq>, max_bytes: usize) -> Result<Vec<Entry>, ReadError> {
        let trimmed = self.view().index.get(uri).map_or(0, |channel| channel.trimmed);
        if range.start.saturating_sub(1) < trimmed {
            return Err(ReadError::Trimmed { first: trimmed + 1 });
        }
        let seqs = range.start..range.end.min(self.view().index.last.saturating_add(1));
        let channels = Channels::only([uri]);
        Ok(self.entries(seqs, &channels, max_bytes).await?.0)
    }

    /// Entries from the stream, and the position after them.
    async fn entries(
        &self,
        seqs: Range<Seq>,
        channels: &Channels,
        max_bytes: usize,
    ) -> Result<(Vec<Entry>, Seq), ReadError> {
        let shows = |channel: &str, seq| self.view().index.shows(channel, seq);
        let wanted = Wanted { seqs: seqs.clone(), max_bytes, shows: &shows };
        let after = seqs.start.saturating_sub(1);
        let complete = after.max(seqs.end.saturating_sub(1));
        if seqs.is_empty() {
            return Ok((Vec::new(), complete));
        }
        let filter = self.filter(channels);
        let mut from = self.cursors.find(after).unwrap_or_else(|| self.view().index.places.before(seqs.start));
        let (mut page, mut bytes, mut tries) = (Vec::new(), 0, 0);
        loop {
            // The index may have moved on since the last read.
            let (end, last_shown) = {
                let view = self.view();
                (view.index.position, view.index.last_shown(channels))
            };
            let read = self.store.read(from, &filter.subject, max_bytes.clamp(PAGE.start, PAGE.end)).await?;
            for stored in &read.messages {
                if stored.position > end {
                    return Ok((page, complete));
                }
                let Some(run) = stored.head.as_ref().and_then(|head| head.run.as_ref()) else {
                    from = stored.position + 1;
                    continue;
                };
                if run.first >= seqs.end {
                    return Ok((page, complete));
                }
                if run.last() >= seqs.start && channels.contains(&run.channel) {
                    let is_full = self.add_entries(stored, run, &wanted, &mut page, &mut bytes).await?;
                    if let (true, Some(last)) = (is_full, page.last().map(|entry| entry.seq)) {
                        if last >= run.first {
                            self.cursors.note(last, stored.position);
                        }
                        return Ok((page, last));
                    }
                }
                from = stored.position + 1;
                self.cursors.note(run.last(), from);
            }
            if from > end {
                return Ok((page, complete));
            }
            if read.pending > 0 || !read.messages.is_empty() {
                continue;
            }
            // The replica has no more. It is behind, or what follows is not of these channels or was removed.
            let has_all = match filter.scope {
                Scope::Channel => page.last().map_or(after, |entry: &Entry| entry.seq) >= last_shown.min(seqs.end - 1),
                Scope::All => false,
            };
            if has_all || (filter.scope == Scope::Channel && self.is_last(&filter.subject, from).await?) {
                return Ok((page, complete));
            }
            tries += 1;
            if tries > TRIES {
                return Err(ReadError::Store(format!("the replicas of {} are behind", self.config.host.stream())));
            }
            tokio::time::sleep(WAIT).await;
        }
    }

    /// Whether the leader has no message of these subjects from a sequence on. The last entries of a channel may be erased.
    async fn is_last(&self, subject: &str, from: u64) -> Result<bool, ReadError> {
        Ok(self.store.newest(subject).await?.is_none_or(|newest| newest < from))
    }

    /// Adds the entries of a run that are wanted; true if the page is full.
    async fn add_entries(
        &self,
        stored: &Stored,
        run: &Run,
        wanted: &Wanted<'_>,
        page: &mut Vec<Entry>,
        bytes: &mut usize,
    ) -> Result<bool, ReadError> {
        if run.checksum(&stored.payload) != run.sum {
            let damaged = DamagedRecord::Entries { first: run.first, last: run.last() };
            return if page.is_empty() { Err(ReadError::Damaged(damaged)) } else { Ok(true) };
        }
        let mut start = 0_usize;
        for (at, length) in run.lengths.iter().enumerate() {
            let seq = run.first + at as Seq;
            let length = usize::try_from(*length).unwrap_or(usize::MAX);
            let blob = run.blobs.iter().find(|(index, _)| *index == at).map(|(_, blob)| blob);
            let inline = start..start.saturating_add(if blob.is_some() { 0 } else { length });
            start = inline.end;
            if !wanted.seqs.contains(&seq) || !(wanted.shows)(&run.channel, seq) {
                continue;
            }
            *bytes = bytes.saturating_add(length);
            if *bytes > wanted.max_bytes && !page.is_empty() {
                return Ok(true);
            }
            let body = match blob {
                None => Some(
                    stored.payload.slice(inline.start.min(stored.payload.len())..inline.end.min(stored.payload.len())),
                ),
                Some(blob) => self.store.get(blob).await?.filter(|body| crc32c::crc32c(body) == blob.sum),
            };
            let Some(body) = body else {
                let damaged = DamagedRecord::Entry { seq };
                return if page.is_empty() { Err(ReadError::Damaged(damaged)) } else { Ok(true) };
            };
            page.push(Entry::new(seq, run.at_ms, run.channel.clone(), body));
        }
        Ok(false)
    }

    /// The entries of messages, with their long bodies.
    pub(super) async fn all_entries(&self, stored: &Stored) -> Result<Vec<Entry>, ReadError> {
        let Some(run) = stored.head.as_ref().and_then(|head| head.run.as_ref()) else { return Ok(Vec::new()) };
        // The channel may be opened by the same group, and not be in the index yet.
        let shows = |_: &str, _| true;
        let (mut page, mut bytes) = (Vec::new(), 0);
        self.add_entries(stored, run, &Wanted::whole(run, &shows), &mut page, &mut bytes).await?;
        Ok(page)
    }

    /// The saved snapshot of a channel.
    pub(super) async fn snapshot(&self, uri: &str) -> Result<Option<Snapshot>, ReadError> {
        let find = || self.view().index.get(uri).and_then(|channel| channel.snapshot.clone());
        let mut found = find();
        while let Some(SavedSnapshot { seq, version, blob }) = found {
            let body = self.store.get(&blob).await?.filter(|body| crc32c::crc32c(body) == blob.sum);
            if let Some(body) = body {
                return Ok(Some(Snapshot { seq, version, body }));
            }
            // A newer one may have replaced it.
            let newer = find();
            if newer.as_ref().is_some_and(|newer| newer.blob == blob) {
                return Err(ReadError::Damaged(DamagedRecord::Snapshot { channel: uri.into() }));
            }
            found = newer;
        }
        Ok(None)
    }

    /// Rows of a channel.
    pub(super) async fn rows(&self, uri: &str, range: Range<u64>, max_bytes: usize) -> Result<Rows, ReadError> {
        let (prefix, wanted, total) = {
            let view = self.view();
            let Some(channel) = view.index.get(uri) else { return Ok(Rows::default()) };
            let owner = channel.session.as_deref().unwrap_or(uri);
            let wanted: Vec<(u64, Arc<str>)> =
                channel.rows.within(range).map(|(index, generation)| (index, generation.clone())).collect();
            (self.config.host.data(owner, uri), wanted, channel.rows.total())
        };
        let fetched = wanted.into_iter().map(|(index, generation)| {
            let subject = row_subject(&prefix, &generation, index);
            async move {
                let Some(blob) = self.store.find(&subject).await? else { return Ok((index, None)) };
                let body = self.store.get(&blob).await?.filter(|body| crc32c::crc32c(body) == blob.sum);
                Ok::<_, ReadError>((index, body))
            }
        });
        let mut fetched = std::pin::pin!(futures_util::stream::iter(fetched).buffered(AT_A_TIME));
        let (mut rows, mut bytes) = (Vec::new(), 0_usize);
        while let Some((index, body)) = fetched.try_next().await? {
            let Some(body) = body else {
                let damaged = DamagedRecord::Row { channel: uri.into(), index };
                return if rows.is_empty() { Err(ReadError::Damaged(damaged)) } else { Ok(Rows { rows, total }) };
            };
            bytes = bytes.saturating_add(body.len());
            if bytes > max_bytes && !rows.is_empty() {
                break;
            }
            rows.push((index, body));
        }
        Ok(Rows { rows, total })
    }

    /// Some bytes of a row.
    pub(super) async fn row_bytes(
        &self,
        uri: &str,
        index: u64,
        range: Range<usize>,
    ) -> Result<Option<Bytes>, ReadError> {
        let subject = {
            let view = self.view();
            let Some(channel) = view.index.get(uri) else { return Ok(None) };
            let Some(generation) = channel.rows.generation(index) else { return Ok(None) };
            let owner = channel.session.as_deref().unwrap_or(uri);
            row_subject(&self.config.host.data(owner, uri), generation, index)
        };
        let Some(blob) = self.store.find(&subject).await? else { return Ok(None) };
        let length = usize::try_from(blob.length).unwrap_or(usize::MAX);
        Ok(self.store.get_range(&subject, length, range).await?)
    }

    /// Sums up all entries and rows.
    pub(super) async fn usage(&self) -> Result<Vec<Usage>, ReadError> {
        let (end, mut usages) = {
            let view = self.view();
            let usage = |info: ChannelInfo| {
                let rows =
                    view.index.get(&info.channel).map_or(0, |known| known.rows.within(0..u64::MAX).count() as u64);
                (info.channel.clone(), Usage { info, entries: 0, bytes: 0, seqs: None, times: None, rows })
            };
            let usages: BTreeMap<Arc<str>, Usage> = view.index.infos(None).into_iter().map(usage).collect();
            (view.index.position, usages)
        };
        let entries = vec![self.config.host.all_entries()];
        let add = |stored: Stored| {
            if let Some(run) = stored.head.as_ref().and_then(|head| head.run.as_ref())
                && let Some(usage) = usages.get_mut(&run.channel)
            {
                usage.add(run);
            }
            ControlFlow::Continue(())
        };
        self.store.scan(entries, end, add).await?;
        Ok(usages.into_values().collect())
    }

    /// Reads every record and compares it with its checksum.
    pub(super) async fn verify(&self) -> Result<Report, ReadError> {
        let mut report = Report::default();
        let (end, infos) = {
            let view = self.view();
            (view.index.position, view.index.infos(None))
        };
        let mut from = 1;
        while from <= end {
            let read = self.store.read(from, &self.config.host.all_entries(), PAGE.end).await?;
            let Some(last) = read.messages.last() else { break };
            from = last.position + 1;
            for stored in read.messages.iter().filter(|stored| stored.position <= end) {
                let Some(run) = stored.head.as_ref().and_then(|head| head.run.as_ref()) else {
                    report.faults.push(format!("message {} cannot be understood", stored.position));
                    continue;
                };
                let shows = |channel: &str, seq| self.view().index.shows(channel, seq);
                let (mut page, mut bytes) = (Vec::new(), 0);
                match self.add_entries(stored, run, &Wanted::whole(run, &shows), &mut page, &mut bytes).await {
                    Ok(_) => {
                        report.entries += page.len() as u64;
                        report.bytes += page.iter().map(|entry| entry.body.len() as u64).sum::<u64>();
                    }
                    Err(ReadError::Damaged(record)) => report.damaged.push(record),
                    Err(error) => return Err(error),
                }
            }
        }
        for info in infos {
            match self.snapshot(&info.channel).await {
                Ok(Some(snapshot)) => {
                    report.snapshots += 1;
                    report.bytes += snapshot.body.len() as u64;
                }
                Ok(None) => {}
                Err(ReadError::Damaged(record)) => report.damaged.push(record),
                Err(error) => return Err(error),
            }
            let mut next = 0;
            loop {
                match self.rows(&info.channel, next..u64::MAX, PAGE.end).await {
                    Ok(Rows { rows, .. }) => {
                        let Some((last, _)) = rows.last() else { break };
                        next = last + 1;
                        report.rows += rows.len() as u64;
                        report.bytes += rows.iter().map(|(_, body)| body.len() as u64).sum::<u64>();
                    }
                    Err(ReadError::Damaged(DamagedRecord::Row { channel, index })) => {
                        next = index + 1;
                        report.damaged.push(DamagedRecord::Row { channel, index });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(report)
    }

    /// Puts bodies that are too long for a message into the other stream.
    pub(super) async fn keep_long_bodies(&self, batch: &mut Batch) -> Result<Vec<Option<LongBody>>, AppendError> {
        if batch.entries.iter().all(|entry| !group::is_long(&entry.body)) {
            return Ok(Vec::new());
        }
        let mut kept = Vec::with_capacity(batch.entries.len());
        for entry in &mut batch.entries {
            if !group::is_long(&entry.body) {
                kept.push(None);
                continue;
            }
            let opened = batch.open.iter().find(|(uri, _)| *uri == entry.channel).map(|(_, session)| session.clone());
            let session = opened.or_else(|| self.view().index.get(&entry.channel).map(|known| known.session.clone()));
            let Some(session) = session else { return Err(AppendError::NotOpen(entry.channel.clone())) };
            let owner = entry.about.clone().or(session).unwrap_or_else(|| entry.channel.clone());
            let prefix = self.config.host.data(&owner, &entry.channel);
            let subject = Arc::from(format!("{prefix}.b.{}", self.new_name()));
            let body = std::mem::take(&mut entry.body);
            let blob = self.store.put(subject, body.clone()).await.map_err(|error| match error {
                PublishError::Full => AppendError::Full,
                PublishError::Refused(_) | PublishError::Unknown(_) | PublishError::WrongSequence => {
                    AppendError::Unknown
                }
            })?;
            kept.push(Some(LongBody { blob, body }));
        }
        Ok(kept)
    }

    /// Puts what is to be saved into the other stream. `None` if there is nothing.
    pub(super) async fn keep_saved(&self, save: Save) -> Result<Option<SavedChannel>, WriteError> {
        let Save { channel: uri, snapshot, cut_rows, rows } = save;
        let (prefix, generation) = {
            let view = self.view();
            let Some(channel) = view.index.get(&uri) else { return Err(WriteError::NotOpen(uri)) };
            if let Some((index, _)) = rows.iter().find(|(index, _)| *index > u64::from(u32::MAX)) {
                return Err(WriteError::RowIndex(*index));
            }
            check_snapshot(channel.snapshot.as_ref(), snapshot.as_ref().map(|snapshot| snapshot.seq), view.index.last)?;
            let owner = channel.session.as_deref().unwrap_or(&uri);
            // Rows that follow others of this owner are of their generation.
            let ours = format!("{}-", view.index.epoch);
            let newest =
                channel.rows.newest().filter(|newest| cut_rows.is_none() && newest.starts_with(&*ours)).cloned();
            (self.config.host.data(owner, &uri), newest)
        };
        if snapshot.is_none() && cut_rows.is_none() && rows.is_empty() {
            return Ok(None);
        }
        let generation = generation.unwrap_or_else(|| self.new_name().into());
        let indices: Vec<u64> = rows.iter().map(|(index, _)| *index).collect();
        let put = rows.into_iter().map(|(index, body)| {
            let subject = row_subject(&prefix, &generation, index);
            async move { self.store.put(subject.into(), body).await.map(drop) }
        });
        let put = futures_util::stream::iter(put).buffer_unordered(AT_A_TIME).try_collect::<()>();
        put.await.map_err(unsaved)?;
        let snapshot = match snapshot {
            None => None,
            Some(Snapshot { seq, version, body }) => {
                let subject = Arc::from(format!("{prefix}.s.{}", self.new_name()));
                let blob = self.store.put(subject, body).await.map_err(unsaved)?;
                Some(SavedSnapshot { seq, version, blob })
            }
        };
        let generation = (!indices.is_empty()).then_some(generation);
        Ok(Some(SavedChannel { channel: uri, snapshot, cut_rows, generation, rows: indices }))
    }

    /// A part of a subject that nobody else uses.
    fn new_name(&self) -> String {
        let number = self.kept.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("{}-{number}", self.view().index.epoch)
    }

    /// The subjects of these channels: of one channel only its own.
    fn filter(&self, channels: &Channels) -> Filter {
        match channels {
            Channels::Only(these) if these.len() == 1 => {
                let uri = these.iter().next().cloned().unwrap_or_default();
                Filter { subject: self.config.host.entries_of_channel(&uri), scope: Scope::Channel }
            }
            _ => Filter { subject: self.config.host.all(), scope: Scope::All },
        }
    }
}

impl Usage {
    /// Adds what readers see of a run.
    fn add(&mut self, run: &Run) {
        for (seq, length) in (run.first..).zip(&run.lengths).filter(|(seq, _)| *seq >= self.info.first) {
            self.entries += 1;
            self.bytes = self.bytes.saturating_add(*length);
            let first = self.seqs.as_ref().map_or(seq, |seqs| *seqs.start());
            self.seqs = Some(first..=seq);
            let oldest = self.times.as_ref().map_or(run.at_ms, |times| *times.start());
            self.times = Some(oldest..=run.at_ms);
        }
    }
}

/// The subjects that a read is about.
struct Filter {
    subject: String,
    scope: Scope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// One channel.
    Channel,
    /// All messages of the stream.
    All,
}

impl Writer {
    /// Names a saved snapshot and rows, and removes what they replace.
    pub(super) async fn save(&mut self, saved: SavedChannel) -> Result<(), WriteError> {
        let shared = self.shared.clone();
        let uri = saved.channel.clone();
        let (prefix, before) = {
            let view = shared.view();
            let Some(channel) = view.index.get(&uri) else { return Err(WriteError::NotOpen(uri)) };
            let seq = saved.snapshot.as_ref().map(|snapshot| snapshot.seq);
            check_snapshot(channel.snapshot.as_ref(), seq, view.index.last)?;
            (shared.config.host.data(channel.session.as_deref().unwrap_or(&uri), &uri), channel.clone())
        };
        let replaced = saved.snapshot.is_some().then_some(before.snapshot).flatten();
        let cut: Vec<String> = match saved.cut_rows {
            None => Vec::new(),
            Some(from) => before.rows.within(from..u64::MAX).map(|(at, name)| row_subject(&prefix, name, at)).collect(),
        };
        self.decide(Group::default(), Decision::Save(saved))
            .await
            .map_err(|failure: Failure| WriteError::from(failure))?;
        for subject in replaced.map(|snapshot| snapshot.blob.subject.to_string()).into_iter().chain(cut) {
            if let Err(error) = shared.store.purge_data(&format!("{subject}.>")).await {
                tracing::warn!("an old snapshot or row of {uri} stays: {}", error.0);
            }
        }
        Ok(())
    }
}

fn check_snapshot(saved: Option<&SavedSnapshot>, seq: Option<Seq>, last: Seq) -> Result<(), WriteError> {
    let Some(seq) = seq else { return Ok(()) };
    match saved {
        Some(saved) if saved.seq > seq => Err(WriteError::Older { saved: saved.seq }),
        _ if seq > last => Err(WriteError::Future { seq }),
        _ => Ok(()),
    }
}

fn row_subject(prefix: &str, generation: &str, index: u64) -> String {
    format!("{prefix}.r.{generation}.{index}")
}

fn unsaved(error: PublishError) -> WriteError {
    match error {
        PublishError::Full => WriteError::Full,
        PublishError::Refused(_) | PublishError::Unknown(_) | PublishError::WrongSequence => WriteError::Unknown,
    }
}
