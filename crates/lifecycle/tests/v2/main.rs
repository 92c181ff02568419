//! Message protocol v2: its wire form, the projector that makes its events from the log, and the client's model.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod agent;
mod cuts;
mod edges;
mod golden;
mod grammar;
mod model;
mod oracle;
mod properties;
#[path = "../said/mod.rs"]
mod said;
mod wire;
mod world;
