//! What a session has in the workspace: its changesets and its customizations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{SessionChangesetsChangedAction, SessionCustomizationsChangedAction, StateAction};
use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{ChangesSummary, Changeset, Customization, SessionState, SnapshotState};
use breakbulk_proto::Message;
use tracing::warn;

use super::looks::{LookError, Wish};
use super::{Workshop, json};
use crate::changes::{ChangesError, Opened};
use crate::customize::{find, keep_enablement};
use crate::endpoint::RawParams;
use crate::error::MethodError;
use crate::host::desk::{Sheet, not_kept};
use crate::state::StateError;
use crate::state::entry::CatalogueNotification;

/// How the URIs of sessions begin.
pub(in crate::host) const SCHEME: &str = "ahp-session:";

/// What stands in a changeset's URI between that of its session and the rest.
const CHANGES: &str = "/changes/";

/// The session that a changeset's URI, or one of something in it, names.
pub(super) fn of_changeset(uri: &str) -> Option<&str> {
    uri.starts_with(SCHEME).then(|| uri.split_once(CHANGES).map(|(session, _)| session)).flatten()
}

/// What is known of a session since it was looked at.
#[derive(Default)]
pub(super) struct Known {
    /// The directories as they were then.
    pub(super) dirs: Option<Vec<PathBuf>>,
    /// The changesets that are open.
    changesets: Vec<String>,
    /// How often something new was found in them.
    news: u64,
}

impl Workshop {
    /// `invokeChangesetOperation`.
    pub(super) async fn invoke(self: &Arc<Self>, params: &RawParams) -> Result<Message, MethodError> {
        let params: ahp_types::commands::InvokeChangesetOperationParams = params.parse()?;
        if let Some(session) = of_changeset(&params.channel) {
            self.looked(session).await?;
        }
        json(&self.changes.invoke(params).await?)
    }

    /// Looks at a session, as far as is wished. What was never looked at is looked at as a whole.
    pub(super) async fn look(&self, session: &str, wish: Wish, known: &mut Known) -> Result<(), LookError> {
        let named = self.session(session, |session| session.working_directories.clone()).await?;
        let dirs = self.directories(named.ok_or(LookError::NoSession)?.unwrap_or_default()).await;
        let is_moved = known.dirs.as_ref() != Some(&dirs);
        let is_searched = is_moved || wish == Wish::Everything;
        if is_searched {
            self.search(session, &dirs).await?;
        }
        if is_moved {
            self.open_changesets(session, &dirs, known).await?;
            known.dirs = Some(dirs.clone());
        }
        self.refresh(session, known).await?;
        let news = known.changesets.iter().map(|channel| self.changes.revision(channel)).sum();
        // Where there is no changeset, nothing says whether there is something new.
        let is_new = known.news != news || known.changesets.is_empty();
        if wish == Wish::Work && is_new && !is_searched {
            self.search(session, &dirs).await?;
        }
        // Who looks at the changes alone leaves the news to who looks at more.
        if wish >= Wish::Work || is_searched {
            known.news = news;
        }
        Ok(())
    }

    pub(super) fn close_changesets(&self, known: &mut Known) {
        known.changesets.drain(..).for_each(|channel| self.changes.close(&channel));
        known.dirs = None;
    }

    /// Looks for customizations, and logs them if they are not those that the session has.
    async fn search(&self, session: &str, dirs: &[PathBuf]) -> Result<(), LookError> {
        let found = find(dirs.to_vec(), self.customize.clone()).await;
        self.change(session, |before| {
            let mut new = found.clone();
            let before = before.customizations.as_deref().unwrap_or_default();
            // What clients have brought is not ours to take away.
            new.extend(before.iter().filter(|customization| is_brought(customization)).cloned());
            keep_enablement(&mut new, before);
            let changed = SessionCustomizationsChangedAction { customizations: new };
            (changed.customizations != before).then_some(StateAction::SessionCustomizationsChanged(changed))
        })
        .await
    }

