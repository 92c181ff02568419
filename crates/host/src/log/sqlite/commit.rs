//! One transaction: what a plan of the waiting batches becomes in the database.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::maintenance::now_ms;
use super::super::plan::{ChannelDirectory, KnownChannel, Plan, Planned, PlannedEntry, Verdict};
use super::super::{AppendError, Batch, BatchId, Entry, Metrics, Save, Seq, WriteError};
use super::blob;
use super::db::{ChannelRecord, Db, Failure, none_is};
use super::insert::{self, BatchRecord, EntryRecord};
use super::pieces::{self, StoredPieces};
use super::record;

/// An open transaction.
pub(super) struct Commit<'a> {
    db: &'a mut Db,
    metrics: &'a Metrics,
    plan: Plan<StoredPieces>,
    opened: Vec<(i64, Arc<str>)>,
}

/// What became durable.
pub(super) struct Committed {
    pub(super) entries: Vec<Entry>,
    pub(super) opened: Vec<(i64, Arc<str>)>,
    /// One result for each batch, in their order.
    pub(super) answers: Vec<Result<Vec<Seq>, AppendError>>,
}

impl ChannelDirectory for Db {
    fn channel(&self, uri: &str) -> Option<KnownChannel<'_>> {
        let ChannelRecord { uri, session, last, .. } = self.channels.get(uri)?;
        Some(KnownChannel { uri, session: session.as_ref(), last: *last })
    }
}

impl<'a> Commit<'a> {
    /// Begins a transaction.
    pub(super) fn begin(db: &'a mut Db, metrics: &'a Metrics) -> Result<Self, Failure> {
        db.begin()?;
        let plan = Plan::new(db.options().merge.is_some());
        Ok(Self { db, metrics, plan, opened: Vec::new() })
    }

    /// Adds a batch to the transaction, or records why not. Some of its bodies may be stored already.
    pub(super) fn add(&mut self, batch: Batch, stored: &[Option<StoredPieces>]) -> Result<(), Failure> {
        let known = self.known(batch.id)?;
        if self.plan.add(batch, known, stored.to_vec(), &*self.db) == Verdict::Settled {
            pieces::remove(&self.db.connection, stored)?;
        }
        // Later jobs of the transaction find them in the database.
        let plan = &self.plan;
        for opened in plan.opened().get(self.opened.len()..).unwrap_or_default() {
            let (uri, session) = (opened.uri.clone(), opened.session.clone());
            let mut insert = self.db.connection.prepare_cached("INSERT INTO channel (uri, session) VALUES (?1, ?2)")?;
            let id = insert.insert((&uri, &session))?;
            drop(insert);
            self.opened.push((id, uri.clone()));
            let channel = ChannelRecord { id, uri: uri.clone(), session, last: 0, trimmed: 0, snapshot: 0 };
            self.db.channels.insert(uri, channel);
        }
        Ok(())
    }

    /// Whether a batch would be accepted now. Rolls the transaction back.
    pub(super) fn would_take(self, batch: &Batch) -> Result<bool, Failure> {
        let takes = self.known(batch.id)?.is_none() && self.plan.would_accept(batch, &*self.db);
        self.db.connection.execute_batch("ROLLBACK")?;
        Ok(takes)
    }

    /// Writes the next piece of a batch that is not in this transaction.
    pub(super) fn write_piece(&self, staging: &mut pieces::StagedBatch) -> Result<(), Failure> {
        Ok(staging.write(&self.db.connection)?)
    }

    /// The seqs of a batch that is in the log.
    fn known(&self, id: BatchId) -> Result<Option<Vec<Seq>>, Failure> {
        if self.plan.has(id) || !self.db.ids.may_know(id) {
            return Ok(None);
        }
        let mut known = self.db.connection.prepare_cached("SELECT seqs FROM batch WHERE id = ?1")?;
        let seqs = known.query_row([id.to_bytes()], |row| Ok(Some(record::unpack(record::blob(row.get_ref(0)?)))));
        Ok(seqs.or_else(none_is(None))?)
    }

