//! How a bridge drains: it reports to its [lifecycle](crate::gateway::lifecycle) what happens to its sides, and carries out the
//! actions that follow.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use breakbulk_proto::CloseReason;

use super::{BAD_GATEWAY, Bridge, BridgePhase, LifecycleEvent, ParsedMessage, Side, SideId};
use crate::gateway::lifecycle::{Action, CloseTime, HostActivity, HostInput, Observed, Wait};
use crate::gateway::pending_requests::{Answered, ErrorReply, Failed};
use crate::link::Link;

/// How much longer a side has to take its close when the program stops, or when it has taken nothing for long.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// How long a client has to take errors in place of the responses that are given up, before it gets its close.
const ERRORS_GRACE: Duration = Duration::from_millis(500);

impl Bridge<'_> {
    /// The program stops: both sides are closed when nothing is under way any more, at the latest after the drain timeout.
    pub(super) fn stop(&mut self) {
        for at in SideId::BOTH {
            if self.sides[at].is_amid_frame() {
                self.ledgers[at.other()].await_begun_frame();
            }
        }
        let until = Instant::now() + self.drain_timeout;
        self.close_at_latest(until + CLOSE_GRACE);
        self.advance(LifecycleEvent::Stopped { until });
    }

    /// Side `at` has closed, and the other has not, which is closed for this reason in the end.
    pub(super) fn drain_after_close(&mut self, at: SideId, reason: CloseReason) {
        let reuse = self.reuse.as_ref().filter(|_| at == SideId::Downstream);
        let answer_deadline = reuse.map(|reuse| Instant::now() + reuse.answer_timeout);
        let wait = Wait::progress(self.observed(), self.drain_timeout);
        self.advance(LifecycleEvent::Closed { reason, wait, answer_deadline });
        if answer_deadline.is_some() && !self.phase.is_closing() && self.pending.has_any(SideId::Upstream) {
            info!(
                side = SideId::Upstream.name(),
                "the client is gone: what it would have been answered is waited for, and dropped"
            );
        }
    }

    /// Advances the end of the bridge, if it has begun, and updates the host's lease.
    pub(super) fn after_each_event(&mut self) {
        if self.phase == BridgePhase::Open && self.sides.iter().any(Side::has_half_closed) {
            let reason = self.unanswered_close().unwrap_or(CloseReason::Normal);
            let wait = Wait::progress(self.observed(), self.drain_timeout);
            self.advance(LifecycleEvent::HalfClosed { reason, wait });
        }
        self.respond_for_host();
        self.respond_for_client();
        self.update_lease();
        match self.phase {
            BridgePhase::Open | BridgePhase::Closing(_) => return,
            BridgePhase::Answering { .. } => {
                if self.sides.downstream.is_closed() || self.ledgers.downstream.has_sent_all() {
                    self.advance(LifecycleEvent::Idle);
                }
                return;
            }
            BridgePhase::Draining { .. } | BridgePhase::Stopping { .. } => {}
        }
        self.pass_on_half_close();
        self.phase.choose_wait(self.observed(), self.drain_timeout);
        let is_waiting = self.waits_for_responses() || self.waits_for_host_to_end();
        if !is_waiting && self.is_idle(SideId::Downstream) && self.is_idle(SideId::Upstream) {
            self.advance(LifecycleEvent::Idle);
        }
    }

    /// The deadline of the phase has come.
    pub(super) fn on_deadline(&mut self) {
        if self.phase.is_time_up(self.observed(), self.drain_timeout) {
            self.advance(LifecycleEvent::TimeIsUp);
        }
    }

    /// Counts what is lost with side `at`, which has just closed.
    pub(super) fn note_losses(&mut self, at: SideId) {
        if self.phase.is_closing() {
            if self.sides[at].driver.has_unsent() {
                self.losses.messages = self.losses.messages.saturating_add(1);
                warn!(side = at.name(), "it did not take all that was sent to it in time: the rest is lost");
            }
        } else if at == SideId::Upstream {
            self.note_lost_answers();
        }
    }

    /// The close that tells a client that its host has ended without sending all responses. `None` if the host's own
    /// close code says so, or if the client's link has no codes.
    pub(super) fn unanswered_close(&self) -> Option<CloseReason> {
        let (downstream, upstream) = (&self.sides.downstream, &self.sides.upstream);
        let upstream_reason = upstream.outcome().map(|outcome| &outcome.reason);
        let is_failure = match upstream_reason {
            Some(CloseReason::Peer { code }) => !matches!(code, 1000 | 1005),
            Some(CloseReason::Idle(_)) => true,
            _ => false,
        };
        let sees_code = !downstream.is_closed() && !downstream.can_half_close();
        let answers = self.pending.count(SideId::Upstream);
        if !sees_code || is_failure || answers == 0 || !self.has_host_ended_well() {
            return None;
        }
        let requests = if answers == 1 { "1 request".to_owned() } else { format!("{answers} requests") };
        Some(CloseReason::Program(BAD_GATEWAY, format!("the host ended with {requests} unanswered")))
    }

    /// Reports an event to the lifecycle, and does what follows from it.
    fn advance(&mut self, event: LifecycleEvent) {
        match self.phase.on(event) {
            Action::None => {}
            Action::EndHostInput => {
                if !self.end_host_input() {
                    self.advance(LifecycleEvent::CannotEndHostInput);
                }
            }
            Action::Close(reason) => self.close_both(&reason),
            Action::GiveUp { reason, close_time, host_input } => {
                self.give_up(close_time, host_input);
                self.close_both(&reason);
            }
        }
    }

    /// Tells the host that nothing more comes, if it has been sent everything and its link can tell it. Whether it knows.
    fn end_host_input(&mut self) -> bool {
        if self.phase.has_ended_host_input() {
            return true;
        }
        let upstream = &mut self.sides.upstream;
        let is_ended = !upstream.is_closed() && self.ledgers.upstream.has_sent_all() && upstream.driver.end_output();
        if is_ended {
            self.advance(LifecycleEvent::HostInputEnded);
        }
        is_ended
    }

    /// Counts what is under way as lost.
    fn give_up(&mut self, close_time: CloseTime, host_input: HostInput) {
        if close_time == CloseTime::Short {
            self.close_at_latest(Instant::now() + CLOSE_GRACE);
        }
        if host_input == HostInput::Ended && self.sides.upstream.is_open() {
            let side = SideId::Upstream.name();
            warn!(side, "it did not exit after its input was closed, and is ended");
        }
        for at in SideId::BOTH {
            let unsent = if self.sides[at].is_closed() { 0 } else { self.ledgers[at].unsent() };
            if unsent > 0 {
                self.losses.messages = self.losses.messages.saturating_add(unsent);
                warn!(side = at.name(), messages = unsent, "messages that it did not take in time are lost");
            }
        }
    }

    /// Closes both sides. A client that waits for responses gets errors in their place before its close.
    fn close_both(&mut self, reason: &CloseReason) {
        self.note_lost_answers();
        let is_owed = self.pending.has_any(SideId::Upstream) && !self.sides.downstream.is_closed();
        if is_owed {
            let error = match self.phase.is_stopping() {
                true => ErrorReply::new("restarting", "the bridge stops, and the host has not answered"),
                false => ErrorReply::new("timed-out", "the host did not answer in time"),
            };
            self.fail_requests(SideId::Upstream, &error);
            self.advance(LifecycleEvent::Answered { until: Instant::now() + ERRORS_GRACE });
        }
        let closed = if is_owed { &[SideId::Upstream][..] } else { &SideId::BOTH };
        for at in closed {
            if !self.sides[*at].is_closed() {
                self.sides[*at].close(reason.clone());
            }
        }
    }

    fn close_at_latest(&mut self, latest: Instant) {
        self.sides.iter_mut().for_each(|side| side.driver.set_latest(latest));
    }

    /// The host ends. Counts the responses that a client waits for in vain and cannot know of: the end of a pipe has no code.
    fn note_lost_answers(&mut self) {
        let (downstream, upstream) = (&self.sides.downstream, &self.sides.upstream);
        let is_awaited = !downstream.is_closed() && downstream.can_half_close() && !upstream.is_closed();
        let answers = self.pending.count(SideId::Upstream);
        if is_awaited && answers > 0 && !self.phase.is_stopping() {
            self.losses.answers = self.losses.answers.saturating_add(answers);
            warn!(side = SideId::Upstream.name(), answers, "the host has not answered all that it was asked");
        }
    }

    /// Whether the host has closed in good order, or sends nothing more: then it looks to its client as if all were well.
    fn has_host_ended_well(&self) -> bool {
        let upstream = &self.sides.upstream;
        let reason = upstream.outcome().map(|outcome| &outcome.reason);
        let is_normal = matches!(reason, Some(CloseReason::Peer { code: 1000 | 1005 }));
        upstream.has_half_closed() || is_normal || (upstream.is_closed() && upstream.driver.has_exited())
    }

    /// Answers pending requests with errors after the host has ended, for whatever reason.
    fn respond_for_host(&mut self) {
        let (downstream, upstream) = (&self.sides.downstream, &self.sides.upstream);
        if downstream.is_closed() || upstream.is_open() || !self.pending.has_any(SideId::Upstream) {
            return;
        }
        self.note_lost_answers();
        let error = self
            .sides
            .upstream
            .outcome()
            .map_or_else(ErrorReply::host_ended, |_| self.sides.upstream.error_for_callers());
        self.fail_requests(SideId::Upstream, &error);
    }

    /// Responds with errors in place of a client that cannot any more. A host that closes with its client gets none.
    fn respond_for_client(&mut self) {
        let (downstream, upstream) = (&self.sides.downstream, &self.sides.upstream);
        let cannot_respond = downstream.has_half_closed() || (downstream.is_closed() && self.reuse.is_some());
        if cannot_respond && !upstream.is_closed() {
            self.fail_requests(SideId::Downstream, &ErrorReply::disconnected());
        }
    }

    /// Ends all requests to side `to` with errors, which go to those who sent them.
    fn fail_requests(&mut self, to: SideId, error: &ErrorReply) {
        // The close tells such a client to resume. It would take an error as the host's final answer.
        let resumes =
            to == SideId::Upstream && self.names.downstream.is_introduced() && !self.sides.downstream.can_half_close();
        let answered = if resumes { Answered::NotResumed } else { Answered::All };
        let Failed { responses, unknown } = self.pending.fail_all(to, error, answered);
        let (side, errors) = (to.name(), responses.len());
        if errors > 0 {
            info!(side, errors, reason = error.reason, "requests to it are answered with errors: {}", error.message);
        }
        if unknown > 0 {
            warn!(side, requests = unknown, "requests to it cannot be answered with errors: their ids are not known");
        }
        responses.into_iter().for_each(|response| self.send_reply(to.other(), ParsedMessage::own(response)));
    }

    /// Keeps a host that goes to the next client busy until it is done with this one.
    fn update_lease(&mut self) {
        if let Some(reuse) = &self.reuse
            && !self.sides.upstream.is_closed()
        {
            reuse
                .lease
                .set_busy(self.pending.has_any(SideId::Upstream) || !self.has_nothing_under_way(SideId::Upstream));
        }
    }

    /// Tells the host when the client sends nothing more, but only once it has responded: some hosts abandon what they are
    /// doing when their input ends.
    fn pass_on_half_close(&mut self) {
        if matches!(self.phase, BridgePhase::Draining { .. })
            && !self.sides.downstream.is_open()
            && !self.waits_for_responses()
        {
            self.end_host_input();
        }
    }

    fn observed(&self) -> Observed {
        let awaited_responses = if self.waits_for_responses() { self.pending.count(SideId::Upstream) } else { 0 };
        let is_writing = self.ledgers.downstream.is_arriving() || self.sides.upstream.is_amid_frame();
        let host = match (self.ledgers.upstream.has_sent_all(), is_writing) {
            (false, _) => HostActivity::Reading,
            (true, true) => HostActivity::Writing,
            (true, false) => HostActivity::Quiet,
        };
        Observed { now: Instant::now(), moved: self.moved(), awaited_responses, host }
    }

    /// Bytes that have moved on both links. What is sent to a side that is closed does not count.
    fn moved(&self) -> u64 {
        let moved = |at: SideId| {
            let (side, peer) = (&self.sides[at], &self.sides[at.other()]);
            let moved = side.driver.link().status().moved;
            let inward = if peer.is_closed() { 0 } else { moved.inward };
            if side.is_closed() { 0 } else { inward.saturating_add(moved.outward) }
        };
        moved(SideId::Downstream).saturating_add(moved(SideId::Upstream))
    }

    /// Whether the end waits for responses of the host: the client waits for them, or the next client comes after them.
    fn waits_for_responses(&self) -> bool {
        let (downstream, upstream) = (&self.sides.downstream, &self.sides.upstream);
        let next_client_comes = self.reuse.is_some() && !self.phase.is_stopping();
        // A stopping program waits only for messages that have begun to arrive.
        let is_awaited = if downstream.is_closed() {
            next_client_comes
        } else {
            downstream.has_half_closed() && !self.phase.is_stopping()
        };
        is_awaited && upstream.is_open() && self.pending.has_any(SideId::Upstream)
    }

    /// Whether the end waits for a host that was told that nothing more comes, and has not ended by itself yet.
    fn waits_for_host_to_end(&self) -> bool {
        self.phase.has_ended_host_input() && self.sides.upstream.is_open()
    }

    /// Whether side `at` has nothing under way that the end has to wait for.
    fn is_idle(&self, at: SideId) -> bool {
        let (side, peer) = (&self.sides[at], &self.sides[at.other()]);
        match (side.is_closed(), peer.is_closed()) {
            (true, _) => true,
            // Half a message would be left to the next client.
            (false, true) if at == SideId::Upstream && self.reuse.is_some() => self.has_nothing_under_way(at),
            (false, true) => self.ledgers[at].has_sent_all(),
            (false, false) => self.has_nothing_under_way(at),
        }
    }

    /// Whether nothing is on its way to side `at` or from it.
    fn has_nothing_under_way(&self, at: SideId) -> bool {
        self.ledgers[at].has_sent_all() && !self.ledgers[at.other()].awaits_rest()
    }
}
