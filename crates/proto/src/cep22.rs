//! The `cep22` dialect: messages too large for one relay event, as transfers inside MCP progress notifications.
//!
//! Many peers may share a link, and many transfers may be open. One that fails is aborted and reported; the
//! connection lives.

mod book;
mod cut;
mod outgoing;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod wire;

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::budget::Account;
use crate::clock::ReadClock;
use crate::error::{Counters, SendError, Violation};
use crate::limits::Limits;
use crate::machine::{Event, Input, Machine, Meta, Ticket, Transmit};
use crate::message::{Message, len64};
use crate::outbox::Outbox;
use crate::rpc::Kind;

use book::{Book, Key, Peer};
use outgoing::Outgoing;
use receive::{Chunk, Receiver, Started};
use send::{Desk, Sender};
use wire::{Body, Part, Start, Text, quick_chunk};

/// How a connection behaves. The same for both ends.
#[derive(Debug, Clone)]
pub struct Config {
    /// The longest frame and message that we take, and what may wait to be sent.
    pub limits: Limits,
    /// The most chunks in a transfer, either way. 10,000, as the official SDKs take.
    pub max_chunks: u64,
    /// The most transfers that a peer may have open, and that we have open ourselves. 64, as the official SDKs take.
    pub max_transfers: u32,
    /// The most transfers that all peers together may have open.
    pub max_transfers_in_all: u32,
    /// The most chunks that wait for an earlier one. 42, twice what the official SDKs keep in flight.
    pub window: u32,
    /// How long a transfer may go without a valid frame, or without the link's answer.
    pub soft_timeout: Duration,
    /// How long a transfer that arrives may take in all. 300 s, as in the official SDKs.
    pub hard_timeout: Duration,
    /// How long we wait for `accept`. 30 s, as in the official SDKs.
    pub accept_timeout: Duration,
    /// On a link that acknowledges: how far chunks run ahead of the oldest unconfirmed one. 21, which is how far out
    /// of order the official SDKs take them.
    pub publish_window: u32,
    /// Whether the link says what became of each frame.
    pub acks: bool,
    /// Whether every peer is known beforehand to take transfers.
    pub known_support: bool,
    /// Adds a progress token to requests that have none, so that their answers may be large, and keeps the progress
    /// that comes of it from the application. For a gateway.
    pub inject_tokens: bool,
    /// Makes injected tokens differ from those of other connections.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_chunks: 10_000,
            max_transfers: 64,
            max_transfers_in_all: 1024,
            window: 42,
            soft_timeout: Duration::from_secs(60),
            hard_timeout: Duration::from_secs(300),
            accept_timeout: Duration::from_secs(30),
            publish_window: 21,
            acks: false,
            known_support: false,
            inject_tokens: false,
            seed: 0,
        }
    }
}

/// One end of a link on which oversized messages travel as transfers.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    account: Account,
    book: Book,
    outbox: Outbox,
    sender: Sender,
    receiver: Receiver,
    clock: ReadClock,
    started: bool,
    ordinal: u64,
    injected: u64,
}

impl Connection {
    /// A connection over a link whose capacity is not known yet.
    #[must_use]
    pub fn new(config: Config, account: Account) -> Self {
        Self {
            config,
            account,
            book: Book::default(),
            outbox: Outbox::default(),
            sender: Sender::new(),
            receiver: Receiver::default(),
            clock: ReadClock::new(),
            started: false,
            ordinal: 0,
            injected: 0,
        }
    }

    /// Takes a message of the application's.
    fn send(&mut self, ticket: Ticket, message: Message, mut meta: Meta, time: Time) {
        let Ok(mut text) = Text::read_front(message) else {
            return self.outbox.send_failed(ticket, SendError::NotJsonRpc, None);
        };
        if text.envelope.kind == Kind::Other {
            return self.outbox.send_failed(ticket, SendError::NotJsonRpc, None);
        }
        let mut token = None;
        match text.envelope.kind {
            Kind::Request => {
                let injected = self.config.inject_tokens && self.inject(&mut text);
                self.book.note_asked(&text, &meta.peer, injected);
                token = text.own_token().map(|(_, token)| token.into());
            }
            Kind::Response => {
                if let Some(request) = self.book.answered_by(&text, &meta.peer) {
                    token.clone_from(&request.token);
                    meta.about = meta.about.or_else(|| request.frame.clone());
                }
            }
            _ => {}
        }
        let id = text.envelope.id_text(&text.message).map(Into::into);
        let what = Outgoing { ticket, kind: text.envelope.kind, message: text.message, meta, id, token };
        let (sender, mut desk) = self.desk(time);
        sender.send(what, &mut desk);
    }

