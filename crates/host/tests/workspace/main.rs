//! The methods of the workspace: files, watches, terminals, changesets, customizations, and resources of clients.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod changes;
mod connected_clients;
mod files;
mod terminals;
mod test_host;
mod watches;
