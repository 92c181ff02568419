//! What a client may do in a session.

use ahp_types::actions::{SessionConfigChangedAction, StateAction};
use ahp_types::state::{MultipleWorkingDirectoriesCapability, SessionState};

use super::{Client, Facts, Refusal, offered, only_mutable};

pub(super) fn check(
    client: &Client,
    action: &StateAction,
    session: &SessionState,
    facts: &Facts<'_>,
) -> Result<(), Refusal> {
    use StateAction as A;
    match action {
        A::SessionActiveClientSet(a) => is_you(client, &a.active_client.client_id),
        A::SessionActiveClientRemoved(a) => is_you(client, &a.client_id),
        A::SessionWorkingDirectorySet(_) => directories(facts).map(drop),
        A::SessionWorkingDirectoryRemoved(a) => {
            let can = directories(facts)?;
            let protected = can.immutable_primary == Some(true) || can.primary_replacement == Some(true);
            if protected && is_primary(session, &a.directory) {
                return Err(Refusal::PrimaryDirectory);
            }
            not_the_last(session.working_directories.as_ref(), &a.directory)
        }
        A::SessionWorkingDirectoryReplaced(a) => {
            let can = directories(facts)?;
            if !session.working_directories.iter().flatten().any(|directory| *directory == a.directory) {
                return Err(Refusal::NoDirectory);
            }
            let fixed = can.primary_replacement != Some(true) && is_primary(session, &a.directory);
            if fixed { Err(Refusal::PrimaryDirectory) } else { Ok(()) }
        }
        A::SessionConfigChanged(a) => config(a, session),
        // Any client may, at any time; what is not there is not changed.
        A::SessionTitleChanged(_)
        | A::SessionIsReadChanged(_)
        | A::SessionIsArchivedChanged(_)
        | A::SessionCustomizationToggled(_) => Ok(()),
        A::SessionMcpServerStartRequested(_)
        | A::SessionMcpServerStopRequested(_)
        | A::SessionMcpServerBackgroundRequested(_) => offered(facts.offers.mcp_servers),
        _ => Err(Refusal::OnlyTheHost),
    }
}

/// What the session's agent can do with several directories.
pub(super) fn directories<'a>(facts: &Facts<'a>) -> Result<&'a MultipleWorkingDirectoriesCapability, Refusal> {
    let (root, session) = facts.root.zip(facts.session).ok_or(Refusal::OneDirectory)?;
    let agent = root.agents.iter().find(|agent| agent.provider == session.provider);
    let can = agent.and_then(|agent| agent.capabilities.as_ref()?.multiple_working_directories.as_ref());
    can.ok_or(Refusal::OneDirectory)
}

/// Whether a set without this directory still has one. An agent cannot begin without a directory, so nobody could write to
/// a chat that has none.
pub(super) fn not_the_last(all: Option<&Vec<String>>, directory: &str) -> Result<(), Refusal> {
    let is_last = all.is_some_and(|all| matches!(&**all, [only] if only == directory));
    if is_last { Err(Refusal::LastDirectory) } else { Ok(()) }
}

fn is_primary(session: &SessionState, directory: &str) -> bool {
    session.working_directories.as_ref().and_then(|all| all.first()).is_some_and(|first| first == directory)
}

/// Only what may be changed in a running session is, also when all values are replaced.
fn config(a: &SessionConfigChangedAction, session: &SessionState) -> Result<(), Refusal> {
    let config = session.config.as_ref().ok_or(Refusal::FixedProperty)?;
    let is_mutable =
        |key: &str| config.schema.properties.get(key).is_some_and(|property| property.session_mutable == Some(true));
    only_mutable(&a.config, a.replace == Some(true), &config.values, is_mutable)
}

fn is_you(client: &Client, id: &str) -> Result<(), Refusal> {
    if client.id == id { Ok(()) } else { Err(Refusal::NotYou) }
}
