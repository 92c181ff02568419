//! One message on its way out: whole, or as a transfer that knows which frame it may send next.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::error::SendError;
use crate::machine::{Meta, Progress, Subject, Ticket};
use crate::message::Message;
use crate::rpc::{self, Kind};

use super::Config;
use super::book::{Key, Peer};
use super::cut::{Place, Plan};
use super::send::Desk;
use super::wire::Writer;

/// A message on its way out.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) ticket: Ticket,
    pub(super) message: Message,
    pub(super) meta: Meta,
    pub(super) kind: Kind,
    /// As it is written, when an answer is possible.
    pub(super) id: Option<Box<[u8]>>,
    /// What allows a transfer.
    pub(super) token: Option<Arc<str>>,
}

impl Outgoing {
    pub(super) fn key(&self) -> Option<Key> {
        self.token.as_deref().map(|token| Key::of_token(&self.meta.peer, token))
    }
}

/// A frame that was handed to the link.
#[derive(Debug)]
pub(super) enum Sending {
    Control(Bytes, Meta),
    Direct(Outgoing),
    Start(u64),
    Chunk(u64, Place),
    End(u64),
}

impl Sending {
    pub(super) const fn serial(&self) -> Option<u64> {
        match self {
            Self::Control(..) | Self::Direct(_) => None,
            Self::Start(serial) | Self::Chunk(serial, _) | Self::End(serial) => Some(*serial),
        }
    }
}

/// A message on its way out as a transfer.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) serial: u64,
    pub(super) what: Outgoing,
    pub(super) token: Arc<str>,
    pub(super) plan: Plan,
    /// `start` was handed to the link.
    pub(super) begun: bool,
    /// `start` arrived, as far as the link can tell.
    pub(super) confirmed: bool,
    /// The place of the first chunk, once chunks may go out.
    pub(super) first: Option<u64>,
    place: Place,
    /// Chunks handed over and not confirmed.
    pub(super) open: Vec<u64>,
    ended: bool,
    pub(super) due: Option<Duration>,
}

impl Transfer {
    /// A transfer of which nothing went out yet. Unless the peer is `known` to take it, chunks wait for `accept`.
    pub(super) fn new(serial: u64, what: Outgoing, token: Arc<str>, plan: Plan, known: bool) -> Self {
        Self {
            serial,
            what,
            token,
            plan,
            begun: false,
            confirmed: false,
            first: known.then_some(2),
            place: Place::default(),
            open: Vec::new(),
            ended: false,
            due: None,
        }
    }

    pub(super) fn is_with(&self, peer: &Peer) -> bool {
        self.what.meta.peer.is_none() || self.what.meta.peer == *peer
    }

    pub(super) fn is_for(&self, peer: &Peer, token: &str) -> bool {
        self.is_with(peer) && *self.token == *token
    }

    /// The next frame, if it may go out now.
    pub(super) fn next(&self, config: &Config) -> Option<Sending> {
        if !self.begun {
            return Some(Sending::Start(self.serial));
        }
        if !self.confirmed || self.first.is_none() {
            return None;
        }
        if self.place.index < self.plan.start.chunks {
            let window = u64::from(config.publish_window.max(1));
            let oldest = self.open.iter().min().copied().unwrap_or(self.place.index);
            let room = self.place.index.saturating_sub(oldest) < window;
            return room.then_some(Sending::Chunk(self.serial, self.place));
        }
        (self.open.is_empty() && !self.ended).then_some(Sending::End(self.serial))
    }

    /// Writes a frame, for the first time or again.
    pub(super) fn frame(&mut self, sending: &Sending, writer: &mut Writer, desk: &mut Desk<'_>) -> Bytes {
        self.refresh(desk);
        match sending {
            Sending::Chunk(_, place) => {
                let at = self.first.unwrap_or(2).saturating_add(place.index);
                let write = |out: &mut _| self.plan.write(&self.what.message, *place, out);
                let (bytes, next) = writer.chunk(&self.token, at, self.plan.frame, write);
                if next.index > self.place.index {
                    self.place = next;
                    self.open.push(place.index);
                    let (done, total) = (next.bytes, self.plan.start.bytes);
                    desk.outbox.progress(Progress { subject: Subject::Outgoing(self.what.ticket), done, total });
                }
                bytes
            }
            Sending::End(_) => {
                self.ended = true;
                writer.end(&self.token, self.after())
            }
            _ => {
                if self.first.is_none() {
                    self.due = Some(desk.time.read.saturating_add(desk.config.accept_timeout));
                }
                self.begun = true;
                writer.start(&self.token, 1, &self.plan.start)
            }
        }
    }

    pub(super) fn release(&mut self, first: u64, desk: &Desk<'_>) {
        if self.first.is_none() {
            self.first = Some(first);
            self.due = None;
            self.refresh(desk);
        }
    }

    /// Moves the time by which the link must have answered. How long an `accept` may take is not moved.
    pub(super) fn refresh(&mut self, desk: &Desk<'_>) {
        if desk.config.acks && self.first.is_some() {
            self.due = Some(desk.time.read.saturating_add(desk.config.soft_timeout));
        }
    }

    /// The place after all frames so far.
    pub(super) fn after(&self) -> u64 {
        self.first.unwrap_or(2).saturating_add(self.place.index)
    }
}

/// The error response for a message that could not be sent; it says how to allow a transfer where that would help.
pub(super) fn refusal(id: &[u8], error: &SendError) -> Message {
    let SendError::NoToken { size, limit } = error else {
        return rpc::send_failed(id, error);
    };
    let data = format!(r#"{{"reason":"messageTooLarge","size":{size},"limit":{limit}}}"#);
    rpc::error_response(id, rpc::MESSAGE_TOO_LARGE, &error.to_string(), Some(&data))
}
