//! Conducts agents: each chat's conversation hears what clients have logged, and what it says is logged.

use std::sync::Arc;

use super::StartError;
use super::desk::Desk;
use super::workshop::Workshop;
use crate::agent::Agent;

/// The conversations of all chats.
pub(crate) struct Conduct {
    _desk: Arc<Desk>,
    _agents: Vec<Arc<dyn Agent>>,
    _workshop: Arc<Workshop>,
}

impl Conduct {
    pub(crate) fn new(desk: Arc<Desk>, agents: Vec<Arc<dyn Agent>>, workshop: Arc<Workshop>) -> Self {
        Self { _desk: desk, _agents: agents, _workshop: workshop }
    }

    /// Ends the turns that a last life of the host left open, and begins to follow the log.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<(), StartError> {
        Ok(())
    }

    /// Ends a chat's conversation, with all that it runs: when this answers, nothing more is logged for it.
    pub(crate) async fn close(&self, _chat: &str) {}

    /// Ends all conversations.
    pub(crate) async fn stop(&self) {}
}
