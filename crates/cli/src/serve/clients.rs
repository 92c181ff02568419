//! The clients of a host: one task for each connection, and no more connections than allowed.

use std::sync::Arc;
use std::time::Duration;

use breakbulk::external::ExternalPeer;
use breakbulk::{Accepted, BoxLink, LogLimit};
use breakbulk_host::Host;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::settings::V2_PATH;

/// Clients that are being told to come again later. One more is simply cut.
const MAX_TURNED_AWAY: usize = 64;
/// How long that may take.
const FAREWELL: Duration = Duration::from_secs(5);
/// The principal of all clients when no token is required.
const ANYONE: &str = "anyone";

/// The connections that are served.
pub(super) struct Clients {
    served: JoinSet<()>,
    turned_away: JoinSet<()>,
    log_limit: LogLimit,
    max_connections: usize,
}

impl Clients {
    pub(super) fn new(max_connections: usize) -> Self {
        Self { served: JoinSet::new(), turned_away: JoinSet::new(), log_limit: LogLimit::default(), max_connections }
    }

    pub(super) fn take(&mut self, host: &Host, accepted: Accepted) {
        let is_v2 = accepted.path() == V2_PATH;
        let Accepted { link, peer, principal, .. } = accepted;
        self.take_link(host, link, &peer.to_string(), principal, is_v2);
    }

    /// A client has come through a relay. There it speaks AHP.
    pub(super) fn take_external(&mut self, host: &Host, ExternalPeer { link, name, principal }: ExternalPeer) {
        self.take_link(host, link, &name, principal, false);
    }

    fn take_link(&mut self, host: &Host, link: BoxLink, peer: &str, principal: Option<Arc<str>>, is_v2: bool) {
        let host = host.clone();
        // Without a token all clients are one principal.
        let principal = principal.or_else(|| Some(Arc::from(ANYONE)));
        if self.served.len() < self.max_connections {
            debug!(peer, "a connection is accepted");
            self.served.spawn(async move {
                drop(match is_v2 {
                    true => host.v2().serve(link, principal).await,
                    false => host.endpoint().serve(link, principal).await,
                });
            });
            return;
        }
        if let Some(permit) = self.log_limit.permit("connections") {
            let (limit, left_out) = (self.max_connections, permit.left_out());
            warn!(peer, limit, left_out, "too many connections: one more is closed with 1013 (try again later)");
        }
        if self.turned_away.len() < MAX_TURNED_AWAY {
            self.turned_away.spawn(async move {
                let turned_away = async {
                    match is_v2 {
                        true => host.v2().turn_away(link).await,
                        false => host.endpoint().turn_away(link).await,
                    }
                };
                drop(timeout(FAREWELL, turned_away).await);
            });
        }
    }

    /// Resolves when a connection has ended; never if there is none.
    pub(super) async fn one_left(&mut self) {
        tokio::select! {
            Some(_) = self.served.join_next() => {}
            Some(_) = self.turned_away.join_next() => {}
            else => std::future::pending().await,
        }
    }

    /// Resolves when all that were served have ended.
    pub(super) async fn all_left(&mut self) {
        while self.served.join_next().await.is_some() {}
    }

    /// Ends those that are left.
    pub(super) async fn shutdown(&mut self) {
        self.served.shutdown().await;
    }
}
