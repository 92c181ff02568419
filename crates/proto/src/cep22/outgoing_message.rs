//! One message that is being sent, whole or as a transfer. It decides which frame comes next, and when.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::json;
use crate::machine::{Meta, Progress, Subject, Tag};
use crate::message::{len_usize, len64};
use crate::outgoing::Outgoing;

use super::Config;
use super::cut::TransferPlan;
use super::records::{Key, Name, may_be};
use super::wire::Writer;

/// A message that is being sent.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    pub(super) what: Outgoing,
    /// The token that allows a transfer.
    pub(super) token: Option<Arc<str>>,
    /// The key of the token.
    pub(super) key: Key,
    /// The key of its id, if it is a request.
    pub(super) request: Option<Key>,
    /// The id of its first frame, once the link has given it one.
    pub(super) began: Name,
    /// How it is cut, if it is a transfer.
    pub(super) plan: Option<TransferPlan>,
    /// The number of the next frame: 0 is the whole message or `start`, then come the chunks, then `end`.
    pub(super) next: u64,
    /// The `progress` of the first chunk, once chunks may be sent.
    pub(super) first: Option<u64>,
    /// Frames that the link has not acknowledged yet, if it acknowledges frames.
    unconfirmed: Vec<UnconfirmedFrame>,
    /// When it last made progress, by the clock that stops while we do not read.
    pub(super) touched: Duration,
}

/// A frame that the link has not acknowledged.
#[derive(Debug)]
pub(super) struct UnconfirmedFrame {
    number: u64,
    pub(super) bytes: u64,
    /// `None` if it has to be sent again.
    tag: Option<Tag>,
}

impl OutgoingMessage {
    pub(super) fn new(what: Outgoing, token: Option<Arc<str>>, request: Option<Key>) -> Box<Self> {
        let key = Key::of(&what.meta.peer, &token);
        Box::new(Self {
            what,
            token,
            key,
            request,
            began: None,
            plan: None,
            next: 0,
            first: None,
            unconfirmed: Vec::new(),
            touched: Duration::ZERO,
        })
    }

    pub(super) fn len(&self) -> u64 {
        len64(self.what.message.len())
    }

    pub(super) fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    /// The next frame.
    pub(super) fn frame(&mut self, tag: Tag, acks: bool, read: Duration, out: &mut Writer) -> (Bytes, Meta) {
        let again = self.unconfirmed.iter().position(|frame| frame.tag.is_none());
        let number = again.map_or(self.next, |at| self.unconfirmed.remove(at).number);
        self.next = self.next.max(number.saturating_add(1));
        let (message, to) = (&self.what.message, (self.token(), self.place(number)));
        let bytes = match self.plan.as_ref().map(|plan| (plan, plan.chunk(number))) {
            None => message.to_bytes(),
            Some((plan, None)) if number == 0 => out.start(self.token(), &plan.start),
            Some((plan, Some(span))) => out.chunk(to, len_usize(plan.frame), |out| {
                message.runs(span).for_each(|run| json::escape_into(out, run));
            }),
            Some((_, None)) => out.text(to, "end", ""),
        };
        self.touched = read;
        if acks {
            self.unconfirmed.push(UnconfirmedFrame { number, bytes: len64(bytes.len()), tag: Some(tag) });
        }
        (bytes, Meta { supports_parts: number == 0, ..self.what.meta.clone() })
    }

    /// Whether a transfer may send a frame now.
    pub(super) fn is_ready(&self, config: &Config) -> bool {
        let oldest = self.unconfirmed_numbers().min().unwrap_or(self.next);
        let ahead = self.next.saturating_sub(oldest);
        match self.next {
            _ if self.has_again() => true,
            _ if self.first.is_none() || oldest == 0 => false,
            next if next < self.last() => ahead < config.publish_window.max(1).into(),
            next => next == self.last() && ahead == 0,
        }
    }

    /// How much of a transfer has been sent.
    pub(super) fn progress(&self) -> Option<Progress> {
        let plan = self.plan.as_ref()?;
        let (total, next) = (plan.start.bytes, plan.chunk(self.next));
        let done = next.map_or(total, |span| span.start);
        Some(Progress { subject: Subject::Outgoing(self.what.ticket?), done, total })
    }

    /// Whether an answer with this token, which refers to the frame `about`, may belong to this transfer.
    pub(super) fn is_begun(&self, key: Key, about: &Name) -> bool {
        self.key == key && may_be(&self.began, about)
    }

    /// Whether all frames were sent and, where the link does that, acknowledged.
    pub(super) fn is_over(&self) -> bool {
        self.next > self.last() && self.unconfirmed_numbers().next().is_none()
    }

    /// The frame with this tag, if the link has not acknowledged it yet.
    pub(super) fn unconfirmed_frame(&self, tag: Tag) -> Option<&UnconfirmedFrame> {
        self.unconfirmed.iter().find(|frame| frame.tag == Some(tag))
    }

    /// The link has answered for a frame: it gave it an id, or the frame has to be sent `again`.
    pub(super) fn answered(&mut self, tag: Tag, name: Name, again: bool, read: Duration) {
        if self.unconfirmed_frame(tag).is_some_and(|frame| frame.number == 0) {
            self.began = name;
        }
        if again {
            self.unconfirmed.iter_mut().filter(|frame| frame.tag == Some(tag)).for_each(|frame| frame.tag = None);
        }
        self.unconfirmed.retain(|frame| frame.tag != Some(tag));
        self.touched = read;
    }

    /// Allows chunks to be sent. Their `progress` begins at `first`: 2, or 3 after an `accept`, which used 2.
    pub(super) fn release(&mut self, first: u64, read: Duration) {
        if self.first.is_none() {
            (self.first, self.touched) = (Some(first), read);
        }
    }

    /// When a transfer is given up: when the peer does not accept it in time, or the link does not acknowledge in time. `None` while
    /// a frame has to be sent again, because then it is not the peer that we wait for.
    pub(super) fn due(&self, config: &Config) -> Option<Duration> {
        let time = match self.first {
            None => config.accept_timeout,
            Some(_) if config.acks => config.soft_timeout,
            Some(_) => return None,
        };
        (!self.has_again()).then(|| self.touched.saturating_add(time))
    }

    /// The `progress` of a frame.
    pub(super) fn place(&self, number: u64) -> u64 {
        if number == 0 { 1 } else { self.first.unwrap_or(2).saturating_add(number).saturating_sub(1) }
    }

    fn last(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.start.chunks.saturating_add(1))
    }

    /// The numbers of frames of which it is not known that they arrived. An `accept` shows that `start` has.
    fn unconfirmed_numbers(&self) -> impl Iterator<Item = u64> {
        let accepted = self.first == Some(3);
        self.unconfirmed.iter().map(|frame| frame.number).filter(move |number| *number > 0 || !accepted)
    }

    fn has_again(&self) -> bool {
        self.unconfirmed.iter().any(|frame| frame.tag.is_none())
    }
}
