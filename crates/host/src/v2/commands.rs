//! What commands do: they become the same logged actions that an AHP client dispatches, checked by the same rules.

use std::sync::Arc;

use ahp::reducers::apply_action_to_chat;
use ahp_types::actions::{
    ActionOrigin, ChatPendingMessageRemovedAction, ChatPendingMessageSetAction, ChatToolCallConfirmedAction,
    ChatTurnCancelledAction, ChatTurnStartedAction, SessionConfigChangedAction, SessionMetaChangedAction, StateAction,
};
use ahp_types::commands::{CreateSessionParams, ListSessionsParams};
use ahp_types::common::JsonObject;
use ahp_types::errors::ahp_error_codes::SESSION_ALREADY_EXISTS;
use ahp_types::state::{
    ActiveTurn, ChatState, Message, MessageAttachment, MessageEmbeddedResourceAttachment, MessageKind, MessageOrigin,
    ModelSelection, PendingMessageKind, ResponsePart, SessionInputRequest, SessionState, SessionStatus, SessionSummary,
    SnapshotState, ToolCallCancellationReason, ToolCallConfirmationReason, ToolCallConfirmationState,
    ToolCallPendingConfirmationState, ToolCallState, ToolInput,
};
use breakbulk_lifecycle::v2::wire::{
    AckOutcome, Command, Decision, Image, PromptCommand, SessionInfo, SessionState as Doing,
};
use serde_json::{Map, Value, json};

use super::done_commands::{Before, OnceCommand, fingerprint, hex};
use super::moment::session_state;
use super::{Place, V2Inner};
use crate::error::MethodError;
use crate::files::{time, uri_of};
use crate::gate::{self, Client, GateContext};
use crate::host::{Transaction, append_error, new_id};
use crate::log::Seq;
use crate::state::StateError;

/// The option of a session that holds the permission mode.
pub(super) const MODE_OPTION: &str = "mode";

/// The option of a session that holds the model.
const MODEL_OPTION: &str = "model";

/// Who gives commands.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) client: Arc<str>,
    pub(super) principal: Option<Arc<str>>,
}

/// What a command has done.
#[derive(Debug)]
pub(super) struct Performed {
    pub(super) outcome: AckOutcome,
    /// The session that it was for, or that it has made.
    pub(super) session: String,
    /// Whether it had been done before.
    pub(super) repeated: bool,
}

/// Why a command was not done.
#[derive(Debug)]
pub(super) enum NotDone {
    /// It was done before.
    Repeated(AckOutcome),
    /// There was nothing to do.
    Nothing,
    /// It cannot be done.
    Refused(String),
}

impl NotDone {
    fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }
}

impl From<MethodError> for NotDone {
    fn from(error: MethodError) -> Self {
        Self::Refused(error.message)
    }
}

impl From<StateError> for NotDone {
    fn from(error: StateError) -> Self {
        match error {
            StateError::NotFound | StateError::NotAChat => Self::refused("there is no such session"),
            error => MethodError::from(error).into(),
        }
    }
}

/// What is to happen in a session.
enum Intent<'a> {
    /// Say something: now, or when the running turn is over.
    Say(Message),
    /// Cancel the running turn, empty the queue, and say something.
    Interrupt(Option<Message>),
    /// End the session.
    Stop,
    /// Change nothing but the mode.
    Mode,
    /// Answer a permission request.
    Answer { permission: &'a str, decision: Decision, answers: Option<&'a Map<String, Value>> },
}

