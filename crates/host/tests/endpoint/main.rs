//! The endpoint with real clients: raw ones that speak JSON, and the official one.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod client;
mod handshake;
mod invalid;
mod memory;
mod official;
mod properties;
mod real;
mod resume;
mod slow;
mod work;
mod world;
