//! What can be said about a WebSocket before it is one.

use breakbulk_proto::LimitsConfig;

use super::Keepalive;

/// How a WebSocket behaves, once its handshake is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocketConfig {
    /// The longest frame that we take. The peer of a longer one is told 1009 when the frame's header arrives. 4 MiB.
    pub max_frame_bytes: u64,
    /// The longest frame that the way to the peer takes. Unlimited.
    pub cap: u64,
    /// How a peer that has gone without a word is noticed, if it is. After 30 s.
    pub keepalive: Option<Keepalive>,
    /// On TCP: bytes that may wait in the system's buffer before it takes no more from us (`TCP_NOTSENT_LOWAT`, on
    /// Linux). What waits there can no longer be passed by a small message. 128 KiB; on
    /// loopback at most 32 KiB.
    pub max_unsent_bytes: u32,
}

impl Default for WebSocketConfig {
    fn default() -> Self {
        Self {
            max_frame_bytes: LimitsConfig::default().max_frame_bytes,
            cap: u64::MAX,
            keepalive: Some(Keepalive::default()),
            max_unsent_bytes: 128 << 10,
        }
    }
}
