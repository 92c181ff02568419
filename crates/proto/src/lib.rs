//! Agent messages of any size over links that cap them.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions))]
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may fail by panicking"))]

pub mod ahp;
mod budget;
pub mod cep22;
mod buffer;
mod clock;
mod error;
pub mod json;
mod limits;
mod machine;
mod message;
mod outbox;
mod outgoing;
mod pace;
pub mod plain;
mod queue;
mod rpc;
pub mod stdio;

pub use budget::{Account, Budget, BudgetConfig, Full, Grant, Schedule};
pub use error::{CloseReason, Counters, SendError, Violation};
pub use limits::{Limits, LimitsConfig, LimitsError};
pub use machine::{
    Capacity, Event, Input, Lane, Machine, Measure, Meta, Overhead, Progress, Receipt, Refusal, Subject, Tag, Ticket,
    Transmit,
};
pub use message::Message;
pub use rpc::{Kind, MESSAGE_TOO_LARGE};
