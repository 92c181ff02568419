//! How a bridge ends: when nothing is under way any more, and nothing is owed that somebody waits for.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use breakbulk_proto::{CloseReason, Message};

use super::{Bridge, FAR, NEAR, name, other};
use crate::link::Link;
use crate::look::Look;

/// How long answers are waited for when the side that asked sends nothing more.
const ANSWERS: Duration = Duration::from_secs(60);

impl Bridge<'_> {
    /// Ends both sides when nothing is under way any more, at the latest after `time`.
    pub(super) fn end_with(&mut self, reason: CloseReason, time: Duration) {
        self.ending = Some(reason);
        self.deadline = Some(Instant::now() + time);
    }

    /// Side `at` is closed: ends the other. A host that goes on to another client has time to answer this one, for nobody.
    pub(super) fn end_after(&mut self, at: usize, reason: CloseReason) {
        let patience = self.debts.patience.filter(|_| at == NEAR);
        if self.ending.is_none() {
            self.end_with(reason, patience.unwrap_or(self.drain));
        } else if let Some(patience) = patience {
            self.deadline = self.deadline.map(|deadline| deadline.min(Instant::now() + patience));
        }
        if patience.is_some() && self.debts.owes(FAR) {
            info!(side = name(FAR), "the client is gone: what it would have been answered is waited for, and dropped");
        }
    }

    /// Looks whether something can end now.
    pub(super) fn settle(&mut self) {
        let near = &self.sides[NEAR];
        if self.ending.is_none() && near.has_ended {
            self.end_with(CloseReason::Normal, ANSWERS);
        }
        if self.ending.is_none() && self.sides[FAR].has_ended {
            self.end_with(CloseReason::Normal, self.drain);
        }
        self.settle_debts();
        if self.ending.is_some() && !self.waits_for_answers() && self.is_done(NEAR) && self.is_done(FAR) {
            self.close_all();
        }
    }

    /// Notes an answer that was made in place of side `at`'s own.
    pub(super) fn note_reply(&mut self, at: usize, reply: Option<&Message>) {
        if let Some(reply) = reply {
            self.debts.note(at, reply, &Look::front(reply));
        }
    }

    /// Keeps the host's link informed of what is owed, and answers the host in place of a client that cannot any more.
    fn settle_debts(&mut self) {
        let [near, far] = &self.sides;
        if far.closed.is_some() {
            return;
        }
        // Where the host ends with its client, it is not told.
        if near.has_ended || (near.closed.is_some() && self.debts.patience.is_some()) {
            self.debts.excuse(NEAR).into_iter().for_each(|answer| self.tell(FAR, Some(answer)));
        }
        let owes = self.debts.owes(FAR) || !self.sides[FAR].is_idle();
        self.sides[FAR].driver.link_mut().set_owing(owes);
    }

    /// Whether the end waits for what the host has yet to answer: somebody waits for it, or somebody else comes next.
    fn waits_for_answers(&self) -> bool {
        let [near, far] = &self.sides;
        let is_last = self.debts.patience.is_none() || self.ending == Some(CloseReason::Restart);
        let is_awaited = near.has_ended || (near.closed.is_some() && !is_last);
        is_awaited && far.closed.is_none() && self.debts.owes(FAR)
    }

    /// Whether side `at` has nothing under way that the end has to wait for.
    fn is_done(&self, at: usize) -> bool {
        let (side, peer) = (&self.sides[at], &self.sides[other(at)]);
        match (side.closed.is_some(), peer.closed.is_some()) {
            (true, _) => true,
            // Half a message would be left to the next client.
            (false, true) if at == FAR && self.debts.patience.is_some() => side.is_idle(),
            (false, true) => side.has_sent_all(),
            (false, false) => side.is_idle(),
        }
    }

    pub(super) fn close_all(&mut self) {
        self.deadline = None;
        let Some(reason) = self.ending.clone() else { return };
        self.sides.iter_mut().filter(|side| side.closed.is_none()).for_each(|side| side.close(reason.clone()));
    }
}
