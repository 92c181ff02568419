//! Trimming and erasing: a decision is published, then the messages are removed by their subjects.
//!
//! What the index still needs of messages that go (which batches they appended, which channels they opened) is said again
//! with the decision. A removal that was interrupted is finished by the next writer: removing again is harmless, because nothing
//! after the decision is removed.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tracing::warn;

use super::super::maintenance::now_ms;
use super::super::{RetentionPolicy, Seq, WriteError};
use super::store::StoreError;
use super::wire::{Decision, Group, Head, LogEnd};
use super::writer::Writer;
use super::{LongBody, Shared};

/// How much of what is said again is in one message.
const SAID_AGAIN: usize = 512;

/// What goes, and what is said again of it.
#[derive(Default)]
struct Going {
    /// How many entries readers saw.
    entries: u64,
    again: Group,
}

impl Going {
    fn add(&mut self, shared: &Shared, head: &Head, before: Seq) {
        let view = shared.view();
        if let Some(group) = &head.group {
            let needed = view.index.still_needed(group);
            self.again.batches.extend(needed.batches);
            self.again.opened.extend(needed.opened);
        }
        if let Some(run) = &head.run {
            let last = run.last().min(before.saturating_sub(1));
            let seen = (run.first..=last).filter(|seq| view.index.shows(&run.channel, *seq));
            self.entries += seen.count() as u64;
        }
    }
}

impl Writer {
    /// Removes a channel's entries before a seq.
    pub(super) async fn trim(&mut self, uri: &Arc<str>, before: Seq) -> Result<u64, WriteError> {
        let shared = self.shared.clone();
        let (saved, channel_last, end) = {
            let view = shared.view();
            let Some(channel) = view.index.get(uri) else { return Err(WriteError::NotOpen(uri.clone())) };
            let saved = channel.snapshot.as_ref().map_or(0, |snapshot| snapshot.seq);
            (saved, channel.last, view.index.position)
        };
        if before > saved.saturating_add(1) {
            return Err(WriteError::NoSnapshot { saved });
        }
        let subject = shared.config.host.entries_of_channel(uri);
        // Messages before this sequence go whole. One that has entries after `before` too stays, and readers see only those.
        let (mut purge_before, mut upto) = (0, 0);
        let (mut whole, mut partial) = (Going::default(), Going::default());
        let scanned = shared.store.scan(vec![subject.clone()], end, |stored| {
            let Some(head) = &stored.head else { return ControlFlow::Continue(()) };
            let Some(run) = &head.run else { return ControlFlow::Continue(()) };
            if run.first >= before {
                return ControlFlow::Break(());
            }
            upto = run.last().min(before - 1);
            if run.last() < before {
                whole.add(&shared, head, before);
                purge_before = stored.position + 1;
            } else {
                partial.add(&shared, head, before);
            }
            ControlFlow::Continue(())
        });
        scanned.await.map_err(|error| unread(&error))?;
        let entries = whole.entries + partial.entries;
        if entries == 0 {
            return Ok(0);
        }
        let ends = self.ends();
        let again = self.say_again(whole.again).await?;
        let decision = Decision::Trim { channel: uri.clone(), upto, ends, last: channel_last, before: purge_before };
        self.decide(again, decision).await?;
        shared.metrics.removed.fetch_add(entries, Relaxed);
        shared.store.purge_entries(&subject, purge_before).await.map_err(|error| unread(&error))?;
        Ok(entries)
    }

    /// Removes a session or a channel with all that is about it.
    pub(super) async fn erase(&mut self, name: &Arc<str>) -> Result<u64, WriteError> {
        let shared = self.shared.clone();
        let (gone, end) = {
            let view = shared.view();
            (view.index.named(name), view.index.position)
        };
        // The subjects of a session and of its channels overlap, so each message counts once.
        let (mut going, mut seen, mut lasts) = (Going::default(), BTreeSet::new(), HashMap::new());
        for filter in shared.entry_filters(name, &gone) {
            let scanned = shared.store.scan(vec![filter], end, |stored| {
                if let (Some(head), true) = (&stored.head, seen.insert(stored.position)) {
                    going.add(&shared, head, Seq::MAX);
                    if let Some(run) = head.run.as_ref().filter(|run| !gone.contains(&run.channel)) {
                        lasts.insert(run.channel.clone(), 0);
                    }
                }
                ControlFlow::Continue(())
            });
            scanned.await.map_err(|error| unread(&error))?;
        }
        if gone.is_empty() && seen.is_empty() {
            return Ok(0);
        }
        for (uri, last) in &mut lasts {
            *last = shared.view().index.get(uri).map_or(0, |channel| channel.last);
        }
        going.again.opened.retain(|(uri, _)| !gone.contains(uri));
        let ends = self.ends();
        let again = self.say_again(going.again).await?;
        let decision = Decision::Erase { name: name.clone(), ends, lasts: lasts.into_iter().collect(), gone };
        self.decide(again, decision.clone()).await?;
        shared.metrics.removed.fetch_add(going.entries, Relaxed);
        let position = shared.view().index.position;
        shared.finish_removals(vec![(position, decision)]).await.map_err(|error| unread(&error))?;
        Ok(going.entries)
    }

