//! A host on loopback: a log, its state, an endpoint without methods, and a listener before it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use breakbulk::link::{Keepalive, WebSocketConfig};
use breakbulk::{AccessPolicy, ListenConfig, Listener};
use breakbulk_host::MethodError;
use breakbulk_host::log::BoxFuture;
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::test_support::endpoint::{
    ClientInfo, DispatchError, Dispatched, EndpointConfig, Methods, RawParams, RejectedAction, Reply, not_offered,
};
use breakbulk_host::test_support::new_endpoint;
use breakbulk_host::test_support::state::{State, StateConfig};
use breakbulk_proto::Budget;

/// After so much silence a client is asked whether it is there. Less than usual, so that a bench sees it happen.
const PING_AFTER: Duration = Duration::from_secs(5);

/// A host that takes clients.
pub(crate) struct Host {
    pub(crate) log: Arc<SqliteLog>,
    pub(crate) state: Arc<State>,
    pub(crate) address: SocketAddr,
}

impl Host {
    /// A host on the log in this directory.
    pub(crate) async fn open(dir: &Path) -> Self {
        let log = Arc::new(SqliteLog::open(dir, Options::default()).await.unwrap());
        let state = State::open(log.clone(), StateConfig::default()).await.unwrap();
        let (views, config) = (state.clone(), EndpointConfig::default());
        let endpoint = new_endpoint(log.clone(), views, Arc::new(Nothing), config, Budget::default());
        let mut listener = listener().await;
        let address = listener.local_address();
        tokio::spawn(async move {
            loop {
                let link = listener.accept().await.link;
                let endpoint = endpoint.clone();
                tokio::spawn(async move { endpoint.serve(link, Some("bench".into())).await });
            }
        });
        Self { log, state, address }
    }

    /// Saves what is not, and ends.
    pub(crate) async fn close(self) {
        self.state.close().await.unwrap();
        self.log.close().await;
    }
}

/// Takes WebSockets, from anybody.
pub(crate) async fn listener() -> Listener {
    let keepalive = Some(Keepalive { ping_after: PING_AFTER, dead_after: 12 * PING_AFTER });
    let mut config = ListenConfig::new(([127, 0, 0, 1], 0).into(), AccessPolicy::open());
    config.link = WebSocketConfig { keepalive, ..WebSocketConfig::default() };
    Listener::bind(config).await.unwrap()
}

/// What the endpoint does not do by itself, nobody does.
struct Nothing;

impl Methods for Nothing {
    fn call<'a>(
        &'a self,
        _: &'a ClientInfo,
        method: &'a str,
        _: RawParams,
    ) -> BoxFuture<'a, Result<Reply, MethodError>> {
        Box::pin(async move { Err(not_offered(method)) })
    }

    fn dispatch<'a>(&'a self, _: &'a ClientInfo, dispatched: Dispatched) -> BoxFuture<'a, Result<(), RejectedAction>> {
        let refusal = DispatchError::new("nothing is taken");
        Box::pin(async { Err(RejectedAction { error: refusal, action: Box::new(dispatched.action) }) })
    }
}