impl V2Inner {
    /// Does a command that changes something. `watched` are the sessions that the connection watches.
    pub(super) async fn perform(
        &self,
        caller: &Caller,
        command: Command,
        watched: &[Arc<str>],
    ) -> Result<Performed, NotDone> {
        match &command {
            Command::Open { agent, cwd, model, mode, client_msg_id } => {
                let wanted = OpenPayload { agent, cwd, model: model.as_deref(), mode: mode.as_deref() };
                self.open(caller, wanted, client_msg_id.as_deref()).await
            }
            Command::Send(prompt) | Command::Queue(prompt) => {
                let content = PromptContent::of(prompt);
                let once = self.once(&prompt.session_id, &prompt.client_msg_id, &content).await?;
                let intent = Intent::Say(message(prompt));
                self.intent(caller, &prompt.session_id, prompt.mode.as_deref(), &intent, Some(&once)).await
            }
            Command::Interrupt { session_id, prompt, client_msg_id } => {
                let once = self.once(session_id, client_msg_id, &("interrupt", prompt)).await?;
                let said = prompt.as_ref().map(|text| said(text.clone(), client_msg_id, None, Vec::new()));
                self.intent(caller, session_id, None, &Intent::Interrupt(said), Some(&once)).await
            }
            Command::Stop { session_id } => self.intent(caller, session_id, None, &Intent::Stop, None).await,
            Command::SetMode { session_id, mode } => {
                self.intent(caller, session_id, Some(mode), &Intent::Mode, None).await
            }
            Command::PermissionResponse { perm_id, decision, answers } => {
                let session = self.session_that_asks(perm_id, watched).await?;
                let intent = Intent::Answer { permission: perm_id, decision: *decision, answers: answers.as_ref() };
                self.intent(caller, &session, None, &intent, None).await
            }
            _ => Err(NotDone::refused("it is not for the host")),
        }
    }

    /// A page of the sessions, the last used first: as many as fit an event, and where the next page begins.
    pub(super) async fn list(
        &self,
        cursor: Option<String>,
        limit: Option<u64>,
    ) -> Result<(Vec<SessionInfo>, Option<String>), StateError> {
        // What the event has beside the sessions: its type and the cursor.
        const ENVELOPE: usize = 1 << 10;
        let params = json!({ "channel": ahp_types::ROOT_RESOURCE_URI, "cursor": cursor });
        let mut params: ListSessionsParams = serde_json::from_value(params)?;
        params.limit = limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
        let room = self.config.max_event_bytes.saturating_sub(ENVELOPE);
        loop {
            let page = self.services.log_writer().state().sessions(&params).await?;
            let sessions: Vec<SessionInfo> = page.items.into_iter().map(listed).collect();
            let mut bytes = 0_usize;
            let fits = |info: &&SessionInfo| {
                let own = crate::exact::to_vec(info).map_or(0, |text| text.len().saturating_add(1));
                bytes = bytes.saturating_add(own);
                bytes <= room
            };
            let fitting = sessions.iter().take_while(fits).count();
            if fitting == sessions.len() || sessions.len() == 1 {
                return Ok((sessions, page.next_cursor));
            }
            // A shorter page has the cursor of its own end.
            params.limit = Some(i64::try_from(fitting.max(1)).unwrap_or(i64::MAX));
        }
    }

