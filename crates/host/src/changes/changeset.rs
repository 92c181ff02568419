//! One changeset: what was logged of it, and how it is refreshed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ahp_types::actions::{
    ChangesetContentChangedAction, ChangesetFileRemovedAction, ChangesetFileSetAction,
    ChangesetOperationStatusChangedAction, ChangesetStatusChangedAction, StateAction,
};
use ahp_types::state::{ChangesSummary, ChangesetFile, ChangesetOperationStatus, ChangesetStatus};
use bytes::Bytes;

use super::operations::{self, Operation};
use super::work_tree::{ChangedFile, WorkTree};
use super::{ChangesConfig, ChangesError};
use crate::action_sink::ActionSink;
use crate::lock::lock;

pub(super) struct ChangesetTracker {
    channel: String,
    tree: WorkTree,
    act: Arc<dyn ActionSink>,
    config: ChangesConfig,
    /// The files as they were last logged.
    files: Mutex<Arc<Vec<ChangedFile>>>,
    /// Locked by whoever computes or operates.
    reported: tokio::sync::Mutex<Reported>,
    /// Computations that have begun.
    rounds: AtomicU64,
    /// Computations that have found something new.
    revision: AtomicU64,
}

/// What was logged last.
#[derive(Debug, Clone, PartialEq)]
enum Reported {
    Nothing,
    Files,
    Failed(ChangesError),
}

/// With more changes than this at once, the whole list is logged again.
const MAX_SINGLE: usize = 64;

impl ChangesetTracker {
    pub(super) fn new(channel: String, tree: WorkTree, act: Arc<dyn ActionSink>, config: &ChangesConfig) -> Self {
        Self {
            channel,
            tree,
            act,
            config: config.clone(),
            files: Mutex::default(),
            reported: tokio::sync::Mutex::new(Reported::Nothing),
            rounds: AtomicU64::new(0),
            revision: AtomicU64::new(0),
        }
    }

    /// Callers that wait at the same time share one computation: the next one that begins.
    pub(super) async fn refresh(&self) -> Result<ChangesSummary, ChangesError> {
        let begun = self.rounds.load(Ordering::SeqCst);
        let mut reported = self.reported.lock().await;
        if self.rounds.load(Ordering::SeqCst) == begun {
            return self.catch_up(&mut reported).await;
        }
        match &*reported {
            Reported::Failed(error) => Err(error.clone()),
            _ => Ok(summary(&self.files())),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::SeqCst)
    }

    pub(super) async fn invoke(&self, target: Operation) -> Result<(), ChangesError> {
        let mut reported = self.reported.lock().await;
        // The client may have seen an old list: the target is looked up in the present one.
        self.catch_up(&mut reported).await?;
        let chosen = operations::choose(&target, &self.files())?;
        self.log(vec![status(target.operation(), ChangesetOperationStatus::Running, None)]).await?;
        let outcome = operations::run(&target, &self.tree, &self.config, &chosen).await;
        let after = match &outcome {
            Ok(()) => status(target.operation(), ChangesetOperationStatus::Idle, None),
            Err(error) => status(target.operation(), ChangesetOperationStatus::Error, Some(error)),
        };
        self.log(vec![after]).await?;
        // A failed operation may be partly done.
        let caught_up = self.catch_up(&mut reported).await;
        outcome.and(caught_up.map(drop))
    }

    /// Only contents that the changeset refers to are read.
    pub(super) async fn read(&self, name: &str) -> Result<Bytes, ChangesError> {
        let known = |found: &ChangedFile| found.change.before.as_ref().is_some_and(|(_, oid)| oid == name);
        if !self.files().iter().any(known) {
            return Err(ChangesError::NotFound(format!("{}/blob/{name}", self.channel)));
        }
        let git = self.tree.git(&self.config).await?;
        Ok(git.run_with(["cat-file", "blob", name], Vec::new(), self.config.max_blob_bytes).await?.into())
    }

