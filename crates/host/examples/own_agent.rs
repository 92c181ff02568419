//! A host of one's own with an agent of one's own, which repeats every prompt in upper case.
//!
//! ```text
//! cargo run -p breakbulk-host --example own_agent
//! ```
//!
//! It prints the address to connect to, for example with `breakbulk chat`. The log is in memory here; with
//! `log::sqlite::SqliteLog` sessions outlive the process.
//!
//! An agent has two parts. [`Agent`] describes it and starts conversations, one for each chat. [`Conversation`] takes calls:
//! it begins a turn, or cancels one. Calls return at once; what the agent says is sent as events, in a task of its own. The
//! host makes the events well formed, logs them and shows them to clients.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ahp_types::state::AgentInfo;
use breakbulk::{AccessPolicy, ListenConfig, Listener, Token};
use breakbulk_host::agent::{
    Agent, AgentError, Conversation, EventSender, EventsConfig, Prompt, Start, Started, events,
};
use breakbulk_host::log::{BoxFuture, MemoryLog};
use breakbulk_host::{Host, HostConfig};
use breakbulk_lifecycle::{Answer as ToolAnswer, BlockKind, BlockType, Event, Id, Outcome};
use breakbulk_proto::Budget;
use tokio::task::JoinHandle;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let log = Arc::new(MemoryLog::new());
    let agents: Vec<Arc<dyn Agent>> = vec![Arc::new(UpperCase)];
    // Agents, terminals and clients can work in this directory and nowhere else.
    let config = HostConfig::new([std::env::current_dir()?]);
    let host = Host::start(log, agents, config, Budget::default()).await?;

    let token = Token::generate()?;
    let address = format!("ws://127.0.0.1:4140/#token={}", token.reveal());
    let listen = ListenConfig::new("127.0.0.1:4140".parse()?, AccessPolicy::with_token(token));
    let mut listener = Listener::bind(listen).await?;
    println!("breakbulk chat '{address}'");
    loop {
        let client = listener.accept().await;
        let endpoint = host.endpoint().clone();
        tokio::spawn(async move { endpoint.serve(client.link, client.principal).await });
    }
}

/// The agent. It has no state: each conversation has its own.
pub(crate) struct UpperCase;

impl Agent for UpperCase {
    fn name(&self) -> &str {
        "upper-case"
    }

    fn info(&self) -> AgentInfo {
        AgentInfo {
            provider: self.name().to_owned(),
            display_name: "Upper case".to_owned(),
            description: "Repeats what you say, louder.".to_owned(),
            models: Vec::new(),
            protected_resources: None,
            customizations: None,
            capabilities: None,
        }
    }

    /// Starts a conversation. An agent with a memory would read the earlier turns from `Start::history` here.
    fn start(&self, _start: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
        let (sender, stream) = events(EventsConfig::default());
        let conversation = UpperCaseConversation { events: sender, turn: Mutex::new(None) };
        Box::pin(async { Ok(Started { conversation: Box::new(conversation), events: stream }) })
    }

    /// An agent that is a program of its own would check here that the program is installed.
    fn check(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async { Ok(()) })
    }
}

/// A conversation: at most one turn at a time, each in a task.
struct UpperCaseConversation {
    events: EventSender,
    turn: Mutex<Option<JoinHandle<()>>>,
}

impl UpperCaseConversation {
    /// Replaces the task of the current turn; the one before it ends.
    fn replace_turn(&self, task: Option<JoinHandle<()>>) {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *turn, task) {
            before.abort();
        }
    }
}

impl Conversation for UpperCaseConversation {
    fn send(&self, prompt: Prompt) -> BoxFuture<'_, Result<(), AgentError>> {
        let events = self.events.clone();
        self.replace_turn(Some(tokio::spawn(async move {
            for event in answer(&prompt) {
                // This waits while the host cannot take more: a slow disk slows the agent down.
                if events.send(event).await.is_err() {
                    return; // The host has ended the conversation.
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        })));
        Box::pin(async { Ok(()) })
    }

    fn cancel(&self, turn: Id) -> BoxFuture<'_, Result<(), AgentError>> {
        // The host closes the message and the block that are still open.
        let (events, ended) = (self.events.clone(), Event::TurnEnded { turn, outcome: Outcome::Cancelled });
        self.replace_turn(Some(tokio::spawn(async move {
            // This fails if the host has ended the conversation, and then nobody waits for the event.
            let _ = events.send(ended).await;
        })));
        Box::pin(async { Ok(()) })
    }

    /// This agent has no tools, so it never asks for a permission.
    fn answer(&self, _tool: Id, _answer: ToolAnswer) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async { Err(AgentError::NotAsked) })
    }

    fn dispose(&self) -> BoxFuture<'_, ()> {
        self.replace_turn(None);
        Box::pin(async {})
    }
}

impl Drop for UpperCaseConversation {
    fn drop(&mut self) {
        self.replace_turn(None);
    }
}

/// All events of a turn: one message with one block of text, word by word.
fn answer(prompt: &Prompt) -> Vec<Event> {
    let (turn, message, block) = (prompt.turn.clone(), Id::from("answer"), Id::from("text"));
    let mut events = vec![
        Event::TurnStarted { turn: turn.clone() },
        Event::MessageStarted { message: message.clone(), agent: None },
        Event::BlockStarted { message: message.clone(), block: block.clone(), kind: BlockKind::Text },
    ];
    events.extend(prompt.message.text.split_inclusive(' ').map(|word| Event::BlockDelta {
        message: message.clone(),
        block: block.clone(),
        kind: BlockType::Text,
        text: word.to_uppercase(),
    }));
    events.extend([
        Event::BlockEnded { message: message.clone(), block, input: None },
        Event::MessageEnded { message },
        Event::TurnEnded { turn, outcome: Outcome::Complete },
    ]);
    events
}
