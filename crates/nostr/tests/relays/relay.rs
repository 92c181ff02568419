//! A Nostr relay that does what it is told to: delays, reorders, repeats, drops and refuses events, and keeps none.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_websockets::{CloseCode, Message, ServerBuilder};

/// How a relay behaves. The default is a good one.
#[derive(Debug, Clone)]
pub(crate) struct Manner {
    /// Whether it confirms events of kinds that relays do not store.
    pub(crate) confirms: bool,
    /// How long each confirmation takes.
    pub(crate) confirms_after: Duration,
    /// Each event is delivered after a random part of this, so that they are reordered.
    pub(crate) holds: Duration,
    /// Of so many events, one is delivered twice.
    pub(crate) repeats_one_in: Option<u64>,
    /// Of so many events, one is not delivered.
    pub(crate) drops_one_in: Option<u64>,
    /// The first events of this number are refused as too many.
    pub(crate) too_fast: u64,
    /// All events from this number on are refused, for a reason of no meaning.
    pub(crate) refuses_from: Option<u64>,
    /// The longest event that it takes.
    pub(crate) max_event: usize,
    /// What it does to one that is longer.
    pub(crate) too_large: TooLarge,
    /// Whether it tells of the limit beforehand (NIP-11).
    pub(crate) tells_limit: bool,
    /// After so many events it breaks the connection once, without a confirmation of the last.
    pub(crate) breaks_after: Option<u64>,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooLarge {
    Refused,
    Closed,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            confirms: true,
            confirms_after: Duration::ZERO,
            holds: Duration::ZERO,
            repeats_one_in: None,
            drops_one_in: None,
            too_fast: 0,
            refuses_from: None,
            max_event: 65_536,
            too_large: TooLarge::Refused,
            tells_limit: false,
            breaks_after: None,
            seed: 1,
        }
    }
}

/// A relay on a port of its own. It ends when it is dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    manner: Manner,
    subscribers: Mutex<HashMap<u64, Subscriber>>,
    /// What was published: kind, length, and the event.
    events: Mutex<Vec<Value>>,
    longest: Mutex<usize>,
    dice: Mutex<u64>,
}

struct Subscriber {
    out: mpsc::UnboundedSender<Message>,
    name: String,
    keys: Vec<String>,
}

impl Relay {
    pub(crate) async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            dice: Mutex::new(manner.seed),
            manner,
            subscribers: Mutex::default(),
            events: Mutex::default(),
            longest: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            for id in 0.. {
                let Ok((socket, _)) = listener.accept().await else { return };
                tokio::spawn(serve(Arc::clone(&shared), socket, id));
            }
        });
        Self { address, state, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// What was published.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.state.events.lock().unwrap().clone()
    }

    /// The longest message that came.
    pub(crate) fn longest(&self) -> usize {
        *self.state.longest.lock().unwrap()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
        self.state.subscribers.lock().unwrap().clear();
    }
}

async fn serve(state: Arc<State>, mut socket: TcpStream, id: u64) {
    let mut head = [0; 2048];
    let len = socket.peek(&mut head).await.unwrap_or(0);
    if !String::from_utf8_lossy(&head[..len]).to_ascii_lowercase().contains("upgrade: websocket") {
        let _ = socket.read(&mut head).await;
        let limitation =
            if state.manner.tells_limit { json!({"max_message_length": state.manner.max_event}) } else { json!({}) };
        let body = json!({"name": "faults", "limitation": limitation}).to_string();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/nostr+json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = socket.write_all(answer.as_bytes()).await;
        return;
    }
    let Ok((_, socket)) = ServerBuilder::new().accept(socket).await else { return };
    let (mut write, mut read) = socket.split();
    let (out, mut queued) = mpsc::unbounded_channel();
    let writer = tokio::spawn(async move {
        while let Some(message) = queued.recv().await {
            if write.send(message).await.is_err() {
                return;
            }
        }
        let _ = write.close().await;
    });
    while let Some(Ok(message)) = read.next().await {
        let Some(text) = message.as_text() else { continue };
        let Ok(message) = serde_json::from_str::<Value>(text) else { continue };
        let longest = text.len();
        match message[0].as_str() {
            Some("REQ") => {
                let keys =
                    message[2]["#p"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
                let name = message[1].as_str().unwrap_or_default().to_owned();
                let eose = json!(["EOSE", name]).to_string();
                let subscriber = Subscriber { out: out.clone(), name, keys: keys.collect() };
                state.subscribers.lock().unwrap().insert(id, subscriber);
                let _ = out.send(Message::text(eose));
            }
            Some("EVENT") if !event(&state, &out, &message[1], longest) => break,
            _ => {}
        }
    }
    state.subscribers.lock().unwrap().remove(&id);
    drop(out);
    let _ = writer.await;
}

/// Takes an event. Returns false if the connection is to be broken.
fn event(state: &Arc<State>, out: &mpsc::UnboundedSender<Message>, event: &Value, len: usize) -> bool {
    let manner = &state.manner;
    let number = {
        let mut events = state.events.lock().unwrap();
        events.push(event.clone());
        let mut longest = state.longest.lock().unwrap();
        *longest = len.max(*longest);
        u64::try_from(events.len()).unwrap()
    };
    let id = event["id"].clone();
    let refusal = if number <= manner.too_fast {
        Some("rate-limited: slow down")
    } else if manner.refuses_from.is_some_and(|from| number >= from) {
        Some("error: something went wrong")
    } else if len > manner.max_event {
        if manner.too_large == TooLarge::Closed {
            let _ = out.send(Message::close(Some(CloseCode::MESSAGE_TOO_BIG), "too big"));
            return false;
        }
        Some("invalid: event is too large")
    } else {
        None
    };
    if manner.breaks_after == Some(number) {
        return false;
    }
    let is_stored = event["kind"].as_u64().is_some_and(|kind| !(20_000..30_000).contains(&kind));
    if manner.confirms || is_stored || refusal.is_some() {
        let ok = Message::text(json!(["OK", id, refusal.is_none(), refusal.unwrap_or_default()]).to_string());
        later(state, manner.confirms_after, out.clone(), ok);
    }
    if refusal.is_some() || manner.drops_one_in.is_some_and(|n| below(state, n) == 0) {
        return true;
    }
    let copies = if manner.repeats_one_in.is_some_and(|n| below(state, n) == 0) { 2 } else { 1 };
    let to = event["tags"].as_array().into_iter().flatten().find(|tag| tag[0] == "p").map(|tag| tag[1].clone());
    let to = to.as_ref().and_then(Value::as_str).unwrap_or_default();
    let subscribers = state.subscribers.lock().unwrap();
    for subscriber in subscribers.values().filter(|subscriber| subscriber.keys.iter().any(|key| key == to)) {
        for _ in 0..copies {
            let hold = manner.holds.as_micros().try_into().unwrap_or(u64::MAX);
            let hold = if hold == 0 { 0 } else { below(state, hold) };
            let message = Message::text(json!(["EVENT", subscriber.name, event]).to_string());
            later(state, Duration::from_micros(hold), subscriber.out.clone(), message);
        }
    }
    true
}

fn later(_: &Arc<State>, after: Duration, out: mpsc::UnboundedSender<Message>, message: Message) {
    if after.is_zero() {
        let _ = out.send(message);
        return;
    }
    tokio::spawn(async move {
        sleep(after).await;
        let _ = out.send(message);
    });
}

/// A number below `bound`: SplitMix64.
fn below(state: &State, bound: u64) -> u64 {
    let mut seed = state.dice.lock().unwrap();
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % bound
}
