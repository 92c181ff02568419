//! What goes out: frames of our own making first, then whole messages, then transfers in turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Over, SendError};
use crate::json::Span;
use crate::machine::{Event, Measure, Meta, Refusal, Tag, Ticket, Transmit};
use crate::message::{Message, len64};
use crate::outgoing::{Outgoing, measure};
use crate::rpc::Kind;

use super::Connection;
use super::book::{Asked, Key, Peer};
use super::cut::Plan;
use super::item::Item;
use super::wire::{ABORT, OWN_TOKEN, Text};

/// Frames of our own making that may wait. More are dropped: their peers have timeouts of their own.
const MAX_CONTROL: usize = 1024;
/// Whole messages whose fate may be open. For the oldest beyond that, no news is good news.
const MAX_HANDED: usize = 1024;
/// The first pause after a link said that we are too fast.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause; below any soft timeout that makes sense.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Pauses in a row after which a frame is given up.
const MAX_PAUSES: u32 = 12;

/// Everything that goes out.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Frames of our own making, and what was refused for its speed only.
    first: VecDeque<Item>,
    pub(super) whole: VecDeque<Item>,
    /// Too large for a frame, and not begun.
    large: VecDeque<Item>,
    /// Transfers; the first is due next.
    pub(super) begun: VecDeque<Item>,
    /// Whole messages that a link which acknowledges has, and has not answered for.
    handed: VecDeque<Item>,
    pauses: u32,
    pub(super) paused_until: Option<Instant>,
    /// Of all of these messages.
    bytes: u64,
    last_tag: u64,
}

impl Connection {
    /// Takes a message of the application's.
    pub(super) fn send(&mut self, ticket: Ticket, message: Message, mut meta: Meta) {
        let text = Text::read(message, false).ok().filter(|text| text.envelope.kind != Kind::Other);
        let Some(mut text) = text else {
            return self.outbox.send_failed(ticket, SendError::NotJsonRpc, None);
        };
        let kind = text.envelope.kind;
        let id = text.envelope.id_text(&text.message).map(|id| Bytes::copy_from_slice(&id));
        let token = match (kind, text.envelope.id_key(&text.message)) {
            (Kind::Request, _) => self.ask(id.unwrap_or_default(), &mut text, &meta.peer),
            (Kind::Response, Some(id)) => self.book.incoming.get(Key::of(&meta.peer, id)).and_then(|request| {
                meta.about = meta.about.take().or_else(|| request.frame.clone());
                request.token.clone()
            }),
            _ => None,
        };
        let (size, limit) = (len64(text.message.len()), self.config.limits.max_queued_bytes);
        let item = Item::new(Outgoing::new(Some(ticket), text.message, Meta::default()), meta, token);
        self.out.bytes = self.out.bytes.saturating_add(size);
        while self.out.bytes > limit {
            // The oldest that the link never answered for is taken as sent.
            let Some(oldest) = self.out.handed.pop_front() else {
                return self.unsent(item, SendError::QueueFull(Over { size, limit }));
            };
            self.sent(&oldest);
        }
        self.queue(item);
    }

    /// Queues a frame of our own making.
    pub(super) fn control(&mut self, message: impl Into<Message>, meta: Meta) {
        let message = message.into();
        // The peer may have chosen an id or a token that leaves no room for an answer.
        if self.out.first.len() >= MAX_CONTROL || !self.capacity.fits(measure(&message, &self.capacity)) {
            return self.outbox.count("control-dropped");
        }
        let item = Item::new(Outgoing::new(None, message, Meta::default()), meta, None);
        self.out.bytes = self.out.bytes.saturating_add(item.len());
        self.out.first.push_back(item);
    }

