//! Agents: the scripts of the demo agent, and the translation of events into actions.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod cancel;
mod clock;
mod commands;
#[path = "../../../lifecycle/tests/generated_events/mod.rs"]
mod generated_events;
mod merge;
#[path = "../../../lifecycle/tests/v2/oracle.rs"]
mod oracle;
mod projection;
mod queue;
mod scripts;
mod test_agent;
mod translate;
#[expect(dead_code, reason = "shared with the tests of v2, which need more of it")]
#[path = "../../../lifecycle/tests/v2/world.rs"]
mod world;
