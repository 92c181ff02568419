//! The JSON texts of messages: those to a client are ropes that share the log's bytes; those from a client are taken apart.

use std::borrow::Cow;

use ahp_types::actions::ActionOrigin;
use breakbulk_proto::json::{self, Found, Span, ValueKind};
use breakbulk_proto::{Envelope, Message};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::error::MethodError;
use crate::log::Seq;

/// An upper bound for the bytes around the body of an entry in its message.
pub(super) const ENVELOPE: u64 = 128;

/// An `action` notification.
pub(super) fn action(seq: Seq, body: &Bytes) -> Message {
    let front = format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"serverSeq":{seq},"#);
    [front.into(), rest(body), Bytes::from_static(b"}")].into_iter().collect()
}

/// A notification whose method and params are the body of an entry.
pub(super) fn notice(body: &Bytes) -> Message {
    [Bytes::from_static(br#"{"jsonrpc":"2.0","#), rest(body)].into_iter().collect()
}

/// A rejected action, for the client that dispatched it. `seq` is the last one that the client got: a rejected action has no
/// place in the order.
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

/// An action for one client alone. `seq` is the last one that the client got: such an action has no place in the order.
pub(super) fn private_action(seq: Seq, channel: &str, action: &Message) -> Message {
    let front = format!(
        r#"{{"jsonrpc":"2.0","method":"action","params":{{"serverSeq":{seq},"channel":{},"action":"#,
        Value::from(channel)
    );
    let parts = [Bytes::from(front)].into_iter().chain(action.parts().iter().cloned());
    parts.chain([Bytes::from_static(b"}}")]).collect()
}

/// A request of the host or, without an id, a notification.
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

/// A JSON array of these texts.
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

/// A message of the client, with the values that its envelope points to.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Its method; `None` for a response.
    pub(super) method: Option<String>,
    /// Its id as it is written; `None` where no answer is possible.
    pub(super) id: Option<Bytes>,
    /// Why it is neither a request, a notification nor a response.
    pub(super) invalid_because: Option<&'static str>,
    /// The type of the action that it dispatches.
    pub(super) action_type: Option<String>,
    /// The params; an empty object where there are none.
    pub(super) params: Bytes,
    /// The result of a response.
    pub(super) result: Option<Bytes>,
    /// The error of a response.
    pub(super) error: Option<Bytes>,
}

impl Incoming {
    /// Takes the values out of a message. The machine found them when it checked the message.
    pub(super) fn new(message: &Message, envelope: &Envelope) -> Self {
        let raw = |value: Found| slice(message, value.span);
        let method = envelope.method(message);
        let id = envelope.id_value();
        let invalid_because = match (envelope.method_value(), &method, id.map(|id| id.kind)) {
            (Some(_), None, _) => Some("method must be a string"),
            (Some(_), Some(_), None | Some(ValueKind::String | ValueKind::Number)) => None,
            // Many clients write a null id into a notification. A request with one could not be answered.
            (Some(_), Some(method), Some(ValueKind::Null)) if is_notification(method) => None,
            (Some(_), Some(_), Some(_)) => Some("the id of a request must be a string or a number"),
            (None, ..) if envelope.result().or(envelope.error()).is_none() => {
                Some("a message needs a method, a result or an error")
            }
            (None, ..) => None,
        };
        Self {
            method: method.map(Cow::into_owned),
            id: id.filter(|id| matches!(id.kind, ValueKind::String | ValueKind::Number)).map(raw),
            invalid_because,
            action_type: envelope.action_type(message).map(Cow::into_owned),
            params: envelope.params().map_or_else(|| Bytes::from_static(b"{}"), raw),
            result: envelope.result().map(raw),
            error: envelope.error().map(raw),
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

/// A part of a message: shared if the message is one piece, else copied.
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

/// An object without its opening brace.
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
        let read = |text: &str| {
            let message = Message::from(text.to_owned());
            Incoming::new(&message, &Envelope::of(&message).unwrap())
        };
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
