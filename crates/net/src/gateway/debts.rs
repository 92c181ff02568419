//! What the two sides of a bridge owe each other, by id: for a client that sends nothing more and waits for its answers, and
//! for a host that goes on to another client, who must not get them.

use std::collections::HashMap;
use std::time::Duration;

use breakbulk_proto::json::{self, Number, Path, Span};
use breakbulk_proto::{Kind, Message};

use crate::look::Look;

/// Requests of one side that may be open at once and still be told apart. More are only counted.
const MOST: usize = 16_384;
/// The longest id that is remembered. Requests with longer ones are only counted.
const MAX_ID: u64 = 256;

/// Says of a request that its answer is not wanted any more: in MCP, there is none then.
const CANCELLED: &str = "notifications/cancelled";
static CANCELLED_ID: [Path; 1] = [&["params", "requestId"]];

/// Requests that were sent to each side and are not answered.
#[derive(Debug)]
pub(super) struct Debts {
    /// Whether each message is looked at for as long as it takes to be sure what it is. Else a side may seem to owe what it
    /// does not, and nothing may depend on that.
    is_exact: bool,
    /// How long the host has to answer a client that is gone, if it goes on to another one.
    pub(super) patience: Option<Duration>,
    owed: [Owed; 2],
}

/// What one side owes.
#[derive(Debug, Default)]
struct Owed {
    ids: HashMap<Id, u32>,
    /// All of them together.
    count: u64,
    /// It cannot be known any more when all is answered.
    is_unknown: bool,
}

/// What is said in place of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Excuse {
    /// What happened, for a person.
    pub(super) message: &'static str,
    /// The same, by name.
    pub(super) reason: &'static str,
}

impl Excuse {
    /// The side that was asked is gone.
    pub(super) const DISCONNECTED: Self = Self { message: "disconnected", reason: "send-disconnected" };
}

/// An id by its value: `1` and `1.0` are one, as are `"a"` and `"\u0061"`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Id {
    /// One of those that are only counted.
    Untold,
    Text(String),
    Integer(i128),
    /// Another number, as it is written.
    Number(Vec<u8>),
}

impl Debts {
    pub(super) fn new(is_exact: bool, patience: Option<Duration>) -> Self {
        Self { is_exact, patience, owed: Default::default() }
    }

    /// Looks at a message for as long as it has to be.
    pub(super) fn look(&self, message: &Message) -> Look {
        if self.is_exact { Look::sure(message) } else { Look::front(message) }
    }

    /// Notes what side `at` says, or what is said in its place.
    pub(super) fn note(&mut self, at: usize, message: &Message, look: &Look) {
        let id = look.id.map(|span| Id::of(message, span));
        match look.kind {
            Kind::Request => self.owed[1 - at].add(id.unwrap_or(Id::Untold)),
            Kind::Response => id.into_iter().for_each(|id| self.owed[at].remove(id)),
            Kind::Notification if look.is_sure && look.method.as_deref() == Some(CANCELLED) => self.cancel(at, message),
            // It may be a request.
            _ if !look.is_sure => self.owed[1 - at].is_unknown = true,
            _ => {}
        }
    }

    /// Whether side `at` has yet to answer something.
    pub(super) fn owes(&self, at: usize) -> bool {
        self.count(at) > 0
    }

    /// How much side `at` has yet to answer.
    pub(super) fn count(&self, at: usize) -> u64 {
        let Owed { count, is_unknown, .. } = &self.owed[at];
        count.saturating_add(u64::from(*is_unknown))
    }

    /// Side `at` does not want an answer any more. Some hosts answer all the same, and one that goes on to another client
    /// may do so then: of such a host it is still awaited.
    fn cancel(&mut self, at: usize, message: &Message) {
        let found = json::find(message.slices(), &CANCELLED_ID).ok().and_then(|paths| paths.get(0));
        let owed = &mut self.owed[1 - at];
        if let Some(id) = found.map(|found| Id::of(message, found.span))
            && self.patience.is_none()
            && owed.ids.contains_key(&id)
        {
            owed.remove(id);
        }
    }

