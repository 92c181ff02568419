//! The agent runner: logged actions of clients reach agents, and what agents say is logged.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod acp;
mod agent_memory;
mod claude;
#[path = "../agent/clock.rs"]
mod clock;
#[path = "../../examples/own_agent.rs"]
#[expect(dead_code, reason = "the tests start a host of their own")]
mod example;
mod failures;
mod own_agent;
mod recordings;
mod restart;
mod scripted_agent;
mod side_chats;
mod summaries;
mod test_host;
mod tools;
mod turns;
mod workers;
