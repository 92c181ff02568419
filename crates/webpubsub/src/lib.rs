//! Azure Web PubSub for Breakbulk: a link through the service, and a relay that speaks its protocol.
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may fail by panicking"))]

mod connection_string;
pub mod link;
pub mod relay;
mod token;
mod wire;

pub use connection_string::{AccessKey, ConnectionString, ConnectionStringError, Endpoint};
pub use token::{Claims, TokenError, unix_time};
pub use wire::{RELIABLE, SIMPLE};
