//! Checks that a text is exactly one JSON-RPC message, and makes empty answers.

use std::time::Instant;

use breakbulk_proto::json::{self, Path};
use breakbulk_proto::{CloseReason, Event, Input, Limits, Machine, Message, Violation, plain};
use bytes::Bytes;

/// Why a text is not exactly one JSON-RPC message; `None` if it is. A plain connection checks each frame in the same way.
pub(crate) fn flaw(text: &Bytes, limits: Limits) -> Option<Violation> {
    let mut plain = plain::Connection::new(plain::Config::new(limits));
    plain.handle(Input::frame(text.clone()), Instant::now());
    match plain.poll_event() {
        Some(Event::Closed(CloseReason::Violation(violation))) => Some(violation),
        _ => None,
    }
}

/// An answer to a request, with nothing in it.
pub(crate) fn answer(message: &Message) -> Option<Message> {
    static PATHS: [Path; 2] = [&["id"], &["method"]];
    let found = json::find(message.slices(), &PATHS).ok()?;
    let (id, _) = (found.get(0)?, found.get(1)?);
    let mut text = br#"{"jsonrpc":"2.0","id":"#.to_vec();
    text.extend_from_slice(&message.read(id.span));
    text.extend_from_slice(br#","result":null}"#);
    Some(Message::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_json_rpc_message_has_no_flaw() {
        let name = |text: &'static str| flaw(&Bytes::from(text), Limits::default()).map(|violation| violation.name());
        assert_eq!(name(r#"{"jsonrpc":"2.0","method":"m"}"#), None);
        assert_eq!(name("{}"), Some("message-not-json-rpc"));
        assert_eq!(name("{"), Some("frame-not-json"));
    }

    #[test]
    fn a_request_is_answered_under_its_id_as_it_is_written_and_nothing_else_is() {
        let answer = |text: &'static str| answer(&Message::from(text));
        let want = r#"{"jsonrpc":"2.0","id":1.0,"result":null}"#;
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":1.0,"method":"m"}"#), Some(Message::from(want)));
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":1,"result":2}"#), None);
        assert_eq!(answer(r#"{"jsonrpc":"2.0","method":"m"}"#), None);
    }
}
