//! Trimming and erasing: removals that run in bounded steps between transactions.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::maintenance::now_ms;
use super::super::queue::{ExclusiveJob, ReplySender};
use super::super::{BatchId, RetentionPolicy, Seq, WriteError};
use super::db::{Db, Failure, none_is};
use super::pieces::BODY_LENGTH;
use super::{SqliteInner, record};

/// A step removes no more records than this, and no more bytes apart from its first record: appends wait for each step.
const STEP_RECORDS: u64 = 1_000;
const STEP_BYTES: u64 = 4 << 20;

/// A removal that is under way.
pub(super) struct Removal {
    steps: VecDeque<RemovalStep>,
    /// The session that is erased when all steps are done.
    session: Option<Arc<str>>,
    removed: u64,
    reply: Option<ReplySender<u64>>,
}

enum RemovalStep {
    Entries { channel: i64, upto: Seq },
    About { session: Arc<str>, upto: Seq },
    Saved { channel: i64 },
}

impl Removal {
    pub(super) fn refuse(self, failure: &Failure) {
        if let Some(reply) = self.reply {
            drop(reply.send(Err(failure.into())));
        }
    }
}

/// Does an exclusive job, or begins its removal.
pub(super) fn start(db: &mut Db, shared: &SqliteInner, job: ExclusiveJob) -> Result<Option<Removal>, Failure> {
    match job {
        ExclusiveJob::Trim { channel, before, reply } => answered(shared, reply, trim(db, shared, &channel, before)),
        ExclusiveJob::Retain { policy, reply } => answered(shared, reply, retain(db, shared, policy)),
        ExclusiveJob::Erase { session, reply } => answered(shared, reply, erase(db, shared, session)),
        ExclusiveJob::Compact { reply } => {
            // On a full disk, nothing is appended without free pages.
            let keep = if db.lacks_room_behind() { shared.options.reserve_bytes } else { 0 };
            let done = db.compact(keep, &shared.metrics);
            if let Err(failure) = &done {
                shared.announce(failure);
            }
            drop(reply.send(done.as_ref().map(drop).map_err(Into::into)));
            done.map(|()| None)
        }
    }
}

/// Attaches the caller to its removal, or answers why there is none.
fn answered(
    shared: &SqliteInner,
    reply: ReplySender<u64>,
    removal: Result<Result<Removal, WriteError>, Failure>,
) -> Result<Option<Removal>, Failure> {
    match removal {
        Ok(Ok(removal)) => Ok(Some(Removal { reply: Some(reply), ..removal })),
        Ok(Err(refused)) => {
            drop(reply.send(Err(refused)));
            Ok(None)
        }
        Err(failure) => {
            shared.announce(&failure);
            drop(reply.send(Err((&failure).into())));
            Err(failure)
        }
    }
}

fn trim(
    db: &mut Db,
    shared: &SqliteInner,
    uri: &Arc<str>,
    before: Seq,
) -> Result<Result<Removal, WriteError>, Failure> {
    let Some(channel) = db.channels.get(uri) else { return Ok(Err(WriteError::NotOpen(uri.clone()))) };
    if before > channel.snapshot + 1 {
        return Ok(Err(WriteError::NoSnapshot { saved: channel.snapshot }));
    }
    record_trims(db, shared, &[(uri.clone(), before)]).map(Ok)
}

/// Records trims in the store and for readers, before any entry is removed.
fn record_trims(db: &mut Db, shared: &SqliteInner, steps: &[(Arc<str>, Seq)]) -> Result<Removal, Failure> {
    let mut removal = Removal { steps: VecDeque::new(), session: None, removed: 0, reply: None };
    db.begin()?;
    for (uri, before) in steps {
        let Some(channel) = db.channels.get_mut(uri) else { continue };
        let sql = "SELECT max(seq) FROM entry WHERE channel = ?1 AND seq < ?2";
        let highest = db.connection.prepare_cached(sql)?.query_row((channel.id, before), |row| row.get(0))?;
        let Some(upto) = highest else { continue };
        channel.trimmed = channel.trimmed.max(upto);
        shared.recent_mut().window.trim(uri, upto);
        let sql = "UPDATE channel SET trimmed = max(trimmed, ?2), removed = max(removed, ?2) WHERE id = ?1";
        db.connection.prepare_cached(sql)?.execute((channel.id, upto))?;
        removal.steps.push_back(RemovalStep::Entries { channel: channel.id, upto });
    }
    store_next_seq(db)?;
    db.commit(&shared.metrics)?;
    Ok(removal)
}

