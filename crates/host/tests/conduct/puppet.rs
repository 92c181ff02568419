//! An agent that does what a test says.

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

/// What a puppet was told.
#[derive(Debug)]
pub(crate) enum Told {
    Start(Start, EventSender),
    Send(Prompt),
    Cancel(Id),
    Answer,
    Disposed,
}

/// An agent whose strings are in the hands of a test.
pub(crate) struct Puppet {
    told: mpsc::UnboundedSender<Told>,
    /// Whether calls never answer.
    stuck: Arc<Mutex<bool>>,
}

/// The hand.
pub(crate) struct Hand {
    told: mpsc::UnboundedReceiver<Told>,
    stuck: Arc<Mutex<bool>>,
}

pub(crate) fn puppet() -> (Arc<dyn Agent>, Hand) {
    let (sender, told) = mpsc::unbounded_channel();
    let stuck = Arc::new(Mutex::new(false));
    (Arc::new(Puppet { told: sender, stuck: stuck.clone() }), Hand { told, stuck })
}

impl Hand {
    pub(crate) async fn told(&mut self) -> Told {
        tokio::time::timeout(Duration::from_secs(60), self.told.recv()).await.expect("in time").unwrap()
    }

    pub(crate) async fn started(&mut self) -> (Start, EventSender) {
        match self.told().await {
            Told::Start(start, events) => (start, events),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn sent(&mut self) -> Id {
        match self.told().await {
            Told::Send(prompt) => prompt.turn,
            other => panic!("{other:?}"),
        }
    }

    /// From now on calls never answer.
    pub(crate) fn stick(&self) {
        *self.stuck.lock().unwrap() = true;
    }
}

impl Agent for Puppet {
    fn name(&self) -> &str {
        "puppet"
    }

    fn info(&self) -> AgentInfo {
        let info = json!({"provider": "puppet", "displayName": "Puppet", "description": "For tests.", "models": [],
            "capabilities": {"multipleChats": {"fork": true, "sideChat": true}}});
        serde_json::from_value(info).unwrap()
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
        let (sender, stream) = events(EventsConfig::default());
        let conversation = Box::new(Strings { told: self.told.clone(), stuck: Arc::clone(&self.stuck) });
        drop(self.told.send(Told::Start(start, sender)));
        Box::pin(async { Ok(Started { conversation, events: stream }) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async { Ok(()) })
    }
}

struct Strings {
    told: mpsc::UnboundedSender<Told>,
    stuck: Arc<Mutex<bool>>,
}

impl Strings {
    fn tell(&self, told: Told) -> BoxFuture<'_, Result<(), AgentError>> {
        if *self.stuck.lock().unwrap() {
            return Box::pin(std::future::pending());
        }
        drop(self.told.send(told));
        Box::pin(async { Ok(()) })
    }
}

impl Conversation for Strings {
    fn send(&self, prompt: Prompt) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(Told::Send(prompt))
    }

    fn cancel(&self, turn: Id) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(Told::Cancel(turn))
    }

    fn answer(&self, _tool: Id, _answer: Verdict) -> BoxFuture<'_, Result<(), AgentError>> {
        self.tell(Told::Answer)
    }

    fn dispose(&self) -> BoxFuture<'_, ()> {
        let told = self.tell(Told::Disposed);
        Box::pin(async { drop(told.await) })
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
