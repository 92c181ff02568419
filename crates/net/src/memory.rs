//! The memory that frames, lines and messages take up, and who may wait for whom.
//!
//! Every byte that a gateway holds for a peer is in one pool, whose size is the `memory` setting. The pool has four shares, and
//! a part of it is reserved for each:
//!
//! - **messages** from clients, and **messages** from hosts: a message has one [`Reservation`] from its first byte until the
//!   link to its receiver has written its last. Enough for the longest message is reserved for each direction.
//! - **frames** from clients, and **frames** from hosts: a segment that is not whole yet, on links where messages come in
//!   segments. Enough for two of the longest is reserved. On other links a frame is a message, and counted there.
//!
//! What is not reserved goes to whoever asks first, up to the quota of its principal. The quota has the same four shares. Each
//! connection has a floor in each share beside that, so short messages never wait. The bytes of links that have not found
//! their host yet, of buffers of the system, and of close texts are not counted.
//!
//! # Nobody waits for ever
//!
//! - **Messages wait in one direction.** A message that is arriving waits for memory of its own direction. A message that has
//!   arrived waits for its receiver to read. Neither waits for anything that goes the other way, since what is reserved for that
//!   cannot be taken. So when several gateways stand in a row, a chain of waiting runs from a sender to the last receiver, and
//!   ends there: it never comes back. A receiver that takes nothing is closed with 1013 when other principals need its memory,
//!   or by its own silence.
//! - **A message that waits for memory holds none, or can be finished.** A WebSocket message in one frame, and a group of
//!   segments, reserve all of it before they begin. A WebSocket message in several frames, and a line, have no known length.
//!   They reserve a part only if what is left then would take them to the longest length allowed: so the one that reserved last
//!   can always finish, and after it the one before.
//! - **Segments that begin a message leave memory for those that go on with one.** A segment waits in its frame's memory until
//!   there is memory for its message, which may be held by messages whose other segments have yet to come. So a link that has
//!   begun no message may take frame memory only if the longest frame still fits beside it. Links that are amid a message can
//!   always have that, one after the other, and need it only until the frame is whole: the memory of their message is there.
//! - **A message that has arrived goes on whether or not there is memory for it to wait in.** That is so for short ones, which
//!   were not reserved as they came. The sender is not read again until there is.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use breakbulk_proto::{Account, Budget, BudgetConfig, Grant, Limits, LimitsError, Schedule};

use crate::dialect::{Dialect, Setup};
use crate::driver::now;
use crate::link::{LinkError, NextFrame};

/// Up to here a frame needs no reservation: every connection may hold so much.
pub(crate) const FREE_FRAME: u64 = 64 << 10;
/// How long a frame, or a message that waits, should take. One that takes longer is evicted first when others need its memory.
const TIME: Duration = Duration::from_secs(30);
/// How often memory is asked for again, and how often it is looked whether a reservation was evicted.
const RETRY: Duration = Duration::from_millis(100);

/// Memory that is reserved for one frame, line or message. Dropping it gives the memory back.
#[derive(Debug, Default)]
pub(crate) struct Reservation(Option<Grant>);

impl Reservation {
    /// The reservation of a message of `bytes` bytes that waits for its receiver: the grant with which it arrived, or
    /// else a new one from `account`, which may be empty if there is no memory now.
    pub(crate) fn waiting(account: &Account, arrived: Option<Grant>, bytes: u64) -> Self {
        let schedule = Schedule { started: now(), timeout: TIME };
        match arrived {
            Some(mut grant) => {
                grant.complete(bytes);
                grant.wait(schedule);
                Self(Some(grant))
            }
            None => Self(account.reserve(bytes, schedule).ok()),
        }
    }

    /// Grows the reservation to `bytes` in all, if `headroom` more bytes remain available. Returns whether it did; if not, what was reserved
    /// stays reserved.
    pub(crate) fn try_grow(&mut self, account: &Account, bytes: u64, headroom: u64) -> bool {
        match &mut self.0 {
            Some(grant) => grant.grow_with_headroom(bytes, headroom, now()).is_ok(),
            none => {
                *none = account.reserve_with_headroom(bytes, headroom, Schedule { started: now(), timeout: TIME }).ok();
                none.is_some()
            }
        }
    }

    /// What is reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, Grant::bytes)
    }

    /// Whether nothing is reserved.
    pub(crate) const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the budget has evicted it, because others need the memory more.
    pub(crate) fn is_evicted(&self) -> bool {
        self.0.as_ref().is_some_and(Grant::evicted)
    }

    /// Notes how many bytes have arrived or left. The reservation that is furthest behind is evicted first.
    pub(crate) fn note_progress(&self, bytes: u64) {
        if let Some(grant) = &self.0 {
            grant.note_received(bytes);
        }
    }

    /// Hands over the memory of something that has arrived. It is not evicted any more.
    pub(crate) fn into_grant(self) -> Option<Grant> {
        let mut grant = self.0?;
        grant.complete(grant.bytes());
        Some(grant)
    }
}

