//! Questions that settings ask about an address.

pub(crate) use breakbulk::Address;
use breakbulk::Way;
pub(crate) use breakbulk::preset::Preset;

/// Whether it is our own standard input and output.
pub(crate) fn is_stdio(address: &Address) -> bool {
    matches!(address.way, Way::Stdio)
}

/// Whether it is a WebSocket.
pub(crate) fn is_web_socket(address: &Address) -> bool {
    matches!(address.way, Way::WebSocket { .. })
}

/// Whether it is a WebSocket over TLS.
pub(crate) fn is_tls(address: &Address) -> bool {
    matches!(address.way, Way::WebSocket { tls: true, .. })
}
