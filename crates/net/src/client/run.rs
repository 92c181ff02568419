//! The background task of a client: one connection after the other, with a wait in between, until the client ends.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use breakbulk_proto::ahp::Negotiated;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::byte_limit::ByteLimit;
use super::command::Command;
use super::config::Config;
use super::connect::{Connect, ConnectError};
use super::connection::LiveConnection;
use super::responder::Reply;
use super::session::Session;
use super::state::{Reason, State};
use crate::activity::Activity;
use crate::backoff::Backoff;

/// The background task of a client.
pub(super) struct Task<C> {
    pub(super) connect: C,
    pub(super) core: Core,
}

/// What all connections of a client share.
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) session: Session,
    pub(super) negotiated: Negotiated,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Commands that wait until earlier ones were sent.
    pub(super) pending: VecDeque<Command>,
    pub(super) replies: mpsc::Receiver<Reply>,
    /// Each request of the host gets a copy, through which its answer comes back.
    pub(super) reply_to: mpsc::Sender<Reply>,
    /// Requests of the host's that have no answer yet.
    pub(super) unanswered: usize,
    pub(super) reply_limit: ByteLimit,
    /// Closed at the end, so that callers that wait for them get an error.
    pub(super) request_limits: [ByteLimit; 2],
    pub(super) state: watch::Sender<State>,
    pub(super) stop: CancellationToken,
    pub(super) activity: Activity,
    /// How many connections there have been.
    pub(super) connections: u64,
    /// The last id that was given to a request.
    pub(super) last_id: u64,
}

/// How a connection ended.
#[derive(Debug)]
pub(super) struct ConnectionEnd {
    pub(super) next: NextAttempt,
    /// How long it was live; `None` if it never was.
    pub(super) lived: Option<Duration>,
    /// Why it never was live, if so.
    pub(super) failure: Option<String>,
}

/// What follows the end of a connection.
#[derive(Debug)]
pub(super) enum NextAttempt {
    /// The next attempt, after a wait.
    Wait,
    /// The next attempt at once: the host answered, and wants another handshake on another link.
    AtOnce,
    /// No other connection.
    Never(Reason),
}

impl<C: Connect> Task<C> {
    /// Runs until the client is closed, and then until the last event is taken.
    pub(super) async fn run(mut self) {
        let reason = self.attempts().await;
        self.core.finish(reason).await;
    }

    async fn attempts(&mut self) -> Reason {
        let config = &self.core.config;
        let seed = config.seed.unwrap_or_else(|| RandomState::new().hash_one("backoff"));
        let mut backoff = Backoff::new(config.retry_base, config.retry_cap, seed);
        let (steady_after, open_in) = (config.steady_after, config.connect_timeout);
        let (mut attempt, mut after) = (1_u32, Duration::ZERO);
        let mut failure = None;
        loop {
            self.core.say(State::Connecting { attempt, after, failure: failure.take() });
            let link = tokio::select! {
                link = open(&mut self.connect, after, open_in) => link,
                never = self.core.session.feed.keep_flushing() => match never {},
                () = self.core.stop.cancelled() => return Reason::Asked,
            };
            attempt = attempt.saturating_add(1);
            match link {
                Ok(link) => {
                    let ended = self.connection(link).await;
                    if ended.lived.is_some_and(|lived| lived >= steady_after) {
                        backoff.reset();
                        attempt = 1;
                    }
                    failure = ended.failure;
                    after = match ended.next {
                        NextAttempt::Wait => backoff.draw(),
                        NextAttempt::AtOnce => Duration::ZERO,
                        NextAttempt::Never(reason) => return reason,
                    };
                }
                Err(ConnectError::Never(error)) => return Reason::Refused(error.to_string()),
                Err(ConnectError::Again(error)) => {
                    info!("no connection: {error}");
                    failure = Some(error.to_string());
                    after = backoff.draw();
                }
            }
        }
    }

    async fn connection(&mut self, link: C::Link) -> ConnectionEnd {
        match LiveConnection::new(link, &mut self.core) {
            Ok(live) => live.run().await,
            Err(error) => {
                warn!("the system gave no random bytes: {error}");
                let failure = Some(format!("the system gave no random bytes: {error}"));
                ConnectionEnd { next: NextAttempt::Wait, lived: None, failure }
            }
        }
    }
}

impl Core {
    pub(super) fn say(&self, state: State) {
        self.state.send_replace(state);
    }

    /// Ends the client: callers get errors, and the application is told which actions are lost.
    async fn finish(mut self, reason: Reason) {
        info!("closed: {reason}");
        self.commands.close();
        // Also takes commands of callers that have already reserved a place in the queue.
        let mut pending = std::mem::take(&mut self.pending);
        while let Some(command) = self.commands.recv().await {
            pending.push_back(command);
        }
        for command in pending {
            if let Command::Dispatch(dispatched) = command {
                self.session.unconfirmed.push(dispatched);
            }
        }
        let lost = self.session.unconfirmed.close();
        self.session.lose(lost);
        self.reply_limit.close();
        self.request_limits.iter().for_each(ByteLimit::close);
        self.say(State::Closed(reason));
        let Self { mut session, .. } = self;
        session.feed.flush().await;
    }
}

/// Waits, then opens a link, with a timeout.
async fn open<C: Connect>(connect: &mut C, after: Duration, limit: Duration) -> Result<C::Link, ConnectError> {
    sleep(after).await;
    timeout(limit, connect.connect())
        .await
        .unwrap_or_else(|_| Err(ConnectError::again("the link took too long to open")))
}
