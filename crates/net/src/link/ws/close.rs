//! Close codes: which may go on the wire, and what goes in place of one that may not.

use breakbulk_proto::CloseReason;
use tokio_websockets::{CloseCode, Message};

/// No code at all.
const NONE: u16 = 1005;
/// The way broke, or its TLS did. Both are what one end of a gateway knows, and must not tell by this code.
const ABNORMAL: [u16; 2] = [1006, 1015];
/// The most that a close frame has room for beside its code.
const MAX_TEXT_BYTES: usize = 123;

/// The close frame for a reason.
pub(super) fn message(reason: &CloseReason) -> Message {
    let text = reason.text();
    Message::close(on_wire(reason.code()), &text[..text.floor_char_boundary(MAX_TEXT_BYTES)])
}

/// The code that is sent in place of `code`: itself, if it may be; else what comes nearest.
fn on_wire(code: u16) -> Option<CloseCode> {
    match CloseCode::try_from(code) {
        _ if code == NONE => None,
        // Somebody behind us is gone: to the peer we are a gateway without the other side.
        _ if ABNORMAL.contains(&code) => Some(CloseCode::BAD_GATEWAY),
        Ok(code) if !code.is_reserved() => Some(code),
        _ => Some(CloseCode::INTERNAL_SERVER_ERROR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_may_not_be_sent_are_replaced() {
        let sent = |code| on_wire(code).map(u16::from);
        for (code, on_wire) in [(1000, 1000), (1009, 1009), (1014, 1014), (3000, 3000), (4400, 4400), (4999, 4999)] {
            assert_eq!(sent(code), Some(on_wire));
        }
        assert_eq!(sent(1005), None);
        assert_eq!((sent(1006), sent(1015)), (Some(1014), Some(1014)));
        for code in [0, 999, 1004, 1016, 2999, 5000, u16::MAX] {
            assert_eq!(sent(code), Some(1011), "{code}");
        }
    }
}
