//! Scans a session: opens and refreshes its changesets, and finds its customizations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{SessionChangesetsChangedAction, SessionCustomizationsChangedAction, StateAction};
use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{ChangesSummary, Changeset, Customization, SessionState, SnapshotState};
use breakbulk_proto::Message;
use tracing::warn;

use super::scan_queue::{ScanError, ScanScope};
use super::{Workspace, json};
use crate::changes::{ChangesError, Opened};
use crate::customize::{find, keep_enablement};
use crate::endpoint::RawParams;
use crate::error::MethodError;
use crate::host::log_writer::{Transaction, append_error};
use crate::state::StateError;
use crate::state::entry::CatalogueNotification;

/// The prefix of the URIs of sessions.
pub(in crate::host) const SESSION_SCHEME: &str = "ahp-session:";

/// The part of a changeset's URI after that of its session.
const CHANGES: &str = "/changes/";

/// The session in the URI of a changeset, or of something in it.
pub(super) fn of_changeset(uri: &str) -> Option<&str> {
    uri.starts_with(SESSION_SCHEME).then(|| uri.split_once(CHANGES).map(|(session, _)| session)).flatten()
}

/// What the last scan of a session found.
#[derive(Default)]
pub(super) struct ScanResult {
    /// The working directories at that time.
    pub(super) dirs: Option<Vec<PathBuf>>,
    /// The open changesets.
    changesets: Vec<String>,
    /// How often their content has changed, as of the last search for customizations.
    news: u64,
}

impl Workspace {
    /// `invokeChangesetOperation`.
    pub(super) async fn invoke(self: &Arc<Self>, params: &RawParams) -> Result<Message, MethodError> {
        let params: ahp_types::commands::InvokeChangesetOperationParams = params.parse()?;
        if let Some(session) = of_changeset(&params.channel) {
            self.ensure_scanned(session).await?;
        }
        json(&self.changes.invoke(params).await?)
    }

    /// Scans a session in this scope. The first scan always includes everything.
    pub(super) async fn scan(&self, session: &str, scope: ScanScope, result: &mut ScanResult) -> Result<(), ScanError> {
        let named = self.session(session, |session| session.working_directories.clone()).await?;
        let dirs = self.directories(named.ok_or(ScanError::NoSession)?.unwrap_or_default()).await;
        let has_moved = result.dirs.as_ref() != Some(&dirs);
        let searches_all = has_moved || scope == ScanScope::Everything;
        if searches_all {
            self.search(session, &dirs).await?;
        }
        if has_moved {
            self.open_changesets(session, &dirs, result).await?;
            result.dirs = Some(dirs.clone());
        }
        self.refresh(session, result).await?;
        let news = result.changesets.iter().map(|channel| self.changes.revision(channel)).sum();
        // Without a changeset nothing tells whether files have changed.
        let is_changed = result.news != news || result.changesets.is_empty();
        if scope == ScanScope::ChangesAndEffects && is_changed && !searches_all {
            self.search(session, &dirs).await?;
        }
        // A scan of the changes alone did not search, so the next larger one still has to.
        if scope >= ScanScope::ChangesAndEffects || searches_all {
            result.news = news;
        }
        Ok(())
    }

    pub(super) fn close_changesets(&self, result: &mut ScanResult) {
        result.changesets.drain(..).for_each(|channel| self.changes.close(&channel));
        result.dirs = None;
    }

    /// Searches for customizations, and logs them if they differ from those of the session.
    async fn search(&self, session: &str, dirs: &[PathBuf]) -> Result<(), ScanError> {
        let found = find(dirs.to_vec(), self.customize.clone()).await;
        self.change(session, |before| {
            let mut new = found.clone();
            let before = before.customizations.as_deref().unwrap_or_default();
            // Customizations that clients have brought stay.
            new.extend(before.iter().filter(|customization| is_brought(customization)).cloned());
            keep_enablement(&mut new, before);
            let changed = SessionCustomizationsChangedAction { customizations: new };
            (changed.customizations != before).then_some(StateAction::SessionCustomizationsChanged(changed))
        })
        .await
    }