    /// A message to side `at` has perhaps gone out in part: nobody else can use that side.
    pub(super) const fn spoil(&mut self, at: usize) {
        self.owed[at].is_unknown = true;
    }

    /// Side `at` is gone: what it owes is answered with errors, which these are.
    pub(super) fn excuse(&mut self, at: usize, Excuse { message: why, reason: name }: Excuse) -> Vec<Message> {
        let answer = |(id, _): (Id, u32)| {
            let mut text = br#"{"jsonrpc":"2.0","id":"#.to_vec();
            id.write(&mut text)?;
            let error = format!(r#","error":{{"code":-32603,"message":"{why}","data":{{"reason":"{name}"}}}}}}"#);
            text.extend_from_slice(error.as_bytes());
            Some(Message::from(text))
        };
        (self.owed[at].count, self.owed[at].is_unknown) = (0, false);
        self.owed[at].ids.drain().filter_map(answer).collect()
    }
}

impl Owed {
    fn add(&mut self, id: Id) {
        let is_told = self.ids.len() < MOST || self.ids.contains_key(&id);
        let count = self.ids.entry(if is_told { id } else { Id::Untold }).or_default();
        *count = count.saturating_add(1);
        self.count = self.count.saturating_add(1);
    }

    fn remove(&mut self, id: Id) {
        let id = if self.ids.contains_key(&id) { id } else { Id::Untold };
        let Some(count) = self.ids.get_mut(&id) else { return };
        *count = count.saturating_sub(1);
        self.count = self.count.saturating_sub(1);
        if *count == 0 {
            self.ids.remove(&id);
        }
    }
}

impl Id {
    fn of(message: &Message, span: Span) -> Self {
        if span.end.saturating_sub(span.start) > MAX_ID {
            return Self::Untold;
        }
        let raw = message.read(span);
        match (json::string(&raw), json::number(&raw)) {
            (Some(text), _) => Self::Text(text.into_owned()),
            (None, Number::Int(value)) => Self::Integer(value),
            (None, _) => Self::Number(raw.to_vec()),
        }
    }

