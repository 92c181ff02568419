//! The order in which messages reach the application: as they finish, or only when all that began before them have finished.

use std::collections::{BTreeMap, BTreeSet};

use super::cursor::Cursor;
use crate::budget::Grant;
use crate::envelope::Envelope;
use crate::error::{CloseReason, Over};
use crate::machine::{Event, Meta};
use crate::message::{Message, len64};

/// When ordered messages are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// As soon as they have finished. For applications that resume from [`Connection::cursor`](super::Connection::cursor), and skip
    /// what they have applied already (see [`Applied`](super::Applied)).
    Settled,
    /// When all messages that began before them have finished. For applications that use the highest seq that they saw as their
    /// cursor.
    #[default]
    StartOrder,
}

/// How long an arrived message is charged to the account of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Charge {
    /// Until it is polled. The application charges what it keeps to an account of its own.
    #[default]
    UntilPolled,
    /// Until the application is done with it. It takes over the grant
    /// ([`Connection::take_grant`](super::Connection::take_grant)), and drops it together with the last copy of the message.
    UntilDone,
}

/// Messages from their first frame until the application has them.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    delivery: Delivery,
    pub(super) cursor: Cursor<Option<Undelivered>>,
    /// Messages that have begun and not finished.
    unfinished: BTreeSet<u64>,
    /// Messages that have finished, and wait for earlier ones. Boxed, because a node of the map allocates eleven entries, and few
    /// messages are ever held back.
    held: BTreeMap<u64, Box<FinishedMessage>>,
    held_bytes: u64,
    max_held_bytes: u64,
}

/// A message that waits for the driver to poll it.
#[derive(Debug)]
pub(super) struct Undelivered {
    seq: Option<u64>,
    grant: Option<Grant>,
}

/// A message that has arrived whole.
#[derive(Debug)]
pub(super) struct FinishedMessage {
    pub(super) message: Message,
    pub(super) envelope: Box<Envelope>,
    /// Whether start-order delivery holds it back until all that began before it are done.
    pub(super) is_ordered: bool,
    pub(super) grant: Option<Grant>,
}

impl Arrivals {
    pub(super) fn new(delivery: Delivery, max_held_bytes: u64) -> Self {
        Self { delivery, max_held_bytes, ..Self::default() }
    }

    /// A message begins. Returns its ordinal.
    pub(super) fn begin(&mut self) -> u64 {
        let ordinal = self.cursor.begin(None);
        self.unfinished.insert(ordinal);
        ordinal
    }

    /// Whether a message has to wait for one that began before it.
    pub(super) fn must_hold(&self, ordinal: u64, is_ordered: bool) -> bool {
        let blocked = self.unfinished.first().is_some_and(|oldest| *oldest < ordinal);
        self.delivery == Delivery::StartOrder && is_ordered && blocked
    }

    /// A message has finished. `release` gets the events of all messages that may be delivered now.
    ///
    /// # Errors
    /// More would be held back than is allowed. Then nothing is delivered.
    pub(super) fn finish(
        &mut self,
        ordinal: u64,
        finished: FinishedMessage,
        mut release: impl FnMut(Event),
    ) -> Result<(), CloseReason> {
        self.unfinished.remove(&ordinal);
        if self.must_hold(ordinal, finished.is_ordered) {
            let held = self.held_bytes.saturating_add(len64(finished.message.len()));
            if held > self.max_held_bytes {
                return Err(CloseReason::HeldTooMuch(Over { size: held, limit: self.max_held_bytes }));
            }
            self.held_bytes = held;
            self.held.insert(ordinal, Box::new(finished));
        } else {
            release(self.queue(ordinal, finished));
        }
        while let Some((oldest, _)) = self.held.first_key_value()
            && !self.must_hold(*oldest, true)
            && let Some((ordinal, finished)) = self.held.pop_first()
        {
            self.held_bytes = self.held_bytes.saturating_sub(len64(finished.message.len()));
            release(self.queue(ordinal, *finished));
        }
        Ok(())
    }

    /// A message is given up, so it never settles. With start-order delivery nothing could be delivered after it, so the link has
    /// to close.
    pub(super) fn expire(&mut self, ordinal: u64) -> bool {
        self.unfinished.remove(&ordinal);
        self.delivery == Delivery::StartOrder
    }

    /// The driver has polled this message. Returns its memory.
    pub(super) fn delivered(&mut self, ordinal: u64) -> Option<Grant> {
        let queued = self.cursor.get_mut(ordinal).and_then(Option::take);
        let (seq, grant) = queued.map_or((None, None), |queued| (queued.seq, queued.grant));
        self.cursor.deliver(ordinal, seq);
        grant
    }