/// When memory is asked for again.
#[derive(Debug)]
pub(crate) struct Retry(Pin<Box<Sleep>>);

impl Retry {
    pub(crate) fn new() -> Self {
        Self(Box::pin(tokio::time::sleep(RETRY)))
    }

    /// Ready once in each interval.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.0.as_mut().poll(cx));
        self.reset();
        Poll::Ready(())
    }

    fn reset(&mut self) {
        self.0.as_mut().reset(Instant::now() + RETRY);
    }
}

/// The memory in which the frames of one link arrive: one that is not whole, and the last one that was.
#[derive(Debug)]
pub(crate) struct FrameMemory {
    account: Account,
    max_frame_bytes: u64,
    arriving: Reservation,
    /// The memory of the last frame. If it is not taken over, it can be evicted like a frame that makes no progress.
    last: Reservation,
    state: FrameState,
    next_frame: NextFrame,
    retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameState {
    /// The requested bytes are reserved.
    Granted,
    /// There was no memory at the last attempt.
    Waiting,
    /// The budget has evicted a frame of so many bytes.
    Evicted(u64),
}

impl FrameMemory {
    pub(crate) fn new(account: Account, max_frame_bytes: u64) -> Self {
        Self {
            account,
            max_frame_bytes,
            arriving: Reservation::default(),
            last: Reservation::default(),
            state: FrameState::Granted,
            next_frame: NextFrame::default(),
            retry: Retry::new(),
        }
    }

    pub(crate) const fn set_next_frame(&mut self, next: NextFrame) {
        self.next_frame = next;
    }

    /// The longest frame.
    pub(crate) const fn max_frame_bytes(&self) -> u64 {
        self.max_frame_bytes
    }

    /// Whether a frame may take up `bytes` now, if it may grow to `longest` later.
    pub(crate) fn try_grow(&mut self, bytes: u64, longest: u64) -> bool {
        let beside = match self.next_frame {
            NextFrame::Begins => self.max_frame_bytes,
            NextFrame::GoesOn => 0,
        };
        let headroom = longest.saturating_sub(bytes).saturating_add(beside);
        let is_granted = self.arriving.bytes() >= bytes || self.arriving.try_grow(&self.account, bytes, headroom);
        if is_granted {
            self.state = FrameState::Granted;
        } else {
            self.state = FrameState::Waiting;
            self.retry.reset();
        }
        is_granted
    }

    /// Ready when a frame may take up `bytes`, and `longest` later; with an error when it was evicted.
    pub(crate) fn poll_grow(&mut self, bytes: u64, longest: u64, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        loop {
            if let Some(error) = self.evicted() {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_retry(cx));
            // The timer wakes the task while it waits for more of a frame, to check whether the frame was evicted.
            if self.try_grow(bytes, longest) && self.retry.poll(cx).is_pending() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ready when there is no reason to wait before memory is asked for.
    pub(crate) fn poll_retry(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_waiting() { self.retry.poll(cx) } else { Poll::Ready(()) }
    }

    /// Resolves when the budget evicts the frame that is arriving, or the last one.
    pub(crate) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        loop {
            if let Some(error) = self.evicted() {
                return Poll::Ready(error);
            }
            if self.arriving.is_none() && self.last.is_none() {
                return Poll::Pending;
            }
            ready!(self.retry.poll(cx));
        }
    }

    /// The error with which the link fails, if a frame was evicted.
    fn evicted(&mut self) -> Option<LinkError> {
        if let Some(frame) = [&self.arriving, &self.last].into_iter().find(|frame| frame.is_evicted()) {
            self.state = FrameState::Evicted(frame.bytes());
        }
        match self.state {
            FrameState::Evicted(bytes) => Some(LinkError::OverBudget(bytes)),
            FrameState::Granted | FrameState::Waiting => None,
        }
    }

    /// A frame waits for memory no more: it is short, or given up.
    pub(crate) const fn stop_waiting(&mut self) {
        if self.is_waiting() {
            self.state = FrameState::Granted;
        }
    }

    /// Whether a frame waits for memory: nothing more of it is read.
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.state, FrameState::Waiting)
    }

    /// Whether a frame was evicted: nothing more of it is kept.
    pub(crate) const fn is_evicted(&self) -> bool {
        matches!(self.state, FrameState::Evicted(_))
    }

    /// Whether memory is reserved for a frame that is not whole.
    pub(crate) const fn is_reserved(&self) -> bool {
        !self.arriving.is_none()
    }

