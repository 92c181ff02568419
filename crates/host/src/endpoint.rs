//! Serves clients: one AHP connection each, from its handshake to a close with a named reason.
//!
//! ```text
//!   link ─▶ HandshakeLink ─▶ Driver(ahp machine) ─▶ Connection ─▶ Methods (calls, actions)      Clients: who is connected
//!                                      ▲                 │
//!                                      └── messages ◀────┴── LogReader ◀── Tail ◀── log         SnapshotSource: snapshots
//! ```
//!
//! A connection **pulls**: it has a position in the log, and reads on only while the machine has little left to send. So a
//! slow client holds at most [`EndpointConfig::max_unsent_bytes`], however far behind it is. If it falls too far behind, the
//! endpoint closes the connection, and the client reconnects to a snapshot. The bytes of an entry are sent without a copy.
//!
//! # Order
//!
//! A client gets entries in the order of the log, and those of a channel from its snapshot on. While a snapshot is made for
//! a `subscribe`, the connection reads nothing from the log: the snapshot contains everything up to the connection's
//! position, and later entries that the snapshot contains too are skipped when they are read.
//!
//! # What a client cannot take
//!
//! A client that cannot take a whole action or snapshot gets the large content by reference (`state/reduced_snapshot.rs`,
//! `state/content.rs`); other clients get it whole. If an action is too long even so, the
//! endpoint closes the connection with a named reason, and the client reconnects to a snapshot with fewer turns, or finds
//! the channel in `missing`.
//!
//! # Rejected actions
//!
//! A rejected action goes back to the client that dispatched it, and to nobody else: an `action` with its `origin` and a
//! `rejectionReason`. It is not in the log, so its `serverSeq` is the last one that the client got.

mod action_list;
mod clients;
mod coalesce;
mod config;
mod connection;
mod end_reason;
mod handshake;
mod handshake_link;
mod job_results;
mod jobs;
mod log_reader;
pub(crate) mod memory;
mod message_limit;
pub(crate) mod methods;
mod receive;
mod resume;
mod send;
mod shared_actions;
mod shared_encodings;
mod shared_snapshots;
pub(crate) mod snapshot_source;
mod traffic;
mod wire;

use std::fmt;
use std::sync::Arc;

use breakbulk::{Link, LogLimit};
use breakbulk_proto::ahp::Negotiated;
use breakbulk_proto::{Budget, BudgetConfig};
use tokio::sync::watch;
use tracing::error;

pub use self::clients::{AskError, ClientHandle, Clients};
pub use self::config::{EndpointConfig, Welcome};
use self::connection::Connection;
pub use self::end_reason::{Counters, EndReason};
pub(crate) use self::memory::AnswerMemory;
pub use self::memory::MemoryConfig;
use self::memory::{OutgoingMemory, WorkLimit};
use self::message_limit::LastReducedAction;
pub(crate) use self::methods::{
    ClientInfo, DispatchError, Dispatched, Methods, RawParams, RejectedAction, Reply, not_offered,
};
use self::shared_actions::SharedActions;
use self::shared_encodings::SharedEncodings;
use self::shared_snapshots::SharedSnapshots;
use self::snapshot_source::SnapshotSource;
pub use self::traffic::{Direction, Traffic};
use crate::log::{Log, LogHealth};

/// Serves clients. Cloning shares it.
#[derive(Clone)]
pub struct Endpoint(Arc<EndpointInner>);

/// What all connections share.
pub(crate) struct EndpointInner {
    log: Arc<dyn Log>,
    snapshot_source: Arc<dyn SnapshotSource>,
    methods: Arc<dyn Methods>,
    config: EndpointConfig,
    budget: Budget,
    /// For frames that are arriving.
    frames: Budget,
    work: WorkLimit,
    outgoing: OutgoingMemory,
    snapshots: SharedSnapshots,
    actions: SharedActions,
    /// The limits that clients negotiated. They outlive the connection on which a client named them.
    negotiated: Negotiated,
    clients: Clients,
    counts: Counters,
    traffic: Arc<Traffic>,
    last_reduced: LastReducedAction,
    shared_encodings: SharedEncodings,
    /// Bounds the log lines of connections that end before their handshake.
    log_limit: LogLimit,
    stop: watch::Sender<bool>,
}

