//! A message to send, as far as a dialect must know it: what it is, and who has to hear when it cannot be sent.

use bytes::Bytes;

use crate::error::{SendError, Violation};
use crate::json::{self, Compactor, Utf8};
use crate::machine::Ticket;
use crate::message::Message;
use crate::outbox::Outbox;
use crate::rpc::{self, ENVELOPE, Envelope, Kind};

/// A message that waits to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// `None` for an answer that we made ourselves.
    ticket: Option<Ticket>,
    message: Message,
    kind: Kind,
    /// Verbatim; only where an answer is possible.
    id: Option<Bytes>,
}

impl Outgoing {
    /// Reads a message of the application's. What is not JSON-RPC is reported, and `None`.
    pub(crate) fn read(ticket: Ticket, message: Message, outbox: &mut Outbox) -> Option<Self> {
        let envelope = check(&message).ok().filter(|envelope| envelope.is_valid(&message));
        let Some(envelope) = envelope else {
            outbox.send_failed(ticket, SendError::NotJsonRpc, None);
            return None;
        };
        let id = envelope.id_text(&message).map(|id| Bytes::copy_from_slice(&id));
        Some(Self { ticket: Some(ticket), message, kind: envelope.kind, id })
    }

    /// The message.
    pub(crate) const fn message(&self) -> &Message {
        &self.message
    }

    /// The caller's name for it; `None` for an answer that we made ourselves.
    pub(crate) const fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// The same message without raw line ends. They can only be white space between its values, and all of that goes;
    /// a message without any keeps its bytes.
    pub(crate) fn on_one_line(mut self) -> Self {
        let breaks = |part: &[u8]| part.contains(&b'\n') || part.contains(&b'\r');
        if self.message.slices().any(breaks) {
            let mut line = Vec::with_capacity(self.message.len());
            let mut compactor = Compactor::new();
            self.message.slices().for_each(|part| compactor.feed(&mut line, part));
            self.message = Message::from(line);
        }
        self
    }

    /// Reports that this is not sent. A request's caller gets an error in the event; for a response, returns the
    /// error that the peer must get in its place.
    #[must_use]
    pub(crate) fn fail(self, error: SendError, outbox: &mut Outbox) -> Option<Self> {
        let Some(ticket) = self.ticket else {
            outbox.count(error.name());
            return None;
        };
        let answer = self.id.as_deref().map(|id| rpc::send_failed(id, &error));
        let (reply, instead) = match self.kind {
            Kind::Request => (answer, None),
            Kind::Response => (None, answer),
            Kind::Notification | Kind::Other => (None, None),
        };
        outbox.send_failed(ticket, error, reply);
        instead.map(|message| Self { ticket: None, message, kind: Kind::Response, id: self.id })
    }
}

/// Reads a message's envelope.
///
/// # Errors
/// It is not UTF-8, not JSON, no object, or has a key twice.
pub(crate) fn check(message: &Message) -> Result<Envelope, Violation> {
    let mut utf8 = Utf8::new();
    let text = message.slices().try_for_each(|part| utf8.feed(part)).and_then(|()| utf8.finish());
    text.map_err(|_| Violation::FrameNotUtf8)?;
    let paths = json::find(message.slices(), &ENVELOPE).map_err(Violation::FrameNotJson)?;
    Envelope::read(&paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Event;

    fn read(text: &'static str) -> (Option<Outgoing>, Outbox) {
        let mut outbox = Outbox::default();
        (Outgoing::read(Ticket(1), Message::from(text), &mut outbox), outbox)
    }

    const TOO_LARGE: SendError = SendError::TooLarge { size: 9, limit: 5 };

    #[test]
    fn a_failed_request_is_answered_to_its_caller_and_a_failed_response_to_the_peer() {
        let (request, mut outbox) = read(r#"{"jsonrpc":"2.0","id":"q","method":"m"}"#);
        assert!(request.unwrap().fail(TOO_LARGE, &mut outbox).is_none());
        let Some(Event::SendFailed { ticket: Ticket(1), error: TOO_LARGE, reply: Some(reply) }) = outbox.poll_event()
        else {
            panic!("no failure")
        };
        assert_eq!(reply, rpc::send_failed(b"\"q\"", &TOO_LARGE));

        let (response, mut outbox) = read(r#"{"jsonrpc":"2.0","id":7,"result":1}"#);
        let instead = response.unwrap().fail(TOO_LARGE, &mut outbox).unwrap();
        assert_eq!((instead.message(), instead.ticket()), (&rpc::send_failed(b"7", &TOO_LARGE), None));
        assert!(matches!(outbox.poll_event(), Some(Event::SendFailed { reply: None, .. })));
        assert!(instead.fail(SendError::Disconnected, &mut outbox).is_none());
        assert!(outbox.poll_event().is_none(), "an answer of ours has no ticket to report");
        assert_eq!(outbox.counters().count("send-disconnected"), 1);
    }

    #[test]
    fn a_failed_notification_and_a_response_without_an_id_are_reported_and_counted() {
        for text in [r#"{"jsonrpc":"2.0","method":"m"}"#, r#"{"jsonrpc":"2.0","id":null,"error":{}}"#] {
            let (out, mut outbox) = read(text);
            assert!(out.unwrap().fail(TOO_LARGE, &mut outbox).is_none());
            assert!(matches!(outbox.poll_event(), Some(Event::SendFailed { reply: None, .. })));
            assert_eq!(outbox.counters().count("send-too-large"), 1);
        }
    }

    #[test]
    fn what_is_not_json_rpc_is_reported_and_not_sent() {
        for text in ["", "[]", "{}", r#"{"jsonrpc":"2.0","method":"m"} x"#, r#"{"method":"m"}"#] {
            let (out, mut outbox) = read(text);
            assert!(out.is_none(), "{text}");
            assert!(matches!(outbox.poll_event(), Some(Event::SendFailed { error: SendError::NotJsonRpc, .. })));
        }
    }

    #[test]
    fn only_a_message_with_raw_line_ends_is_compacted() {
        let compacted = "{\"jsonrpc\":\"2.0\",\"method\":\"a b\"}";
        for (text, want) in [
            ("{ \"jsonrpc\": \"2.0\",\n \"method\": \"a b\" }\n", compacted),
            ("{ \"jsonrpc\": \"2.0\", \"method\": \"a b\" }\r", compacted),
            ("{ \"jsonrpc\" : \"2.0\", \"method\":\"a b\\n\" }", "{ \"jsonrpc\" : \"2.0\", \"method\":\"a b\\n\" }"),
        ] {
            assert_eq!(read(text).0.unwrap().on_one_line().message().to_bytes(), want);
        }
    }
}
