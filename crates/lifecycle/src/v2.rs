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
//!    takes the `seq` of an event as its `lastSeq` only when the event does not say `more`: so a `lastSeq` names a whole
//!    entry. A client that lost its connection inside an entry gets that entry again, and ignores the events that it knows.
//! 3. **A snapshot replaces.** `session_start` with `snapshot` is the first of the events that rebuild a client from
//!    nothing. All of them but the last say `more`, so the same rule holds: a client that was cut off in between asks again.
//!
//! # How a host uses it
//!
//! ```
//! use ahp_types::actions::StateAction;
//! use breakbulk_lifecycle::projection::{Change, Entry, Projection};
//! use breakbulk_lifecycle::v2::{Config, Model, Projector};
//! use serde_json::json;
//!
//! # fn main() -> Result<(), serde_json::Error> {
//! let mut projector = Projector::new(Config::new("s1", "ahp-session:/1", "ahp-chat:/1"));
//! let mut model = Model::new("s1"); // At the other end of a connection.
//! let actions = [
//!     json!({"type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00Z",
//!         "message": {"text": "Hi", "origin": {"kind": "user"}}}),
//!     json!({"type": "chat/responsePart", "turnId": "t", "part": {"kind": "markdown", "id": "m/0", "content": "Hello"}}),
//! ];
//! for (seq, action) in (1..).zip(actions) {
//!     let action: Box<StateAction> = serde_json::from_value(action)?;
//!     let mut events = Vec::new();
//!     projector.apply(Entry { seq, at_ms: 5, channel: "ahp-chat:/1".into(), change: Change::Action(action) }, &mut events);
//!     for event in &events {
//!         model.apply(event);
//!     }
//! }
//! assert_eq!(model.state().current.as_ref().map(|message| &*message.blocks[0].content), Some("Hello"));
//! assert_eq!(model.last_seq(), Some(2));
//! # Ok(()) }
//! ```
//!
//! 1. **A projector for each session that somebody watches**, shared by all who do. It begins at the last
//!    [boundary](Projector::is_boundary) of the main chat: [`Projector::rewind`] with the present state and the entries since,
//!    and all of these applied without being sent. Where the log does not reach back so far, [`Projector::resume`].
//! 2. **A client without a `lastSeq`** gets [`Projector::snapshot`](crate::projection::Projection::snapshot), made between two
//!    entries, and from then on what [`apply`](crate::projection::Projection::apply) gives. Where the history is long, the
//!    same in pieces: [`Projector::snapshot_head`].
//! 3. **A client with a `lastSeq`** for which [`Cursor::start`] says [`Start::Replay`] gets what a projector of its own makes:
//!    rewound to the last boundary up to `lastSeq`, all entries since applied, and only events after `lastSeq` sent. If it
//!    does not [agree](Projector::agrees) with the state in the end, nothing is sent but a snapshot.

mod cursor;
mod model;
mod projector;
pub mod wire;

pub use cursor::{Cursor, Kept, Start};
pub use model::{Author, Block, Message, MessageState, Model, Permission, Tool, ToolOutcome};
pub use projector::{Config, LongContent, Projector, SnapshotPieces, WaitingPermission, result_pieces};

/// How long a permission waits for an answer, in milliseconds: 120 s. Then it is denied.
pub const PERMISSION_TIMEOUT_MS: u64 = 120_000;
