//! The workshop: what the host does in the workspace for clients. Files, terminals, changesets, customizations.

use std::sync::Arc;

use ahp_types::actions::StateAction;
use breakbulk_proto::Message;

use super::desk::Desk;
use super::{HostConfig, StartError};
use crate::endpoint::{ClientInfo, Dispatched, RawParams, Refusal};
use crate::error::MethodError;

/// The workspace, as rooms.
pub(crate) struct Workshop {
    _desk: Arc<Desk>,
}

impl Workshop {
    pub(crate) fn new(desk: Arc<Desk>, _config: &HostConfig) -> Result<Self, StartError> {
        Ok(Self { _desk: desk })
    }

    /// A host begins: says which terminals of its last life are gone, and opens what sessions have.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<(), StartError> {
        Ok(())
    }

    /// Answers a method of the workspace; `None` if it is none.
    pub(crate) async fn call(
        self: &Arc<Self>,
        _client: &ClientInfo,
        _method: &str,
        _params: &RawParams,
    ) -> Option<Result<Message, MethodError>> {
        None
    }

    /// Takes an action that a client has dispatched on a terminal: checks it, logs it, carries it out.
    pub(crate) async fn dispatch(&self, _client: &ClientInfo, _dispatched: &Dispatched) -> Result<(), Refusal> {
        Err(Refusal::new("not offered"))
    }

    /// A session has begun, or its working directories have changed: looks for its changes and customizations, and logs
    /// them. Returns at once.
    pub(crate) fn opened(self: &Arc<Self>, _session: &str) {}

    /// An agent has worked: looks at the changes of its session again. Returns at once.
    pub(crate) fn worked(self: &Arc<Self>, _session: &str) {}

    /// A session is gone.
    pub(crate) async fn closed(&self, _session: &str) {}

    /// How many terminals and watches there are.
    pub(crate) const fn counts(&self) -> (usize, usize) {
        (0, 0)
    }

    /// Ends terminals and watches.
    pub(crate) async fn stop(&self) {}
}

/// Whether an action of a client is the workshop's to take.
pub(crate) const fn takes(action: &StateAction) -> bool {
    matches!(
        action,
        StateAction::TerminalInput(_)
            | StateAction::TerminalResized(_)
            | StateAction::TerminalClaimed(_)
            | StateAction::TerminalTitleChanged(_)
            | StateAction::TerminalCleared(_)
    )
}
