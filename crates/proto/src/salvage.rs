//! What can still be read of a damaged message: what it was meant as, and its id, so that whoever waits for it gets an error.
//!
//! A parser that stops at the first fault would miss an id after it. So this one follows only strings and brackets, and skips
//! whatever else is between them.

use bytes::Bytes;

use crate::envelope::{Envelope, Kind};
use crate::json::{self, Number};
use crate::message::Message;

/// A request with a longer id is not answered.
pub(crate) const MAX_ID: usize = 256;
/// How many messages of one batch are answered. A batch may have a million in a line of 20 MB, and an answer is ten times as long
/// as a short request.
const MAX_BATCH: usize = 1024;

/// A guess at what a damaged message was meant to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Salvage {
    pub(crate) kind: Kind,
    /// The id as it is written, if an answer can use it.
    pub(crate) id: Option<Bytes>,
}

/// A guess at what a damaged line was meant to be: a message, or a batch of messages.
#[derive(Debug, Default)]
pub(crate) struct SalvagedLine {
    /// The first messages. Empty if nothing suggests a message: then the text is for the log.
    pub(crate) found: Vec<Salvage>,
    /// How many more there are.
    pub(crate) left: u64,
}

impl SalvagedLine {
    pub(crate) fn read(text: &[u8]) -> Self {
        let member_depth = match text.trim_ascii_start().first() {
            Some(b'{') => 1,
            Some(b'[') => 2,
            _ => return Self::default(),
        };
        let (members_seen, line) = (Members::default(), Self::default());
        let mut reader = SalvageReader { text, at: 0, depth: 0, member_depth, members_seen, line };
        reader.run();
        reader.line
    }
}

impl Salvage {
    /// The same from the envelope of a valid message, of which perhaps only the front has arrived.
    pub(crate) fn of(envelope: &Envelope, front: &Message) -> Self {
        let id = envelope.id(front).filter(|id| is_id(id)).map(|id| Bytes::copy_from_slice(&id));
        Self { kind: envelope.kind(), id }
    }

    /// What a text was meant as. A batch has several entries.
    pub(crate) fn read(text: &[u8]) -> Vec<Self> {
        SalvagedLine::read(text).found
    }

    /// The id by which its sender may wait for an answer.
    pub(crate) fn asked(&self) -> Option<&[u8]> {
        self.id.as_deref().filter(|_| self.kind != Kind::Response)
    }

    /// The id of the request here that it may answer. A message with an id, and with neither a method nor an answer, may be either: a
    /// program that leaves out a result that is undefined writes such answers.
    pub(crate) fn answered(&self) -> Option<&[u8]> {
        self.id.as_deref().filter(|_| matches!(self.kind, Kind::Response | Kind::Other))
    }
}

/// Whether this is an id by which a request can be answered.
fn is_id(raw: &[u8]) -> bool {
    let is_short = (1..=MAX_ID).contains(&raw.len());
    is_short && (json::string(raw).is_some() || json::number(raw) != Number::NotANumber)
}

struct SalvageReader<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
    /// The depth of the members of a message: 1, or 2 in a batch.
    member_depth: usize,
    members_seen: Members<'a>,
    line: SalvagedLine,
}

/// The members of one message that were found.
#[derive(Default)]
struct Members<'a> {
    has_version: bool,
    has_method: bool,
    has_answer: bool,
    has_null_error: bool,
    id: Option<&'a [u8]>,
}

