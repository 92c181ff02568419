//! The limits of a relay. The defaults are those of the service.

use std::time::Duration;

use crate::connection_string::AccessKey;

/// The key and the limits of a relay.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RelayConfig {
    /// Signs the tokens of clients and of service SDKs.
    pub key: AccessKey,
    /// The longest frame that a client may send, and the longest body of a request: 1,000,000 bytes.
    pub cap: u64,
    /// The close code for a client that sends a longer frame. 1009.
    pub oversize_code: u16,
    /// Messages that may wait until a client acknowledges them: 1,000. With one more, the client is closed and forgotten.
    pub queue_messages: usize,
    /// Bytes of such messages: 16,000,000.
    pub queue_bytes: u64,
    /// Bytes of messages that wait, for all clients together: 512 MiB. What would be more is refused, and the sender is told.
    pub total_bytes: u64,
    /// How long a client is kept that has lost its WebSocket: 30 s. With zero, no connection can be recovered.
    pub keep: Duration,
    /// WebSockets at once. 16,384.
    pub max_connections: usize,
    /// Clients at once, with those that have lost their WebSocket and are kept: 32,768.
    pub max_clients: usize,
    /// Groups that one client may be in. 1,024.
    pub max_groups: usize,
    /// Acknowledgements that may wait for one client before nothing more is read from it. 1,024.
    pub max_control: usize,
    /// How long closing all WebSockets may take at the end. 2 s.
    pub farewell: Duration,
}

impl RelayConfig {
    /// The limits of the service, with this key.
    #[must_use]
    pub const fn new(key: AccessKey) -> Self {
        Self {
            key,
            cap: 1_000_000,
            oversize_code: 1009,
            queue_messages: 1_000,
            queue_bytes: 16_000_000,
            total_bytes: 512 << 20,
            keep: Duration::from_secs(30),
            max_connections: 16_384,
            max_clients: 32_768,
            max_groups: 1_024,
            max_control: 1_024,
            farewell: Duration::from_secs(2),
        }
    }
}
