//! A fleet: several nodes that can serve a host, one of which does.
//!
//! The log of the host is in NATS JetStream ([`JetStreamLog`](crate::log::jetstream::JetStreamLog)). Which node serves is decided by
//! a lease in a KV bucket there, next to the log:
//!
//! ```text
//!  node A ── renews ──▶ bucket ◀── looks ── nodes B, C
//!    │ owner                                 │ carry their clients to the address in the lease
//!    └─ appends ──▶ stream of the host ◀─────┘ whoever takes the lease over writes a fence here first
//! ```
//!
//! The lease decides who should serve. It is not what keeps two owners apart: that is the fence in the log, which refuses
//! whatever a former owner still appends. So nothing here depends on clocks that agree.

mod lease;
mod ownership;
mod presence;
mod servers;

pub use lease::{Lease, LeaseRecord, LeaseStep, NodeInfo, Standing, Tenure, WriteOutcome};
pub use ownership::{LeaseStore, OpenLogError, Ownership};
pub use presence::{HostStatus, NodeStatus, Presence, status};
pub use servers::{ConnectError, Nats, NatsAccess, NatsAddress, NatsAddressError};
