//! An agent host whose log outlives everything: every action is ordered and kept before any client sees it.
//!
//! [`log`] is the ground that the rest stands on: one durable order over all channels, from which connections pull.
//! [`state`] follows it with the official reducers, and [`gate`] says what a client may add to it.
//! [`files`] reads, writes and watches what lies inside the roots, and nothing else.

pub mod act;
pub mod error;
pub mod files;
pub mod gate;
pub mod log;
pub mod state;