/// Stores the next seq, so that no seq is used twice even if the last entries are removed.
fn store_next_seq(db: &Db) -> Result<(), Failure> {
    let sql = "UPDATE meta SET value = max(value, ?1) WHERE key = 'next'";
    db.connection.prepare_cached(sql)?.execute([db.last + 1])?;
    Ok(())
}

fn retain(db: &mut Db, shared: &SqliteInner, policy: RetentionPolicy) -> Result<Result<Removal, WriteError>, Failure> {
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut cut = match policy.max_age {
        Some(age) => first_since(db, now_ms().saturating_sub(ms(age)))?,
        None => 0,
    };
    if let Some(most) = policy.max_bytes {
        cut = cut.max(first_within(db, most)?);
    }
    let saved = db.channels.values().filter(|channel| channel.snapshot > 0);
    let steps: Vec<_> = saved.map(|channel| (channel.uri.clone(), cut.min(channel.snapshot + 1))).collect();
    let removal = record_trims(db, shared, &steps)?;
    db.begin()?;
    let old = BatchId::at(now_ms().saturating_sub(ms(policy.ids_for)));
    db.connection.execute("DELETE FROM batch WHERE id < ?1", [old.to_bytes()])?;
    db.commit(&shared.metrics)?;
    Ok(Ok(removal))
}

