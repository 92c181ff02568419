//! Copying a log to a directory, and from there.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use super::super::copy::{Copied, CopiedEntry, CopyError, CopySource, Past, Reading};
use super::super::jetstream::JetStreamLog;
use super::super::{BoxFuture, ChannelInfo, Gap, ReadError, Seq};
use super::files::LogFiles;
use super::insert::{self, EntryRecord};
use super::reader::store;
use super::{Options, SqliteLog};

impl SqliteLog {
    /// Copies a log from JetStream to a directory that has none yet. Nobody may write to it meanwhile.
    ///
    /// # Errors
    /// The directory has a log, or one of both cannot be read or written. The directory is of no use then.
    pub async fn copy_from(source: &JetStreamLog, dir: impl AsRef<Path>) -> Result<Copied, CopyError> {
        let (dir, files) = (dir.as_ref().to_owned(), LogFiles::new(dir.as_ref()));
        if files.database().exists() {
            return Err(CopyError::Exists);
        }
        let open = || async {
            Self::open(&dir, Options::default()).await.map_err(|error| CopyError::Write(error.to_string()))
        };
        // It makes the tables.
        open().await?.close().await;
        let mut reading = Reading::new(source).await?;
        let mut target = Target::begin(&files.database(), &reading.past.gaps, &reading.infos)?;
        loop {
            let page = reading.page().await?;
            if page.is_empty() {
                break;
            }
            target = blocking(move || target.add(&page).map(|()| target)).await?;
        }
        let infos = reading.infos.clone();
        blocking(move || target.end(&infos)).await?;
        let log = open().await?;
        reading.saved(&log).await?;
        log.close().await;
        Ok(reading.copied)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, CopyError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| CopyError::Write(error.to_string()))?;
    done.map_err(|error| CopyError::Write(error.to_string()))
}

/// The database that is written, while no log has it.
struct Target {
    connection: Connection,
    /// The number of each channel, and the last entry that was copied.
    channels: HashMap<Arc<str>, (i64, Seq)>,
    last: Seq,
}

impl Target {
    fn begin(path: &Path, gaps: &[Gap], infos: &[ChannelInfo]) -> Result<Self, CopyError> {
        let begun = || {
            let mut connection = Connection::open(path)?;
            connection.execute_batch("PRAGMA synchronous = FULL")?;
            let transaction = connection.transaction()?;
            transaction.execute("DELETE FROM gap", [])?;
            for gap in gaps {
                let lost = gap.lost.unwrap_or(0);
                transaction.execute("INSERT INTO gap VALUES (?1, ?2, ?3)", (gap.after, gap.next, lost))?;
            }
            let mut channels = HashMap::new();
            for info in infos {
                let trimmed = info.first.saturating_sub(1);
                transaction.execute(
                    "INSERT INTO channel (uri, session, trimmed, removed) VALUES (?1, ?2, ?3, ?3)",
                    (&info.channel, &info.session, trimmed),
                )?;
                channels.insert(info.channel.clone(), (transaction.last_insert_rowid(), 0));
            }
            transaction.commit()?;
            Ok(Self { connection, channels, last: 0 })
        };
        begun().map_err(|error: rusqlite::Error| CopyError::Write(error.to_string()))
    }

    fn add(&mut self, entries: &[CopiedEntry]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        let mut records = Vec::with_capacity(entries.len());
        for CopiedEntry { seq, at_ms, channel, about, body } in entries {
            let Some((channel, last)) = self.channels.get_mut(channel) else { continue };
            (*last, self.last) = (*seq, *seq);
            let about = about.as_deref();
            records.push(EntryRecord { seq: *seq, channel: *channel, at_ms: *at_ms, about, body, stored: None });
        }
        insert::all(&transaction, &records)?;
        transaction.commit()
    }

    /// Notes how far the log was, which its entries may not show.
    fn end(mut self, infos: &[ChannelInfo]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for info in infos {
            self.last = self.last.max(info.last);
            if let Some((id, last)) = self.channels.get(&info.channel)
                && *last < info.last
            {
                transaction.execute("UPDATE channel SET removed = ?2 WHERE id = ?1", (id, info.last))?;
            }
        }
        transaction.execute("UPDATE meta SET value = ?1 WHERE key = 'next'", [self.last.saturating_add(1)])?;
        transaction.commit()
    }
}

impl CopySource for SqliteLog {
    fn past(&self) -> BoxFuture<'_, Result<Past, ReadError>> {
        Box::pin(async {
            let gaps = self.shared.recent().gaps.all();
            let about = self.shared.readers.run(|reader| {
                let sql = "SELECT seq, about FROM entry WHERE about IS NOT NULL";
                let mut query = reader.connection.prepare(sql).map_err(store)?;
                let rows = query.query_map([], |row| Ok((row.get::<_, Seq>(0)?, Arc::from(row.get::<_, String>(1)?))));
                rows.and_then(Iterator::collect::<rusqlite::Result<HashMap<Seq, Arc<str>>>>).map_err(store)
            });
            Ok(Past { gaps, about: about.await? })
        })
    }
}
