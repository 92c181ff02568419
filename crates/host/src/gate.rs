//! Which actions a client may dispatch, on which channel and in which state.
//!
//! The host calls [`check`] before it appends a client's action, with the channel's state at some seq, and appends only if the
//! channel still ends at that seq. A rejected action goes back to the client that dispatched it, and to nobody else, as an
//! envelope with `rejectionReason`. It is not logged. An action on a channel that does not exist is rejected
//! before that.
//!
//! `ACTION_RULES` in `gate/table.rs` is the whole table, one row for each action, from what `ahp-types` says of it. Where that says nothing of
//! clients, an action is the host's.

mod chat;
mod other;
mod rejection;
mod session;
mod table;

use ahp_types::actions::StateAction;
use ahp_types::common::JsonObject;
use ahp_types::state::{RootState, SessionState, SnapshotState};
#[cfg(feature = "test-support")]
pub use chat::{MAX_QUEUED_BYTES, MAX_QUEUED_MESSAGES};
pub use rejection::Rejection;
#[cfg(feature = "test-support")]
pub use table::{ACTION_RULES, ActionRule};
pub use table::{Dispatcher, explain, rule_of};

use crate::state::ChannelKind;

/// The client that dispatches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The `clientId` of its handshake.
    pub id: String,
}

/// What a check depends on.
#[derive(Debug, Clone, Copy)]
pub struct GateContext<'a> {
    /// The state of the channel that the action is for; a chat's without completed turns.
    pub state: &'a SnapshotState,
    /// The session that the channel belongs to, or is.
    pub session: Option<&'a SessionState>,
    /// The root, for the capabilities of agents.
    pub root: Option<&'a RootState>,
    /// The chat's last turn, if it can be resumed; only needed for `chat/turnResume`.
    pub resumable: Option<&'a str>,
    /// What this host offers.
    pub features: Features,
}

/// The optional features that a host may offer to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Files of the changeset can be marked as reviewed.
    pub review: bool,
    /// Automations can be created.
    pub automation_creation: bool,
    /// Runs of automations can be cancelled.
    pub run_cancellation: bool,
    /// The MCP servers that the workspace names can be started and stopped.
    pub mcp_servers: bool,
}

impl<'a> GateContext<'a> {
    /// Facts about a channel alone.
    #[must_use]
    pub fn of(state: &'a SnapshotState) -> Self {
        let (session, root) = match state {
            SnapshotState::Session(session) => (Some(&**session), None),
            SnapshotState::Root(root) => (None, Some(&**root)),
            _ => (None, None),
        };
        Self { state, session, root, resumable: None, features: Features::default() }
    }
}

/// Whether this client may dispatch this action now.
///
/// # Errors
/// Why not.
pub fn check(client: &Client, action: &StateAction, context: &GateContext<'_>) -> Result<(), Rejection> {
    let rule = rule_of(action).ok_or(Rejection::Unknown)?;
    if rule.dispatcher == Dispatcher::Host {
        return Err(only_the_host(action));
    }
    let found = ChannelKind::of(context.state);
    if rule.kind != found {
        return Err(Rejection::WrongChannel { action: rule.name, wanted: rule.kind, found });
    }
    match context.state {
        SnapshotState::Chat(chat) => chat::check(client, action, chat, context),
        SnapshotState::Session(session) => session::check(client, action, session, context),
        _ => other::check(client, action, context),
    }
}

/// Checks that only mutable properties are changed, or left out if `new` has all values.
fn only_mutable(
    new: &JsonObject,
    is_all: bool,
    old: &JsonObject,
    is_mutable: impl Fn(&str) -> bool,
) -> Result<(), Rejection> {
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value)).map(|(key, _)| key);
    let dropped = old.keys().filter(|key| is_all && !new.contains_key(*key));
    match changed.chain(dropped).find(|key| !is_mutable(key)) {
        Some(name) => Err(Rejection::FixedProperty { name: shortened(name) }),
        None => Ok(()),
    }
}

/// The beginning of a name that a client chose.
fn shortened(name: &str) -> String {
    const MAX_NAME: usize = 64;
    if name.len() <= MAX_NAME { name.to_owned() } else { format!("{}…", &name[..name.floor_char_boundary(MAX_NAME)]) }
}

fn only_the_host(action: &StateAction) -> Rejection {
    rule_of(action).map_or(Rejection::Unknown, |rule| Rejection::OnlyTheHost { action: rule.name })
}

fn require_feature(require_feature: bool) -> Result<(), Rejection> {
    if require_feature { Ok(()) } else { Err(Rejection::NotOffered) }
}
