//! Makes sessions and disposes of them.

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

use super::chats::{self, NewChat};
use super::log_writer::{LogWriter, Transaction, append_error};
use super::services::Services;
use super::{names, session_config};
use crate::endpoint::ClientInfo;
use crate::error::MethodError;
use crate::files::time;
use crate::log::{AppendError, Seq, WriteError};
use crate::state::StateError;
use crate::state::entry::CatalogueNotification;

/// The title of a session before its first prompt.
pub(crate) const UNTITLED: &str = "New session";

/// Answers `createSession`.
pub(super) async fn create(
    services: &Services,
    client: &ClientInfo,
    mut params: CreateSessionParams,
) -> Result<(), MethodError> {
    let active = params.active_client.take().map(|active| check_active_client(client, active)).transpose()?;
    let (session, is_active) = (params.channel.clone(), active.is_some());
    make(services, params, active, &|transaction| transaction).await?;
    if is_active {
        services.active_clients.add(client, &session);
    }
    Ok(())
}

/// Makes a session with an empty chat, in one transaction. `add` adds entries to it.
pub(crate) async fn make(
    services: &Services,
    params: CreateSessionParams,
    active: Option<SessionActiveClient>,
    add: &(dyn Fn(Transaction) -> Transaction + Sync),
) -> Result<(), MethodError> {
    let session = params.channel;
    names::session(&session)?;
    let agent = services.agents.find(params.provider.as_deref())?;
    let directories = services.working_directories(&**agent, params.working_directories).await?;
    let config = session_config::with_defaults(&**agent, params.config.unwrap_or_default())?;
    let chat = NewChat::new(names::new_chat(), ChatOrigin::User);
    let new_session = NewSession { provider: agent.name().to_owned(), directories, config, active, now: time::now() };
    let exists = || {
        MethodError::new(
            SESSION_ALREADY_EXISTS,
            "a session with this URI exists, or existed and was disposed of: choose another one",
        )
    };
    let make = || async {
        let (root, count) = session_count(&services.log_writer).await?;
        if services.log_writer.has(&session).await? {
            return Err(exists());
        }
        let transaction = new_session.transaction(&session, &chat).expect(ROOT_RESOURCE_URI, root).expect(&session, 0);
        Ok(add(transaction.action(ROOT_RESOURCE_URI, &active_sessions(count.saturating_add(1)))))
    };
    let refuse = |error| match error {
        // The name of an erased session cannot be used again.
        AppendError::OtherSession(_) | AppendError::NotOpen(_) => exists(),
        error => append_error(error),
    };
    services.log_writer.transact(make, refuse).await?;
    services.workspace.session_changed(&session);
    Ok(())
}

/// Answers `disposeSession`: erases the session, from the log too.
pub(super) async fn dispose(services: &Services, params: DisposeSessionParams) -> Result<(), MethodError> {
    let session = params.channel;
    let not_found = || MethodError::new(SESSION_NOT_FOUND, format!("there is no session {session:?}"));
    let listed = services.log_writer.state().session(&session).await?;
    let channels = services.log_writer.log().channels(Some(&session)).await.map_err(StateError::from)?;
    // A session that is in the log but not listed was being disposed of when the host was killed.
    if listed.is_none() && channels.is_empty() {
        return Err(not_found());
    }
    // The session is removed from the catalogue before everything that runs for it ends.
    let make = || async {
        let (root, count) = session_count(&services.log_writer).await?;
        if services.log_writer.state().session(&session).await?.is_none() {
            return Err(not_found());
        }
        let params = SessionRemovedParams { channel: ROOT_RESOURCE_URI.to_owned(), session: session.clone() };
        let transaction = Transaction::new()
            .expect(ROOT_RESOURCE_URI, root)
            .notice(&session, &CatalogueNotification::Removed(params));
        Ok(transaction.action(ROOT_RESOURCE_URI, &active_sessions(count.saturating_sub(1))))
    };
    if listed.is_some() {
        services.log_writer.transact(make, append_error).await?;
    }
    for chat in services.chats_of(&session, listed.as_ref()).await {
        services.agent_runner.close(&chat).await;
    }
    services.workspace.session_disposed(&session).await;
    services.active_clients.forget_session(&session);
    let closed = close_channels(services, &session).await;
    services.feeds.reached(&session, closed).await;
    services.log_writer.state().forget(&session).await?;
    let not_erased = |error| match error {
        WriteError::Full => MethodError::log_full(),
        error => {
            MethodError::new(INTERNAL_ERROR, format!("the session is gone, but not erased from the disk: {error}"))
        }
    };
    services.log_writer.log().erase(&session).await.map(drop).map_err(not_erased)
}

