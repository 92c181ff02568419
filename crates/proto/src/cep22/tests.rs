//! Each rule of the CEP and of our page as a fact, from both ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Config, Connection};
use crate::budget::{Budget, BudgetConfig};
use crate::error::{CloseReason, Over, SendError, Violation};
use crate::limits::{Limits, LimitsConfig};
use crate::machine::{
    Capacity, Event, Input, Lane, Machine, Measure, Meta, Overhead, Receipt, Refusal, Subject, Tag, Ticket, Transmit,
};
use crate::message::Message;

/// A connection, its clock and what it said.
struct End {
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

impl End {
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
        self.put(Input::send(ticket, text.into()));
    }

    fn send_to(&mut self, ticket: u64, text: impl Into<String>, peer: &str) {
        let meta = Meta { peer: Some(peer.into()), ..Meta::default() };
        let message = Message::from(text.into());
        self.put(Input::Send { ticket: Ticket(ticket), message, lane: Lane::Auto, meta });
    }

    fn next(&mut self) -> Option<Sent> {
        match self.machine.poll_transmit(self.now)? {
            Transmit::Frame { tag, bytes, meta } => {
                Some(Sent { tag, text: String::from_utf8(bytes.to_vec()).unwrap(), meta })
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

    fn ack(&mut self, tag: Tag) {
        self.put(Input::Acked { tag, result: Ok(Receipt::default()) });
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
fn shuttle(a: &mut End, b: &mut End) {
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
            };
            let input = Input::Frame { bytes: Bytes::from(sent.text.clone()), meta };
            if to { b.put(input) } else { a.put(input) }
        }
    }
}

// Sending.

#[test]
fn a_message_that_fits_goes_out_as_it_is() {
    let mut end = End::new(known(), 1000);
    let small = request(1, &json!("t"), "x");
    end.send(7, small.clone());
    let frames = end.frames();
    assert_eq!(frames.iter().map(|sent| &sent.text).collect::<Vec<_>>(), [&small]);
    assert!(frames[0].meta.supports_parts);
    assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(7) }]));
}

#[test]
fn a_large_request_becomes_start_chunks_and_end_in_order() {
    let mut end = End::new(known(), 600);
    let whole = request(1, &json!("t"), &"quote \" slash \\ ".repeat(200));
    end.send(7, whole.clone());
    let frames = end.frames();
    let first = frames[0].json();
    let cvm = &first["params"]["cvm"];
    assert_eq!(cvm["type"], "oversized-transfer");
    assert_eq!((&cvm["frameType"], &cvm["completionMode"]), (&json!("start"), &json!("render")));
    assert_eq!(cvm["digest"], format!("sha256:{}", hex(&whole)));
    assert_eq!(cvm["totalBytes"], whole.len());
    assert_eq!(cvm["totalChunks"], frames.len() - 2);
    assert_eq!(first["params"]["progressToken"], "t");
    let places: Vec<u64> = frames.iter().map(Sent::progress).collect();
    assert_eq!(places, (1..=frames.len() as u64).collect::<Vec<_>>());
    let data: String =
        frames.iter().filter_map(|sent| Some(sent.json()["params"]["cvm"]["data"].as_str()?.to_owned())).collect();
    assert_eq!(data, whole);
    assert_eq!(frames.last().unwrap().kind(), "end");
    assert!(frames.iter().all(|sent| sent.text.len() <= 600));
    assert!(frames[0].meta.supports_parts && !frames[2].meta.supports_parts);
    assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(7) }]));
}

