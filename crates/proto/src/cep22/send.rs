//! The sending half: control frames first, then whole messages, then transfers in turn. A cancel waits for the request that it names.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::envelope::Kind;
use crate::error::{Over, SendError};
use crate::error_responses::ErrorResponses;
use crate::machine::{Capacity, Event, Measure, Meta, Receipt, Refusal, Tag, Ticket, Transmit};
use crate::message::{Message, len64};
use crate::outgoing::{Outgoing, check_depth, measure};
use crate::queue::{Bond, SMALL_RUN};

use super::cut::TransferPlan;
use super::outgoing_message::OutgoingMessage;
use super::records::{Key, Name, Peer, SentRequest};
use super::wire::{ABORT, MAX_TOKEN, OWN_TOKEN, ParsedMessage, Writer};
use super::{Config, Connection};

/// How many control frames may wait. More are dropped, because the peers have timeouts of their own.
const MAX_CONTROL: usize = 1024;
/// How many whole messages may wait for an acknowledgement. Beyond that, the oldest are assumed to have been sent.
const MAX_UNCONFIRMED: usize = 1024;
/// The first pause after the link refused a frame because we are too fast.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause. Shorter than any sensible soft timeout.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// The smallest frame limit that we believe a link to have. An error answer fits it, unless its id is very long.
const SMALLEST_CAP: u64 = 512;
/// How long after a refusal for size whole messages of that size are not tried again. To try one costs little.
const TRY_AGAIN: Duration = Duration::from_secs(600);
/// After this many pauses in a row, a frame is given up.
const MAX_PAUSES: u32 = 12;

/// Everything that waits to be sent, or to be acknowledged.
#[derive(Debug, Default)]
pub(super) struct SendQueues {
    /// Control frames, and whole messages that were refused only because we were too fast.
    first: VecDeque<Box<OutgoingMessage>>,
    /// Error responses to requests of peers that were not valid, with where each peer gets them.
    refusals: VecDeque<(ErrorResponses, Meta)>,
    whole: VecDeque<Box<OutgoingMessage>>,
    /// Messages that are too large for a frame, and have not begun.
    large: VecDeque<Box<OutgoingMessage>>,
    /// Transfers that have begun. The first has waited longest for its turn.
    pub(super) begun: VecDeque<Box<OutgoingMessage>>,
    /// Requests of which not all frames have been handed to the link.
    unsent_requests: HashSet<Key>,
    /// Cancels that wait until their request has been sent, with the key of that request. If the link refuses the
    /// request later, nothing waits for it: its cancel may have been sent by then.
    held_cancels: VecDeque<(Key, Box<OutgoingMessage>)>,
    /// Whole messages that the link has and has not acknowledged, if it acknowledges frames.
    unconfirmed: VecDeque<Box<OutgoingMessage>>,
    pauses: u32,
    pub(super) paused_until: Option<Instant>,
    /// The bytes of all these messages.
    bytes: u64,
    last_tag: Tag,
    /// The bytes of small messages that were sent since the last turn of the transfers.
    small_run: u64,
    /// The frame limit that we believe in since a frame was refused for its size. It holds for frames that can be shorter.
    pub(super) learned: Option<u64>,
    /// When a message that could be a transfer is tried whole again, even if it is longer than `learned`.
    again_at: Duration,
    pub(super) writer: Writer,
    /// How many tokens we have added to requests.
    injected: u64,
}

impl SendQueues {
    /// The next message that goes whole.
    fn small(&mut self) -> Option<Box<OutgoingMessage>> {
        let item = self.first.pop_front().or_else(|| self.refusal()).or_else(|| self.whole.pop_front())?;
        self.small_run = self.small_run.saturating_add(item.len());
        Some(item)
    }

    /// The next error response to a request of a peer.
    fn refusal(&mut self) -> Option<Box<OutgoingMessage>> {
        let (responses, meta) = self.refusals.front_mut()?;
        let what = Outgoing::new(None, responses.next()?, meta.clone());
        if responses.len() == 0 {
            self.refusals.pop_front();
        }
        let item = OutgoingMessage::new(what, None, None);
        self.bytes = self.bytes.saturating_add(item.len());
        Some(item)
    }

