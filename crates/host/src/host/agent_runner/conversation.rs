//! Starts conversations: finds the session of a chat, and what the agent is given; saves resume tokens.

use std::path::PathBuf;
use std::sync::Arc;

use ahp_types::actions::{SessionMetaChangedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{ChatInteractivity, ChatOrigin, ChatState, SessionState};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::config::MAX_AGENT_START;
use super::super::log_writer::{LogWriter, Transaction};
use super::RunnerContext;
use super::task_writer::{TaskStopped, TaskWriter, if_readable};
use crate::agent::{AgentError, History, SideChatContext, Start, Started};
use crate::files::path_of;
use crate::log::Seq;
use crate::state::StateError;

/// Resume tokens are stored in the session's `_meta`:
/// `{"breakbulk":{"resume":{"<chat>":{"token":"<token>","turn":"<turn>"}}}}`. The official reducer keeps it, it is erased with
/// the session, and clients ignore it.
const META_KEY: &str = "breakbulk";
const RESUME: &str = "resume";

/// A token, and the turn at whose end the agent resumes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct ResumeToken<'a> {
    pub(super) token: &'a str,
    pub(super) turn: &'a str,
}

/// Finds the session of a chat; `None` if the session does not list the chat.
pub(super) async fn locate_chat(log_writer: &LogWriter, chat: &str) -> Result<Option<ChatLocation>, StateError> {
    let Some(session) = log_writer.session_of(chat).await? else { return Ok(None) };
    let is_listed = |session: &SessionState, _| session.chats.iter().any(|there| there.resource == chat);
    let is_listed = log_writer.session(&session, is_listed).await?.unwrap_or(false);
    let role = log_writer.chat(chat, |chat, _| ChatRole::of(chat)).await?.filter(|_| is_listed);
    Ok(role.map(|role| ChatLocation { session, role }))
}

/// The session of a chat, and what the chat is for.
pub(super) struct ChatLocation {
    pub(super) session: Arc<str>,
    pub(super) role: ChatRole,
}

/// What a chat is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChatRole {
    /// A conversation of users with an agent.
    Conversation,
    /// It shows the work of a sub-agent: users cannot write to it, and no conversation starts.
    SubAgent,
}

impl ChatRole {
    fn of(chat: &ChatState) -> Self {
        let is_watched = matches!(chat.interactivity, Some(ChatInteractivity::ReadOnly | ChatInteractivity::Hidden));
        match is_watched || matches!(chat.origin, Some(ChatOrigin::Tool { .. })) {
            true => Self::SubAgent,
            false => Self::Conversation,
        }
    }
}

/// Starts a conversation with an agent that is to know these turns.
pub(super) async fn start(
    context: &RunnerContext,
    writer: &TaskWriter,
    session: &Arc<str>,
    chat: &Arc<str>,
    history: History,
) -> Result<Started, AgentError> {
    let unavailable = |error: StateError| AgentError::Unavailable(error.to_string());
    let no_chat = || AgentError::Unavailable("there is no such chat".to_owned());
    let read = |chat: &ChatState, _| (chat.working_directories.clone(), chat.origin.clone());
    let (subset, origin) = context.log_writer.chat(chat, read).await.map_err(unavailable)?.ok_or_else(no_chat)?;
    let side_chat = side_chat_context(context, chat, origin).await.map_err(unavailable)?;
    let last = history.last_id().await.map_err(unavailable)?;
    let read = |there: &SessionState, _| {
        let kept = token_of(there.meta.as_ref(), chat);
        let token = kept.filter(|kept| Some(kept.turn) == last.as_deref()).map(|kept| kept.token.to_owned());
        let is_stale = kept.is_some() && token.is_none();
        let (directories, config) = (directories(there, subset), config(there));
        let (session, chat) = (session.to_string(), chat.to_string());
        let services = context.workspace.services(&session, &chat, directories.first().cloned());
        let start = Start { session, chat, directories, config, history, token, services, side_chat };
        (there.provider.clone(), is_stale, start)
    };
    let (provider, is_stale, start) =
        context.log_writer.session(session, read).await.map_err(unavailable)?.ok_or_else(no_chat)?;
    if is_stale {
        // Clients choose the ids of turns: a later turn may have the id of the one that the token belongs to.
        save_token(&context.log_writer, writer, session, chat, None).await.map_err(|TaskStopped| AgentError::Ended)?;
    }
    let agent = context.agents.iter().find(|agent| agent.name() == provider);
    let agent = agent.ok_or_else(|| AgentError::Unavailable(format!("there is no agent {provider} here")))?;
    let late = |_| AgentError::Unavailable(format!("it did not start within {} min", MAX_AGENT_START.as_secs() / 60));
    tokio::time::timeout(MAX_AGENT_START, agent.start(start)).await.map_err(late)?
}

