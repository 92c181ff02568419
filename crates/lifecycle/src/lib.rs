//! What an agent does, as one small grammar.
//!
//! Agents speak in many forms, and none keeps order well: blocks stay open when their message ends, results come before the
//! message that asked for them is over, a process dies in the middle of a word. Whoever shows an agent's work should not
//! have to guess. So there is one vocabulary, [`Event`], and one [`Writer`] through which every agent speaks:
//!
//! ```text
//! turn     = TurnStarted item* TurnEnded
//! item     = message | call | Usage | Notice                 interleaved, as each allows
//! message  = MessageStarted block* MessageEnded              one at a time per speaker
//! block    = BlockStarted BlockDelta* BlockEnded             inside its message, several may be open
//! call     = its block, then [ask] ( ToolEnded(cancelled)
//!                                  | ToolStarted (ToolOutput | ask | subagent)* ToolEnded )
//! ask      = ToolAsked+ ToolAnswered                         unless that allows, only the end of the call may follow
//! subagent = AgentStarted item* AgentEnded                   its messages and calls, inside the call that began it
//! ```
//!
//! A call may outlive the message that made it, but not the turn. Ids are unique within a turn: of messages, of calls, and
//! of blocks within their message. [`Event::Resumable`] and [`Event::ModeChanged`] alone may come outside of a turn.
//!
//! The writer takes events in any order and gives [`Formed`] ones out: what is missing it adds (a delta of an unknown block
//! starts that block), what is open it closes (a turn that ends ends everything in it), an id that is used again gets a new
//! name, and what makes no sense it drops and counts. No text inside a turn is lost. What is well formed already passes
//! unchanged.
//!
//! ```
//! use breakbulk_lifecycle::{BlockType, Event, Outcome, Writer};
//!
//! let mut writer = Writer::new();
//! writer.write(Event::TurnStarted { turn: "t".into() });
//! writer.write(Event::text("m", "b", "Hello"));
//! writer.end(Outcome::Cancelled); // The agent's process has ended.
//! let events: Vec<Event> = std::iter::from_fn(|| writer.poll()).map(|formed| formed.into_event()).collect();
//! assert!(matches!(
//!     events.as_slice(),
//!     [
//!         Event::TurnStarted { .. },
//!         Event::MessageStarted { .. },
//!         Event::BlockStarted { .. },
//!         Event::BlockDelta { kind: BlockType::Text, .. },
//!         Event::BlockEnded { .. },
//!         Event::MessageEnded { .. },
//!         Event::TurnEnded { outcome: Outcome::Cancelled, .. },
//!     ]
//! ));
//! ```
//!
//! No runtime, no clock, no IO.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

pub mod acp;
mod check;
pub mod claude;
mod event;
mod id;
pub mod projection;
mod run;
mod tool;
pub mod v2;
mod writer;

pub use check::{Checker, Violation};
pub use event::{BlockKind, BlockType, Event, Failure, Outcome, Usage};
pub use id::Id;
pub use run::{ExitReason, Received};
pub use tool::{Answer, Ask, Call, Choice, Content, Ending, ToolResult};
pub use writer::{Formed, Writer};
