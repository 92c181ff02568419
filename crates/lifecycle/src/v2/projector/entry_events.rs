//! The events of one entry.

use crate::Id;
use crate::v2::wire::{Body, Event};

/// Collects the events of one entry, numbers them, and marks all but the last.
pub(super) struct EntryEvents<'a> {
    events: &'a mut Vec<Event>,
    first: usize,
    /// How many events of the same entry were told before.
    before: u32,
    seq: u64,
    ts: u64,
    session: Id,
}

impl<'a> EntryEvents<'a> {
    pub(super) const fn new(events: &'a mut Vec<Event>, seq: u64, ts: u64, session: Id) -> Self {
        Self::after(0, events, seq, ts, session)
    }

    /// As [`new`](Self::new), where so many events of the same entry were told before.
    pub(super) const fn after(before: u32, events: &'a mut Vec<Event>, seq: u64, ts: u64, session: Id) -> Self {
        let first = events.len();
        Self { events, first, before, seq, ts, session }
    }

    /// How many events of the entry were told, if more follow: the last one says so too.
    pub(super) fn more_follow(self) -> u32 {
        let told = u32::try_from(self.events.len().saturating_sub(self.first)).unwrap_or(u32::MAX);
        if let Some(last) = self.events.last_mut().filter(|_| told > 0) {
            last.more = true;
        }
        self.before.saturating_add(told)
    }

    pub(super) fn push(&mut self, body: Body) {
        let sub = u32::try_from(self.events.len().saturating_sub(self.first)).unwrap_or(u32::MAX);
        if let Some(before) = self.events.last_mut().filter(|_| sub > 0) {
            before.more = true;
        }
        let sub = sub.saturating_add(self.before);
        let session_id = self.session.clone();
        self.events.push(Event { ts: self.ts, seq: self.seq, sub, more: false, session_id, body });
    }
}
