//! The whole host, as a client sees it.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod actions;
mod attendance;
mod chats;
#[path = "../endpoint/client.rs"]
#[expect(dead_code, reason = "shared with the tests of the endpoint")]
mod client;
mod depth;
mod references;
mod sessions;
mod upkeep;
mod world;
