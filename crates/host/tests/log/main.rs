//! The log keeps its laws: in quiet times, when it is trimmed and erased, when the disk fails, when the power does.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod basics;
mod common;
mod copy;
mod crash;
mod failing;
mod fast;
mod full;
mod jetstream;
mod large;
mod lives;
mod model;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../nats/mod.rs"]
mod nats;
mod pages;
mod upkeep;
