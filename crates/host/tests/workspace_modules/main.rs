//! Terminals, changesets and customizations, with real programs and directories.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod changes;
mod customize;
mod hostile;
mod sink;
mod terminal;
