//! No segments: one frame is one message. For the side of a gateway whose peer knows no dialect.

use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;

use crate::envelope::{ENVELOPE, Envelope};
use crate::error::{CloseReason, Counters, Over, SendError, Violation};
use crate::event_queue::EventQueue;
use crate::limits::Limits;
use crate::line::{self, Line};
use crate::machine::{Capacity, Event, Input, Machine, Meta, Transmit};
use crate::message::{Message, len64};
use crate::outgoing::{Outgoing, Scan, SendQueue, check, measure};
use crate::parked::ParkedFrames;
use crate::queue::{Finish, Fit, Pick};

/// How far the id of a message is searched for, with [`Check::Front`].
const FRONT: usize = 2048;

/// How a connection without segments behaves.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How much may wait, and the longest message in either direction.
    pub limits: Limits,
    /// How frames end on the link.
    pub framing: Framing,
    /// How much of a message that arrives is checked.
    pub check: Check,
}

impl Config {
    /// Each frame is a message, and all of it is checked.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, framing: Framing::default(), check: Check::default() }
    }
}

/// How frames end on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// The link itself separates frames, as WebSockets do. A frame that is not a message breaks a rule, and closes the
    /// link.
    #[default]
    Frames,
    /// A frame is a line. A message with raw line ends is sent without white space. A line that was meant as a message, and is
    /// none, is answered and [fails alone](Event::ReceiveFailed); any other line that is not a message is for the log.
    Lines,
}

/// How much of a message that arrives is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// All of it.
    #[default]
    Whole,
    /// Only its front, up to what tells which message it is. For a gateway that passes the message on to a peer which checks all
    /// of it, as every peer does that puts segments together. Lines are checked whole all the same.
    Front,
}

/// A connection without segments. Messages leave in the order in which they were sent, and each is sent whole or not at all.
#[derive(Debug)]
pub struct Connection {
    link: Capacity,
    check: Check,
    outgoing: SendQueue<Outgoing>,
    ordinals: u64,
    lines: u64,
    parked: ParkedFrames,
    events: EventQueue,
}

