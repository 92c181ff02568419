//! The few JSON-RPC texts that a client writes, and what it reads out of those that arrive, without parsing them into trees.

use bytes::Bytes;
use serde_json::json;

use breakbulk_proto::json::{self, Found, Path, Paths};
use breakbulk_proto::{Envelope, Kind, Message};

use super::error::RequestError;
use super::text::{contains, each, integer, number, slice, string};

/// The channel of the handshake.
const ROOT: &str = "ahp-root://";

/// A message that arrived.
#[derive(Debug)]
pub(super) enum Incoming {
    /// The answer to a request of ours.
    Response { id: u64, outcome: Result<Message, RequestError> },
    /// An `action` notification.
    Action(ActionEnvelope),
    /// Any other notification.
    Notification { method: String, params: Message },
    /// A request of the host's. Its id is copied as it is written.
    Request { id: Message, method: String, params: Message },
    /// None of these.
    Other,
}

impl Incoming {
    /// Takes a message apart at the positions that the machine found while it checked it: a long one is not read again.
    pub(super) fn read(message: &Message, envelope: &Envelope) -> Self {
        let part = |found: Found| slice(message, found.span);
        let params = || envelope.params().map(part).unwrap_or_default();
        match (envelope.kind(), envelope.method(message), envelope.id_value()) {
            (Kind::Request, Some(method), Some(id)) => {
                Self::Request { id: part(id), method: method.into_owned(), params: params() }
            }
            (Kind::Notification, Some(method), _) => ActionEnvelope::of(message, envelope)
                .filter(|_| method == "action")
                .map_or_else(|| Self::Notification { method: method.into_owned(), params: params() }, Self::Action),
            (Kind::Response, _, id) => {
                let Some(id) = number(message, id) else { return Self::Other };
                let outcome = match (envelope.error(), envelope.result()) {
                    (None, Some(result)) => Ok(part(result)),
                    (error, _) => Err(remote_error(&error.map(part).unwrap_or_default())),
                };
                Self::Response { id, outcome }
            }
            _ => Self::Other,
        }
    }
}

/// Reads the error of a response.
fn remote_error(error: &Message) -> RequestError {
    static PATHS: [Path; 3] = [&["code"], &["message"], &["data"]];
    let found = json::find(error.slices(), &PATHS).ok();
    let get = |i| found.as_ref().and_then(|found| found.get(i));
    RequestError::Remote {
        code: integer(error, get(0)).unwrap_or_default(),
        message: string(error, get(1)).unwrap_or_default(),
        data: get(2).map(|data| slice(error, data.span)),
    }
}

/// An action with its place in the host's order: the params of an `action` notification, or an element of a replay.
#[derive(Debug)]
pub(super) struct ActionEnvelope {
    pub(super) channel: String,
    pub(super) seq: u64,
    /// Who dispatched it, if a client did, and under which number.
    pub(super) origin: Option<(String, u64)>,
    pub(super) seq_use: SeqUse,
    pub(super) text: Message,
}

/// The meaning of an action's seq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeqUse {
    /// It is the action's own place in the host's order: an action with a seq that was seen is a repetition.
    OwnPlace,
    /// It may have been seen: the action brings older turns, which one client asked for.
    OlderTurns,
    /// It is that of the answer only: the host refused the action, which did not happen.
    Rejected,
}

impl SeqUse {
    fn of(is_rejected: bool, action_type: Option<&str>) -> Self {
        match (is_rejected, action_type) {
            (true, _) => Self::Rejected,
            (false, Some("chat/turnsLoaded")) => Self::OlderTurns,
            (false, _) => Self::OwnPlace,
        }
    }
}

impl ActionEnvelope {
    /// The action in the params of a notification. `None` if that is no action, or has no channel or seq.
    fn of(message: &Message, envelope: &Envelope) -> Option<Self> {
        Some(Self {
            channel: envelope.channel(message)?.into_owned(),
            seq: envelope.seq()?,
            origin: envelope.origin(message).map(|(client, number)| (client.into_owned(), number)),
            seq_use: SeqUse::of(envelope.is_rejected(), envelope.action_type(message).as_deref()),
            text: slice(message, envelope.params()?.span),
        })
    }

