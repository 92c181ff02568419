//! Agents behind chats: what clients put into the log reaches them, and what they say is put there too.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod beside;
#[path = "../agent/clock.rs"]
mod clock;
mod failing;
mod lists;
mod memory;
mod puppet;
mod restart;
mod tools;
mod turns;
mod workers;
mod world;
