//! A session as a host has it: the log, and the states that the official reducers make of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahp::reducers::{ReduceOutcome, apply_action_to_chat, apply_action_to_session};
use ahp_types::actions::StateAction;
use ahp_types::state::{ChatState, SessionState, SnapshotState};
use breakbulk_lifecycle::projection::{Change, Entry, Projection, Snapshot};
use breakbulk_lifecycle::v2::wire::Event;
use breakbulk_lifecycle::v2::{Config, Projector};
use serde_json::{Value, json};

pub(crate) const SESSION: &str = "ahp-session:/s";
pub(crate) const CHAT: &str = "ahp-chat:/c";

/// What the log holds up to an entry.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) seq: u64,
    pub(crate) at_ms: u64,
    pub(crate) session: SessionState,
    pub(crate) chats: BTreeMap<String, ChatState>,
    /// When each permission was asked for.
    asked: BTreeMap<String, u64>,
}

/// A session.
pub(crate) struct World {
    pub(crate) now: State,
    pub(crate) log: Vec<Entry>,
    /// The state after each entry.
    pub(crate) then: Vec<State>,
}

impl World {
    /// A session with an empty chat.
    pub(crate) fn new() -> Self {
        let session: SessionState =
            read(json!({"provider": "demo", "title": "A title", "status": 1, "lifecycle": "ready",
            "activeClients": [], "workingDirectories": ["file:///home/me/a%20b"], "defaultChat": CHAT,
            "chats": [{"resource": CHAT, "title": "", "status": 1, "modifiedAt": "2026-01-01T00:00:00Z"}],
            "config": {"schema": {"type": "object", "properties": {}}, "values": {"mode": "default"}}}));
        let chat = chat(CHAT, json!({"kind": "user"}));
        let now =
            State { seq: 10, at_ms: 1_000, session: session.clone(), chats: BTreeMap::new(), asked: BTreeMap::new() };
        let mut world = Self { now, log: Vec::new(), then: Vec::new() };
        world.put(SESSION, Change::Initial(SnapshotState::Session(Box::new(session))));
        world.put(CHAT, Change::Initial(SnapshotState::Chat(Box::new(chat))));
        world
    }

    /// Logs something, with a gap before it, and a little later than what came before.
    pub(crate) fn put(&mut self, channel: &str, change: Change) {
        self.now.seq += 3;
        self.now.at_ms += 5;
        match &change {
            Change::Initial(SnapshotState::Chat(state)) => {
                self.now.chats.insert(channel.to_owned(), (**state).clone());
            }
            Change::Action(action) => self.now.reduce(channel, action),
            _ => {}
        }
        let Self { now, log, then } = self;
        log.push(Entry { seq: now.seq, at_ms: now.at_ms, channel: Arc::from(channel), change });
        then.push(now.clone());
    }

    pub(crate) fn act(&mut self, channel: &str, action: StateAction) {
        self.put(channel, Change::Action(Box::new(action)));
    }

    /// Logs an action that is written as JSON, in the main chat.
    pub(crate) fn chat(&mut self, action: Value) -> &mut Self {
        self.json(CHAT, action)
    }

    pub(crate) fn json(&mut self, channel: &str, action: Value) -> &mut Self {
        let action: StateAction = read(action);
        assert!(!matches!(action, StateAction::Unknown(_)), "{action:?}");
        self.act(channel, action);
        self
    }

    /// The chat of a sub-agent begins.
    pub(crate) fn worker(&mut self, uri: &str, parent: &str, tool: &str) {
        let state = chat(uri, json!({"kind": "tool", "chat": parent, "toolCallId": tool}));
        self.put(uri, Change::Initial(SnapshotState::Chat(Box::new(state))));
        let summary = json!({"resource": uri, "title": "", "status": 8, "modifiedAt": "2026-01-01T00:00:00Z",
            "origin": {"kind": "tool", "chat": parent, "toolCallId": tool}});
        self.json(SESSION, json!({"type": "session/chatAdded", "summary": summary}));
    }

    /// All events, those of each entry apart.
    pub(crate) fn events(&self) -> Vec<Vec<Event>> {
        self.events_with(config())
    }

