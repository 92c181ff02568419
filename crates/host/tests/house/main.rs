//! The whole host, as a client sees it.

mod actions;
mod chats;
#[path = "../endpoint/client.rs"]
#[expect(dead_code, reason = "shared with the tests of the endpoint")]
mod client;
mod sessions;
mod upkeep;
mod world;
