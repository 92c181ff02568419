//! The receiving half: a frame is a part of a transfer, or a whole message for the application.

use std::time::Instant;

use bytes::Bytes;

use crate::envelope::Kind;
use crate::error::{Over, Violation};
use crate::error_responses::{ErrorResponses, Recipient};
use crate::json;
use crate::machine::{Event, Meta};
use crate::message::{Edit, len64};
use crate::rpc::IdKey;
use crate::salvage::Salvage;

use super::Connection;
use super::incoming_transfer::{IncomingTransfer, TransferHeader};
use super::records::{Key, Peer, may_be};
use super::wire::{ABORT, FRAME_TYPE, ParsedMessage, Start, TOKEN, quick_chunk};

impl Connection {
    /// Takes a frame: a part of a transfer, or a whole message. A bad frame fails, and the connection goes on.
    pub(super) fn frame(&mut self, bytes: Bytes, meta: &Meta, now: Instant) {
        if meta.supports_parts {
            self.learn(&meta.peer);
        }
        // A relay may deliver a frame again much later, when its token is in use for something else.
        if !self.records.note_frame(meta) {
            return self.events.count("frame-twice");
        }
        if let Err(violation) = self.read_frame(bytes.clone(), meta, now) {
            self.refuse(&bytes, meta, violation);
        }
    }

    /// A frame is not a valid message, and may be a batch. If it was meant as a request, its sender gets an error; if as an answer, the
    /// caller here does.
    fn refuse(&mut self, bytes: &[u8], meta: &Meta, violation: Violation) {
        let (mut callers, mut refused) = (Vec::new(), Vec::new());
        for Salvage { kind, id } in Salvage::read(bytes) {
            let Some(id) = id else { continue };
            let waits = match kind {
                Kind::Request | Kind::Notification => None,
                Kind::Response | Kind::Other => self.records.answer(Key::of(&meta.peer, IdKey::of(&id))),
            };
            match (kind, waits) {
                // A caller that already has an answer gets no second one.
                (_, Some(false)) => {}
                (Kind::Response, _) | (_, Some(true)) => callers.push(id),
                _ => refused.push(id),
            }
        }
        let errors =
            |recipient, ids: &[Bytes]| ErrorResponses::new(recipient, violation.clone(), ids.iter().map(|id| &id[..]));
        let (callers, refused) = (errors(Recipient::Caller, &callers), errors(Recipient::Peer, &refused));
        self.refuse_requests(refused, meta);
        self.events.callers_failed(&mut self.ordinal, violation, callers);
    }

    /// Gives up transfers that took too long, and those that the budget evicted.
    pub(super) fn sweep_arrivals(&mut self) {
        let lost = |(key, open): (&Key, &IncomingTransfer)| Some((open.header.ordinal, *key, open.lost(self.read)?));
        let mut lost: Vec<_> = self.arriving.iter().filter_map(lost).collect();
        lost.sort_unstable_by_key(|(ordinal, ..)| *ordinal);
        lost.into_iter().for_each(|(_, key, violation)| self.fail_transfer(key, violation));
    }

    /// The input has ended: no transfer that is arriving can finish.
    pub(super) fn end_arrivals(&mut self) {
        let open = |(key, open): (&Key, &IncomingTransfer)| (open.header.ordinal, *key, open.progress().done);
        let mut open: Vec<_> = self.arriving.iter().map(open).collect();
        open.sort_unstable_by_key(|(ordinal, ..)| *ordinal);
        open.into_iter().for_each(|(_, key, received)| self.fail_transfer(key, Violation::InputEnded(received)));
    }

    fn read_frame(&mut self, bytes: Bytes, meta: &Meta, now: Instant) -> Result<(), Violation> {
        Over::check(len64(bytes.len()), self.config.limits.max_frame_bytes).map_err(Violation::FrameTooLarge)?;
        simdutf8::basic::from_utf8(&bytes).map_err(|_| Violation::FrameNotUtf8)?;
        if let Some((token, at, inside)) = quick_chunk(&bytes) {
            let key = Key::of(&meta.peer, Some(token));
            match self.chunk(key, at, inside, now) {
                // It is not the chunk that it seemed to be, so it is parsed below.
                Err(Violation::MessageNotUtf8) => {}
                Err(violation) => {
                    self.fail_transfer(key, violation);
                    return Ok(());
                }
                Ok(()) => return Ok(()),
            }
        }
        let text = ParsedMessage::arrived(bytes.into(), self.config.limits.max_depth)?;
        if text.is_part() {
            self.part(&text, meta, now);
        } else if text.envelope.kind() == Kind::Other {
            return Err(Violation::MessageNotJsonRpc);
        } else {
            let ordinal = self.next_ordinal();
            self.deliver(&text, ordinal, meta.clone());
        }
        Ok(())
    }