    /// The next frame.
    pub(super) fn next_frame(&mut self, now: Instant) -> Option<Transmit> {
        if self.out.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        self.out.paused_until = None;
        self.out.last_tag = self.out.last_tag.saturating_add(1);
        let tag = Tag(self.out.last_tag);
        match self.out.first.pop_front().or_else(|| self.out.whole.pop_front()) {
            Some(item) => self.out.begun.push_front(item),
            None => self.begin(),
        }
        for _ in 0..self.out.begun.len() {
            let mut item = self.out.begun.pop_front()?;
            let frame = item.frame(tag, &self.config, self.read, &mut self.writer);
            if let Some(progress) = item.progress().filter(|_| frame.is_some()) {
                self.outbox.progress(progress);
            }
            if item.is_over() {
                self.sent(&item);
            } else if item.plan.is_some() {
                self.out.begun.push_back(item);
            } else {
                self.out.handed.push_back(item);
                if self.out.handed.len() > MAX_HANDED
                    && let Some(oldest) = self.out.handed.pop_front()
                {
                    self.sent(&oldest);
                }
            }
            if let Some((bytes, meta)) = frame {
                return Some(Transmit::Frame { tag, bytes, meta });
            }
        }
        None
    }

    /// A peer lets our transfer begin, which shows that it takes others too.
    pub(super) fn accepted(&mut self, key: Key, peer: &Peer) {
        if let Some(item) = self.out.begun.iter_mut().find(|item| item.is_begun(key)) {
            item.release(3, self.read);
            self.learn(peer);
        }
    }

    /// A peer takes transfers: those that wait for it need not. No `accept` has taken the second place.
    pub(super) fn learn(&mut self, peer: &Peer) {
        if self.book.supports.insert(Key::of(peer, ()), ()).is_none() {
            for item in self.out.begun.iter_mut().filter(|item| item.meta.peer == *peer) {
                item.release(2, self.read);
            }
        }
    }

    /// A peer gives our transfer up. Says whether there was one.
    pub(super) fn abort_own(&mut self, key: Key) -> bool {
        let found = self.out.begun.iter().position(|item| item.is_begun(key));
        let item = found.and_then(|at| self.out.begun.remove(at));
        item.map(|item| self.unsent(item, SendError::Aborted)).is_some()
    }

    /// The link said what became of a frame.
    pub(super) fn acked(&mut self, tag: Tag, refusal: Option<Refusal>, now: Instant) {
        let again = refusal == Some(Refusal::TooFast) && self.pause(now);
        let is_open = |item: &Item| item.open.iter().any(|frame| frame.tag == Some(tag));
        let Queues { handed, begun, .. } = &mut self.out;
        let list = if handed.iter().any(is_open) { handed } else { begun };
        let at = list.iter().position(is_open).unwrap_or(list.len());
        let Some(mut item) = list.remove(at) else {
            return;
        };
        match refusal {
            None => self.out.pauses = 0,
            Some(_) if again => {}
            Some(refusal) => {
                let is_too_large = refusal == Refusal::TooLarge;
                if is_too_large {
                    self.shrink(&item);
                }
                if is_too_large && item.plan.is_none() {
                    return self.queue(Item::new(item.what, item.meta, item.token));
                }
                return self.unsent(item, SendError::Refused);
            }
        }
        item.answered(tag, again, self.read);
        if item.is_over() {
            self.sent(&item);
        } else if item.plan.is_some() {
            self.out.begun.insert(at, item);
        } else {
            self.out.first.push_front(item);
        }
    }

    /// Gives up transfers that nobody accepted or confirmed in time.
    pub(super) fn sweep_departures(&mut self) {
        let late = |item: &Item, this: &Self| item.due(&this.config).is_some_and(|due| due <= this.read);
        while let Some(at) = self.out.begun.iter().position(|item| late(item, self))
            && let Some(item) = self.out.begun.remove(at)
        {
            let error = if item.first.is_some() { SendError::Refused } else { SendError::NotAccepted };
            self.unsent(item, error);
        }
    }

    /// Fails all that is not sent.
    pub(super) fn disconnect(&mut self) {
        let Queues { first, whole, large, begun, handed, .. } = std::mem::take(&mut self.out);
        for item in [handed, first, whole, begun, large].into_iter().flatten() {
            self.unsent(item, SendError::Disconnected);
        }
    }

