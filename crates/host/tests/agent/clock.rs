//! A clock for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use breakbulk_host::log::BoxFuture;
use breakbulk_host::test_support::agent::Clock;

/// Time that passes only when somebody waits.
#[derive(Debug, Default)]
pub(crate) struct QuickClock(AtomicU64);

impl Clock for QuickClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.0.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
        Box::pin(tokio::task::yield_now())
    }
}