    async fn catch_up(&self, reported: &mut Reported) -> Result<ChangesSummary, ChangesError> {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        let channel = self.channel.clone();
        let found = self.tree.changes(&self.config, move |oid| format!("{channel}/blob/{oid}")).await;
        let actions = match &found {
            Ok(found) => revision(reported, &self.files(), found),
            Err(error) if *reported == Reported::Failed(error.clone()) => Vec::new(),
            Err(error) => {
                let status = ChangesetStatusChangedAction { status: ChangesetStatus::Error, error: Some(error.info()) };
                vec![StateAction::ChangesetStatusChanged(status)]
            }
        };
        if !actions.is_empty() {
            self.revision.fetch_add(1, Ordering::SeqCst);
        }
        self.log(actions).await?;
        match found {
            Ok(found) => {
                *reported = Reported::Files;
                let found = Arc::new(found);
                *lock(&self.files) = found.clone();
                Ok(summary(&found))
            }
            Err(error) => {
                *reported = Reported::Failed(error.clone());
                Err(error)
            }
        }
    }

    async fn log(&self, actions: Vec<StateAction>) -> Result<(), ChangesError> {
        if actions.is_empty() {
            return Ok(());
        }
        let actions = actions.into_iter().map(|action| (self.channel.clone(), action)).collect();
        Ok(self.act.append_actions(actions).await.map(drop)?)
    }

    fn files(&self) -> Arc<Vec<ChangedFile>> {
        lock(&self.files).clone()
    }
}

/// The actions that lead from the old list to the new one.
fn revision(reported: &Reported, old: &[ChangedFile], new: &[ChangedFile]) -> Vec<StateAction> {
    let ready = ChangesetStatusChangedAction { status: ChangesetStatus::Ready, error: None };
    let ready = (*reported != Reported::Files).then_some(StateAction::ChangesetStatusChanged(ready));
    let by_id = |files| -> HashMap<&str, &ChangesetFile> { ids(files).collect() };
    let (before, after) = (by_id(old), by_id(new));
    let gone = ids(old).filter(|(id, _)| !after.contains_key(id));
    let changeset = ids(new).filter(|(id, file)| before.get(id) != Some(file));
    let singles = gone.clone().count() + changeset.clone().count();
    if *reported == Reported::Nothing || singles > MAX_SINGLE {
        let files = new.iter().map(|found| found.file.clone()).collect();
        let content = ChangesetContentChangedAction { files, operations: None };
        return [StateAction::ChangesetContentChanged(Box::new(content))].into_iter().chain(ready).collect();
    }
    let gone = gone.map(|(id, _)| ChangesetFileRemovedAction { file_id: id.to_owned() });
    let changeset = changeset.map(|(_, file)| ChangesetFileSetAction { file: file.clone() });
    let gone = gone.map(StateAction::ChangesetFileRemoved);
    gone.chain(changeset.map(StateAction::ChangesetFileSet)).chain(ready).collect()
}

fn ids(files: &[ChangedFile]) -> impl Iterator<Item = (&str, &ChangesetFile)> + Clone {
    files.iter().map(|found| (found.file.id.as_str(), &found.file))
}

fn status(operation: &str, status: ChangesetOperationStatus, error: Option<&ChangesError>) -> StateAction {
    StateAction::ChangesetOperationStatusChanged(ChangesetOperationStatusChangedAction {
        operation_id: operation.to_owned(),
        status,
        error: error.map(ChangesError::info),
    })
}

fn summary(files: &[ChangedFile]) -> ChangesSummary {
    let diffs = || files.iter().filter_map(|found| found.file.edit.diff.as_ref());
    ChangesSummary {
        additions: Some(diffs().filter_map(|diff| diff.added).sum()),
        deletions: Some(diffs().filter_map(|diff| diff.removed).sum()),
        files: i64::try_from(files.len()).ok(),
    }
}