    async fn open(
        &self,
        caller: &Caller,
        wanted: OpenPayload<'_>,
        client_msg_id: Option<&str>,
    ) -> Result<Performed, NotDone> {
        let name = match client_msg_id {
            // The same client that repeats the command means the same session.
            Some(id) => {
                let principal = caller.principal.as_deref().unwrap_or_default();
                hex(fingerprint(format!("{}:{principal}{id}", principal.len()).as_bytes()))
            }
            None => new_id(),
        };
        let session = format!("ahp-session:/v2-{name}");
        let once = client_msg_id.map(|id| OnceCommand::that_makes(&session, id, &wanted));
        let directory = uri_of(wanted.cwd.as_ref());
        let options = [(MODE_OPTION, wanted.mode), (MODEL_OPTION, wanted.model)];
        let chosen = options.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?))));
        let config: JsonObject = chosen.collect();
        let params = json!({ "channel": session, "provider": wanted.agent, "workingDirectories": [directory],
            "config": config });
        let params: CreateSessionParams = serde_json::from_value(params).map_err(StateError::from)?;
        let recorded = |transaction| match &once {
            Some(once) => once.record(transaction, 0, AckOutcome::Done),
            None => transaction,
        };
        let repeated = match (self.services.make_session(params, &recorded).await, &once) {
            (Ok(()), _) => false,
            (Err(error), Some(once)) if error.code == SESSION_ALREADY_EXISTS => {
                let is_there = self.services.log_writer().has(&session).await?;
                match self.done.find(once).await.map_err(StateError::from)? {
                    Before::Done(_) if is_there => true,
                    Before::Other => return Err(another()),
                    // It is being disposed of, or an AHP client has made it.
                    Before::Done(_) | Before::NotDone(_) => return Err(error.into()),
                }
            }
            (Err(error), _) => return Err(error.into()),
        };
        Ok(Performed { outcome: AckOutcome::Done, session, repeated })
    }

    /// A command that is done once in its session. The same id for another chat of the session is another command.
    async fn once(&self, name: &str, id: &str, payload: &impl serde::Serialize) -> Result<OnceCommand, NotDone> {
        let Place { session, .. } = self.place_of(name).await?;
        Ok(match *session == *name {
            true => OnceCommand::new(&session, id, payload),
            false => OnceCommand::new(&session, id, &(name, payload)),
        })
    }

    /// The session or chat among these whose session waits for this permission.
    async fn session_that_asks(&self, permission: &str, watched: &[Arc<str>]) -> Result<String, NotDone> {
        let log_writer = self.services.log_writer();
        // A client may answer as soon as it has been told, which is before the state has what it was told.
        let last = log_writer.log().bounds().await.map_err(StateError::from)?.last;
        log_writer.state().reached(last).await?;
        for name in watched {
            let Ok(Place { session, .. }) = self.place_of(name).await else { continue };
            let Ok((state, _)) = session_state(log_writer.state(), &session).await else { continue };
            if asked_call(&state, permission).is_some() {
                return Ok(name.to_string());
            }
        }
        Err(NotDone::refused(
            "no session that this connection watches waits for this permission: it may be answered, or late",
        ))
    }

    /// Logs what an intent means in the state that the session is in.
    async fn intent(
        &self,
        caller: &Caller,
        name: &str,
        mode: Option<&str>,
        intent: &Intent<'_>,
        once: Option<&OnceCommand>,
    ) -> Result<Performed, NotDone> {
        let log_writer = self.services.log_writer();
        let Place { session, chat } = self.place_of(name).await?;
        let session = &*session;
        let (state, _) = session_state(log_writer.state(), session).await?;
        let asked = match intent {
            Intent::Answer { permission, .. } => asked_call(&state, permission).map(|(chat, ..)| chat),
            _ => None,
        };
        let chat = asked.unwrap_or(chat);
        let (turn, outcome) = (new_id(), std::sync::Mutex::new(AckOutcome::Done));
        let make = || async {
            let records = match once {
                None => None,
                Some(once) => match self.done.find(once).await.map_err(StateError::from)? {
                    Before::NotDone(seq) => Some((once, seq)),
                    Before::Done(outcome) => return Err(NotDone::Repeated(outcome)),
                    Before::Other => return Err(another()),
                },
            };
            let (state, session_seq) = session_state(log_writer.state(), session).await?;
            let moment = log_writer.state().chat_moment(&chat, without_texts).await?;
            let mut plan = TransactionPlan::new(caller, session, &chat, &state, moment.read);
            plan.mode(mode)?;
            let done = plan.intent(intent, &turn)?;
            *crate::lock::lock(&outcome) = done;
            let transaction = plan.transaction(session_seq, moment.seq);
            match records {
                Some((once, seq)) => Ok(once.record(transaction.unwrap_or_default(), seq, done)),
                None => transaction.ok_or(NotDone::Nothing),
            }
        };
        let refuse = |error| append_error(error).into();
        let (outcome, repeated) = match log_writer.transact_on(&[session, &chat], make, refuse).await {
            Ok(_) | Err(NotDone::Nothing) => (*crate::lock::lock(&outcome), false),
            Err(NotDone::Repeated(outcome)) => (outcome, true),
            Err(refused) => return Err(refused),
        };
        Ok(Performed { outcome, session: name.to_owned(), repeated })
    }
}

/// A session that is to be made.
#[derive(serde::Serialize)]
struct OpenPayload<'a> {
    agent: &'a str,
    cwd: &'a str,
    model: Option<&'a str>,
    mode: Option<&'a str>,
}

/// What makes two prompts with one `clientMsgId` the same: `send` and `queue` mean the same.
#[derive(serde::Serialize)]
struct PromptContent<'a> {
    prompt: &'a str,
    images: &'a [Image],
    model: Option<&'a str>,
    mode: Option<&'a str>,
}

