//! How a client is set up.

use std::time::Duration;

use breakbulk_proto::{Budget, Limits};
use serde_json::{Map, Value};

/// How a client is set up. Begin with [`Config::new`], and change what should differ.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The id of the client. It must be new for each [`Client`](super::Client), because by it and a running number a client recognises
    /// its own actions.
    pub client_id: String,
    /// The protocol versions that we offer, the best first.
    pub versions: Vec<String>,
    /// What else `initialize` tells the host: `clientInfo`, `locale`, `capabilities`.
    pub introduction: Map<String, Value>,
    /// The channels that are followed from the start.
    pub subscriptions: Vec<String>,
    /// What we accept.
    pub limits: Limits,
    /// The budget to which messages that are arriving are charged.
    pub budget: Budget,
    /// The longest first wait before a connection is tried again. 250 ms.
    pub retry_base: Duration,
    /// The longest wait before a connection is tried again. 30 s.
    pub retry_cap: Duration,
    /// After a connection that was live for this long, the waits begin at their base again. 10 s, so that a host which accepts
    /// connections and closes them at once is not asked ever faster.
    pub steady_after: Duration,
    /// The seed of the random waits; `None` for a random seed.
    pub seed: Option<u64>,
    /// How long a link may take to open, and the handshake to make some progress. 30 s.
    pub connect_timeout: Duration,
    /// How long a request may take, the wait for a connection included. 30 s. The time counts anew from each part of a long
    /// message that passes on the connection, either way: so a request of 30 MB over a slow link is not too late. In all it may
    /// take that long and twice the [group timeout](Limits::group_timeout).
    pub request_timeout: Duration,
    /// Whether dispatched actions that may not have arrived are sent again after a reconnect. Yes; otherwise they are reported as lost.
    pub resend: bool,
    /// Close codes after which the client does not reconnect. 1008 (policy), 4401 and 4403.
    pub never: Vec<u16>,
    /// How many bytes of requests may wait to be sent, of answers to the host, and of actions that the host has not echoed: so many of
    /// each. Beyond that, callers wait. 64 MiB.
    pub max_waiting_bytes: u32,
    /// How many events may wait to be taken. When there are more, the link is not read. 256.
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
