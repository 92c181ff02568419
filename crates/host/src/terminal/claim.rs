//! Who may act on a terminal: claims and their checks.

use ahp_types::actions::StateAction;
use ahp_types::state::{TerminalClaim, TerminalClientClaim};
use thiserror::Error;

/// Whether the claim is that of the client with this id. A session's claim is no client's.
pub(crate) fn is_of_client(claim: &TerminalClaim, id: &str) -> bool {
    matches!(claim, TerminalClaim::Client(claim) if claim.client_id == id)
}

/// The claim of a free terminal: that of a client with an empty id. The protocol has no other way to show all clients that
/// nobody holds the terminal.
pub(crate) fn nobody() -> TerminalClaim {
    TerminalClaim::Client(TerminalClientClaim { client_id: String::new() })
}

/// Whether the terminal is free, so that anybody may claim it.
pub(crate) fn is_free(claim: &TerminalClaim) -> bool {
    matches!(claim, TerminalClaim::Client(claim) if claim.client_id.is_empty())
}

/// Why an action on a terminal is not logged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TerminalRejection {
    /// No terminal is on this channel.
    #[error("there is no terminal with a program on this channel")]
    NoTerminal,
    /// Somebody else holds it.
    #[error("the terminal is held by another client or session")]
    NotHolder,
    /// The client that held it is gone.
    #[error("nobody holds the terminal: dispatch terminal/claimed first")]
    Unclaimed,
    /// Its program has ended.
    #[error("the program of this terminal has ended")]
    Exited,
    /// The program does not read what was typed.
    #[error("the program does not read its input: {waiting} bytes wait for it, the limit is {limit}")]
    InputFull {
        /// What waits, with this.
        waiting: usize,
        /// What may.
        limit: u32,
    },
    /// A size that no terminal has.
    #[error("{cols} columns and {rows} rows are not a size: both must be from 1 to 65,535")]
    BadSize {
        /// Columns asked for.
        cols: i64,
        /// Rows asked for.
        rows: i64,
    },
    /// A title with control characters, or longer than anyone reads.
    #[error("title has at most {MAX_TITLE_CHARS} characters, and no control characters")]
    BadTitle,
    /// Only the host says this.
    #[error("only the host dispatches this action")]
    NotForClients,
}

/// Checks whether a client may dispatch this. Everybody may rename a terminal, as the protocol says; only its holder may do the
/// rest.
pub(super) fn check(client: &str, claim: &TerminalClaim, action: &StateAction) -> Result<(), TerminalRejection> {
    match action {
        StateAction::TerminalTitleChanged(_) => Ok(()),
        StateAction::TerminalClaimed(_) if is_free(claim) => Ok(()),
        StateAction::TerminalInput(_)
        | StateAction::TerminalResized(_)
        | StateAction::TerminalClaimed(_)
        | StateAction::TerminalCleared(_) => {
            let refusal = if is_free(claim) { TerminalRejection::Unclaimed } else { TerminalRejection::NotHolder };
            is_of_client(claim, client).then_some(()).ok_or(refusal)
        }
        _ => Err(TerminalRejection::NotForClients),
    }
}

/// The most characters of a terminal's title. The list of terminals has them all, and everybody who follows the root gets it.
pub(super) const MAX_TITLE_CHARS: usize = 256;

/// Makes a title valid that a program has set: without control characters, and of limited length.
pub(super) fn title(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(MAX_TITLE_CHARS).collect()
}

/// Whether a client may give a terminal this title.
pub(super) fn is_title(text: &str) -> bool {
    title(text) == text
}

#[cfg(test)]
mod tests {
    use ahp_types::actions::{TerminalDataAction, TerminalInputAction, TerminalTitleChangedAction};
    use ahp_types::state::TerminalSessionClaim;

    use super::*;

    #[test]
    fn only_the_holder_types_anyone_renames_and_nobody_makes_output() {
        let input = StateAction::TerminalInput(TerminalInputAction { data: "x".into() });
        let rename = StateAction::TerminalTitleChanged(TerminalTitleChangedAction { title: "x".into() });
        let data = StateAction::TerminalData(TerminalDataAction { data: "x".into() });
        let claim = TerminalClaim::Client(TerminalClientClaim { client_id: "a".into() });
        assert_eq!(check("a", &claim, &input), Ok(()));
        assert_eq!(check("b", &claim, &input), Err(TerminalRejection::NotHolder));
        assert_eq!(check("b", &claim, &rename), Ok(()));
        assert_eq!(check("a", &claim, &data), Err(TerminalRejection::NotForClients));
        let claim = TerminalClaim::Session(TerminalSessionClaim {
            session: "ahp-session:/1".into(),
            chat: "ahp-chat:/1".into(),
            turn_id: None,
            tool_call_id: None,
        });
        assert_eq!(check("a", &claim, &input), Err(TerminalRejection::NotHolder));
    }
}
