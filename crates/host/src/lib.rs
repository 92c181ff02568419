//! An agent host whose log outlives everything: every action is ordered and kept before any client sees it.
//!
//! [`log`] is the ground that the rest stands on: one durable order over all channels, from which connections pull.
//! [`state`] follows it with the official reducers, and [`gate`] says what a client may add to it.
//! [`files`] reads, writes and watches what lies inside the roots, and nothing else.
//! [`terminal`], [`changes`] and [`customize`] are rooms: each turns one thing of the outside world into actions.
//! [`agent`] is what an agent is to a host, with a demo of one.
//! [`endpoint`] serves clients: one AHP connection each, pulling from the log at its own pace.
//! [`Host`] puts the rooms together. [`health`] says whether it can do its work.

pub mod act;
pub mod agent;
pub mod changes;
pub mod customize;
pub mod endpoint;
pub mod error;
pub mod files;
pub mod gate;
pub mod health;
pub mod host;
pub mod log;
mod metrics;
pub mod state;
pub mod terminal;

pub use host::{Host, HostConfig, StartError};
