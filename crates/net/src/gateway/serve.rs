//! A gateway at work: each client that comes in gets a link of its own to the host.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, info, info_span, warn};

use breakbulk_proto::CloseReason;
use http::{HeaderValue, header};

use super::entrance::{Entered, Entrance};
use super::waiting::Waiting;
use super::{End, Ended, Gateway, Lost, Watcher};
use crate::address::Address;
use crate::dial::{DialError, Dialer};
use crate::link::{BoxLink, Child};

/// Clients at once. More are told to come again later.
const MOST: usize = 1024;
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
        let link: BoxLink = match (&self.kept, protocol) {
            (Some(child), _) => Box::new(child.link().await?),
            (None, Some(protocol)) => self.dialer_with(protocol).dial(&self.address).await?,
            (None, None) => self.dialer.dial(&self.address).await?,
        };
        let mut end = End::new(link, self.address.to_string());
        end.patience = self.kept.as_ref().map(|_| self.patience);
        Ok(end)
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
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(served) = clients.join_next() => note(&mut last, served),
                entered = entrance.accept() => match entered {
                    Some(entered) if clients.len() >= MOST => {
                        warn!(clients = clients.len(), "too many clients: one more is told to come later");
                        let gateway = Arc::clone(self);
                        let later = CloseReason::Program(TRY_AGAIN, "too many clients".into());
                        tokio::spawn(async move { gateway.turn_away(entered.end, later).await });
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

    async fn client(
        &self,
        Entered { end, principal, protocol }: Entered,
        exit: &Exit,
        stop: CancellationToken,
        watcher: Option<Watcher>,
    ) -> Served {
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
    Served::Ended(Ended { near: reason, far: CloseReason::Normal, lost: Lost::default() })
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
    /// Whose fault it was, if anyone's: the reason that a person should see.
    #[must_use]
    pub fn trouble(&self) -> Option<&CloseReason> {
        let is_fine = |reason: &CloseReason| {
            matches!(
                reason,
                CloseReason::Normal | CloseReason::Restart | CloseReason::Peer { code: 1000 | 1001 | 1005 }
            )
        };
        let is_violation = |reason: &CloseReason| matches!(reason, CloseReason::Violation(_));
        let both = [&self.near, &self.far];
        let violation = both.into_iter().find(|reason| is_violation(reason));
        violation.or_else(|| both.into_iter().find(|reason| !is_fine(reason)))
    }
}
