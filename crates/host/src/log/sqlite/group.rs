//! Jobs that share a transaction: made durable together, shown together, each answered on its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::{AppendError, Batch, Entry, Save, Seq, WriteError};
use super::Shared;
use super::commit::{Commit, Committed};
use super::db::{Db, Failure};
use super::queue::Job;

/// Makes jobs durable in one transaction, shows them, answers them.
pub(super) fn group(db: &mut Db, shared: &Shared, jobs: Vec<Job>) -> Result<(), Failure> {
    let (mut items, mut appends, mut saves) = (Vec::with_capacity(jobs.len()), Vec::new(), Vec::new());
    for job in jobs {
        match job {
            Job::Append { batch, room, reply } => {
                items.push(Item::Append(batch));
                appends.push((reply, room));
            }
            Job::Save { save, reply } => {
                items.push(Item::Save(save));
                saves.push(reply);
            }
            other => refuse(other, &Failure::Store("cannot share a transaction".into())),
        }
    }
    match transact(db, shared, items) {
        Ok((committed, saved)) => {
            publish(shared, committed.opened, committed.entries);
            for ((reply, _room), answer) in appends.into_iter().zip(committed.answers) {
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
    Append(Batch),
    Save(Save),
}

type Done = (Committed, Vec<Result<(), WriteError>>);

fn transact(db: &mut Db, shared: &Shared, items: Vec<Item>) -> Result<Done, Failure> {
    let mut commit = Commit::begin(db, &shared.metrics)?;
    let mut saved = Vec::new();
    shared.metrics.commit_batches.observe(items.len() as u64);
    for item in items {
        match item {
            Item::Append(batch) => commit.add(batch)?,
            Item::Save(save) => saved.push(commit.save(save)?),
        }
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
        Job::Append { reply, .. } => drop(reply.send(Err(failure.into()))),
        Job::Save { reply, .. } | Job::Compact { reply } => drop(reply.send(Err(failure.into()))),
        Job::Trim { reply, .. } | Job::Retain { reply, .. } | Job::Erase { reply, .. } => {
            drop(reply.send(Err(failure.into())));
        }
    }
}