    /// Gives a request a token of ours. `false` when it has one, or has no place for it.
    fn inject(&mut self, text: &mut Text) -> bool {
        let Some((at, before, after)) = text.token_place() else {
            return false;
        };
        self.injected = self.injected.saturating_add(1);
        let token = format!(r#"{before}"bb-{:x}-{:x}"{after}"#, self.config.seed, self.injected);
        let message = text.message.splice(crate::json::Span { start: at, end: at }, token.into());
        let Ok(with_token) = Text::read(message) else {
            return false;
        };
        *text = with_token;
        true
    }

    /// Takes a frame: a part of a transfer, or a whole message.
    fn frame(&mut self, bytes: Bytes, meta: &Meta, time: Time) {
        if meta.supports_parts {
            self.learn(&meta.peer, time);
        }
        let (size, limit) = (len64(bytes.len()), self.config.limits.max_frame_bytes());
        if size > limit {
            return self.fail(Violation::FrameTooLarge { size, limit });
        }
        if simdutf8::basic::from_utf8(&bytes).is_err() {
            return self.fail(Violation::FrameNotUtf8);
        }
        if let Some(part) = quick_chunk(&bytes)
            && self.chunk(Key::of_token(&meta.peer, part.token), part.at, part.inside, time)
        {
            return;
        }
        let text = match Text::read(bytes.into()) {
            Ok(text) if text.envelope.kind != Kind::Other => text,
            Ok(_) => return self.fail(Violation::MessageNotJsonRpc),
            Err(violation) => return self.fail(violation),
        };
        if !text.is_part() {
            let ordinal = self.next_ordinal();
            return self.deliver(text, ordinal, meta.clone());
        }
        match text.part() {
            Some(part) => self.part(part, meta, time),
            None => self.outbox.count("part-without-token"),
        }
    }

    fn part(&mut self, part: Part<'_>, meta: &Meta, time: Time) {
        let key = Key::of_token(&meta.peer, &part.token);
        let placed = part.body.and_then(|body| match body {
            Body::Start(_) | Body::Chunk(_) | Body::End if part.progress.is_none() => Err(Violation::ProgressInvalid),
            body => Ok((body, part.progress.unwrap_or_default())),
        });
        match placed {
            Ok((Body::Start(start), at)) => self.start((key, &part.token), (start, at), meta, time),
            Ok((Body::Chunk(inside), at)) => {
                if !self.chunk(key, at, &inside, time) {
                    self.fail_transfer(key, Violation::MessageNotUtf8);
                }
            }
            Ok((Body::End, at)) => self.end(key, at, meta),
            Ok((Body::Accept, _)) => {
                let (sender, mut desk) = self.desk(time);
                if sender.accepted(&meta.peer, &part.token, &mut desk) {
                    self.learn(&meta.peer, time);
                }
            }
            Ok((Body::Abort, _)) => self.aborted(key, &part.token, &meta.peer, time),
            Ok((Body::Unknown, _)) => self.outbox.count("part-unknown"),
            Err(violation) if self.receiver.is_open(key) => self.fail_transfer(key, violation),
            Err(violation) if part.starts => self.refuse(&part.token, part.progress, meta, violation),
            Err(_) => self.outbox.count("part-of-no-transfer"),
        }
    }

    fn start(&mut self, (key, token): (Key, &str), (start, at): (Start, u64), meta: &Meta, time: Time) {
        if self.book.is_ended(key, &meta.id) {
            return self.outbox.count("part-of-no-transfer");
        }
        let ordinal = self.ordinal.saturating_add(1);
        let place = (&self.config, &self.account, time);
        match self.receiver.start((key, token), (start, at), meta, place, ordinal) {
            Ok(Started::Now) => {
                self.ordinal = ordinal;
                self.learn(&meta.peer, time);
                self.accept(token, at, meta);
            }
            Ok(Started::Before) => {}
            Err(violation) if self.receiver.is_open(key) => self.fail_transfer(key, violation),
            Err(violation) => self.refuse(token, Some(at), meta, violation),
        }
    }

    /// Takes a chunk. `false`, and nothing is done, when `inside` is not the inside of a string.
    fn chunk(&mut self, key: Key, at: u64, inside: &[u8], time: Time) -> bool {
        match self.receiver.chunk(key, at, inside, &self.config, time) {
            Chunk::Taken(progress) => self.outbox.progress(progress),
            Chunk::Failed(violation) => self.fail_transfer(key, violation),
            Chunk::Stray => self.outbox.count("part-of-no-transfer"),
            Chunk::NotText => return false,
        }
        true
    }

    /// Lets a transfer go on, unless it answers a request of ours: that request said what we support.
    fn accept(&mut self, token: &str, at: u64, meta: &Meta) {
        if self.book.asked(&meta.peer, token).is_some() {
            return;
        }
        let bytes = self.sender.writer.accept(token, at.saturating_add(1));
        let meta = Meta { supports_parts: true, ..answer(meta.peer.clone(), meta.id.clone()) };
        self.sender.control(bytes, meta, &mut self.outbox);
    }

    fn end(&mut self, key: Key, at: u64, meta: &Meta) {
        let Some(transfer) = self.receiver.remove(key) else {
            return self.outbox.count("part-of-no-transfer");
        };
        self.book.note_ended(key, transfer.frame.clone());
        let ordinal = transfer.ordinal;
        let abort = (transfer.token.clone(), at.max(transfer.highest), transfer.frame.clone());
        match transfer.end(at) {
            Ok(text) => self.deliver(text, ordinal, meta.clone()),
            Err(violation) => {
                let (token, at, frame) = abort;
                self.report(&token, at, answer(meta.peer.clone(), frame), ordinal, violation);
            }
        }
    }

    /// The peer gave up: what it was sending, what it was receiving, or a request that it already had.
    fn aborted(&mut self, key: Key, token: &str, peer: &Peer, time: Time) {
        let (sender, mut desk) = self.desk(time);
        let ours = sender.aborted(peer, token, &mut desk);
        let theirs = self.receiver.remove(key);
        let violation = Violation::Aborted;
        let reply = self.book.fail_asked(peer, token, &violation.to_string(), violation.name());
        match theirs {
            Some(transfer) => {
                self.book.note_ended(key, transfer.frame.clone());
                self.outbox.receive_failed(transfer.ordinal, violation, reply);
            }
            None if reply.is_some() => {
                let ordinal = self.next_ordinal();
                self.outbox.receive_failed(ordinal, violation, reply);
            }
            None if !ours => self.outbox.count("part-of-no-transfer"),
            None => {}
        }
    }

    /// Passes a whole message up.
    fn deliver(&mut self, text: Text, ordinal: u64, meta: Meta) {
        if !self.book.note_received(&text, &meta) {
            return self.outbox.count("answer-twice");
        }
        let mut message = text.message.clone();
        if text.is_progress()
            && let Some((span, token)) = text.token()
            && let Some(asked) = self.book.asked(&meta.peer, &token)
        {
            if asked.injected {
                return self.outbox.count("progress-swallowed");
            }
            if *message.read(span) != *asked.token {
                message = message.splice(span, Bytes::copy_from_slice(&asked.token));
            }
        }
        self.outbox.event(Event::Message { message, ordinal, meta });
    }

    fn learn(&mut self, peer: &Peer, time: Time) {
        if self.book.note_support(peer) {
            let (sender, mut desk) = self.desk(time);
            sender.supported(peer, &mut desk);
        }
    }

    /// A frame that belongs to no transfer is bad.
    fn fail(&mut self, violation: Violation) {
        let ordinal = self.next_ordinal();
        self.outbox.receive_failed(ordinal, violation, None);
    }

    /// A transfer breaks a rule, or its time is up.
    fn fail_transfer(&mut self, key: Key, violation: Violation) {
        let Some(transfer) = self.receiver.remove(key) else {
            return;
        };
        self.book.note_ended(key, transfer.frame.clone());
        if let Violation::TimedOut { received } = violation {
            self.outbox.event(Event::Expired { ordinal: transfer.ordinal, received });
        }
        let meta = answer(transfer.peer.clone(), transfer.frame.clone());
        self.report(&transfer.token, transfer.highest, meta, transfer.ordinal, violation);
    }

    /// A transfer is not let in.
    fn refuse(&mut self, token: &str, at: Option<u64>, meta: &Meta, violation: Violation) {
        let ordinal = self.next_ordinal();
        self.report(token, at.unwrap_or(1), answer(meta.peer.clone(), meta.id.clone()), ordinal, violation);
    }

    /// Tells the peer and the application that a transfer failed.
    fn report(&mut self, token: &str, at: u64, meta: Meta, ordinal: u64, violation: Violation) {
        let why = violation.to_string();
        let bytes = self.sender.writer.abort(token, at.saturating_add(1), &why);
        let reply = self.book.fail_asked(&meta.peer, token, &why, violation.name());
        self.sender.control(bytes, meta, &mut self.outbox);
        // An expiry was told already; the caller of a request still needs its answer.
        if !matches!(violation, Violation::TimedOut { .. }) || reply.is_some() {
            self.outbox.receive_failed(ordinal, violation, reply);
        } else {
            self.outbox.count(violation.name());
        }
    }

    fn sweep(&mut self, time: Time) {
        for (key, violation) in self.receiver.due(time.read) {
            self.fail_transfer(key, violation);
        }
        let (sender, mut desk) = self.desk(time);
        sender.sweep(&mut desk);
    }

    fn next_ordinal(&mut self) -> u64 {
        self.ordinal = self.ordinal.saturating_add(1);
        self.ordinal
    }

    fn desk(&mut self, time: Time) -> (&mut Sender, Desk<'_>) {
        let Self { config, book, outbox, sender, .. } = self;
        (sender, Desk { config, book, outbox, time })
    }

    fn time(&mut self, now: Instant) -> Time {
        if !std::mem::replace(&mut self.started, true) {
            self.clock.run(true, now);
        }
        Time { now, read: self.clock.at(now) }
    }
}

impl Machine for Connection {
    fn handle(&mut self, input: Input, now: Instant) {
        if self.outbox.is_closed() {
            return;
        }
        let time = self.time(now);
        match input {
            Input::Frame { bytes, meta } => self.frame(bytes, &meta, time),
            Input::Send { ticket, message, meta, .. } => self.send(ticket, message, meta, time),
            Input::Acked { tag, result } => {
                let (sender, mut desk) = self.desk(time);
                sender.acked(tag, result.map(|_| ()), &mut desk);
            }
            Input::Capacity(capacity) => {
                let (sender, mut desk) = self.desk(time);
                sender.set_capacity(capacity, &mut desk);
            }
            Input::Paused(paused) => self.clock.run(!paused, now),
            Input::Timeout => self.sweep(time),
            Input::Close(reason) => {
                let (sender, mut desk) = self.desk(time);
                sender.close(&mut desk);
                self.receiver = Receiver::default();
                self.outbox.close(reason);
            }
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if self.outbox.is_closed() {
            return self.outbox.poll_transmit_close().map(Transmit::Close);
        }
        let time = self.time(now);
        let (sender, mut desk) = self.desk(time);
        sender.poll(&mut desk)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.outbox.poll_event()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.outbox.is_closed() {
            return None;
        }
        let wake = self.receiver.wake().into_iter().chain(self.sender.wake()).min();
        wake.and_then(|wake| self.clock.when(wake)).into_iter().chain(self.sender.resume_at()).min()
    }

    fn counters(&self) -> &Counters {
        self.outbox.counters()
    }
}

/// One moment.
#[derive(Debug, Clone, Copy)]
struct Time {
    now: Instant,
    /// By the clock that stands still while we do not read: what a peer sent in time must not be late by our doing.
    read: Duration,
}

/// For a frame that answers another.
fn answer(peer: Peer, about: Peer) -> Meta {
    Meta { peer, about, ..Meta::default() }
}
