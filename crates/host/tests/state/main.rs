//! The state is what the official reducers make of the log, whichever way one comes to it.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod basics;
mod beside;
mod common;
mod equal;
mod failing;
mod gate;
mod reduced;
