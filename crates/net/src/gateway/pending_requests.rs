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
    ids: HashMap<Id, SameId>,
    /// How many there are in all.
    count: u64,
    /// Whether there may be one more request, whose id is not known, so that its response will not be recognised.
    may_have_more: bool,
}

/// Requests with one id.
#[derive(Debug, Clone, Copy)]
struct SameId {
    /// How many there are.
    count: u32,
    /// The purpose of the last of them.
    purpose: RequestPurpose,
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestPurpose {
    /// To begin, to resume, or to follow a channel. Clients take an error for the host's refusal, and a close for a reason to ask
    /// again on the next link.
    Resume,
    /// Anything else.
    Other,
}

/// Which requests are answered with an error when their receiver has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    All,
    /// All but those that the sender repeats on its next link. The close of this link tells it to.
    NotResumed,
}

/// The outcome for requests whose receiver has ended.
#[derive(Debug)]
pub(super) struct Failed {
    /// The error responses for those who sent them.
    pub(super) responses: Vec<Message>,
    /// How many cannot be answered, because their ids are not known.
    pub(super) unknown: u64,
}

/// The error that is sent in place of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ErrorReply {
    /// A description for people.
    pub(super) message: String,
    /// A name for programs.
    pub(super) reason: &'static str,
    /// The code with which the link was closed, if that says more.
    pub(super) close_code: Option<u16>,
}

impl ErrorReply {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { message: message.into(), reason, close_code: None }
    }

    /// The side that should have responded is gone.
    pub(super) fn disconnected() -> Self {
        Self::new("send-disconnected", "disconnected")
    }

    /// The host has ended in good order, without having responded.
    pub(super) fn host_ended() -> Self {
        Self::new("host-ended", "the host ended before it answered")
    }
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
            Kind::Request => {
                let is_resumed = matches!(parsed.method().as_deref(), Some("initialize" | "reconnect" | "subscribe"));
                let purpose = if is_resumed { RequestPurpose::Resume } else { RequestPurpose::Other };
                self.to[from.other()].add(id.unwrap_or(Id::Unknown), purpose);
            }
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

    /// Whether side `to` has yet to respond to a request with the id of this response.
    pub(super) fn awaits(&self, to: SideId, response: &ParsedMessage) -> bool {
        let id = response.id().map(|span| Id::of(&response.message, span));
        id.is_some_and(|id| id != Id::Unknown && self.to[to].ids.contains_key(&id))
    }

    /// The same, or there are requests to it whose ids are not known.
    pub(super) fn may_await(&self, to: SideId, response: &ParsedMessage) -> bool {
        let pending = &self.to[to];
        pending.may_have_more || pending.ids.contains_key(&Id::Unknown) || self.awaits(to, response)
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

    /// Ends all requests to a side that will not respond.
    pub(super) fn fail_all(&mut self, to: SideId, error: &ErrorReply, answered: Answered) -> Failed {
        let Pending { ids, may_have_more, .. } = std::mem::take(&mut self.to[to]);
        let unknown = ids.get(&Id::Unknown).map_or(0, |same| same.count.into());
        let is_answered = |same: &SameId| answered == Answered::All || same.purpose == RequestPurpose::Other;
        let responses =
            ids.iter().filter(|(_, same)| is_answered(same)).filter_map(|(id, _)| error.response(id)).collect();
        Failed { responses, unknown: u64::from(may_have_more).saturating_add(unknown) }
    }
}

impl Pending {
    fn add(&mut self, id: Id, purpose: RequestPurpose) {
        let is_known = self.ids.len() < MAX_IDS || self.ids.contains_key(&id);
        let id = if is_known { id } else { Id::Unknown };
        let same = self.ids.entry(id).or_insert(SameId { count: 0, purpose });
        *same = SameId { count: same.count.saturating_add(1), purpose };
        self.count = self.count.saturating_add(1);
    }

