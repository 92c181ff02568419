//! Message protocol v2: a server that owns the lifecycle of messages, for clients that only draw.
//!
//! ```text
//!  log ─▶ Projector ─▶ wire::Event ─▶ (a connection) ─▶ wire::Event ─▶ Model ─▶ MessageState
//!                      wire::Command ◀─ (a connection) ◀─ wire::Command
//! ```
//!
//! [`wire`] is what travels, [`Projector`] makes events from the log, [`Model`] is a client's state. Three rules hold for
//! every sequence of events that a projector makes:
//!
//! 1. **Every block starts, then ends; every message starts, then ends once.** An end is deferred while a block of the
//!    message is open, and forced by the next message of the same speaker, by the end of the turn and by the end of the
//!    session. Only the end of a call's block may be told again: when somebody has changed the call's input.
//! 2. **`seq` is the log's.** All events of an entry have its seq, ordered by `sub`; all but the last say `more`. A client
//!    takes the `seq` of an event as its `lastSeq` only when the event does not say `more`: so it can only be cut off
//!    between two entries. A client that was cut off elsewhere gets the entry again and ignores what it knows.
//! 3. **A snapshot replaces.** `session_start` with `snapshot` is the first of the events that rebuild a client from
//!    nothing. They all have the seq of the snapshot, so the same rule holds: a client that was cut off in between asks
//!    again.

mod cursor;
mod model;
mod projector;
pub mod wire;

pub use cursor::{Cursor, Kept, Start};
pub use model::{Author, Block, Message, MessageState, Model, Permission, Tool, ToolOutcome};
pub use projector::{Config, Projector, Source};

/// How long a permission waits for an answer, in milliseconds: 120 s. Then it is denied.
pub const PERMISSION_MS: u64 = 120_000;
