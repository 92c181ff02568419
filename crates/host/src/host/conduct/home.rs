//! Where a chat is at home: its session, and how a conversation begins there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::{SessionMetaChangedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{ChatInteractivity, ChatOrigin, ChatState, SessionState};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::desk::{Desk, Sheet};
use super::Shared;
use super::pen::{Over, Pen, seen};
use crate::agent::{AgentError, History, SideChatContext, Start, Started};
use crate::files::path_of;
use crate::log::Seq;
use crate::state::StateError;

/// How long an agent may take to begin.
const BEGIN_TIME: Duration = Duration::from_secs(60);

/// Where the tokens of conversations are in the session's `_meta`:
/// `{"breakbulk":{"resume":{"<chat>":{"token":"<token>","turn":"<turn>"}}}}`. The official reducer keeps it, it goes with the
/// session, and to a client it means nothing.
const OURS: &str = "breakbulk";
const RESUME: &str = "resume";

/// A token, and the turn to whose end it leads back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Token<'a> {
    pub(super) token: &'a str,
    pub(super) turn: &'a str,
}

/// The session of a chat that is in its list and that people can write to.
pub(super) async fn find(desk: &Desk, chat: &str) -> Result<Option<Found>, StateError> {
    let Some(session) = desk.session_of(chat).await? else { return Ok(None) };
    let is_listed = |session: &SessionState, _| session.chats.iter().any(|there| there.resource == chat);
    let is_listed = desk.session(&session, is_listed).await?.unwrap_or(false);
    let is_worker = desk.chat(chat, |chat, _| is_worker(chat)).await?.filter(|_| is_listed);
    Ok(is_worker.map(|is_worker| Found { session, is_worker }))
}

/// Where a chat is at home.
pub(super) struct Found {
    pub(super) session: Arc<str>,
    /// A sub-agent works there, so that no conversation begins.
    pub(super) is_worker: bool,
}

/// Begins a conversation of somebody who is to know these turns.
pub(super) async fn begin(
    shared: &Shared,
    pen: &Pen,
    session: &Arc<str>,
    chat: &Arc<str>,
    history: History,
) -> Result<Started, AgentError> {
    let gone = |error: StateError| AgentError::Unavailable(error.to_string());
    let no_chat = || AgentError::Unavailable("there is no such chat".to_owned());
    let look = |chat: &ChatState, _| (chat.working_directories.clone(), chat.origin.clone());
    let (subset, origin) = shared.desk.chat(chat, look).await.map_err(gone)?.ok_or_else(no_chat)?;
    let beside = beside(shared, chat, origin).await.map_err(gone)?;
    let last = history.last_id().await.map_err(gone)?;
    let look = |there: &SessionState, _| {
        let kept = token_of(there.meta.as_ref(), chat);
        let token = kept.filter(|kept| Some(kept.turn) == last.as_deref()).map(|kept| kept.token.to_owned());
        let is_stale = kept.is_some() && token.is_none();
        let (directories, config) = (directories(there, subset), config(there));
        let (session, chat) = (session.to_string(), chat.to_string());
        (
            there.provider.clone(),
            is_stale,
            Start { session, chat, directories, config, history, token, side_chat: beside },
        )
    };
    let (provider, is_stale, start) = shared.desk.session(session, look).await.map_err(gone)?.ok_or_else(no_chat)?;
    if is_stale {
        // A turn that comes later may have the name of the one that it leads to.
        remember(&shared.desk, pen, session, chat, None).await.map_err(|Over| AgentError::Ended)?;
    }
    let agent = shared.agents.iter().find(|agent| agent.name() == provider);
    let agent = agent.ok_or_else(|| AgentError::Unavailable(format!("there is no agent {provider} here")))?;
    let late = |_| AgentError::Unavailable("it did not start within 60 s".to_owned());
    tokio::time::timeout(BEGIN_TIME, agent.start(start)).await.map_err(late)?
}

/// What a side chat is about: as it was when the chat was made.
async fn beside(
    shared: &Shared,
    side: &str,
    origin: Option<ChatOrigin>,
) -> Result<Option<SideChatContext>, StateError> {
    let Some(ChatOrigin::SideChat { chat, selection, .. }) = origin else { return Ok(None) };
    let history = shared.desk.state().history_for_side_chat(&chat, side).await?;
    Ok(Some(SideChatContext { history, selection }))
}

fn directories(session: &SessionState, subset: Option<Vec<String>>) -> Vec<PathBuf> {
    let directories = subset.or_else(|| session.working_directories.clone()).unwrap_or_default();
    directories.iter().filter_map(|uri| path_of(uri).ok()).collect()
}

fn config(session: &SessionState) -> JsonObject {
    session.config.as_ref().map(|config| config.values.clone()).unwrap_or_default()
}

/// Keeps a token for the next time, or none; the seq of what says so.
pub(super) async fn remember(
    desk: &Desk,
    pen: &Pen,
    session: &str,
    chat: &str,
    token: Option<Token<'_>>,
) -> Result<Option<Seq>, Over> {
    let make = || async {
        let look = |there: &SessionState, seq| {
            let is_known = token_of(there.meta.as_ref(), chat) == token;
            (!is_known).then(|| (with_token(there, chat, token), seq))
        };
        let made = seen(desk.session(session, look).await)?;
        Ok(made.flatten().map(|(meta, seq)| {
            let changed = StateAction::SessionMetaChanged(SessionMetaChangedAction { meta: Some(meta) });
            Sheet::new().expect(session, seq).action(session, &changed)
        }))
    };
    pen.decide(make).await
}

fn token_of<'a>(meta: Option<&'a JsonObject>, chat: &str) -> Option<Token<'a>> {
    Token::deserialize(meta?.get(OURS)?.get(RESUME)?.get(chat)?).ok()
}

/// The session's `_meta` with another token. Those of chats that are gone go too.
fn with_token(session: &SessionState, chat: &str, token: Option<Token<'_>>) -> JsonObject {
    let mut meta = session.meta.clone().unwrap_or_default();
    let mut ours = taken(&mut meta, OURS);
    let mut tokens = taken(&mut ours, RESUME);
    tokens.retain(|chat, _| session.chats.iter().any(|there| there.resource == *chat));
    match token {
        Some(Token { token, turn }) => drop(tokens.insert(chat.to_owned(), json!({ "token": token, "turn": turn }))),
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

fn is_worker(chat: &ChatState) -> bool {
    let is_watched = matches!(chat.interactivity, Some(ChatInteractivity::ReadOnly | ChatInteractivity::Hidden));
    is_watched || matches!(chat.origin, Some(ChatOrigin::Tool { .. }))
}
