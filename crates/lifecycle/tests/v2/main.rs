//! Message protocol v2: its wire form, the projector that makes its events from the log, and the client's model.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod agent;
mod cuts;
mod edges;
#[path = "../generated_events/mod.rs"]
mod generated_events;
mod golden;
mod grammar;
mod model;
mod oracle;
mod properties;
mod transcripts;
mod wire;
mod world;
