//! A gateway at work: each client that comes in gets a link of its own to the host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, info, info_span, warn};

use breakbulk_proto::CloseReason;
use http::{HeaderValue, header};

use super::entrance::{Entered, Entrance};
use super::waiting::Waiting;
use super::{End, Ended, Gateway, Lost, Watcher, Words};
use crate::address::Address;
use crate::dial::{DialError, Dialer};
use crate::link::Child;

/// Clients that are being told to come again later. One more is simply cut.
const MAX_TURNED_AWAY: usize = 64;
/// How long that may take.
const FAREWELL: Duration = Duration::from_secs(5);
/// Long enough for most tools, and no longer than the next client may wait.
const PATIENCE: Duration = Duration::from_secs(10);
/// The host cannot be reached.
const BAD_GATEWAY: u16 = 1014;
/// Too many clients.
const TRY_AGAIN: u16 = 1013;

/// The way to the host.
#[non_exhaustive]
pub struct Exit {
    /// How it is reached.
    pub dialer: Dialer,
    /// Where it is.
    pub address: Address,
    /// A child process that outlives its links, and is the host.
    pub kept: Option<Child>,
    /// How long that has to answer a client that is gone, before the next one gets it. What it answers then is dropped. If
    /// it has not answered all, it is ended, and started anew for the next. 10 s.
    pub patience: Duration,
}

impl Exit {
    /// A new link for each client.
    #[must_use]
    pub const fn new(dialer: Dialer, address: Address) -> Self {
        Self { dialer, address, kept: None, patience: PATIENCE }
    }

    /// A link for a client, who wants to speak `protocol` with the host, if any.
    async fn open(&self, protocol: Option<HeaderValue>) -> Result<End, DialError> {
        let name = self.address.to_string();
        Ok(match (&self.kept, protocol) {
            (Some(child), _) => End::child(child.link().await?, name, self.patience),
            (None, Some(protocol)) => End::new(self.dialer_with(protocol).dial(&self.address).await?, name),
            (None, None) => End::new(self.dialer.dial(&self.address).await?, name),
        })
    }

    /// The dialer, asking for a subprotocol unless it was told to ask for another one.
    fn dialer_with(&self, protocol: HeaderValue) -> Dialer {
        let mut dialer = self.dialer.clone();
        dialer.headers.entry(header::SEC_WEBSOCKET_PROTOCOL).or_insert(protocol);
        dialer
    }
}

/// How a client's connection went.
#[derive(Debug)]
#[non_exhaustive]
pub enum Served {
    /// It ended.
    Ended(Ended),
    /// The host could not be reached.
    Unreachable(DialError),
    /// The system gave no random bytes.
    Random(getrandom::Error),
    /// Its task has panicked, which is a bug.
    Panicked,
}