impl EndpointInner {
    /// Whether another host has taken over the log. What clients have sent may be in it or not: only the other host knows. So from then
    /// on nobody is told that anything failed; the connections are closed soon, and clients find out when they come back.
    fn log_is_fenced(&self) -> bool {
        *self.log.health().borrow() == LogHealth::Fenced
    }
}

impl Endpoint {
    /// An endpoint that serves the entries of `log`. Messages that are arriving are charged to `budget`.
    #[must_use]
    pub(crate) fn new(
        log: Arc<dyn Log>,
        snapshot_source: Arc<dyn SnapshotSource>,
        methods: Arc<dyn Methods>,
        config: EndpointConfig,
        budget: Budget,
    ) -> Self {
        let frames = Budget::new(BudgetConfig {
            process_bytes: config.memory.frame_bytes.max(config.limits.max_frame_bytes),
            principal_bytes: config.memory.frame_bytes.max(config.limits.max_frame_bytes),
            floor_bytes: config.memory.floor_bytes,
        });
        Self(Arc::new(EndpointInner {
            log,
            snapshot_source,
            methods,
            work: WorkLimit::new(&config.memory),
            outgoing: OutgoingMemory::new(&config.memory),
            config,
            budget,
            frames,
            snapshots: SharedSnapshots::default(),
            actions: SharedActions::default(),
            negotiated: Negotiated::default(),
            clients: Clients::default(),
            counts: Counters::default(),
            traffic: Arc::default(),
            last_reduced: LastReducedAction::default(),
            shared_encodings: SharedEncodings::default(),
            log_limit: LogLimit::default(),
            stop: watch::Sender::new(false),
        }))
    }

    /// Serves a client until its connection ends; returns why it ended. The principal is the one that the listener
    /// authenticated: its links share a quota, and two of them with one client id are the same client. A client without a
    /// principal may hold little, and may not send frames that are longer than a segment. Dropping the future cuts the link.
    pub async fn serve(&self, link: impl Link + 'static, principal: Option<Arc<str>>) -> EndReason {
        match Connection::new(Arc::clone(&self.0), Box::new(link), principal) {
            Ok(connection) => connection.run().await,
            Err(cause) => {
                error!("cannot serve a connection: the system gives no random bytes: {cause}");
                EndReason::Internal
            }
        }
    }

    /// Closes a link with the reason [`EndReason::Full`], because there are too many connections; returns why it ended.
    pub async fn turn_away(&self, link: impl Link + 'static) -> EndReason {
        match Connection::new(Arc::clone(&self.0), Box::new(link), None) {
            Ok(mut connection) => {
                connection.end(EndReason::Full);
                connection.run().await
            }
            Err(_) => EndReason::Internal,
        }
    }

    /// The clients that are connected.
    #[must_use]
    pub fn clients(&self) -> &Clients {
        &self.0.clients
    }

    /// How often each named event has happened: how connections ended, what was rejected, how clients resumed.
    #[must_use]
    pub fn counts(&self) -> &Counters {
        &self.0.counts
    }

    /// Counters and gauges over all connections.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.0.traffic
    }

    /// The budget for messages that are arriving.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// The memory for what is sent to one client of a principal, whatever protocol it speaks.
    pub(crate) fn answer_memory(&self, principal: Option<Arc<str>>) -> AnswerMemory {
        self.0.outgoing.account(principal)
    }

    pub(crate) fn shared_traffic(&self) -> &Arc<Traffic> {
        &self.0.traffic
    }

    /// Bytes of outgoing messages that connections hold, with their floors.
    #[must_use]
    pub fn outgoing_bytes(&self) -> u64 {
        self.0.outgoing.held()
    }

    /// Closes all connections, and each later one at once: clients may try again later.
    pub fn stop(&self) {
        self.0.stop.send_replace(true);
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("clients", &self.0.clients.len()).finish_non_exhaustive()
    }
}
