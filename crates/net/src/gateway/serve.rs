//! A gateway at work: each client that connects gets a link of its own to the host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, info, info_span, warn};

use breakbulk_proto::CloseReason;

use super::downstream::{Downstream, NewClient};
use super::stats::LOG_INTERVAL;
use super::upstream::Upstream;
use super::waiting_client::WaitingClient;
use super::{Gateway, Losses, Outcome, SideId, SideOutcome, Watcher};
use crate::dial::DialError;

/// Clients that are being told to come again later. One more is simply disconnected.
const MAX_REFUSALS: usize = 64;
/// How long that may take.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The close code when the host cannot be reached.
const BAD_GATEWAY: u16 = 1014;
/// The close code when there are too many clients.
const TRY_AGAIN: u16 = 1013;

/// How a client's connection went.
#[derive(Debug)]
#[non_exhaustive]
pub enum Served {
    /// It ended.
    Ended(Outcome),
    /// The host could not be reached.
    Unreachable(DialError),
    /// The system gave no random bytes.
    Random(getrandom::Error),
    /// Its task has panicked, which is a bug.
    Panicked,
}

impl Gateway {
    /// Serves clients until no more can come, or until `stop`. Returns how the last connection went, or that one panicked. `watch`
    /// makes a watcher for each client.
    pub async fn serve(
        self: &Arc<Self>,
        mut downstream: Downstream,
        upstream: Upstream,
        stop: CancellationToken,
        watch: impl Fn() -> Option<Watcher>,
    ) -> Option<Served> {
        let upstream = Arc::new(upstream);
        let (mut clients, mut refusals) = (JoinSet::new(), JoinSet::new());
        let mut last = None;
        let mut number = 0_u64;
        // When refusals are logged that came too soon after others.
        let mut log_rest_at: Option<tokio::time::Instant> = None;
        loop {
            let rest_is_due = async {
                match log_rest_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                Some(served) = clients.join_next() => note_served(&mut last, served),
                Some(_) = refusals.join_next() => {}
                () = rest_is_due => {
                    log_rest_at = None;
                    self.log_refusals(self.records.stats.take_unlogged_refusals(Instant::now()));
                }
                client = downstream.accept() => match client {
                    Some(client) if clients.len() >= self.max_clients => {
                        log_rest_at.get_or_insert_with(|| tokio::time::Instant::now() + LOG_INTERVAL);
                        let Some(reason) = self.note_refusal(refusals.len()) else { continue };
                        let gateway = Arc::clone(self);
                        let refusal = async move { gateway.refuse(client.endpoint, reason).await };
                        refusals.spawn(async move { drop(timeout(REFUSAL_TIMEOUT, refusal).await) });
                    }
                    Some(client) => {
                        let (gateway, upstream, stop) = (Arc::clone(self), Arc::clone(&upstream), stop.clone());
                        let watcher = watch();
                        number = number.saturating_add(1);
                        // All that is logged of a client has its number.
                        let span = info_span!("client", number);
                        let served = async move { gateway.serve_client(client, &upstream, stop, watcher).await };
                        clients.spawn(served.instrument(span));
                    }
                    None => break,
                },
            }
        }
        drop(downstream);
        self.log_refusals(self.records.stats.take_unlogged_refusals(Instant::now()));
        while let Some(served) = clients.join_next().await {
            note_served(&mut last, served);
        }
        if let Some(child) = Arc::into_inner(upstream).and_then(|upstream| upstream.kept) {
            child.end().await;
        }
        last
    }

    /// Counts and logs one client too many. Returns what it is told, unless too many `refusals` are under way.
    fn note_refusal(&self, refusals: usize) -> Option<CloseReason> {
        self.records.count("too-many-clients");
        let limit = self.max_clients;
        self.log_refusals(self.records.stats.refuse(Instant::now()));
        let text = format!("too many clients: {limit} are here (max_connections)");
        (refusals < MAX_REFUSALS).then_some(CloseReason::Program(TRY_AGAIN, text))
    }

    fn log_refusals(&self, refused: Option<u64>) {
        if let Some(refused) = refused {
            let limit = self.max_clients;
            warn!(limit, refused, "too many clients (max_connections): new ones are told to connect again later");
        }
    }

    async fn serve_client(
        &self,
        NewClient { endpoint, principal, protocol }: NewClient,
        upstream: &Upstream,
        stop: CancellationToken,
        watcher: Option<Watcher>,
    ) -> Served {
        let _connected = self.records.stats.note_client();
        let host = upstream.address.to_string();
        info!(client = endpoint.name, host, "a client has come in");
        let mut downstream = self.admit(endpoint);
        let upstream = tokio::select! {
            biased;
            () = stop.cancelled() => return refuse(downstream, CloseReason::Restart).await,
            opened = upstream.open(protocol) => opened,
            reason = downstream.left() => {
                info!(code = reason.code(), "the client left before its host was connected, and had sent nothing");
                return refuse(downstream, reason).await;
            }
        };
        self.records.stats.note_dial(upstream.is_ok());
        let upstream = match upstream {
            Ok(upstream) => upstream,
            Err(cause) => {
                error!(host, "the host cannot be reached: {cause}");
                downstream.refuse(CloseReason::Program(BAD_GATEWAY, "the host cannot be reached".into())).await;
                return Served::Unreachable(cause);
            }
        };
        let stop = async move { stop.cancelled().await };
        match self.bridge(downstream, upstream, Some(&principal), stop, watcher).await {
            Ok(outcome) => Served::Ended(outcome),
            Err(error) => Served::Random(error),
        }
    }
}

/// Closes the link of a client that was never connected to its host.
async fn refuse(downstream: WaitingClient, reason: CloseReason) -> Served {
    downstream.refuse(reason.clone()).await;
    let description = reason.to_string();
    let upstream = SideOutcome { reason: CloseReason::Normal, description: "it was not connected to".into() };
    let downstream = SideOutcome { reason, description };
    Served::Ended(Outcome { downstream, upstream, closed_first: SideId::Downstream, losses: Losses::default() })
}

/// Notes how a client's connection went. A panic is not forgotten because of later clients.
fn note_served(last: &mut Option<Served>, served: Result<Served, JoinError>) {
    let served = served.unwrap_or_else(|error| {
        error!("a connection was lost by a bug in this program: {error}");
        Served::Panicked
    });
    if !matches!(last, Some(Served::Panicked)) {
        *last = Some(served);
    }
}

impl Outcome {
    /// The side that is to blame, if one is: a violation first, then any other close that is not an ordinary one, and the side
    /// that closed first before the one that was closed because of it.
    #[must_use]
    pub fn failure(&self) -> Option<&SideOutcome> {
        let is_ordinary = |reason: &CloseReason| {
            matches!(
                reason,
                CloseReason::Normal | CloseReason::Restart | CloseReason::Peer { code: 1000 | 1001 | 1005 }
            )
        };
        let is_violation = |reason: &CloseReason| matches!(reason, CloseReason::Violation(_));
        let both = match self.closed_first {
            SideId::Downstream => [&self.downstream, &self.upstream],
            SideId::Upstream => [&self.upstream, &self.downstream],
        };
        let violation = both.into_iter().find(|side| is_violation(&side.reason));
        violation.or_else(|| both.into_iter().find(|side| !is_ordinary(&side.reason)))
    }
}
