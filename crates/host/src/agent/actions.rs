//! Translates between an agent and a chat's channel: events become actions, and logged actions of clients become commands.
//!
//! | Event | Action |
//! |---|---|
//! | a block of text begins, goes on | `chat/responsePart` (markdown), `chat/delta` |
//! | a block of thinking begins, goes on | `chat/responsePart` (reasoning), `chat/reasoning` |
//! | the input of a call begins, goes on | `chat/toolCallStart`, `chat/toolCallDelta` |
//! | a call is asked about | `chat/toolCallReady`, and `session/inputNeededSet` |
//! | an ask is answered, other than by a client | `chat/toolCallConfirmed`, and `session/inputNeededRemoved` |
//! | a call runs without having been asked about | `chat/toolCallReady` (`not-needed`) |
//! | output, end of a call | `chat/toolCallContentChanged`, `chat/toolCallComplete` |
//! | a sub-agent begins, ends | [`Step::Open`], `chat/turnComplete` there |
//! | a turn begins that nobody asked for | [`Step::Begin`], which is `chat/turnStarted` with a message of the agent |
//! | another mode | `session/configChanged` |
//! | usage, notice, end of the turn | `chat/usage`, `chat/responsePart`, `chat/turnComplete`, `…Cancelled`, `chat/error` |
//!
//! AHP has no action for the end of a block or of a message. Other protocols need it, and are produced from the same log. So both are
//! marked by an action that changes no text: an empty delta whose `_meta` has `{"breakbulk":{"ended":"block"}}`, or
//! `"message"`. The input of a call that came in one piece is in that mark. The first action of each part names its message in
//! `_meta` too, and the ids of text and reasoning parts are [made](part_id) from it.
//!
//! Names of messages and calls are the agent's own. An adapter makes them such that none comes again in a later turn.

mod convert;
mod step;
mod tools;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::{
    ChatDeltaAction, ChatErrorAction, ChatReasoningAction, ChatResponsePartAction, ChatToolCallDeltaAction,
    ChatTurnCancelledAction, ChatTurnCompleteAction, ChatUsageAction, SessionConfigChangedAction, StateAction,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    ErrorInfo, ErrorResponsePart, MarkdownResponsePart, ReasoningResponsePart, ResponsePart,
    SystemNotificationResponsePart,
};
use breakbulk_lifecycle::projection::part_id;
use breakbulk_lifecycle::{BlockKind, BlockType, Event, Failure, Formed, Id, Outcome, Usage};
use serde_json::json;

pub use self::step::{Command, Reaction, Step, SubAgentChat};
use self::tools::ToolCall;
use super::{MODE, Prompt};

/// Translates events and actions of one chat. It has no IO and no clock: time is an argument.
///
/// It holds what is known of one turn.
#[derive(Debug)]
pub struct Translator {
    session: Arc<str>,
    chat: Arc<str>,
    /// The channel of each speaker: the agent itself, and sub-agents by the call that began them.
    turn_channels: HashMap<Option<Id>, TurnChannel>,
    messages: HashMap<Id, OpenMessage>,
    parts: HashMap<(Id, Id), OpenPart>,
    tools: HashMap<Id, ToolCall>,
    /// Parts so far.
    count: u64,
    /// The turn that the agent works on, from when it was sent until the agent reports its end.
    busy: Option<Id>,
    /// The last turn that the agent was told of.
    told: Option<Id>,
    /// A turn that the agent began by itself after it was told of another one. It is not shown.
    unseen: Option<Id>,
    /// A turn that began in the chat while the agent was still ending a cancelled one.
    next: Option<(TurnChannel, Prompt)>,
}

/// The channel and turn in which a speaker's output appears.
#[derive(Debug, Clone)]
struct TurnChannel {
    channel: Arc<str>,
    turn: Id,
    began: Duration,
}

/// An open message.
#[derive(Debug)]
struct OpenMessage {
    agent: Option<Id>,
    /// Its last part so far.
    last: Option<OpenPart>,
}

/// A part of the response, as the channel knows it.
#[derive(Debug, Clone)]
struct OpenPart {
    kind: BlockType,
    id: String,
    /// Whether a delta of it was logged.
    has_streamed: bool,
}

impl Translator {
    /// For a chat of a session, both by URI.
    pub fn new(session: impl Into<Arc<str>>, chat: impl Into<Arc<str>>) -> Self {
        Self {
            session: session.into(),
            chat: chat.into(),
            turn_channels: HashMap::new(),
            messages: HashMap::new(),
            parts: HashMap::new(),
            tools: HashMap::new(),
            count: 0,
            busy: None,
            told: None,
            unseen: None,
            next: None,
        }
    }

