//! The host as a client sees it: sessions, chats, actions, references, retention.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod actions;
mod active_clients;
mod chats;
#[path = "../endpoint/client.rs"]
#[expect(dead_code, reason = "shared with the tests of the endpoint")]
mod client;
mod depth;
mod maintenance;
mod references;
mod sessions;
mod test_host;

// The client that is shared with the tests of the endpoint looks for helpers there.
use self::test_host as world;