#[test]
fn without_known_support_chunks_wait_for_accept_and_leave_it_the_second_place() {
    let mut end = End::new(Config::default(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    assert_eq!(end.kinds(), ["start"]);
    end.take(accept(&json!("other")));
    assert!(end.kinds().is_empty());
    end.take(accept(&json!("t")));
    let frames = end.frames();
    let places: Vec<u64> = frames.iter().map(Sent::progress).collect();
    assert_eq!(places, (3..3 + frames.len() as u64).collect::<Vec<_>>());
    assert_eq!(frames.last().unwrap().kind(), "end");
    end.take(accept(&json!("t")));
    assert!(end.frames().is_empty());
}

#[test]
fn a_peer_that_advertises_support_meanwhile_need_not_accept() {
    let mut end = End::new(Config::default(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    assert_eq!(end.kinds(), ["start"]);
    let meta = Meta { supports_parts: true, ..Meta::default() };
    end.put(Input::Frame { bytes: Bytes::from(response(9, "")), meta });
    assert_eq!(end.next().unwrap().progress(), 2);
    let mut second = request(2, &json!("u"), &"x".repeat(2000));
    second.push(' ');
    end.frames();
    end.send(2, second);
    assert_eq!(end.next().unwrap().kind(), "start");
    assert_eq!(end.next().unwrap().kind(), "chunk");
}

#[test]
fn a_transfer_that_nobody_accepts_fails_and_is_aborted() {
    let mut end = End::new(Config::default(), 600);
    end.send(1, request(5, &json!("t"), &"x".repeat(2000)));
    assert_eq!(end.kinds(), ["start"]);
    end.pass(Duration::from_secs(29));
    assert!(end.events().is_empty());
    end.pass(Duration::from_secs(1));
    let (error, reply) = end.unsent();
    assert_eq!(error, SendError::NotAccepted);
    assert_eq!(reply.unwrap()["id"], 5);
    assert_eq!(end.kinds(), ["abort"]);
    assert_eq!(end.machine.poll_timeout(), None);
}

#[test]
fn a_request_without_a_token_fails_cleanly() {
    let mut end = End::new(known(), 600);
    end.send(1, json!({"jsonrpc":"2.0","id":"q","method":"m","params":{"pad":"x".repeat(2000)}}).to_string());
    let (error, reply) = end.unsent();
    assert!(matches!(error, SendError::NoToken(Over { limit: 600, .. })));
    let reply = reply.unwrap();
    assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!("q"), &json!(-32011)));
    assert!(reply["error"]["message"].as_str().unwrap().contains("params._meta.progressToken"));
    assert!(end.frames().is_empty());
}

#[test]
fn a_response_to_a_request_without_a_token_is_answered_with_how_to_allow_it() {
    let mut end = End::new(known(), 600);
    end.take_from(r#"{"jsonrpc":"2.0","id":3,"method":"m"}"#, "p", "event-1");
    end.send_to(1, response(3, &"x".repeat(2000)), "p");
    let sent = end.next().unwrap();
    let error = sent.json();
    assert_eq!((&error["id"], &error["error"]["data"]["reason"]), (&json!(3), &json!("messageTooLarge")));
    assert!(error["error"]["message"].as_str().unwrap().contains("params._meta.progressToken"));
    assert_eq!((sent.meta.peer.as_deref(), sent.meta.about.as_deref()), (Some("p"), Some("event-1")));
    let events = end.events();
    assert!(matches!(
        events.last(),
        Some(Event::SendFailed { error: SendError::NoToken { .. }, reply: None, ticket: Ticket(1) })
    ));
}

#[test]
fn a_large_response_uses_its_requests_token_and_names_its_frame() {
    let mut end = End::new(known(), 600);
    end.take_from(request(3, &json!(42), ""), "p", "event-1");
    end.take_from(request(3, &json!("other"), ""), "q", "event-2");
    end.send_to(1, response(3, &"x".repeat(2000)), "p");
    let frames = end.frames();
    assert!(frames.len() > 4);
    for sent in frames {
        assert_eq!(sent.json()["params"]["progressToken"], "42");
        assert_eq!((sent.meta.peer.as_deref(), sent.meta.about.as_deref()), (Some("p"), Some("event-1")));
    }
}

#[test]
fn the_answer_to_a_transferred_request_names_its_end_frame() {
    let mut end = End::new(known(), 600);
    let (whole, frames) = transfer(&json!("t"), 3);
    for (i, text) in frames.iter().enumerate() {
        end.take_from(text.clone(), "p", &format!("event-{i}"));
    }
    assert_eq!(end.messages(), [whole]);
    end.frames();
    end.send_to(1, response(1, ""), "p");
    assert_eq!(end.next().unwrap().meta.about.as_deref(), Some("event-4"));
}

#[test]
fn transfers_take_turns_and_small_messages_pass_them() {
    let mut end = End::new(known(), 600);
    end.send(1, request(1, &json!("a"), &"x".repeat(3000)));
    end.send(2, request(2, &json!("b"), &"x".repeat(3000)));
    let mut tokens = Vec::new();
    for i in 0..8 {
        if i == 5 {
            let small = r#"{"jsonrpc":"2.0","method":"small"}"#;
            end.send(3, small);
            assert_eq!(end.next().unwrap().text, small);
        }
        tokens.push(end.next().unwrap().json()["params"]["progressToken"].as_str().unwrap().to_owned());
    }
    assert_eq!(tokens, ["a", "b", "a", "b", "a", "b", "a", "b"]);
}

#[test]
fn a_token_carries_one_transfer_at_a_time() {
    let mut end = End::new(known(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(900)));
    end.send(2, request(2, &json!("t"), &"x".repeat(900)));
    let kinds = end.kinds();
    let half = kinds.len() / 2;
    assert_eq!(kinds[..half], kinds[half..]);
    assert_eq!((kinds[0].as_str(), kinds[half - 1].as_str()), ("start", "end"));
}

#[test]
fn a_message_of_more_chunks_than_anyone_takes_is_refused_before_it_begins() {
    let mut end = End::new(Config { max_chunks: 10, ..known() }, 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(9000)));
    assert!(end.frames().is_empty());
    assert!(matches!(end.unsent().0, SendError::TooManySegments(Over { limit: 10, .. })));
    let mut tiny = End::new(known(), 200);
    tiny.send(1, request(1, &json!("t"), &"x".repeat(9000)));
    assert!(tiny.frames().is_empty());
    assert!(matches!(tiny.unsent().0, SendError::TooManySegments { .. }));
}

#[test]
fn what_is_not_json_rpc_is_not_sent() {
    for text in ["", "[]", "{", "{}", "1", r#"{"jsonrpc":"2.0","id":1}"#] {
        let mut end = End::new(known(), 600);
        end.send(1, text);
        assert_eq!(end.unsent().0, SendError::NotJsonRpc, "{text}");
    }
    let mut end = End::new(known(), 600);
    let mut bytes = request(1, &json!("t"), &"x".repeat(2000)).into_bytes();
    let at = bytes.iter().position(|byte| *byte == b'x').unwrap();
    bytes[at] = 0xff;
    end.put(Input::send(1, bytes));
    assert!(end.frames().is_empty());
    assert_eq!(end.unsent().0, SendError::NotJsonRpc);
}

#[test]
fn a_full_queue_refuses_and_empties_again() {
    let limits = LimitsConfig { max_queued_bytes: 3000, ..LimitsConfig::default() };
    let limits = Limits::prove(limits, &BudgetConfig::default()).unwrap();
    let mut end = End::new(Config { limits, ..known() }, 600);
    let large = request(1, &json!("t"), &"x".repeat(2000));
    end.send(1, large.clone());
    end.send(2, large.clone());
    assert!(matches!(end.unsent().0, SendError::QueueFull(Over { limit: 3000, .. })));
    end.frames();
    end.send(3, large);
    assert!(end.frames().len() > 3);
}

#[test]
fn every_frame_fits_a_link_that_escapes_again() {
    let nostr = Overhead::new(|m: Measure| m.escaped - m.bytes + 700);
    let whole = request(1, &json!("t\"\\"), &"\"\\\n\u{1}漢字🦀 plain ".repeat(3000));
    for (cap, overhead) in
        [(2000, nostr.clone()), (65_536, nostr), (3000, Overhead::new(|m: Measure| m.bytes / 3 + 90))]
    {
        let mut end = End::new(known(), 1);
        let capacity = Capacity { cap, overhead };
        end.put(Input::Capacity(capacity.clone()));
        end.send(1, whole.clone());
        let frames = end.frames();
        let sizes: Vec<u64> = frames
            .iter()
            .map(|sent| {
                let escaped = serde_json::to_string(&sent.text).unwrap().len() as u64 - 2;
                let measure = Measure { bytes: sent.text.len() as u64, escaped };
                assert!(capacity.fits(measure), "{measure:?} at {cap}");
                measure.bytes + capacity.overhead.of(measure)
            })
            .collect();
        assert!(sizes.len() > 3);
        let used = sizes[1] as f64 / cap as f64;
        assert!(used > 0.9 || sizes.len() < 6, "{used} of {cap}");
        let mut other = End::new(Config::default(), cap);
        frames.iter().for_each(|sent| other.take(sent.text.clone()));
        assert_eq!(other.messages(), std::slice::from_ref(&whole));
    }
}

#[test]
fn a_cap_that_shrinks_turns_waiting_messages_into_transfers() {
    let mut end = End::new(known(), u64::MAX);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    end.put(Input::Capacity(Capacity::of(600)));
    assert_eq!(end.next().unwrap().kind(), "start");
}

#[test]
fn closing_fails_what_is_unsent_and_tells_each_side_once() {
    let mut end = End::new(known(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    end.next().unwrap();
    end.send(2, request(2, &json!("u"), "small"));
    end.put(Input::Close(CloseReason::Normal));
    end.put(Input::Close(CloseReason::Restart));
    let events = end.events();
    assert!(
        matches!(
            events.as_slice(),
            [
                Event::SendFailed { error: SendError::Disconnected, reply: Some(_), ticket: Ticket(2) },
                Event::SendFailed { error: SendError::Disconnected, reply: Some(_), ticket: Ticket(1) },
                Event::Closed(CloseReason::Normal)
            ]
        ),
        "{events:?}"
    );
    assert!(matches!(end.machine.poll_transmit(end.now), Some(Transmit::Close(CloseReason::Normal))));
    assert!(end.machine.poll_transmit(end.now).is_none());
    assert!(end.machine.poll_timeout().is_none());
}

// A link that acknowledges.

#[test]
fn chunks_run_at_most_the_publish_window_ahead_and_end_comes_last() {
    let mut end = End::new(acking(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(20_000)));
    let first = end.frames();
    assert_eq!(first.len(), 1);
    end.ack(first[0].tag);
    let mut open = end.frames();
    assert_eq!(open.len(), 21);
    end.ack(open[5].tag);
    assert!(end.frames().is_empty(), "the oldest is not confirmed");
    let oldest = open.remove(0);
    open.remove(4);
    end.ack(oldest.tag);
    open.extend(end.frames());
    let mut last = Vec::new();
    while let Some(sent) = open.pop() {
        assert!(last.is_empty() || open.is_empty());
        end.ack(sent.tag);
        let more = end.frames();
        if more.iter().any(|sent| sent.kind() == "end") {
            last = more;
            break;
        }
        open.extend(more);
    }
    assert_eq!((last.len(), open.len()), (1, 0));
    assert!(end.events().is_empty());
    end.ack(last[0].tag);
    assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(1) }]));
}

