//! Messages as ropes: what a client is told, with the log's own bytes in it; and what it says, taken apart.

use ahp_types::actions::ActionOrigin;
use breakbulk_proto::Message;
use breakbulk_proto::json::{self, Found, Path, Paths, Scanner, Span, ValueKind};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::error::MethodError;
use crate::log::Seq;

/// How much of a body is looked at in one step. What an entry is, stands behind its channel's URI.
const STEP: usize = 512;

/// More than what stands around the body of an entry in the message that brings it.
pub(super) const ENVELOPE: u64 = 128;

/// What an entry of the log is to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// An action, to be numbered.
    Action,
    /// A notification of its own, such as `root/sessionAdded`.
    Notice,
    /// The beginning of a channel, or a new one: there is no action that says it, only a snapshot shows it.
    Initial,
    /// The channel is no more.
    Closed,
    /// Nothing: it is no entry of ours.
    Nothing,
}

impl Said {
    /// Looks at the front of a body.
    pub(super) fn of(body: &[u8]) -> Self {
        // As we write them ourselves, which is nearly always.
        match behind_channel(body) {
            Some(rest) if rest.starts_with(br#","action":"#) => return Self::Action,
            Some(rest) if rest.starts_with(br#","initial":"#) => return Self::Initial,
            Some(rest) if rest.starts_with(br#","closed":"#) => return Self::Closed,
            _ => {}
        }
        static PATHS: [Path; 3] = [&["action"], &["method"], &["initial"]];
        let mut scanner = Scanner::new(Paths::new(&PATHS));
        for step in body.chunks(STEP) {
            let fed = scanner.feed(step);
            let seen = [Self::Action, Self::Notice, Self::Initial];
            let first = (0..seen.len()).find(|i| scanner.visitor().get(*i).is_some());
            if let Some(what) = first.and_then(|i| seen.get(i)) {
                return *what;
            }
            if fed.is_err() {
                break;
            }
        }
        Self::Nothing
    }
}

/// Whether an entry takes turns away from a chat. It names the turn that stays, and that may be one which a client with a
/// window does not have.
pub(super) fn truncates(body: &[u8]) -> bool {
    const WORDS: &[u8] = br#","action":{"type":"chat/truncated""#;
    behind_channel(body).is_some_and(|rest| rest.starts_with(WORDS))
}

/// What stands behind the channel's name in a body that begins with it. A quote in a name is escaped, and so is what follows it.
fn behind_channel(body: &[u8]) -> Option<&[u8]> {
    let name = body.strip_prefix(br#"{"channel":""#)?;
    let end = name.iter().position(|byte| *byte == b'"')?;
    name.get(end.saturating_add(1)..)
}

/// An `action` notification.
pub(super) fn action(seq: Seq, body: &Bytes) -> Message {
    let front = format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"serverSeq":{seq},"#);
    [front.into(), rest(body), Bytes::from_static(b"}")].into_iter().collect()
}

/// A notification whose method and params are the body of an entry.
pub(super) fn notice(body: &Bytes) -> Message {
    [Bytes::from_static(br#"{"jsonrpc":"2.0","#), rest(body)].into_iter().collect()
}

/// An action that was not taken, back to who dispatched it. `seq` is what the client has got so far: it takes no place of
/// its own in the order.
pub(super) fn rejection(seq: Seq, channel: &str, action: &Bytes, origin: &ActionOrigin, reason: &str) -> Message {
    let front = format!(
        r#"{{"jsonrpc":"2.0","method":"action","params":{{"serverSeq":{seq},"channel":{},"action":"#,
        Value::from(channel)
    );
    let end = format!(
        r#","origin":{},"rejectionReason":{}}}}}"#,
        json!({"clientId": origin.client_id, "clientSeq": origin.client_seq}),
        Value::from(reason)
    );
    [front.into(), action.clone(), end.into()].into_iter().collect()
}

/// The same JSON with `null` for each array and object that lies inside of `limit` others.
pub(super) fn pruned(text: &[u8], limit: u32) -> Bytes {
    let (mut out, mut depth, mut is_string, mut is_escaped) = (Vec::with_capacity(text.len()), 0_u32, false, false);
    for &byte in text {
        let is_outside = !is_string;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b'[' | b'{' if is_outside => {
                depth = depth.saturating_add(1);
                if depth == limit.saturating_add(1) {
                    out.extend_from_slice(b"null");
                }
            }
            b']' | b'}' if is_outside => {
                depth = depth.saturating_sub(1);
                if depth == limit {
                    continue;
                }
            }
            _ => {}
        }
        if depth <= limit {
            out.push(byte);
        }
    }
    out.into()
}

/// An action for one client. `seq` is what the client has got so far: it takes no place of its own in the order.
pub(super) fn aside(seq: Seq, channel: &str, action: &Message) -> Message {
    let front = format!(
        r#"{{"jsonrpc":"2.0","method":"action","params":{{"serverSeq":{seq},"channel":{},"action":"#,
        Value::from(channel)
    );
    let parts = [Bytes::from(front)].into_iter().chain(action.parts().iter().cloned());
    parts.chain([Bytes::from_static(b"}}")]).collect()
}

/// A request or, without an id, a notification of ours.
pub(super) fn request(id: Option<u64>, method: &str, params: &Message) -> Message {
    let id = id.map(|id| format!(r#""id":{id},"#)).unwrap_or_default();
    let front = format!(r#"{{"jsonrpc":"2.0",{id}"method":{},"params":"#, Value::from(method));
    around(front, params)
}

/// The answer to a request.
pub(super) fn response(id: &Bytes, result: &Message) -> Message {
    let id = String::from_utf8_lossy(id);
    around(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"#), result)
}

/// The answer to a request that failed.
pub(super) fn failure(id: &Bytes, error: &MethodError) -> Message {
    let id = String::from_utf8_lossy(id);
    let mut object = json!({"code": error.code, "message": error.message});
    if let (Some(data), Some(object)) = (&error.data, object.as_object_mut()) {
        object.insert("data".to_owned(), data.clone());
    }
    Message::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{object}}}"#))
}

/// Texts with commas between them, in brackets.
pub(super) fn list<I: IntoIterator<Item = Bytes>>(items: impl IntoIterator<Item = I>) -> Vec<Bytes> {
    let mut parts = vec![Bytes::from_static(b"[")];
    for (n, item) in items.into_iter().enumerate() {
        if n > 0 {
            parts.push(Bytes::from_static(b","));
        }
        parts.extend(item);
    }
    parts.push(Bytes::from_static(b"]"));
    parts
}

/// A message of the client's, taken apart.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Its method; `None` for a response.
    pub(super) method: Option<String>,
    /// Its id as it is written; `None` where no answer is possible.
    pub(super) id: Option<Bytes>,
    /// Why it is neither a request, a notification nor a response.
    pub(super) invalid_because: Option<&'static str>,
    /// The params; an empty object where there are none.
    pub(super) params: Bytes,
    /// The result of a response.
    pub(super) result: Option<Bytes>,
    /// The error of a response.
    pub(super) error: Option<Bytes>,
}

impl Incoming {
    pub(super) fn read(message: &Message) -> Self {
        static PATHS: [Path; 5] = [&["method"], &["id"], &["params"], &["result"], &["error"]];
        // The machine has checked it.
        let Ok(found) = json::find(message.slices(), &PATHS) else { return Self::default() };
        let raw = |i| found.get(i).map(|value: Found| slice(message, value.span));
        // Many write `null` for what is not there.
        let there = |i| found.get(i).filter(|value| value.kind != ValueKind::Null).and_then(|_| raw(i));
        let named = found.get(0);
        let method = named.filter(|method| method.kind == ValueKind::String);
        let method = method.and_then(|method| json::string(&message.read(method.span)).map(|text| text.into_owned()));
        let id = found.get(1);
        let invalid_because = match (named, &method, id.map(|id| id.kind)) {
            (Some(_), None, _) => Some("method must be a string"),
            (Some(_), Some(_), None | Some(ValueKind::String | ValueKind::Number)) => None,
            // Many write it into a notification; as a request it could not be answered.
            (Some(_), Some(method), Some(ValueKind::Null)) if is_notification(method) => None,
            (Some(_), Some(_), Some(_)) => Some("the id of a request must be a string or a number"),
            (None, ..) if found.get(3).or(found.get(4)).is_none() => {
                Some("a message needs a method, a result or an error")
            }
            (None, ..) => None,
        };
        let id = id.filter(|id| matches!(id.kind, ValueKind::String | ValueKind::Number));
        Self {
            method,
            id: id.map(|id| slice(message, id.span)),
            invalid_because,
            params: there(2).unwrap_or_else(|| Bytes::from_static(b"{}")),
            result: raw(3),
            error: there(4),
        }
    }

    /// The id of a response to one of our requests.
    pub(super) fn number(&self) -> Option<u64> {
        json::number(self.id.as_ref()?).to_u64()
    }
}

/// Whether clients dispatch this without waiting for an answer.
fn is_notification(method: &str) -> bool {
    matches!(method, "dispatchAction" | "unsubscribe")
}

/// A part of a message: shared if it lies in one piece, copied else.
fn slice(message: &Message, span: Span) -> Bytes {
    if let [only] = message.parts()
        && let (Ok(start), Ok(end)) = (usize::try_from(span.start), usize::try_from(span.end))
        && start <= end
        && end <= only.len()
    {
        return only.slice(start..end);
    }
    Bytes::from(message.read(span).into_owned())
}

/// An object without its first brace.
fn rest(body: &Bytes) -> Bytes {
    body.slice(body.len().min(1)..)
}

fn around(front: String, inner: &Message) -> Message {
    let parts = [Bytes::from(front)].into_iter().chain(inner.parts().iter().cloned());
    parts.chain([Bytes::from_static(b"}")]).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_deeper_becomes_null() {
        for (text, limit, want) in [
            (r#"{"a":[1,{"b":[2,[3]]},"]"],"c":"[\"{"}"#, 2, r#"{"a":[1,null,"]"],"c":"[\"{"}"#),
            (r#"{"a":[1,{"b":[2,[3]]},"]"],"c":"[\"{"}"#, 4, r#"{"a":[1,{"b":[2,null]},"]"],"c":"[\"{"}"#),
            ("[[],[[]],{}]", 1, "[null,null,null]"),
            ("[[],[[]],{}]", 3, "[[],[[]],{}]"),
        ] {
            assert_eq!(pruned(text.as_bytes(), limit), want, "{text}");
        }
    }

    fn value(message: &Message) -> Value {
        serde_json::from_slice(&message.to_bytes()).unwrap()
    }

    #[test]
    fn an_action_on_the_wire_is_the_body_with_its_seq() {
        let body = Bytes::from_static(br#"{"channel":"c","action":{"type":"x"}}"#);
        let message = action(7, &body);
        let params = json!({"serverSeq": 7, "channel": "c", "action": {"type": "x"}});
        assert_eq!(value(&message), json!({"jsonrpc": "2.0", "method": "action", "params": params}));
        assert_eq!(message.parts()[1].as_ptr(), body[1..].as_ptr(), "the log's bytes are shared");
    }

    #[test]
    fn the_front_of_a_body_says_what_it_is() {
        let long = "x".repeat(3 * STEP);
        for (body, said) in [
            (r#"{"channel":"c","action":{"type":"x"}}"#.to_owned(), Said::Action),
            (format!(r#"{{"channel":"{long}","action":{{"method":1}}}}"#), Said::Action),
            (format!(r#"{{"channel":"c","action":{{"a":"{long}"}},"method":1}}"#), Said::Action),
            (r#"{"method":"root/sessionAdded","params":{"action":1}}"#.to_owned(), Said::Notice),
            (r#"{"channel":"c","initial":{"action":1}}"#.to_owned(), Said::Initial),
            (r#"{"channel":"c"}"#.to_owned(), Said::Nothing),
            ("[".to_owned(), Said::Nothing),
            (String::new(), Said::Nothing),
        ] {
            assert_eq!(Said::of(body.as_bytes()), said, "{body:.80}");
        }
    }

    #[test]
    fn a_rejection_has_the_action_its_origin_and_the_reason() {
        let origin = ActionOrigin { client_id: "me".into(), client_seq: 3 };
        let message = rejection(9, "c\"", &Bytes::from_static(br#"{"type":"x"}"#), &origin, "no \"turn\"");
        let params = &value(&message)["params"];
        assert_eq!(params["origin"], json!({"clientId": "me", "clientSeq": 3}));
        assert_eq!((&params["serverSeq"], &params["channel"]), (&json!(9), &json!("c\"")));
        assert_eq!((&params["rejectionReason"], &params["action"]["type"]), (&json!("no \"turn\""), &json!("x")));
    }

    #[test]
    fn an_answer_repeats_the_id_as_it_was_written() {
        let read = |text: &str| Incoming::read(&Message::from(text.to_owned()));
        let asked = read(r#"{"jsonrpc":"2.0","id":"aA","method":"m"}"#);
        assert_eq!((asked.method.as_deref(), &asked.params[..]), (Some("m"), &b"{}"[..]));
        let answer = response(&asked.id.unwrap(), &Message::from("[1]"));
        assert_eq!(answer, Message::from(r#"{"jsonrpc":"2.0","id":"aA","result":[1]}"#));
        let error = MethodError::new(-32602, "no").with_data(json!({"a": 1}));
        assert_eq!(value(&failure(&Bytes::from_static(b"4"), &error))["error"]["data"], json!({"a": 1}));
        let unnamed = read(r#"{"jsonrpc":"2.0","id":null,"method":"dispatchAction"}"#);
        assert!(unnamed.id.is_none() && unnamed.invalid_because.is_none(), "a notification");
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":12,"result":{}}"#).number(), Some(12));
    }
}
