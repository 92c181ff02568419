//! Makes chats (empty, forks, side chats), disposes of them, and reads their older turns.

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{
    ChatTurnStartedAction, SessionChatAddedAction, SessionChatRemovedAction, SessionDefaultChatChangedAction,
    StateAction,
};
use ahp_types::commands::{ChatSource, CreateChatParams, DisposeChatParams, FetchTurnsParams};
use ahp_types::errors::ahp_error_codes::{ALREADY_EXISTS, NOT_FOUND, PERMISSION_DENIED, SESSION_NOT_FOUND};
use ahp_types::errors::json_rpc_error_codes::INVALID_PARAMS;
use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{
    AgentInfo, ChatOrigin, ChatState, ChatSummary, Message, MessageKind, SessionChatSummary, SessionState,
    SessionStatus, SnapshotState, Turn,
};

use super::dispatch::no_channel;
use super::log_writer::{Transaction, append_error};
use super::services::Services;
use super::{names, restore};
use crate::endpoint::{ClientInfo, Reply};
use crate::error::MethodError;
use crate::files::time;
use crate::log::{AppendError, Seq};
use crate::state::StateError;
use crate::state::entry::CatalogueNotification;

/// The title of a chat before its first prompt.
pub(crate) const UNTITLED: &str = "New chat";

/// More than the envelope of the message that carries a page of turns.
const ENVELOPE_BYTES: u64 = 1024;

/// A chat that is about to be made.
#[derive(Debug)]
pub(crate) struct NewChat {
    pub(crate) uri: String,
    pub(crate) title: String,
    pub(crate) origin: ChatOrigin,
    pub(crate) directories: Option<Vec<String>>,
    pub(crate) turns: Vec<Turn>,
    pub(crate) side_chat_of: Option<SideChatSource>,
}

/// The chat that a side chat is about, up to a turn, as of a seq of that chat.
#[derive(Debug)]
pub(crate) struct SideChatSource {
    chat: String,
    turn: String,
    seq: Seq,
}

impl NewChat {
    /// An empty chat.
    pub(crate) fn new(uri: String, origin: ChatOrigin) -> Self {
        Self { uri, title: UNTITLED.to_owned(), origin, directories: None, turns: Vec::new(), side_chat_of: None }
    }

    /// The first state of its channel.
    pub(crate) fn state(&self, now: &str) -> ChatState {
        ChatState {
            resource: self.uri.clone(),
            title: self.title.clone(),
            status: SessionStatus::Idle.bits(),
            activity: None,
            modified_at: now.to_owned(),
            changes: None,
            origin: Some(self.origin.clone()),
            movable: None,
            interactivity: None,
            working_directories: self.directories.clone(),
            changesets: None,
            background_work: None,
            canvases: None,
            turns: self.turns.clone(),
            turns_next_cursor: None,
            active_turn: None,
            steering_message: None,
            queued_messages: None,
            draft: None,
            meta: None,
        }
    }

    /// Its summary in the list of its session.
    pub(crate) fn summary(&self, now: &str) -> ChatSummary {
        ChatSummary {
            resource: self.uri.clone(),
            title: self.title.clone(),
            status: SessionStatus::Idle.bits(),
            activity: None,
            modified_at: now.to_owned(),
            changes: None,
            origin: Some(self.origin.clone()),
            movable: None,
            interactivity: None,
            working_directories: self.directories.clone(),
        }
    }
}

/// The part of a chat's summary that the catalogue shows.
pub(crate) fn compact(summary: &ChatSummary) -> SessionChatSummary {
    SessionChatSummary {
        resource: summary.resource.clone(),
        title: summary.title.clone(),
        origin: summary.origin.clone(),
        interactivity: summary.interactivity,
        status: Some(summary.status),
        changes: summary.changes.clone(),
    }
}