    /// Writes it as JSON, if it is known.
    fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Untold => return None,
            Self::Text(text) => {
                out.push(b'"');
                json::escape_into(out, text.as_bytes());
                out.push(b'"');
            }
            Self::Integer(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Self::Number(raw) => out.extend_from_slice(raw),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::{FAR, NEAR};

    fn debts() -> Debts {
        Debts::new(true, None)
    }

    fn note(debts: &mut Debts, at: usize, text: impl Into<Message>) {
        let message = text.into();
        let look = debts.look(&message);
        debts.note(at, &message, &look);
    }

    #[test]
    fn a_request_is_owed_until_its_id_is_answered_however_that_is_spelled() {
        for (asked, answered) in [("1", "1.0"), ("\"a\"", "\"\\u0061\""), ("1.5", "1.5"), ("-3", "-3")] {
            let mut debts = debts();
            note(&mut debts, NEAR, format!(r#"{{"jsonrpc":"2.0","id":{asked},"method":"m"}}"#));
            note(&mut debts, FAR, r#"{"jsonrpc":"2.0","id":"1","result":1}"#);
            note(&mut debts, FAR, r#"{"jsonrpc":"2.0","id":null,"error":{}}"#);
            note(&mut debts, NEAR, format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":1}}"#));
            assert!(debts.owes(FAR) && !debts.owes(NEAR), "{asked}");
            note(&mut debts, FAR, format!(r#"{{"jsonrpc":"2.0","id":{answered},"error":{{}}}}"#));
            assert!(!debts.owes(FAR), "{asked}");
        }
    }

    #[test]
    fn an_id_counts_also_after_megabytes() {
        let mut debts = debts();
        let long = "x".repeat(3_000_000);
        note(&mut debts, NEAR, format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0","id":7}}"#));
        assert!(debts.owes(FAR));
        note(&mut debts, FAR, format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":8}}"#));
        note(&mut debts, FAR, format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0"}}"#));
        assert!(debts.owes(FAR) && !debts.owes(NEAR));
        note(&mut debts, FAR, format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":7}}"#));
        assert!(!debts.owes(FAR));
    }

    #[test]
    fn an_id_that_is_used_twice_is_owed_twice() {
        let mut debts = debts();
        for _ in 0..2 {
            note(&mut debts, NEAR, r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
        }
        note(&mut debts, FAR, r#"{"jsonrpc":"2.0","id":1,"result":1}"#);
        assert!(debts.owes(FAR));
    }

    #[test]
    fn what_was_cancelled_is_not_owed_unless_another_client_could_get_it() {
        let cancel = |id: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"r"}}}}"#
            )
        };
        let request = r#"{"jsonrpc":"2.0","id":"a","method":"m"}"#;
        let mut debts = debts();
        note(&mut debts, NEAR, request);
        // Another id, the other side's, none.
        note(&mut debts, NEAR, cancel("1"));
        note(&mut debts, FAR, cancel("\"a\""));
        note(&mut debts, NEAR, r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#);
        assert!(debts.owes(FAR));
        note(&mut debts, NEAR, cancel("\"\\u0061\""));
        assert!(!debts.owes(FAR) && debts.count(FAR) == 0);
        let mut kept = Debts::new(true, Some(Duration::from_secs(10)));
        note(&mut kept, NEAR, request);
        note(&mut kept, NEAR, cancel("\"a\""));
        assert!(kept.owes(FAR) && kept.count(FAR) == 1);
    }

    #[test]
    fn what_is_not_remembered_is_counted() {
        let mut debts = debts();
        let id = "i".repeat(300);
        note(&mut debts, NEAR, format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"m"}}"#));
        assert!(debts.owes(FAR));
        note(&mut debts, FAR, format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":1}}"#));
        assert!(!debts.owes(FAR));
        for n in 0..MOST + 2 {
            note(&mut debts, NEAR, format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"m"}}"#));
        }
        assert!(debts.owed[FAR].ids.len() <= MOST + 1);
        for n in (0..MOST + 2).rev() {
            assert!(debts.owes(FAR), "{n}");
            note(&mut debts, FAR, format!(r#"{{"jsonrpc":"2.0","id":{n},"result":1}}"#));
        }
        assert!(!debts.owes(FAR));
    }

    #[test]
    fn where_only_the_front_is_looked_at_what_may_be_owed_is() {
        let long = "x".repeat(10_000);
        let is_owed = |text: &str| {
            let mut debts = Debts::new(false, None);
            note(&mut debts, NEAR, text.to_owned());
            note(&mut debts, FAR, r#"{"jsonrpc":"2.0","id":1,"result":1}"#);
            debts.owes(FAR)
        };
        assert!(is_owed(&format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0","id":1}}"#)));
        assert!(!is_owed(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":["{long}"]}}"#)));
        assert!(!is_owed(r#"{"jsonrpc":"2.0","method":"m"}"#));
    }

    #[test]
    fn who_asked_a_side_that_is_gone_is_answered_once_with_an_error() {
        for id in ["7", r#""a\"b""#, "1.5"] {
            let mut debts = debts();
            note(&mut debts, FAR, format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#));
            let answers = debts.excuse(NEAR, Excuse::DISCONNECTED);
            let want =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"disconnected","data":"#);
            assert!(answers.len() == 1 && answers[0].to_bytes().starts_with(want.as_bytes()), "{answers:?}");
            assert!(serde_json::from_slice::<serde_json::Value>(&answers[0].to_bytes()).is_ok());
            assert!(!debts.owes(NEAR) && debts.excuse(NEAR, Excuse::DISCONNECTED).is_empty());
        }
    }
}