impl Connection {
    /// A connection over a new link.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            link: Capacity::of(u64::MAX),
            check: config.check,
            outgoing: SendQueue::new(config.limits, config.framing),
            ordinals: 0,
            lines: 0,
            parked: ParkedFrames::default(),
            events: EventQueue::default(),
        }
    }

    /// The next frame to send.
    fn next_frame(&mut self, now: Instant) -> Option<Transmit> {
        while let Some(answer) = self.outgoing.next_answer() {
            let message = answer.message.clone();
            if self.link.fits(measure(&message, &self.link)) {
                let (tag, done) = (self.outgoing.last_tag.next(), message.len());
                return Some(answer.frame(tag, message, done, &mut self.events));
            }
            self.events.count("answer-too-large");
        }
        while let Some(Pick::Start(entry)) = self.outgoing.queue.pick(now, 0, Finish::InOrder, |_| Fit::Frame) {
            let message = &entry.item.message;
            if self.link.fits(measure(message, &self.link)) {
                let (tag, bytes, done) = (self.outgoing.last_tag.next(), message.clone(), message.len());
                return Some(entry.item.frame(tag, bytes, done, &mut self.events));
            }
            // The error that the peer gets in its place goes to the end of the queue, as if it had been sent now.
            let error = SendError::NoSegments(Over { size: len64(message.len()), limit: self.link.cap });
            self.outgoing.refuse(entry.item, error, &mut self.events);
        }
        None
    }

    /// Takes a frame, or keeps it until frames are wanted again.
    fn frame(&mut self, bytes: Bytes, meta: Meta) {
        if self.wants_frames() {
            return self.receive(bytes, meta).unwrap_or_else(|why| self.close(why.into()));
        }
        if let Err(reason) = self.parked.push(bytes, meta, self.outgoing.limits.max_message_bytes) {
            self.close(reason);
        }
    }

    /// Takes the frames that were kept, as far as frames are wanted.
    fn take_parked(&mut self) {
        while self.outgoing.may_read()
            && !self.events.is_closed()
            && let Some((bytes, meta)) = self.parked.pop()
        {
            self.receive(bytes, meta).unwrap_or_else(|why| self.close(why.into()));
        }
    }

    fn receive(&mut self, bytes: Bytes, meta: Meta) -> Result<(), Violation> {
        Over::check(len64(bytes.len()), self.outgoing.limits.max_message_bytes).map_err(Violation::FrameTooLarge)?;
        let max_depth = self.outgoing.limits.max_depth;
        if self.outgoing.framing == Framing::Lines {
            self.line(&bytes, meta);
            return Ok(());
        }
        let message = Message::from(bytes);
        if self.check == Check::Front {
            let envelope = Scan::new(&message, &ENVELOPE, is_enough)?.envelope;
            self.deliver(message, Box::new(envelope), meta);
        } else {
            let envelope = check(&message, max_depth)?;
            self.deliver(message.checked(max_depth), Box::new(envelope), meta);
        }
        Ok(())
    }

    /// Takes a line. Any program may have written it, so all of it is checked.
    fn line(&mut self, bytes: &Bytes, meta: Meta) {
        self.lines = self.lines.saturating_add(1);
        match Line::read(bytes, self.outgoing.limits.max_depth) {
            Line::Message(message, envelope) => self.deliver(message, envelope, meta),
            Line::Bad(why, meant) => {
                let (ordinals, line) = (&mut self.ordinals, (self.lines, bytes));
                let answers = line::report(line, (why, &meant), ordinals, &mut self.events);
                self.outgoing.answer(answers);
            }
            Line::Log(line) => {
                self.events.count("line-that-is-no-message");
                self.events.push(Event::Line(line));
            }
        }
    }

    fn deliver(&mut self, message: Message, envelope: Box<Envelope>, meta: Meta) {
        let ordinal = next(&mut self.ordinals);
        self.events.push(Event::Message { message, envelope, ordinal, meta });
    }

    fn close(&mut self, reason: CloseReason) {
        self.events.close(reason);
        self.parked = ParkedFrames::default();
        self.outgoing.abandon(|out| out, &mut self.events);
    }
}

