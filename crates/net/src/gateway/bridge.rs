//! Two machines and a loop: what one side says, the other hears.

mod settle;

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use breakbulk_proto::{
    Capacity, CloseReason, Event, Input, Limits, Machine, Message, Meta, Over, SendError, Ticket, Transmit, Violation,
    plain,
};

use self::settle::Wait;
use super::debts::Debts;
use super::frame_limits::{PeerClose, Verdict};
use super::name::Name;
use super::side::{Arrived, Passage, Side};
use super::{Ended, Gateway, Lost, Passed, Records, Reuse, Toward, Watcher, Words};
use crate::deferred_drop::drop_in_background;
use crate::dialect::Setup;
use crate::driver::{ABNORMAL, now};
use crate::len64;
use crate::link::{HalfClose, Lease, Link};
use crate::log_limit::LogLimit;
use crate::look::Look;

/// The code for "the side behind the gateway is gone".
const BAD_GATEWAY: u16 = 1014;
/// The code for "come again".
const RESTART: u16 = CloseReason::Restart.code();
/// The longest part of a stray line that is shown.
const SHOWN: usize = 400;

/// Two sides, joined.
pub(super) struct Bridge<'a> {
    sides: [Side; 2],
    names: [Name; 2],
    records: &'a Records,
    /// How long what is under way has to finish.
    drain: Duration,
    /// What each side has yet to answer.
    debts: Debts,
    /// Of a host that goes on to another client: busy while it owes something.
    lease: Option<Lease>,
    /// The setting that says how long frames of each side may be.
    frame_settings: [&'static str; 2],
    /// Bounds the lines about single messages.
    log_limit: LogLimit,
    watcher: Option<Watcher>,
    /// Whose turn it is to be asked first.
    turn: usize,
    /// For how long what is under way may go on, now that it ends.
    wait: Option<Wait>,
    /// Why both sides are to be closed when nothing is under way any more, or the time is up.
    ending: Option<CloseReason>,
    /// Whether the host knows that nothing more comes.
    is_told: bool,
    /// What was given up.
    lost: Lost,
}

/// The side that clients are on.
pub(super) const NEAR: usize = 0;
/// The side that the host is on.
pub(super) const FAR: usize = 1;

/// What happens next.
enum Next {
    /// A side's machine has something to say.
    Event(usize, Event),
    /// A side sends nothing more.
    Ended,
    /// What waits for a side has to go, because others need its room more.
    Evicted(usize, CloseReason),
    /// Both sides are closed.
    Over,
}

impl<'a> Bridge<'a> {
    /// Joins two sides. `names` are those under which each peer is remembered.
    pub(super) fn new(
        mut sides: [Side; 2],
        names: [Name; 2],
        gateway: &'a Gateway,
        reuse: Option<Reuse>,
        watcher: Option<Watcher>,
    ) -> Self {
        sides.iter_mut().for_each(|side| side.driver.set_patient(true));
        // Where nobody waits for what is owed, and nobody is told what passes, a look at the front of a message will do.
        let has_half_close = sides.iter().any(|side| side.driver.link().status().half_close == HalfClose::Supported);
        let is_exact = has_half_close || reuse.is_some() || watcher.is_some();
        let debts = Debts::new(is_exact, reuse.as_ref().map(|reuse| reuse.patience));
        let (records, drain) = (&gateway.records, gateway.drain);
        let (wait, ending, is_told, lost) = (None, None, false, Lost::default());
        let frame_settings = gateway.setups.each_ref().map(Setup::max_frame_setting);
        Self {
            sides,
            names,
            records,
            drain,
            debts,
            lease: reuse.map(|reuse| reuse.lease),
            frame_settings,
            log_limit: LogLimit::default(),
            watcher,
            turn: NEAR,
            wait,
            ending,
            is_told,
            lost,
        }
    }

    /// Passes messages until both sides have ended; says how each did. `stop` ends both, with time to finish.
    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> Ended {
        tokio::pin!(stop);
        let mut stopping = false;
        loop {
            let next = self.wait.and_then(Wait::next);
            let (deadline, is_timed) = (next.unwrap_or_else(Instant::now), next.is_some());
            tokio::select! {
                next = poll_fn(|cx| self.poll(cx)) => match next {
                    Next::Event(side, event) => self.take(side, event),
                    Next::Ended => {}
                    Next::Evicted(side, reason) => self.evict(side, reason),
                    Next::Over => break,
                },
                () = &mut stop, if !stopping => {
                    stopping = true;
                    self.sides.iter_mut().for_each(Side::wind_up);
                    self.stop();
                }
                () = sleep_until(deadline), if is_timed => self.look(),
            }
            self.settle();
        }
        for (rule, left_out) in self.log_limit.into_left_out() {
            warn!(rule, left_out, "there were more messages like those in the log");
        }
        let gone = || CloseReason::Peer { code: ABNORMAL };
        let ends = self.sides.map(|side| (side.closed.unwrap_or_else(gone), side.end_words));
        let [(near, near_words), (far, far_words)] = ends;
        Ended { near, far, words: Words { near: near_words, far: far_words }, lost: self.lost }
    }

