//! A small host: one chat, one agent, the official reducers, and a user who answers requests.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ahp::reducers::{ReduceOutcome, apply_action_to_chat, apply_action_to_session};
use ahp_types::actions::{ChatToolCallConfirmedAction, ChatTurnCancelledAction, ChatTurnStartedAction, StateAction};
use ahp_types::state::{
    ChatState, Message, MessageKind, MessageOrigin, ResponsePart, SessionInputRequest, SessionState,
    ToolCallCancellationReason, ToolCallConfirmationReason, ToolCallState, Turn,
};
use breakbulk_host::agent::demo::DemoConfig;
use breakbulk_host::test_support::agent::{
    Agent, Clock, Command, Conversation, EventStream, History, HostServices, Prompt, Reaction, Start, Started, Step,
    Translator,
};
use breakbulk_host::test_support::demo_with_clock;
use breakbulk_lifecycle::{Checker, Event, Formed};
use serde_json::json;

use crate::clock::QuickClock;

pub(crate) const SESSION: &str = "ahp-session:/s";
pub(crate) const CHAT: &str = "ahp-chat:/c";

/// How the user answers a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Allow,
    Edit(String),
    Deny,
    Nothing,
}

/// The states of one chat, its session and the chats of its sub-agents, as a client sees them.
pub(crate) struct Screen {
    pub(crate) chats: HashMap<String, ChatState>,
    pub(crate) session: SessionState,
    pub(crate) actions: Vec<StateAction>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let session = json!({
            "provider": "demo", "title": "s", "status": 1, "lifecycle": "ready", "activeClients": [], "chats": [],
            "config": { "schema": { "type": "object", "properties": {} }, "values": {} }
        });
        let session = serde_json::from_value(session).unwrap();
        Self { chats: HashMap::from([(CHAT.to_owned(), chat(CHAT))]), session, actions: Vec::new() }
    }

    pub(crate) fn chat(&self) -> &ChatState {
        &self.chats[CHAT]
    }

    pub(crate) fn last_turn(&self) -> &Turn {
        self.chat().turns.last().unwrap()
    }

    /// Applies an action, which must not be out of place.
    pub(crate) fn apply(&mut self, channel: &str, action: &StateAction) {
        let outcome = match self.chats.get_mut(channel) {
            Some(chat) => apply_action_to_chat(chat, action),
            None if channel == SESSION => apply_action_to_session(&mut self.session, action),
            None => panic!("{channel} is no channel"),
        };
        assert_eq!(outcome, ReduceOutcome::Applied, "{action:?}");
        self.actions.push(action.clone());
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match step {
            Step::Act { channel, action } => self.apply(channel, action),
            Step::Open(worker) => {
                self.chats.insert(worker.chat.to_string(), chat(&worker.chat));
                self.apply(&worker.chat, &turn_started(&worker.turn, &worker.task));
            }
            Step::Begin { turn } => self.apply(CHAT, &turn_started(turn, "by itself")),
            Step::Tell(_) | Step::Remember { .. } => {}
        }
    }

    /// All requests for permission: the chat, the turn and the tool call.
    pub(crate) fn asked(&self) -> Vec<(String, String, String)> {
        let needed = self.session.input_needed.iter().flatten();
        let calls = needed.filter_map(|need| match need {
            SessionInputRequest::ToolConfirmation(need) => {
                let call = serde_json::to_value(&need.tool_call).unwrap();
                Some((need.chat.clone(), need.turn_id.clone(), call["toolCallId"].as_str().unwrap().to_owned()))
            }
            _ => None,
        });
        calls.collect()
    }
}

/// A chat with an agent.
pub(crate) struct Stage {
    pub(crate) screen: Screen,
    pub(crate) translator: Translator,
    pub(crate) conversation: Box<dyn Conversation>,
    pub(crate) stream: EventStream,
    pub(crate) events: Vec<Event>,
    checker: Checker,
    clock: Arc<QuickClock>,
}

impl Stage {
    pub(crate) async fn new(directory: &Path) -> Self {
        Self::with(directory, DemoConfig::default()).await
    }

    pub(crate) async fn with(directory: &Path, config: DemoConfig) -> Self {
        let clock = Arc::new(QuickClock::default());
        let demo = demo_with_clock(config, Arc::clone(&clock) as Arc<dyn Clock>);
        let Started { conversation, events } = demo.start(start(directory)).await.unwrap();
        Self {
            screen: Screen::new(),
            translator: Translator::new(SESSION, CHAT),
            conversation,
            stream: events,
            events: Vec::new(),
            checker: Checker::new(),
            clock,
        }
    }

    /// Sends a prompt, and runs the turn to its end.
    pub(crate) async fn play(&mut self, prompt: &str, reply: &Reply) {
        self.send(prompt).await;
        while self.next(reply).await {}
        assert!(self.screen.asked().is_empty(), "{:?}", self.screen.asked());
    }

