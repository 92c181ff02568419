//! Progress tokens of `cep22` transfers, for `split` and `join`.

use std::collections::BTreeSet;

use breakbulk_proto::json::{self, Found, Path};
use breakbulk_proto::{Counters, Input, Message};

use crate::failure::Error;

/// What the machine must have seen before it sends `message` under `token`.
///
/// A response goes under the token of the request that it answers, so that request comes first; a request carries its
/// own token.
pub(crate) fn prelude(message: &Message, token: &str) -> Result<Option<Input>, Error> {
    static PATHS: [Path; 3] = [&["id"], &["method"], &["params", "_meta", "progressToken"]];
    let Ok(found) = json::find(message.slices(), &PATHS) else { return Ok(None) };
    let raw = |found: Found| message.read(found.span).into_owned();
    match (found.get(0), found.get(1), found.get(2)) {
        (Some(_), Some(_), Some(own)) if !is_token(&raw(own), token) => {
            Err(Error::Arguments("--token is not the request's own params._meta.progressToken".into()))
        }
        (Some(id), None, _) => Ok(Some(Input::frame(request(&raw(id), token)))),
        _ => Ok(None),
    }
}

/// The transfer that was asked for, and the tokens of others that were seen.
#[derive(Debug)]
pub(crate) struct WantedTransfer<'a> {
    token: &'a str,
    is_found: bool,
    /// Frames that belong to other transfers, and the tokens of the first of those, as they are written.
    left_out: u64,
    others: BTreeSet<Vec<u8>>,
}

impl<'a> WantedTransfer<'a> {
    pub(crate) const fn new(token: &'a str) -> Self {
        Self { token, is_found: false, left_out: 0, others: BTreeSet::new() }
    }

    /// Whether a frame belongs to another transfer. A whole message belongs to none.
    pub(crate) fn is_of_another(&mut self, frame: &[u8]) -> bool {
        let Some(raw) = token_of(frame) else { return false };
        if is_token(raw, self.token) {
            self.is_found = true;
            return false;
        }
        self.left_out = self.left_out.saturating_add(1);
        if self.others.len() <= SHOWN_TOKENS && !self.others.contains(raw) {
            self.others.insert(raw.to_vec());
        }
        true
    }

    /// If no frame belongs to the transfer: which other transfers there are.
    pub(crate) fn lack(&self) -> Option<String> {
        let tokens: Vec<_> = self.others.iter().take(SHOWN_TOKENS).map(|raw| shown(raw)).collect();
        let more = if self.others.len() > SHOWN_TOKENS { " and more" } else { "" };
        let others = match self.left_out {
            0 => ", and none has any token".into(),
            1 => format!("; one has {}", tokens.join(", ")),
            count => format!("; {count} have {}{more}", tokens.join(", ")),
        };
        (!self.is_found).then(|| format!("no frame has the token {:?}{others}", self.token))
    }
}

/// How many of the tokens that are not wanted are shown, and how much of each.
const SHOWN_TOKENS: usize = 8;
const SHOWN_CHARS: usize = 64;

/// A token for a person.
fn shown(raw: &[u8]) -> String {
    let text = json::string(raw).unwrap_or_else(|| String::from_utf8_lossy(raw));
    let front: String = text.chars().take(SHOWN_CHARS).collect();
    let dots = if front.len() < text.len() { "…" } else { "" };
    format!("{front:?}{dots}")
}

/// The token of a transfer's frame, as it is written.
fn token_of(frame: &[u8]) -> Option<&[u8]> {
    static PATHS: [Path; 1] = [&["params", "progressToken"]];
    let span = json::find([frame], &PATHS).ok()?.get(0)?.span;
    frame.get(usize::try_from(span.start).ok()?..usize::try_from(span.end).ok()?)
}

/// How many frames the machine has ignored because they belong to no open transfer.
pub(crate) fn stray_frames(counters: &Counters) -> u64 {
    ["part-of-no-transfer", "part-without-token", "part-unknown"].iter().map(|name| counters.count(name)).sum()
}

/// Tokens are equal by their string form: the official SDKs write numbers as strings.
fn is_token(raw: &[u8], token: &str) -> bool {
    json::string(raw).is_some_and(|text| text == token) || raw == token.as_bytes()
}

/// A request with this id that allows an answer in parts.
fn request(id: &[u8], token: &str) -> Vec<u8> {
    let mut text = br#"{"jsonrpc":"2.0","id":"#.to_vec();
    text.extend_from_slice(id);
    text.extend_from_slice(br#","method":"request","params":{"_meta":{"progressToken":""#);
    json::escape_into(&mut text, token.as_bytes());
    text.extend_from_slice(br#""}}}"#);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &'static str) -> Option<String> {
        match prelude(&Message::from(text), "a\"b").unwrap() {
            Some(Input::Frame { bytes, .. }) => Some(String::from_utf8(bytes.to_vec()).unwrap()),
            _ => None,
        }
    }

    #[test]
    fn only_a_response_needs_its_request_first() {
        let want = r#"{"jsonrpc":"2.0","id":"x","method":"request","params":{"_meta":{"progressToken":"a\"b"}}}"#;
        assert_eq!(asked(r#"{"jsonrpc":"2.0","id":"x","result":1}"#).as_deref(), Some(want));
        assert_eq!(asked(r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#), None);
        assert_eq!(asked(r#"{"jsonrpc":"2.0","method":"m"}"#), None);
    }

    #[test]
    fn another_token_than_the_requests_own_is_refused() {
        let request = |token: &str| {
            let text = format!(r#"{{"id":1,"method":"m","params":{{"_meta":{{"progressToken":{token}}}}}}}"#);
            prelude(&Message::from(text), "7").is_ok()
        };
        assert!(request("\"7\"") && request("7") && !request("8"));
    }

    #[test]
    fn frames_are_told_apart_by_the_string_form_of_their_token() {
        let frame =
            |token: &str| format!(r#"{{"method":"notifications/progress","params":{{"progressToken":{token}}}}}"#);
        let another = |frame: &str| WantedTransfer::new("7").is_of_another(frame.as_bytes());
        assert!(!another(&frame("7")) && !another(&frame("\"7\"")) && !another("{}") && !another("x"));
        assert!(another(&frame("8")) && another(&frame("\"77\"")));
    }

    #[test]
    fn a_token_that_is_not_there_is_named_with_some_of_those_that_are() {
        let lack = |tokens: &[&str]| {
            let mut wanted = WantedTransfer::new("7");
            for token in tokens {
                let frame = format!(r#"{{"params":{{"progressToken":{token}}}}}"#);
                wanted.is_of_another(frame.as_bytes());
            }
            wanted.lack()
        };
        assert_eq!(lack(&["8", "\"7\""]), None);
        assert_eq!(lack(&[]).unwrap(), r#"no frame has the token "7", and none has any token"#);
        assert_eq!(lack(&["8"]).unwrap(), r#"no frame has the token "7"; one has "8""#);
        let want = r#"no frame has the token "7"; 3 have "a\u{1b}", "8""#;
        assert_eq!(lack(&["8", r#""a\u001b""#, "8"]).unwrap(), want);
        let long = format!("\"{}\"", "é".repeat(65));
        assert!(lack(&[&long]).unwrap().ends_with(&format!("\"{}\"…", "é".repeat(64))));
        let many: Vec<_> = (10..30).map(|n| n.to_string()).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(lack(&many).unwrap().ends_with(r#"20 have "10", "11", "12", "13", "14", "15", "16", "17" and more"#));
    }
}
