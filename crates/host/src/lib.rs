//! An agent host whose log outlives everything: every action is ordered and kept before any client sees it.
//!
//! [`log`] is the ground that the rest stands on: one durable order over all channels, from which connections pull.

pub mod log;
