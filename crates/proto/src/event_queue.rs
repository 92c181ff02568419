//! What a machine reports: events in order, the newest progress of each message, counters, and one close.

use std::collections::VecDeque;

use crate::envelope::Envelope;
use crate::error::{CloseReason, Counters, SendError, Violation};
use crate::error_responses::ErrorResponses;
use crate::machine::{Event, Meta, Progress, Subject, Ticket};
use crate::message::{Message, len64};

/// Events that wait for the driver to poll them. Every dialect has one.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: VecDeque<PendingEvent>,
    /// At most one per message, oldest first.
    progress: VecDeque<Progress>,
    close: Option<Close>,
    counters: Counters,
}

/// An event, or several, that wait to be polled.
#[derive(Debug)]
enum PendingEvent {
    Event(Event),
    /// Error responses for our own callers. Each is delivered as a message; the first has this ordinal.
    Callers {
        ordinal: u64,
        errors: ErrorResponses,
    },
}

/// A close that the link, the application or both have yet to poll.
#[derive(Debug)]
struct Close {
    for_link: Option<CloseReason>,
    for_application: Option<CloseReason>,
}

impl EventQueue {
    /// Adds an event. If it ends a message, progress of that message is dropped. Once the application has polled `Closed`,
    /// the only events are failures of messages that it sends after that: every ticket gets its `Sent` or `SendFailed`.
    pub(crate) fn push(&mut self, event: Event) {
        if self.is_over() && !matches!(event, Event::SendFailed { .. }) {
            return;
        }
        if let Some(ended) = ends(&event) {
            self.progress.retain(|progress| progress.subject != ended);
        }
        self.enqueue(PendingEvent::Event(event));
    }

    fn enqueue(&mut self, waiting: PendingEvent) {
        // Most connections never have more than one event waiting, and are idle most of the time.
        if self.events.capacity() == 0 {
            self.events.reserve_exact(1);
        }
        self.events.push_back(waiting);
    }

    /// Whether the application has polled `Closed`.
    fn is_over(&self) -> bool {
        self.close.as_ref().is_some_and(|close| close.for_application.is_none())
    }

    /// Reports how far a message has come. Replaces an earlier report that was not polled yet.
    pub(crate) fn push_progress(&mut self, progress: Progress) {
        if self.is_closed() {
            return;
        }
        match self.progress.iter_mut().find(|older| older.subject == progress.subject) {
            Some(older) => *older = progress,
            None => self.progress.push_back(progress),
        }
    }

    /// Counts one occurrence of a named reason.
    pub(crate) fn count(&mut self, name: &'static str) {
        self.counters.add(name);
    }

    /// Reports and counts a message of ours that is not sent.
    pub(crate) fn send_failed(&mut self, ticket: Ticket, error: SendError, reply: Option<Message>) {
        self.count(error.name());
        self.push(Event::SendFailed { ticket, error, reply });
    }

    /// Reports and counts a message of the peer's that failed alone.
    pub(crate) fn receive_failed(&mut self, ordinal: u64, violation: Violation, reply: Option<Message>) {
        self.count(violation.name());
        self.push(Event::ReceiveFailed { ordinal, violation, reply });
    }

    /// Reports and counts answers that failed together: one failure, with the error for the first caller here. The errors for the
    /// others follow as messages, because an event has one reply. `ordinals` is the next ordinal; each event takes one.
    pub(crate) fn callers_failed(&mut self, ordinals: &mut u64, violation: Violation, mut errors: ErrorResponses) {
        self.receive_failed(*ordinals, violation, errors.next());
        let (ordinal, count) = (ordinals.saturating_add(1), len64(errors.len()));
        *ordinals = ordinal.saturating_add(count);
        if count > 0 && !self.is_over() {
            self.enqueue(PendingEvent::Callers { ordinal, errors });
        }
    }

    /// Ends the connection. The first reason stays.
    pub(crate) fn close(&mut self, reason: CloseReason) {
        if self.is_closed() {
            return;
        }
        self.count(reason.name());
        self.progress.clear();
        self.close = Some(Close { for_link: Some(reason.clone()), for_application: Some(reason) });
    }

    /// Whether [`close`](Self::close) was called.
    pub(crate) const fn is_closed(&self) -> bool {
        self.close.is_some()
    }

    /// Why to close the link. Returned once.
    pub(crate) fn poll_transmit_close(&mut self) -> Option<CloseReason> {
        self.close.as_mut()?.for_link.take()
    }

