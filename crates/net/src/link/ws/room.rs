//! Room for a long frame that is not whole yet: asked for before the stack sets anything aside for it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use breakbulk_proto::{Account, Grant, Schedule};

use crate::driver::now;

/// Up to here a message needs no leave: every connection may hold so much.
const FREE: u64 = 64 << 10;
/// The time in which a frame should be whole. One that takes longer goes first when others need its room.
const FRAME_TIME: Duration = Duration::from_secs(30);
/// How often room is asked for again, and how often we look whether a frame has to go.
const RETRY: Duration = Duration::from_millis(100);

/// What the frames of one link may take.
#[derive(Debug)]
pub(super) struct Room {
    account: Account,
    /// What is longer is refused by the stack, and needs no room.
    max_frame_bytes: u64,
    grant: Option<Grant>,
    /// Of the message that came last.
    last: Option<Grant>,
    answer: Answer,
    timer: Pin<Box<Sleep>>,
}

/// What was said when room was last asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    /// Not now. Nothing is held meanwhile, so nobody waits for us.
    Later,
    /// No, to a message that has room already and needs more, or that had to give it up.
    No(u64),
}

impl Room {
    pub(super) fn new(account: Account, max_frame_bytes: u64) -> Self {
        let timer = Box::pin(tokio::time::sleep(RETRY));
        Self { account, max_frame_bytes, grant: None, last: None, answer: Answer::Yes, timer }
    }

    /// Whether a message may grow from `before` to `bytes`; 0 where it begins.
    pub(super) fn ask(&mut self, before: u64, bytes: u64) -> bool {
        if before == 0 {
            self.finish();
        }
        let is_granted = self.grant.as_ref().is_some_and(|grant| grant.bytes() >= bytes);
        if is_granted || bytes <= FREE || bytes > self.max_frame_bytes {
            return true;
        }
        self.answer = match &mut self.grant {
            None => {
                let schedule = Schedule { started: now(), timeout: FRAME_TIME };
                self.grant = self.account.reserve(bytes, schedule).ok();
                if self.grant.is_some() { Answer::Yes } else { Answer::Later }
            }
            Some(grant) => grant.grow_to(bytes, now()).map_or(Answer::No(bytes), |()| Answer::Yes),
        };
        self.timer.as_mut().reset(Instant::now() + RETRY);
        self.answer == Answer::Yes
    }

    /// Says how much has come of the message that is on its way, whose length is 0 if there is none.
    pub(super) fn note(&mut self, message: u64, passed: u64) {
        match &self.grant {
            Some(grant) if message > 0 => grant.note_received(passed),
            _ => self.finish(),
        }
    }

    /// The message is whole. Its room is kept; if nobody takes the message, it goes like one that stands still.
    fn finish(&mut self) {
        if let Some(grant) = self.grant.take() {
            grant.note_received(0);
            self.last = Some(grant);
        }
    }

    /// The last message is not ours any more.
    pub(super) fn release_last(&mut self) {
        self.last = None;
    }

    /// Whether a message waits until room is asked for again.
    pub(super) const fn waits(&self) -> bool {
        matches!(self.answer, Answer::Later)
    }

    /// Ready when there is no reason to wait any more before room is asked for.
    pub(super) fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.waits() { self.timer.as_mut().poll(cx) } else { Poll::Ready(()) }
    }

    /// Ready, with its length, when the message on its way, or the last, has to go.
    pub(super) fn poll_denied(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        loop {
            if let Answer::No(bytes) = self.answer {
                return Poll::Ready(bytes);
            }
            let grants = || self.grant.iter().chain(&self.last);
            if let Some(grant) = grants().find(|grant| grant.evicted()) {
                self.answer = Answer::No(grant.bytes());
            } else if grants().next().is_none() || self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            } else {
                self.timer.as_mut().reset(Instant::now() + RETRY);
            }
        }
    }

    /// Whether the message on its way has to go: nothing more of it is kept.
    pub(super) const fn is_denied(&self) -> bool {
        matches!(self.answer, Answer::No(_))
    }
}
