//! The few JSON-RPC texts that a client writes, and what it reads out of those that arrive, without parsing them into trees.

use bytes::Bytes;
use serde_json::json;

use breakbulk_proto::Message;
use breakbulk_proto::json::{self, Path, ValueKind};

use super::error::RequestError;
use super::rope::{contains, each, integer, number, slice, string};

/// The channel of the handshake.
const ROOT: &str = "ahp-root://";
/// A message that arrived.
#[derive(Debug)]
pub(super) enum Incoming {
    /// The answer to a request of ours.
    Answer { id: u64, outcome: Result<Message, RequestError> },
    /// An `action` notification.
    Action(Envelope),
    /// Any other notification.
    Notification { method: String, params: Message },
    /// A request of the host's. Its id is copied as it is written.
    Request { id: Message, method: String, params: Message },
    /// None of these.
    Other,
}

impl Incoming {
    /// Reads a message that the machine has found to be JSON.
    pub(super) fn read(message: &Message) -> Self {
        static PATHS: [Path; 8] = [
            &["method"],
            &["id"],
            &["params"],
            &["result"],
            &["error"],
            &["error", "code"],
            &["error", "message"],
            &["error", "data"],
        ];
        let Ok(found) = json::find(message.slices(), &PATHS) else {
            return Self::Other;
        };
        let part = |i| found.get(i).map(|found| slice(message, found.span));
        // Many write `null` for what is not there.
        let has_error = found.get(4).is_some_and(|error| error.kind != ValueKind::Null);
        let id = found.get(1).filter(|id| matches!(id.kind, ValueKind::String | ValueKind::Number));
        match (string(message, found.get(0)), id, part(3), part(4)) {
            (Some(method), Some(id), _, _) => {
                Self::Request { id: slice(message, id.span), method, params: part(2).unwrap_or_default() }
            }
            (Some(method), None, _, _) => {
                let params = part(2).unwrap_or_default();
                let action = (method == "action").then(|| Envelope::read(&params)).flatten();
                action.map_or(Self::Notification { method, params }, Self::Action)
            }
            (None, Some(_), result, error) if result.is_some() || error.is_some() => {
                let Some(id) = number(message, id) else { return Self::Other };
                let remote = || RequestError::Remote {
                    code: integer(message, found.get(5)).unwrap_or_default(),
                    message: string(message, found.get(6)).unwrap_or_default(),
                    data: part(7),
                };
                Self::Answer { id, outcome: result.filter(|_| !has_error).ok_or_else(remote) }
            }
            _ => Self::Other,
        }
    }
}

/// An action with its place in the host's order.
#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) channel: String,
    pub(super) seq: u64,
    /// Who dispatched it, if a client did, and under which number.
    pub(super) origin: Option<(String, u64)>,
    /// Whether it has a place in the host's order at all.
    pub(super) place: Place,
    pub(super) text: Message,
}

/// Where an action stands in the host's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// At its seq: seen once.
    Own,
    /// It tells one client of older turns that it asked for, or all of them: its seq may have been seen.
    Page,
    /// It was refused and did not happen: its seq is only that of the answer.
    Nowhere,
}

impl Envelope {
    /// Reads an action's envelope.
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
        let origin = string(text, found.get(2)).zip(number(text, found.get(3)));
        let (channel, seq) = string(text, found.get(0)).zip(number(text, found.get(1)))?;
        let place = if string(text, found.get(4)).is_some() {
            Place::Nowhere
        } else if string(text, found.get(5)).is_some_and(|kind| kind == "chat/turnsLoaded") {
            Place::Page
        } else {
            Place::Own
        };
        Some(Self { channel, seq, origin, place, text: text.clone() })
    }
}

/// A channel's state as of a seq.
#[derive(Debug, Clone)]
pub(super) struct Shot {
    pub(super) channel: String,
    pub(super) from_seq: u64,
    pub(super) text: Message,
}

impl Shot {
    fn read(text: &Message) -> Option<Self> {
        static PATHS: [Path; 2] = [&["resource"], &["fromSeq"]];
        let found = json::find(text.slices(), &PATHS).ok()?;
        let (channel, from_seq) = string(text, found.get(0)).zip(number(text, found.get(1)))?;
        Some(Self { channel, from_seq, text: text.clone() })
    }

    /// Reads the snapshot in the result of a `subscribe`; a channel without state has none.
    pub(super) fn of_subscribe(result: &Message) -> Option<Self> {
        static PATHS: [Path; 1] = [&["snapshot"]];
        let found = json::find(result.slices(), &PATHS).ok()?;
        Self::read(&slice(result, found.get(0)?.span))
    }

    /// Whether the state has this text as a string of its own. `text` is as JSON writes it, with its quotes.
    pub(super) fn has(&self, text: &[u8]) -> bool {
        contains(&self.text, text)
    }
}