    /// What happens next on either side. A side is read only while the other has room.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        self.turn = other(self.turn);
        for at in [self.turn, other(self.turn)] {
            let peer = &self.sides[other(at)];
            let has_room = peer.closed.is_some() || peer.has_room();
            let side = &mut self.sides[at];
            if side.closed.is_some() {
                continue;
            }
            side.driver.set_reading(has_room);
            let event = side.poll_event(cx);
            self.learn(at);
            if let Poll::Ready(Some(event)) = event {
                return Poll::Ready(Next::Event(at, event));
            }
            let side = &mut self.sides[at];
            if side.driver.has_ended() && !std::mem::replace(&mut side.has_ended, true) {
                return Poll::Ready(Next::Ended);
            }
        }
        let is_over = self.sides.iter().all(|side| side.closed.is_some());
        if is_over { Poll::Ready(Next::Over) } else { self.poll_memory(cx) }
    }

    /// Looks after the memory of what waits for either side.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        for at in [NEAR, FAR] {
            match self.sides[at].poll_memory(cx) {
                Poll::Ready(Ok(())) => {
                    // The other side is read again.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Err(reason)) => return Poll::Ready(Next::Evicted(at, reason)),
                Poll::Pending => {}
            }
        }
        Poll::Pending
    }

    fn evict(&mut self, at: usize, reason: CloseReason) {
        self.records.count(reason.name());
        self.sides[at].close(reason);
    }

    fn take(&mut self, at: usize, event: Event) {
        match event {
            Event::Message { message, ordinal, meta, .. } => {
                let (began, frames) = self.sides[at].arrived(ordinal);
                let look = self.debts.look(&message);
                let arrived = self.sides[at].take_memory(len64(message.len()));
                let reservation = self.sides[other(at)].reserve(arrived, len64(message.len()));
                self.pass(at, Passage { message, look, began, frames: (frames, 0), reservation }, meta);
            }
            Event::Sent { ticket } => self.sent(at, ticket),
            Event::SendFailed { ticket, error, reply } => self.send_failed(at, ticket, &error, reply),
            Event::ReceiveFailed { ordinal, violation, reply } => {
                self.sides[at].arrived(ordinal);
                let rule = violation.name();
                if let Some(permit) = self.log_limit.permit(rule) {
                    let left_out = permit.left_out();
                    warn!(side = name(at), rule, left_out, "a message was refused: {violation}");
                }
                if let Violation::BadLine { answered: false, .. } = violation {
                    self.lost.messages = self.lost.messages.saturating_add(1);
                }
                self.note_reply(at, reply.as_ref());
                self.tell(other(at), reply);
            }
            Event::Progress(progress) => self.sides[at].note_frame(progress),
            Event::Expired { ordinal, received } => {
                self.sides[at].arrived(ordinal);
                warn!(side = name(at), received, "an unfinished message was given up: it took too long");
            }
            Event::Line(line) => {
                self.sides[at].note_line();
                info!(side = name(at), bytes = line.len(), "a line that is no message: {}", shown(&line));
            }
            Event::Closed(reason) => self.closed(at, reason),
            _ => {}
        }
    }

    /// Hands a message from side `at` to the other.
    fn pass(&mut self, at: usize, passage: Passage, meta: Meta) {
        let to = other(at);
        if let Some(client) = passage.look.client.as_ref().filter(|_| at == NEAR) {
            self.names[NEAR].introduce(client);
            self.fit(NEAR);
        }
        self.debts.note(at, &passage.message, &passage.look);
        let size = passage.message.len();
        if self.debts.patience.is_some() && self.sides[to].closed.is_some() {
            debug!(to = name(to), size, method = passage.look.method, "dropped: nobody is there any more");
            return drop_in_background(passage.message, passage.reservation);
        }
        if self.records.dropped.knows(&self.names[NEAR], &passage.message) {
            self.records.count("dropped-unsendable");
            if let Some(permit) = self.log_limit.permit("dropped-unsendable") {
                let left_out = permit.left_out();
                warn!(to = name(to), size, left_out, "an action that cannot be sent there came again, and is left out");
            }
            return;
        }
        if let Some(limit) = self.records.frame_limits.refuses(&self.names[to], len64(size)) {
            return self.refuse(to, passage, limit);
        }
        self.sides[to].send(passage, meta);
    }

    /// Refuses a message for a side that it would only close: as a machine does whose link takes no more than `limit`.
    fn refuse(&mut self, to: usize, passage: Passage, limit: u64) {
        let mut machine = plain::Connection::new(plain::Config::new(Limits::default()));
        machine.handle(Input::Capacity(Capacity::of(limit)), now());
        machine.handle(Input::send(Ticket(0), passage.message.clone()), now());
        while let Some(Transmit::Frame { bytes, .. }) = machine.poll_transmit(now()) {
            self.tell(to, Some(bytes));
        }
        if let Some(Event::SendFailed { error, reply, .. }) = machine.poll_event() {
            self.not_sent(to, &passage, &error, reply);
        }
    }

    /// Tells a side's machine how long frames may be, as far as is known of its peer.
    fn fit(&mut self, at: usize) {
        let limit = self.records.frame_limits.limit(&self.names[at]);
        self.sides[at].driver.link_mut().set_limit(limit);
        let capacity = self.sides[at].driver.link().capacity();
        self.sides[at].driver.handle(Input::Capacity(capacity));
    }

    /// Sends a side an answer that a machine made.
    fn tell(&mut self, to: usize, reply: Option<Message>) {
        if let Some(message) = reply {
            let look = Look::front(&message);
            let reservation = self.sides[to].reserve(Arrived::Unreserved, len64(message.len()));
            let passage = Passage { message, look, began: now(), frames: (0, 0), reservation };
            self.sides[to].send(passage, Meta::default());
        }
    }

    fn sent(&mut self, at: usize, ticket: Ticket) {
        let Some(passage) = self.sides[at].done(ticket, true) else { return };
        let size = passage.message.len();
        self.restore_frame_limit(at, size);
        self.records.stats.passed(at, size);
        debug!(to = name(at), size, method = passage.look.method, "passed");
        if let Some(watcher) = &mut self.watcher {
            let (toward, took) = (if at == FAR { Toward::Far } else { Toward::Near }, passage.took());
            let frames = (passage.frames.0, passage.frames.1.saturating_add(1));
            let passed = Passed::new(toward, passage.look.kind, passage.message, frames, took);
            watcher(Passed { method: passage.look.method, ..passed });
        }
    }

    /// A message that side `at` was handed was not sent. Its sender hears of it where it can.
    fn send_failed(&mut self, at: usize, ticket: Ticket, error: &SendError, reply: Option<Message>) {
        if *error == SendError::Disconnected {
            self.debts.spoil(at);
        }
        if let Some(passage) = self.sides[at].done(ticket, false) {
            self.not_sent(at, &passage, error, reply);
        }
    }

    fn not_sent(&mut self, at: usize, passage: &Passage, error: &SendError, reply: Option<Message>) {
        let (size, method) = (passage.message.len(), passage.look.method.as_deref());
        self.note_reply(at, reply.as_ref());
        if self.sides[other(at)].closed.is_some() {
            return debug!(to = name(at), size, method, "a message was not sent: {error}");
        }
        self.records.count(error.name());
        let rule = error.name();
        match self.log_limit.permit(rule) {
            Some(permit) => {
                let left_out = permit.left_out();
                warn!(to = name(at), size, method, rule, left_out, "a message was not sent: {error}");
            }
            None => debug!(to = name(at), size, method, rule, "a message was not sent: {error}"),
        }
        self.tell(other(at), reply);
        // The method may stand at the end. A side that has ended says so itself.
        if *error != SendError::Disconnected && Look::sure(&passage.message).is_ordered() {
            if is_for_good(error) {
                self.records.dropped.remember(&self.names[NEAR], &passage.message);
            }
            self.sides[at].close(CloseReason::Unsendable(error.clone()));
        }
    }

    /// A side has ended: the other ends when it has sent what it was handed.
    fn closed(&mut self, at: usize, reason: CloseReason) {
        let counters = self.sides[at].driver.machine().counters().iter().filter(|(what, _)| *what != reason.name());
        counters.for_each(|(what, count)| info!(side = name(at), count, "{what}"));
        self.note_loss(at);
        self.sides[at].end(reason.clone());
        info!(side = name(at), code = reason.code(), "ended: {}", self.sides[at].end_words);
        match &reason {
            CloseReason::Violation(Violation::FrameTooLarge(Over { size, limit })) => {
                let setting = self.frame_settings[at];
                warn!(
                    side = name(at),
                    size, limit, "it sent a frame of {size} bytes, and {setting} allows {limit} bytes"
                );
            }
            CloseReason::Evicted | CloseReason::NoRoom(_) => {
                warn!(
                    side = name(at),
                    "there was no room for all that memory and memory_per_token allow: it had to go"
                );
            }
            _ => {}
        }
        if self.sides[other(at)].closed.is_some() {
            return;
        }
        let onward = if self.sides[at].taught == Some(true) {
            CloseReason::Peer { code: RESTART }
        } else {
            self.unanswered_close().unwrap_or_else(|| passed_on(at, &reason))
        };
        self.end_after(at, onward);
    }

    /// A message has gone out in frames that are limited here: after enough of them, longer ones are tried.
    fn restore_frame_limit(&mut self, at: usize, size: usize) {
        let limit = self.sides[at].driver.link().limit();
        if limit == u64::MAX {
            return;
        }
        self.records.frame_limits.note_passed(&self.names[at], len64(size));
        // A lower one, which another link has shown, would end what has begun here.
        if self.records.frame_limits.limit(&self.names[at]) > limit {
            self.fit(at);
        }
    }

    /// Learns from how the peer of a side has closed its link how long frames to it may be: at once, since the rest of the end
    /// may take a while, and the next connection should fare better.
    fn learn(&mut self, at: usize) {
        let Some((code, frame)) = self.sides[at].driver.link().peer_close() else { return };
        if self.sides[at].taught.is_some() {
            return;
        }
        let reassembles = self.sides[at].driver.machine().splits();
        // Messages are refused for the sake of what one client has shown, and not of others who are where it is.
        let is_anyone = !reassembles && at == NEAR && !self.names[NEAR].is_introduced();
        let close = PeerClose { code, reassembles, frame: frame.filter(|_| !is_anyone) };
        let verdict = self.records.frame_limits.learn(&self.names[at], close);
        match verdict {
            Verdict::Halved { .. } => self.records.count("frame-limit-halved"),
            Verdict::Refused(_) => self.records.count("frame-limit-refused"),
            Verdict::Ordinary | Verdict::Known => {}
        }
        self.sides[at].taught = Some(super::report(at, &self.names[at], verdict));
    }
}

