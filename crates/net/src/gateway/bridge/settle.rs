//! How a bridge ends: when nothing is under way any more, and nothing is owed that somebody waits for.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use breakbulk_proto::{CloseReason, Message};

use super::{Bridge, FAR, NEAR, name, other};
use crate::link::Link;

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
        let patience = self.debts.as_ref().filter(|_| at == NEAR).map(|debts| debts.patience);
        if self.ending.is_none() {
            self.end_with(reason, patience.unwrap_or(self.drain));
        } else if let Some(patience) = patience {
            self.deadline = self.deadline.map(|deadline| deadline.min(Instant::now() + patience));
        }
        if patience.is_some() && self.owes_answers() {
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
        if let (Some(debts), Some(reply)) = (&mut self.debts, reply) {
            debts.note(at, reply);
        }
    }

    /// Keeps the host's link informed of what is owed, and answers the host in place of a client that cannot any more.
    fn settle_debts(&mut self) {
        let Some(debts) = &mut self.debts else { return };
        if self.sides[FAR].closed.is_some() {
            return;
        }
        let is_client_gone = self.sides[NEAR].has_ended || self.sides[NEAR].closed.is_some();
        let answers = if is_client_gone { debts.excuse(NEAR) } else { Vec::new() };
        answers.into_iter().for_each(|answer| self.tell(FAR, Some(answer)));
        let owes = self.owes_answers() || !self.sides[FAR].is_idle();
        self.sides[FAR].driver.link_mut().set_owing(owes);
    }

    /// Whether the host has yet to answer.
    fn owes_answers(&self) -> bool {
        self.debts.as_ref().map_or(self.sides[FAR].unanswered > 0, |debts| debts.owes(FAR))
    }

    /// Whether the end waits for what the host has yet to answer: somebody waits for it, or somebody else comes next.
    fn waits_for_answers(&self) -> bool {
        let [near, far] = &self.sides;
        let is_last = self.debts.is_none() || self.ending == Some(CloseReason::Restart);
        let is_awaited = near.has_ended || (near.closed.is_some() && !is_last);
        is_awaited && far.closed.is_none() && self.owes_answers()
    }

    /// Whether side `at` has nothing under way that the end has to wait for.
    fn is_done(&self, at: usize) -> bool {
        let (side, peer) = (&self.sides[at], &self.sides[other(at)]);
        match (side.closed.is_some(), peer.closed.is_some()) {
            (true, _) => true,
            // Half a message would be left to the next client.
            (false, true) if at == FAR && self.debts.is_some() => side.is_idle(),
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
