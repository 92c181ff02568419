//! What a message says about itself, found once while the message is checked, and carried with it from there on.

use std::borrow::Cow;

use crate::error::Violation;
use crate::json::{Found, Path, Paths, Span, ValueKind};
use crate::message::{Edit, Message};
use crate::outgoing::Scan;
use crate::rpc::{IdKey, string};

/// The envelope's keys. A dialect's own table of paths begins with these, in this order.
pub(crate) const ENVELOPE: [Path; 6] = [&["jsonrpc"], &["method"], &["id"], &["params"], &["result"], &["error"]];

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

/// What a machine found in a message while it checked it: kind, method, id, channel, seq. It comes with the message in
/// [`Event::Message`](crate::Event::Message), so that nobody has to read the bytes again.
///
/// It holds positions, not copies. Methods that return a value take the message that the envelope came with; with any other
/// message they return something meaningless, and do not panic.
///
/// All dialects find the members of JSON-RPC. Only `ahp` finds a channel, a seq, the type of an action and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    kind: Kind,
    extent: Extent,
    /// May be of any type, like the members below.
    method: Option<Found>,
    id: Option<Found>,
    params: Option<Found>,
    result: Option<Found>,
    error: Option<Found>,
    ahp: AhpMembers,
}

/// How much of a message was read for its envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All of it.
    Whole,
    /// The front, because the reader did not need the rest.
    Front,
}

/// What `ahp` finds in the params of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AhpMembers {
    pub(crate) channel: Option<Found>,
    /// Its `serverSeq`, if it is an `action`.
    pub(crate) seq: Option<u64>,
    pub(crate) action_type: Option<Found>,
    pub(crate) origin_client: Option<Found>,
    pub(crate) origin_seq: Option<u64>,
    pub(crate) is_rejected: bool,
}

impl Envelope {
    /// Reads the envelope of a message that came from no machine: as much of it as decides what the message is. A channel
    /// or a seq is not looked for.
    ///
    /// # Errors
    /// What was read is not one JSON object, or a key of the envelope comes twice.
    pub fn of(message: &Message) -> Result<Self, Violation> {
        Scan::new(message, &ENVELOPE, |scan| scan.envelope.is_final()).map(|scan| scan.envelope)
    }

    /// What kind of message it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether kind, method and id are as they are here whatever the rest of the message says. `false` only with
    /// [`plain::Check::Front`](crate::plain::Check::Front), where a machine looks at the front of a message: many
    /// peers write the id last.
    #[must_use]
    pub fn is_final(&self) -> bool {
        let has_method = self.method.as_ref().is_none_or(is_whole);
        self.extent == Extent::Whole || (self.has_id() && self.has_kind() && has_method)
    }

