//! A bridge: the two sides of one connection through a gateway, and the loop that forwards messages between them.

mod drain;

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use breakbulk_proto::{
    BudgetConfig, Capacity, CloseReason, Event, Input, Kind, Limits, LimitsConfig, Machine, Message, Meta, Over,
    Progress, SendError, Subject, Ticket, Transmit, Violation, plain,
};

use super::frame_limits::{PeerClose, Verdict};
use super::ledger::{ArrivalMemory, Arriving, Ledger, Transit};
use super::lifecycle::{BridgePhase, LifecycleEvent};
use super::parsed_message::{Certainty, ParsedMessage};
use super::peer_name::PeerName;
use super::pending_requests::{AfterCancel, PendingRequests};
use super::side::Side;
use super::sides::{Pair, SideId};
use super::{Gateway, Losses, Outcome, Passed, Records, Reuse, SideOutcome, Watcher};
use crate::dialect::Setup;
use crate::driver::{ABNORMAL, now};
use crate::len64;
use crate::link::{Link, NextFrame};
use crate::log_limit::LogLimit;

/// The code for "the side behind the gateway is gone".
const BAD_GATEWAY: u16 = 1014;
/// The code for "come again".
const RESTART: u16 = CloseReason::Restart.code();
/// The advice in a log line about a message that is nested too deep.
const RAISE_NESTING: &str = " (max_nesting); raise it on both bridges";
/// The longest part of a stray line that the log shows.
const MAX_SHOWN_BYTES: usize = 400;

/// Two sides, joined.
pub(super) struct Bridge<'a> {
    sides: Pair<Side>,
    /// The messages of each direction, by the side that they go to.
    ledgers: Pair<Ledger>,
    phase: BridgePhase,
    /// What each side has yet to respond to.
    pending: PendingRequests,
    /// Set if the next client gets the host of this one.
    reuse: Option<Reuse>,
    /// How sure the bridge has to be of what a message of the host is.
    certainty: Certainty,
    /// The names under which the peers are remembered.
    names: Pair<PeerName>,
    records: &'a Records,
    /// How long a draining bridge waits without progress, and how long messages under way may take when the program
    /// stops.
    drain_timeout: Duration,
    /// How deep a message that is sent on may be nested.
    max_depth: u32,
    /// The setting that says how long frames of each side may be.
    frame_settings: Pair<&'static str>,
    /// Bounds the log lines about single messages.
    log_limit: LogLimit,
    watcher: Option<Watcher>,
    /// The side that is polled first, the next time.
    turn: SideId,
    /// Messages to each side that its link was closed before.
    cut_off: Pair<u64>,
    /// The side that has closed first.
    closed_first: Option<SideId>,
    losses: Losses,
}

/// What happens next.
enum BridgeEvent {
    /// The machine of a side has an event.
    Event(SideId, Event),
    /// The peer of a side sends nothing more.
    HalfClosed,
    /// The budget has evicted a message that waits for a side.
    Evicted(SideId, CloseReason),
    /// Both sides are closed.
    Closed,
}

impl<'a> Bridge<'a> {
    /// Joins two sides. `names` are those under which their peers are remembered.
    pub(super) fn new(
        mut sides: Pair<Side>,
        ledgers: Pair<Ledger>,
        names: Pair<PeerName>,
        gateway: &'a Gateway,
        reuse: Option<Reuse>,
        watcher: Option<Watcher>,
    ) -> Self {
        sides.iter_mut().for_each(|side| side.driver.set_patient(true));
        // The front of a host's message suffices if neither pending responses nor a watcher need to know what it is.
        let is_awaited = sides.iter().any(Side::can_half_close) || reuse.is_some();
        let certainty = if is_awaited || watcher.is_some() { Certainty::Final } else { Certainty::Front };
        let after_cancel = if reuse.is_some() { AfterCancel::StillPending } else { AfterCancel::Forgotten };
        Self {
            sides,
            ledgers,
            phase: BridgePhase::Open,
            pending: PendingRequests::new(after_cancel),
            reuse,
            certainty,
            names,
            records: &gateway.records,
            drain_timeout: gateway.drain_timeout,
            max_depth: gateway.max_depth,
            frame_settings: gateway.setups.as_ref().map(Setup::max_frame_setting),
            log_limit: LogLimit::default(),
            watcher,
            turn: SideId::Downstream,
            cut_off: Pair::default(),
            closed_first: None,
            losses: Losses::default(),
        }
    }

