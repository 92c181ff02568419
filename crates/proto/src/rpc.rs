//! The JSON-RPC envelope: what kind of message a text is, its method and id, and the answers that we make ourselves.

use std::borrow::Cow;

use crate::error::{Over, SendError, Violation};
use crate::json::{self, Found, Kind as Json, Path, Paths, Scanner, Utf8};
use crate::message::Message;
use crate::recent::hash_of;

/// The envelope's keys. A dialect's own table of paths begins with these, in this order.
pub(crate) const ENVELOPE: [Path; 6] = [&["jsonrpc"], &["method"], &["id"], &["params"], &["result"], &["error"]];

/// `MessageTooLarge` in the RFC; AHP 1.0.0 calls the same number `Conflict`. Decide by `data.reason`.
pub const MESSAGE_TOO_LARGE: i32 = -32011;

/// What kind of JSON-RPC message a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Has an id, and a result or an error.
    Response,
    /// None of these.
    Other,
}

/// The envelope of one message: where its members lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    pub(crate) method: Option<Found>,
    pub(crate) id: Option<Found>,
    pub(crate) params: Option<Found>,
    pub(crate) result: Option<Found>,
    pub(crate) error: Option<Found>,
    jsonrpc: Option<Found>,
}

impl Envelope {
    /// Reads the envelope from paths that begin with [`ENVELOPE`].
    ///
    /// # Errors
    /// The root is no object, or a key of the envelope comes twice.
    pub(crate) fn read<const N: usize>(paths: &Paths<N>) -> Result<Self, Violation> {
        if paths.root() != Some(Json::Object) {
            return Err(Violation::FrameNotObject);
        }
        let twice = ENVELOPE.iter().enumerate().find(|(i, _)| paths.repeated(*i));
        if let Some((_, path)) = twice {
            return Err(Violation::DuplicateKey(path.first().copied().unwrap_or_default()));
        }
        let [jsonrpc, method, id, params, result, error] = std::array::from_fn(|i| paths.get(i));
        // Many write `null` for what is not there.
        let is_there = |found: &Found| found.kind != Json::Null;
        let (params, error) = (params.filter(is_there), error.filter(is_there));
        let result = result.filter(|result| (error.is_none() && method.is_none()) || is_there(result));
        let method = method.filter(|found: &Found| found.kind == Json::String);
        let named = id.is_some_and(|id| matches!(id.kind, Json::String | Json::Number));
        let kind = match (method, result.or(error)) {
            (Some(_), _) if named => Kind::Request,
            (Some(_), _) => Kind::Notification,
            (None, Some(_)) if id.is_some() => Kind::Response,
            _ => Kind::Other,
        };
        Ok(Self { kind, method, id, params, result, error, jsonrpc })
    }

    /// Whether this is exactly one JSON-RPC 2.0 request, response or notification.
    pub(crate) fn is_valid(&self, message: &Message) -> bool {
        let id_ok = self.id.is_none_or(|id| matches!(id.kind, Json::String | Json::Number | Json::Null));
        let params_ok = self.params.is_none_or(|params| matches!(params.kind, Json::Object | Json::Array));
        let error_ok = self.error.is_none_or(|error| error.kind == Json::Object);
        let shape = match self.kind {
            Kind::Request | Kind::Notification => self.result.is_none() && self.error.is_none() && params_ok,
            Kind::Response => self.result.is_some() != self.error.is_some() && error_ok,
            Kind::Other => false,
        };
        shape && id_ok && self.is_version_2(message)
    }

    /// Whether `jsonrpc` is `"2.0"`.
    pub(crate) fn is_version_2(&self, message: &Message) -> bool {
        string(message, self.jsonrpc).is_some_and(|version| version == "2.0")
    }

    /// The method's name; empty when there is none.
    pub(crate) fn method<'a>(&self, message: &'a Message) -> Cow<'a, str> {
        string(message, self.method).unwrap_or_default()
    }

    /// The id as it is written, to be copied into an answer. `None` when no answer is possible.
    pub(crate) fn id_text<'a>(&self, message: &'a Message) -> Option<Cow<'a, [u8]>> {
        let id = self.id.filter(|id| matches!(id.kind, Json::String | Json::Number))?;
        Some(message.read(id.span))
    }

    /// The id's value, however it is spelled.
    pub(crate) fn id_key(&self, message: &Message) -> Option<IdKey> {
        self.id_text(message).map(|raw| IdKey::of(&raw))
    }
}

/// An id's value as a hash: `1`, `1.0` and `10e-1` are one id, as are `"a"` and `"\u0061"`, and `1` is not `"1"`.
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

/// Checks a text that arrived in one frame, and finds `paths` in it; they begin with [`ENVELOPE`].
///
/// # Errors
/// It is not UTF-8, not JSON, no object, or has a key of the envelope twice.
pub(crate) fn read_frame<const N: usize>(
    message: &Message,
    paths: &'static [Path; N],
) -> Result<(Paths<N>, Envelope), Violation> {
    let (mut utf8, mut scanner) = (Utf8::default(), Scanner::new(Paths::new(paths)));
    for part in message.slices() {
        utf8.feed(part).map_err(|_| Violation::FrameNotUtf8)?;
        scanner.feed(part).map_err(Violation::FrameNotJson)?;
    }
    utf8.finish().map_err(|_| Violation::FrameNotUtf8)?;
    let found = scanner.finish().map_err(Violation::FrameNotJson)?;
    let envelope = Envelope::read(&found)?;
    Ok((found, envelope))
}

