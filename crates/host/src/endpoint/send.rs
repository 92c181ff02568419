//! What a connection sends: answers, entries of the log, and messages of the host; and how much of it is unsent.

use std::collections::HashMap;

use ahp_types::errors::json_rpc_error_codes::INTERNAL_ERROR;
use breakbulk_proto::{Input, Message, SendError, Ticket};
use bytes::Bytes;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::clients::HostMessage;
use super::coalesce::DelayedDelta;
use super::connection::{Connection, HandshakePhase};
use super::end_reason::EndReason;
use super::log_reader::Subscription;
use super::resume::is_truncation;
use super::shared_actions::MIN_SHARED_ACTION;
use super::wire;
use crate::error::MethodError;
use crate::log::{Entry, EntryKind, ReadError};

/// Messages that the machine has accepted and the link has not sent yet.
#[derive(Debug)]
pub(super) struct UnsentMessages {
    unsent: HashMap<Ticket, usize>,
    pub(super) bytes: usize,
    tickets: u64,
    /// When the link last sent anything, or last had nothing to send.
    pub(super) moved_at: Instant,
    /// The connection ends after this message, for this reason.
    pub(super) last: Option<(Ticket, EndReason)>,
}

impl UnsentMessages {
    pub(super) fn new(now: Instant) -> Self {
        Self { unsent: HashMap::new(), bytes: 0, tickets: 0, moved_at: now, last: None }
    }

    /// Whether everything is sent.
    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// How many messages are unsent.
    pub(super) fn len(&self) -> usize {
        self.unsent.len()
    }