    /// The next transfer that has begun and may go on.
    fn ready(&mut self, config: &Config) -> Option<Box<OutgoingMessage>> {
        let at = self.begun.iter().position(|item| item.is_ready(config))?;
        self.begun.remove(at)
    }
}

impl Connection {
    /// Takes a message of the application's.
    pub(super) fn send(&mut self, ticket: Ticket, message: Message, mut meta: Meta) {
        let text = ParsedMessage::to_send(message.clone()).ok().filter(|text| text.envelope.kind() != Kind::Other);
        let text = text.ok_or(SendError::NotJsonRpc);
        let text = text.and_then(|text| check_depth(&message, self.config.limits.max_depth).map(|()| text));
        let mut text = match text {
            Ok(text) => text,
            Err(error) => {
                let instead = Outgoing::new(Some(ticket), message, meta).fail(error, &mut self.events);
                return instead.into_iter().for_each(|instead| self.control(instead.message, instead.meta));
            }
        };
        let kind = text.envelope.kind();
        let id = text.envelope.id(&text.message).map(|id| Bytes::copy_from_slice(&id));
        let key = text.envelope.id_key(&text.message).map(|id| Key::of(&meta.peer, id));
        let request = key.filter(|_| kind == Kind::Request);
        let token = match key {
            Some(key) if request.is_some() => self.ask(key, id.unwrap_or_default(), &mut text, &meta.peer),
            Some(key) => self.records.received_requests.remove(&key).and_then(|request| {
                meta.about = meta.about.take().or(request.frame);
                request.token
            }),
            None => None,
        };
        let cancelled = match text.bond() {
            Bond::Cancels(id) => Some(Key::of(&meta.peer, id)),
            Bond::None | Bond::Request(_) => None,
        };
        let (size, limit) = (len64(text.message.len()), self.config.limits.max_queued_bytes);
        let item = OutgoingMessage::new(Outgoing::new(Some(ticket), text.message, meta), token, request);
        self.queues.bytes = self.queues.bytes.saturating_add(size);
        while self.queues.bytes > limit {
            if !self.assume_oldest_sent() {
                return self.unsent(item, SendError::QueueFull(Over { size, limit }));
            }
        }
        if let Some(request) = cancelled.filter(|request| self.queues.unsent_requests.contains(request)) {
            return self.queues.held_cancels.push_back((request, item));
        }
        self.queues.unsent_requests.extend(request);
        // A message that can be a transfer is not tried whole, except after a while, to find out whether the limit
        // still holds.
        let cap = self.queues.learned.filter(|_| item.token.is_some() && self.read < self.queues.again_at);
        self.queue(item, cap);
    }

    /// Queues a control frame.
    pub(super) fn control(&mut self, message: impl Into<Message>, meta: Meta) {
        let message = message.into();
        // The peer may have chosen an id or a token so long that no answer fits a frame.
        if self.queues.first.len() >= MAX_CONTROL || !self.capacity.fits(measure(&message, &self.capacity)) {
            return self.events.count("control-dropped");
        }
        let item = OutgoingMessage::new(Outgoing::new(None, message, meta), None, None);
        self.queues.bytes = self.queues.bytes.saturating_add(item.len());
        self.queues.first.push_back(item);
    }

    /// Answers requests of a peer that were not valid.
    pub(super) fn refuse_requests(&mut self, responses: ErrorResponses, meta: &Meta) {
        let waiting = self.queues.refusals.iter().fold(0_usize, |sum, (more, _)| sum.saturating_add(more.len()));
        if waiting >= MAX_CONTROL {
            return self.events.count("control-dropped");
        }
        if responses.len() > 0 {
            let Meta { peer, id: about, .. } = meta.clone();
            self.queues.refusals.push_back((responses, Meta { peer, about, ..Meta::default() }));
        }
    }

