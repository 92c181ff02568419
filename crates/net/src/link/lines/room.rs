//! Room for a line that has no end yet. Nobody knows how long it will be, so it is charged in two steps: as much as most long
//! lines need, and as much as the longest.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use breakbulk_proto::{Account, Grant, Schedule};

use crate::driver::now;
use crate::link::LinkError;

/// Up to here a line needs no leave: every connection may hold so much.
const FREE: u64 = 64 << 10;
/// The first step. What is longer is rare.
const USUAL: u64 = 1 << 20;
/// The time in which a line should be whole. One that takes longer goes first when others need its room.
const LINE_TIME: Duration = Duration::from_secs(30);
/// How often room is asked for again, and how often we look whether a line has to go.
const RETRY: Duration = Duration::from_millis(100);

/// What the lines of one link may take.
///
/// A line that waits for the second step keeps the first. Whoever has taken that has left the rest for one line to grow, and a
/// line that has all of it waits for nothing more: so lines wait only for what arrives.
#[derive(Debug)]
pub(super) struct Room {
    account: Account,
    most: u64,
    grant: Option<Grant>,
    /// Of the line that came last.
    last: Option<Grant>,
    waits: bool,
    timer: Pin<Box<Sleep>>,
}

impl Room {
    /// Room for lines that take up at most so many bytes.
    pub(super) fn new(account: Account, most: u64) -> Self {
        let (grant, last, waits) = (None, None, false);
        Self { account, most, grant, last, waits, timer: Box::pin(tokio::time::sleep(RETRY)) }
    }

    /// Ready when the line may take up `bytes`; with an error when it has to go, because others need its room more.
    pub(super) fn poll_grow(&mut self, bytes: u64, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.grant.is_none() && bytes <= FREE {
            return Poll::Ready(Ok(()));
        }
        loop {
            if let Some(error) = self.evicted() {
                return Poll::Ready(Err(error));
            }
            self.waits = self.waits || !self.ask(bytes);
            if self.poll_timer(cx).is_pending() {
                return if self.waits { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
            self.waits = false;
        }
    }

    /// Ready when the line has to go.
    pub(super) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        while self.grant.is_some() || self.last.is_some() {
            if let Some(error) = self.evicted() {
                return Poll::Ready(error);
            }
            ready!(self.poll_timer(cx));
        }
        Poll::Pending
    }

    /// Whether the line waits for room: nothing more of it is read meanwhile.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }

    /// So much of the line is there.
    pub(super) fn note(&self, bytes: u64) {
        if let Some(grant) = &self.grant {
            grant.note_received(bytes);
        }
    }

    /// The line is whole, or given up. Its room is kept; if nobody takes the line, it goes like one that stands still.
    pub(super) fn finish(&mut self) {
        self.note(0);
        (self.last, self.waits) = (self.grant.take(), false);
    }

    /// The last line is not ours any more.
    pub(super) fn release_last(&mut self) {
        self.last = None;
    }

    fn evicted(&self) -> Option<LinkError> {
        let grant = self.grant.iter().chain(&self.last).find(|grant| grant.evicted());
        grant.map(|grant| LinkError::NoRoom(grant.bytes()))
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.timer.as_mut().poll(cx));
        self.timer.as_mut().reset(Instant::now() + RETRY);
        Poll::Ready(())
    }

    fn ask(&mut self, bytes: u64) -> bool {
        let first = USUAL.min(self.most);
        if self.grant.is_none() {
            let schedule = Schedule { started: now(), timeout: LINE_TIME };
            self.grant = self.account.reserve_beside(first, self.most.saturating_sub(first), schedule).ok();
        }
        let grown = |grant: &mut Grant| grant.bytes() >= bytes || grant.grow_to(self.most, now()).is_ok();
        self.grant.as_mut().is_some_and(grown)
    }
}
