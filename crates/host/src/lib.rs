//! An agent host as a library. It serves clients of the Agent Host Protocol (AHP), runs agents for them, and keeps
//! everything in a durable log: an action is on disk before any client sees it, so a client that reconnects finds exactly
//! what it had seen.
//!
//! | To | Use |
//! |---|---|
//! | run a host | [`Host::start`] with a log, agents, a [`HostConfig`] and a memory budget; then [`Host::endpoint`] for each connection |
//! | add an agent of your own | the [`agent::Agent`] and [`agent::Conversation`] traits; `examples/own_agent.rs` is a small one |
//! | try it without an agent of your own | [`agent::demo::Demo`] |
//! | keep the log in a file | [`log::sqlite::SqliteLog`] |
//! | keep the log elsewhere, or in memory for a test | the [`log::Log`] trait, [`log::MemoryLog`] |
//! | run it on several nodes | [`log::jetstream::JetStreamLog`], and [`fleet`] for who owns the host |
//! | set limits and directories | [`HostConfig`] and the types in [`config`] |
//! | tell whether it works | [`Host::health`], [`Host::metrics`] |
//! | erase sessions from a log that no host uses | [`maintenance`] |
//!
//! # A host in a few lines
//!
//! It needs a log, agents, and a listener that admits clients:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use breakbulk::{AccessPolicy, ListenConfig, Listener, Token};
//! # use breakbulk_host::agent::{Agent, demo::Demo, merge_actions};
//! # use breakbulk_host::log::sqlite::{Options, SqliteLog};
//! # use breakbulk_host::{Host, HostConfig};
//! # use breakbulk_proto::Budget;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = Options::default();
//! options.merge = Some(Arc::new(merge_actions)); // deltas that wait for the disk are merged into one entry
//! let log = Arc::new(SqliteLog::open("data", options).await?);
//! let agents: Vec<Arc<dyn Agent>> = vec![Arc::new(Demo::default())]; // or your own
//! let host = Host::start(log, agents, HostConfig::new(["project"]), Budget::default()).await?;
//!
//! let token = Token::generate()?;
//! println!("ws://127.0.0.1:4140/?token={}", token.reveal());
//! let access = AccessPolicy::with_token(token);
//! let mut listener = Listener::bind(ListenConfig::new("127.0.0.1:4140".parse()?, access)).await?;
//! loop {
//!     let client = listener.accept().await;
//!     let endpoint = host.endpoint().clone();
//!     tokio::spawn(async move { endpoint.serve(client.link, client.principal).await });
//! }
//! # }
//! ```
//!
//! # How it works
//!
//! The [log](mod@log) holds one order of entries over all channels. The state follows the log with the official reducers.
//! Each connection pulls from the log at its own pace, so a slow client costs no memory. What a client dispatches is
//! checked against the state, appended to the log, and only then shown to anybody, also to the agent.

#![cfg_attr(
    not(feature = "test-support"),
    expect(unreachable_pub, reason = "`test_support` re-exports these items; with it, the lint checks all others")
)]

mod action_sink;
pub mod agent;
mod changes;
pub mod content;
mod customize;
pub mod endpoint;
mod error;
mod exact;
mod files;
pub mod fleet;
mod gate;
mod health;
mod host;
mod lock;
pub mod log;
mod long_work;
mod metrics;
mod mismatch;
mod percent;
mod process_group;
mod size;
mod state;
mod terminal;
#[cfg(feature = "test-support")]
#[doc(hidden)]
pub mod test_support;
pub mod v2;

pub use error::MethodError;
pub use files::{RootError, iso_8601};
pub use health::{HealthCheck, HostHealth};
pub use host::{Host, StartError, config, config::HostConfig, maintenance};
pub use state::StateError;
