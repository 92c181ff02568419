//! How a connection ended, for those that do not own it.

use tokio::sync::watch;

use breakbulk_proto::CloseReason;

use crate::driver;

/// The reason of a connection that ended without one.
pub(super) const ABNORMAL: CloseReason = CloseReason::Peer { code: driver::ABNORMAL };

/// How a connection ended, or that it has not. Cloning shares it; it outlives the transport that it came from.
#[derive(Debug, Clone)]
pub struct Ended(pub(super) watch::Receiver<Option<CloseReason>>);

impl Ended {
    /// Why the connection ended; its [`code`](CloseReason::code) is the link's close code. `None` while it lasts.
    #[must_use]
    pub fn reason(&self) -> Option<CloseReason> {
        let reason = self.0.borrow().clone();
        reason.or_else(|| self.0.has_changed().is_err().then_some(ABNORMAL))
    }

    /// Waits until the connection has ended. Cancel-safe.
    pub async fn wait(&self) -> CloseReason {
        let mut reason = self.0.clone();
        // An error means that the task ended without setting a reason, because its runtime was shut down.
        let _ = reason.wait_for(Option::is_some).await;
        self.reason().unwrap_or(ABNORMAL)
    }
}
