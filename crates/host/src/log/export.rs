//! Exports the log as JSON Lines, for people and other programs: a header, the channels with their rows, then all entries.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;

use super::{BoxFuture, Bytes, ChannelInfo, Channels, DamagedRecord, Entry, Log, ROW_HEADER, ReadError, Seq};

/// Bytes of bodies that are held at a time.
pub(super) const PAGE: usize = 1 << 20;

/// A log that can be exported. Its entries are read over all channels, with those of trimmed channels among them.
pub(super) trait ExportSource: Log {
    /// The version of what is stored.
    const VERSION: i64;

    /// The next entries of these channels after a position and up to a seq, and the position after them.
    fn page<'a>(
        &'a self,
        after: Seq,
        last: Seq,
        channels: &'a Channels,
    ) -> BoxFuture<'a, Result<(Vec<Entry>, Seq), ReadError>>;
}

/// Why an export ended early. What was written until then is correct.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The log could not be read on.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The lines could not be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// One line. A body is the JSON of the log on one line; if it is no JSON, its text.
#[derive(Serialize)]
#[serde(untagged)]
enum ExportLine<'a> {
    Log {
        log: &'static str,
        version: i64,
        first: Seq,
        last: Seq,
    },
    Channel(ChannelLine<'a>),
    Row {
        channel: &'a str,
        row: u64,
        body: ExportBody<'a>,
    },
    Entry {
        seq: Seq,
        at: u64,
        channel: &'a str,
        body: ExportBody<'a>,
    },
    /// In place of a damaged record.
    Damaged {
        damaged: String,
    },
}

#[derive(Serialize)]
struct ChannelLine<'a> {
    channel: &'a str,
    session: Option<&'a str>,
    first: Seq,
    last: Seq,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotLine<'a>>,
}

#[derive(Serialize)]
struct SnapshotLine<'a> {
    seq: Seq,
    version: &'a str,
    body: ExportBody<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ExportBody<'a> {
    Json(&'a RawValue),
    OneLine(Box<RawValue>),
    Text { invalid: String },
}

/// Writes the log, or some channels of it, as JSON Lines. Entries that are appended meanwhile are left out. Returns the damaged
/// records.
pub(super) async fn export(
    log: &impl ExportSource,
    channels: Channels,
    to: &mut (dyn Write + Send),
) -> Result<Vec<DamagedRecord>, ExportError> {
    Export { log, to, damaged: Vec::new() }.write(&channels).await
}

struct Export<'a, L> {
    log: &'a L,
    to: &'a mut (dyn Write + Send),
    damaged: Vec<DamagedRecord>,
}

impl<L: ExportSource> Export<'_, L> {
    async fn write(mut self, channels: &Channels) -> Result<Vec<DamagedRecord>, ExportError> {
        let bounds = self.log.bounds().await?;
        let head = ExportLine::Log { log: "breakbulk", version: L::VERSION, first: bounds.first, last: bounds.last };
        write(self.to, &head)?;
        let mut infos = self.log.channels(None).await?;
        infos.retain(|info| channels.contains(&info.channel));
        for info in &infos {
            self.channel(info).await?;
        }
        self.entries(&infos, bounds.last).await?;
        Ok(self.damaged)
    }

    fn damaged(&mut self, record: DamagedRecord) -> io::Result<()> {
        write(self.to, &ExportLine::Damaged { damaged: record.to_string() })?;
        self.damaged.push(record);
        Ok(())
    }

    async fn channel(&mut self, info: &ChannelInfo) -> Result<(), ExportError> {
        let snapshot = match self.log.snapshot(&info.channel).await {
            Err(ReadError::Damaged(record)) => {
                self.damaged(record)?;
                None
            }
            snapshot => snapshot?,
        };
        let ChannelInfo { channel, session, first, last, .. } = info;
        let snapshot = snapshot.as_ref();
        let snapshot = snapshot.map(|it| SnapshotLine { seq: it.seq, version: &it.version, body: body(&it.body) });
        let (session, first, last) = (session.as_deref(), *first, *last);
        write(self.to, &ExportLine::Channel(ChannelLine { channel, session, first, last, snapshot }))?;
        let mut from = 0;
        loop {
            let page = match self.log.rows(channel, from..u64::MAX, PAGE).await {
                Err(ReadError::Damaged(record @ DamagedRecord::Row { index, .. })) => {
                    from = index + 1;
                    self.damaged(record)?;
                    continue;
                }
                page => page?,
            };
            let Some((end, _)) = page.rows.last() else { return Ok(()) };
            from = end + 1;
            for (index, row) in &page.rows {
                write(self.to, &ExportLine::Row { channel, row: *index, body: row_body(row) })?;
            }
        }
    }

    async fn entries(&mut self, infos: &[ChannelInfo], last: Seq) -> Result<(), ExportError> {
        let firsts: HashMap<Arc<str>, Seq> = infos.iter().map(|info| (info.channel.clone(), info.first)).collect();
        let channels = Channels::only(firsts.keys().cloned());
        let mut after = 0;
        while after < last {
            let page = match self.log.page(after, last, &channels).await {
                Err(ReadError::Damaged(record)) if let Some(end) = record.end() => {
                    after = end;
                    self.damaged(record)?;
                    continue;
                }
                Err(error) => {
                    write(self.to, &ExportLine::Damaged { damaged: error.to_string() })?;
                    return Err(error.into());
                }
                Ok(page) => page,
            };
            after = page.1;
            for Entry { seq, at_ms, channel, body: bytes, .. } in &page.0 {
                // Trimmed entries may not be removed yet.
                if firsts.get(channel).is_some_and(|first| first <= seq) {
                    write(self.to, &ExportLine::Entry { seq: *seq, at: *at_ms, channel, body: body(bytes) })?;
                }
            }
        }
        Ok(())
    }
}

fn write(to: &mut (dyn Write + Send), line: &ExportLine<'_>) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    to.write_all(&text)
}

/// The JSON of a row, without the header that only the host uses.
fn row_body(row: &Bytes) -> ExportBody<'_> {
    let text = match body(row) {
        text @ ExportBody::Text { .. } => text,
        json => return json,
    };
    match row.get(ROW_HEADER..).map(body) {
        None | Some(ExportBody::Text { .. }) => text,
        Some(json) => json,
    }
}

fn body(bytes: &[u8]) -> ExportBody<'_> {
    match serde_json::from_slice::<&RawValue>(bytes) {
        Ok(json) if !json.get().contains(['\n', '\r']) => ExportBody::Json(json),
        // JSON has raw line breaks only between tokens, never inside strings.
        Ok(json) => match RawValue::from_string(json.get().replace(['\n', '\r'], " ")) {
            Ok(json) => ExportBody::OneLine(json),
            Err(_) => ExportBody::Json(json),
        },
        Err(_) => ExportBody::Text { invalid: String::from_utf8_lossy(bytes).into_owned() },
    }
}
