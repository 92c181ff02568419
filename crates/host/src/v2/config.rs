//! The limits of v2 connections.

use std::time::Duration;

use breakbulk_lifecycle::v2::PERMISSION_TIMEOUT_MS;
use breakbulk_lifecycle::v2::wire::CommandLimits;

/// The limits of v2 connections.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct V2Config {
    /// How much a command may hold. `breakbulk serve` sets its length to `max_message`.
    pub commands: CommandLimits,
    /// How long a client may take for its first command. 10 s.
    pub hello_time: Duration,
    /// How long a client may read nothing while events wait for it. 30 s.
    pub stall_time: Duration,
    /// Sessions that one connection may watch. 64.
    pub max_watches: usize,
    /// Longer events are cut into several. 256 KiB.
    pub max_event_bytes: usize,
    /// Longer results and prompts are cut, and can be fetched whole. 64 KiB.
    pub max_result_bytes: usize,
    /// How long a permission waits for an answer once a v2 client was told of it. Then it is denied. 120 s.
    pub permission_timeout: Duration,
}

impl Default for V2Config {
    fn default() -> Self {
        Self {
            commands: CommandLimits::default(),
            hello_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(30),
            max_watches: 64,
            max_event_bytes: 256 << 10,
            max_result_bytes: 64 << 10,
            permission_timeout: Duration::from_millis(PERMISSION_TIMEOUT_MS),
        }
    }
}
