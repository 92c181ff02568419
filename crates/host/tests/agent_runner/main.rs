//! The agent runner: logged actions of clients reach agents, and what agents say is logged.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod agent_memory;
#[path = "../agent/clock.rs"]
mod clock;
mod failures;
mod restart;
mod scripted_agent;
mod side_chats;
mod summaries;
mod test_host;
mod tools;
mod turns;
mod workers;