    /// The method.
    #[must_use]
    pub fn method<'a>(&self, message: &'a Message) -> Option<Cow<'a, str>> {
        string(message, self.method)
    }

    /// The id as it is written, to be copied into an answer. `None` when no answer is possible.
    #[must_use]
    pub fn id<'a>(&self, message: &'a Message) -> Option<Cow<'a, [u8]>> {
        let id = self.id.filter(|id| matches!(id.kind, ValueKind::String | ValueKind::Number)).filter(is_whole)?;
        Some(message.read(id.span))
    }

    /// Where the method lies, of whatever type it is.
    #[must_use]
    pub const fn method_value(&self) -> Option<Found> {
        self.method
    }

    /// Where the id lies, of whatever type it is.
    #[must_use]
    pub const fn id_value(&self) -> Option<Found> {
        self.id
    }

    /// Where the params lie. `null` counts as none.
    #[must_use]
    pub const fn params(&self) -> Option<Found> {
        self.params
    }

    /// Where the result lies. `null` is a result, unless there is an error or a method.
    #[must_use]
    pub const fn result(&self) -> Option<Found> {
        self.result
    }

    /// Where the error lies. `null` counts as none.
    #[must_use]
    pub const fn error(&self) -> Option<Found> {
        self.error
    }

    /// The channel in its params.
    #[must_use]
    pub fn channel<'a>(&self, message: &'a Message) -> Option<Cow<'a, str>> {
        string(message, self.ahp.channel)
    }

    /// The place of an `action` in its server's order.
    #[must_use]
    pub const fn seq(&self) -> Option<u64> {
        self.ahp.seq
    }

    /// The type of the action in an `action` or a `dispatchAction`.
    #[must_use]
    pub fn action_type<'a>(&self, message: &'a Message) -> Option<Cow<'a, str>> {
        string(message, self.ahp.action_type)
    }

    /// The client that dispatched an `action`, and the number that this client gave it. `None` for an action of the host.
    #[must_use]
    pub fn origin<'a>(&self, message: &'a Message) -> Option<(Cow<'a, str>, u64)> {
        string(message, self.ahp.origin_client).zip(self.ahp.origin_seq)
    }

    /// Whether an `action` says that the host refused it: it has a `rejectionReason`.
    #[must_use]
    pub const fn is_rejected(&self) -> bool {
        self.ahp.is_rejected
    }

    /// Reads the envelope of a whole message from paths that begin with [`ENVELOPE`].
    ///
    /// # Errors
    /// The root is no object, or a key of the envelope comes twice.
    pub(crate) fn read<const N: usize>(paths: &Paths<N>) -> Result<Self, Violation> {
        if paths.root() != Some(ValueKind::Object) {
            return Err(Violation::FrameNotObject);
        }
        let twice = ENVELOPE.iter().enumerate().find(|(i, _)| paths.repeated(*i));
        if let Some((_, path)) = twice {
            return Err(Violation::DuplicateKey(path.first().copied().unwrap_or_default()));
        }
        let [_, method, id, params, result, error] = std::array::from_fn(|i| paths.get(i));
        // Many write `null` for what is not there.
        let is_there = |found: &Found| found.kind != ValueKind::Null;
        let (params, error) = (params.filter(is_there), error.filter(is_there));
        let result = result.filter(|result| (error.is_none() && method.is_none()) || is_there(result));
        let is_named = id.is_some_and(|id| matches!(id.kind, ValueKind::String | ValueKind::Number));
        let kind = match (method.filter(is_string), result.or(error)) {
            (Some(_), _) if is_named => Kind::Request,
            (Some(_), _) => Kind::Notification,
            (None, Some(_)) if id.is_some() => Kind::Response,
            _ => Kind::Other,
        };
        let (extent, ahp) = (Extent::Whole, AhpMembers::default());
        Ok(Self { kind, extent, method, id, params, result, error, ahp })
    }

    /// The same, of a message of which only the front was read.
    pub(crate) const fn of_front(self) -> Self {
        Self { extent: Extent::Front, ..self }
    }

    /// The same, with what `ahp` found in the params.
    pub(crate) const fn with_ahp(self, ahp: AhpMembers) -> Self {
        Self { ahp, ..self }
    }

    /// The envelope of the message as it is after an edit.
    pub(crate) fn after(self, edit: &Edit) -> Self {
        let moved =
            |found: Option<Found>| found.and_then(|found| Some(Found { span: edit.moved(found.span)?, ..found }));
        Self {
            kind: self.kind,
            extent: self.extent,
            method: moved(self.method),
            id: moved(self.id),
            params: moved(self.params),
            result: moved(self.result),
            error: moved(self.error),
            ahp: AhpMembers {
                channel: moved(self.ahp.channel),
                action_type: moved(self.ahp.action_type),
                origin_client: moved(self.ahp.origin_client),
                ..self.ahp
            },
        }
    }

    /// Whether this is exactly one JSON-RPC 2.0 request, response or notification. `paths` are those that it was read from.
    pub(crate) fn is_valid<const N: usize>(&self, message: &Message, paths: &Paths<N>) -> bool {
        let id_ok = self.id.is_none_or(|id| matches!(id.kind, ValueKind::String | ValueKind::Number | ValueKind::Null));
        let params_ok = self.params.is_none_or(|params| matches!(params.kind, ValueKind::Object | ValueKind::Array));
        let error_ok = self.error.is_none_or(|error| error.kind == ValueKind::Object);
        let shape = match self.kind {
            Kind::Request | Kind::Notification => self.result.is_none() && self.error.is_none() && params_ok,
            Kind::Response => self.result.is_some() != self.error.is_some() && error_ok,
            Kind::Other => false,
        };
        shape && id_ok && is_version_2(message, paths)
    }

    /// The id's value, however it is spelled.
    pub(crate) fn id_key(&self, message: &Message) -> Option<IdKey> {
        self.id(message).map(|raw| IdKey::of(&raw))
    }

    /// Where the method ends, if it is one.
    pub(crate) fn method_end(&self) -> Option<u64> {
        self.method.filter(is_string).map(|method| method.span.end)
    }

    /// Whether the id has been read to its end.
    pub(crate) fn has_id(&self) -> bool {
        self.id.as_ref().is_some_and(is_whole)
    }

    /// Whether something has been read that only a request, a notification or a response has.
    pub(crate) fn has_kind(&self) -> bool {
        self.method.filter(is_string).or(self.result).or(self.error).is_some()
    }
}

/// Whether `jsonrpc` is `"2.0"`. `paths` begin with [`ENVELOPE`].
pub(crate) fn is_version_2<const N: usize>(message: &Message, paths: &Paths<N>) -> bool {
    string(message, paths.get(0)).is_some_and(|version| version == "2.0")
}