    /// The next event: those that happened, in order, then progress, then the close.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self.poll_waiting();
        let event = event.or_else(|| self.progress.pop_front().map(Event::Progress));
        event.or_else(|| self.close.as_mut()?.for_application.take().map(Event::Closed))
    }

    fn poll_waiting(&mut self) -> Option<Event> {
        loop {
            let (ordinal, mut errors) = match self.events.pop_front()? {
                PendingEvent::Event(event) => return Some(event),
                PendingEvent::Callers { ordinal, errors } => (ordinal, errors),
            };
            let Some(message) = errors.next() else { continue };
            if errors.len() > 0 {
                self.events.push_front(PendingEvent::Callers { ordinal: ordinal.saturating_add(1), errors });
            }
            if let Ok(envelope) = Envelope::of(&message) {
                return Some(Event::Message { message, envelope: Box::new(envelope), ordinal, meta: Meta::default() });
            }
        }
    }

    /// How often each named reason occurred.
    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// The message for which `event` is the last one.
const fn ends(event: &Event) -> Option<Subject> {
    match event {
        Event::Message { ordinal, .. } | Event::ReceiveFailed { ordinal, .. } | Event::Expired { ordinal, .. } => {
            Some(Subject::Incoming(*ordinal))
        }
        Event::Sent { ticket } | Event::SendFailed { ticket, .. } => Some(Subject::Outgoing(*ticket)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(ticket: u64, done: u64) -> Progress {
        Progress { subject: Subject::Outgoing(Ticket(ticket)), done, total: 9 }
    }

    fn message(ordinal: u64) -> Event {
        let message = Message::from(r#"{"jsonrpc":"2.0","method":"m"}"#);
        let envelope = Box::new(Envelope::of(&message).unwrap());
        Event::Message { message, envelope, ordinal, meta: Default::default() }
    }

    fn drain(events: &mut EventQueue) -> Vec<String> {
        std::iter::from_fn(|| events.poll_event()).map(|event| format!("{event:?}")).collect()
    }

    #[test]
    fn newer_progress_replaces_older_and_comes_after_events() {
        let mut events = EventQueue::default();
        events.push_progress(outgoing(1, 3));
        events.push_progress(outgoing(2, 1));
        events.push(Event::Sent { ticket: Ticket(7) });
        events.push_progress(outgoing(1, 6));
        let want =
            [Event::Sent { ticket: Ticket(7) }, Event::Progress(outgoing(1, 6)), Event::Progress(outgoing(2, 1))];
        assert_eq!(drain(&mut events), want.map(|event| format!("{event:?}")));
    }

    #[test]
    fn progress_of_a_message_that_is_over_is_dropped() {
        let mut events = EventQueue::default();
        let incoming = |n| Progress { subject: Subject::Incoming(n), done: 1, total: 2 };
        events.push_progress(outgoing(1, 3));
        events.push_progress(outgoing(2, 3));
        (1..=4).for_each(|n| events.push_progress(incoming(n)));
        events.push(Event::Sent { ticket: Ticket(1) });
        events.send_failed(Ticket(2), SendError::Disconnected, None);
        events.push(message(1));
        events.receive_failed(2, Violation::Aborted, None);
        events.push(Event::Expired { ordinal: 3, received: 0 });
        let left: Vec<_> = drain(&mut events).into_iter().skip(5).collect();
        assert_eq!(left, [format!("{:?}", Event::Progress(incoming(4)))]);
        assert_eq!(events.counters().count("send-disconnected"), 1);
        assert_eq!(events.counters().count("aborted"), 1);
    }

    #[test]
    fn a_close_is_told_once_to_each_side_with_the_first_reason_and_last() {
        let mut events = EventQueue::default();
        assert_eq!(events.poll_transmit_close(), None);
        events.push_progress(outgoing(1, 3));
        events.close(CloseReason::Restart);
        events.close(CloseReason::Normal);
        events.push_progress(outgoing(1, 4));
        events.push(Event::Sent { ticket: Ticket(1) });
        assert!(events.is_closed());
        assert_eq!(events.poll_transmit_close(), Some(CloseReason::Restart));
        assert_eq!(events.poll_transmit_close(), None);
        assert!(matches!(events.poll_event(), Some(Event::Sent { ticket: Ticket(1) })));
        assert!(matches!(events.poll_event(), Some(Event::Closed(CloseReason::Restart))));
        events.push(Event::Sent { ticket: Ticket(2) });
        events.close(CloseReason::Normal);
        assert!(events.poll_event().is_none() && events.poll_transmit_close().is_none());
        assert_eq!(events.counters().iter().collect::<Vec<_>>(), [("close-restart", 1)]);
        events.send_failed(Ticket(3), SendError::Disconnected, None);
        assert!(matches!(events.poll_event(), Some(Event::SendFailed { ticket: Ticket(3), .. })));
        assert!(events.poll_event().is_none());
    }
}