    /// Drops the messages that are held back. After a close they are not delivered.
    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
    }

    fn queue(&mut self, ordinal: u64, finished: FinishedMessage) -> Event {
        if let Some(place) = self.cursor.get_mut(ordinal) {
            *place = Some(Undelivered { seq: finished.envelope.seq(), grant: finished.grant });
        }
        let FinishedMessage { message, envelope, .. } = finished;
        Event::Message { message, envelope, ordinal, meta: Meta::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::AhpMembers;

    fn finished(seq: u64, is_ordered: bool) -> FinishedMessage {
        let message = Message::from("0123456789");
        let action = Message::from(r#"{"jsonrpc":"2.0","method":"action"}"#);
        let members = AhpMembers { seq: Some(seq), ..AhpMembers::default() };
        let envelope = Box::new(Envelope::of(&action).unwrap().with_ahp(members));
        FinishedMessage { message, envelope, is_ordered, grant: None }
    }

    /// The events that go out when a message is whole.
    fn finish(arrivals: &mut Arrivals, ordinal: u64, finished: FinishedMessage) -> Result<Vec<Event>, CloseReason> {
        let mut events = Vec::new();
        arrivals.finish(ordinal, finished, |event| events.push(event)).map(|()| events)
    }

    fn ordinals(events: &[Event]) -> Vec<u64> {
        let ordinal = |event: &Event| match event {
            Event::Message { ordinal, .. } => *ordinal,
            other => panic!("{other:?}"),
        };
        events.iter().map(ordinal).collect()
    }

    fn begun(delivery: Delivery, count: u64) -> Arrivals {
        let mut arrivals = Arrivals::new(delivery, 20);
        (0..count).for_each(|ordinal| assert_eq!(arrivals.begin(), ordinal));
        arrivals
    }

    #[test]
    fn start_order_holds_ordered_messages_until_all_before_them_are_done() {
        let mut arrivals = begun(Delivery::StartOrder, 5);
        assert!(finish(&mut arrivals, 2, finished(7, true)).unwrap().is_empty());
        assert_eq!(ordinals(&finish(&mut arrivals, 3, finished(0, false)).unwrap()), [3]);
        assert_eq!(ordinals(&finish(&mut arrivals, 0, finished(5, true)).unwrap()), [0]);
        assert!(finish(&mut arrivals, 4, finished(9, true)).unwrap().is_empty());
        assert_eq!(ordinals(&finish(&mut arrivals, 1, finished(6, true)).unwrap()), [1, 2, 4]);
        assert_eq!(arrivals.held_bytes, 0);
    }

    #[test]
    fn settled_delivery_holds_nothing_and_its_cursor_waits() {
        let mut arrivals = begun(Delivery::Settled, 2);
        assert_eq!(ordinals(&finish(&mut arrivals, 1, finished(6, true)).unwrap()), [1]);
        arrivals.delivered(1);
        assert_eq!((arrivals.cursor.seq(), arrivals.cursor.settled()), (None, 0));
        assert_eq!(ordinals(&finish(&mut arrivals, 0, finished(5, true)).unwrap()), [0]);
        assert_eq!(arrivals.cursor.seq(), None, "not polled yet");
        arrivals.delivered(0);
        assert_eq!((arrivals.cursor.seq(), arrivals.cursor.settled()), (Some(6), 2));
    }

    #[test]
    fn the_link_closes_before_more_is_held_than_allowed() {
        let mut arrivals = begun(Delivery::StartOrder, 4);
        finish(&mut arrivals, 1, finished(1, true)).unwrap();
        finish(&mut arrivals, 2, finished(2, true)).unwrap();
        let reason = finish(&mut arrivals, 3, finished(3, true)).unwrap_err();
        assert_eq!(reason, CloseReason::HeldTooMuch(Over { size: 30, limit: 20 }));
    }

    #[test]
    fn an_expired_group_closes_the_link_in_start_order_and_pins_the_cursor() {
        let mut arrivals = begun(Delivery::StartOrder, 2);
        assert!(arrivals.expire(0));
        let mut arrivals = begun(Delivery::Settled, 2);
        assert!(!arrivals.expire(0));
        finish(&mut arrivals, 1, finished(6, true)).unwrap();
        arrivals.delivered(1);
        assert_eq!((arrivals.cursor.seq(), arrivals.cursor.settled()), (None, 0));
    }

    #[test]
    fn what_is_held_is_dropped_and_not_released() {
        let mut arrivals = begun(Delivery::StartOrder, 3);
        finish(&mut arrivals, 1, finished(1, true)).unwrap();
        arrivals.clear();
        assert_eq!(ordinals(&finish(&mut arrivals, 0, finished(0, true)).unwrap()), [0]);
    }
}
