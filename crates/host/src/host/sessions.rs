//! Sessions: made, listed, disposed of.

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{RootActiveSessionsChangedAction, StateAction};
use ahp_types::commands::{CreateSessionParams, DisposeSessionParams};
use ahp_types::errors::ahp_error_codes::{SESSION_ALREADY_EXISTS, SESSION_NOT_FOUND};
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS};
use ahp_types::notifications::{SessionAddedParams, SessionRemovedParams};
use ahp_types::state::{
    AnnotationsState, AnnotationsSummary, ChatOrigin, SessionActiveClient, SessionConfigState, SessionLifecycle,
    SessionState, SessionStatus, SessionSummary, SnapshotState,
};
use tracing::warn;

use super::chats::{self, Plan};
use super::desk::{Desk, Sheet, not_kept};
use super::front::Rooms;
use super::{names, settings};
use crate::endpoint::ClientInfo;
use crate::error::MethodError;
use crate::files::time;
use crate::log::{AppendError, WriteError};
use crate::state::StateError;
use crate::state::entry::CatalogueNotification;

/// What a session is called until somebody says something in it.
pub(crate) const UNTITLED: &str = "New session";

/// Answers `createSession`: a session with an empty chat, in one piece.
pub(super) async fn create(rooms: &Rooms, client: &ClientInfo, params: CreateSessionParams) -> Result<(), MethodError> {
    let session = params.channel;
    names::session(&session)?;
    let agent = rooms.agents.find(params.provider.as_deref())?;
    let directories = rooms.directories(&agent.info(), params.working_directories).await?;
    let config = settings::chosen(&**agent, params.config.unwrap_or_default())?;
    let active = params.active_client.map(|active| is_it(client, active)).transpose()?;
    let chat = Plan::new(names::new_chat(), ChatOrigin::User);
    let made = Made { provider: agent.name().to_owned(), directories, config, active, now: time::now() };
    let exists = || {
        MethodError::new(
            SESSION_ALREADY_EXISTS,
            "a session with this URI exists, or existed and was disposed of: choose another one",
        )
    };
    let make = || async {
        let (root, count) = count(&rooms.desk).await?;
        if rooms.desk.has(&session).await? {
            return Err(exists());
        }
        let sheet = made.sheet(&session, &chat).expect(ROOT_RESOURCE_URI, root).expect(&session, 0);
        Ok(sheet.action(ROOT_RESOURCE_URI, &active_sessions(count.saturating_add(1))))
    };
    let refuse = |error| match error {
        // A name that was erased is not given again.
        AppendError::OtherSession(_) | AppendError::NotOpen(_) => exists(),
        error => not_kept(error),
    };
    rooms.desk.decide(make, refuse).await?;
    if made.active.is_some() {
        rooms.attendance.note(client, &session);
    }
    rooms.workshop.opened(&session);
    Ok(())
}

/// Answers `disposeSession`: nothing of it is left, in the log neither.
pub(super) async fn dispose(rooms: &Rooms, params: DisposeSessionParams) -> Result<(), MethodError> {
    let session = params.channel;
    let not_found = || MethodError::new(SESSION_NOT_FOUND, "there is no such session");
    let listed = rooms.desk.state().session(&session).await?;
    let channels = rooms.desk.log().channels(Some(&session)).await.map_err(StateError::from)?;
    // One that is not listed any more, but still there, was disposed of when the host was killed.
    if listed.is_none() && channels.is_empty() {
        return Err(not_found());
    }
    // Nobody finds it any more, and then what runs for it ends.
    let make = || async {
        let (root, count) = count(&rooms.desk).await?;
        if rooms.desk.state().session(&session).await?.is_none() {
            return Err(not_found());
        }
        let params = SessionRemovedParams { channel: ROOT_RESOURCE_URI.to_owned(), session: session.clone() };
        let sheet =
            Sheet::new().expect(ROOT_RESOURCE_URI, root).notice(&session, &CatalogueNotification::Removed(params));
        Ok(sheet.action(ROOT_RESOURCE_URI, &active_sessions(count.saturating_sub(1))))
    };
    if listed.is_some() {
        rooms.desk.decide(make, not_kept).await?;
    }
    for chat in rooms.chats_of(&session, listed.as_ref()).await {
        rooms.conduct.close(&chat).await;
    }
    rooms.workshop.closed(&session).await;
    rooms.attendance.forget(&session);
    close_channels(rooms, &session).await;
    rooms.desk.state().forget(&session).await?;
    let not_erased = |error| match error {
        WriteError::Full => MethodError::log_full(),
        error => {
            MethodError::new(INTERNAL_ERROR, format!("the session is gone, but not erased from the disk: {error}"))
        }
    };
    rooms.desk.log().erase(&session).await.map(drop).map_err(not_erased)
}