/// The string that was found, unescaped; `None` if it is none, or only its beginning has been seen.
pub(crate) fn string<'a>(message: &'a Message, found: Option<Found>) -> Option<Cow<'a, str>> {
    let found = found.filter(|found| found.kind == Json::String)?;
    match message.read(found.span) {
        Cow::Borrowed(raw) => json::string(raw),
        Cow::Owned(raw) => json::string(&raw).map(|text| Cow::Owned(text.into_owned())),
    }
}

/// The number that was found.
pub(crate) fn number(message: &Message, found: Option<Found>) -> json::Number {
    found.map_or(json::Number::NotANumber, |found| json::number(&message.read(found.span)))
}

/// An error response to the request whose id is `id`, copied verbatim: it says why, and the reason's name.
pub(crate) fn error_response(id: &[u8], why: &str, name: &str) -> Message {
    response(id, -32603, why, &format!(r#"{{"reason":"{name}"}}"#))
}

/// The error response for a message that could not be sent: `-32011` where its size is the reason.
pub(crate) fn send_failed(id: &[u8], error: &SendError) -> Message {
    let Some(Over { size, limit }) = error.over() else {
        return error_response(id, &error.to_string(), error.name());
    };
    // Some say how to allow parts.
    let why = if matches!(error, SendError::NoToken(_)) { error.to_string() } else { "MessageTooLarge".into() };
    let data = format!(r#"{{"reason":"messageTooLarge","size":{size},"limit":{limit}}}"#);
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

    fn read(text: &'static str) -> (Message, Result<Envelope, Violation>) {
        let message = Message::from(text);
        let paths = json::find(message.slices(), &ENVELOPE).unwrap();
        (message, Envelope::read(&paths))
    }

    fn kind(text: &'static str) -> (Kind, bool) {
        let (message, envelope) = read(text);
        let envelope = envelope.unwrap();
        (envelope.kind, envelope.is_valid(&message))
    }

    #[test]
    fn kinds_are_told_by_method_and_id() {
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#), (Kind::Request, true));
        assert_eq!(kind(r#"{"params":[],"method":"m","jsonrpc":"2.0"}"#), (Kind::Notification, true));
        assert_eq!(kind(r#"{"params":null,"id":1,"method":"m","jsonrpc":"2.0"}"#), (Kind::Request, true));
        for (result, error) in [("null", "null"), ("1", "null"), ("null", "{}")] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result},"error":{error}}}"#);
            assert_eq!(kind(Box::leak(text.into_boxed_str())), (Kind::Response, true));
        }
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":"a","result":null}"#), (Kind::Response, true));
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":null,"error":{}}"#), (Kind::Response, true));
    }

    #[test]
    fn every_departure_from_the_shape_is_invalid() {
        for text in [
            r#"{"id":1,"method":"m"}"#,
            r#"{"jsonrpc":"2.1","method":"m"}"#,
            r#"{"jsonrpc":2.0,"method":"m"}"#,
            r#"{"jsonrpc":"2.0"}"#,
            r#"{"jsonrpc":"2.0","method":1}"#,
            r#"{"jsonrpc":"2.0","method":"m","id":{}}"#,
            r#"{"jsonrpc":"2.0","method":"m","params":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":null,"error":1}"#,
            r#"{"jsonrpc":"2.0","method":"m","result":1}"#,
            r#"{"jsonrpc":"2.0","method":"m","error":{}}"#,
            r#"{"jsonrpc":"2.0","result":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":1}"#,
            r#"{"jsonrpc":"2.0","id":true,"result":1}"#,
        ] {
            assert!(!kind(text).1, "{text}");
        }
    }

    #[test]
    fn duplicate_envelope_keys_are_named_even_when_escaped() {
        let (_, envelope) = read(r#"{"jsonrpc":"2.0","method":"a","m\u0065thod":"b"}"#);
        assert_eq!(envelope.unwrap_err(), Violation::DuplicateKey("method"));
        let (_, envelope) = read("[]");
        assert_eq!(envelope.unwrap_err(), Violation::FrameNotObject);
    }

    #[test]
    fn ids_are_equal_by_value_and_copied_verbatim() {
        assert_eq!(IdKey::of(b"1"), IdKey::of(b"1.0"));
        assert_eq!(IdKey::of(br#""a""#), IdKey::of(br#""\u0061""#));
        assert_ne!(IdKey::of(b"1"), IdKey::of(br#""1""#));
        assert_ne!(IdKey::of(b"1.5"), IdKey::of(b"2.5"));
        let (message, envelope) = read(r#"{"id": 1.0 ,"method":"m"}"#);
        assert_eq!(envelope.unwrap().id_text(&message).unwrap(), &b"1.0"[..]);
        let (message, envelope) = read(r#"{"id":null,"method":"m"}"#);
        assert_eq!(envelope.unwrap().id_text(&message), None);
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
