//! How a bridge ends: when nothing is under way any more, and nothing is owed that somebody waits for.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use breakbulk_proto::{CloseReason, Message};

use super::{BAD_GATEWAY, Bridge, FAR, NEAR, name, other};
use crate::gateway::debts::Excuse;
use crate::gateway::side::Side;
use crate::link::{HalfClose, Link};
use crate::look::Look;

/// How long the next answer is waited for when the side that asked sends nothing more.
const ANSWERS: Duration = Duration::from_secs(60);
/// How much longer a side has to take its close when the program stops, or when it has taken nothing for long.
const LAST: Duration = Duration::from_secs(1);
/// How often it is looked whether something moves.
const LOOK: Duration = Duration::from_millis(250);

/// For how long an end waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// So long in all.
    Until(Instant),
    /// So long after the last of the answers that the host owes, or after more of a long one has come; how many it owes, and
    /// what had moved when the time began.
    Answers { owed: u64, moved: u64, until: Instant },
    /// As long as the host takes to answer: it knows that nothing more comes, and decides itself when it is done.
    Host,
    /// So long after something last moved, which is looked at now and then.
    Quiet { moved: u64, until: Instant, look: Instant },
    /// No more: both sides are told to close.
    Over,
}

impl Wait {
    /// When there is something to decide.
    pub(super) fn next(self) -> Option<Instant> {
        match self {
            Self::Until(until) | Self::Answers { until, .. } => Some(until),
            Self::Host | Self::Over => None,
            Self::Quiet { until, look, .. } => Some(until.min(look)),
        }
    }
}

