//! Agents: the demo's scripts, and what becomes of events on a chat's channel.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod cancel;
mod clock;
mod commands;
mod harness;
mod merge;
mod queue;
mod scripts;
mod translate;
