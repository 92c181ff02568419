//! Each rule of the CEP and of our page as a fact, from both ends; here is what the tests share.

mod aborts;
mod acks;
mod both;
mod bounds;
mod pass;
mod receive;
mod rules;
mod send;

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Config, Connection};
use crate::budget::{Budget, BudgetConfig};
use crate::error::{SendError, Violation};
use crate::machine::{Capacity, Event, Input, Lane, Machine, Meta, Receipt, Refusal, Tag, Ticket, Transmit};
use crate::message::Message;

/// A connection, its clock and what it said.
struct Endpoint {
    machine: Connection,
    now: Instant,
}

#[derive(Clone, Debug)]
struct Sent {
    tag: Tag,
    text: String,
    meta: Meta,
}

impl Sent {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    fn kind(&self) -> String {
        self.json()["params"]["cvm"]["frameType"].as_str().unwrap_or("-").to_owned()
    }

    fn progress(&self) -> u64 {
        self.json()["params"]["progress"].as_u64().unwrap()
    }
}

impl Endpoint {
    fn new(config: Config, cap: u64) -> Self {
        Self::with_budget(config, cap, &Budget::new(BudgetConfig::default()))
    }

    fn with_budget(config: Config, cap: u64, budget: &Budget) -> Self {
        let mut end = Self { machine: Connection::new(config, budget.account(Some("tests"))), now: Instant::now() };
        end.put(Input::Capacity(Capacity::of(cap)));
        end
    }

    fn put(&mut self, input: Input) {
        self.machine.handle(input, self.now);
    }

    fn send(&mut self, ticket: u64, text: impl Into<String>) {
        self.put(Input::send(Ticket(ticket), text.into()));
    }

    fn send_to(&mut self, ticket: u64, text: impl Into<String>, peer: &str) {
        let meta = Meta { peer: Some(peer.into()), ..Meta::default() };
        let message = Message::from(text.into());
        self.put(Input::Send { ticket: Ticket(ticket), message, lane: Lane::Auto, meta });
    }

    fn next(&mut self) -> Option<Sent> {
        match self.machine.poll_transmit(self.now)? {
            Transmit::Frame { tag, bytes, meta } => {
                Some(Sent { tag, text: String::from_utf8(bytes.to_bytes().into()).unwrap(), meta })
            }
            Transmit::Close(_) => None,
        }
    }