    fn part(&mut self, text: &ParsedMessage, meta: &Meta, now: Instant) {
        let Some((_, token)) = text.token(TOKEN) else {
            return self.events.count("part-without-token");
        };
        let key = Key::of(&meta.peer, Some(&*token));
        let (kind, place) = (text.string(FRAME_TYPE), text.place());
        let highest = place.as_ref().copied().unwrap_or(1);
        let header = TransferHeader { ordinal: 0, token: token.into(), meta: meta.clone(), highest };
        let done = match (kind.as_str(), place) {
            ("accept", _) => return self.accepted(key, meta),
            ("abort", _) => return self.aborted(key, meta),
            ("start" | "chunk" | "end", Err(violation)) => Err(violation),
            ("start", Ok(_)) => text.start().and_then(|start| self.start(key, header.clone(), start, now)),
            ("chunk", Ok(at)) => text.data().and_then(|inside| self.chunk(key, at, &inside, now)),
            ("end", Ok(at)) => return self.end(key, at, meta),
            _ => return self.events.count("part-unknown"),
        };
        match done {
            Ok(()) => {}
            Err(violation) if self.arriving.contains_key(&key) => self.fail_transfer(key, violation),
            Err(violation) if kind == "start" => {
                let ordinal = self.next_ordinal();
                self.report(key, &TransferHeader { ordinal, ..header }, violation);
            }
            Err(_) => self.events.count("part-of-no-transfer"),
        }
    }

    fn start(&mut self, key: Key, header: TransferHeader, start: Start, now: Instant) -> Result<(), Violation> {
        let at = header.highest;
        if let Some(open) = self.arriving.get_mut(&key) {
            // Either of the two `start` frames may be an old one that was delivered late. The sender does not know which one we have, so
            // both transfers are aborted.
            let is_other = open.header.meta.id != header.meta.id;
            if open.start == start && open.first == at {
                open.header.meta = header.meta;
                return Ok(());
            } else if is_other {
                self.answer(&header, ABORT, &Violation::TransferInFlight.to_string());
            }
            return Err(Violation::TransferInFlight);
        }
        self.admit(&start, &header.meta.peer)?;
        let mut arrival = IncomingTransfer::begin(header, start, (&self.config, &self.account), (now, self.read))?;
        arrival.header.ordinal = self.next_ordinal();
        let header = arrival.header.clone();
        self.arriving.insert(key, arrival);
        self.learn(&header.meta.peer);
        // If it answers a request of ours, that request has told the peer that we take transfers: no `accept` is needed.
        if self.records.sent_requests.get(key).is_none() {
            self.answer(&header, "accept", "");
        }
        Ok(())
    }

    fn admit(&self, start: &Start, peer: &Peer) -> Result<(), Violation> {
        Over::check(start.bytes, self.config.limits.max_message_bytes).map_err(Violation::MessageTooLarge)?;
        Over::check(start.chunks, self.config.max_chunks).map_err(Violation::TooManyChunks)?;
        let own = self.arriving.values().filter(|open| open.header.meta.peer == *peer).count();
        let open = [(own, self.config.max_transfers), (self.arriving.len(), self.config.max_transfers_in_all)];
        let full = open.into_iter().find(|(open, limit)| len64(*open) >= u64::from(*limit));
        full.map_or(Ok(()), |(_, limit)| Err(Violation::TooManyTransfers(limit)))
    }

    /// Takes a chunk. `inside` is the inside of its string, still escaped. If it is not, nothing is changed.
    fn chunk(&mut self, key: Key, at: u64, inside: &[u8], now: Instant) -> Result<(), Violation> {
        let Some(arrival) = self.arriving.get_mut(&key) else {
            self.events.count("part-of-no-transfer");
            return Ok(());
        };
        self.scratch.resize(inside.len().max(self.scratch.len()), 0);
        let len = json::unescape(&mut self.scratch, inside).ok_or(Violation::MessageNotUtf8)?;
        arrival.soft = self.read.saturating_add(self.config.soft_timeout);
        arrival.chunk(at, self.scratch.get(..len).unwrap_or_default(), now)?;
        self.events.push_progress(arrival.progress());
        Ok(())
    }