impl<'a> SalvageReader<'a> {
    fn run(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    let key = self.string();
                    if self.depth == self.member_depth && self.is_colon() {
                        self.member(key);
                    }
                }
                b'{' | b'[' => {
                    self.depth = self.depth.saturating_add(1);
                    self.skip();
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.skip();
                    if self.depth.saturating_add(1) == self.member_depth {
                        self.finish();
                    }
                }
                _ => self.skip(),
            }
        }
        // A message that is cut off counts, too.
        self.finish();
    }

    /// Reads the value behind a key, if it is of interest.
    fn member(&mut self, key: &[u8]) {
        let value = match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{' | b'[') | None => &[],
            Some(_) => self.word(),
        };
        match json::string(key).as_deref() {
            Some("jsonrpc") => self.members_seen.has_version = true,
            Some("method") => self.members_seen.has_method = true,
            // If a key comes twice the last one counts, as in parsers that allow that.
            Some("id") => self.members_seen.id = is_id(value).then_some(value),
            Some("result") => self.members_seen.has_answer = true,
            Some("error") if value == b"null" => self.members_seen.has_null_error = true,
            Some("error") => self.members_seen.has_answer = true,
            _ => {}
        }
    }

    fn finish(&mut self) {
        let Members { has_version, has_method, has_answer, has_null_error, id } =
            std::mem::take(&mut self.members_seen);
        // Programs also log objects in which `error` is null.
        let has_answer = has_answer || (has_version && has_null_error);
        let kind = match id {
            Some(_) if has_method => Kind::Request,
            Some(_) if has_answer => Kind::Response,
            None if has_method => Kind::Notification,
            _ => Kind::Other,
        };
        // Programs also log JSON objects, and a `method` may be that of a web request.
        let is_meant = has_version || matches!(kind, Kind::Request | Kind::Response);
        if !is_meant {
            return;
        }
        if self.line.found.len() < MAX_BATCH {
            self.line.found.push(Salvage { kind, id: id.map(Bytes::copy_from_slice) });
        } else {
            self.line.left = self.line.left.saturating_add(1);
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip(&mut self) {
        self.at = self.at.saturating_add(1);
    }

    /// Reads a string, its quotes included.
    fn string(&mut self) -> &'a [u8] {
        let start = self.at;
        self.skip();
        while let Some(byte) = self.peek() {
            self.skip();
            match byte {
                b'"' => break,
                b'\\' => self.skip(),
                _ => {}
            }
        }
        let end = self.at.min(self.text.len());
        self.text.get(start..end).unwrap_or_default()
    }

    /// Reads a number, or another word that is not a string.
    fn word(&mut self) -> &'a [u8] {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b'"') || byte.is_ascii_whitespace();
        let word = rest.split(ends).next().unwrap_or_default();
        self.at = self.at.saturating_add(word.len());
        word
    }

    /// Reads a colon and the white space around it, if there is one.
    fn is_colon(&mut self) -> bool {
        self.skip_space();
        let is_colon = self.peek() == Some(b':');
        if is_colon {
            self.skip();
            self.skip_space();
        }
        is_colon
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.skip();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Vec<(Kind, Option<String>)> {
        let text_of = |id: Bytes| String::from_utf8(id.to_vec()).unwrap();
        Salvage::read(text).into_iter().map(|found| (found.kind, found.id.map(text_of))).collect()
    }

    #[test]
    fn an_id_is_found_on_either_side_of_a_fault() {
        let request = |id: &str| vec![(Kind::Request, Some(id.to_owned()))];
        let response = |id: &str| vec![(Kind::Response, Some(id.to_owned()))];
        for (text, want) in [
            (&br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":NaN}}"#[..], request("1")),
            (br#"{"method":"m","params":{"x":NaN,"id":7},"jsonrpc":"2.0","id":"a\"b"}"#, request(r#""a\"b""#)),
            (br#" { "result" : { "x" : Infinity } , "jsonrpc":"2.0", "id" : 2.5 } "#, response("2.5")),
            (b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"m\",\"params\":[\"caf\xe9\"]}", request("3")),
            (br#"{"jsonrpc":"2.0","id":4,"method":"m","params":["cut"#, request("4")),
            (br#"{"id":5,"result":1}"#, response("5")),
            (br#"{"result":null,"error":null,"id":6}"#, response("6")),
            (br#"{"id":5,"m\u0065thod":"m"}"#, request("5")),
            (br#"{"jsonrpc":"2.0","id":7,"error":null}"#, response("7")),
            (br#"{"jsonrpc":"2.0","id":8}"#, vec![(Kind::Other, Some("8".into()))]),
            (br#"{"jsonrpc":"2.0","id":null,"method":"m","params":NaN}"#, vec![(Kind::Notification, None)]),
            (br#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, vec![(Kind::Notification, None)]),
        ] {
            assert_eq!(read(text), want, "{}", String::from_utf8_lossy(text));
        }
        let deep = format!(r#"{{"params":{}1{},"id":9,"method":"m"}}"#, "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(read(deep.as_bytes()), request("9"));
    }

    #[test]
    fn each_message_of_a_batch_is_found() {
        let text = br#"[{"jsonrpc":"2.0","id":1,"method":"m"},{"jsonrpc":"2.0","method":"n","params":[{"id":3}]},{"id":2,"error":{}}]"#;
        let want = [(Kind::Request, Some("1".into())), (Kind::Notification, None), (Kind::Response, Some("2".into()))];
        assert_eq!(read(text), want);
        let many = format!("[{}]", vec![r#"{"id":1,"method":"m"}"#; 9000].join(","));
        let line = SalvagedLine::read(many.as_bytes());
        assert_eq!((line.found.len(), line.left), (MAX_BATCH, 9000 - MAX_BATCH as u64));
    }

    #[test]
    fn what_a_program_says_on_the_side_is_no_message() {
        for text in [
            "server v2 is ready",
            r#"sent {"jsonrpc":"2.0","id":1,"method":"m"}"#,
            r#"{"level":"info","msg":"{\"jsonrpc\":1}"}"#,
            r#"{"level":"warn","id":7}"#,
            r#"{"level":"warn","id":7,"error":null}"#,
            r#"{"method":"GET","path":"/","status":200}"#,
            "[1,2]",
            "[info] ready",
            "{",
            "",
        ] {
            assert_eq!(read(text.as_bytes()), [], "{text}");
        }
    }

    #[test]
    fn an_id_that_no_answer_could_repeat_is_none() {
        for id in [
            "\"caf\u{e9}\"".replace('\u{e9}', "\u{1}"),
            format!("\"{}\"", "x".repeat(300)),
            "true".into(),
            "[1]".into(),
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            assert_eq!(read(text.as_bytes()), [(Kind::Notification, None)], "{id}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Salvage::read(&bytes);
            let _ = Salvage::read(&[b"{\"id\":", &bytes[..]].concat());
            let _ = Salvage::read(&[b"[{", &bytes[..]].concat());
        }
    }
}
