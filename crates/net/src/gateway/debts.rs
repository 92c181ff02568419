//! What the two sides of a bridge owe each other, by id: for a host that goes on to another client afterwards, who must not
//! get answers that are for this one.

use std::collections::HashMap;
use std::time::Duration;

use breakbulk_proto::json::{self, Found, Number, Path, Paths, Scanner};
use breakbulk_proto::{Kind, Message, SendError};

/// Requests of one side that may be open at once and still be told apart. With more, the other side owes for ever.
const MOST: usize = 16_384;
/// The longest id that is remembered.
const MAX_ID: usize = 256;
/// How much of a message is looked at before it is asked whether that was enough.
const LOOK: usize = 4096;

static PATHS: [Path; 4] = [&["method"], &["id"], &["result"], &["error"]];

/// Requests that were sent to each side and are not answered.
///
/// Unlike a [`Look`](crate::look::Look) this is no guess: many peers write the id last, after megabytes of params.
#[derive(Debug)]
pub(super) struct Debts {
    /// How long the host has to answer a client that is gone.
    pub(super) patience: Duration,
    owed: [Owed; 2],
}

/// What one side owes.
#[derive(Debug, Default)]
struct Owed {
    ids: HashMap<Id, u32>,
    /// It cannot be known any more when all is answered.
    is_unknown: bool,
}

/// An id by its value: `1` and `1.0` are one, as are `"a"` and `"\u0061"`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Id {
    Text(String),
    Integer(i128),
    /// Another number, as it is written.
    Number(Vec<u8>),
}

impl Debts {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, owed: Default::default() }
    }

    /// Notes what side `at` says, or what is said in its place.
    pub(super) fn note(&mut self, at: usize, message: &Message) {
        match read(message) {
            (Kind::Request, id) => self.owed[1 - at].add(id),
            (Kind::Response, Some(id)) => self.owed[at].remove(&id),
            _ => {}
        }
    }

    /// Whether side `at` has yet to answer something.
    pub(super) fn owes(&self, at: usize) -> bool {
        let Owed { ids, is_unknown } = &self.owed[at];
        *is_unknown || !ids.is_empty()
    }

    /// A message to side `at` has perhaps gone out in part: nobody else can use that side.
    pub(super) const fn spoil(&mut self, at: usize) {
        self.owed[at].is_unknown = true;
    }

    /// Side `at` is gone: what it owes is answered with errors, which these are.
    pub(super) fn excuse(&mut self, at: usize) -> Vec<Message> {
        let (why, name) = (SendError::Disconnected, SendError::Disconnected.name());
        let answer = |id: Id| {
            let mut text = br#"{"jsonrpc":"2.0","id":"#.to_vec();
            id.write(&mut text);
            let error = format!(r#","error":{{"code":-32603,"message":"{why}","data":{{"reason":"{name}"}}}}}}"#);
            text.extend_from_slice(error.as_bytes());
            Message::from(text)
        };
        self.owed[at].ids.drain().map(|(id, _)| answer(id)).collect()
    }
}

impl Owed {
    fn add(&mut self, id: Option<Id>) {
        match id {
            Some(id) if self.ids.len() < MOST || self.ids.contains_key(&id) => {
                let count = self.ids.entry(id).or_default();
                *count = count.saturating_add(1);
            }
            _ => self.is_unknown = true,
        }
    }

    fn remove(&mut self, id: &Id) {
        let Some(count) = self.ids.get_mut(id) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.ids.remove(id);
        }
    }
}

