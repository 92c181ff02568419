//! A message that passes a gateway, and what its envelope says.

use std::borrow::Cow;

use breakbulk_proto::ahp::{OrderClass, Role};
use breakbulk_proto::json::{self, Path, Span};
use breakbulk_proto::{Envelope, Kind, Message};

use super::sides::SideId;

/// A message up to this length is read to its end if its front does not say what it is.
const FRONT_BYTES: usize = 4096;
/// The longest method or client id that is of interest.
const MAX_NAME_BYTES: usize = 256;

static CLIENT_ID: [Path; 1] = [&["params", "clientId"]];

/// How much of a message a bridge reads to know its kind and id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// Only the front, except for responses. Many peers write the id last, after megabytes of params: then the kind is
    /// a guess.
    Front,
    /// As much as it takes to be sure.
    Final,
}

/// A message and its envelope.
#[derive(Debug)]
pub(super) struct ParsedMessage {
    pub(super) message: Message,
    /// None if the message is no JSON object.
    envelope: Option<Box<Envelope>>,
    /// Whether there is nothing more to learn from the rest of the message.
    is_final: bool,
}

impl ParsedMessage {
    /// A message as a machine gives it. It is read again only if the machine has not read enough for the `certainty` wanted.
    pub(super) fn received(message: Message, mut envelope: Box<Envelope>, certainty: Certainty) -> Self {
        // A response has no method.
        let may_guess =
            certainty == Certainty::Front && message.len() > FRONT_BYTES && envelope.method_value().is_some();
        if !may_guess {
            read_on(&message, &mut envelope);
        }
        let is_final = !may_guess || envelope.is_final();
        Self { message, envelope: Some(envelope), is_final }
    }

    /// A message that was made here.
    pub(super) fn own(message: Message) -> Self {
        let envelope = Envelope::of(&message).ok().map(Box::new);
        Self { message, envelope, is_final: true }
    }

    /// Its length in bytes.
    pub(super) const fn len(&self) -> usize {
        self.message.len()
    }

    /// What kind of message it is, as far as it was read.
    pub(super) fn kind(&self) -> Kind {
        self.envelope.as_ref().map_or(Kind::Other, |envelope| envelope.kind())
    }

    /// Whether that is so whatever the rest of it says.
    pub(super) const fn is_final(&self) -> bool {
        self.is_final
    }

    /// Its method, if it has one that is not too long to be one.
    pub(super) fn method(&self) -> Option<Cow<'_, str>> {
        let method = self.envelope.as_ref()?.method_value()?;
        self.short_string(method.span)
    }

    /// Where its id lies, if it has one by which it can be answered.
    pub(super) fn id(&self) -> Option<Span> {
        let id = self.envelope.as_ref()?.id_value()?;
        let is_whole = id.span.end > id.span.start;
        (is_whole && matches!(id.kind, json::ValueKind::String | json::ValueKind::Number)).then_some(id.span)
    }

    /// The client that it introduces. Only the requests that open a conversation do that.
    pub(super) fn client_id(&self) -> Option<Cow<'_, str>> {
        let opens =
            self.kind() == Kind::Request && matches!(self.method().as_deref(), Some("initialize" | "reconnect"));
        if !opens {
            return None;
        }
        let id = json::find(self.message.slices(), &CLIENT_ID).ok()?.get(0)?;
        self.short_string(id.span)
    }

    /// Whether the state of its receiver would differ from that of its sender, side `from`, without it.
    pub(super) fn carries_state(&self, from: SideId) -> bool {
        let Some(mut envelope) = self.envelope.clone() else { return false };
        // `method` may come after long `params`.
        read_on(&self.message, &mut envelope);
        let role = match from {
            SideId::Downstream => Role::Client,
            SideId::Upstream => Role::Server,
        };
        let method = envelope.method(&self.message).unwrap_or_default();
        envelope.kind() == Kind::Notification && OrderClass::of(role, Kind::Notification, &method).carries_state()
    }

    fn short_string(&self, span: Span) -> Option<Cow<'_, str>> {
        let quoted = MAX_NAME_BYTES.saturating_mul(6).saturating_add(2);
        if span.end.saturating_sub(span.start) > u64::try_from(quoted).unwrap_or(u64::MAX) {
            return None;
        }
        let text = match self.message.read(span) {
            Cow::Borrowed(raw) => json::string(raw)?,
            Cow::Owned(raw) => Cow::Owned(json::string(&raw)?.into_owned()),
        };
        Some(text).filter(|text| text.len() <= MAX_NAME_BYTES)
    }
}

