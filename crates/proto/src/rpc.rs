//! JSON-RPC: reads frames, compares ids, and writes the error responses that we make ourselves.

use std::borrow::Cow;

use crate::envelope::Envelope;
use crate::error::{LineFault, SendError, Violation};
use crate::json::{self, Found, Path, Paths, Scanner, Utf8, ValueKind};
use crate::message::Message;
use crate::recent::hash_of;

/// `MessageTooLarge` in the RFC; AHP 1.0.0 calls the same number `Conflict`. Decide by `data.reason`.
pub const MESSAGE_TOO_LARGE: i32 = -32011;

/// The code of JSON-RPC for a text that is not JSON.
const PARSE_ERROR: i32 = -32700;
/// The code of JSON-RPC for a text that is JSON, but not a valid message.
const INVALID_REQUEST: i32 = -32600;

/// The value of an id, as a hash. `1`, `1.0` and `10e-1` are the same id, and so are `"a"` and `"\u0061"`; `1` and `"1"` are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct IdKey(u64);

impl IdKey {
    pub(crate) fn of(raw: &[u8]) -> Self {
        Self(match (json::string(raw), json::number(raw)) {
            (Some(value), _) => hash_of(("string", value)),
            (None, json::Number::Int(value)) => hash_of(("integer", value)),
            (None, _) => hash_of(("verbatim", raw)),
        })
    }
}

/// Checks a text that arrived in one frame, and finds `paths` in it; they begin with those of the envelope.
///
/// # Errors
/// It is not UTF-8, not JSON, nested too deep, no object, or has a key of the envelope twice.
pub(crate) fn read_frame<const N: usize>(
    message: &Message,
    paths: &'static [Path; N],
    max_depth: u32,
) -> Result<(Paths<N>, Envelope), Violation> {
    let (mut utf8, mut scanner) = (Utf8::default(), Scanner::with_max_depth(Paths::new(paths), max_depth));
    for part in message.slices() {
        utf8.feed(part).map_err(|_| Violation::FrameNotUtf8)?;
        scanner.feed(part).map_err(|error| Violation::of_frame(error, max_depth))?;
    }
    utf8.finish().map_err(|_| Violation::FrameNotUtf8)?;
    let found = scanner.finish().map_err(|error| Violation::of_frame(error, max_depth))?;
    let envelope = Envelope::read(&found)?;
    Ok((found, envelope))
}

/// The string that was found, unescaped; `None` if it is none, or only its beginning has been seen.
pub(crate) fn string<'a>(message: &'a Message, found: Option<Found>) -> Option<Cow<'a, str>> {
    let found = found.filter(|found| found.kind == ValueKind::String)?;
    match message.read(found.span) {
        Cow::Borrowed(raw) => json::string(raw),
        Cow::Owned(raw) => json::string(&raw).map(|text| Cow::Owned(text.into_owned())),
    }
}

/// The number that was found.
pub(crate) fn number(message: &Message, found: Option<Found>) -> json::Number {
    found.map_or(json::Number::NotANumber, |found| json::number(&message.read(found.span)))
}

/// An error response with the text `why` and the reason's name. `id` is copied verbatim.
pub(crate) fn error_response(id: &[u8], why: &str, name: &str) -> Message {
    response(id, -32603, why, &format!(r#"{{"reason":"{name}"}}"#))
}

/// The error response for the caller of a request whose answer arrived, and broke a rule.
pub(crate) fn receive_failed(id: &[u8], violation: &Violation) -> Message {
    match violation {
        Violation::MessageTooLarge(over) | Violation::LineTooLong(over) => send_failed(id, &SendError::TooLarge(*over)),
        _ => error_response(id, &violation.to_string(), violation.name()),
    }
}

/// The error response for a peer whose request broke a rule.
pub(crate) fn refused(id: &[u8], violation: &Violation) -> Message {
    let code = match violation {
        Violation::MessageNotUtf8
        | Violation::MessageNotJson(_)
        | Violation::FrameNotUtf8
        | Violation::FrameNotJson(_)
        | Violation::BadLine { why: LineFault::NotUtf8 | LineFault::NotJson(_) | LineFault::Unfinished, .. } => {
            PARSE_ERROR
        }
        Violation::MessageNotJsonRpc
        | Violation::DuplicateKey(_)
        | Violation::TooDeep(_)
        | Violation::BadLine { .. } => INVALID_REQUEST,
        _ => return receive_failed(id, violation),
    };
    response(id, code, &violation.to_string(), &format!(r#"{{"reason":"{}"}}"#, violation.name()))
}

/// The error response for a message that could not be sent: `-32011` where its size is the reason.
pub(crate) fn send_failed(id: &[u8], error: &SendError) -> Message {
    let Some(over) = error.over() else {
        return error_response(id, &error.to_string(), error.name());
    };
    // These errors say how to allow transfers, or how slow the link is.
    let says_more = matches!(error, SendError::NoToken(_) | SendError::TooSlow { .. });
    let why = if says_more { error.to_string() } else { "MessageTooLarge".into() };
    let pace = match error {
        SendError::TooSlow { needed_ms, limit_ms, rate, retry_after_ms, .. } => format!(
            r#","bytesPerSecond":{rate},"neededMs":{needed_ms},"limitMs":{limit_ms},"retryAfterMs":{retry_after_ms}"#
        ),
        _ => String::new(),
    };
    let data = format!(r#"{{"reason":"messageTooLarge","size":{},"limit":{}{pace}}}"#, over.size, over.limit);
    response(id, MESSAGE_TOO_LARGE, &why, &data)
}

fn response(id: &[u8], code: i32, why: &str, data: &str) -> Message {
    let mut out = Vec::with_capacity(id.len().saturating_add(256));
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id);
    out.extend_from_slice(format!(r#","error":{{"code":{code},"message":""#).as_bytes());
    json::escape_into(&mut out, why.as_bytes());
    out.extend_from_slice(format!(r#"","data":{data}}}}}"#).as_bytes());
    Message::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Over;

    #[test]
    fn ids_are_equal_by_value() {
        assert_eq!(IdKey::of(b"1"), IdKey::of(b"1.0"));
        assert_eq!(IdKey::of(br#""a""#), IdKey::of(br#""\u0061""#));
        assert_ne!(IdKey::of(b"1"), IdKey::of(br#""1""#));
        assert_ne!(IdKey::of(b"1.5"), IdKey::of(b"2.5"));
    }

    #[test]
    fn a_message_that_is_too_large_is_answered_with_its_sizes() {
        let answer = send_failed(b"\"x\"", &SendError::TooLarge(Over { size: 9, limit: 5 }));
        assert_eq!(
            answer,
            Message::from(concat!(
                r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32011,"message":"MessageTooLarge","#,
                r#""data":{"reason":"messageTooLarge","size":9,"limit":5}}}"#
            ))
        );
        let answer = send_failed(b"7", &SendError::Disconnected);
        assert_eq!(
            answer,
            Message::from(concat!(
                r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"disconnected","#,
                r#""data":{"reason":"send-disconnected"}}}"#
            ))
        );
    }
}
