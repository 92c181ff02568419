//! A timeout for answers that does not run while parts of long messages pass.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// When a part of a long message last passed on a connection, either way. Cloning shares it.
///
/// A caller that waits for an answer cannot know which message is moving: the answer, the request, or one before them. So any of them
/// extends the wait.
#[derive(Debug, Clone, Default)]
pub struct Activity(Arc<Mutex<Option<Instant>>>);

impl Activity {
    /// Notes that a part of a long message has passed.
    pub fn note(&self) {
        *self.lock() = Some(Instant::now());
    }

    /// Waits for `work` until no part of a long message has passed for `time`, and for `longest` in all. `None`: it was in vain.
    pub async fn timeout<T>(&self, time: Duration, longest: Duration, work: impl Future<Output = T>) -> Option<T> {
        let start = Instant::now();
        let mut until = after(start, time);
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                () = sleep_until(until) => {
                    let moved = self.lock().unwrap_or(start);
                    let later = after(moved.max(start), time).min(after(start, longest));
                    if later <= until {
                        return None;
                    }
                    until = later;
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time after a duration, or a year later if it cannot be represented.
fn after(start: Instant, time: Duration) -> Instant {
    start.checked_add(time).unwrap_or(start + Duration::from_hours(24 * 365))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn waits(moves_for: u32, most: u32) -> u64 {
        let (activity, start) = (Activity::default(), Instant::now());
        let moving = activity.clone();
        tokio::spawn(async move {
            for _ in 0..moves_for {
                tokio::time::sleep(SECOND).await;
                moving.note();
            }
        });
        assert!(activity.timeout(30 * SECOND, most * SECOND, pending::<()>()).await.is_none());
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_while_something_long_moves_and_at_most_so_long_in_all() {
        assert_eq!((waits(0, 500).await, waits(100, 500).await, waits(1000, 500).await), (30, 130, 500));
    }

    #[tokio::test(start_paused = true)]
    async fn what_moved_before_the_wait_does_not_count() {
        let activity = Activity::default();
        activity.note();
        tokio::time::sleep(5 * SECOND).await;
        let start = Instant::now();
        assert!(activity.timeout(SECOND, 500 * SECOND, pending::<()>()).await.is_none());
        assert_eq!(start.elapsed(), SECOND);
        assert_eq!(activity.timeout(SECOND, SECOND, async { 7 }).await, Some(7));
    }
}
