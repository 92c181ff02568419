//! What a client may do in a session.

use ahp_types::actions::{SessionConfigChangedAction, StateAction};
use ahp_types::state::{MultipleWorkingDirectoriesCapability, SessionState};

use super::{Client, GateContext, Rejection, only_mutable, require_feature};

pub(super) fn check(
    client: &Client,
    action: &StateAction,
    session: &SessionState,
    context: &GateContext<'_>,
) -> Result<(), Rejection> {
    use StateAction as A;
    match action {
        A::SessionActiveClientSet(a) => is_you(client, &a.active_client.client_id),
        A::SessionActiveClientRemoved(a) => is_you(client, &a.client_id),
        A::SessionWorkingDirectorySet(_) => directories(context).map(drop),
        A::SessionWorkingDirectoryRemoved(a) => {
            let can = directories(context)?;
            let protected = can.immutable_primary == Some(true) || can.primary_replacement == Some(true);
            if protected && is_primary(session, &a.directory) {
                return Err(Rejection::PrimaryDirectory);
            }
            not_the_last(session.working_directories.as_ref(), &a.directory)
        }
        A::SessionWorkingDirectoryReplaced(a) => {
            let can = directories(context)?;
            if !session.working_directories.iter().flatten().any(|directory| *directory == a.directory) {
                return Err(Rejection::NoDirectory);
            }
            let fixed = can.primary_replacement != Some(true) && is_primary(session, &a.directory);
            if fixed { Err(Rejection::PrimaryDirectory) } else { Ok(()) }
        }
        A::SessionConfigChanged(a) => config(a, session),
        // Any client may dispatch these at any time. The reducer ignores them where there is nothing to change.
        A::SessionTitleChanged(_)
        | A::SessionIsReadChanged(_)
        | A::SessionIsArchivedChanged(_)
        | A::SessionCustomizationToggled(_) => Ok(()),
        A::SessionMcpServerStartRequested(_)
        | A::SessionMcpServerStopRequested(_)
        | A::SessionMcpServerBackgroundRequested(_) => require_feature(context.features.mcp_servers),
        _ => Err(super::only_the_host(action)),
    }
}

/// What the session's agent can do with several directories.
pub(super) fn directories<'a>(
    context: &GateContext<'a>,
) -> Result<&'a MultipleWorkingDirectoriesCapability, Rejection> {
    let (root, session) = context.root.zip(context.session).ok_or(Rejection::OneDirectory)?;
    let agent = root.agents.iter().find(|agent| agent.provider == session.provider);
    let can = agent.and_then(|agent| agent.capabilities.as_ref()?.multiple_working_directories.as_ref());
    can.ok_or(Rejection::OneDirectory)
}

/// Whether a set without this directory still has one. An agent cannot begin without a directory, so nobody could write to
/// a chat that has none.
pub(super) fn not_the_last(all: Option<&Vec<String>>, directory: &str) -> Result<(), Rejection> {
    let is_last = all.is_some_and(|all| matches!(&**all, [only] if only == directory));
    if is_last { Err(Rejection::LastDirectory) } else { Ok(()) }
}

fn is_primary(session: &SessionState, directory: &str) -> bool {
    session.working_directories.as_ref().and_then(|all| all.first()).is_some_and(|first| first == directory)
}

/// Only what may be changed in a running session is, also when all values are replaced.
fn config(a: &SessionConfigChangedAction, session: &SessionState) -> Result<(), Rejection> {
    let config = session.config.as_ref().ok_or(Rejection::NoConfig)?;
    let is_mutable =
        |key: &str| config.schema.properties.get(key).is_some_and(|property| property.session_mutable == Some(true));
    only_mutable(&a.config, a.replace == Some(true), &config.values, is_mutable)
}

fn is_you(client: &Client, id: &str) -> Result<(), Rejection> {
    if client.id == id { Ok(()) } else { Err(Rejection::NotYou) }
}
