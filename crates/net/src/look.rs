//! What a message says at its front, for logs and for whoever waits for an answer. A guess where the front says nothing.

use breakbulk_proto::json::{self, Found, Path, Paths, Scanner, Span};
use breakbulk_proto::{Kind, Message};

/// How much of a message is looked at. Its envelope is nearly always at its front.
const FRONT: u64 = 4096;
/// The longest method or client id that is of interest.
const MAX_NAME: usize = 256;

static PATHS: [Path; 5] = [&["method"], &["id"], &["result"], &["error"], &["params", "clientId"]];

/// The front of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    /// What it is; `Other` if its front does not say.
    pub(crate) kind: Kind,
    /// Its method, if it has one.
    pub(crate) method: Option<String>,
    /// The client that it introduces.
    pub(crate) client: Option<String>,
}

impl Look {
    /// Looks at the front of a message.
    pub(crate) fn of(message: &Message) -> Self {
        let mut scanner = Scanner::new(Paths::new(&PATHS));
        let front = message.read(Span { start: 0, end: FRONT });
        // What follows an error is not looked at; whether it is one is for the machines to say.
        let _ = scanner.feed(&front);
        let paths = scanner.visitor();
        let text = |found: Option<Found>| {
            let raw = message.read(found?.span);
            json::string(&raw).filter(|text| text.len() <= MAX_NAME).map(|text| text.into_owned())
        };
        let kind = match (paths.get(0), paths.get(1), paths.get(2).or(paths.get(3))) {
            (Some(_), Some(_), _) => Kind::Request,
            (Some(_), None, _) => Kind::Notification,
            (None, _, Some(_)) => Kind::Response,
            _ => Kind::Other,
        };
        Self { kind, method: text(paths.get(0)), client: text(paths.get(4)) }
    }

    /// Whether leaving it out would make its receiver's state differ from its sender's.
    pub(crate) fn is_ordered(&self) -> bool {
        let is_ordered = |method: &str| method == "action" || method.starts_with("root/");
        self.kind == Kind::Notification && self.method.as_deref().is_some_and(is_ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_says_what_a_message_is() {
        let look = |text: &'static str| Look::of(&Message::from(text));
        let request = look(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"me"}}"#);
        assert_eq!((request.kind, request.method.as_deref()), (Kind::Request, Some("initialize")));
        assert_eq!(request.client.as_deref(), Some("me"));
        let action = look(r#"{"jsonrpc":"2.0","method":"action","params":{}}"#);
        assert!(action.kind == Kind::Notification && action.is_ordered());
        assert_eq!(look(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).kind, Kind::Response);
        assert_eq!(look(r#"{"jsonrpc":"2.0","id":1,"error":{}}"#).kind, Kind::Response);
        assert_eq!(look("[]").kind, Kind::Other);
    }

    #[test]
    fn a_long_message_is_judged_by_its_front() {
        let text = format!(r#"{{"method":"m","params":{{"text":"{}"}},"id":1}}"#, "x".repeat(10_000));
        let look = Look::of(&Message::from(text));
        assert_eq!((look.kind, look.method.as_deref()), (Kind::Notification, Some("m")));
    }
}