    /// The next frame. No frame exceeds the link's cap, which may have shrunk: then a whole message becomes a transfer, but a
    /// transfer fails, because its `start` has told the number of chunks.
    pub(super) fn next_frame(&mut self, now: Instant) -> Option<Transmit> {
        if self.queues.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        self.queues.paused_until = None;
        let tag = self.queues.last_tag.next();
        loop {
            let mut item = self.next_item()?;
            let (bytes, meta) = item.frame(tag, self.config.acks, self.read, &mut self.queues.writer);
            let bytes = Message::from(bytes);
            if self.capacity.fits(measure(&bytes, &self.capacity)) {
                self.gone(item);
                return Some(Transmit::Frame { tag, bytes, meta });
            }
            let (size, limit) = (item.len(), item.plan.as_ref().map(|plan| plan.start.chunks));
            match limit {
                Some(limit) => self.unsent(item, SendError::TooManySegments(Over { size, limit })),
                None => self.queue(OutgoingMessage::new(item.what, item.token, item.request), None),
            }
        }
    }

    /// A peer accepts our transfer. That shows that it takes transfers in general.
    pub(super) fn accepted(&mut self, key: Key, meta: &Meta) {
        if let Some(item) = self.queues.begun.iter_mut().find(|item| item.is_begun(key, &meta.about)) {
            item.release(3, self.read);
            self.learn(&meta.peer);
        }
    }

    /// This peer is now known to take transfers, so transfers to it need not wait for its `accept`. Without an
    /// `accept`, chunks begin at `progress` 2.
    pub(super) fn learn(&mut self, peer: &Peer) {
        if self.records.supporting_peers.insert(Key::of(peer, ()), ()).is_none() {
            for item in self.queues.begun.iter_mut().filter(|item| item.what.meta.peer == *peer) {
                item.release(2, self.read);
            }
        }
    }

    /// A peer aborts our transfer. Returns whether there was one.
    pub(super) fn abort_own(&mut self, key: Key, about: &Name) -> bool {
        let found = self.queues.begun.iter().position(|item| item.is_begun(key, about));
        let item = found.and_then(|at| self.queues.begun.remove(at));
        item.map(|item| self.unsent(item, SendError::Aborted)).is_some()
    }

    /// The link acknowledges a frame, or refuses it.
    pub(super) fn acked(&mut self, tag: Tag, result: Result<Receipt, Refusal>, now: Instant) {
        let place =
            |list: &VecDeque<Box<OutgoingMessage>>| list.iter().position(|item| item.unconfirmed_frame(tag).is_some());
        let (unconfirmed, begun) = (place(&self.queues.unconfirmed), place(&self.queues.begun));
        let again = result == Err(Refusal::TooFast) && self.pause(now);
        let item = unconfirmed.and_then(|at| self.queues.unconfirmed.remove(at));
        let Some(mut item) = item.or_else(|| self.queues.begun.remove(begun?)) else { return };
        let bytes = item.unconfirmed_frame(tag).map_or(0, |frame| frame.bytes);
        let name = match result {
            Ok(Receipt { id }) => {
                self.queues.pauses = 0;
                self.queues.learned = self.queues.learned.map(|cap| cap.max(self.on_link(bytes)));
                id
            }
            Err(_) if again => None,
            Err(refusal) => return self.refused(item, bytes, refusal),
        };
        item.answered(tag, name, again, self.read);
        self.records.note_began(item.key, item.request, &item.began);
        if item.is_over() {
            self.sent(&item);
        } else if item.plan.is_some() {
            self.queues.begun.insert(begun.unwrap_or(0), item);
        } else {
            self.queues.first.push_front(item);
        }
    }

    /// Gives up transfers that were not accepted, or not acknowledged, in time.
    pub(super) fn sweep_departures(&mut self) {
        let late = |item: &OutgoingMessage, this: &Self| item.due(&this.config).is_some_and(|due| due <= this.read);
        while let Some(at) = self.queues.begun.iter().position(|item| late(item, self))
            && let Some(item) = self.queues.begun.remove(at)
        {
            let error = if item.first.is_some() { SendError::Refused } else { SendError::NotAccepted };
            self.unsent(item, error);
        }
    }

    /// Fails everything that is not sent.
    pub(super) fn disconnect(&mut self) {
        let SendQueues { first, whole, large, begun, held_cancels, unconfirmed, .. } = std::mem::take(&mut self.queues);
        let cancels = held_cancels.into_iter().map(|(_, item)| item);
        for item in [unconfirmed, first, whole, begun, large].into_iter().flatten().chain(cancels) {
            self.unsent(item, SendError::Disconnected);
        }
    }