    pub(crate) fn events_with(&self, config: Config) -> Vec<Vec<Event>> {
        let mut projector = Projector::new(config);
        self.log.iter().map(|entry| apply(&mut projector, entry)).collect()
    }

    /// A projector that has taken all.
    pub(crate) fn projector(&self) -> Projector {
        let mut projector = Projector::new(config());
        self.log.iter().for_each(|entry| drop(apply(&mut projector, entry)));
        projector
    }

    /// All events as JSON, without what all have.
    pub(crate) fn told(&self) -> Vec<Value> {
        self.events().iter().flatten().map(bare).collect()
    }
}

impl State {
    fn reduce(&mut self, channel: &str, action: &StateAction) {
        let outcome = match self.chats.get_mut(channel) {
            Some(chat) => apply_action_to_chat(chat, action),
            None => apply_action_to_session(&mut self.session, action),
        };
        assert!(matches!(outcome, ReduceOutcome::Applied | ReduceOutcome::NoOp), "{outcome:?} of {action:?}");
        if let StateAction::SessionInputNeededSet(action) = action {
            let request = serde_json::to_value(&action.request).unwrap();
            self.asked.insert(request["id"].as_str().unwrap().to_owned(), self.at_ms);
        }
    }

    /// What a client that has nothing is told by this projector.
    pub(crate) fn snapshot(&self, projector: &Projector) -> Vec<Event> {
        let mut out = Vec::new();
        self.with(|snapshot| projector.snapshot(snapshot, &mut out));
        out
    }

    /// A projector that knows only this state.
    pub(crate) fn resume(&self, config: Config) -> Projector {
        self.with(|snapshot| Projector::resume(config, snapshot))
    }

    /// A projector that knows this state and the entries that led to it.
    pub(crate) fn rewind(&self, since: &[Entry]) -> Projector {
        self.with(|snapshot| Projector::rewind(config(), snapshot, since))
    }

    pub(crate) fn agrees(&self, projector: &Projector) -> bool {
        self.with(|snapshot| projector.agrees(snapshot))
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&Snapshot<'_>) -> T) -> T {
        look(&Snapshot {
            seq: self.seq,
            at_ms: self.at_ms,
            session: &self.session,
            chat: &|uri| self.chats.get(uri),
            asked_at: &|id| self.asked.get(id).copied(),
        })
    }
}

pub(crate) fn apply(projector: &mut Projector, entry: &Entry) -> Vec<Event> {
    let mut out = Vec::new();
    projector.apply(entry.clone(), &mut out);
    out
}

pub(crate) fn config() -> Config {
    Config::new("s1", SESSION, CHAT)
}

/// An event without what all have.
pub(crate) fn bare(event: &Event) -> Value {
    let mut value = serde_json::to_value(event).unwrap();
    let object = value.as_object_mut().unwrap();
    for name in ["v", "ts", "seq", "sub", "more", "sessionId"] {
        object.remove(name);
    }
    value
}

pub(crate) fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn chat(uri: &str, origin: Value) -> ChatState {
    read(json!({"resource": uri, "title": "", "status": 1, "modifiedAt": "2026-01-01T00:00:00Z", "origin": origin,
        "turns": []}))
}

/// Actions as the host writes them.
pub(crate) mod actions {
    use serde_json::{Value, json};

    pub(crate) fn turn(id: &str, text: &str) -> Value {
        json!({"type": "chat/turnStarted", "turnId": id, "startedAt": "2026-01-01T00:00:00Z",
            "message": {"text": text, "origin": {"kind": "user"}}})
    }

    pub(crate) fn text(turn: &str, part: &str) -> Value {
        json!({"type": "chat/responsePart", "turnId": turn, "part": {"kind": "markdown", "id": part, "content": ""},
            "_meta": {"breakbulk": {"message": part.split('/').next()}}})
    }

    pub(crate) fn thinking(turn: &str, part: &str) -> Value {
        json!({"type": "chat/responsePart", "turnId": turn, "part": {"kind": "reasoning", "id": part, "content": ""},
            "_meta": {"breakbulk": {"message": part.split('/').next()}}})
    }

