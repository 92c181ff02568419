//! Jobs that share a transaction: made durable together, shown together, each answered on its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::{AppendError, Batch, Entry, Save, Seq, WriteError};
use super::Shared;
use super::commit::{Commit, Committed};
use super::db::{Db, Failure};
use super::pieces::{
    self, {Staging, Stored},
};
use super::queue::{Alone, Append, Job};

/// What a transaction has beside its jobs, of a batch that is written in pieces.
pub(super) enum Large<'a> {
    None,
    /// The next piece.
    Piece(&'a mut Staging),
    /// The batch itself, whose long bodies are stored.
    Last(Append, Vec<Option<Stored>>),
}

/// Makes jobs durable in one transaction, shows them, answers them.
pub(super) fn group(db: &mut Db, shared: &Shared, jobs: Vec<Job>, large: Large<'_>) -> Result<(), Failure> {
    let (mut items, mut appends, mut saves) = (Vec::with_capacity(jobs.len() + 1), Vec::new(), Vec::new());
    for job in jobs {
        match job {
            Job::Append(Append { batch, admitted, reply }) => {
                items.push(Item::Append(batch, Vec::new()));
                appends.push((reply, admitted));
            }
            Job::Save { save, reply } => {
                items.push(Item::Save(save));
                saves.push(reply);
            }
        }
    }
    let piece = match large {
        Large::None => None,
        Large::Piece(staging) => Some(staging),
        Large::Last(Append { batch, admitted, reply }, stored) => {
            items.push(Item::Append(batch, stored));
            appends.push((reply, admitted));
            None
        }
    };
    match transact(db, shared, items, piece) {
        Ok((committed, saved)) => {
            publish(shared, committed.opened, committed.entries);
            for ((reply, _admitted), answer) in appends.into_iter().zip(committed.answers) {
                count(shared, &answer);
                drop(reply.send(answer));
            }
            saves.into_iter().zip(saved).for_each(|(reply, answer)| drop(reply.send(answer)));
            Ok(())
        }
        Err(failure) => {
            shared.announce(&failure);
            appends.into_iter().for_each(|(reply, _)| drop(reply.send(Err((&failure).into()))));
            saves.into_iter().for_each(|reply| drop(reply.send(Err((&failure).into()))));
            Err(failure)
        }
    }
}

enum Item {
    Append(Batch, Vec<Option<Stored>>),
    Save(Save),
}

type Done = (Committed, Vec<Result<(), WriteError>>);

fn transact(db: &mut Db, shared: &Shared, items: Vec<Item>, piece: Option<&mut Staging>) -> Result<Done, Failure> {
    let mut commit = Commit::begin(db, &shared.metrics)?;
    let mut saved = Vec::new();
    shared.metrics.commit_batches.observe(items.len() as u64);
    for item in items {
        match item {
            Item::Append(batch, stored) => commit.add(batch, &stored)?,
            Item::Save(save) => saved.push(commit.save(save)?),
        }
    }
    if let Some(staging) = piece {
        commit.write_piece(staging)?;
    }
    Ok((commit.finish()?, saved))
}

fn publish(shared: &Shared, opened: Vec<(i64, Arc<str>)>, entries: Vec<Entry>) {
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
    recent.push(entries);
    metrics.recent_bytes.store(recent.bytes() as u64, Relaxed);
    drop(recent);
    shared.last.send_replace(last);
}

fn count(shared: &Shared, answer: &Result<Vec<Seq>, AppendError>) {
    match answer {
        Ok(_) => shared.metrics.batches.fetch_add(1, Relaxed),
        Err(AppendError::Conflict { .. }) => shared.metrics.conflicts.fetch_add(1, Relaxed),
        Err(_) => 0,
    };
}

/// Answers a job that is not done.
pub(super) fn refuse(job: Job, failure: &Failure) {
    match job {
        Job::Append(Append { reply, .. }) => drop(reply.send(Err(failure.into()))),
        Job::Save { reply, .. } => drop(reply.send(Err(failure.into()))),
    }
}

/// Answers one that shares no transaction.
pub(super) fn refuse_alone(job: Alone, failure: &Failure) {
    match job {
        Alone::Compact { reply } => drop(reply.send(Err(failure.into()))),
        Alone::Trim { reply, .. } | Alone::Retain { reply, .. } | Alone::Erase { reply, .. } => {
            drop(reply.send(Err(failure.into())));
        }
    }
}