    /// Notes a request, if it has a token or gets one of ours. Returns the token.
    fn ask(&mut self, key: Key, id: Bytes, text: &mut ParsedMessage, peer: &Peer) -> Option<Arc<str>> {
        self.records.answered.insert(key, false);
        let place = text.token_place().filter(|_| self.config.inject_tokens);
        let (written, token) = if let Some((span, before, after)) = place {
            self.queues.injected = self.queues.injected.saturating_add(1);
            let token = format!("bb-{:x}-{:x}", self.config.seed, self.queues.injected);
            let insert = format!(r#"{before}"{token}"{after}"#);
            text.message = text.message.splice(span, insert.into());
            (Bytes::new(), token)
        } else {
            let (span, token) = text.token(OWN_TOKEN)?;
            (Bytes::copy_from_slice(&text.message.read(span)), token)
        };
        if id.len() <= MAX_TOKEN {
            let asked = SentRequest { key, id, token: written, injected: place.is_some(), began: None };
            self.records.sent_requests.insert(Key::of(peer, Some(&*token)), asked);
        }
        Some(token.into())
    }

    /// Queues a message: whole if it fits a frame of the link and of at most `cap`, otherwise as a transfer.
    fn queue(&mut self, item: Box<OutgoingMessage>, cap: Option<u64>) {
        let link = self.within(cap);
        if link.fits(measure(&item.what.message, &link)) {
            self.queues.whole.push_back(item);
        } else if item.token.is_some() {
            self.queues.large.push_back(item);
        } else {
            let error = SendError::NoToken(Over { size: item.len(), limit: link.cap });
            self.unsent(item, error);
        }
    }

    /// The next message that has a frame to send. Small messages overtake transfers, but only up to [`SMALL_RUN`] bytes at a time.
    fn next_item(&mut self) -> Option<Box<OutgoingMessage>> {
        let small = if self.queues.small_run < SMALL_RUN { self.queues.small() } else { None };
        small.or_else(|| self.begin()).or_else(|| self.queues.ready(&self.config)).or_else(|| self.queues.small())
    }

    /// Begins a transfer, if another may be open. No two open transfers have the same token.
    fn begin(&mut self) -> Option<Box<OutgoingMessage>> {
        // It is the turn of the transfers.
        self.queues.small_run = 0;
        while len64(self.queues.begun.len()) < self.config.max_transfers.into() {
            let is_open = |key| self.queues.begun.iter().any(|item| item.key == key);
            let free = self.queues.large.iter().position(|item| !is_open(item.key))?;
            let mut item = self.queues.large.remove(free)?;
            match self.plan(&item) {
                Ok(plan) => {
                    let supports = self.records.supporting_peers.get(Key::of(&item.what.meta.peer, ())).is_some();
                    item.first = (self.config.known_support || supports).then_some(2);
                    item.plan = Some(plan);
                    return Some(item);
                }
                Err(error) => self.unsent(item, error),
            }
        }
        None
    }

    /// Cuts a message. If it needs too many chunks at the limit that we learned, longer frames are tried: it could not be sent
    /// otherwise.
    fn plan(&mut self, item: &OutgoingMessage) -> Result<TransferPlan, SendError> {
        let [short, long] = [self.queues.learned, None].map(|cap| self.within(cap));
        let max_chunks = self.config.max_chunks;
        let mut cut =
            |link| TransferPlan::make(&item.what.message, item.token(), link, max_chunks, &mut self.queues.writer);
        cut(&short).or_else(|_| cut(&long))
    }

    /// A frame of this message was handed to the link.
    fn gone(&mut self, item: Box<OutgoingMessage>) {
        if let Some(progress) = item.progress() {
            self.events.push_progress(progress);
        }
        if item.is_over() {
            self.sent(&item);
        } else if item.plan.is_some() {
            self.queues.begun.push_back(item);
        } else {
            let request = item.request;
            self.queues.unconfirmed.push_back(item);
            self.release_cancels(request);
            if self.queues.unconfirmed.len() > MAX_UNCONFIRMED {
                self.assume_oldest_sent();
            }
        }
    }

    /// A request has been handed to the link, or is not sent at all: its cancels no longer wait.
    fn release_cancels(&mut self, request: Option<Key>) {
        let Some(request) = request.filter(|request| self.queues.unsent_requests.remove(request)) else { return };
        let (free, held) =
            std::mem::take(&mut self.queues.held_cancels).into_iter().partition(|(named, _)| *named == request);
        self.queues.held_cancels = held;
        let free: VecDeque<(Key, Box<OutgoingMessage>)> = free;
        free.into_iter().for_each(|(_, item)| self.queue(item, None));
    }

    /// The link, as if its cap were at most `cap`.
    fn within(&self, cap: Option<u64>) -> Capacity {
        Capacity { cap: self.capacity.cap.min(cap.unwrap_or(u64::MAX)), ..self.capacity.clone() }
    }

    /// How many bytes a frame takes on the link, if nothing in it has to be escaped.
    fn on_link(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.capacity.overhead.of(Measure { bytes, escaped: bytes }))
    }

