//! Settings of a WebSocket.

use breakbulk_proto::LimitsConfig;

use super::Keepalive;

/// How a WebSocket behaves, once its handshake is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocketConfig {
    /// The longest frame that we accept. A longer one is refused with 1009 when its header arrives. 4 MiB.
    pub max_frame_bytes: u64,
    /// The longest frame that the connection to the peer takes. Unlimited.
    pub cap: u64,
    /// How a peer is noticed that is gone without a close. After 30 s of silence.
    pub keepalive: Option<Keepalive>,
    /// On TCP: how many unsent bytes may wait in the buffer of the system (`TCP_NOTSENT_LOWAT`, on Linux). A small message cannot overtake
    /// what waits there. 128 KiB; on loopback at most 32 KiB.
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