    /// Opens the changesets of these directories in place of those that were open.
    async fn open_changesets(&self, session: &str, dirs: &[PathBuf], known: &mut Known) -> Result<(), LookError> {
        self.close_changesets(known);
        let mut opened = Vec::new();
        for (nth, dir) in dirs.iter().enumerate() {
            opened.extend(self.open_changeset(session, nth, dir).await);
        }
        for Opened { channel, state, .. } in &opened {
            known.changesets.push(channel.clone());
            let state = SnapshotState::Changeset(Box::new(state.clone()));
            match self.desk.look(channel, |_, _| ()).await {
                Err(StateError::NotFound) => {
                    self.decide(session, |sheet, _| Some(sheet.open(channel, Some(session), &state))).await?;
                }
                other => other?,
            }
        }
        self.decide(session, |sheet, before| {
            let before = before.changesets.as_deref().unwrap_or_default();
            let prefix = format!("{session}{CHANGES}uncommitted");
            let is_ours = |entry: &&Changeset| entry.uri_template.starts_with(&prefix);
            let ours = opened.iter().map(|opened| &opened.entry);
            let new: Vec<Changeset> = ours.chain(before.iter().filter(|entry| !is_ours(entry))).cloned().collect();
            if new == before {
                return None;
            }
            // Those of directories that the session does not have any more are no more either.
            let is_open = |entry: &&Changeset| opened.iter().any(|opened| opened.channel == entry.uri_template);
            let gone = before.iter().filter(|entry| is_ours(entry) && !is_open(entry));
            let sheet = gone.fold(sheet, |sheet, entry| sheet.close(&entry.uri_template));
            let changed = SessionChangesetsChangedAction { changesets: Some(new) };
            Some(sheet.action(session, &StateAction::SessionChangesetsChanged(changed)))
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

    /// Looks at the changes, and tells the catalogue how many there are.
    async fn refresh(&self, session: &str, known: &Known) -> Result<(), LookError> {
        let mut sum = ChangesSummary::default();
        for channel in &known.changesets {
            match self.changes.refresh(channel).await {
                Ok(found) => sum = added(sum, found),
                Err(ChangesError::Log(error)) => return Err(crate::host::desk::not_kept(error).into()),
                // The changeset says so itself.
                Err(_) => {}
            }
        }
        let summary = self.desk.state().session(session).await?;
        if known.changesets.is_empty() || summary.is_none_or(|summary| summary.changes.as_ref() == Some(&sum)) {
            return Ok(());
        }
        let (channel, changes) = (ROOT_RESOURCE_URI.to_owned(), Some(sum));
        let changes = PartialSessionSummary { changes, ..PartialSessionSummary::default() };
        let changed = SessionSummaryChangedParams { channel, session: session.to_owned(), changes };
        let notice = CatalogueNotification::Changed(Box::new(changed));
        self.decide(session, |sheet, _| Some(sheet.notice(session, &notice))).await
    }

    /// Logs a change of a session, made of what it is when the change is logged.
    async fn change(
        &self,
        session: &str,
        make: impl Fn(&SessionState) -> Option<StateAction>,
    ) -> Result<(), LookError> {
        self.decide(session, |sheet, state| Some(sheet.action(session, &make(state)?))).await
    }

    /// Logs something for a session that is still there: never for one that was disposed of meanwhile.
    async fn decide(
        &self,
        session: &str,
        make: impl Fn(Sheet, &SessionState) -> Option<Sheet>,
    ) -> Result<(), LookError> {
        let make = || async {
            let looked = self.desk.session(session, |state, seq| {
                let sheet = || Sheet::new().expect(session, seq);
                make(sheet(), state).unwrap_or_else(sheet)
            });
            looked.await?.ok_or(LookError::NoSession)
        };
        self.desk.decide(make, |error| not_kept(error).into()).await.map(drop)
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