    /// Forwards messages until both sides have closed; returns how each did. When `stop` is done, both are closed, and what is
    /// under way has time to finish.
    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> Outcome {
        tokio::pin!(stop);
        let mut is_stopped = false;
        loop {
            let deadline = self.phase.deadline();
            let (wake_at, has_deadline) = (deadline.unwrap_or_else(Instant::now), deadline.is_some());
            tokio::select! {
                next = poll_fn(|cx| self.poll(cx)) => match next {
                    BridgeEvent::Event(side, event) => self.on_event(side, event),
                    BridgeEvent::HalfClosed => {}
                    BridgeEvent::Evicted(side, reason) => self.evict(side, reason),
                    BridgeEvent::Closed => break,
                },
                () = &mut stop, if !is_stopped => {
                    is_stopped = true;
                    self.stop();
                }
                () = sleep_until(wake_at), if has_deadline => self.on_deadline(),
            }
            self.after_each_event();
        }
        for (rule, left_out) in self.log_limit.into_left_out() {
            warn!(rule, left_out, "there were more messages like those in the log");
        }
        let gone = || SideOutcome { reason: CloseReason::Peer { code: ABNORMAL }, description: String::new() };
        let Pair { downstream, upstream } = self.sides.map(|side| side.into_outcome().unwrap_or_else(gone));
        Outcome {
            downstream,
            upstream,
            closed_first: self.closed_first.unwrap_or(SideId::Downstream),
            losses: self.losses,
        }
    }

