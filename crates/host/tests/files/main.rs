//! Files for clients: each method, each refusal, and every way out of the roots that we could think of.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;
mod escape;
mod look;
mod read;
mod relocate;
mod watch;
mod write;
