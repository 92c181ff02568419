//! Agents: the scripts of the demo agent, and the translation of events into actions.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod cancel;
mod clock;
mod commands;
mod merge;
mod queue;
mod scripts;
mod test_agent;
mod translate;