    /// Handles a logged action of a client, on the chat's channel or on that of a sub-agent: returns the command for the agent,
    /// and what else is to be done.
    pub fn client(&mut self, channel: &str, action: StateAction, now: Duration) -> Reaction {
        match action {
            StateAction::ChatTurnStarted(action) if *channel == *self.chat => {
                let turn = Id::from(action.turn_id);
                let turn_channel = TurnChannel { channel: Arc::clone(&self.chat), turn: turn.clone(), began: now };
                self.next = Some((turn_channel, Prompt { turn, message: action.message }));
                Reaction { command: self.send_next(), steps: Vec::new() }
            }
            StateAction::ChatTurnCancelled(action) => self.client_cancelled(channel, &action.turn_id),
            StateAction::ChatToolCallConfirmed(action) => self.client_answered(channel, action),
            _ => Reaction::default(),
        }
    }

    /// Handles an event of the agent: returns what is to be done, in this order.
    ///
    /// A turn that the agent begins by itself [begins](Step::Begin) in the chat too, unless the agent was told of another one, which
    /// is open there already: then its events are ignored, like those of a turn that a client cancelled. A turn that began in
    /// the chat while the agent was still ending another one is [sent](Step::Tell) to the agent when it is free.
    #[must_use]
    pub fn event(&mut self, event: Formed, now: Duration) -> Vec<Step> {
        let mut steps = Vec::new();
        match event.into_event() {
            Event::TurnStarted { turn } => self.turn_started(turn, now, &mut steps),
            Event::TurnEnded { turn, .. } if self.unseen.as_ref() == Some(&turn) => self.unseen = None,
            Event::TurnEnded { outcome, .. } => self.turn_ended(outcome, now, &mut steps),
            Event::Resumable { token } => {
                steps.extend(self.told.clone().map(|turn| Step::Remember { token, turn }));
            }
            Event::ModeChanged { mode } => self.mode_changed(mode, &mut steps),
            _ if self.unseen.is_some() => {}
            Event::MessageStarted { message, agent } => {
                self.messages.insert(message, OpenMessage { agent, last: None });
            }
            Event::BlockStarted { message, block, kind } => self.block_started(message, block, kind, &mut steps),
            Event::BlockDelta { message, block, text, .. } => self.block_delta(message, block, text, &mut steps),
            Event::BlockEnded { message, block, input } => self.block_ended(message, block, input, &mut steps),
            Event::MessageEnded { message } => self.message_ended(&message, &mut steps),
            Event::ToolAsked { tool, ask } => self.tool_asked(&tool, ask, &mut steps),
            Event::ToolAnswered { tool, answer } => self.tool_answered(&tool, answer, &mut steps),
            Event::ToolStarted { tool } => self.tool_started(&tool, &mut steps),
            Event::ToolOutput { tool, content } => self.tool_output(&tool, content, &mut steps),
            Event::ToolEnded { tool, ending } => self.tool_ended(&tool, ending, &mut steps),
            Event::AgentStarted { tool, name, task } => self.agent_started(tool, name, task, now, &mut steps),
            Event::AgentEnded { tool, outcome } => self.agent_ended(tool, outcome, now, &mut steps),
            Event::Usage(usage) => self.usage(usage, &mut steps),
            Event::Notice { text } => self.notice(text, &mut steps),
        }
        steps
    }

    /// A turn that the agent began by itself could not begin in the chat: it is not shown.
    pub fn not_begun(&mut self, turn: &Id) {
        if self.busy.as_ref() == Some(turn) {
            self.forget();
            // The agent knows a turn that the chat does not show: no token stands for what the chat shows.
            self.told = None;
        }
    }

