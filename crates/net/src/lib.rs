//! Agent messages of any size over links that cap them: the links, the driver that moves frames, a client and a gateway.
//!
//! [`breakbulk_proto`] has the protocol: a [`Machine`](breakbulk_proto::Machine) cuts messages into frames and puts them
//! together again, without IO. This crate adds sockets, pipes and time, on tokio. Everything stands on three parts: a [`Link`]
//! carries frames, a machine makes and reads them, and a [`Driver`] moves them between the two.
//!
//! | To | Use |
//! |---|---|
//! | be a client of an agent host that reconnects by itself, and loses nothing | [`Client`] |
//! | put segments in front of a program that knows none, or behind it | [`Gateway`] |
//! | let the official `ahp` or `rmcp` crate send messages of any size | `ahp::Segmented`, `rmcp::Segmented` (features `ahp` and `rmcp`) |
//! | connect to an address such as `wss://…?cap=900000`, `unix:PATH` or `exec:COMMAND` | [`Address`] and [`Dialer`] |
//! | accept WebSockets from clients with a token | [`Listener`], [`ListenConfig`] and [`AccessPolicy`] |
//! | write a peer of your own | [`Setup::machine`] and [`Driver`] on any [`Link`] |
//! | add a transport with a scheme of its own, such as a relay | [`external`] |
//! | encrypt a link from end to end | [`private`] |
//! | write a link of your own | the trait [`Link`]; [`link::Lines`] makes one of any stream of bytes |
//!
//! `examples/` has a program for each of the first three. This one is a peer of its own: both ends of a link that takes frames of
//! 64 KiB, and a message of a megabyte that passes it.
//!
//! ```
//! use breakbulk::{Dialect, Driver, Setup, link};
//! use breakbulk_proto::ahp::Role;
//! use breakbulk_proto::{Budget, Capacity, Event, Input, Limits, Message, Ticket};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), getrandom::Error> {
//! // Chunked stdio needs no handshake: each end knows what the other takes.
//! let setup = |role| Setup::new(Dialect::Stdio, role, Limits::default());
//! let (near, far) = link::pair(&Capacity::of(64 << 10), 8);
//! let mut sender = Driver::new(near, setup(Role::Client).machine(Budget::default().account(Some("sender")))?);
//! let mut receiver = Driver::new(far, setup(Role::Server).machine(Budget::default().account(Some("receiver")))?);
//!
//! let text = "x".repeat(1_000_000);
//! let message = Message::from(format!(r#"{{"jsonrpc":"2.0","method":"note","params":{{"text":"{text}"}}}}"#));
//! sender.handle(Input::send(Ticket(1), message.clone()));
//! // A driver works only while somebody polls it, so both are polled until the message is there.
//! let arrived = loop {
//!     tokio::select! {
//!         _ = sender.next() => {}
//!         event = receiver.next() => if let Some(Event::Message { message, .. }) = event { break message },
//!     }
//! };
//! assert_eq!(arrived, message);
//! # Ok(()) }
//! ```
//!
//! Every buffer is bounded: a slow reader slows its writer, and what arrives is charged to a
//! [`Budget`](breakbulk_proto::Budget). Everything that a peer causes is logged with `tracing`, without the peer's bytes.
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may fail by panicking"))]

mod activity;
pub mod address;
#[cfg(feature = "ahp")]
pub mod ahp;
mod backoff;
pub mod client;
mod deferred_drop;
pub mod dial;
mod dialect;
mod driver;
pub mod environment;
pub mod external;
pub mod gateway;
pub mod link;
pub mod listen;
mod log_limit;
mod memory;
mod preset;
pub mod private;
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
pub use dialect::{AnyMachine, Dialect, Feedback, Setup};
pub use driver::Driver;
pub use gateway::Gateway;
pub use link::{
    Acked, Arrival, BoxLink, FrameContent, HalfClose, Intake, Link, LinkError, LinkStatus, Moved, NextFrame,
    ReceiveMemory,
};
pub use listen::{Accepted, AccessPolicy, ListenConfig, ListenError, Listener, Token};
pub use log_limit::{LogLimit, LogPermit};
pub use preset::Preset;
pub use route::Route;

/// A length in memory as a count of bytes.
pub(crate) fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
