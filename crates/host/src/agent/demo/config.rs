//! What the demo may do, and how fast.

use std::time::Duration;

use crate::agent::EventsConfig;

/// What the demo may do, and how fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemoConfig {
    /// What its chance depends on. 0.
    pub seed: u64,
    /// Between two pieces of text. 30 ms: about as fast as one reads.
    pub pace: Duration,
    /// The same with `/slow`. 500 ms: time to pull a cable.
    pub slow_pace: Duration,
    /// The largest `/big`. 64 MiB.
    pub max_big_bytes: u64,
    /// The most calls of `/tools`. 32.
    pub max_tools: u32,
    /// How long a command may run. 60 s.
    pub command_time: Duration,
    /// How much a command may write. 16 MiB.
    pub command_bytes: usize,
    /// What may wait for the host.
    pub events: EventsConfig,
}

impl Default for DemoConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            pace: Duration::from_millis(30),
            slow_pace: Duration::from_millis(500),
            max_big_bytes: 64 << 20,
            max_tools: 32,
            command_time: Duration::from_secs(60),
            command_bytes: 16 << 20,
            events: EventsConfig::default(),
        }
    }
}