    /// Polls both sides for the next event. A side is read only while there is memory for its messages.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<BridgeEvent> {
        self.turn = self.turn.other();
        for at in [self.turn, self.turn.other()] {
            if self.sides[at].is_closed() {
                continue;
            }
            let event = self.poll_side(at, cx);
            self.learn_frame_limit(at);
            if let Poll::Ready(Some(event)) = event {
                return Poll::Ready(BridgeEvent::Event(at, event));
            }
            if self.sides[at].check_half_closed() {
                return Poll::Ready(BridgeEvent::HalfClosed);
            }
        }
        if self.sides.iter().all(Side::is_closed) { Poll::Ready(BridgeEvent::Closed) } else { self.poll_memory(cx) }
    }

    /// The next event of a side. Meanwhile its link may have written what it was given.
    fn poll_side(&mut self, at: SideId, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let incoming = &self.ledgers[at.other()];
        let has_capacity = self.sides[at.other()].is_closed() || incoming.has_capacity();
        let next_frame = if incoming.is_arriving() { NextFrame::GoesOn } else { NextFrame::Begins };
        let side = &mut self.sides[at];
        side.driver.set_reading(has_capacity);
        let event = side.poll_event(cx, next_frame);
        if side.driver.has_flushed() {
            self.ledgers[at].flushed();
        }
        event
    }

    /// Looks after the memory of the messages that wait for either side.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<BridgeEvent> {
        for at in SideId::BOTH {
            // Once a side closes, its messages fail and give their memory back.
            if !self.sides[at].is_kept_open() {
                continue;
            }
            match self.ledgers[at].poll_memory(cx) {
                Poll::Ready(Ok(())) => {
                    // The other side is read again.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Err(reason)) => return Poll::Ready(BridgeEvent::Evicted(at, reason)),
                Poll::Pending => {}
            }
        }
        Poll::Pending
    }

    fn evict(&mut self, at: SideId, reason: CloseReason) {
        self.records.count(reason.name());
        self.sides[at].close(reason);
    }

    fn on_event(&mut self, at: SideId, event: Event) {
        let to = at.other();
        match event {
            Event::Message { message, envelope, ordinal, meta } => {
                let arriving = self.ledgers[to].finish_arriving(ordinal);
                let memory = self.sides[at].take_memory(len64(message.len()));
                // A client has to be answered if its host ends.
                let certainty = if at == SideId::Downstream { Certainty::Final } else { self.certainty };
                let parsed = ParsedMessage::received(message, envelope, certainty);
                let transit = self.ledgers[to].record(parsed, arriving, memory);
                self.forward(at, transit, meta);
            }
            Event::Sent { ticket } => self.on_sent(at, ticket),
            Event::SendFailed { ticket, error, reply } => self.on_send_failed(at, ticket, &error, reply),
            Event::ReceiveFailed { ordinal, violation, reply } => {
                self.ledgers[to].finish_arriving(ordinal);
                self.on_receive_failed(at, &violation, reply);
            }
            Event::Progress(Progress { subject: Subject::Incoming(ordinal), .. }) => {
                self.ledgers[to].note_frame(ordinal)
            }
            Event::Progress(Progress { subject: Subject::Outgoing(ticket), done, .. }) => {
                self.ledgers[at].note_frame_sent(ticket, done);
            }
            Event::Expired { ordinal, received } => {
                self.ledgers[to].finish_arriving(ordinal);
                warn!(side = at.name(), received, "an unfinished message was given up: it took too long");
            }
            Event::Line(line) => {
                self.ledgers[to].note_line();
                info!(side = at.name(), bytes = line.len(), "a line that is no message: {}", shown(&line));
            }
            Event::Closed(reason) => self.on_closed(at, reason),
            _ => {}
        }
    }

    /// Sends a message of side `from` to the other side.
    fn forward(&mut self, from: SideId, transit: Transit, meta: Meta) {
        let to = from.other();
        if from == SideId::Downstream
            && let Some(client) = transit.parsed.client_id()
        {
            self.names.downstream.introduce(&client);
            self.apply_frame_limit(SideId::Downstream);
        }
        self.pending.note(from, &transit.parsed);
        let size = transit.parsed.len();
        // Callers of the host have been answered with errors, or soon will be.
        let is_too_late =
            from == SideId::Upstream && self.phase.is_closing() && transit.parsed.kind() == Kind::Response;
        if self.sides[to].is_closed() || is_too_late {
            let method = transit.parsed.method();
            debug!(to = to.name(), size, method = method.as_deref(), "dropped: nobody waits for it any more");
            drop(method);
            return transit.discard();
        }
        if self.records.unsendable.contains(&self.names.downstream, &transit.parsed.message) {
            self.records.count("dropped-unsendable");
            if let Some(permit) = self.log_limit.permit("dropped-unsendable") {
                let left_out = permit.left_out();
                warn!(
                    to = to.name(),
                    size, left_out, "an action that cannot be sent there came again, and is left out"
                );
            }
            return;
        }
        if transit.parsed.message.check_depth(self.max_depth).is_err() {
            return self.refuse(to, &transit, u64::MAX);
        }
        if let Some(limit) = self.records.frame_limits.refuses(&self.names[to], len64(size)) {
            return self.refuse(to, &transit, limit);
        }
        self.send(to, transit, meta);
    }

    fn send(&mut self, to: SideId, transit: Transit, meta: Meta) {
        let message = transit.parsed.message.clone();
        let ticket = self.ledgers[to].insert(transit);
        self.sides[to].send(ticket, message, meta);
    }

    /// Sends a side a reply that was made here.
    fn send_reply(&mut self, to: SideId, reply: ParsedMessage) {
        let transit = self.ledgers[to].record(reply, Arriving::now(), ArrivalMemory::Unreserved);
        self.send(to, transit, Meta::default());
    }

    /// Refuses a message that its receiver would close its link at, or that is nested too deep: as a machine does whose link takes
    /// no more than `limit`.
    fn refuse(&mut self, to: SideId, transit: &Transit, limit: u64) {
        let config = LimitsConfig { max_depth: self.max_depth, ..LimitsConfig::default() };
        let limits = Limits::prove(config, &BudgetConfig::default()).unwrap_or_default();
        let mut machine = plain::Connection::new(plain::Config::new(limits));
        machine.handle(Input::Capacity(Capacity::of(limit)), now());
        machine.handle(Input::send(Ticket(0), transit.parsed.message.clone()), now());
        while let Some(Transmit::Frame { bytes, .. }) = machine.poll_transmit(now()) {
            self.send_reply(to, ParsedMessage::own(bytes));
        }
        if let Some(Event::SendFailed { error, reply, .. }) = machine.poll_event() {
            self.report_unsent(to, transit, &error, reply);
        }
    }

    fn on_sent(&mut self, at: SideId, ticket: Ticket) {
        let Some(transit) = self.ledgers[at].sent(ticket) else { return };
        let size = transit.parsed.len();
        self.raise_frame_limit(at, size);
        self.records.stats.note_passed(at, size);
        let method = transit.parsed.method();
        debug!(to = at.name(), size, method = method.as_deref(), "passed");
        if let Some(watcher) = &mut self.watcher {
            let method = method.map(|method| method.into_owned());
            let message = transit.parsed.message.clone();
            let passed = Passed::new(at, transit.parsed.kind(), message, transit.frames(), transit.took());
            watcher(Passed { method, ..passed });
        }
    }

    /// A message to side `at` was not sent.
    fn on_send_failed(&mut self, at: SideId, ticket: Ticket, error: &SendError, reply: Option<Message>) {
        if *error == SendError::Disconnected && self.reuse.is_some() {
            self.pending.note_cut_message(at);
        }
        if let Some(transit) = self.ledgers[at].remove(ticket) {
            self.report_unsent(at, &transit, error, reply);
        }
    }

    /// Reports a message to side `at` that was not sent: to the log, and to its sender if there is a reply for it.
    fn report_unsent(&mut self, at: SideId, transit: &Transit, error: &SendError, reply: Option<Message>) {
        let parsed = &transit.parsed;
        let (size, method) = (parsed.len(), parsed.method());
        let method = method.as_deref();
        let is_cut_off = *error == SendError::Disconnected;
        // Requests to a host that has ended are answered in one place, with the reason of its end.
        let is_answered_later = |reply: &ParsedMessage| {
            is_cut_off && at == SideId::Upstream && self.pending.awaits(SideId::Upstream, reply)
        };
        let reply = reply.map(ParsedMessage::own).filter(|reply| !is_answered_later(reply));
        reply.iter().for_each(|reply| self.pending.note(at, reply));
        let from = at.other();
        if self.sides[from].is_closed() {
            return debug!(to = at.name(), size, method, "a message was not sent: {error}");
        }
        self.records.count(error.name());
        let (to, rule) = (at.name(), error.name());
        // The log has one line for all that are cut off.
        let permit = if is_cut_off { None } else { self.log_limit.permit(rule) };
        self.cut_off[at] = self.cut_off[at].saturating_add(u64::from(is_cut_off));
        let setting = if matches!(error, SendError::TooDeep { .. }) { RAISE_NESTING } else { "" };
        match permit.map(|permit| permit.left_out()) {
            Some(left_out) => warn!(to, size, method, rule, left_out, "a message was not sent: {error}{setting}"),
            None => debug!(to, size, method, rule, "a message was not sent: {error}{setting}"),
        }
        reply.into_iter().for_each(|reply| self.send_reply(from, reply));
        // If the side has closed, its own close is reported.
        if !is_cut_off && parsed.carries_state(from) {
            if is_permanent(error) {
                self.records.unsendable.remember(&self.names.downstream, &parsed.message);
            }
            self.sides[at].close(CloseReason::unsendable(&parsed.message, error.clone()));
        }
    }

    /// A message of side `at` broke a rule, and the side lives. If it was a response, the other side gets an error in its place.
    fn on_receive_failed(&mut self, at: SideId, violation: &Violation, reply: Option<Message>) {
        let rule = violation.name();
        if let Some(permit) = self.log_limit.permit(rule) {
            let left_out = permit.left_out();
            warn!(side = at.name(), rule, left_out, "a message was refused: {violation}");
        }
        if let Violation::BadLine { answered: false, .. } = violation {
            self.losses.messages = self.losses.messages.saturating_add(1);
        }
        // The machine guesses from the message alone that it was meant as a response.
        let reply = reply.map(ParsedMessage::own).filter(|reply| self.pending.may_await(at, reply));
        if let Some(reply) = reply {
            self.pending.note(at, &reply);
            self.send_reply(at.other(), reply);
        }
    }

    /// A side has closed: the other is closed when what is under way is finished.
    fn on_closed(&mut self, at: SideId, reason: CloseReason) {
        let counters = self.sides[at].driver.machine().counters().iter().filter(|(what, _)| *what != reason.name());
        counters.for_each(|(what, count)| info!(side = at.name(), count, "{what}"));
        self.note_losses(at);
        self.ledgers[at].flushed();
        let description = self.sides[at].note_closed(reason.clone());
        info!(side = at.name(), code = reason.code(), "ended: {description}");
        self.closed_first.get_or_insert(at);
        self.log_cut_off(at);
        match &reason {
            CloseReason::Violation(Violation::FrameTooLarge(Over { size, limit })) => {
                let setting = self.frame_settings[at];
                warn!(
                    side = at.name(),
                    size, limit, "it sent a frame of {size} bytes, and {setting} allows {limit} bytes"
                );
            }
            CloseReason::Evicted | CloseReason::OverBudget(_) => {
                warn!(side = at.name(), "it needed more memory than memory and memory_per_token allow, and was closed");
            }
            _ => {}
        }
        if self.sides[at.other()].is_closed() {
            return;
        }
        let reason = if self.sides[at].is_closed_at_frame_limit() {
            CloseReason::Program(RESTART, "a frame limit was just learned: connect again".into())
        } else {
            self.unanswered_close().unwrap_or_else(|| self.close_for_other_side(at, &reason))
        };
        self.drain_after_close(at, reason);
    }

    /// Why the other side is closed when side `at` has closed for this reason. Its peer is told how that was, unless that is of no
    /// interest.
    fn close_for_other_side(&self, at: SideId, reason: &CloseReason) -> CloseReason {
        let who = match at {
            SideId::Downstream => "client",
            SideId::Upstream => "host",
        };
        match close_code_for_other_side(at, reason) {
            // Whoever sent a message that cannot be sent on has to know it.
            None => reason.clone(),
            Some(code @ (1000 | 1001)) => CloseReason::Peer { code },
            Some(code) => CloseReason::Program(code, self.sides[at].end_for_other_side(who)),
        }
    }

    /// Logs how many messages to side `at`, which has just closed, were not sent whole before.
    fn log_cut_off(&mut self, at: SideId) {
        let (side, messages) = (at.name(), std::mem::take(&mut self.cut_off[at]));
        match at {
            _ if messages == 0 => {}
            SideId::Downstream => info!(side, messages, "the link ended before the client had taken all messages"),
            SideId::Upstream => warn!(side, messages, "the link ended before the host had taken all messages"),
        }
    }

    /// Tells the machine of a side how long frames may be, as far as is known of its peer.
    fn apply_frame_limit(&mut self, at: SideId) {
        let limit = self.records.frame_limits.limit(&self.names[at]);
        let driver = &mut self.sides[at].driver;
        driver.link_mut().set_limit(limit);
        let capacity = driver.link().capacity();
        driver.handle(Input::Capacity(capacity));
    }

    /// A message has gone out in frames that are limited here: after enough of them, longer ones are tried.
    fn raise_frame_limit(&mut self, at: SideId, size: usize) {
        let limit = self.sides[at].driver.link().limit();
        if limit == u64::MAX {
            return;
        }
        self.records.frame_limits.note_passed(&self.names[at], len64(size));
        // A lower limit, which another link has shown, would end messages that have begun here.
        if self.records.frame_limits.limit(&self.names[at]) > limit {
            self.apply_frame_limit(at);
        }
    }

    /// Learns from how the peer of a side has closed its link how long frames to it may be: at once, because the side may take
    /// seconds to close, and the next connection should fare better.
    fn learn_frame_limit(&mut self, at: SideId) {
        let Some(close) = self.sides[at].driver.link_mut().take_peer_close() else { return };
        let reassembles = self.sides[at].driver.machine().splits();
        // Messages are refused because of what one client has shown, and not because of others at the same place.
        let is_anyone = !reassembles && at == SideId::Downstream && !self.names.downstream.is_introduced();
        let frame = close.frame.filter(|_| !is_anyone);
        let declared_cap = self.sides[at].driver.link().declared_cap();
        let close = PeerClose { code: close.code, reassembles, frame };
        let verdict = self.records.frame_limits.learn(&self.names[at], close);
        match verdict {
            Verdict::Halved { .. } => self.records.count("frame-limit-halved"),
            Verdict::Refused(_) => self.records.count("frame-limit-refused"),
            Verdict::Ordinary | Verdict::Known => {}
        }
        verdict.log(at, &self.names[at], declared_cap);
        self.sides[at].note_peer_close(verdict != Verdict::Ordinary);
    }
}