    /// Reads an element of a replay, which the machine has not looked into.
    pub(super) fn read(text: &Message) -> Option<Self> {
        static PATHS: [Path; 6] = [
            &["channel"],
            &["serverSeq"],
            &["origin", "clientId"],
            &["origin", "clientSeq"],
            &["rejectionReason"],
            &["action", "type"],
        ];
        let found = json::find(text.slices(), &PATHS).ok()?;
        let is_rejected = string(text, found.get(4)).is_some();
        Some(Self {
            channel: string(text, found.get(0))?,
            seq: number(text, found.get(1))?,
            origin: string(text, found.get(2)).zip(number(text, found.get(3))),
            seq_use: SeqUse::of(is_rejected, string(text, found.get(5)).as_deref()),
            text: text.clone(),
        })
    }
}

/// A channel's state as of a seq.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub(super) channel: String,
    pub(super) from_seq: u64,
    pub(super) text: Message,
}

impl Snapshot {
    fn read(text: &Message) -> Option<Self> {
        static PATHS: [Path; 2] = [&["resource"], &["fromSeq"]];
        let found = json::find(text.slices(), &PATHS).ok()?;
        let (channel, from_seq) = string(text, found.get(0)).zip(number(text, found.get(1)))?;
        Some(Self { channel, from_seq, text: text.clone() })
    }

    /// Reads the snapshot in the result of a `subscribe`, in one pass. A channel without state has none.
    pub(super) fn of_subscribe(result: &Message) -> Option<Self> {
        static PATHS: [Path; 3] = [&["snapshot"], &["snapshot", "resource"], &["snapshot", "fromSeq"]];
        let found: Paths<3> = json::find(result.slices(), &PATHS).ok()?;
        let (channel, from_seq) = string(result, found.get(1)).zip(number(result, found.get(2)))?;
        Some(Self { channel, from_seq, text: slice(result, found.get(0)?.span) })
    }

    /// Whether the state has this text as a string of its own. `text` is as JSON writes it, with its quotes.
    pub(super) fn has(&self, text: &[u8]) -> bool {
        contains(&self.text, text)
    }
}

/// The result of an `initialize`.
#[derive(Debug)]
pub(super) struct InitializeResult {
    pub(super) seq: u64,
    pub(super) snapshots: Vec<Snapshot>,
}

impl InitializeResult {
    pub(super) fn read(result: &Message) -> Option<Self> {
        static PATHS: [Path; 2] = [&["serverSeq"], &["snapshots"]];
        let found = json::find(result.slices(), &PATHS).ok()?;
        let snapshots = found.get(1).map_or(Some(Vec::new()), |found| each(result, found, Snapshot::read))?;
        Some(Self { seq: number(result, found.get(0))?, snapshots })
    }
}

/// The result of a `reconnect`.
#[derive(Debug)]
pub(super) enum ReconnectResult {
    Replay { actions: Vec<ActionEnvelope>, missing: Vec<String> },
    Snapshots(Vec<Snapshot>),
}

impl ReconnectResult {
    pub(super) fn read(result: &Message) -> Option<Self> {
        static PATHS: [Path; 4] = [&["type"], &["actions"], &["missing"], &["snapshots"]];
        let found = json::find(result.slices(), &PATHS).ok()?;
        match &*string(result, found.get(0))? {
            "replay" => {
                let actions = each(result, found.get(1)?, ActionEnvelope::read)?;
                let missing = found.get(2).and_then(|found| serde_json::from_slice(&result.read(found.span)).ok());
                Some(Self::Replay { actions, missing: missing.unwrap_or_default() })
            }
            "snapshot" => Some(Self::Snapshots(each(result, found.get(3)?, Snapshot::read)?)),
            _ => None,
        }
    }
}

