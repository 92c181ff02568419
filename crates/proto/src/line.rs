//! What a line of a pipe is: a message, a damaged message, or something for the log.

use bytes::Bytes;

use crate::envelope::Envelope;
use crate::error::{LineFault, Violation};
use crate::error_responses::{ErrorResponses, Recipient};
use crate::event_queue::EventQueue;
use crate::message::{Message, len64};
use crate::outgoing::check;
use crate::salvage::{Salvage, SalvagedLine};

/// Some programs begin their output with it. RFC 8259 allows readers to ignore it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a line is.
#[derive(Debug)]
pub(crate) enum Line {
    /// A whole message.
    Message(Message, Box<Envelope>),
    /// Meant as a message, or as a batch of several, and not valid.
    Bad(LineFault, SalvagedLine),
    /// Something else.
    Log(Bytes),
}

impl Line {
    /// Reads a line without its end. A byte order mark in front is left out.
    pub(crate) fn read(line: &Bytes, max_depth: u32) -> Self {
        let text = line.strip_prefix(BYTE_ORDER_MARK).map_or_else(|| line.clone(), |rest| line.slice_ref(rest));
        let message = Message::from(text);
        let violation = match check(&message, max_depth) {
            Ok(envelope) => return Self::Message(message.checked(max_depth), Box::new(envelope)),
            Err(violation) => violation,
        };
        let text = message.to_bytes();
        let meant = SalvagedLine::read(&text);
        if meant.found.is_empty() {
            return Self::Log(line.clone());
        }
        let fault = match violation {
            Violation::FrameNotUtf8 => LineFault::NotUtf8,
            Violation::FrameNotJson(error) => LineFault::NotJson(error),
            Violation::TooDeep(limit) => LineFault::TooDeep(limit),
            Violation::FrameNotObject => LineFault::Batch,
            _ => LineFault::NotJsonRpc,
        };
        Self::Bad(fault, meant)
    }
}

/// Reports a line that was meant as a message and is not valid, with errors for the callers here that it answers. Returns the error
/// responses for the peer. `ordinals` is the next ordinal.
pub(crate) fn report(
    (line, bytes): (u64, &Bytes),
    (why, meant): (LineFault, &SalvagedLine),
    ordinals: &mut u64,
    events: &mut EventQueue,
) -> ErrorResponses {
    let SalvagedLine { found, left } = meant;
    let answered = *left == 0 && found.iter().all(|meant| meant.id.is_some());
    let violation = Violation::BadLine { line, bytes: len64(bytes.len()), why, answered, left: *left };
    let callers = ErrorResponses::new(Recipient::Caller, violation.clone(), found.iter().filter_map(Salvage::answered));
    events.callers_failed(ordinals, violation.clone(), callers);
    ErrorResponses::new(Recipient::Peer, violation, found.iter().filter_map(Salvage::asked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Event;

    fn read(line: &[u8]) -> Line {
        Line::read(&Bytes::copy_from_slice(line), 20)
    }

    #[test]
    fn a_byte_order_mark_is_left_out() {
        let text = br#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
        let Line::Message(message, _) = read(&[BYTE_ORDER_MARK, text].concat()) else { panic!("no message") };
        assert_eq!(message, Message::from(&text[..]));
    }

    #[test]
    fn what_is_wrong_with_a_line_has_a_name() {
        let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{}{}}}"#, "[".repeat(20), "]".repeat(20));
        for (line, name) in [
            (&b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xe9\"}"[..], "line-not-utf8"),
            (br#"{"jsonrpc":"2.0","id":1,"method":"m","params":[NaN]}"#, "line-not-json"),
            (br#"{"jsonrpc":"2.0","id":1,"method":"m"} x"#, "line-not-json"),
            (deep.as_bytes(), "line-too-deep"),
            (br#"[{"jsonrpc":"2.0","id":1,"method":"m"}]"#, "line-batch"),
            (br#"{"id":1,"method":"m"}"#, "line-not-json-rpc"),
            (br#"{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}"#, "line-not-json-rpc"),
        ] {
            let Line::Bad(why, meant) = read(line) else { panic!("{name}") };
            let name_of = Violation::BadLine { line: 1, bytes: 2, why, answered: true, left: 0 }.name();
            assert_eq!((name_of, meant.found.len(), meant.found[0].asked().is_some()), (name, 1, true));
        }
        for line in [&b"ready"[..], b"caf\xe9", br#"{"level":"info"}"#, b"\xef\xbb\xbfready"] {
            assert!(matches!(read(line), Line::Log(log) if log == line));
        }
    }

    #[test]
    fn of_a_batch_each_who_waits_hears() {
        let line = Bytes::from_static(
            br#"[{"jsonrpc":"2.0","id":1,"method":"m"},{"jsonrpc":"2.0","id":"a","result":1},{"jsonrpc":"2.0","id":"b","error":{}}]"#,
        );
        let Line::Bad(why, meant) = read(&line) else { panic!("no batch") };
        let (mut events, mut ordinals) = (EventQueue::default(), 0);
        let answers: Vec<_> = report((7, &line), (why, &meant), &mut ordinals, &mut events).collect();
        assert_eq!(ordinals, 2);
        let text = |message: &Message| String::from_utf8(message.to_bytes().to_vec()).unwrap();
        assert_eq!(answers.len(), 1);
        assert!(
            text(&answers[0]).starts_with(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"line 7, of "#)
        );
        let [
            Some(Event::ReceiveFailed { ordinal: 0, violation, reply: Some(first) }),
            Some(Event::Message { ordinal: 1, message: second, envelope, .. }),
            None,
        ] = std::array::from_fn(|_| events.poll_event())
        else {
            panic!("not one failure and one message")
        };
        assert_eq!((violation.name(), envelope.kind()), ("line-batch", crate::envelope::Kind::Response));
        for (id, reply) in [("a", first), ("b", second)] {
            assert!(text(&reply).starts_with(&format!(r#"{{"jsonrpc":"2.0","id":"{id}","error":{{"code":-32603"#)));
        }
        assert_eq!(events.counters().count("line-batch"), 1);
    }

    #[test]
    fn who_may_wait_for_a_message_that_is_neither_request_nor_answer_hears() {
        let told = |line: &'static [u8]| {
            let line = Bytes::from_static(line);
            let Line::Bad(why, meant) = read(&line) else { panic!("no message") };
            let mut events = EventQueue::default();
            let peer = report((1, &line), (why, &meant), &mut 0, &mut events).count();
            let Some(Event::ReceiveFailed { reply, .. }) = events.poll_event() else { panic!("not told") };
            (peer, reply.is_some())
        };
        assert_eq!(told(br#"{"jsonrpc":"2.0","id":1,"error":null}"#), (0, true), "an answer");
        assert_eq!(
            told(br#"{"jsonrpc":"2.0","id":1}"#),
            (1, true),
            "an answer whose result was left out, or a request"
        );
        assert_eq!(told(br#"{"jsonrpc":"2.0","id":1,"method":"m","params":1}"#), (1, false), "a request");
    }

    #[test]
    fn what_nobody_waits_for_is_told_as_lost() {
        let line = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"m","params":NaN}"#);
        let Line::Bad(why, meant) = read(&line) else { panic!("a message") };
        let mut events = EventQueue::default();
        assert!(report((1, &line), (why, &meant), &mut 0, &mut events).next().is_none());
        let Some(Event::ReceiveFailed { violation: Violation::BadLine { answered: false, .. }, reply: None, .. }) =
            events.poll_event()
        else {
            panic!("not told")
        };
    }
}