/// Answers `createChat`.
pub(super) async fn create(services: &Services, params: CreateChatParams) -> Result<(), MethodError> {
    let CreateChatParams { channel: session, chat, mut initial_message, source, working_directories, .. } = params;
    if let Some(message) = &mut initial_message {
        restore::message(services, message).await?;
    }
    names::chat(&chat)?;
    if initial_message.as_ref().is_some_and(|message| message.origin.kind != MessageKind::User) {
        return Err(MethodError::new(
            INVALID_PARAMS,
            "initialMessage.origin.kind must be \"user\": clients send no other messages",
        ));
    }
    let (now, turn) = (time::now(), names::new_id());
    let make = || async {
        let (facts, seq) = SessionFacts::of(services, &session).await?;
        if services.log_writer.has(&chat).await? {
            return Err(MethodError::new(ALREADY_EXISTS, "a chat with this URI exists already"));
        }
        let new_chat = facts.new_chat(services, chat.clone(), source.as_ref(), working_directories.as_ref()).await?;
        let added = StateAction::SessionChatAdded(SessionChatAddedAction { summary: new_chat.summary(&now) });
        let transaction =
            Transaction::new().expect(&session, seq).open(&chat, Some(&session), &as_state(&new_chat, &now));
        let mut transaction = transaction.action(&*session, &added);
        if let Some(SideChatSource { chat: of, turn, seq }) = &new_chat.side_chat_of {
            // The other chat must not change between the reading above and this transaction.
            transaction = transaction.expect(of, *seq).side_chat(of, &chat, Some(turn));
        }
        let summaries = facts.chats.iter().map(compact).chain([compact(&new_chat.summary(&now))]);
        transaction = transaction
            .notice(&session, &summary_notice(&session, summaries.collect(), facts.default_chat.clone(), &now));
        if let Some(message) = &initial_message {
            transaction = transaction.action(&*chat, &turn_started(&turn, &now, message.clone()));
        }
        Ok(transaction)
    };
    let refuse = |error| match error {
        AppendError::OtherSession(_) => MethodError::new(ALREADY_EXISTS, "a channel of another session has this URI"),
        error => append_error(error),
    };
    services.log_writer.transact(make, refuse).await.map(drop)
}

/// Answers `disposeChat`.
pub(super) async fn dispose(services: &Services, params: DisposeChatParams) -> Result<(), MethodError> {
    let chat = params.channel;
    let not_found = || MethodError::new(NOT_FOUND, format!("there is no chat {chat:?}"));
    let session =
        services.log_writer.session_of(&chat).await?.filter(|session| **session != *chat).ok_or_else(not_found)?;
    let origin = services.log_writer.chat(&chat, |chat, _| chat.origin.clone()).await?.ok_or_else(not_found)?;
    services.agent_runner.close(&chat).await;
    let make = || async {
        let (facts, seq) = SessionFacts::of(services, &session).await?;
        if !facts.chats.iter().any(|summary| summary.resource == chat) {
            return Err(not_found());
        }
        let rest: Vec<_> = facts.chats.iter().filter(|summary| summary.resource != chat).collect();
        let removed = StateAction::SessionChatRemoved(SessionChatRemovedAction { chat: chat.clone() });
        let mut transaction = Transaction::new().expect(&session, seq).action(&*session, &removed);
        let mut default_chat = facts.default_chat.clone();
        if default_chat.as_ref() == Some(&chat) {
            default_chat = rest.first().map(|summary| summary.resource.clone());
            let changed = SessionDefaultChatChangedAction { default_chat: default_chat.clone() };
            transaction = transaction.action(&*session, &StateAction::SessionDefaultChatChanged(changed));
        }
        if let Some(ChatOrigin::SideChat { chat: of, .. }) = &origin {
            transaction = transaction.side_chat(of, &chat, None);
        }
        let summaries = rest.into_iter().map(compact).collect();
        let notice = summary_notice(&session, summaries, default_chat, &time::now());
        Ok(transaction.notice(&session, &notice).close(&chat))
    };
    services.log_writer.transact(make, append_error).await.map(drop)
}

