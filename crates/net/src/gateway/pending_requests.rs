//! Requests that wait for their responses, by side and id. A client that has half-closed waits for the responses that are left, and
//! a host that goes to the next client has to make all of them first, because that client must not get them.

use std::collections::HashMap;

use breakbulk_proto::json::{self, Number, Path, Span};
use breakbulk_proto::{Kind, Message};

use super::parsed_message::ParsedMessage;
use super::sides::{Pair, SideId};

/// Requests to one side that can be told apart. More are only counted.
const MAX_IDS: usize = 16_384;
/// The longest id that is remembered. Requests with longer ones are only counted.
const MAX_ID_BYTES: u64 = 256;

/// The notification by which the sender of a request says that it wants no response any more. In MCP there is none then.
const CANCELLED: &str = "notifications/cancelled";
static CANCELLED_ID: [Path; 1] = [&["params", "requestId"]];

/// Requests that each side has yet to respond to.
#[derive(Debug)]
pub(super) struct PendingRequests {
    after_cancel: AfterCancel,
    to: Pair<Pending>,
}

/// Whether a request is pending after its sender has cancelled it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterCancel {
    /// It is not.
    Forgotten,
    /// It is, because some hosts respond all the same: the next client could get that response.
    StillPending,
}

/// Requests that one side has yet to respond to.
#[derive(Debug, Default)]
struct Pending {
    /// How many there are of each id.
    ids: HashMap<Id, u32>,
    /// How many there are in all.
    count: u64,
    /// Whether there may be one more, of which nobody will know when it is answered.
    may_have_more: bool,
}

/// The error that is sent in place of a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorReply {
    /// What happened, for a person.
    pub(super) message: &'static str,
    /// The same, by name.
    pub(super) reason: &'static str,
}

impl ErrorReply {
    /// The side that should have responded is gone.
    pub(super) const DISCONNECTED: Self = Self { message: "disconnected", reason: "send-disconnected" };
    /// The host has ended in good order, without having responded.
    pub(super) const HOST_ENDED: Self = Self { message: "the host ended before it answered", reason: "host-ended" };
}

/// An id by its value: `1` and `1.0` are one, as are `"a"` and `"\u0061"`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Id {
    /// One of those that are only counted.
    Unknown,
    Text(String),
    Integer(i128),
    /// Another number, as it is written.
    Number(Vec<u8>),
}

impl PendingRequests {
    pub(super) fn new(after_cancel: AfterCancel) -> Self {
        Self { after_cancel, to: Pair::default() }
    }

    /// Notes a message of side `from`, or one that is sent in its place.
    pub(super) fn note(&mut self, from: SideId, parsed: &ParsedMessage) {
        let id = parsed.id().map(|span| Id::of(&parsed.message, span));
        let is_cancellation = || parsed.is_final() && parsed.method().as_deref() == Some(CANCELLED);
        match parsed.kind() {
            Kind::Request => self.to[from.other()].add(id.unwrap_or(Id::Unknown)),
            Kind::Response => id.into_iter().for_each(|id| self.to[from].remove(id)),
            Kind::Notification if is_cancellation() => self.cancel(from, &parsed.message),
            // It may be a request.
            _ if !parsed.is_final() => self.to[from.other()].may_have_more = true,
            Kind::Notification | Kind::Other => {}
        }
    }

    /// Whether side `to` has yet to respond to a request.
    pub(super) fn has_any(&self, to: SideId) -> bool {
        self.count(to) > 0
    }

    /// How many requests side `to` has yet to respond to.
    pub(super) fn count(&self, to: SideId) -> u64 {
        let Pending { count, may_have_more, .. } = &self.to[to];
        count.saturating_add(u64::from(*may_have_more))
    }

    /// Side `from` wants no response any more to a request of its.
    fn cancel(&mut self, from: SideId, message: &Message) {
        let found = json::find(message.slices(), &CANCELLED_ID).ok().and_then(|paths| paths.get(0));
        let pending = &mut self.to[from.other()];
        if let Some(id) = found.map(|found| Id::of(message, found.span))
            && self.after_cancel == AfterCancel::Forgotten
            && pending.ids.contains_key(&id)
        {
            pending.remove(id);
        }
    }

    /// A part of a message has perhaps gone to side `to`, and the rest has not: no other client can use that side.
    pub(super) fn note_cut_message(&mut self, to: SideId) {
        self.to[to].may_have_more = true;
    }