impl Gateway {
    /// Serves clients until no more can come, or until `stop`; says how the last one fared, or that one panicked. `watch` makes a watcher for
    /// each client.
    pub async fn serve(
        self: &Arc<Self>,
        mut entrance: Entrance,
        exit: Exit,
        stop: CancellationToken,
        watch: impl Fn() -> Option<Watcher>,
    ) -> Option<Served> {
        let exit = Arc::new(exit);
        let (mut clients, mut last, mut number) = (JoinSet::new(), None, 0_u64);
        let mut turned_away = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(served) = clients.join_next() => note(&mut last, served),
                Some(_) = turned_away.join_next() => {}
                entered = entrance.accept() => match entered {
                    Some(entered) if clients.len() >= self.max_clients => {
                        let Some(later) = self.refuse(turned_away.len()) else { continue };
                        let gateway = Arc::clone(self);
                        let told = async move { gateway.turn_away(entered.end, later).await };
                        turned_away.spawn(async move { drop(timeout(FAREWELL, told).await) });
                    }
                    Some(entered) => {
                        let (gateway, exit, stop) = (Arc::clone(self), Arc::clone(&exit), stop.clone());
                        let watcher = watch();
                        number = number.saturating_add(1);
                        // All that is logged of a client has its number.
                        let span = info_span!("client", number);
                        let client = async move { gateway.client(entered, &exit, stop, watcher).await };
                        clients.spawn(client.instrument(span));
                    }
                    None => break,
                },
            }
        }
        drop(entrance);
        while let Some(served) = clients.join_next().await {
            note(&mut last, served);
        }
        if let Some(child) = Arc::into_inner(exit).and_then(|exit| exit.kept) {
            child.end().await;
        }
        last
    }

    /// Counts and logs that one client too many has come. What it is told, unless too many are being told so.
    fn refuse(&self, being_told: usize) -> Option<CloseReason> {
        self.records.count("too-many-clients");
        let limit = self.max_clients;
        if let Some(refused) = self.records.stats.refuse(Instant::now()) {
            warn!(limit, refused, "too many clients (max_connections): those that come are told to come later");
        }
        let text = format!("too many clients: {limit} are here (max_connections)");
        (being_told < MAX_TURNED_AWAY).then_some(CloseReason::Program(TRY_AGAIN, text))
    }

    async fn client(
        &self,
        Entered { end, principal, protocol }: Entered,
        exit: &Exit,
        stop: CancellationToken,
        watcher: Option<Watcher>,
    ) -> Served {
        let _present = self.records.stats.enter();
        let name = exit.address.to_string();
        info!(client = end.name, host = name, "a client has come in");
        let mut near = self.enter(end);
        let far = tokio::select! {
            biased;
            () = stop.cancelled() => return turned_away(near, CloseReason::Restart).await,
            opened = exit.open(protocol) => opened,
            reason = near.gone() => {
                info!(code = reason.code(), "the client has left before its host was there, and had said nothing");
                return turned_away(near, reason).await;
            }
        };
        self.records.stats.dialed(far.is_ok());
        let far = match far {
            Ok(far) => far,
            Err(cause) => {
                error!(host = name, "the host cannot be reached: {cause}");
                near.turn_away(CloseReason::Program(BAD_GATEWAY, "the host cannot be reached".into())).await;
                return Served::Unreachable(cause);
            }
        };
        let stop = async move { stop.cancelled().await };
        match self.meet(near, far, Some(&principal), stop, watcher).await {
            Ok(ended) => Served::Ended(ended),
            Err(error) => Served::Random(error),
        }
    }
}

/// Ends a client that never got to its host.
async fn turned_away(near: Waiting, reason: CloseReason) -> Served {
    near.turn_away(reason.clone()).await;
    let words = Words { near: reason.to_string(), far: "it was not connected to".into() };
    Served::Ended(Ended { near: reason, far: CloseReason::Normal, words, lost: Lost::default() })
}

/// Notes how a client fared. A panic is not forgotten over those who come later.
fn note(last: &mut Option<Served>, served: Result<Served, JoinError>) {
    let served = served.unwrap_or_else(|error| {
        error!("a connection was lost by a bug in this program: {error}");
        Served::Panicked
    });
    if !matches!(last, Some(Served::Panicked)) {
        *last = Some(served);
    }
}

impl Ended {
    /// Whose fault it was, if anyone's: the reason that a person should see, and how that side ended in words.
    #[must_use]
    pub fn trouble(&self) -> Option<(&CloseReason, &str)> {
        let is_fine = |reason: &CloseReason| {
            matches!(
                reason,
                CloseReason::Normal | CloseReason::Restart | CloseReason::Peer { code: 1000 | 1001 | 1005 }
            )
        };
        let is_violation = |reason: &CloseReason| matches!(reason, CloseReason::Violation(_));
        let both = [(&self.near, self.words.near.as_str()), (&self.far, self.words.far.as_str())];
        let violation = both.into_iter().find(|(reason, _)| is_violation(reason));
        violation.or_else(|| both.into_iter().find(|(reason, _)| !is_fine(reason)))
    }
}