impl<'a> PromptContent<'a> {
    fn of(prompt: &'a PromptCommand) -> Self {
        let PromptCommand { prompt, images, model, mode, .. } = prompt;
        Self { prompt, images, model: model.as_deref(), mode: mode.as_deref() }
    }
}

/// The actions that an intent becomes, each checked against the state that the ones before lead to.
struct TransactionPlan<'a> {
    caller: &'a Caller,
    session: &'a str,
    chat: &'a str,
    state: &'a SessionState,
    /// The chat after the actions so far, without what was said in it.
    then: SnapshotState,
    actions: Vec<(&'a str, StateAction)>,
    /// The new `_meta` of the session.
    meta: Option<JsonObject>,
}

impl<'a> TransactionPlan<'a> {
    fn new(caller: &'a Caller, session: &'a str, chat: &'a str, state: &'a SessionState, then: ChatState) -> Self {
        let then = SnapshotState::Chat(Box::new(then));
        Self { caller, session, chat, state, then, actions: Vec::new(), meta: None }
    }

    /// Changes the mode, if it is another one.
    fn mode(&mut self, mode: Option<&str>) -> Result<(), NotDone> {
        let Some(mode) = mode else { return Ok(()) };
        let now = self.state.config.as_ref().and_then(|config| config.values.get(MODE_OPTION)?.as_str());
        if now == Some(mode) {
            return Ok(());
        }
        let config = JsonObject::from_iter([(MODE_OPTION.to_owned(), json!(mode))]);
        let action = StateAction::SessionConfigChanged(SessionConfigChangedAction { config, replace: None });
        let state = SnapshotState::Session(Box::new(self.state.clone()));
        self.check(&action, &state)
            .map_err(|_| NotDone::refused("the agent of this session has no such mode to change"))?;
        self.actions.push((self.session, action));
        Ok(())
    }

    fn intent(&mut self, intent: &Intent<'_>, turn: &str) -> Result<AckOutcome, NotDone> {
        match intent {
            Intent::Say(message) if self.running().is_some() => {
                let (kind, id) = (PendingMessageKind::Queued, turn.to_owned());
                let set = ChatPendingMessageSetAction { kind, id, message: message.clone() };
                self.act(StateAction::ChatPendingMessageSet(set))?;
                Ok(AckOutcome::Queued)
            }
            Intent::Say(message) => self.start(message.clone(), turn),
            Intent::Interrupt(message) => {
                self.clear()?;
                message.clone().map_or(Ok(AckOutcome::Done), |message| self.start(message, turn))
            }
            Intent::Stop => {
                self.clear()?;
                self.set_ended(true);
                Ok(AckOutcome::Done)
            }
            Intent::Mode => Ok(AckOutcome::Done),
            Intent::Answer { permission, decision, answers } => self.answer(permission, *decision, *answers),
        }
    }

    /// Begins a turn. A session that was stopped goes on.
    fn start(&mut self, message: Message, turn: &str) -> Result<AckOutcome, NotDone> {
        self.set_ended(false);
        let (turn_id, started_at) = (turn.to_owned(), time::now());
        let started = ChatTurnStartedAction { turn_id, started_at, message, queued_message_id: None, meta: None };
        self.act(StateAction::ChatTurnStarted(started))?;
        Ok(AckOutcome::Started)
    }

    /// Cancels the running turn, and takes back the prompts that wait.
    fn clear(&mut self) -> Result<(), NotDone> {
        if let Some(turn_id) = self.running() {
            // How long it ran is not known here.
            self.act(StateAction::ChatTurnCancelled(ChatTurnCancelledAction { turn_id, duration: 0, meta: None }))?;
        }
        let SnapshotState::Chat(chat) = &self.then else { return Ok(()) };
        let steering = chat.steering_message.iter().map(|message| (PendingMessageKind::Steering, message.id.clone()));
        let queued = chat.queued_messages.iter().flatten();
        let queued = queued.map(|message| (PendingMessageKind::Queued, message.id.clone()));
        for (kind, id) in steering.chain(queued).collect::<Vec<_>>() {
            self.act(StateAction::ChatPendingMessageRemoved(ChatPendingMessageRemovedAction { kind, id }))?;
        }
        Ok(())
    }