/// Closes the channels of a session, so that their followers are told; returns the last entry.
async fn close_channels(services: &Services, session: &str) -> Seq {
    let Ok(channels) = services.log_writer.log().channels(Some(session)).await else { return 0 };
    let transaction = channels.iter().fold(Transaction::new(), |transaction, info| transaction.close(&info.channel));
    match services.log_writer.append_and_apply(transaction).await {
        Ok(seqs) => {
            // That of the session itself: its followers need no other.
            let at = channels.iter().position(|info| *info.channel == *session);
            at.and_then(|at| seqs.get(at).copied()).unwrap_or(0)
        }
        Err(error) => {
            warn!("the channels of a disposed session could not be closed: {error}");
            0
        }
    }
}

/// A session that is about to be made.
struct NewSession {
    provider: String,
    directories: Vec<String>,
    config: SessionConfigState,
    active: Option<SessionActiveClient>,
    now: String,
}

impl NewSession {
    /// The entries that open its channels and list it.
    fn transaction(&self, session: &str, chat: &NewChat) -> Transaction {
        let annotations = annotations(session);
        let summary = SessionAddedParams {
            channel: ROOT_RESOURCE_URI.to_owned(),
            summary: self.summary(session, chat, annotations.clone()),
        };
        let empty = SnapshotState::Annotations(Box::new(AnnotationsState { annotations: Vec::new() }));
        let state = SnapshotState::Session(Box::new(self.state(chat, annotations.clone())));
        let transaction = Transaction::new().open(session, Some(session), &state);
        let transaction = transaction.open(&annotations.resource, Some(session), &empty);
        let transaction =
            transaction.open(&chat.uri, Some(session), &SnapshotState::Chat(Box::new(chat.state(&self.now))));
        transaction.notice(session, &CatalogueNotification::Added(Box::new(summary)))
    }

    fn state(&self, chat: &NewChat, annotations: AnnotationsSummary) -> SessionState {
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

    fn summary(&self, session: &str, chat: &NewChat, annotations: AnnotationsSummary) -> SessionSummary {
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

/// The seq of the root channel, and how many sessions it counts.
pub(super) async fn session_count(log_writer: &LogWriter) -> Result<(u64, i64), StateError> {
    let count = |state: &SnapshotState, seq| match state {
        SnapshotState::Root(root) => (seq, root.active_sessions.unwrap_or(0)),
        _ => (seq, 0),
    };
    log_writer.read(ROOT_RESOURCE_URI, count).await
}

pub(super) fn active_sessions(active_sessions: i64) -> StateAction {
    StateAction::RootActiveSessionsChanged(RootActiveSessionsChangedAction { active_sessions })
}

/// Fails if a client names another client than itself as active, or itself with too long a name.
fn check_active_client(client: &ClientInfo, active: SessionActiveClient) -> Result<SessionActiveClient, MethodError> {
    if *active.client_id == *client.id {
        names::active_client(&active)?;
        return Ok(active);
    }
    Err(MethodError::new(INVALID_PARAMS, "activeClient.clientId must be the clientId of this client"))
}
