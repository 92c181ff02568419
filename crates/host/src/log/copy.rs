//! Copies a log from one store to another, with its seqs and the gaps between its runs: clients resume at the copy.
//!
//! Which batches were appended is not copied, so a batch that is repeated after the copy is not recognized. Nobody may write to the
//! source meanwhile.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use super::export::ExportSource;
use super::{BoxFuture, Bytes, ChannelInfo, Channels, Gap, Log, ReadError, Save, Seq, WriteError};

/// Bytes of rows that are saved at once.
const ROWS: usize = 4 << 20;

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// Channels.
    pub channels: u64,
    /// Entries.
    pub entries: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// Why a log was not copied.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The target has a log already.
    #[error("there is a log already: a log is copied to an empty place only")]
    Exists,
    /// The source cannot be read, or a record in it is damaged.
    #[error("the log cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The target cannot be written.
    #[error("the copy cannot be written: {0}")]
    Write(String),
}

impl From<WriteError> for CopyError {
    fn from(error: WriteError) -> Self {
        Self::Write(error.to_string())
    }
}

/// What a log knows beside its channels and entries.
#[derive(Debug, Default)]
pub(super) struct Past {
    pub(super) gaps: Vec<Gap>,
    /// The sessions that entries of other channels are about.
    pub(super) about: HashMap<Seq, Arc<str>>,
}

/// A log that can be copied.
pub(super) trait CopySource: ExportSource {
    fn past(&self) -> BoxFuture<'_, Result<Past, ReadError>>;
}

/// An entry with everything that a store keeps of it.
#[derive(Debug, Clone)]
pub(super) struct CopiedEntry {
    pub(super) seq: Seq,
    pub(super) at_ms: u64,
    pub(super) channel: Arc<str>,
    pub(super) about: Option<Arc<str>>,
    pub(super) body: Bytes,
}

/// A source that is read from its beginning to its end.
pub(super) struct Reading<'a, S> {
    source: &'a S,
    pub(super) past: Past,
    pub(super) infos: Vec<ChannelInfo>,
    channels: Channels,
    firsts: HashMap<Arc<str>, Seq>,
    after: Seq,
    last: Seq,
    pub(super) copied: Copied,
}

impl<'a, S: CopySource> Reading<'a, S> {
    pub(super) async fn new(source: &'a S) -> Result<Self, CopyError> {
        let (past, infos, bounds) = (source.past().await?, source.channels(None).await?, source.bounds().await?);
        let firsts: HashMap<Arc<str>, Seq> = infos.iter().map(|info| (info.channel.clone(), info.first)).collect();
        let channels = Channels::only(firsts.keys().cloned());
        let copied = Copied { channels: infos.len() as u64, ..Copied::default() };
        Ok(Self { source, past, infos, channels, firsts, after: 0, last: bounds.last, copied })
    }

    /// The next entries that readers see; none at the end.
    pub(super) async fn page(&mut self) -> Result<Vec<CopiedEntry>, CopyError> {
        while self.after < self.last {
            let (page, after) = self.source.page(self.after, self.last, &self.channels).await?;
            self.after = after;
            let is_seen = |channel: &str, seq| self.firsts.get(channel).is_some_and(|first| *first <= seq);
            let entries: Vec<CopiedEntry> = page
                .into_iter()
                .filter(|entry| is_seen(&entry.channel, entry.seq))
                .map(|entry| {
                    let about = self.past.about.get(&entry.seq).cloned();
                    CopiedEntry { seq: entry.seq, at_ms: entry.at_ms, channel: entry.channel, about, body: entry.body }
                })
                .collect();
            if !entries.is_empty() {
                self.copied.entries += entries.len() as u64;
                self.copied.bytes += entries.iter().map(|entry| entry.body.len() as u64).sum::<u64>();
                return Ok(entries);
            }
        }
        Ok(Vec::new())
    }

    /// Copies snapshots and rows to a log that has the entries.
    pub(super) async fn saved(&self, to: &impl Log) -> Result<(), CopyError> {
        for ChannelInfo { channel, .. } in &self.infos {
            let mut from = 0;
            loop {
                let page = self.source.rows(channel, from..u64::MAX, ROWS).await?;
                let Some((last, _)) = page.rows.last() else { break };
                from = last + 1;
                to.save(Save { rows: page.rows, ..Save::new(channel.clone()) }).await?;
            }
            if let Some(snapshot) = self.source.snapshot(channel).await? {
                to.save(Save { snapshot: Some(snapshot), ..Save::new(channel.clone()) }).await?;
            }
        }
        Ok(())
    }
}