    fn remove(&mut self, id: Id) {
        let id = if self.ids.contains_key(&id) { id } else { Id::Unknown };
        let Some(same) = self.ids.get_mut(&id) else { return };
        same.count = same.count.saturating_sub(1);
        self.count = self.count.saturating_sub(1);
        if same.count == 0 {
            self.ids.remove(&id);
        }
    }
}

impl ErrorReply {
    /// The response to the request with this id, if the id is known.
    fn response(&self, id: &Id) -> Option<Message> {
        let Self { message, reason, close_code } = self;
        let mut text = br#"{"jsonrpc":"2.0","id":"#.to_vec();
        id.write(&mut text)?;
        text.extend_from_slice(br#","error":{"code":-32603,"message":""#);
        json::escape_into(&mut text, message.as_bytes());
        let code = close_code.map(|code| format!(r#","closeCode":{code}"#)).unwrap_or_default();
        text.extend_from_slice(format!(r#"","data":{{"reason":"{reason}"{code}}}}}}}"#).as_bytes());
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

    const DOWNSTREAM: SideId = SideId::Downstream;
    const UPSTREAM: SideId = SideId::Upstream;

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
            note(&mut pending, DOWNSTREAM, format!(r#"{{"jsonrpc":"2.0","id":{asked},"method":"m"}}"#));
            note(&mut pending, UPSTREAM, r#"{"jsonrpc":"2.0","id":"1","result":1}"#);
            note(&mut pending, UPSTREAM, r#"{"jsonrpc":"2.0","id":null,"error":{}}"#);
            note(&mut pending, DOWNSTREAM, format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":1}}"#));
            assert!(pending.has_any(UPSTREAM) && !pending.has_any(DOWNSTREAM), "{asked}");
            note(&mut pending, UPSTREAM, format!(r#"{{"jsonrpc":"2.0","id":{answered},"error":{{}}}}"#));
            assert!(!pending.has_any(UPSTREAM), "{asked}");
        }
    }

    #[test]
    fn an_id_counts_also_after_megabytes() {
        let mut pending = pending();
        let long = "x".repeat(3_000_000);
        note(&mut pending, DOWNSTREAM, format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0","id":7}}"#));
        assert!(pending.has_any(UPSTREAM));
        note(&mut pending, UPSTREAM, format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":8}}"#));
        note(&mut pending, UPSTREAM, format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0"}}"#));
        assert!(pending.has_any(UPSTREAM) && !pending.has_any(DOWNSTREAM));
        note(&mut pending, UPSTREAM, format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":7}}"#));
        assert!(!pending.has_any(UPSTREAM));
    }

    #[test]
    fn an_id_that_is_used_twice_is_pending_twice() {
        let mut pending = pending();
        for _ in 0..2 {
            note(&mut pending, DOWNSTREAM, r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
        }
        note(&mut pending, UPSTREAM, r#"{"jsonrpc":"2.0","id":1,"result":1}"#);
        assert!(pending.has_any(UPSTREAM));
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
        note(&mut pending, DOWNSTREAM, request);
        // Another id, the other side's, none.
        note(&mut pending, DOWNSTREAM, cancel("1"));
        note(&mut pending, UPSTREAM, cancel("\"a\""));
        note(&mut pending, DOWNSTREAM, r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#);
        assert!(pending.has_any(UPSTREAM));
        note(&mut pending, DOWNSTREAM, cancel("\"\\u0061\""));
        assert!(!pending.has_any(UPSTREAM) && pending.count(UPSTREAM) == 0);
        let mut kept = PendingRequests::new(AfterCancel::StillPending);
        note(&mut kept, DOWNSTREAM, request);
        note(&mut kept, DOWNSTREAM, cancel("\"a\""));
        assert!(kept.has_any(UPSTREAM) && kept.count(UPSTREAM) == 1);
    }

    #[test]
    fn a_request_whose_id_is_not_remembered_is_counted() {
        let mut pending = pending();
        let id = "i".repeat(300);
        note(&mut pending, DOWNSTREAM, format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"m"}}"#));
        assert!(pending.has_any(UPSTREAM));
        note(&mut pending, UPSTREAM, format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":1}}"#));
        assert!(!pending.has_any(UPSTREAM));
        for n in 0..MAX_IDS + 2 {
            note(&mut pending, DOWNSTREAM, format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"m"}}"#));
        }
        assert!(pending.to[UPSTREAM].ids.len() <= MAX_IDS + 1);
        for n in (0..MAX_IDS + 2).rev() {
            assert!(pending.has_any(UPSTREAM), "{n}");
            note(&mut pending, UPSTREAM, format!(r#"{{"jsonrpc":"2.0","id":{n},"result":1}}"#));
        }
        assert!(!pending.has_any(UPSTREAM));
    }

    #[test]
    fn where_only_the_front_is_read_what_may_be_a_request_is_pending() {
        let long = "x".repeat(10_000);
        let is_pending = |text: &str| {
            let mut pending = pending();
            note_with(Certainty::Front, &mut pending, DOWNSTREAM, text.to_owned().into());
            note(&mut pending, UPSTREAM, r#"{"jsonrpc":"2.0","id":1,"result":1}"#);
            pending.has_any(UPSTREAM)
        };
        assert!(is_pending(&format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0","id":1}}"#)));
        assert!(!is_pending(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":["{long}"]}}"#)));
        assert!(!is_pending(r#"{"jsonrpc":"2.0","method":"m"}"#));
    }

    #[test]
    fn a_request_to_a_side_that_is_gone_gets_one_error_response() {
        for id in ["7", r#""a\"b""#, "1.5"] {
            let mut pending = pending();
            note(&mut pending, UPSTREAM, format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#));
            let answers = pending.fail_all(DOWNSTREAM, &ErrorReply::disconnected(), Answered::All).responses;
            let want =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"disconnected","data":"#);
            assert!(answers.len() == 1 && answers[0].to_bytes().starts_with(want.as_bytes()), "{answers:?}");
            assert!(serde_json::from_slice::<serde_json::Value>(&answers[0].to_bytes()).is_ok());
            let again = pending.fail_all(DOWNSTREAM, &ErrorReply::disconnected(), Answered::All);
            assert!(!pending.has_any(DOWNSTREAM) && again.responses.is_empty());
        }
    }

    #[test]
    fn what_a_client_repeats_on_its_next_link_gets_no_error_where_the_close_says_so() {
        for (method, is_resumed) in
            [("initialize", true), ("reconnect", true), ("subscribe", true), ("listSessions", false)]
        {
            for answered in [Answered::All, Answered::NotResumed] {
                let mut pending = pending();
                note(&mut pending, DOWNSTREAM, format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#));
                let failed = pending.fail_all(UPSTREAM, &ErrorReply::host_ended(), answered);
                let is_answered = answered == Answered::All || !is_resumed;
                assert_eq!((failed.responses.len(), failed.unknown), (usize::from(is_answered), 0), "{method}");
                assert!(!pending.has_any(UPSTREAM));
            }
        }
    }

    #[test]
    fn an_error_has_the_words_of_a_peer_escaped_and_the_requests_without_a_known_id_are_counted() {
        let mut pending = pending();
        note(&mut pending, DOWNSTREAM, r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
        note(&mut pending, DOWNSTREAM, format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"m"}}"#, "i".repeat(300)));
        let error = ErrorReply { close_code: Some(4123), ..ErrorReply::new("host-closed", "it says \"why\"\n") };
        let Failed { responses, unknown } = pending.fail_all(UPSTREAM, &error, Answered::All);
        assert_eq!((responses.len(), unknown), (1, 1));
        let response: serde_json::Value = serde_json::from_slice(&responses[0].to_bytes()).unwrap();
        assert_eq!(response["error"]["message"], "it says \"why\"\n");
        assert_eq!(response["error"]["data"], serde_json::json!({"reason": "host-closed", "closeCode": 4123}));
    }
}
