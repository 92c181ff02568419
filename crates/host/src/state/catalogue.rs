//! The catalogue of sessions, from which `listSessions` is answered.

use std::collections::BTreeMap;

use ahp_types::commands::{ListSessionsParams, ListSessionsResult};
use ahp_types::notifications::PartialSessionSummary;
use ahp_types::state::SessionSummary;

use super::StateError;
use super::entry::CatalogueNotification;

/// The sessions, by URI.
#[derive(Debug, Default)]
pub(super) struct Catalogue(BTreeMap<String, SessionSummary>);

impl Catalogue {
    pub(super) fn new(sessions: Vec<SessionSummary>) -> Self {
        Self(sessions.into_iter().map(|summary| (summary.resource.clone(), summary)).collect())
    }

    pub(super) fn all(&self) -> Vec<&SessionSummary> {
        self.0.values().collect()
    }

    pub(super) fn get(&self, session: &str) -> Option<&SessionSummary> {
        self.0.get(session)
    }

    pub(super) fn apply(&mut self, notification: CatalogueNotification) {
        match notification {
            CatalogueNotification::Added(params) => {
                drop(self.0.insert(params.summary.resource.clone(), params.summary))
            }
            CatalogueNotification::Removed(params) => drop(self.0.remove(&params.session)),
            CatalogueNotification::Changed(params) => {
                if let Some(summary) = self.0.get_mut(&params.session) {
                    change(summary, params.changes);
                }
            }
        }
    }

    /// A page, the most recently modified session first. A cursor is the position after the last session of a page, so that
    /// pages neither repeat nor skip a session that has not changed meanwhile.
    pub(super) fn page(&self, params: &ListSessionsParams, most: usize) -> Result<ListSessionsResult, StateError> {
        let after = params.cursor.as_deref().map(Cursor::read).transpose()?;
        let mut found: Vec<Cursor<'_>> = self.0.values().map(Cursor::of).collect();
        found.retain(|cursor| after.is_none_or(|after| after < *cursor));
        found.sort_unstable();
        let limit = match params.limit {
            Some(..=0) => return Err(StateError::Limit),
            Some(limit) => usize::try_from(limit).unwrap_or(most).min(most),
            None => most,
        };
        let page = found.get(..limit).unwrap_or(&found);
        let next_cursor = page.last().filter(|_| page.len() < found.len()).map(Cursor::write);
        let items = page.iter().filter_map(|cursor| self.0.get(cursor.session)).cloned().collect();
        Ok(ListSessionsResult { next_cursor, items })
    }
}

/// The position of a session in the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor<'a> {
    modified: std::cmp::Reverse<&'a str>,
    session: &'a str,
}

impl<'a> Cursor<'a> {
    fn of(summary: &'a SessionSummary) -> Self {
        Self { modified: std::cmp::Reverse(&summary.modified_at), session: &summary.resource }
    }

    fn read(text: &'a str) -> Result<Self, StateError> {
        let parts = text.strip_prefix("after ").and_then(|text| text.split_once(' '));
        let (modified, session) = parts.ok_or(StateError::Cursor)?;
        Ok(Self { modified: std::cmp::Reverse(modified), session })
    }

    fn write(&self) -> String {
        format!("after {} {}", self.modified.0, self.session)
    }
}

/// Sets the given fields and leaves the others. Provider, URI and creation time never change.
fn change(summary: &mut SessionSummary, changes: PartialSessionSummary) {
    let PartialSessionSummary {
        title,
        status,
        activity,
        origin,
        project,
        working_directories,
        annotations,
        modified_at,
        changes,
        meta,
        chats,
        default_chat,
        provider: _,
        resource: _,
        created_at: _,
    } = changes;
    set(&mut summary.title, title);
    set(&mut summary.status, status);
    set(&mut summary.modified_at, modified_at);
    set_some(&mut summary.activity, activity);
    set_some(&mut summary.origin, origin);
    set_some(&mut summary.project, project);
    set_some(&mut summary.working_directories, working_directories);
    set_some(&mut summary.annotations, annotations);
    set_some(&mut summary.changes, changes);
    set_some(&mut summary.meta, meta);
    set_some(&mut summary.chats, chats);
    set_some(&mut summary.default_chat, default_chat);
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn set_some<T>(field: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *field = value;
    }
}