/// The params of an `initialize`: what the application adds is kept, what the protocol needs is set.
pub(super) fn initialize(
    introduction: &serde_json::Map<String, serde_json::Value>,
    versions: &[String],
    client: &str,
    channels: &[String],
) -> Message {
    let mut params = introduction.clone();
    params.insert("channel".into(), json!(ROOT));
    params.insert("protocolVersions".into(), json!(versions));
    params.insert("clientId".into(), json!(client));
    params.insert("initialSubscriptions".into(), json!(channels));
    Message::from(serde_json::Value::Object(params).to_string())
}

/// The params of a `reconnect`.
pub(super) fn reconnect(client: &str, cursor: u64, channels: &[String]) -> Message {
    let params = json!({ "channel": ROOT, "clientId": client, "lastSeenServerSeq": cursor, "subscriptions": channels });
    Message::from(params.to_string())
}

/// The params of a `subscribe` or `unsubscribe`.
pub(super) fn of_channel(channel: &str) -> Message {
    Message::from(json!({ "channel": channel }).to_string())
}

/// A request.
pub(super) fn request(id: u64, method: &str, params: &Message) -> Message {
    let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{},"params":"#, json!(method));
    wrap(head, params, "}")
}

/// A notification.
pub(super) fn notification(method: &str, params: &Message) -> Message {
    wrap(format!(r#"{{"jsonrpc":"2.0","method":{},"params":"#, json!(method)), params, "}")
}

/// A `dispatchAction` notification.
pub(super) fn dispatch(channel: &str, client_seq: u64, action: &Message) -> Message {
    let head = format!(
        r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{{"channel":{},"clientSeq":{client_seq},"action":"#,
        json!(channel)
    );
    wrap(head, action, "}}")
}

/// The answer to a request of the host's.
pub(super) fn result(id: &Message, result: &Message) -> Message {
    let head = [Bytes::from_static(br#"{"jsonrpc":"2.0","id":"#)].into_iter().chain(id.parts().iter().cloned());
    let middle = [Bytes::from_static(br#","result":"#)].into_iter().chain(result.parts().iter().cloned());
    head.chain(middle).chain([Bytes::from_static(b"}")]).collect()
}

/// A refusal of a request of the host's.
pub(super) fn error(id: &Message, code: i64, message: &str) -> Message {
    let error = format!(r#","error":{}}}"#, json!({ "code": code, "message": message }));
    let head = [Bytes::from_static(br#"{"jsonrpc":"2.0","id":"#)].into_iter().chain(id.parts().iter().cloned());
    head.chain([Bytes::from(error)]).collect()
}

fn wrap(head: String, inner: &Message, tail: &'static str) -> Message {
    let inner = inner.parts().iter().cloned();
    [Bytes::from(head)].into_iter().chain(inner).chain([Bytes::from_static(tail.as_bytes())]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use breakbulk_proto::ahp::{Config, Connection, Role};
    use breakbulk_proto::{Budget, Event, Input, Limits, Machine};

    use super::super::text::is_json;
    use super::*;

    fn rope(text: &str, piece: usize) -> Message {
        text.as_bytes().chunks(piece).map(Bytes::copy_from_slice).collect()
    }

    /// A message in small pieces, with the envelope that a machine finds in it.
    fn received(text: &str) -> (Message, Envelope) {
        let config = Config::new(Role::Client, Limits::default(), [0; 32]);
        let mut machine = Connection::new(config, Budget::default().account(None));
        machine.handle(Input::frame(text.to_owned()), Instant::now());
        let Some(Event::Message { envelope, .. }) = machine.poll_event() else { panic!("{text}") };
        (rope(text, 7), *envelope)
    }

    #[test]
    fn messages_are_read_by_what_they_are() {
        let read = |text: &str| {
            let (message, envelope) = received(text);
            Incoming::read(&message, &envelope)
        };
        let action = r#"{"jsonrpc":"2.0","method":"action","params":{"channel":"c","action":{"type":"x"},"serverSeq":7,"origin":{"clientId":"me","clientSeq":3}}}"#;
        let Incoming::Action(envelope) = read(action) else { panic!() };
        assert_eq!((envelope.channel.as_str(), envelope.seq), ("c", 7));
        assert_eq!(envelope.origin, Some(("me".to_owned(), 3)));
        assert!(envelope.text.to_bytes().starts_with(br#"{"channel":"c""#));
        let Incoming::Response { id: 4, outcome: Ok(result) } = read(r#"{"id":4,"result":[1]}"#) else { panic!() };
        assert_eq!(result, Message::from("[1]"));
        let with_null = read(r#"{"id":4,"result":[1],"error":null}"#);
        assert!(matches!(with_null, Incoming::Response { id: 4, outcome: Ok(_) }));
        let with_null = read(r#"{"id":4,"result":null,"error":{"code":1}}"#);
        assert!(matches!(with_null, Incoming::Response { id: 4, outcome: Err(RequestError::Remote { code: 1, .. }) }));
        let Incoming::Response { id: 4, outcome: Err(RequestError::Remote { code, message, data }) } =
            read(r#"{"id":4.0,"error":{"code":-32011,"message":"no","data":{"a":1}}}"#)
        else {
            panic!()
        };
        assert_eq!((code, message.as_str(), data), (-32011, "no", Some(Message::from(r#"{"a":1}"#))));
        let Incoming::Request { id, method, .. } = read(r#"{"id":"x","method":"resourceRead","params":{}}"#) else {
            panic!()
        };
        assert_eq!((id, method.as_str()), (Message::from(r#""x""#), "resourceRead"));
        assert!(matches!(read(r#"{"method":"action","params":{}}"#), Incoming::Notification { .. }));
        assert!(matches!(read(r#"{"jsonrpc":"2.0"}"#), Incoming::Other));
    }

    #[test]
    fn a_replay_and_snapshots_are_read_without_a_tree() {
        let text = r#"{"type":"replay","actions":[ {"channel":"a","serverSeq":1,"action":{}} ,{"channel":"b","serverSeq":2,"action":[]}],"missing":["x"]}"#;
        let Some(ReconnectResult::Replay { actions, missing }) = ReconnectResult::read(&rope(text, 9)) else {
            panic!()
        };
        assert_eq!(
            actions.iter().map(|action| (action.channel.as_str(), action.seq)).collect::<Vec<_>>(),
            [("a", 1), ("b", 2)]
        );
        assert_eq!(missing, ["x"]);
        let text = r#"{"type":"snapshot","snapshots":[{"resource":"a","fromSeq":9,"state":{"turns":[{"id":"t1"}]}}]}"#;
        let Some(ReconnectResult::Snapshots(snapshots)) = ReconnectResult::read(&rope(text, 5)) else { panic!() };
        assert!(snapshots[0].from_seq == 9 && snapshots[0].has(br#""t1""#) && !snapshots[0].has(br#""t2""#));
        assert!(ReconnectResult::read(&Message::from(r#"{"type":"replay","actions":7}"#)).is_none());
        assert!(ReconnectResult::read(&Message::from(r#"{"type":"replay","actions":[7]}"#)).is_none());
        assert!(ReconnectResult::read(&Message::from(r#"{"type":"other"}"#)).is_none());
    }

    #[test]
    fn an_array_of_crumbs_is_refused() {
        let text = format!(r#"{{"type":"replay","actions":[{}0]}}"#, "0,".repeat(10_000));
        assert!(ReconnectResult::read(&Message::from(text)).is_none());
    }

    #[test]
    fn what_is_written_is_json_and_keeps_what_it_wraps() {
        let inner = rope(r#"{"a": 1.50}"#, 3);
        for text in [
            request(7, "m\"", &inner),
            notification("n", &inner),
            dispatch("c\\", 9, &inner),
            result(&Message::from("\"x\""), &inner),
        ] {
            assert!(is_json(&text) && contains(&text, br#"{"a": 1.50}"#));
        }
        assert!(is_json(&error(&Message::from("1"), -1, "no \"room\"")));
    }
}
