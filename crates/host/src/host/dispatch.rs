//! What clients dispatch: checked against the state, logged, and followed up.

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::StateAction;
use ahp_types::errors::ahp_error_codes;
use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{AnnotationsSummary, RootState, SessionState, SnapshotState};

use super::conduct::summarize;
use super::desk::Sheet;
use super::front::Rooms;
use super::restore;
use crate::endpoint::{ClientInfo, Dispatched, Refusal};
use crate::error::MethodError;
use crate::gate::{self, Client, Facts, Offers};
use crate::log::Seq;
use crate::state::StateError;
use crate::state::entry::Notice;

/// Takes an action, or says why not. One on a channel that does not exist is passed over, as the protocol says.
pub(super) async fn dispatch(rooms: &Rooms, client: &ClientInfo, mut dispatched: Dispatched) -> Result<(), Refusal> {
    restore::action(rooms, &mut dispatched.action).await.map_err(|error| Refusal::new(error.message))?;
    let Dispatched { channel, action, .. } = &dispatched;
    let origin = dispatched.origin(client);
    if let Some(directory) = new_directory(action) {
        rooms.is_directory(directory).await.map_err(|error| Refusal::new(error.message))?;
    }
    let session = rooms.desk.session_of(channel).await.map_err(|error| Stop::from(error).refusal())?;
    let make = || async {
        let context = Context::of(rooms, session.as_deref(), channel, action).await?;
        let who = Client { id: client.id.to_string() };
        let seq = rooms.desk.look(channel, |state, seq| context.check(&who, action, state).map(|()| seq)).await;
        let seq: Seq = seq??;
        Ok(Sheet::new().expect(channel, seq).dispatched(channel, action, &origin))
    };
    match rooms.desk.decide(make, |error| Stop::Refused(error.to_string())).await {
        Ok(_) => {}
        Err(Stop::NoChannel) => return Ok(()),
        Err(stop) => return Err(stop.refusal()),
    }
    if let Some(session) = session {
        if matches!(action, StateAction::SessionActiveClientSet(_)) {
            rooms.attendance.note(client, &session);
        }
        follow_up(rooms, &session, channel, action).await;
    }
    Ok(())
}

/// Why an action is not logged.
enum Stop {
    NoChannel,
    Refused(String),
}

impl Stop {
    fn refusal(self) -> Refusal {
        match self {
            Self::NoChannel => Refusal::new("there is no such channel"),
            Self::Refused(reason) => Refusal::new(reason),
        }
    }
}

impl From<MethodError> for Stop {
    fn from(error: MethodError) -> Self {
        if error.code == ahp_error_codes::NOT_FOUND { Self::NoChannel } else { Self::Refused(error.message) }
    }
}

impl From<StateError> for Stop {
    fn from(error: StateError) -> Self {
        if error == StateError::NotFound { Self::NoChannel } else { Self::Refused(error.to_string()) }
    }
}

impl From<gate::Refusal> for Stop {
    fn from(refusal: gate::Refusal) -> Self {
        Self::Refused(refusal.to_string())
    }
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

    fn check(&self, client: &Client, action: &StateAction, state: &SnapshotState) -> Result<(), gate::Refusal> {
        let alone = Facts::of(state);
        let facts = Facts {
            session: alone.session.or(self.session.as_ref()),
            root: alone.root.or(self.root.as_ref()),
            resumable: self.resumable.as_deref(),
            // MCP servers that the workspace names are shown, and run by agents, not by the host.
            offers: Offers { review: true, ..Offers::default() },
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

/// Tells the catalogue what has changed of a session, and looks at new directories. What is missed here, the next change
/// of the session brings.
async fn follow_up(rooms: &Rooms, session: &str, channel: &str, action: &StateAction) {
    use StateAction as A;
    let changes = match action {
        A::SessionTitleChanged(_) | A::SessionIsReadChanged(_) | A::SessionIsArchivedChanged(_) => {
            rooms.desk.look(session, |state, _| of_session(state)).await.ok().flatten()
        }
        A::SessionWorkingDirectorySet(_)
        | A::SessionWorkingDirectoryRemoved(_)
        | A::SessionWorkingDirectoryReplaced(_) => {
            let workshop = &rooms.workshop;
            workshop.opened(session);
            rooms.desk.look(session, |state, _| of_session(state)).await.ok().flatten()
        }
        A::AnnotationsSet(_)
        | A::AnnotationsUpdated(_)
        | A::AnnotationsRemoved(_)
        | A::AnnotationsEntrySet(_)
        | A::AnnotationsEntryRemoved(_) => {
            rooms.desk.look(channel, |state, _| of_annotations(channel, state)).await.ok().flatten()
        }
        _ => None,
    };
    let Some(changes) = changes else { return };
    let params =
        SessionSummaryChangedParams { channel: ROOT_RESOURCE_URI.to_owned(), session: session.to_owned(), changes };
    if let Err(error) = rooms.desk.put(Sheet::new().notice(session, &Notice::Changed(Box::new(params)))).await {
        tracing::warn!("the catalogue does not hear of a change: {error}");
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