    /// Notes a request, if it has a token or gets one of ours; returns the token.
    fn ask(&mut self, id: Bytes, text: &mut Text, peer: &Peer) -> Option<Arc<str>> {
        let place = text.token_place().filter(|_| self.config.inject_tokens);
        let (written, token) = if let Some((at, before, after)) = place {
            self.injected = self.injected.saturating_add(1);
            let token = format!("bb-{:x}-{:x}", self.config.seed, self.injected);
            let insert = format!(r#"{before}"{token}"{after}"#);
            text.message = text.message.splice(Span { start: at, end: at }, insert.into());
            (Bytes::new(), token)
        } else {
            let (span, token) = text.token(OWN_TOKEN)?;
            (Bytes::copy_from_slice(&text.message.read(span)), token)
        };
        self.book.note_asked(peer, &token, Asked { id, token: written, injected: place.is_some() });
        Some(token.into())
    }

    /// Queues a message, to go out whole if it fits a frame.
    pub(super) fn queue(&mut self, item: Item) {
        if self.capacity.fits(measure(&item.what.message, &self.capacity)) {
            self.out.whole.push_back(item);
        } else if item.token.is_some() {
            self.out.large.push_back(item);
        } else {
            let error = SendError::NoToken(Over { size: item.len(), limit: self.capacity.cap });
            self.unsent(item, error);
        }
    }

    /// Begins transfers while there is a slot. A token is in use once at a time.
    fn begin(&mut self) {
        while len64(self.out.begun.len()) < self.config.max_transfers.into() {
            let is_open = |key| self.out.begun.iter().any(|item| item.key == key);
            let free = self.out.large.iter().position(|item| !is_open(item.key));
            let Some(mut item) = free.and_then(|at| self.out.large.remove(at)) else {
                return;
            };
            let max_chunks = self.config.max_chunks;
            match Plan::make(&item.what.message, item.token(), &self.capacity, max_chunks, &mut self.writer) {
                Ok(plan) => {
                    let supports = self.book.supports.get(Key::of(&item.meta.peer, ())).is_some();
                    item.first = (self.config.known_support || supports).then_some(2);
                    item.plan = Some(plan);
                    self.out.begun.push_back(item);
                }
                Err(error) => self.unsent(item, error),
            }
        }
    }

    /// Waits before the next frame, longer each time. `false` when there were enough pauses.
    fn pause(&mut self, now: Instant) -> bool {
        let out = &mut self.out;
        if out.paused_until.is_none_or(|until| until <= now) {
            let pause = FIRST_PAUSE.saturating_mul(1 << out.pauses.min(16)).min(LAST_PAUSE);
            out.pauses = out.pauses.saturating_add(1);
            out.paused_until = now.checked_add(pause);
            // The link said why it is silent.
            out.begun.iter_mut().for_each(|item| item.touched = self.read);
        }
        out.pauses <= MAX_PAUSES
    }

    /// Learns from a refused frame that the link takes less than it said.
    fn shrink(&mut self, item: &Item) {
        let size = item.plan.as_ref().map_or(item.len(), |plan| plan.frame);
        let fixed = self.capacity.overhead.of(Measure { bytes: size, escaped: size });
        self.capacity.cap = self.capacity.cap.min(size.saturating_add(fixed) / 2);
    }

    /// Reports a message that is not sent. The peer of a transfer is told, and whoever waits gets an error response.
    fn unsent(&mut self, item: Item, error: SendError) {
        self.out.bytes = self.out.bytes.saturating_sub(item.len());
        if item.what.named().0 == Kind::Request {
            self.book.fail_asked(&item.meta.peer, item.key, "", "");
        }
        // A peer that gave up expects nothing more.
        let is_heard = error != SendError::Aborted;
        if item.next > 0 && item.plan.is_some() && is_heard {
            let bytes = self.writer.text((item.token(), item.place(item.next)), ABORT, &error.to_string());
            self.control(bytes, item.meta.clone());
        }
        if let Some(instead) = item.what.fail(error, &mut self.outbox).filter(|_| is_heard) {
            self.control(instead.message, item.meta);
        }
    }

    fn sent(&mut self, item: &Item) {
        self.out.bytes = self.out.bytes.saturating_sub(item.len());
        if let Some(ticket) = item.what.ticket {
            self.outbox.event(Event::Sent { ticket });
        }
    }
}