    /// Notes how much of the frame has arrived.
    pub(crate) fn note_progress(&self, bytes: u64) {
        self.arriving.note_progress(bytes);
    }

    /// The frame is whole, or given up.
    pub(crate) fn finish(&mut self) {
        if self.is_reserved() {
            self.note_progress(0);
            self.last = std::mem::take(&mut self.arriving);
        }
    }

    /// Gives back the memory of the last frame.
    pub(crate) fn release_last(&mut self) {
        self.last = Reservation::default();
    }

    /// Hands over the memory of the last frame.
    pub(crate) fn take_last(&mut self) -> Option<Grant> {
        std::mem::take(&mut self.last).into_grant()
    }
}

/// The memory of one gateway, by the side that messages come from: one pool, with four shares.
#[derive(Debug)]
pub(crate) struct GatewayMemory {
    /// For messages.
    pub(crate) messages: [Budget; 2],
    /// For segments that are not whole yet.
    pub(crate) frames: [Budget; 2],
}

impl GatewayMemory {
    /// The memory of a gateway between two sides, and the limits of both, with as many groups as fit the memory.
    ///
    /// # Errors
    /// The budget is too small for the longest message of each direction at the same time.
    pub(crate) fn prove(setups: [&Setup; 2], budget: BudgetConfig) -> Result<(Self, [Limits; 2]), LimitsError> {
        let messages = setups.map(|setup| budget.reserve_for(setup.limits.max_message_bytes));
        let frames = setups.map(frames_reserve);
        let ([downstream, upstream], [downstream_frames, upstream_frames]) = (messages, frames);
        let reserved = [downstream, upstream, downstream_frames, upstream_frames];
        let all = reserved.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let most = budget.process_bytes.min(budget.principal_bytes);
        if all > most {
            let setup = if downstream >= upstream { setups[0] } else { setups[1] };
            return Err(LimitsError {
                key: "max_message_bytes",
                value: setup.limits.max_message_bytes,
                min: setup.limits.max_frame_bytes,
                max: longest_message(setups, budget),
            });
        }
        let limits = [0, 1].map(|at: usize| {
            let others = all.saturating_sub(messages[at]);
            let share = BudgetConfig {
                process_bytes: budget.process_bytes.saturating_sub(others),
                principal_bytes: budget.principal_bytes.saturating_sub(others),
                ..budget
            };
            Limits::prove(*setups[at].limits, &share)
        });
        let [near_limits, far_limits] = limits;
        let [downstream, upstream, downstream_frames, upstream_frames] = Budget::split(budget, reserved);
        let memory = Self { messages: [downstream, upstream], frames: [downstream_frames, upstream_frames] };
        Ok((memory, [near_limits?, far_limits?]))
    }

    /// The account of a link's frames.
    pub(crate) fn frames_of(&self, at: usize, dialect: Dialect, principal: Option<&str>) -> Account {
        let shares = if is_segmented(dialect) { &self.frames } else { &self.messages };
        shares[at].account(principal)
    }

    /// Bytes that are held.
    pub(crate) fn held(&self) -> u64 {
        self.messages.iter().chain(&self.frames).fold(0, |sum, share| sum.saturating_add(share.held()))
    }
}

/// Whether messages may come in several frames.
pub(crate) const fn is_segmented(dialect: Dialect) -> bool {
    match dialect {
        Dialect::Ahp | Dialect::Cep22 | Dialect::Stdio => true,
        Dialect::Plain => false,
    }
}

/// The memory that is reserved for segments of a side: two of the longest, because a segment that begins a message
/// leaves memory for another.
fn frames_reserve(setup: &Setup) -> u64 {
    match setup.max_link_frame_bytes() {
        longest if is_segmented(setup.dialect) && longest > FREE_FRAME => longest.saturating_mul(2),
        _ => 0,
    }
}

/// The longest message that the budget could hold. The memory that is not reserved for frames holds one message from
/// each side, and two more where a frame may be as long as a message.
fn longest_message(setups: [&Setup; 2], budget: BudgetConfig) -> u64 {
    let is_long = |setup: &&Setup| setup.dialect == Dialect::Stdio;
    let frames = setups
        .iter()
        .filter(|setup| !is_long(setup))
        .fold(0_u64, |sum, setup| sum.saturating_add(frames_reserve(setup)));
    let parts = if setups.iter().any(is_long) { if setups.iter().all(is_long) { 6 } else { 4 } } else { 2 };
    let part = budget.process_bytes.min(budget.principal_bytes).saturating_sub(frames) / parts;
    BudgetConfig { process_bytes: part, principal_bytes: part, ..budget }.largest_message()
}