    pub(crate) async fn send(&mut self, prompt: &str) {
        let turn = format!("turn-{}", self.screen.chat().turns.len());
        self.client(CHAT, turn_started(&turn, prompt)).await;
    }

    /// An action of a client: logged, applied, and passed to the agent.
    pub(crate) async fn client(&mut self, channel: &str, action: StateAction) {
        self.screen.apply(channel, &action);
        let Reaction { command, steps } = self.translator.client(channel, action, self.clock.now());
        steps.iter().for_each(|step| self.screen.step(step));
        if let Some(command) = command {
            self.tell(command).await;
        }
    }

    async fn tell(&mut self, command: Command) {
        match command {
            Command::Send(prompt) => self.conversation.send(prompt).await.unwrap(),
            Command::Cancel { turn } => self.conversation.cancel(turn).await.unwrap(),
            Command::Answer { tool, answer } => {
                let tool = self.stream.given(&tool).unwrap();
                self.conversation.answer(tool, answer).await.unwrap();
            }
        }
    }

    /// Takes the next event, and answers requests; false after the end of a turn.
    pub(crate) async fn next(&mut self, reply: &Reply) -> bool {
        let Some(event) = tokio::time::timeout(Duration::from_secs(60), self.stream.next()).await.unwrap() else {
            return false;
        };
        let goes_on = self.take(event).await;
        for (chat, turn, tool) in self.screen.asked() {
            if let Some(action) = confirmed(&turn, &tool, reply) {
                self.client(&chat, action).await;
            }
        }
        goes_on
    }

    /// Takes an event, and answers no request.
    pub(crate) async fn take(&mut self, event: Formed) -> bool {
        assert_eq!(self.checker.check(&event), Ok(()), "{event:?}");
        self.events.push((*event).clone());
        let goes_on = !matches!(*event, Event::TurnEnded { .. });
        for step in self.translator.event(event, self.clock.now()) {
            self.screen.step(&step);
            if let Step::Tell(command) = step {
                self.tell(command).await;
            }
        }
        goes_on
    }

    /// A client cancels the turn.
    pub(crate) async fn cancel(&mut self) {
        let Some(active) = &self.screen.chat().active_turn else { return };
        let action = ChatTurnCancelledAction { turn_id: active.id.clone(), duration: 5, meta: None };
        self.client(CHAT, StateAction::ChatTurnCancelled(action)).await;
    }
}

pub(crate) fn start(directory: &Path) -> Start {
    Start {
        session: SESSION.to_owned(),
        chat: CHAT.to_owned(),
        directories: vec![directory.to_path_buf()],
        config: serde_json::Map::new(),
        history: History::default(),
        token: None,
        services: HostServices::default(),
        side_chat: None,
    }
}

pub(crate) fn prompt(turn: &str, text: &str) -> Prompt {
    Prompt { turn: turn.into(), message: message(text) }
}

pub(crate) fn turn_started(turn: &str, text: &str) -> StateAction {
    StateAction::ChatTurnStarted(ChatTurnStartedAction {
        turn_id: turn.to_owned(),
        started_at: "2026-01-01T00:00:00.000Z".to_owned(),
        message: message(text),
        queued_message_id: None,
        meta: None,
    })
}

pub(crate) fn confirmed(turn: &str, tool: &str, reply: &Reply) -> Option<StateAction> {
    let approved = !matches!(reply, Reply::Deny);
    let edited_tool_input = match reply {
        Reply::Nothing => return None,
        Reply::Edit(input) => Some(input.clone()),
        _ => None,
    };
    Some(StateAction::ChatToolCallConfirmed(ChatToolCallConfirmedAction {
        turn_id: turn.to_owned(),
        tool_call_id: tool.to_owned(),
        meta: None,
        approved,
        confirmed: approved.then_some(ToolCallConfirmationReason::UserAction),
        reason: (!approved).then_some(ToolCallCancellationReason::Denied),
        edited_tool_input,
        user_suggestion: None,
        reason_message: None,
        selected_option_id: None,
    }))
}

/// The tool calls of a turn.
pub(crate) fn calls(parts: &[ResponsePart]) -> Vec<&ToolCallState> {
    let calls = parts.iter().filter_map(|part| match part {
        ResponsePart::ToolCall(part) => Some(&part.tool_call),
        _ => None,
    });
    calls.collect()
}

/// All text of a turn.
pub(crate) fn text(parts: &[ResponsePart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        ResponsePart::Markdown(part) => Some(part.content.as_str()),
        _ => None,
    });
    texts.collect()
}

fn message(text: &str) -> Message {
    Message {
        text: text.to_owned(),
        origin: MessageOrigin { kind: MessageKind::User },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    }
}

fn chat(uri: &str) -> ChatState {
    let state =
        json!({ "resource": uri, "title": "c", "status": 1, "modifiedAt": "2026-01-01T00:00:00.000Z", "turns": [] });
    serde_json::from_value(state).unwrap()
}
