//! Messages to send: what their front says, the queue in which they wait, and who gets an error when one is not sent.

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::envelope::{ENVELOPE, Envelope, Kind};
use crate::error::{Over, SendError, Violation};
use crate::error_responses::ErrorResponses;
use crate::event_queue::EventQueue;
use crate::json::{self, Compactor, Path, Paths, Scanner};
use crate::limits::Limits;
use crate::machine::{Capacity, Event, Input, Lane, Measure, Meta, Progress, Subject, Tag, Ticket, Transmit};
use crate::mcp_order::{self, IN_ORDER};
use crate::message::{Message, MessageReader, len64};
use crate::plain::Framing;
use crate::queue::{Bond, Order, Queue};
use crate::rpc;
use crate::salvage::Salvage;

/// How many bytes of a message are scanned first: enough for the envelope of most.
const FIRST_SCAN: usize = 512;
/// How many error answers of our own may wait, to requests of the peer that were not valid, or whose answers could not be sent. When so
/// many wait, it is not read.
pub(crate) const MAX_ANSWERS: usize = 64;

/// A message that waits to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The application's ticket; `None` for an answer that we made ourselves.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) message: Message,
    pub(crate) meta: Meta,
}

impl Outgoing {
    pub(crate) const fn new(ticket: Option<Ticket>, message: Message, meta: Meta) -> Self {
        Self { ticket, message, meta }
    }

    /// Its kind, and its id if it can be answered. If the text is not a valid message, this is a guess at what was
    /// meant.
    pub(crate) fn named(&self) -> (Kind, Option<Bytes>) {
        let Ok(envelope) = Envelope::of(&self.message) else {
            let meant = Salvage::read(&self.message.to_bytes()).into_iter().next();
            return meant.map_or((Kind::Other, None), |meant| (meant.kind, meant.id));
        };
        let id = envelope.id(&self.message);
        (envelope.kind(), id.map(|id| Bytes::copy_from_slice(&id)))
    }

    /// Makes `bytes` a frame of this message, and reports progress: after it, `done` bytes of the message have been sent.
    pub(crate) fn frame(&self, tag: Tag, bytes: impl Into<Message>, done: usize, events: &mut EventQueue) -> Transmit {
        let (done, total) = (len64(done), len64(self.message.len()));
        match self.ticket {
            Some(ticket) if done >= total => events.push(Event::Sent { ticket }),
            Some(ticket) => events.push_progress(Progress { subject: Subject::Outgoing(ticket), done, total }),
            None => {}
        }
        Transmit::Frame { tag, bytes: bytes.into(), meta: self.meta.clone() }
    }

    /// Reports that this message is not sent. If it is a request, the event has the error for its caller. If it is a response,
    /// returns the error that the peer must get in its place.
    #[must_use]
    pub(crate) fn fail(self, error: SendError, events: &mut EventQueue) -> Option<Self> {
        let Some(ticket) = self.ticket else {
            events.count(error.name());
            return None;
        };
        let (kind, id) = self.named();
        let answer = id.map(|id| rpc::send_failed(&id, &error));
        // A text with an id and no method was meant as a response.
        let (instead, reply) = if kind == Kind::Request { (None, answer) } else { (answer, None) };
        events.send_failed(ticket, error, reply);
        instead.map(|message| Self::new(None, message, self.meta))
    }
}

/// Handles input that comes after the close: a message to send fails, and everything else is ignored.
pub(crate) fn too_late(input: Input, events: &mut EventQueue) {
    if let Input::Send { ticket, message, meta, .. } = input {
        let _ = Outgoing::new(Some(ticket), message, meta).fail(SendError::Disconnected, events);
    }
}

/// Messages that wait, and those in flight as a group `G`: in order, except those marked free and those that may
/// [pass](mcp_order). For dialects without lanes.
#[derive(Debug)]
pub(crate) struct SendQueue<G> {
    pub(crate) limits: Limits,
    pub(crate) framing: Framing,
    pub(crate) queue: Queue<Outgoing, G>,
    /// Error answers to requests of the peer that were not valid, or were given up. They are sent before everything else.
    answers: VecDeque<ErrorResponses>,
    pub(crate) last_tag: Tag,
}

impl<G> SendQueue<G> {
    pub(crate) fn new(limits: Limits, framing: Framing) -> Self {
        Self {
            limits,
            framing,
            queue: Queue::new(limits.max_queued_bytes),
            answers: VecDeque::new(),
            last_tag: Tag::default(),
        }
    }