impl Id {
    fn of(raw: &[u8]) -> Self {
        match (json::string(raw), json::number(raw)) {
            (Some(text), _) => Self::Text(text.into_owned()),
            (None, Number::Int(value)) => Self::Integer(value),
            (None, _) => Self::Number(raw.to_vec()),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => {
                out.push(b'"');
                json::escape_into(out, text.as_bytes());
                out.push(b'"');
            }
            Self::Integer(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Self::Number(raw) => out.extend_from_slice(raw),
        }
    }
}

/// What a message is, and its id unless that is too long. As much of it is read as it takes to be sure.
fn read(message: &Message) -> (Kind, Option<Id>) {
    let mut scanner = Scanner::new(Paths::new(&PATHS));
    for block in message.slices().flat_map(|part| part.chunks(LOOK)) {
        let is_bad = scanner.feed(block).is_err();
        let [method, id, result, error] = std::array::from_fn(|path| scanner.visitor().get(path));
        let has_id = id.is_some_and(|id| id.span.end > id.span.start);
        // What is no JSON is refused by whoever has to read it.
        if is_bad || (has_id && method.or(result).or(error).is_some()) {
            break;
        }
    }
    let [method, id, result, error] = std::array::from_fn(|path| scanner.visitor().get(path));
    let id = id.filter(|id: &Found| matches!(id.kind, json::Kind::String | json::Kind::Number));
    let kind = match (method, id, result.or(error)) {
        (Some(_), Some(_), _) => Kind::Request,
        (Some(_), None, _) => Kind::Notification,
        (None, _, Some(_)) => Kind::Response,
        _ => Kind::Other,
    };
    let is_short = |id: &Found| id.span.end.saturating_sub(id.span.start) <= MAX_ID as u64;
    (kind, id.filter(is_short).map(|id| Id::of(&message.read(id.span))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::{FAR, NEAR};

    fn debts() -> Debts {
        Debts::new(Duration::ZERO)
    }

    #[test]
    fn a_request_is_owed_until_its_id_is_answered_however_that_is_spelled() {
        for (asked, answered) in [("1", "1.0"), ("\"a\"", "\"\\u0061\""), ("1.5", "1.5"), ("-3", "-3")] {
            let mut debts = debts();
            debts.note(NEAR, &format!(r#"{{"jsonrpc":"2.0","id":{asked},"method":"m"}}"#).into());
            debts.note(FAR, &r#"{"jsonrpc":"2.0","id":"1","result":1}"#.into());
            debts.note(FAR, &r#"{"jsonrpc":"2.0","id":null,"error":{}}"#.into());
            debts.note(NEAR, &format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":1}}"#).into());
            assert!(debts.owes(FAR) && !debts.owes(NEAR), "{asked}");
            debts.note(FAR, &format!(r#"{{"jsonrpc":"2.0","id":{answered},"error":{{}}}}"#).into());
            assert!(!debts.owes(FAR), "{asked}");
        }
    }

    #[test]
    fn an_id_counts_also_after_megabytes() {
        let mut debts = debts();
        let long = "x".repeat(3_000_000);
        debts.note(NEAR, &format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0","id":7}}"#).into());
        assert!(debts.owes(FAR));
        debts.note(FAR, &format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":8}}"#).into());
        debts.note(FAR, &format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0"}}"#).into());
        assert!(debts.owes(FAR) && !debts.owes(NEAR));
        debts.note(FAR, &format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":7}}"#).into());
        assert!(!debts.owes(FAR));
    }

    #[test]
    fn an_id_that_is_used_twice_is_owed_twice() {
        let mut debts = debts();
        for _ in 0..2 {
            debts.note(NEAR, &r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#.into());
        }
        debts.note(FAR, &r#"{"jsonrpc":"2.0","id":1,"result":1}"#.into());
        assert!(debts.owes(FAR));
    }

    #[test]
    fn what_cannot_be_remembered_is_owed_for_ever() {
        let mut debts = debts();
        let id = "i".repeat(MAX_ID);
        debts.note(NEAR, &format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"m"}}"#).into());
        debts.note(FAR, &format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":1}}"#).into());
        assert!(debts.owes(FAR));
        let mut debts = self::debts();
        (0..=MOST).for_each(|n| debts.note(NEAR, &format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"m"}}"#).into()));
        (0..=MOST).for_each(|n| debts.note(FAR, &format!(r#"{{"jsonrpc":"2.0","id":{n},"result":1}}"#).into()));
        assert!(debts.owes(FAR));
    }

    #[test]
    fn who_asked_a_side_that_is_gone_is_answered_once_with_an_error() {
        for id in ["7", r#""a\"b""#, "1.5"] {
            let mut debts = debts();
            debts.note(FAR, &format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#).into());
            let answers = debts.excuse(NEAR);
            let want =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"disconnected","data":"#);
            assert!(answers.len() == 1 && answers[0].to_bytes().starts_with(want.as_bytes()), "{answers:?}");
            assert!(serde_json::from_slice::<serde_json::Value>(&answers[0].to_bytes()).is_ok());
            assert!(!debts.owes(NEAR) && debts.excuse(NEAR).is_empty());
        }
    }
}