    fn frames(&mut self) -> Vec<Sent> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn kinds(&mut self) -> Vec<String> {
        self.frames().iter().map(Sent::kind).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.machine.poll_event()).filter(|event| !matches!(event, Event::Progress(_))).collect()
    }

    fn take(&mut self, text: impl Into<String>) {
        self.put(Input::frame(text.into()));
    }

    fn take_from(&mut self, text: impl Into<String>, peer: &str, id: &str) {
        let meta = Meta { peer: Some(peer.into()), id: Some(id.into()), ..Meta::default() };
        self.put(Input::Frame { bytes: Bytes::from(text.into()), meta });
    }

    fn take_about(&mut self, text: impl Into<String>, peer: &str, (id, about): (&str, &str)) {
        let meta = Meta { peer: Some(peer.into()), id: Some(id.into()), about: Some(about.into()), ..Meta::default() };
        self.put(Input::Frame { bytes: Bytes::from(text.into()), meta });
    }

    fn ack(&mut self, tag: Tag) {
        self.put(Input::Acked { tag, result: Ok(Receipt::default()) });
    }

    fn ack_as(&mut self, tag: Tag, id: &str) {
        self.put(Input::Acked { tag, result: Ok(Receipt { id: Some(id.into()) }) });
    }

    fn refuse(&mut self, tag: Tag, refusal: Refusal) {
        self.put(Input::Acked { tag, result: Err(refusal) });
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.put(Input::Timeout);
    }

    /// The texts that went up.
    fn messages(&mut self) -> Vec<String> {
        self.events().iter().filter_map(message).collect()
    }

    /// The one rule that was broken.
    fn broken(&mut self) -> Violation {
        let events = self.events();
        match events.as_slice() {
            [Event::ReceiveFailed { violation, .. }] => violation.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Confirms all frames of a transfer but `end`, which is returned.
    fn up_to_end(&mut self) -> Sent {
        loop {
            let sent = self.next().unwrap();
            if sent.kind() == "end" {
                return sent;
            }
            self.ack(sent.tag);
        }
    }

    /// Confirms the transfer that begins now, whose first chunk has at least so many bytes.
    fn goes_in_chunks_of(&mut self, least: usize) {
        let first = self.next().unwrap();
        assert_eq!(first.kind(), "start");
        self.ack(first.tag);
        let chunk = self.next().unwrap();
        assert!(chunk.text.len() >= least, "{}", chunk.text.len());
        self.ack(chunk.tag);
        let last = self.up_to_end();
        self.ack(last.tag);
        assert!(matches!(self.events().last(), Some(Event::Sent { .. })));
    }

    /// The one message that was not sent.
    fn unsent(&mut self) -> (SendError, Option<Value>) {
        let events = self.events();
        match events.as_slice() {
            [Event::SendFailed { error, reply, .. }] => (error.clone(), reply.as_ref().map(value)),
            other => panic!("{other:?}"),
        }
    }
}

fn message(event: &Event) -> Option<String> {
    let Event::Message { message, .. } = event else { return None };
    Some(text(message))
}

fn text(message: &Message) -> String {
    String::from_utf8(message.to_bytes().to_vec()).unwrap()
}

fn value(message: &Message) -> Value {
    serde_json::from_slice(&message.to_bytes()).unwrap()
}

fn request(id: u64, token: &Value, pad: &str) -> String {
    json!({"jsonrpc":"2.0","id":id,"method":"tools/call","params":{"pad":pad,"_meta":{"progressToken":token}}})
        .to_string()
}

fn response(id: u64, pad: &str) -> String {
    json!({"jsonrpc":"2.0","id":id,"result":{"pad":pad}}).to_string()
}

/// A frame as the official SDKs write it.
fn frame(token: &Value, progress: u64, cvm: &Value) -> String {
    let mut cvm = cvm.clone();
    cvm["type"] = "oversized-transfer".into();
    let params = json!({"progressToken":token,"progress":progress,"cvm":cvm});
    json!({"jsonrpc":"2.0","method":"notifications/progress","params":params}).to_string()
}

fn hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn start(token: &Value, text: &str, chunks: u64) -> String {
    let digest = format!("sha256:{}", hex(text));
    let cvm = json!({"frameType":"start","completionMode":"render","digest":digest,"totalBytes":text.len(),"totalChunks":chunks});
    frame(token, 1, &cvm)
}

fn chunk(token: &Value, progress: u64, data: &str) -> String {
    frame(token, progress, &json!({"frameType":"chunk","data":data}))
}

fn end(token: &Value, progress: u64) -> String {
    frame(token, progress, &json!({"frameType":"end"}))
}

fn accept(token: &Value) -> String {
    frame(token, 2, &json!({"frameType":"accept"}))
}

fn abort(token: &Value) -> String {
    frame(token, 9, &json!({"frameType":"abort","reason":"enough"}))
}

fn known() -> Config {
    Config { known_support: true, ..Config::default() }
}

fn acking() -> Config {
    Config { known_support: true, acks: true, ..Config::default() }
}

/// A request in `n` chunks, with the frames of its transfer.
fn transfer(token: &Value, n: usize) -> (String, Vec<String>) {
    let whole = request(1, token, &"é\"\\\n".repeat(n * 5));
    let mut cuts: Vec<usize> = (0..=n).map(|i| whole.len() * i / n).collect();
    cuts.iter_mut().for_each(|cut| {
        while !whole.is_char_boundary(*cut) {
            *cut += 1;
        }
    });
    let mut frames = vec![start(token, &whole, n as u64)];
    frames.extend((0..n).map(|i| chunk(token, i as u64 + 2, &whole[cuts[i]..cuts[i + 1]])));
    frames.push(end(token, n as u64 + 2));
    (whole, frames)
}

/// Carries frames both ways until nothing moves; peers are named by `a` and `b`.
fn shuttle(a: &mut Endpoint, b: &mut Endpoint) {
    loop {
        let (there, back) = (a.frames(), b.frames());
        if there.is_empty() && back.is_empty() {
            return;
        }
        for (sent, from, to) in there.iter().map(|s| (s, "a", true)).chain(back.iter().map(|s| (s, "b", false))) {
            let meta = Meta {
                peer: Some(from.into()),
                id: Some(format!("{from}{}", sent.tag.0).into()),
                about: sent.meta.about.clone(),
                supports_parts: sent.meta.supports_parts,
                ..Meta::default()
            };
            let input = Input::Frame { bytes: Bytes::from(sent.text.clone()), meta };
            if to { b.put(input) } else { a.put(input) }
        }
    }
}

/// Feeds frames; the last of them breaks a rule. The peer is told, and the connection lives.
fn breaks(config: Config, frames: &[String]) -> Violation {
    let mut end = Endpoint::new(config, 9999);
    let (last, others) = frames.split_last().unwrap();
    others.iter().for_each(|text| end.take(text.clone()));
    assert!(end.events().is_empty());
    end.frames();
    end.take(last.clone());
    let violation = end.broken();
    let sent = end.next().unwrap();
    assert_eq!(
        sent.json()["params"]["cvm"],
        json!({"type":"oversized-transfer","frameType":"abort","reason":violation.to_string()})
    );
    assert_eq!(end.machine.counters().count(violation.name()), 1);
    let (whole, frames) = transfer(&json!("next"), 2);
    frames.iter().for_each(|text| end.take(text.clone()));
    assert_eq!(end.messages(), [whole]);
    violation
}
