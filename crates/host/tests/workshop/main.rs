//! The workspace through the wire: files, watches, terminals, changesets, customizations, and what clients publish.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod changes;
mod files;
mod people;
mod terminals;
mod watches;
mod world;
