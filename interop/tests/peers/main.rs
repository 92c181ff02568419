//! The program between peers that nobody here wrote: clients and hosts as people run them, unmodified.
//!
//! `cargo xtask interop` installs the peers and runs these.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod access;
#[cfg(target_os = "linux")]
mod agents;
mod ahp;
mod authority;
mod close;
mod driver;
mod drops;
// The model host is the one that the machine itself is tested with.
#[expect(dead_code, reason = "those tests ask more of it")]
#[path = "../../../crates/proto/tests/official_ahp/host.rs"]
mod host;
mod limit;
mod mcp;
#[cfg(target_os = "linux")]
mod memory;
mod nostr;
mod peer;
mod program;
mod proxy;
mod relay;
mod rmcp;
mod serve;
mod server;
mod text;
mod tls;
mod web_pubsub;
mod world;

use std::time::Duration;

/// What happens within a time that is long even on a busy machine.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(90), future).await.expect("it happens in time")
}