/// The first entry that is not older than a time, by binary search: times ascend with seqs.
fn first_since(db: &Db, at_ms: u64) -> Result<Seq, Failure> {
    let mut query = db.connection.prepare("SELECT at FROM entry WHERE seq >= ?1 ORDER BY seq LIMIT 1")?;
    let (mut low, mut high) = (0, db.next);
    while low < high {
        let middle = low + (high - low) / 2;
        let at: Option<u64> = query.query_row([middle], |row| row.get(0).map(Some)).or_else(none_is(None))?;
        match at {
            Some(at) if at < at_ms => low = middle + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The first entry that remains if the oldest are removed until the store uses no more than `most`.
fn first_within(db: &Db, most: u64) -> Result<Seq, Failure> {
    let mut excess = db.used_by_entries()?.saturating_sub(most);
    let mut query = db.connection.prepare(&format!(
        "SELECT entry.seq, {BODY_LENGTH} FROM entry JOIN snapshot ON snapshot.channel = entry.channel
         WHERE entry.seq <= snapshot.seq ORDER BY entry.seq"
    ))?;
    let mut rows = query.query([])?;
    let mut cut = 0;
    while excess > 0
        && let Some(row) = rows.next()?
    {
        excess = excess.saturating_sub(row.get(1)?);
        cut = row.get::<_, Seq>(0)? + 1;
    }
    Ok(cut)
}

fn erase(db: &mut Db, shared: &SqliteInner, session: Arc<str>) -> Result<Result<Removal, WriteError>, Failure> {
    let is_meant =
        |channel: &&super::db::ChannelRecord| channel.session.as_ref() == Some(&session) || channel.uri == session;
    let gone: Vec<_> = db.channels.values().filter(is_meant).map(|channel| (channel.id, channel.uri.clone())).collect();
    db.begin()?;
    for (id, _) in &gone {
        // The name can be used again at once. All channels of an erasure get its name as their session, so that an erasure that
        // a crash interrupted can be continued.
        let sql = "UPDATE channel SET erased = 1, uri = 'erased:' || id, session = ?2 WHERE id = ?1";
        db.connection.prepare_cached(sql)?.execute((id, &session))?;
    }
    db.connection.execute("INSERT OR REPLACE INTO erasing VALUES (?1, ?2)", (&session, db.last))?;
    store_next_seq(db)?;
    db.commit(&shared.metrics)?;
    let mut about = db.connection.prepare("SELECT seq FROM entry WHERE about = ?1")?;
    let seqs = about.query_map([&session], |row| row.get(0))?.collect::<rusqlite::Result<HashSet<Seq>>>()?;
    drop(about);
    let uris: Vec<Arc<str>> = gone.iter().map(|(_, uri)| uri.clone()).collect();
    let mut recent = shared.recent_mut();
    recent.window.erase(&uris, &seqs);
    recent.forget(&gone);
    drop(recent);
    gone.iter().for_each(|(_, uri)| drop(db.channels.remove(uri)));
    erasure(db, session, db.last).map(Ok)
}

/// The remaining steps of an erasure, from the tables.
fn erasure(db: &Db, session: Arc<str>, upto: Seq) -> Result<Removal, Failure> {
    let mut query = db.connection.prepare("SELECT id FROM channel WHERE session = ?1 AND erased")?;
    let ids = query.query_map([&session], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
    let last = Seq::from(u32::MAX) << 31;
    let both = |channel| [RemovalStep::Entries { channel, upto: last }, RemovalStep::Saved { channel }];
    let mut steps: VecDeque<RemovalStep> = ids.into_iter().flat_map(both).collect();
    steps.push_back(RemovalStep::About { session: session.clone(), upto });
    Ok(Removal { steps, session: Some(session), removed: 0, reply: None })
}

/// Erasures that a crash interrupted.
pub(super) fn unfinished(db: &Db) -> Result<VecDeque<Removal>, Failure> {
    let mut query = db.connection.prepare("SELECT session, upto FROM erasing")?;
    let all = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<Vec<_>>>()?;
    all.into_iter().map(|(session, upto)| erasure(db, session, upto)).collect()
}

/// Does one step of the first removal.
pub(super) fn step(db: &mut Db, shared: &SqliteInner, removals: &mut VecDeque<Removal>) -> Result<(), Failure> {
    let Some(removal) = removals.front_mut() else { return Ok(()) };
    if let Some(cut) = removal.steps.front() {
        db.begin()?;
        let removed = remove_some(db, cut)?;
        db.commit(&shared.metrics)?;
        match removed {
            Some(removed) => {
                removal.removed += removed;
                shared.metrics.removed.fetch_add(removed, Relaxed);
            }
            None => drop(removal.steps.pop_front()),
        }
        return Ok(());
    }
    if let Some(session) = &removal.session
        && !forget(db, shared, session)?
    {
        // A reader still uses the old state: try again at the next step.
        return Ok(());
    }
    if let Some(removal) = removals.pop_front()
        && let Some(reply) = removal.reply
    {
        drop(reply.send(Ok(removal.removed)));
    }
    Ok(())
}

/// Removes the last traces of a session: those in the write-ahead log, and its name.
fn forget(db: &Db, shared: &SqliteInner, session: &Arc<str>) -> Result<bool, Failure> {
    if !db.empty_wal(&shared.metrics)? {
        return Ok(false);
    }
    db.begin()?;
    db.connection.execute("DELETE FROM channel WHERE session = ?1 AND erased", [session])?;
    db.connection.execute("DELETE FROM erasing WHERE session = ?1", [session])?;
    db.commit(&shared.metrics)?;
    db.empty_wal(&shared.metrics)
}

/// Removes some records; returns how many entries were removed, or `None` when nothing is left.
fn remove_some(db: &mut Db, cut: &RemovalStep) -> Result<Option<u64>, Failure> {
    match cut {
        RemovalStep::Entries { channel, upto } => {
            let sql =
                format!("SELECT seq, {BODY_LENGTH} FROM entry WHERE channel = ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3");
            let mut query = db.connection.prepare_cached(&sql)?;
            let mut rows = query.query((channel, upto, STEP_RECORDS))?;
            let (mut bytes, mut end) = (0, None);
            while bytes < STEP_BYTES
                && let Some(row) = rows.next()?
            {
                end = Some(row.get::<_, Seq>(0)?);
                bytes += row.get::<_, u64>(1)?;
            }
            drop(rows);
            let Some(end) = end else { return Ok(None) };
            let mut delete = db.connection.prepare_cached("DELETE FROM entry WHERE channel = ?1 AND seq <= ?2")?;
            Ok(Some(delete.execute((channel, end))? as u64))
        }
        RemovalStep::About { session, upto } => {
            let sql = "SELECT seq, channel FROM entry WHERE about = ?1 AND seq <= ?2 LIMIT ?3";
            let mut query = db.connection.prepare_cached(sql)?;
            let found = query.query_map((session, upto, STEP_RECORDS), |row| Ok((row.get(0)?, row.get(1)?)))?;
            let found = found.collect::<rusqlite::Result<Vec<(Seq, i64)>>>()?;
            for (seq, channel) in &found {
                let sql = "UPDATE channel SET removed = max(removed, ?2) WHERE id = ?1";
                db.connection.prepare_cached(sql)?.execute((channel, seq))?;
                db.connection.prepare_cached("DELETE FROM entry WHERE seq = ?1")?.execute([seq])?;
            }
            Ok((!found.is_empty()).then_some(found.len() as u64))
        }
        RemovalStep::Saved { channel } => {
            db.connection.prepare_cached("DELETE FROM snapshot WHERE channel = ?1")?.execute([channel])?;
            let sql = "DELETE FROM part WHERE id IN (SELECT id FROM part WHERE id >= ?1 AND id < ?2 LIMIT 200)";
            let keys = (record::row_key(*channel, 0), record::row_key(channel + 1, 0));
            let gone = db.connection.prepare_cached(sql)?.execute(keys)?;
            Ok((gone > 0).then_some(0))
        }
    }
}