impl Machine for Connection {
    fn handle(&mut self, input: Input, _: Instant) {
        match input {
            Input::Send { ticket, message, lane, meta } => {
                self.outgoing.accept((ticket, message, lane, meta), None, &mut self.events);
            }
            _ if self.events.is_closed() => {}
            Input::Frame { bytes, meta } => self.frame(bytes, meta),
            Input::Capacity(link) => self.link = link,
            Input::Close(reason) => self.close(reason),
            Input::Acked { .. } | Input::Paused(_) | Input::Timeout | Input::EndOfInput => {}
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let frame = self.next_frame(now);
        self.take_parked();
        frame.or_else(|| self.events.poll_transmit_close().map(Transmit::Close))
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.poll_event()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Does nothing: this machine holds nothing that the budget could evict.
    fn wake_with(&mut self, _: &Waker) {}

    fn wants_frames(&self) -> bool {
        self.outgoing.may_read() && self.parked.is_empty()
    }

    fn counters(&self) -> &Counters {
        self.events.counters()
    }
}

/// Whether enough of the front of a message was scanned: its kind and its id are known, or no id was found within [`FRONT`] bytes. Most
/// messages have their id in front.
fn is_enough(scan: &Scan<{ ENVELOPE.len() }>) -> bool {
    scan.envelope.has_kind() && (scan.envelope.has_id() || scan.seen >= FRONT)
}

/// The next ordinal.
fn next(ordinals: &mut u64) -> u64 {
    let ordinal = *ordinals;
    *ordinals = ordinal.saturating_add(1);
    ordinal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::BudgetConfig;
    use crate::limits::LimitsConfig;
    use crate::machine::{Lane, Overhead, Ticket};

    fn connection(limits: LimitsConfig) -> (Connection, Instant) {
        let limits = Limits::prove(limits, &BudgetConfig::default()).unwrap();
        (Connection::new(Config::new(limits)), Instant::now())
    }

    fn events(machine: &mut Connection) -> Vec<Event> {
        std::iter::from_fn(|| machine.poll_event()).collect()
    }

    fn frames(machine: &mut Connection, now: Instant) -> Vec<Bytes> {
        let frame = || match machine.poll_transmit(now)? {
            Transmit::Frame { bytes, .. } => Some(bytes.to_bytes()),
            Transmit::Close(reason) => panic!("closed: {reason}"),
        };
        std::iter::from_fn(frame).collect()
    }

    #[test]
    fn messages_pass_both_ways_with_their_bytes_and_in_order() {
        let (mut machine, now) = connection(LimitsConfig::default());
        let texts = ["{\n \"jsonrpc\":\"2.0\",\"method\":\"a\"}", r#"{"jsonrpc":"2.0","id":1,"result":[]}"#];
        for (n, text) in texts.iter().enumerate() {
            machine.handle(Input::send(Ticket(n as u64), *text), now);
            machine.handle(Input::frame(*text), now);
        }
        assert_eq!(frames(&mut machine, now), texts);
        let messages: Vec<_> = events(&mut machine)
            .into_iter()
            .filter_map(|event| match event {
                Event::Message { message, ordinal, .. } => Some((ordinal, message.to_bytes())),
                _ => None,
            })
            .collect();
        assert_eq!(messages, [(0, texts[0].into()), (1, texts[1].into())]);
        assert_eq!(machine.poll_timeout(), None);
    }

    #[test]
    fn a_link_of_lines_gets_messages_on_one_line() {
        let mut machine = Connection::new(Config { framing: Framing::Lines, ..Config::new(Limits::default()) });
        let now = Instant::now();
        machine.handle(Input::send(Ticket(1), "{\n \"jsonrpc\":\"2.0\",\"method\":\"a\"}\n"), now);
        assert_eq!(frames(&mut machine, now), [r#"{"jsonrpc":"2.0","method":"a"}"#]);
    }

    #[test]
    fn a_line_that_is_no_message_is_for_the_log() {
        for check in [Check::Whole, Check::Front] {
            let mut machine = Connection::new(Config { limits: Limits::default(), framing: Framing::Lines, check });
            for line in ["server v2 is ready", "[1]", r#"{"jsonrpc":"2.0","method":"a"}"#] {
                machine.handle(Input::frame(line), Instant::now());
            }
            let events = events(&mut machine);
            let [Event::Line(banner), Event::Line(list), Event::Message { ordinal: 0, .. }] = &events[..] else {
                panic!("{events:?}")
            };
            assert_eq!((&banner[..], &list[..]), (&b"server v2 is ready"[..], &b"[1]"[..]));
            assert_eq!(machine.counters().count("line-that-is-no-message"), 2);
        }
    }

    #[test]
    fn with_a_look_at_its_front_only_a_long_message_passes_whatever_comes_later() {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"a","params":["{}"]"#, "x".repeat(10_000));
        let mut machine = Connection::new(Config { check: Check::Front, ..Config::new(Limits::default()) });
        let now = Instant::now();
        machine.handle(Input::frame(text), now);
        assert!(matches!(events(&mut machine)[..], [Event::Message { .. }]));
        machine.handle(Input::frame("[1]"), now);
        let closed = |event: &Event| matches!(event, Event::Closed(CloseReason::Violation(Violation::FrameNotObject)));
        assert!(events(&mut machine).last().is_some_and(closed));
    }

    #[test]
    fn a_bad_frame_closes_with_the_rule_that_it_broke() {
        let limits = LimitsConfig { max_message_bytes: 600, max_frame_bytes: 600, ..LimitsConfig::default() };
        let long = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(600));
        for (frame, name, code) in [
            (long.as_bytes(), "frame-too-large", 1009),
            (b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}", "frame-not-utf8", 4400),
            (b"", "frame-not-json", 4400),
            (b"{} {}", "frame-not-json", 4400),
            (b"[]", "frame-not-object", 4400),
            (br#"{"jsonrpc":"2.0","id":1,"\u0069d":2,"result":1}"#, "duplicate-key", 4400),
            (br#"{"jsonrpc":"2.0"}"#, "message-not-json-rpc", 4400),
        ] {
            let (mut machine, now) = connection(limits);
            machine.handle(Input::send(Ticket(1), r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#), now);
            machine.handle(Input::frame(frame.to_vec()), now);
            machine.handle(Input::frame(&br#"{"jsonrpc":"2.0","method":"late"}"#[..]), now);
            let Some(Transmit::Close(reason)) = machine.poll_transmit(now) else { panic!("{name}: open") };
            assert_eq!((reason.name(), reason.code()), (name, code));
            assert!(machine.poll_transmit(now).is_none());
            let events = events(&mut machine);
            let [Event::SendFailed { error: SendError::Disconnected, reply: Some(_), .. }, Event::Closed(told)] =
                events.as_slice()
            else {
                panic!("{events:?}")
            };
            assert_eq!(*told, reason);
            assert_eq!(machine.counters().count(name), 1);
        }
    }

    #[test]
    fn what_does_not_fit_fails_closed() {
        let (mut machine, now) = connection(LimitsConfig::default());
        let capacity = Capacity { cap: 200, overhead: Overhead::new(|measure| measure.escaped) };
        machine.handle(Input::Capacity(capacity), now);
        let quotes = r#"\""#.repeat(30);
        let request = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"m","params":["{quotes}"]}}"#);
        let response = format!(r#"{{"jsonrpc":"2.0","id":6,"result":"{quotes}"}}"#);
        let note = format!(r#"{{"jsonrpc":"2.0","method":"m","params":["{quotes}"]}}"#);
        let size = request.len() as u64;
        for (n, text) in [request, response, note].into_iter().enumerate() {
            machine.handle(Input::send(Ticket(n as u64), text), now);
        }
        machine.handle(Input::send(Ticket(3), r#"{"jsonrpc":"2.0","method":"ok"}"#), now);
        // The peer's error is itself too long for this link: it is counted, and nothing loops.
        assert_eq!(frames(&mut machine, now), [r#"{"jsonrpc":"2.0","method":"ok"}"#]);
        let events = events(&mut machine);
        let [
            Event::SendFailed { ticket: Ticket(0), error, reply: Some(_) },
            Event::SendFailed { ticket: Ticket(1), reply: None, .. },
            Event::SendFailed { ticket: Ticket(2), reply: None, .. },
            Event::Sent { ticket: Ticket(3) },
        ] = events.as_slice()
        else {
            panic!("{events:?}")
        };
        assert_eq!(*error, SendError::NoSegments(Over { size, limit: 200 }));
        assert_eq!(machine.counters().count("send-no-segments"), 4);
    }

    #[test]
    fn a_response_that_is_too_large_is_answered_to_the_peer() {
        let limits = LimitsConfig { max_message_bytes: 600, max_frame_bytes: 600, ..LimitsConfig::default() };
        let (mut machine, now) = connection(limits);
        let text = format!(r#"{{"jsonrpc":"2.0","id":6,"result":"{}"}}"#, "x".repeat(600));
        machine.handle(Input::send(Ticket(1), text), now);
        let frames = frames(&mut machine, now);
        assert_eq!(frames.len(), 1);
        assert!(frames[0].starts_with(br#"{"jsonrpc":"2.0","id":6,"error":{"code":-32011"#));
    }

    #[test]
    fn a_full_queue_refuses_and_empties_as_frames_go() {
        let limits = LimitsConfig { max_queued_bytes: 70, ..LimitsConfig::default() };
        let (mut machine, now) = connection(limits);
        let text = r#"{"jsonrpc":"2.0","method":"m"}"#;
        for n in 0..3 {
            let input =
                Input::Send { ticket: Ticket(n), message: text.into(), lane: Lane::Free, meta: Meta::default() };
            machine.handle(input, now);
        }
        let failed = events(&mut machine);
        let size = text.len() as u64;
        assert!(
            matches!(failed.as_slice(), [Event::SendFailed { ticket: Ticket(2), error, .. }]
                if *error == SendError::QueueFull(Over { size, limit: 70 })),
            "{failed:?}"
        );
        assert_eq!(frames(&mut machine, now).len(), 2);
        machine.handle(Input::send(Ticket(4), text), now);
        assert_eq!(frames(&mut machine, now).len(), 1);
    }
}
