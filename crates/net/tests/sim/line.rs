//! One end of a connection: a driver with its link, and the ledger's books of what it is handed and what it brings.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

use breakbulk::link::WebSocket;
use breakbulk::{AnyMachine, Driver, LinkError};
use breakbulk_proto::{CloseReason, Event, Input, Progress, SendError, Subject, Ticket, Violation};
use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until};

use crate::sim::ledger::Lane;
use crate::sim::sabotaged_link::SabotagedLink;
use crate::sim::shared::{DOWN, Shared, Stall, UP, tell};
use crate::sim::trace::front;
use crate::sim::wire::Wire;

/// The driver of this simulation: nothing in it is a model.
pub(crate) type Real = Driver<SabotagedLink<WebSocket<Wire>>, AnyMachine>;

/// A message that an application hands to its machine.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) text: String,
    pub(crate) lane: Lane,
}

/// What an application hears.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Something happened elsewhere.
    News,
    Message {
        text: Bytes,
        ordinal: u64,
    },
    Sent(u64),
    /// A message of ours was not sent; `reply` is for whoever asked.
    Failed {
        ticket: u64,
        reply: Option<Bytes>,
    },
    Closed,
}

/// One end of a connection.
pub(crate) struct Line {
    pub(crate) driver: Real,
    shared: Rc<Shared>,
    /// The direction that this end sends in.
    way: usize,
    peer: SocketAddr,
    /// The link, once it is known. The host knows it with the first message.
    id: Option<u64>,
    tickets: u64,
    /// How often it heard the bell.
    rings: u64,
    deaf_until: Option<Instant>,
    is_stalled: bool,
    /// Messages of which a part has arrived.
    open: BTreeSet<u64>,
    has_expired: bool,
    /// The host's connection, which goes with its line.
    connection: Option<u64>,
}

impl Line {
    /// A client's end.
    pub(crate) fn near(driver: Real, shared: &Rc<Shared>, peer: SocketAddr, id: u64) -> Self {
        Self::new(driver, shared, peer, UP, (Some(id), None))
    }

    /// The host's end, of which `connection` is kept as long as the line is.
    pub(crate) fn far(driver: Real, shared: &Rc<Shared>, peer: SocketAddr, connection: u64) -> Self {
        Self::new(driver, shared, peer, DOWN, (None, Some(connection)))
    }

    fn new(
        driver: Real,
        shared: &Rc<Shared>,
        peer: SocketAddr,
        way: usize,
        (id, connection): (Option<u64>, Option<u64>),
    ) -> Self {
        let (shared, open) = (Rc::clone(shared), BTreeSet::new());
        Self {
            driver,
            shared,
            way,
            peer,
            id,
            connection,
            tickets: 0,
            rings: 0,
            deaf_until: None,
            is_stalled: false,
            open,
            has_expired: false,
        }
    }

    /// Hands over a message: its ticket.
    pub(crate) fn send(&mut self, out: Out) -> u64 {
        self.tickets += 1;
        if let Some(id) = self.id {
            let ledger = &mut self.shared.facts.borrow_mut().books.ledger;
            ledger.handed((id, self.way), self.tickets, out.lane, out.text.as_bytes());
        }
        tell(|| format!("{} sends {} {}", self.about(), self.tickets, front(out.text.as_bytes())));
        self.driver.handle(Input::send(Ticket(self.tickets), out.text));
        self.tickets
    }

    /// What happens next. The end may be told to stop for a while first.
    pub(crate) async fn next(&mut self) -> Heard {
        loop {
            self.stall().await;
            let shared = Rc::clone(&self.shared);
            let (deaf, is_deaf) = (self.deaf_until.unwrap_or_else(Instant::now), self.deaf_until.is_some());
            let event = tokio::select! {
                biased;
                event = self.driver.next() => event,
                () = shared.rung(&mut self.rings) => return Heard::News,
                () = sleep_until(deaf), if is_deaf => {
                    self.deaf_until = None;
                    self.driver.set_reading(true);
                    self.note_stalled(false);
                    continue;
                }
            };
            let Some(event) = event else { return Heard::Closed };
            if let Some(heard) = self.take(event) {
                return heard;
            }
        }
    }

    /// Stops for a while, if it was told to.
    async fn stall(&mut self) {
        let Some(id) = self.id else { return };
        let stall = self.shared.facts.borrow_mut().stalls.remove(&(id, self.way));
        stall.into_iter().for_each(|stall| tell(|| format!("{} stops: {stall:?}", self.about())));
        match stall {
            Some(Stall::Still(time)) => {
                self.note_stalled(true);
                sleep(time).await;
                self.note_stalled(self.deaf_until.is_some());
            }
            Some(Stall::Deaf(time)) => {
                self.note_stalled(true);
                self.deaf_until = Some(Instant::now() + time);
                self.driver.set_reading(false);
            }
            None => {}
        }
    }