    fn end(&mut self, key: Key, at: u64, meta: &Meta) {
        let Some(arrival) = self.arriving.remove(&key) else {
            return self.events.count("part-of-no-transfer");
        };
        let mut header = arrival.header.clone();
        header.highest = header.highest.max(at);
        match arrival.finish(at) {
            Ok(text) => self.deliver(&text, header.ordinal, meta.clone()),
            Err(violation) => self.report(key, &header, violation),
        }
    }

    /// The peer sent an `abort`: of a transfer that it was sending, of one that it was receiving, or of a request that it had
    /// received whole.
    ///
    /// An `abort` may come late, when its token is in use for something else. So it refers to a frame: that of a receiver to the
    /// first frame of the transfer, that of a sender to the request that the transfer answers, or to the first frame.
    fn aborted(&mut self, key: Key, meta: &Meta) {
        let about = &meta.about;
        let ours = self.abort_own(key, about);
        let is_theirs = |Meta { id, about: of, .. }: &Meta| may_be(id, about) || of.is_some() && of == about;
        let theirs = self.arriving.get(&key).is_some_and(|open| is_theirs(&open.header.meta));
        let theirs = if theirs { self.arriving.remove(&key) } else { None };
        let is_asked =
            theirs.is_some() || self.records.sent_requests.get(key).is_some_and(|asked| may_be(&asked.began, about));
        let reply = if is_asked { self.records.fail_asked(key, &Violation::Aborted) } else { None };
        let ordinal = match theirs {
            Some(arrival) => arrival.header.ordinal,
            None if reply.is_some() => self.next_ordinal(),
            None if ours => return,
            None => return self.events.count("part-of-no-transfer"),
        };
        self.events.receive_failed(ordinal, Violation::Aborted, reply);
    }

    /// Delivers a whole message to the application.
    fn deliver(&mut self, text: &ParsedMessage, ordinal: u64, meta: Meta) {
        if !self.records.note_received(text, &meta) {
            return self.events.count("answer-twice");
        }
        let mut edit = Edit::default();
        if text.is_progress()
            && let Some((span, token)) = text.token(TOKEN)
            && let Some(asked) = self.records.sent_requests.get(Key::of(&meta.peer, Some(&*token)))
        {
            if asked.injected {
                return self.events.count("progress-swallowed");
            }
            if *text.message.read(span) != *asked.token {
                edit = Edit::replace(span, asked.token.clone());
            }
        }
        let (message, envelope) = (edit.apply(&text.message), Box::new(text.envelope.after(&edit)));
        self.events.push(Event::Message { message, envelope, ordinal, meta });
    }

    /// A transfer has broken a rule, or taken too long.
    fn fail_transfer(&mut self, key: Key, violation: Violation) {
        if let Some(IncomingTransfer { header, .. }) = self.arriving.remove(&key) {
            self.report(key, &header, violation);
        }
    }

    /// Tells the peer and the application that a transfer failed, or was refused.
    fn report(&mut self, key: Key, header: &TransferHeader, violation: Violation) {
        let ordinal = header.ordinal;
        let reply = self.records.fail_asked(key, &violation);
        self.answer(header, ABORT, &violation.to_string());
        if let Violation::TimedOut(received) = violation {
            self.events.push(Event::Expired { ordinal, received });
            // The caller of a request still needs an answer.
            if reply.is_none() {
                return self.events.count(violation.name());
            }
        }
        self.events.receive_failed(ordinal, violation, reply);
    }

    /// Answers a transfer, with a reference to its `start` frame.
    fn answer(&mut self, header: &TransferHeader, kind: &str, text: &str) {
        let bytes = self.queues.writer.text((&header.token, header.highest.saturating_add(1)), kind, text);
        let Meta { peer, id: about, .. } = header.meta.clone();
        self.control(bytes, Meta { peer, about, ..Meta::default() });
    }

    const fn next_ordinal(&mut self) -> u64 {
        let ordinal = self.ordinal;
        self.ordinal = ordinal.saturating_add(1);
        ordinal
    }
}