#[test]
fn a_frame_that_came_too_fast_is_sent_again_after_a_growing_pause() {
    let mut end = End::new(acking(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    let first = end.next().unwrap();
    end.ack(first.tag);
    let frames = end.frames();
    for sent in &frames[1..] {
        end.ack(sent.tag);
    }
    let mut again = frames[0].clone();
    let mut waited = Vec::new();
    for _ in 0..8 {
        end.refuse(again.tag, Refusal::TooFast);
        assert!(end.frames().is_empty());
        let wake = end.machine.poll_timeout().unwrap();
        waited.push((wake - end.now).as_millis());
        end.now = wake;
        end.put(Input::Timeout);
        again = end.next().unwrap();
        assert_eq!(again.text, frames[0].text);
    }
    assert_eq!(waited, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    end.ack(again.tag);
    let last = end.next().unwrap();
    assert_eq!(last.kind(), "end");
    end.ack(last.tag);
    assert!(matches!(end.events().as_slice(), [Event::Sent { .. }]));
}

#[test]
fn a_start_that_came_too_fast_has_its_time_for_accept_again() {
    let mut end = End::new(Config { acks: true, ..Config::default() }, 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    for _ in 0..8 {
        let first = end.next().unwrap();
        assert_eq!(first.kind(), "start");
        end.refuse(first.tag, Refusal::TooFast);
        end.now = end.machine.poll_timeout().unwrap();
        end.put(Input::Timeout);
    }
    let first = end.next().unwrap();
    end.ack(first.tag);
    end.pass(Duration::from_secs(29));
    assert!(end.events().is_empty());
    end.take(accept(&json!("t")));
    assert_eq!(end.next().unwrap().progress(), 3);
}

#[test]
fn a_link_that_is_too_fast_for_ever_is_given_up() {
    let mut end = End::new(acking(), 6000);
    end.send(1, request(1, &json!("t"), "x"));
    for _ in 0..13 {
        let sent = end.next().unwrap();
        end.refuse(sent.tag, Refusal::TooFast);
        end.pass(Duration::from_secs(31));
    }
    assert_eq!(end.unsent().0, SendError::Refused);
}

#[test]
fn a_whole_message_that_was_too_large_after_all_becomes_a_transfer() {
    let mut end = End::new(acking(), 60_000);
    let whole = request(1, &json!("t"), &"x".repeat(3000));
    end.send(1, whole.clone());
    let sent = end.next().unwrap();
    assert_eq!(sent.text, whole);
    end.refuse(sent.tag, Refusal::TooLarge);
    let first = end.next().unwrap();
    assert_eq!(first.kind(), "start");
    end.ack(first.tag);
    let chunks = end.frames();
    assert!(chunks.len() >= 3 && chunks.iter().all(|sent| sent.text.len() < 1600));
}

#[test]
fn an_ambiguous_refusal_is_never_taken_for_size() {
    let mut end = End::new(acking(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(3000)));
    let sent = end.next().unwrap();
    end.refuse(sent.tag, Refusal::Other);
    assert!(end.frames().is_empty());
    assert_eq!(end.unsent().0, SendError::Refused);
}

#[test]
fn a_refused_chunk_aborts_its_transfer_and_no_other() {
    for refusal in [Refusal::Other, Refusal::TooLarge] {
        let mut end = End::new(acking(), 600);
        end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
        let first = end.next().unwrap();
        end.send(2, request(2, &json!("u"), &"x".repeat(900)));
        end.ack(first.tag);
        let frames = end.frames();
        let bad = frames.iter().find(|sent| sent.kind() == "chunk").unwrap();
        let other = frames.iter().find(|sent| sent.kind() == "start").unwrap();
        end.refuse(bad.tag, refusal);
        let (error, reply) = end.unsent();
        assert_eq!((error, &reply.unwrap()["id"]), (SendError::Refused, &json!(1)));
        let aborted = end.next().unwrap();
        assert_eq!((aborted.kind().as_str(), &aborted.json()["params"]["progressToken"]), ("abort", &json!("t")));
        end.ack(other.tag);
        assert!(!end.frames().is_empty());
    }
}

#[test]
fn a_silent_link_is_given_up_after_the_soft_timeout() {
    let mut end = End::new(acking(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    let first = end.next().unwrap();
    end.pass(Duration::from_secs(50));
    end.ack(first.tag);
    end.frames();
    end.pass(Duration::from_secs(59));
    assert!(end.events().is_empty());
    end.pass(Duration::from_secs(1));
    assert_eq!(end.unsent().0, SendError::Refused);
}

#[test]
fn a_response_that_arrives_before_the_end_frames_receipt_is_not_lost() {
    let mut end = End::new(acking(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(900)));
    let mut last = end.next().unwrap();
    while last.kind() != "end" {
        end.ack(last.tag);
        last = end.next().unwrap();
    }
    end.take(response(1, "early"));
    assert_eq!(end.messages(), [response(1, "early")]);
    end.ack(last.tag);
    assert!(matches!(end.events().as_slice(), [Event::Sent { .. }]));
}

// Receiving.

#[test]
fn a_transfer_surfaces_whole_after_its_end_and_not_before() {
    let mut end = End::new(known(), 9999);
    let (whole, frames) = transfer(&json!("t"), 7);
    let (last, others) = frames.split_last().unwrap();
    for text in others {
        end.take(text.clone());
        assert!(end.events().is_empty());
    }
    end.take(last.clone());
    assert_eq!(end.messages(), [whole]);
    assert_eq!(end.kinds(), ["accept"]);
}

#[test]
fn a_transfer_is_accepted_unless_it_answers_a_request_of_ours() {
    let mut end = End::new(known(), 9999);
    end.send_to(1, request(1, &json!(5), ""), "p");
    assert!(end.next().unwrap().meta.supports_parts);
    let (_, frames) = transfer(&json!("5"), 2);
    end.take_from(frames[0].clone(), "p", "e1");
    assert!(end.frames().is_empty());
    end.take_from(frames[0].clone(), "q", "e2");
    let accept = end.next().unwrap();
    assert_eq!((accept.kind().as_str(), accept.progress()), ("accept", 2));
    assert_eq!((accept.meta.peer.as_deref(), accept.meta.about.as_deref()), (Some("q"), Some("e2")));
    assert!(accept.meta.supports_parts);
}

#[test]
fn the_same_token_from_two_peers_is_two_transfers() {
    let mut end = End::new(known(), 9999);
    let (whole, frames) = transfer(&json!("t"), 3);
    let other = request(8, &json!("t"), "other");
    let others = [start(&json!("t"), &other, 1), chunk(&json!("t"), 2, &other), super::tests::end(&json!("t"), 3)];
    for (i, text) in frames.iter().enumerate() {
        end.take_from(text.clone(), "p", &format!("p{i}"));
        if let Some(text) = others.get(i) {
            end.take_from(text.clone(), "q", &format!("q{i}"));
        }
    }
    assert_eq!(end.messages(), [other, whole]);
}

#[test]
fn a_number_and_its_string_are_one_token() {
    let mut peer = End::new(known(), 9999);
    let whole = request(1, &json!(17), "x");
    let (half, rest) = whole.split_at(40);
    peer.take(start(&json!(17), &whole, 2));
    peer.take(chunk(&json!("17"), 2, half));
    peer.take(chunk(&json!(17.0), 3, rest));
    peer.take(end(&json!("17"), 4));
    assert_eq!(peer.messages(), [whole]);
}

#[test]
fn any_spelling_of_a_frame_is_read() {
    let whole = request(1, &json!("t"), "a");
    let (half, rest) = whole.split_at(20);
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let mut end = End::new(known(), 9999);
    end.take(format!(
        r#" {{ "params" : {{"cvm":{{"totalChunks":2.0,"totalBytes":{}e0,"digest":"sha256:{}","frameType":"st\u0061rt","type":"oversized-transfer"}},
        "message":"m","total":9,"progress":1.0,"progressToken":"\u0074"}},"method":"notifications\/progress","jsonrpc":"2.0"}}"#,
        whole.len(),
        hex(&whole).to_uppercase()
    ));
    end.take(format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"cvm":{{"data":{},"frameType":"chunk","type":"oversized-transfer"}},"progress":2,"progressToken":"t"}}}}"#,
        quoted(half)
    ));
    let escaped: String = rest.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    end.take(chunk(&json!("t"), 3, "@@").replace("@@", &escaped));
    end.take(super::tests::end(&json!("t"), 4));
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn members_after_data_do_not_confuse_the_quick_reader() {
    let t = json!("t");
    let whole = request(1, &t, "a");
    let quick = |text: &str, more: &str| {
        let data = serde_json::to_string(text).unwrap();
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"t","progress":2,"cvm":{{"type":"oversized-transfer","frameType":"chunk","data":{data}{more}}}}}}}"#
        )
    };
    for more in ["", r#","note":"more""#, r#", "x" : "\"""#] {
        let mut peer = End::new(known(), 9999);
        peer.take(start(&t, &whole, 1));
        peer.take(quick(&whole, more));
        peer.take(end(&t, 3));
        assert_eq!(peer.messages(), std::slice::from_ref(&whole), "{more}");
    }
    let twice = [start(&t, &whole, 1), quick(&whole, r#","data":"""#)];
    assert_eq!(breaks(known(), &twice), Violation::DuplicateKey("data"));
}

#[test]
fn chunks_arrive_in_any_order_inside_the_window() {
    let mut end = End::new(known(), 9999);
    let (whole, frames) = transfer(&json!("t"), 40);
    end.take(frames[0].clone());
    frames[1..41].iter().rev().for_each(|text| end.take(text.clone()));
    end.take(frames[41].clone());
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn gaps_in_the_numbering_are_no_failure() {
    let token = json!("t");
    let (whole, frames) = transfer(&token, 100);
    for number in [|i: u64| 2 * i, |i: u64| i + 2, |i: u64| i * i + 7] {
        let mut end = End::new(known(), 9999);
        end.take(frames[0].clone());
        for (i, text) in (1..).zip(&frames[1..101]) {
            let data: Value = serde_json::from_str(text).unwrap();
            end.take(chunk(&token, number(i), data["params"]["cvm"]["data"].as_str().unwrap()));
        }
        end.take(super::tests::end(&token, 1 << 40));
        assert_eq!(end.messages(), std::slice::from_ref(&whole));
    }
}

#[test]
fn a_chunk_later_than_the_window_fails_the_transfer() {
    let t = json!("t");
    let whole = request(1, &t, &"x".repeat(100));
    let at = whole.find("xxx").unwrap();
    let mut frames = vec![start(&t, &whole, 12), chunk(&t, 2, &whole[..at])];
    frames.extend((0..10).map(|i| chunk(&t, 3 + i, &"x".repeat(10))));
    let config = Config { window: 4, ..known() };
    // The text stays JSON without it.
    let order = [0, 1, 3, 4, 5, 6, 7, 2].map(|i| frames[i].clone());
    assert_eq!(breaks(config.clone(), &order), Violation::OutsideWindow { at: 3, window: 4 });
    // It does not.
    let order = [0, 3, 4, 5, 6, 7].map(|i| frames[i].clone());
    assert_eq!(breaks(config, &order), Violation::OutsideWindow { at: 2, window: 4 });
}

#[test]
fn identical_duplicates_are_ignored_and_different_ones_fail() {
    let (whole, frames) = transfer(&json!("t"), 6);
    let mut end = End::new(known(), 9999);
    for i in [0, 0, 1, 1, 3, 3, 1, 2, 3, 2, 4, 5, 6, 6, 5, 7, 7, 0, 3] {
        end.take_from(frames[i].clone(), "p", &format!("e{i}"));
    }
    assert_eq!(end.messages(), [whole]);
    for (held, at) in [(false, 2), (true, 4)] {
        let mut end = End::new(known(), 9999);
        end.take(frames[0].clone());
        end.take(frames[if held { 3 } else { 1 }].clone());
        end.take(chunk(&json!("t"), at, "other"));
        assert_eq!(end.broken(), Violation::ChunkConflict(at));
    }
}

#[test]
fn an_old_duplicate_is_ignored_even_when_its_mark_is_gone() {
    let (whole, frames) = transfer(&json!("t"), 60);
    let mut end = End::new(known(), 9999);
    frames[..50].iter().for_each(|text| end.take(text.clone()));
    end.take(frames[1].clone());
    frames[50..].iter().for_each(|text| end.take(text.clone()));
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn frames_before_start_and_after_the_end_are_ignored() {
    let (whole, frames) = transfer(&json!("t"), 2);
    let mut end = End::new(known(), 9999);
    end.take(frames[1].clone());
    end.take(frames[3].clone());
    end.take(abort(&json!("t")));
    frames.iter().for_each(|text| end.take(text.clone()));
    end.take(frames[1].clone());
    end.take(frames[3].clone());
    assert_eq!(end.messages(), [whole]);
    assert_eq!(end.machine.counters().count("part-of-no-transfer"), 5);
    assert_eq!(end.kinds(), ["accept"]);
}

#[test]
fn a_new_start_opens_an_ended_token_again_but_the_same_frame_does_not() {
    let (whole, frames) = transfer(&json!("t"), 2);
    let mut end = End::new(known(), 9999);
    for round in 0..2 {
        for (i, text) in frames.iter().enumerate() {
            end.take_from(text.clone(), "p", &format!("round {round}, {i}"));
        }
        end.take_from(frames[0].clone(), "p", &format!("round {round}, 0"));
    }
    assert_eq!(end.messages(), [whole.clone(), whole]);
    assert_eq!(end.machine.poll_timeout(), None);
}

/// Feeds frames; the last of them breaks a rule. The peer is told, and the connection lives.
fn breaks(config: Config, frames: &[String]) -> Violation {
    let mut end = End::new(config, 9999);
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

#[test]
fn each_broken_rule_is_named_aborted_and_survived() {
    let t = json!("t");
    let (whole, good) = transfer(&t, 3);
    let with = |at: usize, text: String| {
        let mut frames = good[..=at].to_vec();
        frames[at] = text;
        frames
    };
    let digest = format!("sha256:{}", hex(&whole));
    let declare = |mode: Value, digest: Value, bytes: Value, chunks: Value| {
        let cvm =
            json!({"frameType":"start","completionMode":mode,"digest":digest,"totalBytes":bytes,"totalChunks":chunks});
        vec![frame(&t, 1, &cvm)]
    };
    let n = json!(whole.len());
    let cases = [
        (declare(json!("stream"), json!(digest), n.clone(), json!(3)), Violation::CompletionModeUnknown),
        (declare(json!(null), json!(digest), n.clone(), json!(3)), Violation::CompletionModeUnknown),
        (declare(json!("render"), json!(null), n.clone(), json!(3)), Violation::DigestInvalid),
        (declare(json!("render"), json!(digest.replace("256", "512")), n.clone(), json!(3)), Violation::DigestInvalid),
        (declare(json!("render"), json!(digest[..70]), n.clone(), json!(3)), Violation::DigestInvalid),
        (declare(json!("render"), json!(digest), json!("9"), json!(3)), Violation::TotalsInvalid),
        (declare(json!("render"), json!(digest), json!(0), json!(3)), Violation::TotalsInvalid),
        (declare(json!("render"), json!(digest), n.clone(), json!(1.5)), Violation::TotalsInvalid),
        (declare(json!("render"), json!(digest), n.clone(), json!(-1)), Violation::TotalsInvalid),
        (
            declare(json!("render"), json!(digest), json!(u64::MAX), json!(3)),
            Violation::MessageTooLarge(Over { size: u64::MAX, limit: 32 << 20 }),
        ),
        (
            declare(json!("render"), json!(digest), json!(1e300), json!(3)),
            Violation::MessageTooLarge(Over { size: u64::MAX, limit: 32 << 20 }),
        ),
        (
            declare(json!("render"), json!(digest), n.clone(), json!(10_001)),
            Violation::TooManyChunks(Over { size: 10_001, limit: 10_000 }),
        ),
        (with(1, start(&t, "another message", 3)), Violation::TransferInFlight),
        (with(1, chunk(&t, 1, "x")), Violation::ProgressNotIncreasing { got: 1, after: 1 }),
        (with(2, frame(&t, 3, &json!({"frameType":"chunk"}))), Violation::DataMissing),
        (with(2, frame(&t, 3, &json!({"frameType":"chunk","data":1}))), Violation::DataMissing),
        (with(2, chunk(&t, 3, "x").replace("\"progress\":3", "\"progress\":3.5")), Violation::ProgressInvalid),
        (with(2, chunk(&t, 3, "x").replace("\"progress\":3", "\"progress\":-3")), Violation::ProgressInvalid),
        (
            with(2, chunk(&t, 3, "x").replace("\"progress\":3", "\"progress\":3,\"progress\":4")),
            Violation::DuplicateKey("progress"),
        ),
        (with(2, chunk(&t, 3, "@").replace('@', "\\ud800")), Violation::MessageNotUtf8),
        (with(3, chunk(&t, 4, &"x".repeat(whole.len()))), Violation::SizeMismatch { got: 0, want: whole.len() as u64 }),
        (with(2, end(&t, 5)), Violation::ChunksMissing { got: 1, want: 3 }),
        (with(4, end(&t, 4)), Violation::ProgressNotIncreasing { got: 4, after: 4 }),
    ];
    for (frames, want) in cases {
        let got = breaks(Config::default(), &frames);
        match (&got, &want) {
            (Violation::SizeMismatch { .. }, Violation::SizeMismatch { .. }) => {}
            _ => assert_eq!(got, want),
        }
    }
}

#[test]
fn more_chunks_than_declared_fail_even_when_they_are_empty() {
    let t = json!("t");
    let whole = request(1, &t, "");
    let frames = [start(&t, &whole, 1), chunk(&t, 2, &whole), chunk(&t, 3, "")];
    assert_eq!(breaks(known(), &frames), Violation::TooManyChunks(Over { size: 2, limit: 1 }));
}

#[test]
fn nothing_surfaces_that_is_not_what_was_declared() {
    let t = json!("t");
    let whole = request(1, &t, "abc");
    let altered = whole.replace("abc", "abd");
    let frames = [start(&t, &whole, 1), chunk(&t, 2, &altered), end(&t, 3)];
    assert_eq!(breaks(known(), &frames), Violation::DigestMismatch);
    let frames = [start(&t, &whole, 1), chunk(&t, 2, &whole[..9]), end(&t, 3)];
    assert_eq!(breaks(known(), &frames), Violation::SizeMismatch { got: 9, want: whole.len() as u64 });
    for (text, name) in [
        ("{\"jsonrpc\":\"2.0\",", "message-not-json"),
        ("[]", "message-not-json-rpc"),
        ("{\"jsonrpc\":\"1.0\",\"method\":\"m\"}", "message-not-json-rpc"),
        ("{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"method\":\"n\"}", "duplicate-key"),
        (&accept(&t), "nested-segment"),
    ] {
        let frames = [start(&t, text, 1), chunk(&t, 2, text), end(&t, 3)];
        assert_eq!(breaks(known(), &frames).name(), name, "{text}");
    }
    let frames = [start(&t, "}}", 1), chunk(&t, 2, "}}")];
    assert_eq!(breaks(known(), &frames).name(), "message-not-json", "at once");
}

#[test]
fn a_left_out_completion_mode_means_render() {
    let (whole, mut frames) = transfer(&json!("t"), 2);
    frames[0] = frames[0].replace("\"completionMode\":\"render\",", "");
    assert!(!frames[0].contains("render"));
    let mut end = End::new(known(), 9999);
    frames.iter().for_each(|text| end.take(text.clone()));
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn an_incoming_abort_ends_the_transfer_and_is_not_answered() {
    let (_, frames) = transfer(&json!("t"), 3);
    let mut end = End::new(known(), 9999);
    frames[..3].iter().for_each(|text| end.take(text.clone()));
    end.frames();
    // Even one without a place.
    end.take(abort(&json!("t")).replace("\"progress\":9,", ""));
    assert_eq!(end.broken(), Violation::Aborted);
    frames[3..].iter().for_each(|text| end.take(text.clone()));
    assert!(end.events().is_empty() && end.frames().is_empty());
}

#[test]
fn an_incoming_abort_ends_our_transfer_and_its_caller_hears_of_it() {
    let mut end = End::new(known(), 600);
    end.send(1, request(4, &json!(9), &"x".repeat(3000)));
    end.next().unwrap();
    end.next().unwrap();
    end.take(abort(&json!("9")));
    let (error, reply) = end.unsent();
    assert_eq!((error, &reply.unwrap()["id"]), (SendError::Aborted, &json!(4)));
    assert!(end.frames().is_empty());
}

#[test]
fn an_abort_after_our_end_fails_the_request_once() {
    let mut end = End::new(known(), 600);
    end.send(1, request(4, &json!("t"), &"x".repeat(900)));
    end.frames();
    end.events();
    end.take(abort(&json!("t")));
    let events = end.events();
    let [Event::ReceiveFailed { violation: Violation::Aborted, reply: Some(reply), .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(value(reply)["id"], 4);
    end.take(abort(&json!("t")));
    assert!(end.events().is_empty());
}

#[test]
fn an_abort_after_the_answer_is_no_news() {
    let mut end = End::new(known(), 600);
    end.send(1, request(4, &json!("t"), ""));
    end.frames();
    end.take(response(4, ""));
    assert_eq!(end.events().len(), 2);
    end.take(abort(&json!("t")));
    assert!(end.events().is_empty());
}

#[test]
fn a_late_answer_does_not_count_for_the_next_request_of_its_token() {
    let mut end = End::new(known(), 9999);
    end.send(1, request(1, &json!("t"), ""));
    end.send(2, request(2, &json!("t"), ""));
    end.frames();
    end.take(response(1, ""));
    end.events();
    end.take(abort(&json!("t")));
    let events = end.events();
    let [Event::ReceiveFailed { reply: Some(reply), .. }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(value(reply)["id"], 2);
}

#[test]
fn a_failed_answer_reaches_the_caller_with_its_own_id() {
    let mut end = End::new(known(), 9999);
    end.send_to(1, r#"{"jsonrpc":"2.0","id":1.0,"method":"m","params":{"_meta":{"progressToken":7}}}"#, "p");
    end.frames();
    end.events();
    let (_, frames) = transfer(&json!("7"), 3);
    end.take_from(frames[0].clone(), "p", "a");
    end.take_from(frames[4].clone(), "p", "b");
    let events = end.events();
    let [Event::ReceiveFailed { violation: Violation::ChunksMissing { got: 0, want: 3 }, reply: Some(reply), .. }] =
        events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert!(text(reply).starts_with(r#"{"jsonrpc":"2.0","id":1.0,"error":"#));
    assert_eq!(value(reply)["error"]["data"]["reason"], "chunks-missing");
    assert_eq!(end.kinds(), ["abort"]);
}

#[test]
fn the_soft_timeout_is_refreshed_by_frames_and_the_hard_one_is_not() {
    let (_, frames) = transfer(&json!("t"), 9);
    let mut end = End::new(known(), 9999);
    end.take(frames[0].clone());
    assert_eq!(end.machine.poll_timeout(), Some(end.now + Duration::from_secs(60)));
    end.pass(Duration::from_secs(59));
    end.take(frames[1].clone());
    end.pass(Duration::from_secs(59));
    assert!(end.events().is_empty());
    end.pass(Duration::from_secs(1));
    assert!(matches!(end.events().as_slice(), [Event::Expired { ordinal: 1, received }] if *received > 0));
    assert_eq!(end.kinds(), ["accept", "abort"]);

    let mut end = End::new(known(), 9999);
    let begun = end.now;
    end.take(frames[0].clone());
    for text in &frames[1..7] {
        end.pass(Duration::from_secs(49));
        end.take(text.clone());
    }
    assert!(end.events().is_empty());
    end.now = begun + Duration::from_secs(300);
    end.put(Input::Timeout);
    assert!(matches!(end.events().as_slice(), [Event::Expired { .. }]));
    assert_eq!(end.machine.counters().count("timed-out"), 1);
}

#[test]
fn an_expired_answer_reaches_its_caller() {
    let mut end = End::new(known(), 9999);
    end.send(1, request(2, &json!("t"), ""));
    end.frames();
    end.events();
    end.take(transfer(&json!("t"), 2).1[0].clone());
    end.pass(Duration::from_secs(60));
    let events = end.events();
    assert!(
        matches!(
            events.as_slice(),
            [Event::Expired { .. }, Event::ReceiveFailed { violation: Violation::TimedOut { .. }, reply: Some(_), .. }]
        ),
        "{events:?}"
    );
}

#[test]
fn the_clock_stands_still_while_we_do_not_read() {
    let (whole, frames) = transfer(&json!("t"), 2);
    let mut end = End::new(known(), 9999);
    end.take(frames[0].clone());
    end.pass(Duration::from_secs(40));
    end.put(Input::Paused(true));
    assert_eq!(end.machine.poll_timeout(), None);
    end.pass(Duration::from_secs(4000));
    end.put(Input::Paused(false));
    assert_eq!(end.machine.poll_timeout(), Some(end.now + Duration::from_secs(20)));
    end.pass(Duration::from_secs(19));
    frames[1..].iter().for_each(|text| end.take(text.clone()));
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn declared_sizes_are_set_aside_and_given_back_and_never_allocated() {
    let budget = Budget::new(BudgetConfig { process_bytes: 30 << 20, principal_bytes: 30 << 20, floor_bytes: 0 });
    let mut end = End::with_budget(known(), 9999, &budget);
    let declare = |token: &str| {
        let digest = format!("sha256:{}", hex(""));
        let cvm = json!({"frameType":"start","digest":digest,"totalBytes":14 << 20,"totalChunks":300});
        frame(&json!(token), 1, &cvm)
    };
    end.take(declare("a"));
    end.take(declare("b"));
    assert!(budget.held() > 28 << 20);
    end.take(declare("c"));
    assert_eq!(end.broken(), Violation::NoRoom(14 << 20));
    assert_eq!(end.kinds(), ["accept", "accept", "abort"]);
    end.take(abort(&json!("a")));
    end.events();
    end.take(declare("c"));
    assert!(end.events().is_empty());
    end.pass(Duration::from_secs(60));
    assert_eq!(budget.held(), 0);
}

#[test]
fn transfers_are_bounded_per_peer_and_in_all() {
    let config = Config { max_transfers: 3, max_transfers_in_all: 5, ..known() };
    let mut end = End::new(config, 9999);
    for i in 0..4 {
        end.take_from(transfer(&json!(i), 2).1[0].clone(), "p", &format!("p{i}"));
    }
    assert_eq!(end.broken(), Violation::TooManyTransfers(3));
    for i in 0..3 {
        end.take_from(transfer(&json!(i), 2).1[0].clone(), "q", &format!("q{i}"));
    }
    assert_eq!(end.broken(), Violation::TooManyTransfers(5));
    assert_eq!(end.kinds().iter().filter(|kind| *kind == "accept").count(), 5);
}

#[test]
fn a_million_tokens_cost_no_more_than_the_tables_hold() {
    let budget = Budget::new(BudgetConfig::default());
    let mut end = End::with_budget(known(), 9999, &budget);
    let pattern = transfer(&json!("@@"), 2).1[0].clone();
    for i in 0..1_000_000_u32 {
        end.put(Input::frame(pattern.replace("@@", &i.to_string())));
        if i % 1000 == 0 {
            end.events();
            assert!(end.frames().len() <= 1024);
        }
    }
    assert!(budget.held() < 64 * 4096);
    let counters = end.machine.counters();
    assert_eq!(counters.count("too-many-transfers"), 1_000_000 - 64);
}

#[test]
fn frames_that_are_no_messages_fail_alone() {
    let mut end = End::new(known(), 9999);
    for (bytes, name) in [
        (&b"\xff"[..], "frame-not-utf8"),
        (b"{", "frame-not-json"),
        (b"[]", "frame-not-object"),
        (b"{}", "message-not-json-rpc"),
        (br#"{"jsonrpc":"2.0","id":1,"id":2,"result":1}"#, "duplicate-key"),
    ] {
        end.put(Input::frame(bytes.to_vec()));
        assert_eq!(end.broken().name(), name);
    }
    end.put(Input::frame(vec![b' '; (4 << 20) + 1]));
    assert_eq!(end.broken().name(), "frame-too-large");
    assert!(end.frames().is_empty());
}

// What passes through.

#[test]
fn other_cvm_types_and_ordinary_progress_pass_unchanged() {
    let mut end = End::new(known(), 9999);
    let texts = [
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1,"cvm":{"type":"open-stream","frameType":"start"}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":0.5,"message":"half"}}"#,
        r#"{"jsonrpc":"2.0","method":"other","params":{"cvm":{"type":"oversized-transfer","frameType":"start"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"notifications/progress","params":{"cvm":{"type":"oversized-transfer"}}}"#,
    ];
    texts.iter().for_each(|text| end.take(*text));
    assert_eq!(end.messages(), texts);
    assert!(end.frames().is_empty());
}

#[test]
fn the_application_gets_its_token_back_as_it_wrote_it() {
    let mut end = End::new(known(), 9999);
    end.send_to(1, request(1, &json!(5), ""), "p");
    end.frames();
    end.events();
    let progress = |token: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        )
    };
    end.take_from(progress("\"5\""), "p", "a");
    end.take_from(progress("\"5\""), "q", "b");
    assert_eq!(end.messages(), [progress("5"), progress("\"5\"")]);
}

#[test]
fn a_gateway_adds_a_token_where_there_is_none_and_swallows_its_progress() {
    let config = Config { inject_tokens: true, seed: 0xab, ..known() };
    let mut end = End::new(config, 9999);
    let cases = [
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":@}}}"#,
        ),
        (
            r#"{"method":"m","params":{ },"id":1,"jsonrpc":"2.0"}"#,
            r#"{"method":"m","params":{"_meta":{"progressToken":@} },"id":1,"jsonrpc":"2.0"}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":@},"a":1}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":@}}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"x":{}}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":@,"x":{}}}}"#,
        ),
    ];
    for (i, (text, want)) in (1..).zip(cases) {
        end.send(i, text);
        assert_eq!(end.next().unwrap().text, want.replace('@', &format!("\"bb-ab-{i:x}\"")));
    }
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1}}}"#,
        r#"{"jsonrpc":"2.0","method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1}"#,
    ] {
        end.send(9, text);
        assert_eq!(end.next().unwrap().text, text);
    }
    end.events();
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"bb-ab-2","progress":1}}"#;
    end.take(progress);
    end.take(progress.replace("bb-ab-2", "1"));
    assert_eq!(end.messages(), [progress.replace("\"bb-ab-2\"", "1")]);
    assert_eq!(end.machine.counters().count("progress-swallowed"), 1);
}

// Both ends.

#[test]
fn a_request_and_its_answer_share_a_token_both_ways_at_once() {
    let (mut a, mut b) = (End::new(Config::default(), 700), End::new(Config::default(), 700));
    let ask = request(1, &json!(3), &"ask \" ".repeat(500));
    let answer = response(1, &"answer 漢 ".repeat(500));
    a.send_to(1, ask.clone(), "b");
    shuttle(&mut a, &mut b);
    assert_eq!(b.messages(), [ask]);
    b.send_to(1, answer.clone(), "a");
    // Another request on the same token, while the answer to the first is on its way.
    let again = request(2, &json!(3), &"again ".repeat(500));
    a.send_to(2, again.clone(), "b");
    shuttle(&mut a, &mut b);
    assert_eq!(b.messages(), [again]);
    assert_eq!(a.messages(), [answer]);
}

#[test]
fn thirty_megabytes_pass_at_64_kib() {
    let budget = Budget::new(BudgetConfig::default());
    let mut a = End::new(known(), 65_536);
    let mut b = End::with_budget(Config::default(), 65_536, &budget);
    let line = "fn main() { println!(\"漢\\n\"); }\n";
    let whole = request(1, &json!("t"), &line.repeat(31_000_000 / (json!(line).to_string().len() - 2)));
    assert!(whole.len() > 30_000_000 && whole.len() < 32 << 20);
    a.send(1, whole.clone());
    let mut most = 0;
    while let Some(sent) = a.next() {
        assert!(sent.text.len() <= 65_536);
        b.take(sent.text);
        most = most.max(budget.held());
    }
    assert_eq!(b.messages(), std::slice::from_ref(&whole));
    assert!(most < whole.len() as u64 * 101 / 100, "{most}");
    assert_eq!(budget.held(), 0);
}

#[test]
fn progress_is_told_at_most_once_per_transfer_between_polls() {
    let (mut a, mut b) = (End::new(known(), 600), End::new(known(), 600));
    a.send(4, request(1, &json!("t"), &"x".repeat(9000)));
    for _ in 0..9 {
        let sent = a.next().unwrap();
        b.take(sent.text);
    }
    for (end, subject) in [(&mut a, Subject::Outgoing(Ticket(4))), (&mut b, Subject::Incoming(1))] {
        let events: Vec<_> = std::iter::from_fn(|| end.machine.poll_event()).collect();
        let [Event::Progress(progress)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(progress.subject, subject);
        assert!(progress.done > 1000 && progress.done < progress.total);
    }
}

#[test]
fn a_frames_memory_is_used_again_once_the_link_has_dropped_it() {
    let mut end = End::new(known(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(3_000_000)));
    let mut places = std::collections::HashSet::new();
    while let Some(Transmit::Frame { bytes, .. }) = end.machine.poll_transmit(end.now) {
        if bytes.len() > 10_000 {
            places.insert(bytes.as_ptr() as usize);
        }
    }
    assert!(places.len() <= 2, "{} places", places.len());
}

fn any_text() -> impl Strategy<Value = String> {
    let piece =
        prop_oneof!["[ -~]{0,40}", "[\"\\\\\n\r\t\u{0}-\u{1f}]{0,20}", "[一-龥]{0,20}", "[🀀-🙏]{0,10}", "\\PC{0,20}"];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_arrives_is_what_was_sent(
        pad in any_text(),
        cap in 420_u64..5000,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize), 0..40),
        repeats in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        gated in any::<bool>(),
        escapes in any::<bool>(),
    ) {
        let whole = request(1, &json!("tok\u{e9}n"), &pad);
        let mut a = End::new(if gated { Config::default() } else { known() }, cap);
        let overhead = if escapes { Overhead::new(|m: Measure| m.escaped - m.bytes) } else { Overhead::default() };
        let capacity = Capacity { cap: if escapes { cap + 120 } else { cap }, overhead };
        a.put(Input::Capacity(capacity.clone()));
        // A rope, cut at any byte.
        let bytes = Bytes::from(whole.clone());
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let parts: Vec<Bytes> = at.windows(2).map(|pair| bytes.slice(pair[0]..pair[1])).collect();
        a.put(Input::send(1, Message::from_iter(parts)));
        let mut b = End::new(Config::default(), cap);
        let mut frames = a.frames();
        if gated && frames.len() == 1 && frames[0].kind() == "start" {
            a.take(accept(&json!("tok\u{e9}n")));
            frames.extend(a.frames());
        }
        for sent in &frames {
            let escaped = serde_json::to_string(&sent.text).unwrap().len() as u64 - 2;
            let measure = Measure { bytes: sent.text.len() as u64, escaped };
            prop_assert!(capacity.fits(measure));
        }
        // Any delivery inside the window: chunks swapped by less than it, and repeated.
        let last = frames.len().saturating_sub(1);
        if last > 1 {
            for (index, by) in swaps.iter().take(1) {
                let i = 1 + index.index(last - 1);
                let j = (i + by).min(last - 1);
                frames[i..=j].reverse();
            }
            for index in &repeats {
                let i = 1 + index.index(last - 1);
                let again = frames[i].clone();
                let place = (i + 1).min(frames.len() - 1);
                frames.insert(place, again);
            }
        }
        frames.iter().for_each(|sent| b.take(sent.text.clone()));
        prop_assert_eq!(b.messages(), [whole]);
    }

    #[test]
    fn no_sequence_of_frames_surfaces_anything_else(order in prop::collection::vec(0..8_usize, 0..30), junk in any_text()) {
        let (whole, frames) = transfer(&json!("t"), 5);
        let mut b = End::new(known(), 9999);
        for i in order {
            let text = frames.get(i).cloned().unwrap_or_else(|| chunk(&json!("t"), 4, &junk));
            b.take(text);
        }
        for got in b.messages() {
            prop_assert_eq!(&got, &whole);
        }
        b.pass(Duration::from_secs(301));
        prop_assert_eq!(b.machine.poll_timeout(), None);
    }

    #[test]
    fn no_frame_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), token in any_text(), progress in any::<u64>(), data in any_text()) {
        let mut end = End::new(known(), 9999);
        end.put(Input::frame(bytes));
        let token = json!(token);
        end.take(start(&token, &data, progress));
        end.take(chunk(&token, progress, &data));
        end.take(super::tests::end(&token, progress));
        end.take(chunk(&token, u64::MAX, &data));
        end.frames();
        end.events();
        end.pass(Duration::from_secs(3000));
    }
}

#[test]
fn peers_are_remembered_by_name_and_forgotten_in_bounds() {
    let mut end = End::new(Config::default(), 600);
    let hello = |peer: Arc<str>| Input::Frame {
        bytes: Bytes::from(response(1, "")),
        meta: Meta { peer: Some(peer), supports_parts: true, ..Meta::default() },
    };
    end.put(hello("p".into()));
    end.send_to(1, request(1, &json!("t"), &"x".repeat(900)), "p");
    end.send_to(2, request(1, &json!("t"), &"x".repeat(900)), "q");
    let frames = end.frames();
    let chunks = frames.iter().filter(|sent| sent.kind() == "chunk");
    assert!(chunks.clone().count() > 1 && chunks.clone().all(|sent| sent.meta.peer.as_deref() == Some("p")));
    for i in 0..5000 {
        end.put(hello(format!("peer {i}").into()));
    }
    end.send_to(3, request(3, &json!("v"), &"x".repeat(900)), "p");
    assert_eq!(end.kinds(), ["start"], "forgotten, so it is asked again");
}