/// Reads the rest of a message of which only the front was read. If the rest is no JSON, what the front said stays; its
/// receiver will refuse the message.
fn read_on(message: &Message, envelope: &mut Envelope) {
    if !envelope.is_final()
        && let Ok(read) = Envelope::of(message)
    {
        *envelope = read;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use breakbulk_proto::{Event, Input, Limits, Machine, plain};

    use super::*;

    /// A message as a machine gives it that has read only its front.
    fn received(text: impl Into<Message>, certainty: Certainty) -> ParsedMessage {
        let config = plain::Config { check: plain::Check::Front, ..plain::Config::new(Limits::default()) };
        let mut machine = plain::Connection::new(config);
        machine.handle(Input::frame(text.into().to_bytes()), Instant::now());
        let Some(Event::Message { message, envelope, .. }) = machine.poll_event() else { panic!("no message") };
        ParsedMessage::received(message, envelope, certainty)
    }

    #[test]
    fn only_the_requests_that_open_a_conversation_introduce_a_client() {
        let client_id = |method: &str, id: &str, client: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{"clientId":{client}}}}}"#);
            received(text, Certainty::Front).client_id().map(Cow::into_owned)
        };
        for method in ["initialize", "reconnect"] {
            assert_eq!(client_id(method, r#""id":1,"#, r#""m\u0065""#).as_deref(), Some("me"));
        }
        assert_eq!(client_id("createSession", r#""id":1,"#, r#""me""#), None);
        assert_eq!(client_id("initialize", "", r#""me""#), None);
        assert_eq!(client_id("initialize", r#""id":1,"#, "7"), None);
        let long = format!(r#""{}""#, "x".repeat(257));
        assert_eq!(client_id("initialize", r#""id":1,"#, &long), None);
    }

    #[test]
    fn what_either_side_says_of_the_state_carries_it() {
        let carries_state = |from, method: &str, id: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{}}}}"#);
            received(text, Certainty::Front).carries_state(from)
        };
        assert!(
            carries_state(SideId::Upstream, "action", "") && carries_state(SideId::Upstream, "root/sessionAdded", "")
        );
        assert!(carries_state(SideId::Downstream, "dispatchAction", ""));
        assert!(!carries_state(SideId::Downstream, "dispatchAction", r#""id":1,"#), "a request is answered");
        assert!(!carries_state(SideId::Upstream, "ping", ""));
    }

    #[test]
    fn the_method_counts_also_after_megabytes() {
        let long = "x".repeat(3_000_000);
        let message =
            received(format!(r#"{{"params":["{long}"],"jsonrpc":"2.0","method":"action"}}"#), Certainty::Front);
        assert!(message.carries_state(SideId::Upstream));
    }

    #[test]
    fn what_a_long_message_is_takes_more_than_its_front() {
        let long = "x".repeat(10_000);
        for (text, guess, kind) in [
            (format!(r#"{{"method":"m","params":["{long}"],"id":1}}"#), Kind::Notification, Kind::Request),
            (format!(r#"{{"method":"m","params":["{long}"],"id":null}}"#), Kind::Notification, Kind::Notification),
            (format!(r#"{{"method":"m","id":"{long}"}}"#), Kind::Request, Kind::Request),
        ] {
            let [front, whole] =
                [Certainty::Front, Certainty::Final].map(|certainty| received(text.clone(), certainty));
            assert_eq!((front.kind(), front.is_final(), whole.kind(), whole.is_final()), (guess, false, kind, true));
        }
        let first = received(format!(r#"{{"method":"m","id":1,"params":["{long}"]}}"#), Certainty::Front);
        assert!(first.is_final() && first.id().is_some());
        let cut = received(format!(r#"{{"method":"m","id":"{long}"}}"#), Certainty::Front);
        assert_eq!(cut.id(), None, "an id that is not whole is none");
        let short = received(format!(r#"{{"method":"m","params":["{}"],"id":1}}"#, "x".repeat(3500)), Certainty::Front);
        assert!(short.is_final() && short.kind() == Kind::Request, "of a short message all is read");
    }

    #[test]
    fn a_response_is_read_until_its_id_is_known() {
        let text = format!(r#"{{"result":"{}","jsonrpc":"2.0","id":7}}"#, "x".repeat(3_000_000));
        let response = received(text, Certainty::Front);
        assert!(response.is_final() && response.kind() == Kind::Response && response.id().is_some());
    }

    #[test]
    fn of_a_message_that_breaks_off_the_front_counts() {
        let message = received(format!(r#"{{"method":"action","params":["{}"#, "x".repeat(10_000)), Certainty::Final);
        assert!(message.is_final() && message.kind() == Kind::Notification && message.carries_state(SideId::Upstream));
        assert_eq!(message.method().as_deref(), Some("action"));
    }
}
