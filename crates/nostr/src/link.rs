//! The link to one peer over all relays.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use breakbulk::{Acked, Arrival, HalfClose, Link, LinkError, LinkStatus, Moved, ReceiveMemory};
use breakbulk_proto::{Capacity, Envelope, Kind, Message, Meta, Refusal, Tag, Transmit};
use futures_core::Stream;
use futures_sink::Sink;
use nostr::{EventId, PublicKey, TagKind};

use crate::address::Encryption;
use crate::event::{self, Incoming, Outgoing, SUPPORT_ENCRYPTION, SUPPORT_EPHEMERAL, SUPPORT_PARTS, Seal};
use crate::inbox::{Inbox, InboxSender, Item};
use crate::pool::Pool;
use crate::publication::Publication;

/// How many frames may be on their way to the relays: two windows of chunks, and small messages beside them.
const MAX_UNDER_WAY: usize = 64;
/// How many of our own events are remembered, to know which answers are for this link.
const PUBLISHED: usize = 4096;
/// The close code for an ordinary end.
const NORMAL: u16 = 1000;

/// The link to one peer. Several links may share the relays and the key.
pub(crate) struct NostrLink {
    pool: Arc<Pool>,
    peer: PublicKey,
    side: Side,
    inbox: Inbox,
    sender: InboxSender,
    /// How messages to the peer are sealed.
    seal: Arc<AtomicU8>,
    supports: Vec<nostr::Tag>,
    capacity: Capacity,
    /// Frames of which it is not known what became of them.
    under_way: usize,
    moved: Moved,
    /// Our last events, the oldest first.
    published: VecDeque<EventId>,
    phase: LinkPhase,
}

/// Which side of MCP we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// We answer as we were asked.
    Server,
    /// Other links may use the same key, so answers to events that are not ours are for them.
    Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkPhase {
    Open,
    /// We have closed. What is under way still goes out.
    Closing,
    /// The session is over.
    Ended,
}

impl NostrLink {
    /// A link to a peer, whose messages come through the inbox.
    pub(crate) fn new(
        pool: Arc<Pool>,
        peer: PublicKey,
        side: Side,
        (sender, inbox): (InboxSender, Inbox),
        seal: Seal,
    ) -> Self {
        let encryption = pool.shared.encryption;
        let seal = Arc::new(AtomicU8::new(seal.number()));
        let sealed = Arc::clone(&seal);
        let capacity =
            event::capacity(pool.shared.cap(), move || sealed.load(Ordering::Relaxed) != Seal::Plain.number());
        Self {
            supports: supports(encryption),
            pool,
            peer,
            side,
            inbox,
            sender,
            seal,
            capacity,
            under_way: 0,
            moved: Moved::default(),
            published: VecDeque::new(),
            phase: LinkPhase::Open,
        }
    }

    /// Notes how the peer seals its messages; `None` if the message is not for this link.
    fn note(&mut self, message: Incoming) -> Option<Arrival> {
        let is_ours = |about: &EventId| self.published.contains(about);
        if self.side == Side::Client && message.about.as_ref().is_some_and(|about| !is_ours(about)) {
            return None;
        }
        let seal = match self.side {
            Side::Server => Some(message.seal),
            Side::Client => match (self.current_seal(), message.supports_ephemeral) {
                (Seal::Plain, _) | (_, None) => None,
                (_, Some(true)) => Some(Seal::EphemeralWrap),
                (_, Some(false)) => Some(Seal::Wrap),
            },
        };
        if let Some(seal) = seal {
            self.seal.store(seal.number(), Ordering::Relaxed);
        }
        let len = u64::try_from(message.text.len()).unwrap_or(u64::MAX);
        self.moved.inward = self.moved.inward.saturating_add(len);
        let meta = Meta {
            peer: None,
            id: Some(event::hex(&message.name)),
            about: message.about.as_ref().map(event::hex),
            supports_parts: message.supports_parts,
            ..Meta::default()
        };
        Some(Arrival::Frame { bytes: message.text, meta })
    }

    fn current_seal(&self) -> Seal {
        Seal::numbered(self.seal.load(Ordering::Relaxed))
    }

