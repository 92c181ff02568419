//! The events of one entry.

use crate::Id;
use crate::v2::wire::{Body, Event};

/// Collects the events of one entry, numbers them, and marks all but the last.
pub(super) struct Out<'a> {
    events: &'a mut Vec<Event>,
    first: usize,
    seq: u64,
    ts: u64,
    session: Id,
}

impl<'a> Out<'a> {
    pub(super) const fn new(events: &'a mut Vec<Event>, seq: u64, ts: u64, session: Id) -> Self {
        let first = events.len();
        Self { events, first, seq, ts, session }
    }

    pub(super) fn push(&mut self, body: Body) {
        let sub = u32::try_from(self.events.len().saturating_sub(self.first)).unwrap_or(u32::MAX);
        if let Some(before) = self.events.last_mut().filter(|_| sub > 0) {
            before.more = true;
        }
        let session_id = self.session.clone();
        self.events.push(Event { ts: self.ts, seq: self.seq, sub, more: false, session_id, body });
    }
}