    /// Ends all requests to a side that will not respond; returns the error responses for those who sent them.
    pub(super) fn fail_all(&mut self, to: SideId, error: ErrorReply) -> Vec<Message> {
        let failed = std::mem::take(&mut self.to[to]);
        failed.ids.into_keys().filter_map(|id| error.response(&id)).collect()
    }
}

impl Pending {
    fn add(&mut self, id: Id) {
        let is_known = self.ids.len() < MAX_IDS || self.ids.contains_key(&id);
        let count = self.ids.entry(if is_known { id } else { Id::Unknown }).or_default();
        *count = count.saturating_add(1);
        self.count = self.count.saturating_add(1);
    }

    fn remove(&mut self, id: Id) {
        let id = if self.ids.contains_key(&id) { id } else { Id::Unknown };
        let Some(count) = self.ids.get_mut(&id) else { return };
        *count = count.saturating_sub(1);
        self.count = self.count.saturating_sub(1);
        if *count == 0 {
            self.ids.remove(&id);
        }
    }
}

impl ErrorReply {
    /// The response to the request with this id, if the id is known.
    fn response(self, id: &Id) -> Option<Message> {
        let Self { message, reason } = self;
        let mut text = br#"{"jsonrpc":"2.0","id":"#.to_vec();
        id.write(&mut text)?;
        let error = format!(r#","error":{{"code":-32603,"message":"{message}","data":{{"reason":"{reason}"}}}}}}"#);
        text.extend_from_slice(error.as_bytes());
        Some(Message::from(text))
    }
}

impl Id {
    fn of(message: &Message, span: Span) -> Self {
        if span.end.saturating_sub(span.start) > MAX_ID_BYTES {
            return Self::Unknown;
        }
        let raw = message.read(span);
        match (json::string(&raw), json::number(&raw)) {
            (Some(text), _) => Self::Text(text.into_owned()),
            (None, Number::Int(value)) => Self::Integer(value),
            (None, _) => Self::Number(raw.to_vec()),
        }
    }

