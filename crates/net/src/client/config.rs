//! How a client is set up.

use std::time::Duration;

use breakbulk_proto::{Budget, Limits};
use serde_json::{Map, Value};

/// How a client is set up. Begin with [`Config::new`], and change what should differ.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Who we are to the host. It must be fresh for each [`Client`](super::Client): by it and a running number a
    /// client tells its own actions from those of others.
    pub client_id: String,
    /// The protocol versions that we offer, the best first.
    pub versions: Vec<String>,
    /// What else the host is to hear of us in `initialize`: `clientInfo`, `locale`, `capabilities`.
    pub introduction: Map<String, Value>,
    /// The channels that are followed from the start.
    pub subscriptions: Vec<String>,
    /// What we take.
    pub limits: Limits,
    /// Where what we hold is accounted for.
    pub budget: Budget,
    /// The longest first wait before a connection is tried again. 250 ms.
    pub retry_base: Duration,
    /// The longest wait before a connection is tried again. 30 s.
    pub retry_cap: Duration,
    /// How long a connection must have been live for the waits to begin at their base again. 10 s: a host that takes
    /// us in and throws us out is not asked ever faster.
    pub steady_after: Duration,
    /// Draws the waits; `None` for waits that nobody can tell.
    pub seed: Option<u64>,
    /// How long a link may take to open, and the handshake to make some progress. 30 s.
    pub connect_timeout: Duration,
    /// How long a request may take, the wait for a connection included. 30 s. The time counts anew from each part of a long
    /// message that passes on the connection, either way: so a request of 30 MB over a slow link is not too late. In all it may
    /// take that long and twice the [group timeout](Limits::group_timeout).
    pub request_timeout: Duration,
    /// Whether dispatched actions that may not have arrived are sent again after a reconnect. They are; else they are
    /// reported as lost.
    pub resend: bool,
    /// Close codes after which it makes no sense to come back. 1008 (policy), 4401 and 4403.
    pub never: Vec<u16>,
    /// Bytes of requests that may wait to be sent, as many of answers to the host, and as many of actions that the host has
    /// not shown yet. More wait with their callers. 64 MiB.
    pub max_waiting_bytes: u32,
    /// Events that may wait to be taken before the link is slowed. 256.
    pub max_events: usize,
}

impl Config {
    /// The defaults, for a client of this id.
    #[must_use]
    pub fn new(client_id: impl Into<String>) -> Self {
        Self {
            client_id: client_id.into(),
            versions: ["1.0.0", "0.9.0"].map(str::to_owned).into(),
            introduction: Map::new(),
            subscriptions: Vec::new(),
            limits: Limits::default(),
            budget: Budget::default(),
            retry_base: Duration::from_millis(250),
            retry_cap: Duration::from_secs(30),
            steady_after: Duration::from_secs(10),
            seed: None,
            connect_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(30),
            resend: true,
            never: vec![1008, 4401, 4403],
            max_waiting_bytes: 64 << 20,
            max_events: 256,
        }
    }
}
