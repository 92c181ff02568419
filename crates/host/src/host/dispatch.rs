//! Actions that clients dispatch: checked against the state, logged, and followed up.

use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::StateAction;
use ahp_types::errors::ahp_error_codes::NOT_FOUND;
use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{AnnotationsSummary, ChatState, RootState, SessionState, SnapshotState};

use super::agent_runner::summarize;
use super::log_writer::{Transaction, append_error};
use super::services::Services;
use super::{names, restore};
use crate::endpoint::{ClientInfo, DispatchError, Dispatched};
use crate::error::MethodError;
use crate::gate::{self, Client, Features, GateContext};
use crate::log::Seq;
use crate::long_work::long_work;
use crate::state::entry::CatalogueNotification;
use crate::state::{StateError, session_basics};

/// Checks an action and logs it.
pub(super) async fn dispatch(
    services: &Services,
    client: &ClientInfo,
    dispatched: &Dispatched,
) -> Result<LoggedDispatch, DispatchError> {
    names::action(&dispatched.action)?;
    let restored = restore::action(services, &dispatched.action).await?;
    let (channel, action) = (&dispatched.channel, restored.as_ref().unwrap_or(&dispatched.action));
    let origin = dispatched.origin(client);
    if let Some(directory) = new_directory(action) {
        services.check_directory(directory).await?;
    }
    let session = services.log_writer.session_of(channel).await.map_err(MethodError::from)?;
    let look_failed = |error| match error {
        StateError::NotFound => no_channel(channel),
        error => error.into(),
    };
    let make = || async {
        let context = CheckContext::of(services, session.as_deref(), channel, action).await.map_err(look_failed)?;
        let who = Client { id: client.id.to_string() };
        let seq =
            services.log_writer.read(channel, |state, seq| context.check(&who, action, state).map(|()| seq)).await;
        let seq: Seq = seq.map_err(look_failed)??;
        let mut transaction = Transaction::new().by(client).expect(channel, seq);
        if let StateAction::SessionWorkingDirectoryRemoved(removed) = action {
            for (chat, seq) in chats_beside(services, channel, &removed.directory).await? {
                transaction = transaction.expect(&chat, seq);
            }
        }
        Ok(long_work(dispatched.bytes, || transaction.dispatched(channel, action, &origin)))
    };
    // The channels that the checks read.
    let seen: Vec<&str> = [&**channel, ROOT_RESOURCE_URI].into_iter().chain(session.as_deref()).collect();
    let seqs = services.log_writer.transact_on(&seen, make, append_error).await?;
    if let (Some(session), StateAction::SessionActiveClientSet(_)) = (&session, action) {
        services.active_clients.add(client, session);
    }
    Ok(LoggedDispatch {
        channel: channel.clone(),
        seq: seqs.last().copied().unwrap_or(0),
        session,
        changes: SummaryUpdate::of(action),
    })
}

/// An action of a client that is logged.
pub(super) struct LoggedDispatch {
    channel: String,
    seq: Seq,
    /// The session that its channel belongs to.
    session: Option<Arc<str>>,
    changes: SummaryUpdate,
}

/// What an action changes in the summary of its session.
enum SummaryUpdate {
    Summary,
    Directories,
    Annotations,
    Nothing,
}

impl SummaryUpdate {
    const fn of(action: &StateAction) -> Self {
        use StateAction as A;
        match action {
            A::SessionTitleChanged(_) | A::SessionIsReadChanged(_) | A::SessionIsArchivedChanged(_) => Self::Summary,
            A::SessionWorkingDirectorySet(_)
            | A::SessionWorkingDirectoryRemoved(_)
            | A::SessionWorkingDirectoryReplaced(_) => Self::Directories,
            A::AnnotationsSet(_)
            | A::AnnotationsUpdated(_)
            | A::AnnotationsRemoved(_)
            | A::AnnotationsEntrySet(_)
            | A::AnnotationsEntryRemoved(_) => Self::Annotations,
            _ => Self::Nothing,
        }
    }
}

impl LoggedDispatch {
    /// Waits until the state has applied the action, updates the summary of its session in the catalogue, and has new
    /// directories scanned. If this fails, the next change of the session catches up.
    pub(super) async fn follow_up(self, services: &Services) {
        let Self { channel, seq, session, changes } = self;
        if let Err(error) = services.log_writer.state().reached_on(&channel, seq).await {
            return tracing::warn!(%error, "the state has not applied an action of a client");
        }
        let Some(session) = session else { return };
        let of_session = || services.log_writer.read(&session, |state, _| of_session(state));
        let changes = match changes {
            SummaryUpdate::Summary => of_session().await,
            SummaryUpdate::Directories => {
                services.workspace.session_changed(&session);
                of_session().await
            }
            SummaryUpdate::Annotations => {
                services.log_writer.read(&channel, |state, _| of_annotations(&channel, state)).await
            }
            SummaryUpdate::Nothing => return,
        };
        let Ok(Some(changes)) = changes else { return };
        let channel = ROOT_RESOURCE_URI.to_owned();
        let params = SessionSummaryChangedParams { channel, session: session.to_string(), changes };
        if let Err(error) = services
            .log_writer
            .append(Transaction::new().notice(&session, &CatalogueNotification::Changed(Box::new(params))))
            .await
        {
            tracing::warn!("a change of a session could not be logged in the catalogue: {error}");
        }
    }
}

