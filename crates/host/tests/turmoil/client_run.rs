//! One run of a client, from its start to its crash or to the end: what it received, and what it dispatched.

use std::collections::BTreeMap;

use crate::sim::follower::Follower;
use crate::sim::ledger::Digest;

/// One life of a client.
#[derive(Debug, Default)]
pub(crate) struct ClientRun {
    pub(crate) id: String,
    pub(crate) follower: Follower,
    /// What it dispatched, by number.
    pub(crate) dispatched: BTreeMap<u64, Dispatched>,
    /// Channels that it wants to follow.
    pub(crate) wanted: Vec<String>,
    /// It is told of some turns only, or of deltas as one.
    pub(crate) has_terms: bool,
    /// It crashed.
    pub(crate) is_over: bool,
}

/// An action that a client dispatched.
#[derive(Debug)]
pub(crate) struct Dispatched {
    pub(crate) text: Digest,
    pub(crate) fate: Fate,
}

/// What a client knows of an action of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing yet. A snapshot may have it.
    Open,
    /// It came back as its own.
    Shown,
    /// It came back as refused.
    Refused,
    /// It may have arrived or not.
    Unknown,
}