    /// Gives a message of so many bytes a ticket.
    fn begin(&mut self, bytes: usize) -> Ticket {
        self.tickets = self.tickets.saturating_add(1);
        if self.unsent.is_empty() {
            self.moved_at = Instant::now();
        }
        self.unsent.insert(Ticket(self.tickets), bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        Ticket(self.tickets)
    }

    fn settle(&mut self, ticket: Ticket) {
        let bytes = self.unsent.remove(&ticket).unwrap_or(0);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Connection {
    /// Gives a message to the machine, which orders it.
    pub(super) fn send(&mut self, message: Message) -> Ticket {
        let ticket = self.unsent.begin(message.len());
        self.driver.handle(Input::send(ticket, message));
        ticket
    }

    /// Answers a request, if it has an id.
    pub(super) fn answer(&mut self, id: Option<&Bytes>, result: Result<Message, MethodError>) {
        let Some(id) = id else { return };
        let message = match result {
            Ok(result) => wire::response(id, &result),
            Err(_) if self.shared.log_is_fenced() => return,
            Err(error) => {
                self.shared.counts.add("endpoint-error-answers", 1);
                // The message of the error is left out: it may contain the client's own words.
                debug!(code = error.code, "a request failed");
                wire::failure(id, &error)
            }
        };
        self.send(message);
    }

    /// The link has sent a message.
    pub(super) fn sent(&mut self, ticket: Ticket) {
        self.unsent.settle(ticket);
        self.unsent.moved_at = Instant::now();
        if let Some((_, end)) = self.unsent.last.take_if(|(last, _)| *last == ticket) {
            self.end(end);
        }
    }

    /// A message cannot be sent. If it was an answer, the machine has answered with an error; if it was an action, the machine
    /// closes the connection.
    pub(super) fn not_sent(&mut self, ticket: Ticket, error: &SendError) {
        self.unsent.settle(ticket);
        if self.ending.is_some() || *error == SendError::Disconnected {
            return;
        }
        let (size, limit) = error.over().map_or((0, 0), |over| (over.size, over.limit));
        warn!(reason = error.name(), size, limit, "message not sent: {error}");
        let Some(client) = &mut self.client else { return };
        if let Some(waiter) = client.asked.remove(&ticket.0) {
            drop(waiter.send(Err(MethodError::new(INTERNAL_ERROR, error.to_string()))));
        }
        // The client did not get the answer to its handshake, and may try the other kind of handshake.
        if client.handshake_answer == ticket {
            self.client = None;
            let deadline = Instant::now() + self.shared.config.hello_time;
            self.handshake = HandshakePhase::Awaited { deadline };
        }
    }

    /// Sends the entries that were read, except for those that the client has.
    pub(super) fn pulled(&mut self, pulled: Result<Vec<Entry>, ReadError>) {
        let entries = match pulled {
            Ok(entries) => entries,
            Err(ReadError::Trimmed { .. }) => return self.end(EndReason::Trimmed),
            Err(error) => return self.end(EndReason::Log(error)),
        };
        self.is_behind = !entries.is_empty();
        for mut entry in entries {
            let wants = self.client.as_ref().is_some_and(|client| client.reader.wants(&entry));
            if wants && entry.body.len() > MIN_SHARED_ACTION {
                let reserved = self
                    .reserved
                    .take()
                    .map(|reservation| self.shared.actions.add(entry.seq, entry.body.clone(), reservation));
                let Some(body) = reserved.or_else(|| self.shared.actions.body(&self.memory, &entry)) else {
                    if let Some(client) = &mut self.client {
                        client.reader.rewind(entry.seq);
                    }
                    return self.block(&entry);
                };
                entry.body = body;
            }
            let subscription = self.client.as_mut().and_then(|client| client.reader.mark_delivered(&entry));
            let Some(Subscription { latency, is_windowed, .. }) = subscription else { continue };
            match entry.kind {
                EntryKind::SideChat | EntryKind::Unknown => {}
                // If the channel begins anew, the client has to subscribe again.
                EntryKind::Closed => {
                    if let Some(client) = &mut self.client {
                        client.reader.leave(&entry.channel);
                        self.shared.methods.unsubscribed(&client.info, &entry.channel);
                    }
                }
                EntryKind::Initial => return self.end(EndReason::Reset),
                // The turn that remains may be one that the client does not have: it needs a snapshot.
                EntryKind::Action if is_windowed && is_truncation(&entry) => return self.end(EndReason::Reset),
                EntryKind::Notification => {
                    self.flush();
                    self.send(wire::notice(&entry.body));
                }
                EntryKind::Action => {
                    let delayed = if latency.is_zero() { None } else { DelayedDelta::new(&entry, latency) };
                    if let Some(delayed) = delayed {
                        self.delay(delayed);
                    } else {
                        self.flush();
                        self.send_action(&entry.channel, entry.seq, &entry.body);
                    }
                }
            }
        }
    }

    fn delay(&mut self, delayed: DelayedDelta) {
        let most = self.message_limits().max;
        let apart = match &mut self.delayed {
            Some(earlier) => earlier.merge(delayed, most),
            None => Some(delayed),
        };
        if let Some(apart) = apart {
            self.flush();
            self.delayed = Some(apart);
        }
    }

    /// Sends the delayed delta. Everything that has a place in the order has to come after it.
    pub(super) fn flush(&mut self) {
        if let Some(delayed) = self.delayed.take() {
            let (seq, body) = delayed.into_entry();
            self.send(wire::action(seq, &body));
        }
    }

    /// Sends a request or a notification of the host.
    pub(super) fn send_host_message(&mut self, message: HostMessage) {
        let HostMessage { method, params, answer } = message;
        let id = self.unsent.tickets.saturating_add(1);
        if answer.is_none() {
            self.flush();
        }
        let ticket = self.send(wire::request(answer.as_ref().map(|_| id), &method, &params));
        if let (Some(client), Some(answer)) = (&mut self.client, answer) {
            // Requests that nobody waits for any more do not count against the limit.
            if client.asked.len() >= self.shared.config.max_asks {
                client.asked.retain(|_, waiter| !waiter.is_closed());
            }
            client.asked.insert(ticket.0, answer);
        }
    }
}
