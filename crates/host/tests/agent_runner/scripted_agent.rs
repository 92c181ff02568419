//! An agent that a test controls: it reports the calls that it gets, and says what the test sends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp_types::state::AgentInfo;
use breakbulk_host::agent::{
    Agent, AgentError, Conversation, EventSender, EventsConfig, Prompt, Start, Started, events,
};
use breakbulk_host::log::BoxFuture;
use breakbulk_lifecycle::{Answer as Verdict, BlockKind, Call, Event, Id, Outcome};
use serde_json::json;
use tokio::sync::mpsc;

/// A call that the agent got from the host.
#[derive(Debug)]
pub(crate) enum AgentCall {
    Start(Start, EventSender),
    Send(Prompt),
    Cancel(Id),
    Answer,
    Disposed,
}

/// An agent that passes all calls to a test.
pub(crate) struct ScriptedAgent {
    calls: mpsc::UnboundedSender<AgentCall>,
    /// Whether calls never return.
    hangs: Arc<Mutex<bool>>,
}

/// The test's side of a scripted agent.
pub(crate) struct AgentControl {
    calls: mpsc::UnboundedReceiver<AgentCall>,
    hangs: Arc<Mutex<bool>>,
}

pub(crate) fn scripted_agent() -> (Arc<dyn Agent>, AgentControl) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let hangs = Arc::new(Mutex::new(false));
    (Arc::new(ScriptedAgent { calls: sender, hangs: hangs.clone() }), AgentControl { calls: receiver, hangs })
}

impl AgentControl {
    pub(crate) async fn next_call(&mut self) -> AgentCall {
        tokio::time::timeout(Duration::from_secs(60), self.calls.recv()).await.expect("in time").unwrap()
    }

    pub(crate) async fn started(&mut self) -> (Start, EventSender) {
        match self.next_call().await {
            AgentCall::Start(start, events) => (start, events),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn sent(&mut self) -> Id {
        match self.next_call().await {
            AgentCall::Send(prompt) => prompt.turn,
            other => panic!("{other:?}"),
        }
    }

    /// From now on calls never return.
    pub(crate) fn hang(&self) {
        *self.hangs.lock().unwrap() = true;
    }
}

impl Agent for ScriptedAgent {
    fn name(&self) -> &str {
        "scripted"
    }

    fn info(&self) -> AgentInfo {
        let info = json!({"provider": "scripted", "displayName": "Scripted agent", "description": "For tests.", "models": [],
            "capabilities": {"multipleChats": {"fork": true, "sideChat": true}}});
        serde_json::from_value(info).unwrap()
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
        let (sender, stream) = events(EventsConfig::default());
        let conversation = Box::new(ScriptedConversation { calls: self.calls.clone(), hangs: Arc::clone(&self.hangs) });
        drop(self.calls.send(AgentCall::Start(start, sender)));
        Box::pin(async { Ok(Started { conversation, events: stream }) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async { Ok(()) })
    }
}

struct ScriptedConversation {
    calls: mpsc::UnboundedSender<AgentCall>,
    hangs: Arc<Mutex<bool>>,
}

impl ScriptedConversation {
    fn report(&self, call: AgentCall) -> BoxFuture<'_, Result<(), AgentError>> {
        if *self.hangs.lock().unwrap() {
            return Box::pin(std::future::pending());
        }
        drop(self.calls.send(call));
        Box::pin(async { Ok(()) })
    }
}

impl Conversation for ScriptedConversation {
    fn send(&self, prompt: Prompt) -> BoxFuture<'_, Result<(), AgentError>> {
        self.report(AgentCall::Send(prompt))
    }

    fn cancel(&self, turn: Id) -> BoxFuture<'_, Result<(), AgentError>> {
        self.report(AgentCall::Cancel(turn))
    }

    fn answer(&self, _tool: Id, _answer: Verdict) -> BoxFuture<'_, Result<(), AgentError>> {
        self.report(AgentCall::Answer)
    }

    fn dispose(&self) -> BoxFuture<'_, ()> {
        let calls = self.report(AgentCall::Disposed);
        Box::pin(async { drop(calls.await) })
    }
}

/// A message of one text, by the agent or by one of its sub-agents.
pub(crate) fn says(message: &str, agent: Option<&str>, text: &str) -> Vec<Event> {
    let (message, block) = (Id::from(message), Id::from("b"));
    let kind = BlockKind::Text;
    vec![
        Event::MessageStarted { message: message.clone(), agent: agent.map(Id::from) },
        Event::BlockStarted { message: message.clone(), block: block.clone(), kind: kind.clone() },
        Event::BlockDelta { message: message.clone(), block: block.clone(), kind: kind.kind(), text: text.to_owned() },
        Event::BlockEnded { message: message.clone(), block, input: None },
        Event::MessageEnded { message },
    ]
}

/// A message of one call.
pub(crate) fn call(message: &str, tool: &str) -> Vec<Event> {
    let (message, block) = (Id::from(message), Id::from("b"));
    let call = Call { tool: tool.into(), name: "task".into(), title: "Task".into(), intention: None };
    vec![
        Event::MessageStarted { message: message.clone(), agent: None },
        Event::BlockStarted { message: message.clone(), block: block.clone(), kind: BlockKind::ToolInput(call) },
        Event::BlockEnded { message: message.clone(), block, input: Some("{}".to_owned()) },
        Event::MessageEnded { message },
    ]
}

pub(crate) async fn say(events: &EventSender, said: impl IntoIterator<Item = Event>) {
    for event in said {
        events.send(event).await.unwrap();
    }
}

pub(crate) fn ended(turn: &Id) -> Event {
    Event::TurnEnded { turn: turn.clone(), outcome: Outcome::Complete }
}

pub(crate) fn begun(turn: &Id) -> Event {
    Event::TurnStarted { turn: turn.clone() }
}
