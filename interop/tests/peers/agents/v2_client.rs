//! A client of message protocol v2, on tokio-tungstenite: it sends commands, and its state is what the reducer makes of events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use breakbulk_lifecycle::BlockType;
use breakbulk_lifecycle::v2::wire::Outgoing;
use breakbulk_lifecycle::v2::{Author, Block, MessageState, Model};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_tungstenite::connect_async_with_config;
use tokio_tungstenite::tungstenite::Message;

use crate::serve::place::TOKEN;
use crate::server::unlimited;
use crate::soon;

/// A client that watches one session.
pub(super) struct V2Client {
    pub(super) seen: Arc<Seen>,
    commands: mpsc::UnboundedSender<String>,
    answers: mpsc::UnboundedReceiver<Value>,
    /// Sends and receives. Its end closes the connection.
    pump: JoinHandle<()>,
}

/// What a client knows. It outlives the connection.
pub(super) struct Seen {
    id: Mutex<String>,
    session: String,
    model: Mutex<Model>,
    /// Changes with each event.
    changed: watch::Sender<u64>,
    /// The longest message that came.
    pub(super) longest: AtomicUsize,
}

impl V2Client {
    /// A client that is there for the first time, and watches a session.
    pub(super) async fn watch(url: &str, session: &str) -> Self {
        let seen = Arc::new(Seen {
            id: Mutex::default(),
            session: session.to_owned(),
            model: Mutex::new(Model::new(session)),
            changed: watch::Sender::new(0),
            longest: AtomicUsize::new(0),
        });
        let mut client = Self::connect(url, seen).await;
        let hello = client.ask(json!({"type": "hello", "protocolVersion": 2})).await;
        *client.seen.id.lock().unwrap() = hello["clientId"].as_str().unwrap().to_owned();
        let watched = client.ask(json!({"type": "watch", "sessionId": session})).await;
        assert_eq!(watched["type"], "reattached", "{watched}");
        client
    }

    /// The same client on another connection, with what it knows.
    pub(super) async fn come_back(url: &str, seen: Arc<Seen>) -> Self {
        let last = seen.model.lock().unwrap().last_seq();
        let (id, session) = (seen.id.lock().unwrap().clone(), seen.session.clone());
        let mut client = Self::connect(url, seen).await;
        let sessions = json!([{"sessionId": session, "lastSeq": last}]);
        let back = client.ask(json!({"type": "reattach", "clientId": id, "sessions": sessions})).await;
        assert_eq!(back["type"], "reattached", "{back}");
        client
    }

    /// Sends a command, and waits for what answers it.
    pub(super) async fn ask(&mut self, command: Value) -> Value {
        self.commands.send(command.to_string()).unwrap();
        soon(self.answers.recv()).await.expect("the connection lives")
    }

    /// Sends a command about the session, which must be done.
    pub(super) async fn command(&mut self, mut command: Value) {
        command["sessionId"] = json!(self.seen.session);
        let answer = self.ask(command).await;
        assert_eq!(answer["type"], "ack", "{answer}");
    }

    /// Answers the permission that the agent waits for.
    pub(super) async fn decide(&mut self, decision: &str) {
        let permission = self.seen.until(|state| Some(state.permissions.first()?.perm_id.to_string())).await;
        let answer = self.ask(json!({"type": "permission_response", "permId": permission, "decision": decision})).await;
        assert_eq!(answer["type"], "ack", "{answer}");
    }

    async fn connect(url: &str, seen: Arc<Seen>) -> Self {
        let url = format!("{url}/v2?token={TOKEN}");
        let (socket, _) = soon(connect_async_with_config(url, Some(unlimited()), false)).await.unwrap();
        let (mut sink, mut stream) = socket.split();
        let (commands, mut waiting) = mpsc::unbounded_channel::<String>();
        let (answered, answers) = mpsc::unbounded_channel();
        let kept = Arc::clone(&seen);
        let pump = tokio::spawn(async move {
            loop {
                tokio::select! {
                    command = waiting.recv() => match command {
                        Some(command) => sink.send(Message::text(command)).await.unwrap(),
                        None => return,
                    },
                    arrived = stream.next() => match arrived {
                        Some(Ok(Message::Text(text))) => {
                            if let Some(answer) = kept.take(&text) {
                                let _ = answered.send(answer);
                            }
                        }
                        Some(Ok(_)) => {}
                        _ => return,
                    },
                }
            }
        });
        Self { seen, commands, answers, pump }
    }
}

impl Drop for V2Client {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Seen {
    /// Looks at the session.
    pub(super) fn look<T>(&self, look: impl Fn(&MessageState) -> T) -> T {
        look(self.model.lock().unwrap().state())
    }

    /// Waits until the session is so.
    pub(super) async fn until<T>(&self, is: impl Fn(&MessageState) -> Option<T>) -> T {
        self.until_within(Duration::from_secs(60), is).await
    }

    /// The same, if it may take longer.
    pub(super) async fn until_within<T>(&self, time: Duration, is: impl Fn(&MessageState) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        let wait = async {
            loop {
                changed.borrow_and_update();
                let found = is(self.model.lock().unwrap().state());
                if let Some(found) = found {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(time, wait).await {
            Ok(found) => found,
            Err(_) => panic!("not in time: {:.4000}", format!("{:#?}", self.model.lock().unwrap().state())),
        }
    }

    /// Takes what came; returns it if it answers a command.
    fn take(&self, text: &str) -> Option<Value> {
        self.longest.fetch_max(text.len(), Ordering::Relaxed);
        match serde_json::from_str::<Outgoing>(text).unwrap() {
            Outgoing::Event(event) => {
                self.model.lock().unwrap().apply(&event);
                self.changed.send_modify(|count| *count += 1);
                None
            }
            Outgoing::Connection(_) | Outgoing::Refusal(_) => Some(serde_json::from_str(text).unwrap()),
        }
    }
}

/// What a turn looks like to a client: the prompt, what the agent says in words, and its calls with their success.
pub(super) type Outline = (String, String, Vec<(String, bool)>);

/// The turns of a session that are over or run.
pub(super) fn outline(state: &MessageState) -> Vec<Outline> {
    let mut turns: Vec<Outline> = Vec::new();
    for message in state.messages.iter().chain(&state.current) {
        match message.author {
            Author::User => {
                let prompt = message.blocks.iter().map(|block| block.content.as_str()).collect();
                turns.push((prompt, String::new(), Vec::new()));
            }
            Author::Agent => {
                let Some((_, words, calls)) = turns.last_mut() else { continue };
                message.blocks.iter().for_each(|block| add(block, words, calls));
            }
        }
    }
    turns
}

fn add(block: &Block, words: &mut String, calls: &mut Vec<(String, bool)>) {
    match (&block.tool, block.block_type) {
        (Some(tool), _) => {
            let success = tool.outcome.as_ref().is_some_and(|outcome| !outcome.is_error);
            calls.push((tool.tool_name.clone(), success));
        }
        (None, BlockType::Text) => words.push_str(&block.content),
        _ => {}
    }
}
