//! Agent messages of any size over links that cap them.
//!
//! Three wire dialects, each a small state machine without sockets, clock or runtime: [`ahp`] (segments of Agent Host
//! Protocol messages), [`cep22`] (oversized MCP messages over Nostr relays) and [`stdio`] (MCP through pipes); and
//! [`plain`], for the side of a gateway that knows none of them. All are a [`Machine`]: what happens goes in through
//! [`handle`](Machine::handle) with the time, frames and events come out of polls. This is the whole loop:
//!
//! ```
//! use std::time::Instant;
//! use breakbulk_proto::{ahp, cep22, stdio};
//! use breakbulk_proto::{Budget, Capacity, Event, Input, Limits, Machine, Message, Ticket, Transmit};
//!
//! /// Sends a message from one machine to the other, in frames of at most `cap` bytes.
//! fn carry(from: &mut impl Machine, to: &mut impl Machine, message: Message, cap: u64) -> Option<Message> {
//!     let now = Instant::now();
//!     from.handle(Input::Capacity(Capacity::of(cap)), now);
//!     from.handle(Input::send(Ticket(1), message), now);
//!     while let Some(transmit) = from.poll_transmit(now) {
//!         let Transmit::Frame { bytes, .. } = transmit else { return None };
//!         assert!(bytes.len() as u64 <= cap);
//!         to.handle(Input::frame(bytes.to_bytes()), now);
//!         while let Some(event) = to.poll_event() {
//!             if let Event::Message { message, .. } = event {
//!                 return Some(message);
//!             }
//!         }
//!     }
//!     None
//! }
//!
//! let budget = Budget::default();
//! let account = || budget.account(Some("someone"));
//! let limits = Limits::default();
//! let text = "break bulk ".repeat(30_000_000 / 11);
//! let params = r#"{"channel":"ahp-session:/1","_meta":{"progressToken":"t"},"text":""#;
//! let message = Message::from(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}{text}"}}}}"#));
//!
//! // Both sides know here what the other takes; otherwise the machines learn it from the handshake that passes.
//! let ahp = |role| {
//!     let mut config = ahp::Config::new(role, limits, [0; 32]);
//!     config.agreed = Some(ahp::Chunking::from(&limits));
//!     ahp::Connection::new(config, account())
//! };
//! let (mut client, mut server) = (ahp(ahp::Role::Client), ahp(ahp::Role::Server));
//! assert_eq!(carry(&mut client, &mut server, message.clone(), 65_536), Some(message.clone()));
//!
//! let cep22 = || cep22::Connection::new(cep22::Config { known_support: true, ..Default::default() }, account());
//! assert_eq!(carry(&mut cep22(), &mut cep22(), message.clone(), 65_536), Some(message.clone()));
//!
//! let stdio = || stdio::Connection::new(stdio::Config::new(limits, [0; 32]), account());
//! assert_eq!(carry(&mut stdio(), &mut stdio(), message.clone(), 65_536), Some(message));
//! ```
//!
//! A driver adds what this loop leaves out: both directions, [`Machine::poll_timeout`], [`Machine::wake_with`],
//! [`Machine::wants_frames`], and a link that takes frames when it can.
//!
//! Nothing a peer sends can cause a panic. What arrives in parts, and what is held back, is accounted for in a [`Budget`];
//! what was advertised fits what may be held, because [`Limits`] prove it. [`Machine`] says what else is held, and what
//! bounds it.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions))]
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may fail by panicking"))]

pub mod ahp;
mod assembly;
mod budget;
mod buffer;
pub mod cep22;
mod clock;
mod envelope;
mod error;
mod error_responses;
mod event_queue;
pub mod json;
mod limits;
mod line;
mod machine;
mod mcp_order;
mod message;
mod outgoing;
mod pace;
mod parked;
pub mod plain;
mod queue;
mod recent;
mod rpc;
mod salvage;
pub mod stdio;

pub use budget::{Account, Budget, BudgetConfig, Full, Grant, Schedule};
pub use envelope::{Envelope, Kind};
pub use error::{CloseReason, Counters, Differs, LineFault, Over, SendError, Violation};
pub use limits::{Limits, LimitsConfig, LimitsError};
pub use machine::{
    Capacity, Event, Input, Lane, Machine, Measure, Meta, Overhead, Progress, Receipt, Refusal, Subject, Tag, Ticket,
    Transmit,
};
pub use message::{Message, SharedMessage};
pub use rpc::MESSAGE_TOO_LARGE;
