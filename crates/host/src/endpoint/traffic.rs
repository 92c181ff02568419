//! Counters and gauges over all connections of an endpoint.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use breakbulk_proto::{Event, Subject, Ticket};

use super::end_reason::Counters;
use crate::log::Histogram;
use crate::size::to_u64;

/// Counters over all connections. They only grow, except for those that are marked as gauges.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Connections that were made.
    pub connections: AtomicU64,
    /// Gauge: connections that are open, also those before their handshake.
    pub open: AtomicU64,
    /// How connections ended, by the name of the reason.
    pub ends: Counters,
    /// Rules that clients broke, by name.
    pub violations: Counters,
    /// What clients sent.
    pub received: Direction,
    /// What was sent to clients.
    pub sent: Direction,
    /// Gauge: messages that are not sent yet.
    pub unsent: AtomicU64,
    /// Gauge: their bytes.
    pub unsent_bytes: AtomicU64,
    /// Gauge: requests of clients that are under way.
    pub calls: AtomicU64,
    /// Gauge: actions of clients that wait for earlier ones.
    pub waiting: AtomicU64,
    /// Contents that were sent by reference.
    pub references: AtomicU64,
    /// The bytes of these.
    pub reference_bytes: AtomicU64,
    /// Actions of each replay.
    pub replayed: Histogram,
    /// Bytes of each answer that is a replay.
    pub replay_bytes: Histogram,
    /// Bytes of each answer to a reconnect that is snapshots instead.
    pub snapshot_bytes: Histogram,
}

/// The traffic of one direction.
#[derive(Debug, Default)]
pub struct Direction {
    /// Frames.
    pub frames: AtomicU64,
    /// Their bytes.
    pub frame_bytes: AtomicU64,
    /// Messages.
    pub messages: AtomicU64,
    /// Those of them that took more than one frame.
    pub groups: AtomicU64,
    /// The frames of these.
    pub segments: AtomicU64,
}

impl Direction {
    pub(crate) fn frame(&self, bytes: usize) {
        self.frames.fetch_add(1, Relaxed);
        self.frame_bytes.fetch_add(to_u64(bytes), Relaxed);
    }

    /// Counts a message, whose last frame came after so many others of it.
    fn message(&self, before: u64) {
        self.messages.fetch_add(1, Relaxed);
        if before > 0 {
            self.groups.fetch_add(1, Relaxed);
            self.segments.fetch_add(before.saturating_add(1), Relaxed);
        }
    }
}

/// What one connection contributes to the gauges. Dropping it takes that back.
#[derive(Debug)]
pub(super) struct ConnectionGauges {
    traffic: Arc<Traffic>,
    shown: QueueDepths,
    /// Messages that are partly sent or received, and how many of their frames have passed.
    passing: HashMap<Subject, u64>,
}

/// How much waits on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct QueueDepths {
    pub(super) unsent: usize,
    pub(super) unsent_bytes: usize,
    pub(super) calls: usize,
    pub(super) waiting: usize,
}

impl ConnectionGauges {
    pub(super) fn new(traffic: Arc<Traffic>) -> Self {
        traffic.connections.fetch_add(1, Relaxed);
        traffic.open.fetch_add(1, Relaxed);
        Self { traffic, shown: QueueDepths::default(), passing: HashMap::new() }
    }

    /// Updates the gauges.
    pub(super) fn show(&mut self, depths: QueueDepths) {
        if depths == self.shown {
            return;
        }
        let before = std::mem::replace(&mut self.shown, depths);
        let gauges = [
            (&self.traffic.unsent, before.unsent, depths.unsent),
            (&self.traffic.unsent_bytes, before.unsent_bytes, depths.unsent_bytes),
            (&self.traffic.calls, before.calls, depths.calls),
            (&self.traffic.waiting, before.waiting, depths.waiting),
        ];
        for (gauge, before, now) in gauges {
            if now >= before {
                gauge.fetch_add(to_u64(now.saturating_sub(before)), Relaxed);
            } else {
                gauge.fetch_sub(to_u64(before.saturating_sub(now)), Relaxed);
            }
        }
    }

    /// Counts messages by the events of the machine.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Progress(progress) => {
                let frames = self.passing.entry(progress.subject).or_default();
                *frames = frames.saturating_add(1);
            }
            Event::Message { ordinal, .. } => {
                let before = self.passing.remove(&Subject::Incoming(*ordinal)).unwrap_or(0);
                self.traffic.received.message(before);
            }
            Event::Sent { ticket } => {
                let before = self.forget(*ticket);
                self.traffic.sent.message(before);
            }
            Event::SendFailed { ticket, .. } => drop(self.forget(*ticket)),
            Event::ReceiveFailed { ordinal, .. } | Event::Expired { ordinal, .. } => {
                self.passing.remove(&Subject::Incoming(*ordinal));
            }
            _ => {}
        }
    }

    fn forget(&mut self, ticket: Ticket) -> u64 {
        self.passing.remove(&Subject::Outgoing(ticket)).unwrap_or(0)
    }
}

impl Drop for ConnectionGauges {
    fn drop(&mut self) {
        self.show(QueueDepths::default());
        self.traffic.open.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use breakbulk_proto::Progress;

    fn progress(subject: Subject) -> Event {
        Event::Progress(Progress { subject, done: 1, total: 3 })
    }

    #[test]
    fn gauges_forget_a_connection_that_is_gone() {
        let traffic = Arc::new(Traffic::default());
        let (mut one, mut two) = (ConnectionGauges::new(traffic.clone()), ConnectionGauges::new(traffic.clone()));
        one.show(QueueDepths { unsent: 2, unsent_bytes: 100, calls: 3, waiting: 0 });
        two.show(QueueDepths { unsent: 1, unsent_bytes: 11, calls: 0, waiting: 4 });
        one.show(QueueDepths { unsent: 1, unsent_bytes: 50, calls: 3, waiting: 0 });
        let now = |of: &AtomicU64| of.load(Relaxed);
        assert_eq!((now(&traffic.unsent), now(&traffic.unsent_bytes), now(&traffic.calls)), (2, 61, 3));
        drop(one);
        assert_eq!((now(&traffic.unsent_bytes), now(&traffic.waiting), now(&traffic.open)), (11, 4, 1));
        drop(two);
        assert_eq!((now(&traffic.unsent_bytes), now(&traffic.waiting), now(&traffic.open)), (0, 0, 0));
        assert_eq!(now(&traffic.connections), 2);
    }

    #[test]
    fn a_message_in_more_than_one_frame_is_a_group() {
        let traffic = Arc::new(Traffic::default());
        let mut part = ConnectionGauges::new(traffic.clone());
        part.note(&progress(Subject::Outgoing(Ticket(7))));
        part.note(&progress(Subject::Outgoing(Ticket(7))));
        part.note(&Event::Sent { ticket: Ticket(7) });
        part.note(&Event::Sent { ticket: Ticket(8) });
        part.note(&progress(Subject::Incoming(0)));
        part.note(&Event::Expired { ordinal: 0, received: 1 });
        let sent = &traffic.sent;
        let counts = [&sent.messages, &sent.groups, &sent.segments, &traffic.received.messages];
        assert_eq!(counts.map(|count| count.load(Relaxed)), [2, 1, 3, 0]);
        assert!(part.passing.is_empty());
    }
}