    /// Queues error answers to requests of the peer that were not valid, or were given up.
    pub(crate) fn answer(&mut self, answers: ErrorResponses) {
        if answers.len() > 0 {
            self.answers.push_back(answers);
        }
    }

    /// The next of these error answers.
    pub(crate) fn next_answer(&mut self) -> Option<Outgoing> {
        let answers = self.answers.front_mut()?;
        let answer = answers.next();
        if answers.len() == 0 {
            self.answers.pop_front();
        }
        answer.map(|answer| Outgoing::new(None, answer, Meta::default()))
    }

    /// Whether the peer may be read: not while many error answers of our own wait, because it does not read them.
    pub(crate) fn may_read(&self) -> bool {
        let answers = self.answers.iter().fold(0_usize, |sum, answers| sum.saturating_add(answers.len()));
        answers.saturating_add(self.queue.barriers()) < MAX_ANSWERS
    }

    /// Accepts a message of the application, or refuses it. `short` is the longest message that goes in one frame. `None` if each goes
    /// in one: then none passes another.
    pub(crate) fn accept(
        &mut self,
        (ticket, message, lane, meta): (Ticket, Message, Lane, Meta),
        short: Option<u64>,
        events: &mut EventQueue,
    ) {
        let Some((message, order, bond)) = sendable(message.clone(), self.framing, short) else {
            return self.refuse(Outgoing::new(Some(ticket), message, meta), SendError::NotJsonRpc, events);
        };
        // These dialects do not say how long a message the peer takes. Our own limit is the best guess.
        let (size, limit) = (len64(message.len()), self.limits.max_message_bytes);
        let order = if lane == Lane::Free { Order::Free } else { order };
        let out = Outgoing::new(Some(ticket), message, meta);
        let accepted = if events.is_closed() {
            Err((out, SendError::Disconnected))
        } else if size > limit {
            Err((out, SendError::TooLarge(Over { size, limit })))
        } else if let Err(error) = check_depth(&out.message, self.limits.max_depth) {
            Err((out, error))
        } else {
            self.queue.push(out, size, order, bond)
        };
        if let Err((out, error)) = accepted {
            self.refuse(out, error, events);
        }
    }

    /// Fails a message. If it was a response, the peer gets an error in its place, or it would wait for ever. So that error is a
    /// barrier: barriers are exempt from the limit of the queue.
    pub(crate) fn refuse(&mut self, out: Outgoing, error: SendError, events: &mut EventQueue) {
        if let Some(answer) = out.fail(error, events)
            && !events.is_closed()
        {
            let size = len64(answer.message.len());
            let _ = self.queue.push(answer, size, Order::Barrier, Bond::None);
        }
    }

    /// Fails everything that was not sent whole. The peer gets no answers, because the connection is closed.
    pub(crate) fn abandon(&mut self, message_of: impl Fn(G) -> Outgoing, events: &mut EventQueue) {
        self.answers.clear();
        let (waiting, under_way) = self.queue.clear();
        for out in under_way.into_iter().map(message_of).chain(waiting) {
            let _ = out.fail(SendError::Disconnected, events);
        }
    }
}

/// What was found in a message, as far as it was scanned.
#[derive(Debug)]
pub(crate) struct Scan<const N: usize> {
    pub(crate) envelope: Envelope,
    pub(crate) paths: Paths<N>,
    /// Whether all of it was scanned, and is JSON.
    pub(crate) whole: bool,
    /// How many bytes were scanned.
    pub(crate) seen: usize,
}

impl<const N: usize> Scan<N> {
    /// Scans a message from the front until `enough` is true, or to its end. `paths` begin with those of the envelope.
    pub(crate) fn new(
        message: &Message,
        paths: &'static [Path; N],
        enough: impl Fn(&Self) -> bool,
    ) -> Result<Self, Violation> {
        Self::within(message, paths, u32::MAX, enough)
    }

