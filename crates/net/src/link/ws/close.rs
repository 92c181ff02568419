//! Close codes: which of them may be sent, and what is sent instead of the others.

use breakbulk_proto::CloseReason;
use tokio_websockets::{CloseCode, Message};

/// Stands for a close without a code.
const NONE: u16 = 1005;
/// Stand for a connection that broke, and for a failure of TLS. These codes must not be sent.
const ABNORMAL: [u16; 2] = [1006, 1015];
/// How many bytes of text a close frame can have.
const MAX_TEXT_BYTES: usize = 123;

/// The close frame for a reason.
pub(super) fn message(reason: &CloseReason) -> Message {
    let text = reason.text();
    Message::close(on_wire(reason.code()), &text[..text.floor_char_boundary(MAX_TEXT_BYTES)])
}

/// The code that is sent for `code`: the same if it may be sent, otherwise the nearest.
fn on_wire(code: u16) -> Option<CloseCode> {
    match CloseCode::try_from(code) {
        _ if code == NONE => None,
        // A connection on our other side broke. To this peer we are a gateway whose upstream is gone.
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
