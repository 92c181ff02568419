//! Message protocol v2: a real host with the demo agent, and clients that keep the model of `breakbulk_lifecycle::v2`.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod broken;
#[path = "../agent/clock.rs"]
mod clock;
mod commands;
mod cuts;
mod events;
mod heartbeats;
mod history;
#[path = "../../../lifecycle/tests/v2/oracle.rs"]
mod oracle;
mod world;