    /// The agent has refused a turn: the turn ends as failed.
    #[must_use]
    pub fn refused(&mut self, turn: &Id, failure: Failure, now: Duration) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.busy.as_ref() == Some(turn) {
            self.turn_ended(Outcome::Failed(failure), now, &mut steps);
        }
        steps
    }

    fn turn_started(&mut self, turn: Id, now: Duration, steps: &mut Vec<Step>) {
        match &self.busy {
            Some(told) if *told == turn => self.unseen = None,
            Some(_) => self.unseen = Some(turn),
            None => {
                self.forget();
                (self.busy, self.told) = (Some(turn.clone()), Some(turn.clone()));
                let turn_channel = TurnChannel { channel: Arc::clone(&self.chat), turn: turn.clone(), began: now };
                self.turn_channels.insert(None, turn_channel);
                steps.push(Step::Begin { turn });
            }
        }
    }

    fn block_started(&mut self, message: Id, block: Id, kind: BlockKind, steps: &mut Vec<Step>) {
        let Some(open) = self.messages.get_mut(&message) else { return };
        let agent = open.agent.clone();
        let id = match &kind {
            BlockKind::ToolInput(call) => call.tool.to_string(),
            kind => part_id(&message, self.count, kind.kind()),
        };
        self.count += 1;
        let part = OpenPart { kind: kind.kind(), id: id.clone(), has_streamed: false };
        open.last = Some(part.clone());
        self.parts.insert((message.clone(), block), part);
        let meta = meta(&json!({ "message": *message }));
        let part = match kind {
            BlockKind::Text => ResponsePart::Markdown(MarkdownResponsePart { id, content: String::new() }),
            BlockKind::Thinking | BlockKind::Redacted => {
                ResponsePart::Reasoning(ReasoningResponsePart { id, content: String::new() })
            }
            BlockKind::ToolInput(call) => return self.tool_begun(call, agent, meta, steps),
        };
        let Some(turn_channel) = self.turn_channels.get(&agent) else { return };
        let action = ChatResponsePartAction { turn_id: turn_channel.turn.to_string(), part, meta: Some(meta) };
        turn_channel.act(StateAction::ChatResponsePart(action), steps);
    }

    fn block_delta(&mut self, message: Id, block: Id, text: String, steps: &mut Vec<Step>) {
        let Some(open) = self.messages.get(&message) else { return };
        let (Some(turn_channel), Some(part)) =
            (self.turn_channels.get(&open.agent), self.parts.get_mut(&(message, block)))
        else {
            return;
        };
        // Redacted text must not be shown, and an empty delta would be taken for an end mark.
        if part.kind != BlockType::Redacted && !text.is_empty() {
            part.has_streamed = true;
            turn_channel.act(part.delta(turn_channel, text, None), steps);
        }
    }

    fn block_ended(&mut self, message: Id, block: Id, input: Option<String>, steps: &mut Vec<Step>) {
        let turn_channel = self.turn_channel_of(&message).cloned();
        let Some(part) = self.parts.remove(&(message.clone(), block)) else { return };
        // An input that came in one piece is shown with the mark: else nobody could see it before the call is ready.
        let unseen = input.clone().filter(|_| part.kind == BlockType::ToolInput && !part.has_streamed);
        if let (Some(tool), Some(input)) = (self.tools.get_mut(part.id.as_str()), input) {
            tool.input = Some(input);
        }
        if let Some(turn_channel) = turn_channel {
            let meta = meta(&json!({ "message": *message, "ended": "block" }));
            turn_channel.act(part.delta(&turn_channel, unseen.unwrap_or_default(), Some(meta)), steps);
        }
    }

    fn message_ended(&mut self, message: &Id, steps: &mut Vec<Step>) {
        let Some(OpenMessage { agent, last: Some(part) }) = self.messages.remove(message) else { return };
        if let Some(turn_channel) = self.turn_channels.get(&agent) {
            let meta = meta(&json!({ "message": **message, "ended": "message" }));
            turn_channel.act(part.delta(turn_channel, String::new(), Some(meta)), steps);
        }
    }

    fn usage(&self, usage: Usage, steps: &mut Vec<Step>) {
        let Some(turn_channel) = self.turn_channels.get(&None) else { return };
        let action =
            ChatUsageAction { turn_id: turn_channel.turn.to_string(), usage: convert::usage(usage), meta: None };
        turn_channel.act(StateAction::ChatUsage(action), steps);
    }

    /// The session's option follows the agent, so that all clients see what it may do.
    fn mode_changed(&self, mode: String, steps: &mut Vec<Step>) {
        let config = JsonObject::from_iter([(MODE.to_owned(), mode.into())]);
        let action = StateAction::SessionConfigChanged(SessionConfigChangedAction { config, replace: None });
        steps.push(tools::on(&self.session, action));
    }

    fn notice(&self, text: String, steps: &mut Vec<Step>) {
        let Some(turn_channel) = self.turn_channels.get(&None) else { return };
        let notice = SystemNotificationResponsePart { content: text.into(), meta: None };
        let part = ResponsePart::SystemNotification(notice);
        let action = ChatResponsePartAction { turn_id: turn_channel.turn.to_string(), part, meta: None };
        turn_channel.act(StateAction::ChatResponsePart(action), steps);
    }

    fn turn_ended(&mut self, outcome: Outcome, now: Duration, steps: &mut Vec<Step>) {
        if let Some(turn_channel) = self.turn_channels.get(&None) {
            turn_channel.end(outcome, now, steps);
        }
        self.busy = None;
        self.forget();
        steps.extend(self.send_next().map(Step::Tell));
    }

    /// Sends the waiting turn, if the agent is free.
    fn send_next(&mut self) -> Option<Command> {
        let (turn_channel, prompt) = self.next.take_if(|_| self.busy.is_none())?;
        self.forget();
        (self.busy, self.told) = (Some(turn_channel.turn.clone()), Some(turn_channel.turn.clone()));
        self.turn_channels.insert(None, turn_channel);
        Some(Command::Send(prompt))
    }

    fn client_cancelled(&mut self, channel: &str, turn: &str) -> Reaction {
        if self
            .next
            .take_if(|(turn_channel, _)| *turn_channel.channel == *channel && *turn_channel.turn == *turn)
            .is_some()
        {
            return Reaction::default();
        }
        let is_it = |turn_channel: &&TurnChannel| *turn_channel.channel == *channel && *turn_channel.turn == *turn;
        let Some(agent) =
            self.turn_channels.iter().find(|(_, turn_channel)| is_it(turn_channel)).map(|(agent, _)| agent.clone())
        else {
            return Reaction::default();
        };
        let steps = self.withdraw_all(&agent);
        self.turn_channels.remove(&agent);
        // A sub-agent cannot be stopped alone: its output is ignored from now on.
        let command = agent.is_none().then(|| Command::Cancel { turn: turn.into() });
        Reaction { command, steps }
    }

    fn turn_channel_of(&self, message: &Id) -> Option<&TurnChannel> {
        self.turn_channels.get(&self.messages.get(message)?.agent)
    }

    /// The turn is over.
    fn forget(&mut self) {
        self.turn_channels.clear();
        self.messages.clear();
        self.parts.clear();
        self.tools.clear();
        self.count = 0;
    }
}