pub(super) const fn other(at: usize) -> usize {
    1 - at
}

pub(super) const fn name(at: usize) -> &'static str {
    if at == NEAR { "near" } else { "far" }
}

/// A stray line as the log shows it: what a program says on the side, and nothing that was meant to be a message.
fn shown(line: &[u8]) -> String {
    let is_message = |key: &[u8]| line.windows(key.len()).any(|window| window == key);
    if is_message(br#""jsonrpc""#) || is_message(br#""method""#) {
        return "meant as one, but not JSON-RPC 2.0".into();
    }
    format!("{:?}", String::from_utf8_lossy(line.get(..SHOWN).unwrap_or(line)))
}

/// Whether a message was refused for what it is. What is too slow now, or finds a full queue, may pass another time.
const fn is_for_good(error: &SendError) -> bool {
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

/// Why the other side is closed.
fn passed_on(at: usize, reason: &CloseReason) -> CloseReason {
    let code = match reason {
        // Whoever sent what cannot go on has to know it.
        CloseReason::Unsendable(_) => return reason.clone(),
        CloseReason::Peer { code: 1005 } => 1000,
        // What the peer did wrong, the other side did not.
        CloseReason::Violation(_) | CloseReason::Peer { code: ABNORMAL | 1015 } if at == NEAR => 1001,
        CloseReason::Violation(_) | CloseReason::Peer { code: ABNORMAL | 1015 } => BAD_GATEWAY,
        reason => reason.code(),
    };
    CloseReason::Peer { code }
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
            assert!(is_for_good(&error), "{error}");
        }
        let slow = SendError::TooSlow { size: 2, needed_ms: 2000, limit_ms: 1, rate: 1 };
        for error in [slow, SendError::QueueFull(over), SendError::Disconnected] {
            assert!(!is_for_good(&error), "{error}");
        }
    }
}
