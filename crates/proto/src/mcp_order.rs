//! What may pass a large message in the dialects of MCP, and which request a cancel names, in every dialect.
//!
//! Each large message is sent in parts, and on a slow link that takes long. What passes it between two parts:
//!
//! | Message | `stdio` | `cep22` |
//! |---|---|---|
//! | `ping` | passes, and never waits | passes |
//! | a response, or `notifications/progress` | passes if it fits one line | passes if it fits one frame |
//! | a [cancel](is_cancel) | passes all but the request that it names | the same |
//! | any other request or notification | first in, first out | passes if it fits one frame |
//!
//! In `stdio`, MCP requests keep their order because peers on pipes rely on it. On the relays of `cep22` frames may be reordered
//! anyway, so a small message never waits for a transfer there.
//!
//! A cancel that came before its request would be ignored, and the request would then run to its end. So a cancel waits until
//! the last frame of the request that it names has been sent. Ids are compared by value.

use crate::envelope::{ENVELOPE, Envelope, Kind};
use crate::json::{Found, Path};
use crate::message::Message;
use crate::outgoing::Scan;
use crate::queue::{Bond, LaneKey, Order};
use crate::rpc::IdKey;

/// Where a cancel has the id of the request that it names: `notifications/cancelled` of MCP, then `$/cancelRequest` of LSP.
pub(crate) const CANCELLED: [Path; 2] = [&["params", "requestId"], &["params", "id"]];

/// What is searched for in a message to send: the envelope, then [`CANCELLED`].
pub(crate) static PATHS: [Path; 8] =
    [ENVELOPE[0], ENVELOPE[1], ENVELOPE[2], ENVELOPE[3], ENVELOPE[4], ENVELOPE[5], CANCELLED[0], CANCELLED[1]];

/// The order of all messages that keep their place.
pub(crate) const IN_ORDER: Order = Order::Ordered(LaneKey(0));

/// Whether a notification with this method cancels a request.
pub(crate) fn is_cancel(method: &str) -> bool {
    matches!(method, "notifications/cancelled" | "$/cancelRequest")
}

/// How a message is bound to a request: it is the request, or cancels it. `named` are the values at [`CANCELLED`].
pub(crate) fn bond(message: &Message, envelope: &Envelope, named: [Option<Found>; 2]) -> Bond {
    match envelope.kind() {
        Kind::Request => envelope.id_key(message).map_or(Bond::None, Bond::Request),
        Kind::Notification => cancelled(message, envelope, named).map_or(Bond::None, Bond::Cancels),
        Kind::Response | Kind::Other => Bond::None,
    }
}

/// The id of the request that a notification cancels, if it cancels one.
fn cancelled(message: &Message, envelope: &Envelope, [request_id, id]: [Option<Found>; 2]) -> Option<IdKey> {
    let found = match &*envelope.method(message)? {
        "notifications/cancelled" => request_id,
        "$/cancelRequest" => id,
        _ => None,
    };
    found.map(|found| IdKey::of(&message.read(found.span)))
}

/// The order of a message in `stdio`. `is_short` says whether it fits one line: a long one would share the link with the message
/// that it passes, so it keeps its place.
pub(crate) fn order(message: &Message, envelope: &Envelope, is_short: bool) -> Order {
    let method = envelope.method(message).unwrap_or_default();
    match (envelope.kind(), &*method) {
        (Kind::Request, "ping") => Order::Urgent,
        (Kind::Notification, method) if is_cancel(method) => Order::Free,
        (Kind::Response, _) | (Kind::Notification, "notifications/progress") if is_short => Order::Free,
        _ => IN_ORDER,
    }
}

/// Whether enough of a message was scanned to know its [order](order) and its [bond](bond). In MCP, the method of a notification tells
/// that it is one.
pub(crate) fn is_enough(scan: &Scan<{ PATHS.len() }>, message: &Message) -> bool {
    let envelope = &scan.envelope;
    match envelope.method(message) {
        Some(method) if is_cancel(&method) => false,
        Some(method) => envelope.has_id() || method.starts_with("notifications/"),
        None => envelope.result().or(envelope.error()).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Order, Bond) {
        let message = Message::from(text.to_owned());
        let scan = Scan::new(&message, &PATHS, |scan| is_enough(scan, &message)).unwrap();
        let named = [scan.paths.get(6), scan.paths.get(7)];
        (order(&message, &scan.envelope, true), bond(&message, &scan.envelope, named))
    }

    #[test]
    fn every_message_has_the_order_and_the_bond_of_the_table() {
        let id = |raw: &str| IdKey::of(raw.as_bytes());
        for (text, want) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, (Order::Urgent, Bond::Request(id("1")))),
            (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#, (IN_ORDER, Bond::Request(id("1")))),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, (Order::Free, Bond::None)),
            (r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, (Order::Free, Bond::None)),
            (r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#, (Order::Free, Bond::None)),
            (r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"id":1}}"#, (IN_ORDER, Bond::None)),
            (r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}"#, (Order::Free, Bond::None)),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"id":2,"requestId":1.0}}"#,
                (Order::Free, Bond::Cancels(id("1"))),
            ),
            (
                r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"requestId":2,"id":"a"}}"#,
                (Order::Free, Bond::Cancels(id("\"\\u0061\""))),
            ),
        ] {
            assert_eq!(read(text), want, "{text}");
        }
    }

    #[test]
    fn the_id_of_a_request_is_found_behind_long_params() {
        let long = "x".repeat(10_000);
        let text = format!(r#"{{"method":"tools/call","params":["{long}"],"jsonrpc":"2.0","id":7}}"#);
        assert_eq!(read(&text), (IN_ORDER, Bond::Request(IdKey::of(b"7"))));
        let text = format!(r#"{{"method":"$/cancelRequest","params":{{"why":"{long}","id":7}},"jsonrpc":"2.0"}}"#);
        assert_eq!(read(&text), (Order::Free, Bond::Cancels(IdKey::of(b"7"))));
    }

    #[test]
    fn a_long_response_keeps_its_place() {
        let message = Message::from(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(order(&message, &Envelope::of(&message).unwrap(), false), IN_ORDER);
    }
}
