//! What clients dispatch: checked against the state, logged, and followed up.

use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::StateAction;
use ahp_types::errors::ahp_error_codes::NOT_FOUND;
use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{AnnotationsSummary, RootState, SessionState, SnapshotState};

use super::conduct::summarize;
use super::desk::{Sheet, not_kept};
use super::front::Rooms;
use super::{names, restore};
use crate::endpoint::{ClientInfo, DispatchError, Dispatched};
use crate::error::MethodError;
use crate::gate::{self, Client, Features, GateContext};
use crate::log::Seq;
use crate::long_work::long_work;
use crate::state::StateError;
use crate::state::entry::CatalogueNotification;

/// Takes an action into the log, or says why not.
pub(super) async fn dispatch(
    rooms: &Rooms,
    client: &ClientInfo,
    dispatched: &Dispatched,
) -> Result<Logged, DispatchError> {
    names::action(&dispatched.action)?;
    let restored = restore::action(rooms, &dispatched.action).await?;
    let (channel, action) = (&dispatched.channel, restored.as_ref().unwrap_or(&dispatched.action));
    let origin = dispatched.origin(client);
    if let Some(directory) = new_directory(action) {
        rooms.is_directory(directory).await?;
    }
    let session = rooms.desk.session_of(channel).await.map_err(MethodError::from)?;
    let look_failed = |error| match error {
        StateError::NotFound => no_channel(channel),
        error => error.into(),
    };
    let make = || async {
        let context = Context::of(rooms, session.as_deref(), channel, action).await.map_err(look_failed)?;
        let who = Client { id: client.id.to_string() };
        let seq = rooms.desk.look(channel, |state, seq| context.check(&who, action, state).map(|()| seq)).await;
        let seq: Seq = seq.map_err(look_failed)??;
        let sheet = Sheet::new().by(client).expect(channel, seq);
        Ok(long_work(dispatched.bytes, || sheet.dispatched(channel, action, &origin)))
    };
    // The channel, and what checks look at beside it.
    let seen: Vec<&str> = [&**channel, ROOT_RESOURCE_URI].into_iter().chain(session.as_deref()).collect();
    let seqs = rooms.desk.decide_on(&seen, make, not_kept).await?;
    if let (Some(session), StateAction::SessionActiveClientSet(_)) = (&session, action) {
        rooms.attendance.note(client, session);
    }
    Ok(Logged {
        channel: channel.clone(),
        seq: seqs.last().copied().unwrap_or(0),
        session,
        changes: Changes::of(action),
    })
}

/// An action that is in the log.
pub(super) struct Logged {
    channel: String,
    seq: Seq,
    /// The session that its channel belongs to.
    session: Option<Arc<str>>,
    changes: Changes,
}

/// What an action changes of what is shown of its session elsewhere.
enum Changes {
    Summary,
    Directories,
    Annotations,
    Nothing,
}

impl Changes {
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

impl Logged {
    /// Waits until the state has the action, tells the catalogue what has changed of its session, and looks at new
    /// directories. What is missed here, the next change of the session brings.
    pub(super) async fn follow_up(self, rooms: &Rooms) {
        let Self { channel, seq, session, changes } = self;
        if let Err(error) = rooms.desk.state().reached_on(&channel, seq).await {
            return tracing::warn!(%error, "the state does not take an action of a client");
        }
        let Some(session) = session else { return };
        let of_session = || rooms.desk.look(&session, |state, _| of_session(state));
        let changes = match changes {
            Changes::Summary => of_session().await,
            Changes::Directories => {
                rooms.workshop.opened(&session);
                of_session().await
            }
            Changes::Annotations => rooms.desk.look(&channel, |state, _| of_annotations(&channel, state)).await,
            Changes::Nothing => return,
        };
        let Ok(Some(changes)) = changes else { return };
        let channel = ROOT_RESOURCE_URI.to_owned();
        let params = SessionSummaryChangedParams { channel, session: session.to_string(), changes };
        if let Err(error) =
            rooms.desk.put(Sheet::new().notice(&session, &CatalogueNotification::Changed(Box::new(params)))).await
        {
            tracing::warn!("the list of sessions could not be told of a change: {error}");
        }
    }
}

/// An action is for a channel that never was, or is no more. The protocol leaves open what the client hears; silence would
/// leave it with a state that nobody else has.
pub(super) fn no_channel(channel: &str) -> MethodError {
    // The name is the client's: no more of it than a channel can have.
    let channel: String = channel.chars().take(256).collect();
    MethodError::new(NOT_FOUND, format!("there is no channel {channel:?}"))
}

/// What a check looks at beside the channel itself.
#[derive(Default)]
struct Context {
    session: Option<SessionState>,
    root: Option<RootState>,
    resumable: Option<String>,
}

impl Context {
    async fn of(rooms: &Rooms, session: Option<&str>, channel: &str, action: &StateAction) -> Result<Self, StateError> {
        let Some(session) = session else { return Ok(Self::default()) };
        let root = rooms.desk.look(ROOT_RESOURCE_URI, |state, _| match state {
            SnapshotState::Root(root) => {
                Some(RootState { terminals: None, config: None, meta: None, ..(**root).clone() })
            }
            _ => None,
        });
        let light = rooms.desk.look(session, |state, _| match state {
            SnapshotState::Session(session) => Some(light(session)),
            _ => None,
        });
        let resumable = match action {
            StateAction::ChatTurnResume(_) => rooms.desk.state().resumable(channel).await?,
            _ => None,
        };
        Ok(Self { session: light.await?, root: root.await?, resumable })
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

/// What checks look at, without what can be large.
fn light(session: &SessionState) -> SessionState {
    SessionState {
        provider: session.provider.clone(),
        title: String::new(),
        status: session.status,
        activity: None,
        origin: None,
        project: None,
        working_directories: session.working_directories.clone(),
        annotations: None,
        lifecycle: session.lifecycle.clone(),
        creation_error: None,
        server_tools: None,
        active_clients: Vec::new(),
        chats: Vec::new(),
        default_chat: None,
        config: None,
        customizations: None,
        changesets: None,
        input_needed: None,
        meta: None,
    }
}

/// The directory that an action would let an agent into.
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
