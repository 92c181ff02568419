//! Group commit: jobs that share a transaction become durable and visible together, and each gets its own answer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::queue::{Append, ExclusiveJob, SharedJob};
use super::super::{AppendError, Batch, Entry, Save, Seq, WriteError, admission};
use super::SqliteInner;
use super::commit::{Commit, Committed};
use super::db::{Db, Failure};
use super::pieces::{
    self, {StagedBatch, StoredPieces},
};

/// What a transaction contains of a batch that is written in pieces.
pub(super) enum Large<'a> {
    None,
    /// The next piece.
    Piece(&'a mut StagedBatch),
    /// The batch itself. Its long bodies are stored already.
    Last(Append, Vec<Option<StoredPieces>>),
}

/// Writes jobs in one transaction, makes their entries visible, and answers the callers.
pub(super) fn group_commit(
    db: &mut Db,
    shared: &SqliteInner,
    jobs: Vec<SharedJob>,
    large: Large<'_>,
) -> Result<(), Failure> {
    let (mut items, mut appends, mut saves) = (Vec::with_capacity(jobs.len() + 1), Vec::new(), Vec::new());
    for job in jobs {
        match job {
            SharedJob::Append(Append { batch, stored: (), admitted, reply, syncs_before }) => {
                let small_since = (admission::cost(&batch) <= admission::SMALL).then_some(syncs_before);
                items.push(GroupItem::Append(batch, Vec::new()));
                appends.push((reply, admitted, small_since));
            }
            SharedJob::Save { save, cost: _, reply } => {
                items.push(GroupItem::Save(save));
                saves.push(reply);
            }
        }
    }
    let piece = match large {
        Large::None => None,
        Large::Piece(staging) => Some(staging),
        Large::Last(Append { batch, stored: (), admitted, reply, syncs_before: _ }, stored) => {
            items.push(GroupItem::Append(batch, stored));
            appends.push((reply, admitted, None));
            None
        }
    };
    match transact(db, shared, items, piece) {
        Ok((committed, saved)) => {
            publish(shared, committed.opened, committed.entries);
            let syncs = shared.metrics.syncs.load(Relaxed);
            for ((reply, _admitted, small_since), answer) in appends.into_iter().zip(committed.answers) {
                count(shared, &answer);
                if let Some(before) = small_since {
                    shared.metrics.small_append_syncs.observe(syncs.saturating_sub(before));
                }
                drop(reply.send(answer));
            }
            saves.into_iter().zip(saved).for_each(|(reply, answer)| drop(reply.send(answer)));
            Ok(())
        }
        Err(failure) => {
            shared.announce(&failure);
            appends.into_iter().for_each(|(reply, ..)| drop(reply.send(Err((&failure).into()))));
            saves.into_iter().for_each(|reply| drop(reply.send(Err((&failure).into()))));
            Err(failure)
        }
    }
}

enum GroupItem {
    Append(Batch, Vec<Option<StoredPieces>>),
    Save(Save),
}

type GroupResult = (Committed, Vec<Result<(), WriteError>>);

fn transact(
    db: &mut Db,
    shared: &SqliteInner,
    items: Vec<GroupItem>,
    piece: Option<&mut StagedBatch>,
) -> Result<GroupResult, Failure> {
    let mut commit = Commit::begin(db, &shared.metrics)?;
    let mut saved = Vec::new();
    shared.metrics.commit_batches.observe(items.len() as u64);
    for item in items {
        match item {
            GroupItem::Append(batch, stored) => commit.add(batch, &stored)?,
            GroupItem::Save(save) => saved.push(commit.save(save)?),
        }
    }
    if let Some(staging) = piece {
        commit.write_piece(staging)?;
    }
    Ok((commit.finish()?, saved))
}

fn publish(shared: &SqliteInner, opened: Vec<(i64, Arc<str>)>, entries: Vec<Entry>) {
    let Some(last) = entries.last().map(|entry| entry.seq) else {
        let mut recent = shared.recent_mut();
        opened.into_iter().for_each(|(id, uri)| recent.name(id, uri));
        return;
    };
    let metrics = &shared.metrics;
    metrics.entries.fetch_add(entries.len() as u64, Relaxed);
    metrics.bytes.fetch_add(entries.iter().map(|entry| entry.body.len() as u64).sum(), Relaxed);
    let entries = entries.into_iter().map(|entry| match entry.body.len() {
        0..=pieces::WHOLE => entry,
        _ => Entry { body: shared.long_bodies.share(entry.seq, entry.body), ..entry },
    });
    let mut recent = shared.recent_mut();
    opened.into_iter().for_each(|(id, uri)| recent.name(id, uri));
    recent.window.push(entries);
    metrics.recent_bytes.store(recent.window.bytes() as u64, Relaxed);
    drop(recent);
    shared.last.send_replace(last);
}

fn count(shared: &SqliteInner, answer: &Result<Vec<Seq>, AppendError>) {
    match answer {
        Ok(_) => shared.metrics.batches.fetch_add(1, Relaxed),
        Err(AppendError::Conflict { .. }) => shared.metrics.conflicts.fetch_add(1, Relaxed),
        Err(_) => 0,
    };
}

/// Answers a job with a failure.
pub(super) fn refuse(job: SharedJob, failure: &Failure) {
    match job {
        SharedJob::Append(Append { reply, .. }) => drop(reply.send(Err(failure.into()))),
        SharedJob::Save { reply, .. } => drop(reply.send(Err(failure.into()))),
    }
}

/// Answers an exclusive job with a failure.
pub(super) fn refuse_exclusive(job: ExclusiveJob, failure: &Failure) {
    match job {
        ExclusiveJob::Compact { reply } => drop(reply.send(Err(failure.into()))),
        ExclusiveJob::Trim { reply, .. } | ExclusiveJob::Retain { reply, .. } | ExclusiveJob::Erase { reply, .. } => {
            drop(reply.send(Err(failure.into())));
        }
    }
}