/// A stray line as the log shows it. A line that was meant as a message is not shown.
fn shown(line: &[u8]) -> String {
    let is_message = |key: &[u8]| line.windows(key.len()).any(|window| window == key);
    if is_message(br#""jsonrpc""#) || is_message(br#""method""#) {
        return "meant as one, but not JSON-RPC 2.0".into();
    }
    format!("{:?}", String::from_utf8_lossy(line.get(..MAX_SHOWN_BYTES).unwrap_or(line)))
}

/// Whether a message was refused for what it is. One that is too slow now, or finds a full queue, may pass another time.
const fn is_permanent(error: &SendError) -> bool {
    matches!(
        error,
        SendError::NotJsonRpc
            | SendError::TooDeep { .. }
            | SendError::NoSegments(_)
            | SendError::TooLarge(_)
            | SendError::TooManySegments(_)
            | SendError::NoToken(_)
    )
}

/// The code with which the other side is closed when side `at` has closed for this reason: the table "Close codes
/// across a gateway" in `docs/design/net.md`. `None` if the other side gets the same reason.
const fn close_code_for_other_side(at: SideId, reason: &CloseReason) -> Option<u16> {
    Some(match reason {
        CloseReason::Unsendable { .. } => return None,
        CloseReason::Peer { code: 1005 } => 1000,
        // The other side is not to blame for the rule that this one broke.
        CloseReason::Violation(_) | CloseReason::Idle(_) | CloseReason::Peer { code: ABNORMAL | 1015 } => match at {
            SideId::Downstream => 1001,
            SideId::Upstream => BAD_GATEWAY,
        },
        reason => reason.code(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_as_a_message_is_not_shown() {
        assert_eq!(shown(b"ready\x1b[0m"), r#""ready\u{1b}[0m""#);
        assert_eq!(shown(br#"{"level":"info"}"#), r#""{\"level\":\"info\"}""#);
        for line in [r#"[{"jsonrpc":"2.0","method":"login","params":"secret"}]"#, r#"{"id":1,"method":"secret"}"#] {
            assert!(!shown(line.as_bytes()).contains("secret"), "{line}");
        }
    }

    #[test]
    fn only_what_never_passes_is_remembered() {
        let over = Over { size: 2, limit: 1 };
        let deep = SendError::TooDeep { depth: 2, limit: 1 };
        let long = [SendError::NoSegments(over), SendError::TooLarge(over), SendError::TooManySegments(over)];
        for error in long.into_iter().chain([deep, SendError::NotJsonRpc]) {
            assert!(is_permanent(&error), "{error}");
        }
        let slow = SendError::TooSlow { size: 2, needed_ms: 2000, limit_ms: 1, rate: 1, retry_after_ms: 1 };
        for error in [slow, SendError::QueueFull(over), SendError::Disconnected] {
            assert!(!is_permanent(&error), "{error}");
        }
    }
}
