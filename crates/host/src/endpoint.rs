//! Where clients are served: one AHP connection each, from its handshake to a close with a name.
//!
//! ```text
//!   link ─▶ Threshold ─▶ Driver(ahp machine) ─▶ Connection ─▶ Methods (calls, actions)      Clients: who is here
//!                                  ▲                 │
//!                                  └── messages ◀────┴── Feed ◀── Tail ◀── log              Views: snapshots
//! ```
//!
//! A connection **pulls**: it holds a position in the log, and reads on only while the machine has little left to send. So
//! a slow client costs what [`EndpointConfig::max_unsent_bytes`] allows and no more, however far it falls behind; far enough,
//! it is closed and comes back to a snapshot. What it sends of an entry are the log's own bytes.
//!
//! # Order
//!
//! A client is told of entries in the order of the log, and of each channel from the snapshot on that it got. While a
//! snapshot is being made for a `subscribe`, nothing is pulled: the snapshot knows everything up to the position at least,
//! and what it knows beyond is passed over when it comes.
//!
//! # What a client cannot take
//!
//! What is large in an action or a snapshot goes to it by reference, and to nobody else ([`ReducedSnapshot`], and the state's
//! [`content`](crate::state::State::content)). An action that is too long even so ends the connection by name; the client comes
//! back to a snapshot with fewer turns, or finds the channel among the missing.
//!
//! # Actions that are not taken
//!
//! A refused action goes back to who dispatched it, and to nobody else: an `action` with its `origin` and a
//! `rejectionReason`. It is in no log, so its `serverSeq` is that of what the client has got so far.

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
mod memory;
mod message_limit;
mod methods;
mod receive;
mod resume;
mod send;
mod shared_actions;
mod shared_encodings;
mod shared_snapshots;
mod snapshot_source;
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
pub use self::memory::{AnswerMemory, MemoryConfig, NoMemory};
use self::memory::{OutgoingMemory, WorkLimit};
use self::message_limit::LastReducedAction;
pub use self::methods::{
    ClientInfo, DispatchError, Dispatched, Methods, RawParams, RejectedAction, Reply, not_offered,
};
use self::shared_actions::SharedActions;
use self::shared_encodings::SharedEncodings;
use self::shared_snapshots::SharedSnapshots;
pub use self::snapshot_source::{
    ChannelSnapshot, ReducedSnapshot, ReferenceStats, SnapshotError, SnapshotSource, View,
};
pub use self::traffic::{Direction, Traffic};
use crate::log::Log;

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
    /// Of frames that are arriving.
    frames: Budget,
    work: WorkLimit,
    outgoing: OutgoingMemory,
    snapshots: SharedSnapshots,
    actions: SharedActions,
    /// What clients take, beyond the connection on which they said so.
    negotiated: Negotiated,
    clients: Clients,
    counts: Counters,
    traffic: Arc<Traffic>,
    last_reduced: LastReducedAction,
    shared_encodings: SharedEncodings,
    /// For connections on which nobody has introduced themselves.
    log_limit: LogLimit,
    stop: watch::Sender<bool>,
}

impl Endpoint {
    /// An endpoint that serves what is in `log`. What its connections hold is charged to `budget`.
    #[must_use]
    pub fn new(
        log: Arc<dyn Log>,
        snapshot_source: Arc<dyn SnapshotSource>,
        methods: Arc<dyn Methods>,
        config: EndpointConfig,
        budget: Budget,
    ) -> Self {
        let (negotiated, clients, counts) = (Negotiated::default(), Clients::default(), Counters::default());
        let (work, outgoing) = (WorkLimit::new(&config.memory), OutgoingMemory::new(&config.memory));
        let frames = Budget::new(BudgetConfig {
            process_bytes: config.memory.frame_bytes.max(config.limits.max_frame_bytes),
            principal_bytes: config.memory.frame_bytes.max(config.limits.max_frame_bytes),
            floor_bytes: config.memory.floor_bytes,
        });
        let (traffic, last_reduced, stop) = (Arc::default(), LastReducedAction::default(), watch::Sender::new(false));
        Self(Arc::new(EndpointInner {
            log,
            snapshot_source,
            methods,
            config,
            budget,
            frames,
            work,
            outgoing,
            snapshots: SharedSnapshots::default(),
            actions: SharedActions::default(),
            negotiated,
            clients,
            counts,
            traffic,
            last_reduced,
            shared_encodings: SharedEncodings::default(),
            log_limit: LogLimit::default(),
            stop,
        }))
    }

    /// Serves a client until its connection ends, and says how. The principal is whoever the door let in: their links
    /// share a quota, and two of them with one client id are the same client. Who has none may hold little, and send no
    /// frame that is longer than a segment. Dropping the future cuts the link.
    pub async fn serve(&self, link: impl Link + 'static, principal: Option<Arc<str>>) -> EndReason {
        match Connection::new(Arc::clone(&self.0), Box::new(link), principal) {
            // A future has room for what it is given and for what it makes of that: each would be a connection.
            Ok(connection) => Box::new(connection).run().await,
            Err(cause) => {
                error!("no connection without random bytes: {cause}");
                EndReason::Internal
            }
        }
    }

    /// Tells a client to come again later, because there are too many, and says how that ended.
    pub async fn turn_away(&self, link: impl Link + 'static) -> EndReason {
        match Connection::new(Arc::clone(&self.0), Box::new(link), None) {
            Ok(mut connection) => {
                connection.end(EndReason::Full);
                Box::new(connection).run().await
            }
            Err(_) => EndReason::Internal,
        }
    }

    /// Who is connected.
    #[must_use]
    pub fn clients(&self) -> &Clients {
        &self.0.clients
    }

    /// How often each named thing has happened: how connections ended, what was refused, how clients resumed.
    #[must_use]
    pub fn counts(&self) -> &Counters {
        &self.0.counts
    }

    /// What passes through all connections, and what waits on them.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.0.traffic
    }

    /// What connections hold is charged to this.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Bytes of what is on its way out, floors counted.
    #[must_use]
    pub fn outgoing_bytes(&self) -> u64 {
        self.0.outgoing.held()
    }

    /// Closes all connections, those too that are yet to come: come again later.
    pub fn stop(&self) {
        self.0.stop.send_replace(true);
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("clients", &self.0.clients.len()).finish_non_exhaustive()
    }
}
