//! JSON without trees: an iterative, resumable check, the spans of a few paths, and scalars as text.
//!
//! A message of many megabytes is read once and never copied. [`Scanner`] says whether it is JSON, [`Utf8`] whether it
//! is text, [`Paths`] where the few values lie that we act on, and [`string`], [`number`] and [`escape_into`] read and write those.

mod check;
mod depth;
mod input;
mod key;
mod number;
mod paths;
mod special;
mod text;
mod utf8;
mod visit;

pub use check::{Fault, JsonError, Scanner};
pub(crate) use depth::{deepest, openings};
pub use number::{Number, number};
pub use paths::{Found, Path, Paths, Span, find};
pub use text::{Compactor, escape_into, escaped_len, string, unescape};
pub use utf8::Utf8;
pub use visit::{ValueKind, Visit};

#[cfg(test)]
mod tests;