    /// Writes it as JSON, if it is known.
    fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Unknown => return None,
            Self::Text(text) => {
                out.push(b'"');
                json::escape_into(out, text.as_bytes());
                out.push(b'"');
            }
            Self::Integer(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Self::Number(raw) => out.extend_from_slice(raw),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use breakbulk_proto::{Event, Input, Limits, Machine, plain};

    use super::*;
    use crate::gateway::parsed_message::Certainty;

    const NEAR: SideId = SideId::Near;
    const FAR: SideId = SideId::Far;

    fn pending() -> PendingRequests {
        PendingRequests::new(AfterCancel::Forgotten)
    }

    fn note(pending: &mut PendingRequests, from: SideId, text: impl Into<Message>) {
        note_with(Certainty::Final, pending, from, text.into());
    }

    /// Notes a message as a machine gives it that has read only its front.
    fn note_with(certainty: Certainty, pending: &mut PendingRequests, from: SideId, message: Message) {
        let config = plain::Config { check: plain::Check::Front, ..plain::Config::new(Limits::default()) };
        let mut machine = plain::Connection::new(config);
        machine.handle(Input::frame(message.to_bytes()), Instant::now());
        let Some(Event::Message { message, envelope, .. }) = machine.poll_event() else { panic!("no message") };
        pending.note(from, &ParsedMessage::received(message, envelope, certainty));
    }

    #[test]
    fn a_request_is_pending_until_its_id_is_answered_however_that_is_spelled() {
        for (asked, answered) in [("1", "1.0"), ("\"a\"", "\"\\u0061\""), ("1.5", "1.5"), ("-3", "-3")] {
            let mut pending = pending();
            note(&mut pending, NEAR, format!(r#"{{"jsonrpc":"2.0","id":{asked},"method":"m"}}"#));
            note(&mut pending, FAR, r#"{"jsonrpc":"2.0","id":"1","result":1}"#);
            note(&mut pending, FAR, r#"{"jsonrpc":"2.0","id":null,"error":{}}"#);
            note(&mut pending, NEAR, format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":1}}"#));
            assert!(pending.has_any(FAR) && !pending.has_any(NEAR), "{asked}");
            note(&mut pending, FAR, format!(r#"{{"jsonrpc":"2.0","id":{answered},"error":{{}}}}"#));
            assert!(!pending.has_any(FAR), "{asked}");
        }
    }

    #[test]
    fn an_id_counts_also_after_megabytes() {
        let mut pending = pending();
        let long = "x".repeat(3_000_000);
        note(&mut pending, NEAR, format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0","id":7}}"#));
        assert!(pending.has_any(FAR));
        note(&mut pending, FAR, format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":8}}"#));
        note(&mut pending, FAR, format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0"}}"#));
        assert!(pending.has_any(FAR) && !pending.has_any(NEAR));
        note(&mut pending, FAR, format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":7}}"#));
        assert!(!pending.has_any(FAR));
    }

    #[test]
    fn an_id_that_is_used_twice_is_pending_twice() {
        let mut pending = pending();
        for _ in 0..2 {
            note(&mut pending, NEAR, r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
        }
        note(&mut pending, FAR, r#"{"jsonrpc":"2.0","id":1,"result":1}"#);
        assert!(pending.has_any(FAR));
    }

    #[test]
    fn a_cancelled_request_is_pending_only_if_another_client_could_get_its_response() {
        let cancel = |id: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"r"}}}}"#
            )
        };
        let request = r#"{"jsonrpc":"2.0","id":"a","method":"m"}"#;
        let mut pending = pending();
        note(&mut pending, NEAR, request);
        // Another id, the other side's, none.
        note(&mut pending, NEAR, cancel("1"));
        note(&mut pending, FAR, cancel("\"a\""));
        note(&mut pending, NEAR, r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#);
        assert!(pending.has_any(FAR));
        note(&mut pending, NEAR, cancel("\"\\u0061\""));
        assert!(!pending.has_any(FAR) && pending.count(FAR) == 0);
        let mut kept = PendingRequests::new(AfterCancel::StillPending);
        note(&mut kept, NEAR, request);
        note(&mut kept, NEAR, cancel("\"a\""));
        assert!(kept.has_any(FAR) && kept.count(FAR) == 1);
    }

    #[test]
    fn a_request_whose_id_is_not_remembered_is_counted() {
        let mut pending = pending();
        let id = "i".repeat(300);
        note(&mut pending, NEAR, format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"m"}}"#));
        assert!(pending.has_any(FAR));
        note(&mut pending, FAR, format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":1}}"#));
        assert!(!pending.has_any(FAR));
        for n in 0..MAX_IDS + 2 {
            note(&mut pending, NEAR, format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"m"}}"#));
        }
        assert!(pending.to[FAR].ids.len() <= MAX_IDS + 1);
        for n in (0..MAX_IDS + 2).rev() {
            assert!(pending.has_any(FAR), "{n}");
            note(&mut pending, FAR, format!(r#"{{"jsonrpc":"2.0","id":{n},"result":1}}"#));
        }
        assert!(!pending.has_any(FAR));
    }

    #[test]
    fn where_only_the_front_is_read_what_may_be_a_request_is_pending() {
        let long = "x".repeat(10_000);
        let is_pending = |text: &str| {
            let mut pending = pending();
            note_with(Certainty::Front, &mut pending, NEAR, text.to_owned().into());
            note(&mut pending, FAR, r#"{"jsonrpc":"2.0","id":1,"result":1}"#);
            pending.has_any(FAR)
        };
        assert!(is_pending(&format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0","id":1}}"#)));
        assert!(!is_pending(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":["{long}"]}}"#)));
        assert!(!is_pending(r#"{"jsonrpc":"2.0","method":"m"}"#));
    }

    #[test]
    fn a_request_to_a_side_that_is_gone_gets_one_error_response() {
        for id in ["7", r#""a\"b""#, "1.5"] {
            let mut pending = pending();
            note(&mut pending, FAR, format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#));
            let answers = pending.fail_all(NEAR, ErrorReply::DISCONNECTED);
            let want =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"disconnected","data":"#);
            assert!(answers.len() == 1 && answers[0].to_bytes().starts_with(want.as_bytes()), "{answers:?}");
            assert!(serde_json::from_slice::<serde_json::Value>(&answers[0].to_bytes()).is_ok());
            assert!(!pending.has_any(NEAR) && pending.fail_all(NEAR, ErrorReply::DISCONNECTED).is_empty());
        }
    }
}
