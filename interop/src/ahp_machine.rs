//! The host's side of the `ahp` dialect for the tests and benches of the TypeScript package.
//!
//! `ahp-machine stdio` does what each line of standard input says, one step of a machine after the other, and prints what came of it; the
//! caller is the network and the clock. `ahp-machine ws` listens for WebSockets on 127.0.0.1, prints its port, answers handshakes, and
//! sends messages of any size to whoever asks for them.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use breakbulk_proto::ahp::{Config, Connection, Negotiated, Role};
use breakbulk_proto::{
    Budget, BudgetConfig, Capacity, Event, Input, Limits, LimitsConfig, Machine, Message, Ticket, Transmit,
};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("stdio") => steps(),
        Some("ws") => listen().await,
        _ => Err("ahp-machine stdio | ws".into()),
    }
}

/// One step. Times are in milliseconds since the start.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Step {
    /// A new connection. What earlier ones negotiated comes along, unless nothing is to be remembered.
    New {
        frame: u64,
        message: u64,
        groups: u32,
        timeout: u64,
        cap: Option<u64>,
        forget: bool,
    },
    Frame {
        now: u64,
        text: String,
    },
    Send {
        now: u64,
        ticket: u64,
        text: String,
    },
    /// The link takes up to so many frames.
    Take {
        now: u64,
        count: usize,
    },
    Timeout {
        now: u64,
    },
}

/// What came of a step.
#[derive(Default, Serialize)]
struct Outcome {
    frames: Vec<String>,
    messages: Vec<String>,
    sent: Vec<u64>,
    failed: Vec<(u64, &'static str)>,
    closed: Option<&'static str>,
    timeout: Option<u64>,
}

fn steps() -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let at = |millis: u64| start + Duration::from_millis(millis);
    let mut negotiated = Negotiated::default();
    let mut connection = machine(LimitsConfig::default(), &negotiated)?;
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let mut outcome = Outcome::default();
        match serde_json::from_str(&line?)? {
            Step::New { frame, message, groups, timeout, cap, forget } => {
                if forget {
                    negotiated = Negotiated::default();
                }
                let limits = LimitsConfig {
                    max_frame_bytes: frame,
                    max_message_bytes: message,
                    max_groups: groups,
                    group_timeout: Some(Duration::from_millis(timeout)),
                    ..LimitsConfig::default()
                };
                connection = machine(limits, &negotiated)?;
                if let Some(cap) = cap {
                    connection.handle(Input::Capacity(Capacity::of(cap)), start);
                }
            }
            Step::Frame { now, text } => connection.handle(Input::frame(text), at(now)),
            Step::Send { now, ticket, text } => connection.handle(Input::send(Ticket(ticket), text), at(now)),
            Step::Timeout { now } => connection.handle(Input::Timeout, at(now)),
            Step::Take { now, count } => {
                for _ in 0..count {
                    match connection.poll_transmit(at(now)) {
                        Some(Transmit::Frame { bytes, .. }) => outcome.frames.push(text_of(&bytes)),
                        Some(Transmit::Close(reason)) => outcome.closed = Some(reason.name()),
                        None => break,
                    }
                }
            }
        }
        while let Some(event) = connection.poll_event() {
            match event {
                Event::Message { message, .. } => outcome.messages.push(text_of(&message)),
                Event::Sent { ticket } => outcome.sent.push(ticket.0),
                Event::SendFailed { ticket, error, .. } => outcome.failed.push((ticket.0, error.name())),
                Event::Closed(reason) => outcome.closed = Some(reason.name()),
                _ => {}
            }
        }
        let due = connection.poll_timeout().map(|due| due.saturating_duration_since(start).as_millis());
        outcome.timeout = due.and_then(|due| u64::try_from(due).ok());
        serde_json::to_writer(&mut output, &outcome)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

fn machine(limits: LimitsConfig, negotiated: &Negotiated) -> Result<Connection, Box<dyn Error>> {
    let budget = BudgetConfig::default();
    let mut config = Config::new(Role::Server, Limits::prove(limits, &budget)?, seed());
    config.negotiated = negotiated.clone();
    Ok(Connection::new(config, Budget::new(budget).account(Some("client"))))
}

/// Differs from run to run, which is enough where nobody attacks.
fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    seed.iter_mut().zip(nanos.to_be_bytes()).for_each(|(byte, random)| *byte = random);
    seed
}

