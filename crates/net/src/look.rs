//! What a message is: from its front, or from as much of it as it takes to be sure.

use breakbulk_proto::json::{self, Found, Path, Paths, Scanner, Span};
use breakbulk_proto::{Kind, Message};

/// How much of a message is looked at before it is asked whether that was enough. Most have their envelope there.
const FRONT: usize = 4096;
/// The longest method or client id that is of interest.
const MAX_NAME: usize = 256;

static PATHS: [Path; 5] = [&["method"], &["id"], &["result"], &["error"], &["params", "clientId"]];

/// What was seen of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    /// What it is, as far as it was looked at.
    pub(crate) kind: Kind,
    /// Whether that is so whatever follows.
    pub(crate) is_sure: bool,
    /// Its method, if it has one.
    pub(crate) method: Option<String>,
    /// Where its id is, if it has one by which it can be answered.
    pub(crate) id: Option<Span>,
    /// The client that it introduces. Only what opens a conversation does that.
    pub(crate) client: Option<String>,
}

impl Look {
    /// Looks at the front of a message. Many peers write the id last, after megabytes of params: then this is a guess.
    pub(crate) fn front(message: &Message) -> Self {
        Self::new(message, false)
    }

    /// Looks at a message until it is sure what that is.
    pub(crate) fn sure(message: &Message) -> Self {
        Self::new(message, true)
    }

    fn new(message: &Message, to_the_end: bool) -> Self {
        let (mut scanner, mut is_sure, mut seen) = (Scanner::new(Paths::new(&PATHS)), false, 0_usize);
        for block in message.slices().flat_map(|part| part.chunks(FRONT)) {
            // What follows an error is not looked at; whether it is one is for the machines to say.
            let is_bad = scanner.feed(block).is_err();
            let [method, id, result, error, _] = found(&scanner);
            let has_both = id.is_some_and(is_whole) && method.or(result).or(error).is_some();
            seen = message.len().min(seen.saturating_add(block.len()));
            is_sure = is_bad || has_both || seen == message.len();
            if is_bad || (seen >= FRONT && (is_sure || !to_the_end)) {
                break;
            }
        }
        let [method, id, result, error, client] = found(&scanner);
        let id = id.filter(|id| matches!(id.kind, json::ValueKind::String | json::ValueKind::Number));
        let kind = match (method, id, result.or(error)) {
            (Some(_), Some(_), _) => Kind::Request,
            (Some(_), None, _) => Kind::Notification,
            (None, _, Some(_)) => Kind::Response,
            _ => Kind::Other,
        };
        let text = |found: Option<Found>| {
            let raw = message.read(found?.span);
            json::string(&raw).filter(|text| text.len() <= MAX_NAME).map(|text| text.into_owned())
        };
        let (id, method) = (id.filter(|id| is_whole(*id)).map(|id| id.span), text(method));
        let introduces = kind == Kind::Request && matches!(method.as_deref(), Some("initialize" | "reconnect"));
        Self { kind, is_sure, method, id, client: text(client).filter(|_| introduces) }
    }

    /// Whether leaving it out would make its receiver's state differ from its sender's.
    pub(crate) fn is_ordered(&self) -> bool {
        let is_ordered = |method: &str| matches!(method, "action" | "dispatchAction") || method.starts_with("root/");
        self.kind == Kind::Notification && self.method.as_deref().is_some_and(is_ordered)
    }
}

const fn is_whole(found: Found) -> bool {
    found.span.end > found.span.start
}

fn found(scanner: &Scanner<Paths<5>>) -> [Option<Found>; 5] {
    std::array::from_fn(|path| scanner.visitor().get(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_says_what_a_message_is() {
        let look = |text: &'static str| Look::front(&Message::from(text));
        let request = look(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"me"}}"#);
        assert_eq!((request.kind, request.method.as_deref()), (Kind::Request, Some("initialize")));
        assert_eq!(request.client.as_deref(), Some("me"));
        let action = look(r#"{"jsonrpc":"2.0","method":"action","params":{}}"#);
        assert!(action.kind == Kind::Notification && action.is_sure && action.is_ordered());
        assert_eq!(look(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).kind, Kind::Response);
        assert_eq!(look(r#"{"jsonrpc":"2.0","id":1,"error":{}}"#).kind, Kind::Response);
        assert_eq!(look("[]").kind, Kind::Other);
    }

    #[test]
    fn only_what_opens_a_conversation_introduces_a_client() {
        let client = |method: &str, id: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{"clientId":"me"}}}}"#);
            Look::front(&Message::from(text)).client
        };
        assert_eq!((client("initialize", r#""id":1,"#), client("reconnect", r#""id":1,"#)), (me(), me()));
        assert_eq!((client("createSession", r#""id":1,"#), client("initialize", "")), (None, None));
    }

    fn me() -> Option<String> {
        Some("me".to_owned())
    }

    #[test]
    fn what_either_side_says_of_the_state_is_ordered() {
        let is_ordered = |text: &'static str| Look::front(&Message::from(text)).is_ordered();
        for method in ["action", "dispatchAction", "root/sessionAdded"] {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{}}}}"#);
            assert!(Look::front(&Message::from(text)).is_ordered(), "{method}");
        }
        assert!(!is_ordered(r#"{"jsonrpc":"2.0","id":1,"method":"dispatchAction"}"#), "a request is answered");
        assert!(!is_ordered(r#"{"jsonrpc":"2.0","method":"ping"}"#));
    }

    #[test]
    fn what_a_long_message_is_takes_a_longer_look() {
        let long = "x".repeat(10_000);
        for (text, guess, kind) in [
            (format!(r#"{{"method":"m","params":["{long}"],"id":1}}"#), Kind::Notification, Kind::Request),
            (format!(r#"{{"method":"m","params":["{long}"],"id":null}}"#), Kind::Notification, Kind::Notification),
            (format!(r#"{{"params":["{long}"],"id":1,"method":"m"}}"#), Kind::Other, Kind::Request),
            (format!(r#"{{"result":"{long}","id":1}}"#), Kind::Response, Kind::Response),
            (format!(r#"{{"method":"m","id":"{long}"}}"#), Kind::Request, Kind::Request),
        ] {
            let message = Message::from(text);
            let (front, sure) = (Look::front(&message), Look::sure(&message));
            assert_eq!((front.kind, front.is_sure, sure.kind, sure.is_sure), (guess, false, kind, true));
        }
        let message = Message::from(format!(r#"{{"method":"m","id":1,"params":["{long}"]}}"#));
        assert!(Look::front(&message).is_sure);
        let cut = Look::front(&Message::from(format!(r#"{{"method":"m","id":"{long}"}}"#)));
        assert_eq!(cut.id, None, "an id that is not whole is none");
    }
}