    fn answer(
        &mut self,
        permission: &str,
        decision: Decision,
        answers: Option<&Map<String, Value>>,
    ) -> Result<AckOutcome, NotDone> {
        let moot = || NotDone::refused("this permission is answered, or late");
        let (_, turn_id, call) = asked_call(self.state, permission).ok_or_else(moot)?;
        let meta = answers.map(|answers| {
            let mut meta = call.meta.clone().unwrap_or_default();
            let ours = meta.entry("breakbulk".to_owned()).or_insert_with(|| json!({}));
            if let Value::Object(ours) = ours {
                ours.insert("answers".to_owned(), Value::Object(answers.clone()));
            }
            meta
        });
        let edited = answers.filter(|_| call.editable == Some(true) && decision.allows());
        let confirmed = ChatToolCallConfirmedAction {
            turn_id,
            tool_call_id: call.tool_call_id.clone(),
            meta,
            approved: decision.allows(),
            confirmed: decision.allows().then_some(ToolCallConfirmationReason::UserAction),
            reason: (!decision.allows()).then_some(ToolCallCancellationReason::Denied),
            edited_tool_input: edited.and_then(|answers| with_answers(call.tool_input.as_ref(), answers)),
            user_suggestion: None,
            reason_message: None,
            selected_option_id: decision.choose(call.options.as_deref().unwrap_or_default()).map(str::to_owned),
        };
        self.act(StateAction::ChatToolCallConfirmed(confirmed))?;
        Ok(AckOutcome::Done)
    }

    /// Adds an action of the client on the chat.
    fn act(&mut self, action: StateAction) -> Result<(), NotDone> {
        self.check(&action, &self.then)?;
        if let SnapshotState::Chat(chat) = &mut self.then {
            apply_action_to_chat(chat, &action);
        }
        self.actions.push((self.chat, action));
        Ok(())
    }

    fn check(&self, action: &StateAction, state: &SnapshotState) -> Result<(), NotDone> {
        let client = Client { id: self.caller.client.to_string() };
        let alone = GateContext::of(state);
        let context = GateContext { session: alone.session.or(Some(self.state)), ..alone };
        gate::check(&client, action, &context).map_err(|why| NotDone::Refused(why.to_string()))
    }

    fn running(&self) -> Option<String> {
        match &self.then {
            SnapshotState::Chat(chat) => chat.active_turn.as_ref().map(|turn| turn.id.clone()),
            _ => None,
        }
    }

    /// Marks the session as ended or not, if that changes.
    fn set_ended(&mut self, ended: bool) {
        let mut meta = self.state.meta.clone().unwrap_or_default();
        let was = meta.get("breakbulk").and_then(|ours| ours.get("ended")) == Some(&Value::Bool(true));
        if was == ended {
            return;
        }
        let ours = meta.entry("breakbulk".to_owned()).or_insert_with(|| json!({}));
        if let Value::Object(ours) = ours {
            match ended {
                true => ours.insert("ended".to_owned(), Value::Bool(true)),
                false => ours.remove("ended"),
            };
        }
        self.meta = Some(meta);
    }

    /// All of it, if the chat and what it depends on are still as they were; `None` if there is nothing to do.
    fn transaction(self, session_seq: Seq, chat_seq: Seq) -> Option<Transaction> {
        let Self { caller, session, chat, actions, meta, .. } = self;
        if actions.is_empty() && meta.is_none() {
            return None;
        }
        let mut transaction = Transaction::new().by_client(caller.principal.as_deref(), &caller.client);
        transaction = transaction.expect(chat, chat_seq);
        let meta = meta.map(|meta| StateAction::SessionMetaChanged(SessionMetaChangedAction { meta: Some(meta) }));
        let goes_on = actions.iter().any(|(_, action)| matches!(action, StateAction::ChatTurnStarted(_)));
        if meta.is_some() || actions.iter().any(|(channel, _)| *channel == session) {
            transaction = transaction.expect(session, session_seq);
        }
        // It goes on before a turn begins, and ends after the last one was cancelled.
        let (before, after) = if goes_on { (meta, None) } else { (None, meta) };
        transaction = before.iter().fold(transaction, |all, action| all.action(session, action));
        let origin = ActionOrigin { client_id: caller.client.to_string(), client_seq: 0 };
        for (channel, action) in &actions {
            transaction = transaction.dispatched(channel, action, &origin);
        }
        // The agent runner ends the program when a client stops the session, which the origin tells it.
        Some(after.iter().fold(transaction, |all, action| all.dispatched(session, action, &origin)))
    }
}

