//! MCP over Nostr relays, as ContextVM has it: signed events of kind 25910, plain or in gift wraps, over several relays at once.
//!
//! [`NostrConnector`] opens links to a server, and [`NostrAcceptor`] brings one link for each client of a server. What is too long for
//! an event travels as CEP-22 transfers, which the `cep22` dialect of [`breakbulk_proto`] makes. The parts:
//!
//! ```text
//!  machine ─ NostrLink (sign, seal, one peer) ─┐                 ┌─ RelayTask ─ WebSocket ─ relay
//!  machine ─ NostrLink ────────────────────────┼─ Pool ──────────┼─ RelayTask ─ WebSocket ─ relay
//!            ▲ Inbox (bounded)                 │ (each event     └─ …
//!            └── Router: by sender ────────────┘  once, checked)
//! ```
//!
//! A frame goes to all relays, and counts as taken when all that are connected have answered and one of them has taken it.
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may fail by panicking"))]

mod acceptor;
mod address;
mod announcement;
mod connector;
mod event;
mod inbox;
mod key_file;
mod link;
mod pool;
mod publication;
mod relay;
mod relay_info;
mod relay_message;

pub use acceptor::NostrAcceptor;
pub use address::{NostrAddress, NostrAddressError};
pub use connector::{NostrConnector, NostrError};
pub use key_file::KeyFileError;
