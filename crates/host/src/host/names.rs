//! Names that clients choose: of sessions and chats, titles, ids.

use ahp_types::actions::StateAction;
use ahp_types::errors::json_rpc_error_codes::INVALID_PARAMS;
use ahp_types::state::{Annotation, SessionActiveClient};

use crate::error::MethodError;
use crate::log::BatchId;

/// The longest name, in bytes. Each entry of a channel has it in its body.
const MAX_NAME_BYTES: usize = 256;

/// The most characters of a title, or of a client's name for itself. The list of sessions has them all, and everybody who
/// follows the root gets each that changes.
const MAX_TITLE_CHARS: usize = 1024;

/// The longest id that a client chooses, in bytes. Each delta of a turn repeats the id of the turn.
const MAX_ID_BYTES: usize = 256;

/// Fails if a client may not give this name to a session.
pub(crate) fn session(uri: &str) -> Result<(), MethodError> {
    check(uri, "ahp-session")
}

/// Fails if a client may not give this name to a chat.
pub(crate) fn chat(uri: &str) -> Result<(), MethodError> {
    check(uri, "ahp-chat")
}

/// Fails if a title or id that a client has chosen for an action is too long.
pub(crate) fn action(action: &StateAction) -> Result<(), MethodError> {
    use StateAction as A;
    match action {
        A::SessionTitleChanged(a) => title("title", &a.title),
        A::SessionActiveClientSet(a) => active_client(&a.active_client),
        A::ChatTurnStarted(a) => id("turnId", &a.turn_id),
        A::ChatPendingMessageSet(a) => id("id", &a.id),
        A::AnnotationsSet(a) => annotation(&a.annotation),
        A::AnnotationsEntrySet(a) => id("entry.id", &a.entry.id),
        _ => Ok(()),
    }
}

/// Fails if a client's name for itself is too long.
pub(crate) fn active_client(active: &SessionActiveClient) -> Result<(), MethodError> {
    active.display_name.as_deref().map_or(Ok(()), |name| title("activeClient.displayName", name))
}

fn annotation(annotation: &Annotation) -> Result<(), MethodError> {
    id("annotation.id", &annotation.id)?;
    annotation.entries.iter().try_for_each(|entry| id("annotation.entries.id", &entry.id))
}

fn title(field: &str, title: &str) -> Result<(), MethodError> {
    let chars = title.chars().count();
    if chars <= MAX_TITLE_CHARS {
        return Ok(());
    }
    Err(MethodError::new(INVALID_PARAMS, format!("{field} has {chars} characters, the limit is {MAX_TITLE_CHARS}")))
}

fn id(field: &str, id: &str) -> Result<(), MethodError> {
    if id.len() <= MAX_ID_BYTES {
        return Ok(());
    }
    Err(MethodError::new(INVALID_PARAMS, format!("{field} has {} bytes, the limit is {MAX_ID_BYTES}", id.len())))
}

/// A new name for a chat.
pub(crate) fn new_chat() -> String {
    format!("ahp-chat:/{}", new_id())
}

/// A new id.
pub(crate) fn new_id() -> String {
    BatchId::new().to_string()
}

/// Fails unless this is a URI of this scheme, or of one that the host does not use otherwise.
fn check(uri: &str, own: &str) -> Result<(), MethodError> {
    let (scheme, rest) = uri.split_once(':').unwrap_or_default();
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_free = scheme == own || !(scheme.starts_with("ahp") || scheme == "file");
    let is_plain = rest.bytes().all(|byte| byte.is_ascii_graphic());
    let has_name = !rest.trim_matches('/').is_empty();
    if is_scheme && is_free && is_plain && has_name && uri.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    let wanted = format!("the channel must be a URI such as {own}:/NAME, with {MAX_NAME_BYTES} bytes at most");
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
        let long = format!("ahp-session:/{}", "x".repeat(MAX_NAME_BYTES));
        for uri in
            ["", "ahp-session:/", "ahp-chat:/1", "ahp-root://", "file:///a", "/a", "1:/a", "a b:/c", "x:/ä", &long]
        {
            assert_eq!(session(uri).map_err(|error| error.code), Err(INVALID_PARAMS), "{uri}");
        }
        assert!(chat(&new_chat()).is_ok());
        assert!(chat("ahp-session:/1").is_err());
    }
}