/// What a side chat is about: the other chat, as it was when the side chat was made.
async fn side_chat_context(
    context: &RunnerContext,
    side: &str,
    origin: Option<ChatOrigin>,
) -> Result<Option<SideChatContext>, StateError> {
    let Some(ChatOrigin::SideChat { chat, selection, .. }) = origin else { return Ok(None) };
    let history = context.log_writer.state().history_for_side_chat(&chat, side).await?;
    Ok(Some(SideChatContext { history, selection }))
}

fn directories(session: &SessionState, subset: Option<Vec<String>>) -> Vec<PathBuf> {
    let directories = subset.or_else(|| session.working_directories.clone()).unwrap_or_default();
    directories.iter().filter_map(|uri| path_of(uri).ok()).collect()
}

/// The options of a session now; `None` if they cannot be read, which a later call will do.
pub(super) async fn read_config(log_writer: &LogWriter, session: &str) -> Option<JsonObject> {
    log_writer.session(session, |session, _| config(session)).await.ok().flatten()
}

fn config(session: &SessionState) -> JsonObject {
    session.config.as_ref().map(|config| config.values.clone()).unwrap_or_default()
}

/// Saves the token for the next conversation, or removes it. Returns the seq of the entry, if one was needed.
pub(super) async fn save_token(
    log_writer: &LogWriter,
    writer: &TaskWriter,
    session: &str,
    chat: &str,
    token: Option<ResumeToken<'_>>,
) -> Result<Option<Seq>, TaskStopped> {
    let make = || async {
        let read = |there: &SessionState, seq| {
            let is_known = token_of(there.meta.as_ref(), chat) == token;
            (!is_known).then(|| (with_token(there, chat, token), seq))
        };
        let changed = if_readable(log_writer.session(session, read).await)?;
        Ok(changed.flatten().map(|(meta, seq)| {
            let changed = StateAction::SessionMetaChanged(SessionMetaChangedAction { meta: Some(meta) });
            Transaction::new().expect(session, seq).action(session, &changed)
        }))
    };
    writer.transact(make).await
}

fn token_of<'a>(meta: Option<&'a JsonObject>, chat: &str) -> Option<ResumeToken<'a>> {
    ResumeToken::deserialize(meta?.get(META_KEY)?.get(RESUME)?.get(chat)?).ok()
}

/// The session's `_meta` with this token for the chat. Tokens of chats that are gone are removed.
fn with_token(session: &SessionState, chat: &str, token: Option<ResumeToken<'_>>) -> JsonObject {
    let mut meta = session.meta.clone().unwrap_or_default();
    let mut ours = take_object(&mut meta, META_KEY);
    let mut tokens = take_object(&mut ours, RESUME);
    tokens.retain(|chat, _| session.chats.iter().any(|there| there.resource == *chat));
    match token {
        Some(ResumeToken { token, turn }) => {
            drop(tokens.insert(chat.to_owned(), json!({ "token": token, "turn": turn })))
        }
        None => drop(tokens.remove(chat)),
    }
    ours.insert(RESUME.to_owned(), Value::Object(tokens));
    meta.insert(META_KEY.to_owned(), Value::Object(ours));
    meta
}

/// Removes and returns the object of this name; an empty one if there is none.
fn take_object(from: &mut JsonObject, name: &str) -> JsonObject {
    match from.remove(name) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}