    fn publish(&mut self, tag: Tag, bytes: &Message, meta: &Meta) {
        self.under_way = self.under_way.saturating_add(1);
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.moved.outward = self.moved.outward.saturating_add(len);
        // Only the first frame of a message can be a whole one.
        let is_request =
            meta.supports_parts && Envelope::of(bytes).is_ok_and(|envelope| envelope.kind() == Kind::Request);
        let about = meta.about.as_deref().and_then(|about| EventId::from_hex(about).ok());
        // The first frame of each message says what we support. A peer that has forgotten us learns it again.
        let supports = if meta.supports_parts { self.supports.as_slice() } else { &[] };
        let text = bytes.to_bytes();
        let Ok(text) = std::str::from_utf8(&text) else { return self.sender.acked((tag, Err(Refusal::Other))) };
        let keys = &self.pool.shared.keys;
        let made = Outgoing::message(keys, self.peer, text, about.as_ref(), supports, self.current_seal());
        let Ok(event) = made else { return self.sender.acked((tag, Err(Refusal::TooLarge))) };
        // Known before it is published: the answer may be faster than the relay's confirmation.
        if self.published.len() >= PUBLISHED {
            self.published.pop_front();
        }
        self.published.push_back(event.name);
        let relays = self.pool.shared.relay_count();
        let publication = Publication::new(event, is_request, Some((self.sender.clone(), tag)), relays);
        self.pool.shared.publish(&publication);
    }
}

/// The tags that say what we support.
fn supports(encryption: Encryption) -> Vec<nostr::Tag> {
    let all = [SUPPORT_PARTS, SUPPORT_ENCRYPTION, SUPPORT_EPHEMERAL];
    let count = if encryption == Encryption::Off { 1 } else { all.len() };
    let tag = |name: &&str| nostr::Tag::custom(TagKind::Custom((*name).into()), Vec::<String>::new());
    all.iter().take(count).map(tag).collect()
}

/// The same tags, for announcements.
pub(crate) fn support_tags(encryption: Encryption) -> Vec<nostr::Tag> {
    supports(encryption)
}

impl Link for NostrLink {
    fn capacity(&self) -> Capacity {
        self.capacity.clone()
    }

    fn status(&self) -> LinkStatus {
        LinkStatus { half_close: HalfClose::Unsupported, moved: self.moved, ..LinkStatus::default() }
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        None
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        let acked = ready!(self.inbox.poll_acked(cx));
        self.under_way = self.under_way.saturating_sub(1);
        Poll::Ready(acked)
    }

    fn end_output(&mut self) -> bool {
        false
    }
}

impl Stream for NostrLink {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.phase == LinkPhase::Ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready((tag, result)) = self.poll_acked(cx) {
            return Poll::Ready(Some(Ok(Arrival::Acked { tag, result })));
        }
        loop {
            match ready!(self.inbox.poll(cx)) {
                Some(Item::Message(message)) => {
                    if let Some(arrival) = self.note(message) {
                        return Poll::Ready(Some(Ok(arrival)));
                    }
                }
                Some(Item::End(why)) => {
                    self.phase = LinkPhase::Ended;
                    return Poll::Ready(Some(Ok(Arrival::Closed { code: NORMAL, text: why.into() })));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Sink<Transmit> for NostrLink {
    type Error = LinkError;

    /// Ready while few frames are under way. Whoever polls for receipts is woken by them.
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.phase == LinkPhase::Open && self.under_way >= MAX_UNDER_WAY {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    fn start_send(self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        let this = self.get_mut();
        match item {
            Transmit::Frame { .. } if this.phase != LinkPhase::Open => return Err(LinkError::Closed),
            Transmit::Frame { tag, bytes, meta } => this.publish(tag, &bytes, &meta),
            // Nostr has no close. The peer was told what it has to know in messages.
            Transmit::Close(_) => this.phase = LinkPhase::Closing,
        }
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    /// Waits until the relays have what is under way.
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        while self.under_way > 0 {
            let _ = ready!(self.poll_acked(cx));
        }
        self.phase = LinkPhase::Ended;
        Poll::Ready(Ok(()))
    }
}
