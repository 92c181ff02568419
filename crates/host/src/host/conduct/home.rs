//! Where a chat is at home: its session, and how a conversation begins there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::{SessionMetaChangedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{ChatInteractivity, ChatOrigin, ChatState, SessionState, SnapshotState};
use serde_json::{Map, Value};

use super::super::desk::{Desk, Sheet};
use super::Shared;
use super::pen::{Over, Pen, seen};
use crate::agent::{AgentError, Memory, Start, Started};
use crate::files::path_of;
use crate::log::Seq;
use crate::state::StateError;

/// How long an agent may take to begin.
const BEGIN_TIME: Duration = Duration::from_secs(60);

/// Where the tokens of conversations are in the session's `_meta`: `{"breakbulk":{"resume":{"<chat>":"<token>"}}}`. The
/// official reducer keeps it, it goes with the session, and to a client it means nothing.
const OURS: &str = "breakbulk";
const RESUME: &str = "resume";

/// The session of a chat that is in its list and that people can write to.
pub(super) async fn find(desk: &Desk, chat: &str) -> Result<Option<Found>, StateError> {
    let Some(session) = desk.session_of(chat).await? else { return Ok(None) };
    let is_listed = |state: &SnapshotState, _| match state {
        SnapshotState::Session(session) => session.chats.iter().any(|there| there.resource == chat),
        _ => false,
    };
    let listed = or_none(desk.look(&session, |state, seq| is_listed(state, seq).then_some(())).await)?;
    let is_worker = or_none(desk.look(chat, |state, _| as_chat(state).map(is_worker)).await)?;
    Ok(listed.and(is_worker).map(|is_worker| Found { session, is_worker }))
}

/// Where a chat is at home.
pub(super) struct Found {
    pub(super) session: Arc<str>,
    /// A sub-agent works there, so that no conversation begins.
    pub(super) is_worker: bool,
}

/// Begins a conversation, with what was remembered of it.
pub(super) async fn begin(shared: &Shared, session: &Arc<str>, chat: &Arc<str>) -> Result<Started, AgentError> {
    let gone = |error: StateError| AgentError::Unavailable(error.to_string());
    let no_chat = || AgentError::Unavailable("there is no such chat".to_owned());
    let look =
        |state: &SnapshotState, _| as_chat(state).map(|chat| (chat.working_directories.clone(), chat.origin.clone()));
    let (subset, origin) = shared.desk.look(chat, look).await.map_err(gone)?.ok_or_else(no_chat)?;
    let look = |state: &SnapshotState, _| as_session(state).map(|there| plan(there, session, chat, subset, origin));
    let (provider, start) = shared.desk.look(session, look).await.map_err(gone)?.ok_or_else(no_chat)?;
    let agent = shared.agents.iter().find(|agent| agent.name() == provider);
    let agent = agent.ok_or_else(|| AgentError::Unavailable(format!("there is no agent {provider} here")))?;
    let late = |_| AgentError::Unavailable("it does not begin".to_owned());
    tokio::time::timeout(BEGIN_TIME, agent.start(start)).await.map_err(late)?
}

fn plan(
    there: &SessionState,
    session: &Arc<str>,
    chat: &Arc<str>,
    subset: Option<Vec<String>>,
    origin: Option<ChatOrigin>,
) -> (String, Start) {
    let directories = subset.or_else(|| there.working_directories.clone()).unwrap_or_default();
    let directories: Vec<PathBuf> = directories.iter().filter_map(|uri| path_of(uri).ok()).collect();
    let token = |chat: &str| token_of(there.meta.as_ref(), chat).map(str::to_owned);
    let source = match &origin {
        Some(ChatOrigin::Fork { chat, .. } | ChatOrigin::SideChat { chat, .. }) => token(chat),
        _ => None,
    };
    let memory = match (token(chat), source) {
        (Some(own), _) => Memory::Resume(own),
        (None, Some(source)) => Memory::Fork(source),
        (None, None) => Memory::None,
    };
    let config = there.config.as_ref().map(|config| config.values.clone()).unwrap_or_default();
    let start = Start { session: session.to_string(), chat: chat.to_string(), directories, config, memory };
    (there.provider.clone(), start)
}

/// Keeps a token for the next time, or none; the seq of what says so.
pub(super) async fn remember(
    desk: &Desk,
    pen: &Pen,
    session: &str,
    chat: &str,
    token: Option<&str>,
) -> Result<Option<Seq>, Over> {
    let make = || async {
        let look = |state: &SnapshotState, seq| {
            let there = as_session(state)?;
            let is_known = token_of(there.meta.as_ref(), chat) == token;
            (!is_known).then(|| (with_token(there, chat, token), seq))
        };
        let made = seen(desk.look(session, look).await)?;
        Ok(made.map(|(meta, seq)| {
            let changed = StateAction::SessionMetaChanged(SessionMetaChangedAction { meta: Some(meta) });
            Sheet::new().expect(session, seq).action(session, &changed)
        }))
    };
    pen.decide(make).await
}

fn token_of<'a>(meta: Option<&'a JsonObject>, chat: &str) -> Option<&'a str> {
    meta?.get(OURS)?.get(RESUME)?.get(chat)?.as_str()
}

/// The session's `_meta` with another token. Those of chats that are gone go too.
fn with_token(session: &SessionState, chat: &str, token: Option<&str>) -> JsonObject {
    let mut meta = session.meta.clone().unwrap_or_default();
    let mut ours = taken(&mut meta, OURS);
    let mut tokens = taken(&mut ours, RESUME);
    tokens.retain(|chat, _| session.chats.iter().any(|there| there.resource == *chat));
    match token {
        Some(token) => drop(tokens.insert(chat.to_owned(), Value::String(token.to_owned()))),
        None => drop(tokens.remove(chat)),
    }
    ours.insert(RESUME.to_owned(), Value::Object(tokens));
    meta.insert(OURS.to_owned(), Value::Object(ours));
    meta
}

/// The object of this name, or an empty one.
fn taken(from: &mut JsonObject, name: &str) -> JsonObject {
    match from.remove(name) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

pub(super) fn as_chat(state: &SnapshotState) -> Option<&ChatState> {
    match state {
        SnapshotState::Chat(chat) => Some(chat),
        _ => None,
    }
}

pub(super) fn as_session(state: &SnapshotState) -> Option<&SessionState> {
    match state {
        SnapshotState::Session(session) => Some(session),
        _ => None,
    }
}

fn is_worker(chat: &ChatState) -> bool {
    let is_watched = matches!(chat.interactivity, Some(ChatInteractivity::ReadOnly | ChatInteractivity::Hidden));
    is_watched || matches!(chat.origin, Some(ChatOrigin::Tool { .. }))
}

fn or_none<T>(looked: Result<Option<T>, StateError>) -> Result<Option<T>, StateError> {
    match looked {
        Err(StateError::NotFound) => Ok(None),
        looked => looked,
    }
}