/// Answers `fetchTurns`: the client gets the turns as an action that only it receives, and then an empty result.
pub(super) async fn fetch_turns(
    services: &Services,
    client: &ClientInfo,
    params: FetchTurnsParams,
) -> Result<Reply, MethodError> {
    let max_bytes = usize::try_from(client.message_bytes.saturating_sub(ENVELOPE_BYTES)).unwrap_or(usize::MAX);
    let state = services.log_writer.state();
    let payment = client.memory.reserve(state.turns_page_bytes().min(max_bytes)).await?;
    let page = state
        .fetch_turns(&params.channel, params.cursor.as_deref(), max_bytes)
        .await
        .map_err(|error| if error == StateError::NotFound { no_channel(&params.channel) } else { error.into() })?;
    let before = page.map(|page| (params.channel.into(), payment.attach(&page.action)));
    Ok(Reply { before, is_reserved: true, ..Reply::from(breakbulk_proto::Message::from("{}")) })
}

/// What changes of a session's list of chats depend on.
struct SessionFacts {
    provider: String,
    directories: Option<Vec<String>>,
    chats: Vec<ChatSummary>,
    default_chat: Option<String>,
}

impl SessionFacts {
    async fn of(services: &Services, session: &str) -> Result<(Self, Seq), MethodError> {
        let not_found = || MethodError::new(SESSION_NOT_FOUND, format!("there is no session {session:?}"));
        services.log_writer.session(session, |session, seq| (Self::new(session), seq)).await?.ok_or_else(not_found)
    }

    fn new(session: &SessionState) -> Self {
        Self {
            provider: session.provider.clone(),
            directories: session.working_directories.clone(),
            chats: session.chats.clone(),
            default_chat: session.default_chat.clone(),
        }
    }

    async fn new_chat(
        &self,
        services: &Services,
        uri: String,
        source: Option<&ChatSource>,
        directories: Option<&Vec<String>>,
    ) -> Result<NewChat, MethodError> {
        let agent = services.agents.find(Some(&self.provider))?.info();
        self.check(&agent, source)?;
        let directories = directories.map(|wanted| self.subset(&agent, wanted)).transpose()?;
        let of_session = |chat: &str| self.chats.iter().find(|summary| summary.resource == chat);
        let no_chat = |chat: &str| MethodError::new(NOT_FOUND, format!("the session has no chat {chat:?}"));
        match source {
            None => Ok(NewChat { directories, ..NewChat::new(uri, ChatOrigin::User) }),
            Some(ChatSource::Fork(from)) => {
                let source = of_session(&from.chat).ok_or_else(|| no_chat(&from.chat))?;
                let turns = turns_through(services, &from.chat, &from.turn_id).await?;
                let origin = ChatOrigin::Fork { chat: from.chat.clone(), turn_id: from.turn_id.clone() };
                let (title, directories) = (source.title.clone(), source.working_directories.clone());
                Ok(NewChat { uri, title, origin, directories, turns, side_chat_of: None })
            }
            Some(ChatSource::SideChat(from)) => {
                of_session(&from.chat).ok_or_else(|| no_chat(&from.chat))?;
                if from.selection.as_ref().is_some_and(|selection| selection.text.is_empty()) {
                    return Err(MethodError::new(INVALID_PARAMS, "source.selection.text is empty"));
                }
                let seq = services.log_writer.chat(&from.chat, |_, seq| seq).await?;
                let seq = seq.ok_or_else(|| no_chat(&from.chat))?;
                let history = services.log_writer.state().history_through(&from.chat, &from.turn_id).await?;
                history.ok_or_else(|| no_turn(&from.turn_id))?;
                let (chat, turn_id) = (from.chat.clone(), from.turn_id.clone());
                let side_chat_of = Some(SideChatSource { chat: chat.clone(), turn: turn_id.clone(), seq });
                let origin = ChatOrigin::SideChat { chat, turn_id, selection: from.selection.clone() };
                Ok(NewChat { directories, side_chat_of, ..NewChat::new(uri, origin) })
            }
            Some(ChatSource::Unknown(_)) => {
                Err(MethodError::new(INVALID_PARAMS, "source.kind is not one that this host knows"))
            }
        }
    }

