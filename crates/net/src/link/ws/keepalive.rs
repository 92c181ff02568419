//! Notices a peer that is gone without a close or an end of the stream, by its silence.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// When to send a ping to a silent peer, and when to give it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// How long the peer may be silent before it gets a ping, and then each further ping. 10 s.
    pub ping_after: Duration,
    /// How long the peer may be silent before it counts as gone. 30 s.
    pub dead_after: Duration,
}

impl Keepalive {
    /// A peer counts as gone after this much silence, and gets two pings before.
    #[must_use]
    pub fn within(dead_after: Duration) -> Self {
        Self { ping_after: dead_after / 3, dead_after }
    }
}

impl Default for Keepalive {
    fn default() -> Self {
        Self::within(Duration::from_secs(30))
    }
}

/// Measures the silence of one peer. Only time in which we are polled counts, because otherwise nothing is read.
#[derive(Debug)]
pub(super) struct KeepaliveTimer {
    keepalive: Keepalive,
    /// Made at the first poll, because before that there may be no runtime.
    timer: Option<Pin<Box<Sleep>>>,
    /// When the silence began, plus the time in which we were not polled.
    silent_since: Instant,
    signs_of_life: u64,
}

/// What has to be done about the silence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeepaliveAction {
    /// Send a ping.
    Ping,
    /// Give the peer up. It has been silent for this long.
    Dead(Duration),
}

impl KeepaliveTimer {
    pub(super) fn new(keepalive: Keepalive) -> Self {
        Self { keepalive, timer: None, silent_since: Instant::now(), signs_of_life: 0 }
    }

    /// To be polled after everything that has arrived was read, with the number of signs of life so far.
    pub(super) fn poll(&mut self, signs_of_life: u64, cx: &mut Context<'_>) -> Poll<KeepaliveAction> {
        let Keepalive { ping_after, dead_after } = self.keepalive;
        // With an interval of zero this would never return.
        let ping_after = ping_after.max(Duration::from_millis(1));
        if std::mem::replace(&mut self.signs_of_life, signs_of_life) != signs_of_life {
            self.silent_since = Instant::now();
        }
        let since = &mut self.silent_since;
        let timer = self.timer.get_or_insert_with(|| {
            *since = Instant::now();
            Box::pin(tokio::time::sleep(ping_after.min(dead_after)))
        });
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            // If the timer is late, we were not polled for that time.
            *since = (*since + now.saturating_duration_since(timer.deadline())).min(now);
            let silence = now.saturating_duration_since(*since);
            if silence >= dead_after {
                return Poll::Ready(KeepaliveAction::Dead(silence));
            }
            if silence >= ping_after {
                timer.as_mut().reset((now + ping_after).min(*since + dead_after));
                return Poll::Ready(KeepaliveAction::Ping);
            }
            timer.as_mut().reset(*since + ping_after.min(dead_after));
        }
    }

    /// To be polled instead of [`poll`](Self::poll) while we do not read. Ready when a ping has to be sent: we do not answer the peer's own
    /// pings now, and it sees by ours that we are alive. Its silence counts only from when we read again.
    pub(super) fn poll_unread(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let period = self.keepalive.ping_after.max(Duration::from_millis(1));
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(period)));
        ready!(timer.as_mut().poll(cx));
        self.silent_since = Instant::now();
        timer.as_mut().reset(self.silent_since + period);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn keepalive() -> KeepaliveTimer {
        KeepaliveTimer::new(Keepalive { ping_after: Duration::from_secs(10), dead_after: Duration::from_secs(30) })
    }

    async fn beat(keepalive: &mut KeepaliveTimer, signs_of_life: u64) -> KeepaliveAction {
        poll_fn(|cx| keepalive.poll(signs_of_life, cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_asked_twice_and_then_given_up() {
        let (mut keepalive, start) = (keepalive(), Instant::now());
        for second in [10, 20] {
            assert_eq!(beat(&mut keepalive, 0).await, KeepaliveAction::Ping);
            assert_eq!(start.elapsed().as_secs(), second);
        }
        assert!(matches!(beat(&mut keepalive, 0).await, KeepaliveAction::Dead(silence) if silence.as_secs() == 30));
        assert_eq!(start.elapsed().as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn any_sign_of_life_begins_the_count_again() {
        let mut keepalive = keepalive();
        for sign in 1..10 {
            for _ in 0..2 {
                assert_eq!(beat(&mut keepalive, sign).await, KeepaliveAction::Ping);
            }
            tokio::time::advance(Duration::from_secs(9)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_listens_does_not_count() {
        let mut keepalive = keepalive();
        assert_eq!(beat(&mut keepalive, 0).await, KeepaliveAction::Ping);
        tokio::time::advance(Duration::from_secs(3600)).await;
        let resumed = Instant::now();
        assert_eq!(beat(&mut keepalive, 0).await, KeepaliveAction::Ping);
        assert!(matches!(beat(&mut keepalive, 0).await, KeepaliveAction::Dead(_)));
        assert_eq!(resumed.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn times_of_zero_do_not_hang() {
        let zero = Keepalive { ping_after: Duration::ZERO, dead_after: Duration::from_millis(5) };
        let mut keepalive = KeepaliveTimer::new(zero);
        while beat(&mut keepalive, 0).await == KeepaliveAction::Ping {}
    }
}