    /// Begins a pause before the next frame, longer each time. Returns false after too many pauses in a row.
    fn pause(&mut self, now: Instant) -> bool {
        let out = &mut self.queues;
        if out.paused_until.is_none_or(|until| until <= now) {
            let pause = FIRST_PAUSE.saturating_mul(1 << out.pauses.min(16)).min(LAST_PAUSE);
            out.pauses = out.pauses.saturating_add(1);
            out.paused_until = now.checked_add(pause);
            // The link will not acknowledge anything during the pause, so transfers do not time out for it.
            out.begun.iter_mut().for_each(|item| item.touched = self.read);
        }
        out.pauses <= MAX_PAUSES
    }

    /// The link refused a frame. If it was too large, a whole message can still become a transfer.
    fn refused(&mut self, item: Box<OutgoingMessage>, bytes: u64, refusal: Refusal) {
        let (size, least) = (self.on_link(bytes), self.on_link(SMALLEST_CAP));
        if refusal == Refusal::TooLarge && size > least {
            let cap = least.max(size / 2);
            self.queues.learned = Some(self.queues.learned.unwrap_or(cap).min(cap));
            self.queues.again_at = self.read.saturating_add(TRY_AGAIN);
            if item.plan.is_none() {
                return self.queue(OutgoingMessage::new(item.what, item.token, item.request), self.queues.learned);
            }
        }
        self.unsent(item, SendError::Refused);
    }

    /// Reports a message that is not sent. A transfer is aborted, and whoever waits for an answer gets an error response.
    fn unsent(&mut self, item: Box<OutgoingMessage>, error: SendError) {
        // A request that was answered has arrived, whatever the link says.
        if item.request.and_then(|id| self.records.answer(id)) == Some(false) {
            return self.sent(&item);
        }
        self.queues.bytes = self.queues.bytes.saturating_sub(item.len());
        // A peer that aborted the transfer itself expects no abort. In place of a response it still gets an error, because it may have
        // meant another transfer.
        if item.plan.is_some() && error != SendError::Aborted {
            let bytes = self.queues.writer.text((item.token(), item.place(item.next)), ABORT, &error.to_string());
            let about = item.what.meta.about.clone().or_else(|| item.began.clone());
            self.control(bytes, Meta { about, ..item.what.meta.clone() });
        }
        let request = item.request;
        if let Some(instead) = item.what.fail(error, &mut self.events) {
            self.control(instead.message, instead.meta);
        }
        self.release_cancels(request);
    }

    /// Assumes that the oldest unacknowledged message was sent. Returns whether there was one.
    fn assume_oldest_sent(&mut self) -> bool {
        self.queues.unconfirmed.pop_front().map(|oldest| self.sent(&oldest)).is_some()
    }

    fn sent(&mut self, item: &OutgoingMessage) {
        self.queues.bytes = self.queues.bytes.saturating_sub(item.len());
        if let Some(ticket) = item.what.ticket {
            self.events.push(Event::Sent { ticket });
        }
        self.release_cancels(item.request);
    }
}