    /// Trims what a policy no longer keeps.
    pub(super) async fn retain(&mut self, policy: RetentionPolicy) -> Result<u64, WriteError> {
        let shared = self.shared.clone();
        let age = policy.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let oldest = age.map_or(0, |age| now_ms().saturating_sub(age));
        let (_, mut used) = shared.store.end().await.map_err(|error| unread(&error))?;
        shared.metrics.store_bytes.store(used, Relaxed);
        let is_over = |used: u64| policy.max_bytes.is_some_and(|most| used > most);
        let mut cut = 0;
        if oldest > 0 || is_over(used) {
            let end = shared.view().index.position;
            let scanned = shared.store.scan(vec![shared.config.host.all_entries()], end, |stored| {
                let Some(run) = stored.head.and_then(|head| head.run) else { return ControlFlow::Continue(()) };
                if run.at_ms >= oldest && !is_over(used) {
                    return ControlFlow::Break(());
                }
                let saved = shared
                    .view()
                    .index
                    .get(&run.channel)
                    .and_then(|channel| channel.snapshot.as_ref().map(|it| it.seq));
                if saved.is_some_and(|saved| saved >= run.last()) {
                    used = used.saturating_sub(run.lengths.iter().sum());
                }
                cut = run.last() + 1;
                ControlFlow::Continue(())
            });
            scanned.await.map_err(|error| unread(&error))?;
        }
        let infos = shared.view().index.infos(None);
        let mut removed = 0;
        for info in infos {
            if let Some(saved) = info.snapshot
                && cut > info.first
            {
                removed += self.trim(&info.channel, cut.min(saved + 1)).await?;
            }
        }
        Ok(removed)
    }

    fn ends(&self) -> LogEnd {
        let view = self.shared.view();
        LogEnd { last: view.index.last, at_ms: view.index.at_ms }
    }

    /// Says again what the index needs of messages that go, but for what fits the message with the decision.
    async fn say_again(&mut self, mut group: Group) -> Result<Group, WriteError> {
        while group.batches.len() + group.opened.len() > SAID_AGAIN {
            let batches = group.batches.drain(..group.batches.len().min(SAID_AGAIN)).collect();
            let room = SAID_AGAIN.saturating_sub(Vec::len(&batches));
            let opened = group.opened.drain(..group.opened.len().min(room)).collect();
            self.repeat(Group { batches, opened, ..Group::default() }).await?;
        }
        Ok(group)
    }
}

impl Shared {
    /// The subjects of entries that go with a session or a channel.
    fn entry_filters(&self, name: &str, gone: &[Arc<str>]) -> Vec<String> {
        let host = &self.config.host;
        let channels = gone.iter().map(|uri| host.entries_of_channel(uri));
        std::iter::once(host.entries_of_owner(name)).chain(channels).collect()
    }

    /// Removes the messages that decisions at these positions are about.
    pub(super) async fn finish_removals(&self, decisions: Vec<(u64, Decision)>) -> Result<(), StoreError> {
        let host = &self.config.host;
        for (position, decision) in decisions {
            match decision {
                Decision::Trim { channel, before, .. } => {
                    self.store.purge_entries(&host.entries_of_channel(&channel), before).await?;
                }
                Decision::Erase { name, gone, .. } => {
                    for filter in self.entry_filters(&name, &gone) {
                        self.store.erase_entries(filter, position - 1).await?;
                    }
                    let channels = gone.iter().map(|uri| host.data_of_channel(uri));
                    for filter in std::iter::once(host.data_of_owner(&name)).chain(channels) {
                        self.store.erase_data(filter).await?;
                    }
                }
                Decision::Fence { .. } | Decision::Save(_) => {}
            }
        }
        Ok(())
    }

    /// Removes long bodies that no message names.
    pub(super) async fn discard(&self, bodies: Vec<Option<LongBody>>) {
        for long in bodies.into_iter().flatten() {
            if let Err(error) = self.store.purge_data(&format!("{}.>", long.blob.subject)).await {
                warn!("bytes that nobody needs stay in {}: {}", self.config.host.data_stream(), error.0);
            }
        }
    }
}

/// A removal that could not be made: doing it again is harmless.
fn unread(error: &StoreError) -> WriteError {
    warn!("entries of the log are not removed: {}", error.0);
    WriteError::Unknown
}
