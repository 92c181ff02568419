//! What a host and a client say to each other beside frames, and the names of their groups.
//!
//! The payload of a message is a text. A frame is its number, a colon and the frame itself; everything else is a JSON object.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The version of what is said here.
pub(super) const VERSION: u32 = 1;

/// What is said beside frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "breakbulk", rename_all = "camelCase")]
pub(super) enum Control {
    /// A client begins a link, in the group of the host. It may take so many bytes of frames.
    Hello { version: u32, link: String, grant: u64 },
    /// The host has the link. It may take so many bytes of frames. The instance is another one each time that the host starts.
    Welcome { instance: String, grant: u64 },
    /// The sender waits: it needs a grant of so many bytes in all for its next frame.
    Need { bytes: u64 },
    /// The receiver takes so many bytes in all since the beginning.
    Grant { bytes: u64 },
    /// The sender has nothing to send, and gives back what it was granted beyond so many bytes in all.
    GiveBack { bytes: u64 },
    /// The sender is there, and asks the receiver whether it is.
    Ping,
    /// The sender is there.
    Pong,
    /// The link ends, with a close code and a text.
    Close { code: u16, text: String },
}

/// A payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    /// A frame, with its number.
    Frame { number: u64, frame: &'a [u8] },
    /// Anything else.
    Control(Control),
}

impl Control {
    /// As the payload of a message.
    pub(super) fn text(&self) -> String {
        // Such a value is always JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl<'a> Payload<'a> {
    /// Reads the inside of a JSON string. Frames stay escaped. `None` if it is neither a frame nor something that we know.
    pub(super) fn parse(inside: &'a [u8]) -> Option<Self> {
        if inside.first().is_some_and(u8::is_ascii_digit) {
            let colon = inside.iter().take(MAX_DIGITS + 1).position(|byte| *byte == b':')?;
            let (digits, rest) = inside.split_at_checked(colon)?;
            let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
            return Some(Self::Frame { number, frame: rest.get(1..)? });
        }
        let mut text = vec![0; inside.len()];
        let len = breakbulk_proto::json::unescape(&mut text, inside)?;
        serde_json::from_slice(text.get(..len)?).ok().map(Self::Control)
    }
}

/// What stands before the frame with this number.
pub(super) fn frame_prefix(number: u64) -> Bytes {
    format!("{number}:").into()
}

/// The digits of the largest number.
pub(super) const MAX_DIGITS: usize = 20;

/// The group in which a host is greeted.
pub(super) fn host_group(host: &str) -> String {
    format!("breakbulk.{host}")
}

/// The group of a link in which its host listens.
pub(super) fn up_group(host: &str, link: &str) -> String {
    format!("breakbulk.{host}.{link}.up")
}

/// The group of a link in which its client listens.
pub(super) fn down_group(host: &str, link: &str) -> String {
    format!("breakbulk.{host}.{link}.down")
}

/// Whether a text is the id of a link: 32 hexadecimal digits.
pub(super) fn is_link_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
}

/// A new random id.
pub(super) fn random_id() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_what_is_said_beside_them_are_told_apart() {
        let frame = Payload::parse(br#"17:{\"a\":1}"#);
        assert_eq!(frame, Some(Payload::Frame { number: 17, frame: br#"{\"a\":1}"# }));
        let hello = Control::Hello { version: 1, link: random_id().unwrap(), grant: 5 };
        let quoted = crate::wire::quoted(&hello.text());
        let inside = &quoted.as_bytes()[1..quoted.len() - 1];
        assert_eq!(Payload::parse(inside), Some(Payload::Control(hello)));
        assert_eq!(Control::Ping.text(), r#"{"breakbulk":"ping"}"#);
        for bad in ["", "x", "17", "17x:{}", "99999999999999999999999:{}", "{}", r#"{\"breakbulk\":\"later\"}"#] {
            assert_eq!(Payload::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