/// The result of an `initialize`.
#[derive(Debug)]
pub(super) struct Welcome {
    pub(super) seq: u64,
    pub(super) shots: Vec<Shot>,
}

impl Welcome {
    pub(super) fn read(result: &Message) -> Option<Self> {
        static PATHS: [Path; 2] = [&["serverSeq"], &["snapshots"]];
        let found = json::find(result.slices(), &PATHS).ok()?;
        let shots = found.get(1).map_or(Some(Vec::new()), |found| each(result, found, Shot::read))?;
        Some(Self { seq: number(result, found.get(0))?, shots })
    }
}

/// The result of a `reconnect`.
#[derive(Debug)]
pub(super) enum Resumption {
    Replay { actions: Vec<Envelope>, missing: Vec<String> },
    Snapshots(Vec<Shot>),
}

impl Resumption {
    pub(super) fn read(result: &Message) -> Option<Self> {
        static PATHS: [Path; 4] = [&["type"], &["actions"], &["missing"], &["snapshots"]];
        let found = json::find(result.slices(), &PATHS).ok()?;
        match &*string(result, found.get(0))? {
            "replay" => {
                let actions = each(result, found.get(1)?, Envelope::read)?;
                let missing = found.get(2).and_then(|found| serde_json::from_slice(&result.read(found.span)).ok());
                Some(Self::Replay { actions, missing: missing.unwrap_or_default() })
            }
            "snapshot" => Some(Self::Snapshots(each(result, found.get(3)?, Shot::read)?)),
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
    use super::super::rope::is_json;
    use super::*;

    fn rope(text: &str, piece: usize) -> Message {
        text.as_bytes().chunks(piece).map(Bytes::copy_from_slice).collect()
    }

    #[test]
    fn messages_are_read_by_what_they_are() {
        let read = |text: &str| Incoming::read(&rope(text, 7));
        let action = r#"{"jsonrpc":"2.0","method":"action","params":{"channel":"c","action":{"type":"x"},"serverSeq":7,"origin":{"clientId":"me","clientSeq":3}}}"#;
        let Incoming::Action(envelope) = read(action) else { panic!() };
        assert_eq!((envelope.channel.as_str(), envelope.seq), ("c", 7));
        assert_eq!(envelope.origin, Some(("me".to_owned(), 3)));
        assert!(envelope.text.to_bytes().starts_with(br#"{"channel":"c""#));
        let Incoming::Answer { id: 4, outcome: Ok(result) } = read(r#"{"id":4,"result":[1]}"#) else { panic!() };
        assert_eq!(result, Message::from("[1]"));
        let with_null = read(r#"{"id":4,"result":[1],"error":null}"#);
        assert!(matches!(with_null, Incoming::Answer { id: 4, outcome: Ok(_) }));
        let with_null = read(r#"{"id":4,"result":null,"error":{"code":1}}"#);
        assert!(matches!(with_null, Incoming::Answer { id: 4, outcome: Err(RequestError::Remote { code: 1, .. }) }));
        let Incoming::Answer { id: 4, outcome: Err(RequestError::Remote { code, message, data }) } =
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
        assert!(matches!(read("[]"), Incoming::Other));
    }

    #[test]
    fn a_replay_and_snapshots_are_read_without_a_tree() {
        let text = r#"{"type":"replay","actions":[ {"channel":"a","serverSeq":1,"action":{}} ,{"channel":"b","serverSeq":2,"action":[]}],"missing":["x"]}"#;
        let Some(Resumption::Replay { actions, missing }) = Resumption::read(&rope(text, 9)) else { panic!() };
        assert_eq!(
            actions.iter().map(|action| (action.channel.as_str(), action.seq)).collect::<Vec<_>>(),
            [("a", 1), ("b", 2)]
        );
        assert_eq!(missing, ["x"]);
        let text = r#"{"type":"snapshot","snapshots":[{"resource":"a","fromSeq":9,"state":{"turns":[{"id":"t1"}]}}]}"#;
        let Some(Resumption::Snapshots(shots)) = Resumption::read(&rope(text, 5)) else { panic!() };
        assert!(shots[0].from_seq == 9 && shots[0].has(br#""t1""#) && !shots[0].has(br#""t2""#));
        assert!(Resumption::read(&Message::from(r#"{"type":"replay","actions":7}"#)).is_none());
        assert!(Resumption::read(&Message::from(r#"{"type":"replay","actions":[7]}"#)).is_none());
        assert!(Resumption::read(&Message::from(r#"{"type":"other"}"#)).is_none());
    }

    #[test]
    fn an_array_of_crumbs_is_refused() {
        let text = format!(r#"{{"type":"replay","actions":[{}0]}}"#, "0,".repeat(10_000));
        assert!(Resumption::read(&Message::from(text)).is_none());
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
