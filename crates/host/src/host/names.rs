//! Names that clients choose for sessions and chats.

use ahp_types::errors::json_rpc_error_codes::INVALID_PARAMS;

use crate::error::MethodError;
use crate::log::BatchId;

/// The longest name. Each entry of a channel has it in its body.
const MOST: usize = 256;

/// Whether a client may give this name to a session.
pub(crate) fn session(uri: &str) -> Result<(), MethodError> {
    check(uri, "ahp-session")
}

/// Whether a client may give this name to a chat.
pub(crate) fn chat(uri: &str) -> Result<(), MethodError> {
    check(uri, "ahp-chat")
}

/// A name that nobody has.
pub(crate) fn new_chat() -> String {
    format!("ahp-chat:/{}", new_id())
}

/// An id that nobody has.
pub(crate) fn new_id() -> String {
    BatchId::new().to_string()
}

/// A URI of this scheme, or of one that means nothing else to us.
fn check(uri: &str, own: &str) -> Result<(), MethodError> {
    let (scheme, rest) = uri.split_once(':').unwrap_or_default();
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_free = scheme == own || !(scheme.starts_with("ahp") || scheme == "file");
    let is_plain = rest.bytes().all(|byte| byte.is_ascii_graphic());
    let has_name = !rest.trim_matches('/').is_empty();
    if is_scheme && is_free && is_plain && has_name && uri.len() <= MOST {
        return Ok(());
    }
    let wanted = format!("the channel must be a URI such as {own}:/NAME, with {MOST} bytes at most");
    Err(MethodError::new(INVALID_PARAMS, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_by_a_uri_that_means_nothing_else() {
        for uri in ["ahp-session:/1", "copilot:/a-b", "x:y", "ahp-session:///a/b"] {
            assert!(session(uri).is_ok(), "{uri}");
        }
        let long = format!("ahp-session:/{}", "x".repeat(MOST));
        for uri in
            ["", "ahp-session:/", "ahp-chat:/1", "ahp-root://", "file:///a", "/a", "1:/a", "a b:/c", "x:/ä", &long]
        {
            assert_eq!(session(uri).map_err(|error| error.code), Err(INVALID_PARAMS), "{uri}");
        }
        assert!(chat(&new_chat()).is_ok());
        assert!(chat("ahp-session:/1").is_err());
    }
}