/// The error for an action on a channel that does not exist. The protocol requires no answer; but without one the client
/// would keep a state that nobody else has.
pub(super) fn no_channel(channel: &str) -> MethodError {
    // The client chose the name: no more of it is repeated than the name of a channel can have.
    let channel: String = channel.chars().take(256).collect();
    MethodError::new(NOT_FOUND, format!("there is no channel {channel:?}"))
}

/// The state of other channels that a check reads.
#[derive(Default)]
struct CheckContext {
    session: Option<SessionState>,
    root: Option<RootState>,
    resumable: Option<String>,
}

impl CheckContext {
    async fn of(
        services: &Services,
        session: Option<&str>,
        channel: &str,
        action: &StateAction,
    ) -> Result<Self, StateError> {
        let Some(session) = session else { return Ok(Self::default()) };
        let root = services.log_writer.read(ROOT_RESOURCE_URI, |state, _| match state {
            SnapshotState::Root(root) => {
                Some(RootState { terminals: None, config: None, meta: None, ..(**root).clone() })
            }
            _ => None,
        });
        let basics = services.log_writer.read(session, |state, _| match state {
            SnapshotState::Session(session) => Some(session_basics(session)),
            _ => None,
        });
        let resumable = match action {
            StateAction::ChatTurnResume(_) => services.log_writer.state().resumable(channel).await?,
            _ => None,
        };
        Ok(Self { session: basics.await?, root: root.await?, resumable })
    }

    fn check(&self, client: &Client, action: &StateAction, state: &SnapshotState) -> Result<(), gate::Rejection> {
        let alone = GateContext::of(state);
        let facts = GateContext {
            session: alone.session.or(self.session.as_ref()),
            root: alone.root.or(self.root.as_ref()),
            resumable: self.resumable.as_deref(),
            // MCP servers that the workspace names are shown, and run by agents, not by the host.
            features: Features { review: true, ..Features::default() },
            ..alone
        };
        gate::check(client, action, &facts)
    }
}

/// The chats that have chosen this directory of their session among others, with their seqs: the directory can be removed from
/// the session as long as they do not change. Fails if a chat has chosen no other one.
async fn chats_beside(services: &Services, session: &str, directory: &str) -> Result<Vec<(String, Seq)>, MethodError> {
    let chats = |session: &SessionState, _| session.chats.iter().map(|chat| chat.resource.clone()).collect::<Vec<_>>();
    let mut beside = Vec::new();
    for chat in services.log_writer.session(session, chats).await?.unwrap_or_default() {
        let chosen = |chat: &ChatState, seq| (chat.working_directories.clone().unwrap_or_default(), seq);
        let Some((chosen, seq)) = services.log_writer.chat(&chat, chosen).await? else { continue };
        if !chosen.iter().any(|chosen| chosen == directory) {
            continue;
        }
        if chosen.iter().all(|chosen| chosen == directory) {
            return Err(gate::Rejection::OnlyDirectoryOfChat.into());
        }
        beside.push((chat, seq));
    }
    Ok(beside)
}

/// The directory that an action would add to a session.
fn new_directory(action: &StateAction) -> Option<&str> {
    match action {
        StateAction::SessionWorkingDirectorySet(action) => Some(&action.directory),
        StateAction::SessionWorkingDirectoryReplaced(action) => Some(&action.replacement),
        _ => None,
    }
}

fn of_session(state: &SnapshotState) -> Option<PartialSessionSummary> {
    let SnapshotState::Session(session) = state else { return None };
    Some(PartialSessionSummary { working_directories: session.working_directories.clone(), ..summarize(session) })
}

fn of_annotations(channel: &str, state: &SnapshotState) -> Option<PartialSessionSummary> {
    let SnapshotState::Annotations(state) = state else { return None };
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let summary = AnnotationsSummary {
        resource: channel.to_owned(),
        annotation_count: count(state.annotations.len()),
        entry_count: count(state.annotations.iter().map(|annotation| annotation.entries.len()).sum()),
    };
    Some(PartialSessionSummary { annotations: Some(summary), ..PartialSessionSummary::default() })
}