fn another() -> NotDone {
    NotDone::refused("the clientMsgId was used for another command: each command needs one of its own")
}

/// What a client has said, as AHP has it.
fn message(prompt: &PromptCommand) -> Message {
    let images = prompt.images.iter().zip(1..).map(|(image, number)| {
        MessageAttachment::EmbeddedResource(MessageEmbeddedResourceAttachment {
            label: format!("image {number}"),
            range: None,
            display_kind: Some("image".to_owned()),
            meta: None,
            data: image.data.clone(),
            content_type: image.media_type.clone(),
            selection: None,
        })
    });
    said(prompt.prompt.clone(), &prompt.client_msg_id, prompt.model.clone(), images.collect())
}

fn said(text: String, client_msg_id: &str, model: Option<String>, attachments: Vec<MessageAttachment>) -> Message {
    let meta = JsonObject::from_iter([("breakbulk".to_owned(), json!({ "clientMsgId": client_msg_id }))]);
    Message {
        text,
        origin: MessageOrigin { kind: MessageKind::User },
        attachments: Some(attachments).filter(|attachments| !attachments.is_empty()),
        model: model.map(|id| ModelSelection { id, config: None }),
        agent: None,
        meta: Some(meta),
    }
}

/// The chat, the turn and the call of a permission that a session waits for.
fn asked_call(session: &SessionState, permission: &str) -> Option<(String, String, ToolCallPendingConfirmationState)> {
    session.input_needed.iter().flatten().find_map(|request| match request {
        SessionInputRequest::ToolConfirmation(request) if request.id == permission => match &request.tool_call {
            ToolCallConfirmationState::PendingConfirmation(call) => {
                Some((request.chat.clone(), request.turn_id.clone(), call.clone()))
            }
            _ => None,
        },
        _ => None,
    })
}

/// The input of a call, with the answers to the questions that it asks.
fn with_answers(input: Option<&ToolInput>, answers: &Map<String, Value>) -> Option<String> {
    let Some(ToolInput::Inline(text)) = input else { return None };
    let mut input: Map<String, Value> = serde_json::from_str(text).ok()?;
    input.insert("answers".to_owned(), Value::Object(answers.clone()));
    Some(Value::Object(input).to_string())
}

/// A chat without its texts: what decides about actions.
fn without_texts(chat: &ChatState) -> ChatState {
    let calls = |turn: &ActiveTurn| {
        let parts = turn.response_parts.iter();
        let is_asked = |part: &&ResponsePart| {
            matches!(part, ResponsePart::ToolCall(part)
                if matches!(part.tool_call, ToolCallState::PendingConfirmation(_)))
        };
        parts.filter(is_asked).cloned().collect()
    };
    let active_turn = chat.active_turn.as_ref().map(|turn| ActiveTurn {
        id: turn.id.clone(),
        started_at: turn.started_at.clone(),
        message: said(String::new(), "", None, Vec::new()),
        response_parts: calls(turn),
        usage: None,
    });
    ChatState { active_turn, ..super::rewind::without_turns(chat) }
}

/// A session in a list.
fn listed(summary: SessionSummary) -> SessionInfo {
    let has = |status: SessionStatus| summary.status & status.bits() == status.bits();
    let state = if has(SessionStatus::InputNeeded) {
        Doing::RequiresAction
    } else if has(SessionStatus::InProgress) {
        Doing::Running
    } else {
        Doing::Idle
    };
    let cwd = summary.working_directories.iter().flatten().next().cloned().unwrap_or_default();
    let path = cwd.strip_prefix("file://").and_then(crate::percent::read);
    SessionInfo {
        session_id: summary.resource,
        title: summary.title,
        agent: summary.provider,
        cwd: path.map_or(cwd.clone(), |path| String::from_utf8_lossy(&path).into_owned()),
        state,
        modified_at: summary.modified_at,
    }
}