fn text_of(message: &Message) -> String {
    String::from_utf8_lossy(&message.to_bytes()).into_owned()
}

async fn listen() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        // A client that goes away in the middle is no failure of ours.
        tokio::spawn(async move { drop(serve(stream).await) });
    }
}

/// One connection: handshakes are answered, and a request `give` with what it gives.
async fn serve(stream: TcpStream) -> Result<(), tungstenite::Error> {
    stream.set_nodelay(true)?;
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let mut socket = tokio_tungstenite::accept_async_with_config(stream, Some(config)).await?;
    let limits = LimitsConfig { max_frame_bytes: 900_000, ..LimitsConfig::default() };
    let Ok(mut connection) = machine(limits, &Negotiated::default()) else { return Ok(()) };
    let (mut tickets, mut given) = (0, HashMap::new());
    while let Some(frame) = socket.next().await {
        let input = match frame? {
            tungstenite::Message::Text(text) => Input::frame(Bytes::from(text)),
            tungstenite::Message::Binary(bytes) => Input::frame(bytes),
            // A close is answered by the socket itself.
            _ => continue,
        };
        connection.handle(input, Instant::now());
        while let Some(event) = connection.poll_event() {
            let Event::Message { message, .. } = event else { continue };
            if let Some(answer) = answer(&message.to_bytes(), &mut given) {
                tickets += 1;
                connection.handle(Input::send(Ticket(tickets), answer), Instant::now());
            }
        }
        while let Some(transmit) = connection.poll_transmit(Instant::now()) {
            match transmit {
                Transmit::Frame { bytes, .. } => {
                    let Ok(text) = bytes.to_bytes().try_into() else { continue };
                    socket.send(tungstenite::Message::Text(text)).await?;
                }
                Transmit::Close(reason) => {
                    let frame = CloseFrame { code: reason.code().into(), reason: reason.text().into() };
                    return socket.close(Some(frame)).await;
                }
            }
        }
    }
    Ok(())
}

/// The answer to a request. What was given once is kept, so that a bench does not measure how it is made.
fn answer(message: &[u8], given: &mut HashMap<String, String>) -> Option<String> {
    let request = serde_json::from_slice::<Value>(message).ok()?;
    let params = &request["params"];
    let result = match request["method"].as_str()? {
        "initialize" | "reconnect" => r#"{"protocolVersion":"1.0.0","serverSeq":0,"snapshots":[]}"#.to_owned(),
        "give" => {
            let length = usize::try_from(params["length"].as_u64()?).ok()?;
            let make = || content(length, params["kind"].as_str().unwrap_or("code")).to_string();
            given.entry(params.to_string()).or_insert_with(make).clone()
        }
        // What was sent comes back.
        "echo" => params.to_string(),
        _ => return None,
    };
    Some(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request["id"]))
}

/// What a tool may give: lines of code as one text, or many small objects.
fn content(length: usize, kind: &str) -> Value {
    if kind == "objects" {
        let one = |n: usize| json!({"id": n, "name": format!("item {n}"), "ok": true, "values": [1, 2.5, null]});
        return (0..length / 62).map(one).collect();
    }
    let line = |n: usize| format!("    let value_{n} = compute(input, \"text\", {}); // a comment\n", n * 7);
    let mut text = String::with_capacity(length + 100);
    for n in 0.. {
        if text.len() >= length {
            break;
        }
        text += &line(n);
    }
    Value::from(text)
}