    pub(crate) fn delta(turn: &str, part: &str, content: &str) -> Value {
        json!({"type": "chat/delta", "turnId": turn, "partId": part, "content": content})
    }

    pub(crate) fn thought(turn: &str, part: &str, content: &str) -> Value {
        json!({"type": "chat/reasoning", "turnId": turn, "partId": part, "content": content})
    }

    pub(crate) fn ended(turn: &str, part: &str, what: &str) -> Value {
        json!({"type": "chat/delta", "turnId": turn, "partId": part, "content": "",
            "_meta": {"breakbulk": {"message": part.split('/').next(), "ended": what}}})
    }

    pub(crate) fn thought_ended(turn: &str, part: &str, what: &str) -> Value {
        json!({"type": "chat/reasoning", "turnId": turn, "partId": part, "content": "",
            "_meta": {"breakbulk": {"message": part.split('/').next(), "ended": what}}})
    }

    pub(crate) fn call(turn: &str, message: &str, tool: &str) -> Value {
        json!({"type": "chat/toolCallStart", "turnId": turn, "toolCallId": tool, "toolName": "Bash",
            "displayName": "Run a command", "_meta": {"breakbulk": {"message": message}}})
    }

    pub(crate) fn input(turn: &str, tool: &str, content: &str) -> Value {
        json!({"type": "chat/toolCallDelta", "turnId": turn, "toolCallId": tool, "content": content})
    }

    pub(crate) fn input_ended(turn: &str, message: &str, tool: &str, what: &str) -> Value {
        json!({"type": "chat/toolCallDelta", "turnId": turn, "toolCallId": tool,
            "_meta": {"breakbulk": {"message": message, "ended": what}}})
    }

    pub(crate) fn runs(turn: &str, tool: &str, input: &str) -> Value {
        json!({"type": "chat/toolCallReady", "turnId": turn, "toolCallId": tool, "invocationMessage": "Runs it",
            "toolInput": input, "confirmed": "not-needed"})
    }

    pub(crate) fn asks(turn: &str, tool: &str, input: &str) -> Value {
        json!({"type": "chat/toolCallReady", "turnId": turn, "toolCallId": tool, "invocationMessage": "May it run?",
            "toolInput": input, "confirmationTitle": "Bash", "editable": true})
    }

    pub(crate) fn needed(chat: &str, turn: &str, tool: &str, input: &str) -> Value {
        json!({"type": "session/inputNeededSet", "request": {"kind": "toolConfirmation",
            "id": format!("{chat}#{turn}#{tool}"), "chat": chat, "turnId": turn,
            "toolCall": {"status": "pending-confirmation", "toolCallId": tool, "toolName": "Bash",
                "displayName": "Run a command", "invocationMessage": "May it run?", "toolInput": input,
                "confirmationTitle": "Bash"}}})
    }

    pub(crate) fn not_needed(chat: &str, turn: &str, tool: &str) -> Value {
        json!({"type": "session/inputNeededRemoved", "id": format!("{chat}#{turn}#{tool}")})
    }

    pub(crate) fn confirmed(turn: &str, tool: &str, approved: bool) -> Value {
        json!({"type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": tool, "approved": approved,
            "confirmed": if approved { json!("user-action") } else { Value::Null }})
    }

    pub(crate) fn result(turn: &str, tool: &str, text: &str, success: bool) -> Value {
        json!({"type": "chat/toolCallComplete", "turnId": turn, "toolCallId": tool,
            "result": {"success": success, "pastTenseMessage": "Ran it", "content": [{"type": "text", "text": text}]}})
    }

    pub(crate) fn complete(turn: &str) -> Value {
        json!({"type": "chat/turnComplete", "turnId": turn, "duration": 5})
    }

    pub(crate) fn cancelled(turn: &str) -> Value {
        json!({"type": "chat/turnCancelled", "turnId": turn, "duration": 5})
    }

    pub(crate) fn failed(turn: &str, kind: &str, message: &str) -> Value {
        json!({"type": "chat/error", "turnId": turn, "duration": 5,
            "part": {"error": {"errorType": kind, "message": message}}})
    }
}