    /// Fails if the agent does not support this kind of chat.
    fn check(&self, agent: &AgentInfo, source: Option<&ChatSource>) -> Result<(), MethodError> {
        let can = agent.capabilities.as_ref().and_then(|capabilities| capabilities.multiple_chats.as_ref());
        let offered = match source {
            None => can.is_some() || self.chats.is_empty(),
            Some(ChatSource::Fork(_)) => can.is_some_and(|can| can.fork == Some(true)),
            Some(ChatSource::SideChat(_)) => can.is_some_and(|can| can.side_chat == Some(true)),
            Some(ChatSource::Unknown(_)) => true,
        };
        let why = match source {
            Some(ChatSource::Fork(_)) => "the agent of this session cannot fork a chat",
            Some(ChatSource::SideChat(_)) => "the agent of this session has no side chats",
            _ => "the agent of this session has one chat only",
        };
        if offered { Ok(()) } else { Err(MethodError::new(PERMISSION_DENIED, why)) }
    }

    fn subset(&self, agent: &AgentInfo, wanted: &[String]) -> Result<Vec<String>, MethodError> {
        let can = agent.capabilities.as_ref().is_some_and(|can| can.multiple_working_directories.is_some());
        let known = |directory: &String| self.directories.iter().flatten().any(|known| known == directory);
        if !can {
            return Err(MethodError::new(INVALID_PARAMS, "the agent does not offer several working directories"));
        }
        if wanted.is_empty() {
            let why = "workingDirectories is empty: leave it out, and the chat works where its session does";
            return Err(MethodError::new(INVALID_PARAMS, why));
        }
        if !wanted.iter().all(known) {
            return Err(MethodError::new(
                INVALID_PARAMS,
                "workingDirectories names a directory that is not one of the session's",
            ));
        }
        Ok(wanted.to_vec())
    }
}

/// The turns of a chat up to this one, which has to be complete.
async fn turns_through(services: &Services, chat: &str, turn: &str) -> Result<Vec<Turn>, MethodError> {
    let history = services.log_writer.state().history_through(chat, turn).await?.ok_or_else(|| no_turn(turn))?;
    let turns = history.whole().await?;
    if turns.last().is_some_and(|last| last.id == turn) { Ok(turns) } else { Err(no_turn(turn)) }
}

fn no_turn(turn: &str) -> MethodError {
    MethodError::new(NOT_FOUND, format!("the chat has no turn {turn:?}"))
}

fn as_state(new_chat: &NewChat, now: &str) -> SnapshotState {
    SnapshotState::Chat(Box::new(new_chat.state(now)))
}

fn turn_started(turn: &str, now: &str, message: Message) -> StateAction {
    let (turn_id, started_at) = (turn.to_owned(), now.to_owned());
    let started = ChatTurnStartedAction { turn_id, started_at, message, queued_message_id: None, meta: None };
    StateAction::ChatTurnStarted(started)
}

/// The change of the catalogue that shows a new list of chats.
fn summary_notice(
    session: &str,
    chats: Vec<SessionChatSummary>,
    default_chat: Option<String>,
    now: &str,
) -> CatalogueNotification {
    let changes = PartialSessionSummary {
        chats: Some(chats),
        default_chat,
        modified_at: Some(now.to_owned()),
        ..PartialSessionSummary::default()
    };
    let (channel, session) = (ROOT_RESOURCE_URI.to_owned(), session.to_owned());
    CatalogueNotification::Changed(Box::new(SessionSummaryChangedParams { channel, session, changes }))
}