impl TurnChannel {
    fn act(&self, action: StateAction, steps: &mut Vec<Step>) {
        steps.push(Step::Act { channel: Arc::clone(&self.channel), action: Box::new(action) });
    }

    fn end(&self, outcome: Outcome, now: Duration, steps: &mut Vec<Step>) {
        let turn_id = self.turn.to_string();
        let duration = i64::try_from(now.saturating_sub(self.began).as_millis()).unwrap_or(i64::MAX);
        let action = match outcome {
            Outcome::Complete => {
                StateAction::ChatTurnComplete(ChatTurnCompleteAction { turn_id, duration, meta: None })
            }
            Outcome::Cancelled => {
                StateAction::ChatTurnCancelled(ChatTurnCancelledAction { turn_id, duration, meta: None })
            }
            Outcome::Failed(failure) => {
                let error = ErrorInfo { error_type: failure.kind, message: failure.message, stack: None, meta: None };
                let part = ErrorResponsePart { error, resumable: None };
                StateAction::ChatError(ChatErrorAction { turn_id, duration, part, meta: None })
            }
        };
        self.act(action, steps);
    }
}

impl OpenPart {
    /// An action that appends to this part. With empty content it only carries its `_meta`.
    fn delta(&self, turn_channel: &TurnChannel, content: String, meta: Option<JsonObject>) -> StateAction {
        let (turn_id, part_id) = (turn_channel.turn.to_string(), self.id.clone());
        match self.kind {
            BlockType::Text => StateAction::ChatDelta(ChatDeltaAction { turn_id, part_id, content, meta }),
            BlockType::Thinking | BlockType::Redacted => {
                StateAction::ChatReasoning(ChatReasoningAction { turn_id, part_id, content, meta })
            }
            BlockType::ToolInput => StateAction::ChatToolCallDelta(ChatToolCallDeltaAction {
                turn_id,
                tool_call_id: part_id,
                meta,
                content: Some(content).filter(|content| !content.is_empty()),
                invocation_message: None,
            }),
        }
    }
}

/// The `_meta` of this host, under its own name.
fn meta(ours: &serde_json::Value) -> JsonObject {
    JsonObject::from_iter([("breakbulk".to_owned(), ours.clone())])
}