    /// Opens the changesets of these directories in place of those that were open.
    async fn open_changesets(&self, session: &str, dirs: &[PathBuf], result: &mut ScanResult) -> Result<(), ScanError> {
        self.close_changesets(result);
        let mut opened = Vec::new();
        for (nth, dir) in dirs.iter().enumerate() {
            opened.extend(self.open_changeset(session, nth, dir).await);
        }
        for Opened { channel, state, .. } in &opened {
            result.changesets.push(channel.clone());
            let state = SnapshotState::Changeset(Box::new(state.clone()));
            match self.log_writer.read(channel, |_, _| ()).await {
                Err(StateError::NotFound) => {
                    self.transact(session, |transaction, _| Some(transaction.open(channel, Some(session), &state)))
                        .await?;
                }
                other => other?,
            }
        }
        self.transact(session, |transaction, before| {
            let before = before.changesets.as_deref().unwrap_or_default();
            let prefix = format!("{session}{CHANGES}uncommitted");
            let is_ours = |entry: &&Changeset| entry.uri_template.starts_with(&prefix);
            let ours = opened.iter().map(|opened| &opened.entry);
            let new: Vec<Changeset> = ours.chain(before.iter().filter(|entry| !is_ours(entry))).cloned().collect();
            if new == before {
                return None;
            }
            // The changesets of directories that the session does not have any more are closed.
            let is_open = |entry: &&Changeset| opened.iter().any(|opened| opened.channel == entry.uri_template);
            let gone = before.iter().filter(|entry| is_ours(entry) && !is_open(entry));
            let transaction = gone.fold(transaction, |transaction, entry| transaction.close(&entry.uri_template));
            let changed = SessionChangesetsChangedAction { changesets: Some(new) };
            Some(transaction.action(session, &StateAction::SessionChangesetsChanged(changed)))
        })
        .await
    }

    async fn open_changeset(&self, session: &str, nth: usize, dir: &Path) -> Option<Opened> {
        let opened = self.changes.open(session, nth, dir).await;
        opened.unwrap_or_else(|error| {
            warn!(%error, "a directory has no changeset");
            None
        })
    }

    /// Refreshes the changesets, and logs their summary in the catalogue if it has changed.
    async fn refresh(&self, session: &str, result: &ScanResult) -> Result<(), ScanError> {
        let mut sum = ChangesSummary::default();
        for channel in &result.changesets {
            match self.changes.refresh(channel).await {
                Ok(found) => sum = added(sum, found),
                Err(ChangesError::Log(error)) => return Err(crate::host::log_writer::append_error(error).into()),
                // The state of the changeset shows the error.
                Err(_) => {}
            }
        }
        let summary = self.log_writer.state().session(session).await?;
        if result.changesets.is_empty() || summary.is_none_or(|summary| summary.changes.as_ref() == Some(&sum)) {
            return Ok(());
        }
        let (channel, changes) = (ROOT_RESOURCE_URI.to_owned(), Some(sum));
        let changes = PartialSessionSummary { changes, ..PartialSessionSummary::default() };
        let changed = SessionSummaryChangedParams { channel, session: session.to_owned(), changes };
        let notice = CatalogueNotification::Changed(Box::new(changed));
        self.transact(session, |transaction, _| Some(transaction.notice(session, &notice))).await
    }

    /// Logs an action on a session, made from the state in which it is logged.
    async fn change(
        &self,
        session: &str,
        make: impl Fn(&SessionState) -> Option<StateAction>,
    ) -> Result<(), ScanError> {
        self.transact(session, |transaction, state| Some(transaction.action(session, &make(state)?))).await
    }

    /// Logs a transaction for a session, unless the session was disposed of meanwhile.
    async fn transact(
        &self,
        session: &str,
        make: impl Fn(Transaction, &SessionState) -> Option<Transaction>,
    ) -> Result<(), ScanError> {
        let make = || async {
            let transaction = self.log_writer.session(session, |state, seq| {
                let transaction = || Transaction::new().expect(session, seq);
                make(transaction(), state).unwrap_or_else(transaction)
            });
            transaction.await?.ok_or(ScanError::NoSession)
        };
        self.log_writer.transact(make, |error| append_error(error).into()).await.map(drop)
    }
}

fn is_brought(customization: &Customization) -> bool {
    match customization {
        Customization::Plugin(plugin) => plugin.client_id.is_some(),
        Customization::Directory(directory) => directory.client_id.is_some(),
        Customization::McpServer(_) | Customization::Unknown(_) => false,
    }
}

fn added(one: ChangesSummary, other: ChangesSummary) -> ChangesSummary {
    let add = |one: Option<i64>, other: Option<i64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    ChangesSummary {
        additions: add(one.additions, other.additions),
        deletions: add(one.deletions, other.deletions),
        files: add(one.files, other.files),
    }
}