impl Bridge<'_> {
    /// Ends both sides when nothing is under way any more, at the latest after the time for it, whatever moves.
    pub(super) fn stop(&mut self) {
        let until = Instant::now() + self.drain;
        self.sides.iter_mut().for_each(|side| side.driver.set_latest(until + LAST));
        if self.wait != Some(Wait::Over) {
            self.ending = Some(CloseReason::Restart);
            self.wait = Some(Wait::Until(until));
        }
    }

    /// Side `at` is closed: ends the other. A host that goes on to another client has time to answer this one, for nobody.
    pub(super) fn end_after(&mut self, at: usize, reason: CloseReason) {
        self.ending.get_or_insert(reason);
        let is_left = at == NEAR && self.wait != Some(Wait::Over);
        let Some(patience) = self.debts.patience.filter(|_| is_left) else { return };
        let until = Instant::now() + patience;
        self.wait = Some(Wait::Until(match self.wait {
            Some(Wait::Until(before) | Wait::Answers { until: before, .. }) => before.min(until),
            _ => until,
        }));
        if self.debts.owes(FAR) {
            info!(side = name(FAR), "the client is gone: what it would have been answered is waited for, and dropped");
        }
    }

    /// Looks whether something can end now.
    pub(super) fn settle(&mut self) {
        if self.sides.iter().any(|side| side.has_ended) && self.ending.is_none() {
            self.ending = self.unanswered_close().or(Some(CloseReason::Normal));
        }
        self.answer_for_the_host();
        self.settle_debts();
        if self.ending.is_none() || self.wait == Some(Wait::Over) {
            return;
        }
        self.pass_on_the_end();
        self.settle_wait();
        let waits = self.waits_for_answers() || self.waits_for_host();
        if !waits && self.is_done(NEAR) && self.is_done(FAR) {
            self.close_all();
        }
    }

    /// The time has come that [`Wait::next`] said: looks what follows.
    pub(super) fn look(&mut self) {
        let (now, moved) = (Instant::now(), self.moved());
        let is_over = match self.wait {
            Some(Wait::Quiet { moved: before, until, .. }) => {
                let until = if moved == before { until } else { now + self.drain };
                self.wait = Some(Wait::Quiet { moved, until, look: now + LOOK });
                now >= until
            }
            // It has yet to read what it is to answer.
            Some(Wait::Answers { owed, .. }) if !self.sides[FAR].has_sent_all() => {
                self.wait = Some(Wait::Answers { owed, moved, until: now + ANSWERS });
                false
            }
            // One is on its way, and slow.
            Some(Wait::Answers { owed, moved: before, .. }) if moved != before && self.sides[FAR].is_receiving() => {
                self.wait = Some(Wait::Answers { owed, moved, until: now + ANSWERS });
                false
            }
            Some(Wait::Answers { .. }) => !self.tell_the_end(),
            wait => matches!(wait, Some(Wait::Until(_))),
        };
        if is_over {
            self.give_up();
        }
    }

    /// Notes an answer that was made in place of side `at`'s own.
    pub(super) fn note_reply(&mut self, at: usize, reply: Option<&Message>) {
        if let Some(reply) = reply {
            self.debts.note(at, reply, &Look::front(reply));
        }
    }

    /// Notes what is lost with side `at`, which has just ended.
    pub(super) fn note_loss(&mut self, at: usize) {
        if self.wait != Some(Wait::Over) {
            self.note_unanswered(at);
        } else if self.sides[at].driver.has_unsent() {
            self.lost.messages = self.lost.messages.saturating_add(1);
            warn!(side = name(at), "it did not take all that was sent to it in time: the rest is lost");
        }
    }

    /// Side `at` ends. Notes what a client waits for in vain that cannot see it: the end of a pipe tells nothing.
    fn note_unanswered(&mut self, at: usize) {
        let [near, far] = &self.sides;
        let is_awaited = near.closed.is_none() && half_closes(near) && far.closed.is_none();
        let answers = self.debts.count(FAR);
        if at == FAR && is_awaited && answers > 0 && self.ending != Some(CloseReason::Restart) {
            self.lost.answers = self.lost.answers.saturating_add(answers);
            warn!(side = name(FAR), answers, "the host has not answered all that it was asked");
        }
    }

    /// Whether the host has ended in good order, or sends nothing more: then it looks to its client as if all were well.
    fn host_is_done(&self) -> bool {
        let far = &self.sides[FAR];
        let is_normal = matches!(far.closed, Some(CloseReason::Peer { code: 1000 | 1005 }));
        far.has_ended || is_normal || (far.closed.is_some() && far.driver.has_exited())
    }

    /// The close that tells a client that its host has ended, and owes it answers; none if its code tells so already, or if the
    /// client's link has no codes.
    pub(super) fn unanswered_close(&self) -> Option<CloseReason> {
        let (near, far) = (&self.sides[NEAR], &self.sides[FAR]);
        let is_failure = matches!(far.closed, Some(CloseReason::Peer { code }) if !matches!(code, 1000 | 1005));
        let sees_code = near.closed.is_none() && !half_closes(near);
        let answers = self.debts.count(FAR);
        if !sees_code || is_failure || answers == 0 || !self.host_is_done() {
            return None;
        }
        let requests = if answers == 1 { "1 request".to_owned() } else { format!("{answers} requests") };
        Some(CloseReason::Program(BAD_GATEWAY, format!("the host ended with {requests} unanswered")))
    }

    /// Answers with errors what a host owes that is done: nobody else will.
    fn answer_for_the_host(&mut self) {
        if self.sides[NEAR].closed.is_some() || !self.debts.owes(FAR) || !self.host_is_done() {
            return;
        }
        self.note_unanswered(FAR);
        let why = Excuse { message: "the host ended before it answered", reason: "host-ended" };
        self.debts.excuse(FAR, why).into_iter().for_each(|answer| self.tell(NEAR, Some(answer)));
    }

    /// The client sends nothing more. A host that can be told so is, but only once it has answered: there are some that let
    /// go of what they are at when their input ends.
    fn pass_on_the_end(&mut self) {
        let near = &self.sides[NEAR];
        let is_over = near.has_ended || near.closed.is_some();
        if is_over && self.ending != Some(CloseReason::Restart) && !self.waits_for_answers() {
            self.tell_the_end();
        }
    }

    /// Tells the host that nothing more comes, if that is so and it can be told. Whether it knows.
    fn tell_the_end(&mut self) -> bool {
        let far = &mut self.sides[FAR];
        if !self.is_told && far.closed.is_none() && far.has_sent_all() {
            self.is_told = far.driver.end_output();
        }
        self.is_told
    }

    /// Begins to wait anew when it is something else that is waited for, or another answer has come.
    fn settle_wait(&mut self) {
        let (now, owed) = (Instant::now(), self.debts.count(FAR));
        let waits = self.waits_for_answers();
        self.wait = Some(match self.wait {
            Some(wait @ Wait::Until(_)) => wait,
            _ if waits && self.is_told => Wait::Host,
            Some(wait @ Wait::Answers { owed: before, .. }) if waits && before == owed => wait,
            _ if waits => Wait::Answers { owed, moved: self.moved(), until: now + ANSWERS },
            Some(wait @ Wait::Quiet { .. }) => wait,
            _ => Wait::Quiet { moved: self.moved(), until: now + self.drain, look: now + LOOK },
        });
    }

    /// What has moved on both sides. What is said to a side that is closed does not count.
    fn moved(&self) -> u64 {
        let moved = |at: usize| {
            let (side, peer) = (&self.sides[at], &self.sides[other(at)]);
            let moved = side.driver.link().status().moved;
            let inward = if peer.closed.is_some() { 0 } else { moved.inward };
            if side.closed.is_some() { 0 } else { inward.saturating_add(moved.outward) }
        };
        moved(NEAR).saturating_add(moved(FAR))
    }

    /// The time is up for what is under way.
    fn give_up(&mut self) {
        // Who has taken nothing in all that time has little more.
        if matches!(self.wait, Some(Wait::Quiet { .. })) {
            let latest = Instant::now() + LAST;
            self.sides.iter_mut().for_each(|side| side.driver.set_latest(latest));
        }
        if self.waits_for_host() {
            warn!(side = name(FAR), "it did not end by itself when it was told that nothing more comes, and is ended");
        }
        for at in [NEAR, FAR] {
            let unsent = if self.sides[at].closed.is_some() { 0 } else { self.sides[at].unsent() };
            if unsent > 0 {
                self.lost.messages = self.lost.messages.saturating_add(unsent);
                warn!(side = name(at), messages = unsent, "messages that it did not take in time are lost");
            }
        }
        self.close_all();
    }

    /// Keeps the host's lease informed of what is owed, and answers the host in place of a client that cannot any more.
    fn settle_debts(&mut self) {
        let [near, far] = &self.sides;
        if far.closed.is_some() {
            return;
        }
        // Where the host ends with its client, it is not told.
        if near.has_ended || (near.closed.is_some() && self.debts.patience.is_some()) {
            self.debts.excuse(NEAR, Excuse::DISCONNECTED).into_iter().for_each(|answer| self.tell(FAR, Some(answer)));
        }
        if let Some(lease) = &self.lease {
            lease.set_busy(self.debts.owes(FAR) || !self.sides[FAR].is_idle());
        }
    }

    /// Whether the end waits for what the host has yet to answer: somebody waits for it, or somebody else comes next.
    fn waits_for_answers(&self) -> bool {
        let [near, far] = &self.sides;
        let is_last = self.debts.patience.is_none() || self.ending == Some(CloseReason::Restart);
        let is_awaited = if near.closed.is_some() { !is_last } else { near.has_ended };
        is_awaited && far.closed.is_none() && !far.has_ended && self.debts.owes(FAR)
    }

    /// Whether the end waits for a host that was told of it, and has not ended by itself yet.
    fn waits_for_host(&self) -> bool {
        let far = &self.sides[FAR];
        self.is_told && far.closed.is_none() && !far.has_ended && self.ending != Some(CloseReason::Restart)
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

    fn close_all(&mut self) {
        let Some(reason) = self.ending.clone() else { return };
        self.note_unanswered(FAR);
        self.wait = Some(Wait::Over);
        self.sides.iter_mut().filter(|side| side.closed.is_none()).for_each(|side| side.close(reason.clone()));
    }
}

/// Whether the peer of a side can end its direction alone: then it cannot see a close code.
fn half_closes(side: &Side) -> bool {
    side.driver.link().status().half_close == HalfClose::Supported
}
