//! Copying a log to JetStream, and from there.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_nats::Client;
use futures_util::{StreamExt, TryStreamExt};

use super::super::copy::{Copied, CopiedEntry, CopyError, CopySource, Past, Reading};
use super::super::plan::PlannedEntry;
use super::super::sqlite::SqliteLog;
use super::super::{BoxFuture, ChannelInfo, Gap, ReadError, Seq};
use super::index::Index;
use super::store::Store;
use super::wire::{Decision, Group, LogEnd, Outgoing, Stored};
use super::{JetStreamConfig, JetStreamLog, LongBody, Shared, group, writer};

/// Entries of one group.
const GROUP: usize = 500;
/// Long bodies that are on their way at a time.
const AT_A_TIME: usize = 8;

impl JetStreamLog {
    /// Copies a log from a directory to JetStream, where the host has none yet. Nobody may write to it meanwhile.
    ///
    /// # Errors
    /// The host has a log there, or one of both cannot be read or written. What was copied until then is removed.
    pub async fn copy_from(source: &SqliteLog, client: Client, config: JetStreamConfig) -> Result<Copied, CopyError> {
        let failed = |error: super::store::StoreError| CopyError::Write(error.0);
        if Store::open(client.clone(), &config, false).await.map_err(failed)?.is_some() {
            return Err(CopyError::Exists);
        }
        let store = Store::open(client, &config, true).await.map_err(failed)?;
        let store = store.ok_or_else(|| CopyError::Write("the streams cannot be made".into()))?;
        let copied = copy(source, Shared::new(store.clone(), config, Index::default())).await;
        if copied.is_err() {
            // A part of a log is worse than none.
            store.delete().await.map_err(failed)?;
        }
        copied
    }
}

async fn copy(source: &SqliteLog, shared: Shared) -> Result<Copied, CopyError> {
    let shared = Arc::new(shared);
    let mut reading = Reading::new(source).await?;
    let target = Target { shared: &shared, sessions: sessions(&reading.infos) };
    target.begin(&reading.past.gaps, &reading.infos).await?;
    loop {
        let page = reading.page().await?;
        if page.is_empty() {
            break;
        }
        for entries in page.chunks(GROUP) {
            target.add(entries).await?;
        }
    }
    let abandoned = shared.abandoned.subscribe();
    tokio::spawn(writer::Writer::new(shared.clone()).run(abandoned));
    let log = JetStreamLog::of(shared, None);
    reading.saved(&log).await?;
    log.close().await;
    Ok(reading.copied)
}

fn sessions(infos: &[ChannelInfo]) -> HashMap<Arc<str>, Option<Arc<str>>> {
    infos.iter().map(|info| (info.channel.clone(), info.session.clone())).collect()
}

/// The log that is written.
struct Target<'a> {
    shared: &'a Shared,
    sessions: HashMap<Arc<str>, Option<Arc<str>>>,
}

impl Target<'_> {
    /// Says which gaps and channels there are.
    async fn begin(&self, gaps: &[Gap], infos: &[ChannelInfo]) -> Result<(), CopyError> {
        let host = &self.shared.config.host;
        // At least one, so that the next owner has another number.
        let none = [Gap { after: 0, next: 1, lost: None }];
        for gap in if gaps.is_empty() { &none } else { gaps } {
            let decision = Decision::Fence { epoch: 1, gap: *gap, node: self.shared.config.node.clone() };
            self.publish(group::decision(host, Group { id: writer::random(), ..Group::default() }, decision)).await?;
        }
        for infos in infos.chunks(GROUP) {
            let opened = infos.iter().map(|info| (info.channel.clone(), info.session.clone())).collect();
            let group = Group { id: writer::random(), messages: 1, opened, ..Group::default() };
            self.publish(vec![group::head(host, group)]).await?;
        }
        // Where a channel begins and ends, which its entries may not show.
        for info in infos {
            let ends = LogEnd { last: 0, at_ms: 0 };
            let (channel, upto, last) = (info.channel.clone(), info.first.saturating_sub(1), info.last);
            let decision = Decision::Trim { channel, upto, ends, last, before: 0 };
            self.publish(group::decision(host, Group { id: writer::random(), ..Group::default() }, decision)).await?;
        }
        Ok(())
    }

    async fn add(&self, entries: &[CopiedEntry]) -> Result<(), CopyError> {
        let kept = entries.iter().map(|entry| self.keep(entry));
        let planned: Vec<(u64, PlannedEntry<LongBody>)> =
            futures_util::stream::iter(kept).buffered(AT_A_TIME).try_collect().await?;
        let messages = group::copied(&self.shared.config.host, writer::random(), &planned, |entry| self.owner(entry));
        self.publish(messages).await
    }

    /// The entry, with its body in the other stream if it is long.
    async fn keep(&self, entry: &CopiedEntry) -> Result<(u64, PlannedEntry<LongBody>), CopyError> {
        let CopiedEntry { seq, at_ms, channel, about, body } = entry.clone();
        let mut planned = PlannedEntry { seq, channel, about, body, stored: None };
        if group::is_long(&planned.body) {
            let prefix = self.shared.config.host.data(&self.owner(&planned), &planned.channel);
            let (subject, body) = (Arc::from(format!("{prefix}.b.copy-{seq}")), std::mem::take(&mut planned.body));
            let put = self.shared.store.put(subject, body.clone()).await;
            let blob = put.map_err(|error| CopyError::Write(format!("{error:?}")))?;
            planned.stored = Some(LongBody { blob, body });
        }
        Ok((at_ms, planned))
    }

    fn owner(&self, entry: &PlannedEntry<LongBody>) -> Arc<str> {
        let session = || self.sessions.get(&entry.channel).cloned().flatten();
        entry.about.clone().or_else(session).unwrap_or_else(|| entry.channel.clone())
    }

    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), CopyError> {
        let position = self.shared.view().index.position;
        let batch_id = format!("{:016x}", writer::random());
        let published = self.shared.store.publish(position, &messages, &batch_id).await;
        published.map_err(|error| CopyError::Write(format!("{error:?}")))?;
        self.shared.apply(&messages, Vec::new());
        Ok(())
    }
}

impl CopySource for JetStreamLog {
    fn past(&self) -> BoxFuture<'_, Result<Past, ReadError>> {
        Box::pin(async {
            let (end, gaps) = {
                let view = self.shared.view();
                (view.index.position, view.index.gaps.all())
            };
            let mut about: HashMap<Seq, Arc<str>> = HashMap::new();
            let entries = vec![self.shared.config.host.all_entries()];
            let note = |stored: Stored| {
                if let Some(run) = stored.head.as_ref().and_then(|head| head.run.as_ref())
                    && let Some(session) = &run.about
                {
                    about.extend((run.first..=run.last()).map(|seq| (seq, session.clone())));
                }
                ControlFlow::Continue(())
            };
            self.shared.store.scan(entries, end, note).await?;
            Ok(Past { gaps, about })
        })
    }
}