    /// Saves a snapshot and rows in the same transaction.
    pub(super) fn save(&mut self, save: Save) -> Result<Result<(), WriteError>, Failure> {
        let durable = self.db.last;
        let Some(channel) = self.db.channels.get_mut(&save.channel) else {
            return Ok(Err(WriteError::NotOpen(save.channel)));
        };
        if let Some((index, _)) = save.rows.iter().find(|(index, _)| *index > u64::from(u32::MAX)) {
            return Ok(Err(WriteError::RowIndex(*index)));
        }
        let (connection, id) = (&self.db.connection, channel.id);
        if let Some(snapshot) = save.snapshot {
            if channel.snapshot > snapshot.seq {
                return Ok(Err(WriteError::Older { saved: channel.snapshot }));
            }
            if snapshot.seq > durable {
                return Ok(Err(WriteError::Future { seq: snapshot.seq }));
            }
            let crc = record::snapshot_sum(id, snapshot.seq, &snapshot.version, &snapshot.body);
            let mut insert =
                connection.prepare_cached("INSERT OR REPLACE INTO snapshot VALUES (?1, ?2, ?3, ?4, ?5)")?;
            insert.execute((id, snapshot.seq, snapshot.version, crc, blob::blob_value(&snapshot.body)))?;
            blob::fill(connection, "snapshot", id, &snapshot.body)?;
            channel.snapshot = snapshot.seq;
        }
        if let Some(from) = save.cut_rows {
            let mut cut = connection.prepare_cached("DELETE FROM part WHERE id >= ?1 AND id < ?2")?;
            cut.execute((record::row_key(id, from), record::row_key(id + 1, 0)))?;
        }
        let mut insert = connection.prepare_cached("INSERT OR REPLACE INTO part VALUES (?1, ?2, ?3)")?;
        for (index, body) in save.rows {
            let key = record::row_key(id, index);
            insert.execute((key, record::row_sum(key, &body), blob::blob_value(&body)))?;
            blob::fill(connection, "part", key, &body)?;
        }
        Ok(Ok(()))
    }

    /// Writes all planned entries and makes them durable.
    pub(super) fn finish(self) -> Result<Committed, Failure> {
        self.db.at_ms = self.db.at_ms.max(now_ms());
        let merge = self.db.options().merge.clone();
        let Planned { entries, batches, answers, repeated, merged, .. } =
            self.plan.finish(self.db.next, merge.as_deref());
        self.metrics.repeated.fetch_add(repeated, Relaxed);
        self.metrics.merged.fetch_add(merged, Relaxed);
        let entries = write_entries(self.db, entries)?;
        let mut batches: Vec<BatchRecord> = batches
            .into_iter()
            .map(|(id, seqs)| {
                self.db.ids.add(id);
                BatchRecord { id, seqs: record::pack(&seqs) }
            })
            .collect();
        // In the order of the table, so that each one is inserted after the one before.
        batches.sort_unstable_by_key(|batch| batch.id);
        insert::all(&self.db.connection, &batches)?;
        self.db.commit(self.metrics)?;
        if !entries.is_empty() {
            self.db.note_acknowledged();
        }
        Ok(Committed { entries, opened: self.opened, answers })
    }
}

fn write_entries(db: &mut Db, planned: Vec<PlannedEntry<StoredPieces>>) -> Result<Vec<Entry>, Failure> {
    let at_ms = db.at_ms;
    let mut records = Vec::with_capacity(planned.len());
    for PlannedEntry { seq, channel, about, body, stored } in &planned {
        (db.last, db.next) = (*seq, *seq + 1);
        // Whether the channel is open was checked before.
        let Some(record) = db.channels.get_mut(channel) else { continue };
        record.last = *seq;
        let (channel, about) = (record.id, about.as_deref());
        records.push(EntryRecord { seq: *seq, channel, at_ms, about, body, stored: *stored });
    }
    insert::all(&db.connection, &records)?;
    drop(records);
    Ok(planned.into_iter().map(|entry| Entry::new(entry.seq, at_ms, entry.channel, entry.body)).collect())
}