    /// The same, for a message that may be nested at most `max_depth` deep, as far as it is scanned.
    pub(crate) fn within(
        message: &Message,
        paths: &'static [Path; N],
        max_depth: u32,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<Self, Violation> {
        let mut scanner = Scanner::with_max_depth(Paths::new(paths), max_depth);
        let mut reader = MessageReader::new(message.clone());
        let mut size = FIRST_SCAN;
        while reader.left() > 0 {
            scanner.feed(reader.run(size)).map_err(|error| Violation::of_frame(error, max_depth))?;
            size = size.saturating_mul(4);
            if reader.left() > 0
                && let Ok(scan) = Self::of(scanner.visitor().clone(), reader.done(), false)
                && enough(&scan)
            {
                return Ok(scan);
            }
        }
        Self::of(scanner.finish().map_err(|error| Violation::of_frame(error, max_depth))?, reader.done(), true)
    }

    fn of(paths: Paths<N>, seen: usize, whole: bool) -> Result<Self, Violation> {
        let envelope = Envelope::read(&paths)?;
        Ok(Self { envelope: if whole { envelope } else { envelope.of_front() }, paths, whole, seen })
    }
}

/// What a message is called in errors: the type of its action, or its method. A peer may have chosen them, so only what looks like a
/// name is shown.
pub(crate) fn describe(message: &Message) -> String {
    static PATHS: [Path; ENVELOPE.len() + 1] = {
        let mut paths: [Path; ENVELOPE.len() + 1] = [&["params", "action", "type"]; ENVELOPE.len() + 1];
        paths.split_at_mut(ENVELOPE.len()).0.copy_from_slice(&ENVELOPE);
        paths
    };
    let type_of = |scan: &Scan<{ PATHS.len() }>| rpc::string(message, scan.paths.get(ENVELOPE.len()));
    let enough = |scan: &Scan<{ PATHS.len() }>| scan.envelope.method(message).is_some() && type_of(scan).is_some();
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/$_-.".contains(&byte);
        (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
    };
    let Ok(scan) = Scan::new(message, &PATHS, enough) else { return "an action".to_owned() };
    if let Some(kind) = type_of(&scan).filter(|kind| is_name(kind)) {
        return format!("the action {kind}");
    }
    let is_action = |method: &str| matches!(method, "action" | "dispatchAction");
    let method = scan.envelope.method(message).filter(|name| is_name(name) && !is_action(name));
    method.map_or_else(|| "an action".to_owned(), Cow::into_owned)
}

/// Reads the envelope of a message that arrived in one frame.
///
/// # Errors
/// It is not UTF-8, not JSON, nested too deep, no object, has a key twice, or is no request, response or notification.
pub(crate) fn check(message: &Message, max_depth: u32) -> Result<Envelope, Violation> {
    let (paths, envelope) = rpc::read_frame(message, &ENVELOPE, max_depth)?;
    if envelope.is_valid(message, &paths) { Ok(envelope) } else { Err(Violation::MessageNotJsonRpc) }
}

/// Checks that a message is not nested deeper than a receiver with our limits takes.
///
/// # Errors
/// It is nested deeper.
pub(crate) fn check_depth(message: &Message, limit: u32) -> Result<(), SendError> {
    message.check_depth(limit).map_err(|depth| SendError::TooDeep { depth, limit })
}

/// The lengths of a message by which the link computes its overhead.
pub(crate) fn measure(message: &Message, link: &Capacity) -> Measure {
    let bytes = len64(message.len());
    let count = || message.slices().fold(0_u64, |sum, part| sum.saturating_add(json::escaped_len(part)));
    Measure { bytes, escaped: if link.overhead.needs_escaped() { count() } else { bytes } }
}

/// The length of the longest text that is sure to fit a frame, at most `limit`. `escaped` returns how long a text of a given length
/// can become inside a JSON string.
pub(crate) fn largest(link: &Capacity, limit: u64, escaped: impl Fn(u64) -> u64) -> u64 {
    let (mut low, mut high) = (0, limit.min(link.cap));
    // Overhead does not shrink as the text grows, so the lengths that fit are a range from zero.
    while low < high {
        let bytes = low.saturating_add(high.saturating_sub(low).div_ceil(2));
        if link.fits(Measure { bytes, escaped: escaped(bytes) }) {
            low = bytes;
        } else {
            high = bytes.saturating_sub(1);
        }
    }
    low
}

/// The id of the `n`th group. Nobody who does not know the seed can guess it.
pub(crate) fn group_name(seed: &[u8; 32], n: u64) -> u128 {
    let hash: [u8; 32] = Sha256::new().chain_update(seed).chain_update(n.to_be_bytes()).finalize().into();
    hash.first_chunk().map_or(0, |front| u128::from_be_bytes(*front))
}

/// The message as it is sent, its order and its bond, if its front and its end are those of a JSON-RPC message. The application
/// vouches for what lies between, so that is not scanned. The exception: on a link of lines, a message with raw line ends is checked
/// whole, and its white space is removed. `short` is as in [`SendQueue::accept`].
fn sendable(message: Message, framing: Framing, short: Option<u64>) -> Option<(Message, Order, Bond)> {
    // No branches, so that many bytes are compared at once.
    let breaks = |block: &[u8]| block.iter().fold(0, |any, &b| any | u8::from(b == b'\n') | u8::from(b == b'\r')) != 0;
    let message = if framing == Framing::Lines && message.slices().any(breaks) {
        check(&message, u32::MAX).ok()?;
        let mut line = Vec::with_capacity(message.len());
        let mut compactor = Compactor::default();
        message.slices().for_each(|part| compactor.feed(&mut line, part));
        Message::from(line)
    } else {
        message
    };
    let enough = |scan: &Scan<{ mcp_order::PATHS.len() }>| match short {
        Some(_) => mcp_order::is_enough(scan, &message),
        None => scan.envelope.has_kind(),
    };
    let scan = Scan::new(&message, &mcp_order::PATHS, enough).ok()?;
    let last = message.parts().last().and_then(|part| part.last())?;
    let ends = *last == b'}' || last.is_ascii_whitespace();
    if !ends || (scan.whole && !scan.envelope.is_valid(&message, &scan.paths)) {
        return None;
    }
    let Some(short) = short else { return Some((message, IN_ORDER, Bond::None)) };
    let [.., request_id, id] = std::array::from_fn::<_, { mcp_order::PATHS.len() }, _>(|i| scan.paths.get(i));
    let bond = mcp_order::bond(&message, &scan.envelope, [request_id, id]);
    let order = mcp_order::order(&message, &scan.envelope, len64(message.len()) <= short);
    Some((message, order, bond))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(texts: &[&'static str]) -> (SendQueue<Outgoing>, EventQueue) {
        let (mut waiting, mut events) = (SendQueue::new(Limits::default(), Framing::Lines), EventQueue::default());
        for text in texts {
            waiting.accept((Ticket(1), Message::from(*text), Lane::Auto, Meta::default()), None, &mut events);
        }
        (waiting, events)
    }

    /// The only message that waits.
    fn only(text: &'static str) -> (Outgoing, EventQueue) {
        let (mut waiting, events) = waiting(&[text]);
        (waiting.queue.clear().0.pop().unwrap(), events)
    }

    const TOO_LARGE: SendError = SendError::TooLarge(Over { size: 9, limit: 5 });

    #[test]
    fn a_failed_request_is_answered_to_its_caller_and_a_failed_response_to_the_peer() {
        let (request, mut events) = only(r#"{"jsonrpc":"2.0","id":"q","method":"m"}"#);
        assert!(request.fail(TOO_LARGE, &mut events).is_none());
        let Some(Event::SendFailed { ticket: Ticket(1), error: TOO_LARGE, reply: Some(reply) }) = events.poll_event()
        else {
            panic!("no failure")
        };
        assert_eq!(reply, rpc::send_failed(b"\"q\"", &TOO_LARGE));

        let (response, mut events) = only(r#"{"jsonrpc":"2.0","id":7,"result":1}"#);
        let instead = response.fail(TOO_LARGE, &mut events).unwrap();
        assert_eq!((&instead.message, instead.ticket), (&rpc::send_failed(b"7", &TOO_LARGE), None));
        assert!(matches!(events.poll_event(), Some(Event::SendFailed { reply: None, .. })));
        assert!(instead.fail(SendError::Disconnected, &mut events).is_none());
        assert!(events.poll_event().is_none(), "an answer of ours has no ticket to report");
        assert_eq!(events.counters().count("send-disconnected"), 1);
    }

    #[test]
    fn a_failed_notification_and_a_response_without_an_id_are_reported_and_counted() {
        for text in [r#"{"jsonrpc":"2.0","method":"m"}"#, r#"{"jsonrpc":"2.0","id":null,"error":{}}"#] {
            let (out, mut events) = only(text);
            assert!(out.fail(TOO_LARGE, &mut events).is_none());
            assert!(matches!(events.poll_event(), Some(Event::SendFailed { reply: None, .. })));
            assert_eq!(events.counters().count("send-too-large"), 1);
        }
    }

    #[test]
    fn what_is_not_json_rpc_is_reported_and_not_sent() {
        let long = |front: &str, back: &str| format!("{front}{}{back}", "x".repeat(9000));
        let texts = ["", "[]", "{}", r#"{"jsonrpc":"2.0","method":"m"} x"#, r#"{"method":"m"}"#].map(String::from);
        let cut_off = long(r#"{"jsonrpc":"2.0","method":"m","params":[""#, "");
        let broken = long("{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":[\"\n", "\"]}");
        let no_kind = long(r#"{"jsonrpc":"2.0","text":""#, "\"}");
        for text in texts.into_iter().chain([cut_off, broken, no_kind]) {
            let (mut waiting, mut events) = waiting(&[]);
            waiting.accept((Ticket(1), text.clone().into(), Lane::Auto, Meta::default()), None, &mut events);
            assert!(!waiting.queue.has_waiting(), "{}", &text[..text.len().min(60)]);
            assert!(matches!(events.poll_event(), Some(Event::SendFailed { error: SendError::NotJsonRpc, .. })));
        }
    }

    #[test]
    fn an_error_calls_an_action_by_its_type_and_anything_else_by_its_method() {
        let long = "x".repeat(9000);
        let deep = format!("{}{}", "[".repeat(9000), "]".repeat(9000));
        for (text, name) in [
            (
                r#"{"jsonrpc":"2.0","method":"action","params":{"action":{"type":"chat/delta"}}}"#.to_owned(),
                "the action chat/delta",
            ),
            (
                format!(r#"{{"params":{{"action":{{"x":{deep},"type":"chat/\u0064elta"}}}},"method":"action"}}"#),
                "the action chat/delta",
            ),
            (format!(r#"{{"method":"root/sessionAdded","params":{{"x":"{long}"}}}}"#), "root/sessionAdded"),
            (r#"{"method":"action","params":{"action":{"type":"\n[31m"}}}"#.to_owned(), "an action"),
            (format!(r#"{{"method":"{long}"}}"#), "an action"),
            ("{".to_owned(), "an action"),
        ] {
            assert_eq!(describe(&Message::from(text.clone())), name, "{}", &text[..text.len().min(90)]);
        }
    }

    #[test]
    fn only_a_message_with_raw_line_ends_is_compacted() {
        let compacted = "{\"jsonrpc\":\"2.0\",\"method\":\"a b\"}";
        for (text, want) in [
            ("{ \"jsonrpc\": \"2.0\",\n \"method\": \"a b\" }\n", compacted),
            ("{ \"jsonrpc\": \"2.0\", \"method\": \"a b\" }\r", compacted),
            ("{ \"jsonrpc\" : \"2.0\", \"method\":\"a b\\n\" }", "{ \"jsonrpc\" : \"2.0\", \"method\":\"a b\\n\" }"),
        ] {
            assert_eq!(only(text).0.message.to_bytes(), want);
        }
    }

    #[test]
    fn a_look_stops_when_it_has_seen_enough_and_sees_all_of_what_is_short() {
        let long = |front: &str| Message::from(format!(r#"{front}"{}"}}"#, "x".repeat(100_000)));
        let scan = |message: &Message| Scan::new(message, &ENVELOPE, |scan| scan.envelope.is_final()).unwrap();
        for (front, whole, kind) in [
            (r#"{"id":1,"method":"m","params":"#, false, Kind::Request),
            (r#"{"id":1,"result":"#, false, Kind::Response),
            (r#"{"method":"m","params":"#, true, Kind::Notification),
            (r#"{"method":"m","id":"#, true, Kind::Request),
        ] {
            let message = long(front);
            let scan = scan(&message);
            assert_eq!((scan.whole, scan.envelope.kind()), (whole, kind), "{front}");
        }
        let scan = scan(&Message::from(r#"{"id":1,"result":2}"#));
        assert!(scan.whole && scan.envelope.kind() == Kind::Response);
    }

    #[test]
    fn what_waits_when_the_link_ends_is_told_and_nothing_is_kept_for_the_peer() {
        let answer = r#"{"jsonrpc":"2.0","id":7,"result":1}"#;
        let (mut waiting, mut events) = waiting(&[answer, answer]);
        events.close(crate::error::CloseReason::Normal);
        waiting.abandon(|out| out, &mut events);
        waiting.accept((Ticket(2), answer.into(), Lane::Auto, Meta::default()), None, &mut events);
        assert_eq!(events.counters().count("send-disconnected"), 3);
        assert!(!waiting.queue.has_waiting());
    }
}
