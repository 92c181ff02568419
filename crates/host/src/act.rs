//! Where rooms put their actions.

use ahp_types::actions::StateAction;

use crate::log::{Answer, AppendError, Seq};

/// Puts actions into the log. All or none; answers when they are durable.
pub trait Act: Send + Sync + 'static {
    /// Appends these actions, each to its channel, in this order; answers with their seqs.
    fn act<'a>(&'a self, actions: Vec<(String, StateAction)>) -> Answer<'a, Result<Vec<Seq>, AppendError>>;
}