fn is_string(found: &Found) -> bool {
    found.kind == ValueKind::String
}

/// Whether a value has been read to its end.
const fn is_whole(found: &Found) -> bool {
    let Span { start, end } = found.span;
    end > start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn read(text: &'static str) -> (Message, Result<Envelope, Violation>) {
        let message = Message::from(text);
        let envelope = Envelope::of(&message);
        (message, envelope)
    }

    fn kind(text: &'static str) -> (Kind, bool) {
        let message = Message::from(text);
        let paths = json::find(message.slices(), &ENVELOPE).unwrap();
        let envelope = Envelope::read(&paths).unwrap();
        (envelope.kind(), envelope.is_valid(&message, &paths))
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
    fn ids_are_copied_verbatim_and_null_is_none() {
        let (message, envelope) = read(r#"{"id": 1.0 ,"method":"m"}"#);
        assert_eq!(envelope.unwrap().id(&message).unwrap(), &b"1.0"[..]);
        let (message, envelope) = read(r#"{"id":null,"method":"m"}"#);
        assert_eq!(envelope.unwrap().id(&message), None);
    }

    #[test]
    fn values_are_read_wherever_the_pieces_are_cut() {
        let text = br#"{"jsonrpc":"2.0","id":"a\u0062","method":"m\u0065","params":[1]}"#;
        for piece in 1..text.len() {
            let message: Message = text.chunks(piece).map(bytes::Bytes::copy_from_slice).collect();
            let envelope = Envelope::read(&json::find(message.slices(), &ENVELOPE).unwrap()).unwrap();
            assert_eq!(envelope.method(&message).unwrap(), "me");
            assert_eq!(envelope.id(&message).unwrap(), &br#""a\u0062""#[..]);
            assert_eq!(message.read(envelope.params().unwrap().span), &b"[1]"[..]);
            let front = Envelope::of(&message).unwrap();
            assert_eq!(
                (front.method(&message), front.id(&message)),
                (envelope.method(&message), envelope.id(&message))
            );
        }
    }

    #[test]
    fn of_a_long_message_no_more_is_read_than_decides_what_it_is() {
        let long = "x".repeat(10_000);
        let first = Message::from(format!(r#"{{"method":"m","id":1,"params":["{long}"], and no JSON"#));
        let envelope = Envelope::of(&first).unwrap();
        assert!(envelope.is_final() && envelope.kind() == Kind::Request);
        let last = Message::from(format!(r#"{{"method":"m","params":["{long}"],"id":1}}"#));
        let envelope = Envelope::of(&last).unwrap();
        assert!(envelope.is_final() && envelope.kind() == Kind::Request);
        assert_eq!(envelope.id(&last).unwrap(), &b"1"[..]);
    }

    #[test]
    fn what_was_read_of_a_front_only_is_final_if_nothing_behind_it_can_change_it() {
        let envelope = |text: &str| {
            let mut scanner = json::Scanner::new(Paths::new(&ENVELOPE));
            scanner.feed(text.as_bytes()).unwrap();
            Envelope::read(scanner.visitor()).unwrap().of_front()
        };
        assert!(envelope(r#"{"method":"m","id":1,"params":["#).is_final());
        assert!(envelope(r#"{"id":"a","result":["#).is_final());
        assert!(!envelope(r#"{"method":"m","params":["#).is_final(), "the id may follow");
        assert!(!envelope(r#"{"id":1,"params":["#).is_final(), "what it is may follow");
        let cut = r#"{"method":"m","id":"ab"#;
        assert!(!envelope(cut).is_final(), "the id is not whole");
        assert_eq!(envelope(cut).id(&Message::from(cut)), None);
    }

    #[test]
    fn after_an_edit_values_are_found_where_they_are_then() {
        let message = Message::from(r#"{"id":7,"params":{"a":1,"gone":{"x":1}},"method":"m"}"#);
        let envelope = Envelope::of(&message).unwrap();
        let gone = json::find(message.slices(), &[&["params", "gone"]]).unwrap().get(0).unwrap();
        for insert in ["", "2", r#"{"much":"longer than before"}"#] {
            let edit = Edit::replace(gone.span, insert.into());
            let (message, envelope) = (edit.apply(&message), envelope.after(&edit));
            assert_eq!((&*envelope.id(&message).unwrap(), &*envelope.method(&message).unwrap()), (&b"7"[..], "m"));
            let params = format!(r#"{{"a":1,"gone":{insert}}}"#);
            assert_eq!(message.read(envelope.params().unwrap().span), params.as_bytes());
        }
        let edit = Edit::replace(envelope.params().unwrap().span, "[]".into());
        assert_eq!(envelope.after(&edit).params(), None, "what was replaced is not known");
        assert_eq!(envelope.after(&Edit::default()), envelope);
    }
}
