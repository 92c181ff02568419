//! Time as an argument.

use std::time::{Duration, Instant};

use crate::log::BoxFuture;

/// What tells the time and waits.
pub trait Clock: Send + Sync + 'static {
    /// Time since some beginning. Never goes back.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;
}

/// The time that passes.
#[derive(Debug, Clone, Copy)]
pub struct RealClock(Instant);

impl RealClock {
    /// Begins now.
    #[must_use]
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }
}
