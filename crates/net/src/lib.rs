//! Agent messages of any size over links that cap them: links, the driver that moves frames, and what stands on both.
//!
//! A [`Link`] carries frames; a [`Machine`](breakbulk_proto::Machine) makes and reads them; a [`Driver`] moves them
//! between the two.
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may fail by panicking"))]

mod activity;
pub mod address;
#[cfg(feature = "ahp")]
pub mod ahp;
pub mod backoff;
pub mod client;
mod deferred_drop;
pub mod dial;
pub mod dialect;
pub mod driver;
pub mod environment;
pub mod gateway;
pub mod link;
pub mod listen;
mod log_limit;
mod look;
mod memory;
pub mod preset;
#[cfg(any(feature = "ahp", feature = "rmcp"))]
mod pump;
#[cfg(feature = "rmcp")]
pub mod rmcp;
mod route;
pub mod tls;

pub use activity::Activity;
pub use address::{Address, AddressError, Transport};
pub use client::Client;
pub use dial::{DialError, Dialer};
pub use dialect::{AnyMachine, Dialect, Setup};
pub use driver::Driver;
pub use gateway::Gateway;
pub use link::{Arrival, BoxLink, HalfClose, Intake, Link, LinkError, LinkStatus, Moved, NextFrame, ReceiveMemory};
pub use listen::{Accepted, AccessPolicy, ListenConfig, ListenError, Listener, Token};
pub use log_limit::{LogLimit, LogPermit};
pub use preset::Preset;
pub use route::Route;

/// A length in memory as a count of bytes.
pub(crate) fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