    fn note_stalled(&mut self, is_stalled: bool) {
        let stalled = &mut self.shared.facts.borrow_mut().stalled;
        *stalled -= u32::from(std::mem::replace(&mut self.is_stalled, is_stalled));
        *stalled += u32::from(is_stalled);
    }

    fn take(&mut self, event: Event) -> Option<Heard> {
        match event {
            Event::Message { message, ordinal, .. } => {
                let text = message.to_bytes();
                self.arrived(&text, ordinal);
                Some(Heard::Message { text, ordinal })
            }
            Event::Sent { ticket } => Some(Heard::Sent(ticket.0)),
            Event::SendFailed { ticket, error, reply } => {
                self.failed(ticket.0, &error);
                Some(Heard::Failed { ticket: ticket.0, reply: reply.map(|reply| reply.to_bytes()) })
            }
            Event::Progress(Progress { subject: Subject::Incoming(ordinal), .. }) => {
                self.note_open(|open| open.insert(ordinal));
                None
            }
            Event::Expired { ordinal, .. } => {
                self.has_expired = true;
                self.note_open(|open| open.remove(&ordinal));
                self.shared.facts.borrow_mut().books.tally.one("groups expired");
                None
            }
            Event::Closed(reason) => {
                self.closed(&reason);
                Some(Heard::Closed)
            }
            _ => None,
        }
    }

    fn about(&self) -> String {
        let end = if self.way == UP { "client" } else { "host" };
        format!("{end} of link {}", self.id.map_or_else(|| "?".into(), |id| id.to_string()))
    }

    fn arrived(&mut self, text: &Bytes, ordinal: u64) {
        tell(|| format!("{} hears {ordinal} {}", self.about(), front(text)));
        self.note_open(|open| open.remove(&ordinal));
        let mut facts = self.shared.facts.borrow_mut();
        if self.id.is_none() {
            self.id = facts.link_of(self.peer);
            self.id.into_iter().for_each(|id| facts.came(id));
        }
        facts.books.tally.one("messages received");
        facts.books.tally.add("bytes received", text.len() as u64);
        let id = self.id.unwrap_or(0);
        facts.imprint([id, self.way as u64, ordinal, text.len() as u64]);
        // An answer that a machine made in place of one that it could not send is in no book.
        if !is_refusal(text) {
            facts.books.ledger.arrived((id, 1 - self.way), ordinal, text);
        }
    }

    fn failed(&self, ticket: u64, error: &SendError) {
        let mut facts = self.shared.facts.borrow_mut();
        facts.books.tally.one(error.name());
        if let Some(id) = self.id {
            facts.books.ledger.failed((id, self.way), ticket);
        }
        if matches!(error, SendError::NoSegments(_) | SendError::TooLarge(_) | SendError::TooManySegments(_)) {
            facts.books.ledger.lost(format!("a message was refused that its peer takes: {error}"));
        }
    }

    fn note_open(&mut self, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        change(&mut self.open);
        let Some(id) = self.id.filter(|_| self.way == UP) else { return };
        let inside = &mut self.shared.facts.borrow_mut().inside;
        if self.open.is_empty() {
            inside.remove(&id)
        } else {
            inside.insert(id)
        };
    }

    /// Nobody here breaks a rule, so nobody may be accused; only a segment of a group that expired comes too late.
    fn closed(&self, reason: &CloseReason) {
        tell(|| format!("{} closed: {reason}, {:?}", self.about(), self.driver.failure()));
        let mut facts = self.shared.facts.borrow_mut();
        facts.books.tally.one(reason.name());
        facts.books.tally.one("drops");
        facts.books.tally.add("drops inside a group", (!self.open.is_empty()).into());
        facts.imprint([self.id.unwrap_or(0), self.way as u64, u64::MAX, reason.code().into()]);
        let is_late = |violation: &Violation| self.has_expired && matches!(violation, Violation::GroupUnknown { .. });
        match (reason, self.driver.failure()) {
            (CloseReason::Violation(violation), _) if !is_late(violation) => {
                facts.books.ledger.altered(format!("an honest peer is accused: {violation}"));
            }
            (_, Some(LinkError::Silent(_))) => facts.books.tally.one("peers given up as silent"),
            (_, Some(failure @ (LinkError::Protocol(_) | LinkError::NotUtf8 | LinkError::FrameTooLarge(_)))) => {
                facts.books.ledger.altered(format!("an honest link is accused: {failure}"));
            }
            _ => {}
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // A panic may have left the facts borrowed; then it is told, and not this.
        let Ok(mut facts) = self.shared.facts.try_borrow_mut() else { return };
        if let Some(connection) = self.connection.take() {
            facts.stand_up(connection);
        }
        if let Some(id) = self.id.take() {
            facts.went(id, self.way);
        }
        facts.stalled -= u32::from(self.is_stalled);
    }
}

/// Whether a machine made this answer, because the real one could not be sent.
fn is_refusal(text: &[u8]) -> bool {
    text.len() < 1000 && text.windows(8).any(|part| part == br#""error":"#)
}
