//! What `cep22` needs to know beside the message: which request's token a transfer goes under.

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

/// Whether a frame belongs to another transfer than the one under `token`. A whole message belongs to none.
pub(crate) fn is_of_another(frame: &[u8], token: &str) -> bool {
    static PATHS: [Path; 1] = [&["params", "progressToken"]];
    let found = json::find([frame], &PATHS).ok().and_then(|found| found.get(0));
    let range = found.and_then(|found| Some(found.span.start.try_into().ok()?..found.span.end.try_into().ok()?));
    range.and_then(|range| frame.get::<std::ops::Range<usize>>(range)).is_some_and(|raw| !is_token(raw, token))
}

/// How often a machine has passed over a frame that belongs to no open transfer.
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
        let another = |frame: &str| is_of_another(frame.as_bytes(), "7");
        assert!(!another(&frame("7")) && !another(&frame("\"7\"")) && !another("{}") && !another("x"));
        assert!(another(&frame("8")) && another(&frame("\"77\"")));
    }
}
