//! An agent host whose log outlives everything: every action is ordered and kept before any client sees it.
//!
//! [`log`] is the ground that the rest stands on: one durable order over all channels, from which connections pull.
//! [`state`] follows it with the official reducers, and [`gate`] says what a client may add to it.
//! [`files`] reads, writes and watches what lies inside the roots, and nothing else.
//! [`terminal`], [`changes`] and [`customize`] are rooms: each turns one thing of the outside world into actions.
//! [`agent`] is what an agent is to a host, with a demo of one.
//! [`endpoint`] serves clients: one AHP connection each, pulling from the log at its own pace.
//! [`Host`] puts the rooms together. [`health`] says whether it can do its work.
//!
//! A program with a host of its own needs a log, agents, and a door:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use breakbulk::{AccessPolicy, ListenConfig, Listener, Token};
//! # use breakbulk_host::agent::{Agent, demo::Demo, merge_actions};
//! # use breakbulk_host::log::{Options, SqliteLog};
//! # use breakbulk_host::{Host, HostConfig};
//! # use breakbulk_proto::Budget;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = Options::default();
//! options.merge = Some(Arc::new(merge_actions)); // deltas that wait for the disk become one
//! let log = Arc::new(SqliteLog::open("data", options).await?);
//! let agents: Vec<Arc<dyn Agent>> = vec![Arc::new(Demo::default())]; // or your own
//! let host = Host::start(log, agents, HostConfig::new(["project"]), Budget::default()).await?;
//!
//! let token = Token::generate()?;
//! println!("ws://127.0.0.1:4140/?token={}", token.reveal());
//! let door = AccessPolicy::with_token(token);
//! let mut listener = Listener::bind(ListenConfig::new("127.0.0.1:4140".parse()?, door)).await?;
//! loop {
//!     let client = listener.accept().await;
//!     let endpoint = host.endpoint().clone();
//!     tokio::spawn(async move { endpoint.serve(client.link, client.principal).await });
//! }
//! # }
//! ```

pub mod act;
pub mod agent;
pub mod changes;
pub mod customize;
pub mod endpoint;
pub mod error;
mod exact;
pub mod files;
pub mod gate;
pub mod health;
pub mod host;
mod lock;
pub mod log;
mod long_work;
mod metrics;
mod mismatch;
mod percent;
mod size;
pub mod state;
pub mod terminal;

pub use host::{Host, HostConfig, StartError};
