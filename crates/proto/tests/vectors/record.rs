//! What happened: everything that came out of a machine, and the promises that hold whatever it is.

use std::collections::BTreeMap;

use breakbulk_proto::{CloseReason, Envelope, Event, Meta, Progress, SendError, Ticket, Transmit, Violation};
use bytes::Bytes;

/// Everything that came out since the last look.
#[derive(Default)]
pub(super) struct Record {
    pub(super) messages: Vec<Arrived>,
    pub(super) frames: Vec<Bytes>,
    pub(super) frame_metas: Vec<Meta>,
    pub(super) sent: Vec<u64>,
    pub(super) progress: Vec<Progress>,
    pub(super) failed: Vec<(u64, SendError, Option<Vec<u8>>)>,
    pub(super) refused: Vec<(u64, Violation, Option<Vec<u8>>)>,
    pub(super) expired: Vec<(u64, u64)>,
    pub(super) lines: Vec<Bytes>,
    pub(super) closed: Option<CloseReason>,
}

/// A message that reached the application.
pub(super) struct Arrived {
    pub(super) ordinal: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) envelope: Box<Envelope>,
    pub(super) meta: Meta,
}

/// What must hold over the whole life of one connection.
#[derive(Default)]
pub(super) struct Promises {
    /// Tickets of messages that were sent or have failed.
    ended: BTreeMap<u64, &'static str>,
    told_link: Option<CloseReason>,
    told_application: Option<CloseReason>,
    broken: Vec<String>,
}

impl Promises {
    pub(super) fn transmit(&mut self, transmit: Transmit, record: &mut Record) {
        if let Some(reason) = &self.told_link {
            self.broken.push(format!("something is transmitted after the close ({reason})"));
        }
        match transmit {
            Transmit::Frame { bytes, meta, .. } => {
                record.frames.push(bytes.to_bytes());
                record.frame_metas.push(meta);
            }
            Transmit::Close(reason) => self.told_link = Some(reason),
        }
    }

    pub(super) fn event(&mut self, event: Event, record: &mut Record) {
        // What is sent after the close fails, and is told.
        let is_late = !matches!(event, Event::SendFailed { error: SendError::Disconnected, .. });
        if let Some(reason) = self.told_application.as_ref().filter(|_| is_late) {
            self.broken.push(format!("an event comes after the close ({reason}): {event:?}"));
        }
        let plain = |message: breakbulk_proto::Message| message.to_bytes().to_vec();
        match event {
            Event::Message { message, envelope, ordinal, meta } => {
                record.messages.push(Arrived { ordinal, bytes: plain(message), envelope, meta });
            }
            Event::Sent { ticket } => {
                self.end(ticket, "sent");
                record.sent.push(ticket.0);
            }
            Event::SendFailed { ticket, error, reply } => {
                self.end(ticket, "failed");
                record.failed.push((ticket.0, error, reply.map(plain)));
            }
            Event::ReceiveFailed { ordinal, violation, reply } => {
                record.refused.push((ordinal, violation, reply.map(plain)));
            }
            Event::Expired { ordinal, received } => record.expired.push((ordinal, received)),
            Event::Line(line) => record.lines.push(line),
            Event::Closed(reason) => {
                record.closed = Some(reason.clone());
                self.told_application = Some(reason);
            }
            Event::Progress(progress) => {
                if progress.done > progress.total {
                    self.broken.push(format!("more is done than there is: {progress:?}"));
                }
                record.progress.push(progress);
            }
            other => self.broken.push(format!("no case knows of {other:?}")),
        }
    }

    /// A promise about the outside is broken.
    pub(super) fn break_with(&mut self, how: String) {
        self.broken.push(how);
    }

    /// What was promised and not kept. Both polls were drained before.
    pub(super) fn broken(&self) -> Vec<String> {
        let mut broken = self.broken.clone();
        if self.told_link != self.told_application {
            let (link, application) = (&self.told_link, &self.told_application);
            broken.push(format!("the link was told {link:?}, the application {application:?}"));
        }
        broken
    }

    /// Whether the link was told to close.
    pub(super) const fn is_closed(&self) -> bool {
        self.told_link.is_some()
    }

    fn end(&mut self, ticket: Ticket, how: &'static str) {
        if let Some(before) = self.ended.insert(ticket.0, how) {
            self.broken.push(format!("message {} is {how}, but it was {before} already", ticket.0));
        }
    }
}