/// Says to all who follow a channel of a session that there is nothing more to follow.
async fn close_channels(rooms: &Rooms, session: &str) {
    let Ok(channels) = rooms.desk.log().channels(Some(session)).await else { return };
    let sheet = channels.iter().fold(Sheet::new(), |sheet, info| sheet.close(&info.channel));
    if let Err(error) = rooms.desk.put_seen(sheet).await {
        warn!("clients could not be told that a session was disposed of: {error}");
    }
}

/// What is known of a session that is about to be.
struct Made {
    provider: String,
    directories: Vec<String>,
    config: SessionConfigState,
    active: Option<SessionActiveClient>,
    now: String,
}

impl Made {
    fn sheet(&self, session: &str, chat: &Plan) -> Sheet {
        let annotations = annotations(session);
        let summary = SessionAddedParams {
            channel: ROOT_RESOURCE_URI.to_owned(),
            summary: self.summary(session, chat, annotations.clone()),
        };
        let empty = SnapshotState::Annotations(Box::new(AnnotationsState { annotations: Vec::new() }));
        let state = SnapshotState::Session(Box::new(self.state(chat, annotations.clone())));
        let sheet = Sheet::new().open(session, Some(session), &state);
        let sheet = sheet.open(&annotations.resource, Some(session), &empty);
        let sheet = sheet.open(&chat.uri, Some(session), &SnapshotState::Chat(Box::new(chat.state(&self.now))));
        sheet.notice(session, &CatalogueNotification::Added(Box::new(summary)))
    }

    fn state(&self, chat: &Plan, annotations: AnnotationsSummary) -> SessionState {
        SessionState {
            provider: self.provider.clone(),
            title: UNTITLED.to_owned(),
            status: SessionStatus::Idle.bits(),
            activity: None,
            origin: None,
            project: None,
            working_directories: Some(self.directories.clone()),
            annotations: Some(annotations),
            lifecycle: SessionLifecycle::Ready,
            creation_error: None,
            server_tools: None,
            active_clients: self.active.iter().cloned().collect(),
            chats: vec![chat.summary(&self.now)],
            default_chat: Some(chat.uri.clone()),
            config: Some(self.config.clone()),
            customizations: None,
            changesets: None,
            input_needed: None,
            meta: None,
        }
    }

    fn summary(&self, session: &str, chat: &Plan, annotations: AnnotationsSummary) -> SessionSummary {
        SessionSummary {
            provider: self.provider.clone(),
            title: UNTITLED.to_owned(),
            status: SessionStatus::Idle.bits(),
            activity: None,
            origin: None,
            project: None,
            working_directories: Some(self.directories.clone()),
            annotations: Some(annotations),
            resource: session.to_owned(),
            created_at: self.now.clone(),
            modified_at: self.now.clone(),
            changes: None,
            meta: None,
            chats: Some(vec![chats::compact(&chat.summary(&self.now))]),
            default_chat: Some(chat.uri.clone()),
        }
    }
}

fn annotations(session: &str) -> AnnotationsSummary {
    AnnotationsSummary { resource: format!("{session}/annotations"), annotation_count: 0, entry_count: 0 }
}

/// How many sessions there are, as of this seq of the root.
pub(super) async fn count(desk: &Desk) -> Result<(u64, i64), StateError> {
    let look = |state: &SnapshotState, seq| match state {
        SnapshotState::Root(root) => (seq, root.active_sessions.unwrap_or(0)),
        _ => (seq, 0),
    };
    desk.look(ROOT_RESOURCE_URI, look).await
}

pub(super) fn active_sessions(active_sessions: i64) -> StateAction {
    StateAction::RootActiveSessionsChanged(RootActiveSessionsChangedAction { active_sessions })
}

/// A client speaks for itself.
fn is_it(client: &ClientInfo, active: SessionActiveClient) -> Result<SessionActiveClient, MethodError> {
    if *active.client_id == *client.id {
        names::active_client(&active)?;
        return Ok(active);
    }
    Err(MethodError::new(INVALID_PARAMS, "activeClient.clientId must be the clientId of this client"))
}
