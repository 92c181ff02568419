//! Exports the log as JSON Lines, for people and other programs: a header, the channels with their rows, then all entries.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;

use super::super::{Bytes, ChannelInfo, Channels, DamagedRecord, Entry, Log, ROW_HEADER, ReadError, Seq};
use super::reader::ChannelFilter;
use super::{SqliteLog, schema};

/// Bytes of bodies that are held at a time.
const PAGE: usize = 1 << 20;

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

impl SqliteLog {
    /// Writes the log, or some channels of it, as JSON Lines. Entries that are appended meanwhile are left out.
    ///
    /// In place of a damaged record, or of entries that cannot be read, is a line that names them; returns all of these.
    ///
    /// # Errors
    /// Something else cannot be read (everything before that has been written), or the lines cannot be written.
    pub async fn export(
        &self,
        channels: Channels,
        to: &mut (dyn Write + Send),
    ) -> Result<Vec<DamagedRecord>, ExportError> {
        let bounds = self.bounds().await?;
        write(
            to,
            &ExportLine::Log { log: "breakbulk", version: schema::VERSION, first: bounds.first, last: bounds.last },
        )?;
        let mut infos = self.channels(None).await?;
        infos.retain(|info| channels.contains(&info.channel));
        let mut damaged = Vec::new();
        for info in &infos {
            self.export_channel(info, to, &mut damaged).await?;
        }
        self.export_entries(&infos, bounds.last, to, &mut damaged).await?;
        Ok(damaged)
    }

    async fn export_channel(
        &self,
        info: &ChannelInfo,
        to: &mut (dyn Write + Send),
        damaged: &mut Vec<DamagedRecord>,
    ) -> Result<(), ExportError> {
        let snapshot = match self.snapshot(&info.channel).await {
            Err(ReadError::Damaged(record)) => {
                write(to, &ExportLine::Damaged { damaged: record.to_string() })?;
                damaged.push(record);
                None
            }
            snapshot => snapshot?,
        };
        let ChannelInfo { channel, session, first, last, .. } = info;
        let snapshot = snapshot.as_ref();
        let snapshot = snapshot.map(|it| SnapshotLine { seq: it.seq, version: &it.version, body: body(&it.body) });
        let (session, first, last) = (session.as_deref(), *first, *last);
        write(to, &ExportLine::Channel(ChannelLine { channel, session, first, last, snapshot }))?;
        let mut from = 0;
        loop {
            let page = match self.rows(channel, from..u64::MAX, PAGE).await {
                Err(ReadError::Damaged(record @ DamagedRecord::Row { index, .. })) => {
                    from = index + 1;
                    write(to, &ExportLine::Damaged { damaged: record.to_string() })?;
                    damaged.push(record);
                    continue;
                }
                page => page?,
            };
            let Some((end, _)) = page.rows.last() else { return Ok(()) };
            from = end + 1;
            for (index, row) in &page.rows {
                write(to, &ExportLine::Row { channel, row: *index, body: row_body(row) })?;
            }
        }
    }

    async fn export_entries(
        &self,
        infos: &[ChannelInfo],
        last: Seq,
        to: &mut (dyn Write + Send),
        damaged: &mut Vec<DamagedRecord>,
    ) -> Result<(), ExportError> {
        let firsts: Arc<std::collections::HashMap<Arc<str>, Seq>> =
            Arc::new(infos.iter().map(|info| (info.channel.clone(), info.first)).collect());
        let mut after = 0;
        while after < last {
            let (shared, wanted) = (self.shared.clone(), firsts.clone());
            let name = move |id| match shared.recent().channel(id) {
                Some(uri) if wanted.contains_key(&uri) => ChannelFilter::Yes(uri),
                Some(_) => ChannelFilter::No,
                None => ChannelFilter::Unknown,
            };
            let page = match self.shared.readers.run(move |reader| reader.page((after, last), PAGE, name)).await {
                Err(ReadError::Damaged(record)) if let Some(end) = record.end() => {
                    after = end;
                    write(to, &ExportLine::Damaged { damaged: record.to_string() })?;
                    damaged.push(record);
                    continue;
                }
                Err(error) => {
                    write(to, &ExportLine::Damaged { damaged: error.to_string() })?;
                    return Err(error.into());
                }
                Ok(page) => page,
            };
            after = page.1;
            for Entry { seq, at_ms, channel, body: bytes, .. } in &page.0 {
                // Trimmed entries may not be removed yet.
                if firsts.get(channel).is_some_and(|first| first <= seq) {
                    write(to, &ExportLine::Entry { seq: *seq, at: *at_ms, channel, body: body(bytes) })?;
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
