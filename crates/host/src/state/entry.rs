//! The bodies of entries: written here, and parsed for the reducers. [`EntryKind`] lists their forms.
//!
//! AHP has no action that makes or ends a channel, so the first entry of a channel is its initial state. Nobody is subscribed
//! to a channel before it exists. If a channel begins anew (the root does, when a host starts with another configuration),
//! its clients are closed and reconnect to a snapshot.

use std::borrow::Cow;
use std::sync::Arc;

use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::notifications::{SessionAddedParams, SessionRemovedParams, SessionSummaryChangedParams};
use ahp_types::state::SnapshotState;
use breakbulk_lifecycle::projection;
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::kind::ChannelKind;
use crate::exact;
use crate::log::{Entry, EntryKind};

/// The body of an action.
///
/// # Errors
/// When the action has no JSON; those of `ahp-types` all have.
pub fn action(channel: &str, action: &StateAction, origin: Option<&ActionOrigin>) -> serde_json::Result<Bytes> {
    #[derive(Serialize)]
    struct Body<'a> {
        channel: &'a str,
        action: &'a StateAction,
        #[serde(skip_serializing_if = "Option::is_none")]
        origin: Option<&'a ActionOrigin>,
    }
    exact::to_vec(&Body { channel, action, origin }).map(Into::into)
}

/// The body of a channel's first entry.
///
/// # Errors
/// When the state has no JSON; those of `ahp-types` all have.
pub fn initial(channel: &str, state: &SnapshotState) -> serde_json::Result<Bytes> {
    #[derive(Serialize)]
    struct Body<'a> {
        channel: &'a str,
        initial: Initial<&'a SnapshotState>,
    }
    exact::to_vec(&Body { channel, initial: Initial { kind: ChannelKind::of(state), state } }).map(Into::into)
}

/// The body of a channel's last entry.
///
/// # Errors
/// Never: a name has a JSON.
pub fn closed(channel: &str) -> serde_json::Result<Bytes> {
    serde_json::to_vec(&serde_json::json!({ "channel": channel, "closed": true })).map(Into::into)
}

/// The body of an entry on a chat: from now on a side chat knows the chat up to this turn; without a turn, nothing of it.
///
/// # Errors
/// Never: names have a JSON.
pub fn side_chat(channel: &str, side: &str, turn: Option<&str>) -> serde_json::Result<Bytes> {
    #[derive(Serialize)]
    struct Body<'a> {
        channel: &'a str,
        beside: SideChat<&'a str>,
    }
    serde_json::to_vec(&Body { channel, beside: SideChat { chat: side, turn } }).map(Into::into)
}

/// The body of a notification of the catalogue.
///
/// # Errors
/// When the notification has no JSON; those of `ahp-types` all have.
pub fn catalogue(notice: &CatalogueNotification) -> serde_json::Result<Bytes> {
    #[derive(Serialize)]
    struct Body<'a, T> {
        method: &'a str,
        params: &'a T,
    }
    let text = match notice {
        CatalogueNotification::Added(params) => serde_json::to_vec(&Body { method: ADDED, params }),
        CatalogueNotification::Removed(params) => serde_json::to_vec(&Body { method: REMOVED, params }),
        CatalogueNotification::Changed(params) => serde_json::to_vec(&Body { method: CHANGED, params }),
    };
    text.map(Into::into)
}

const ADDED: &str = "root/sessionAdded";
const REMOVED: &str = "root/sessionRemoved";
const CHANGED: &str = "root/sessionSummaryChanged";

/// A change of the catalogue of sessions.
#[derive(Debug, Clone, PartialEq)]
pub enum CatalogueNotification {
    /// A session was added.
    Added(Box<SessionAddedParams>),
    /// A session was removed.
    Removed(SessionRemovedParams),
    /// The summary of a session has changed.
    Changed(Box<SessionSummaryChangedParams>),
}

/// A state with the kind of its channel.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Initial<T> {
    pub(super) kind: ChannelKind,
    pub(super) state: T,
}

/// A side chat, and the last turn that it knows.
#[derive(Debug, Serialize, Deserialize)]
struct SideChat<T> {
    chat: T,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    turn: Option<T>,
}

/// An entry, parsed for the reducers.
#[derive(Debug)]
pub(super) enum ParsedEntry {
    Initial(SnapshotState),
    Closed,
    SideChat {
        chat: String,
        turn: Option<String>,
    },
    Action(Box<StateAction>),
    Notification(CatalogueNotification),
    /// Something that changes no state: a rejected action, or what a later version writes.
    NoEffect,
}

impl ParsedEntry {
    /// Parses the body of an entry of this kind.
    pub(super) fn read(kind: EntryKind, body: &[u8]) -> serde_json::Result<Self> {
        Ok(match kind {
            EntryKind::Action => {
                let ActionBody { action, rejection_reason } = serde_json::from_slice(body)?;
                if rejection_reason.is_some() {
                    return Ok(Self::NoEffect);
                }
                Self::Action(serde_json::from_str(action.get())?)
            }
            EntryKind::Initial => {
                let InitialBody { initial } = serde_json::from_slice(body)?;
                Self::Initial(initial.kind.decode(initial.state.get())?)
            }
            EntryKind::Closed => Self::Closed,
            EntryKind::SideChat => {
                let SideChatBody { beside: SideChat { chat, turn } } = serde_json::from_slice(body)?;
                Self::SideChat { chat, turn }
            }
            EntryKind::Notification => {
                let NotificationBody { method, params } = serde_json::from_slice(body)?;
                let params = params.get();
                match method.as_ref() {
                    ADDED => Self::Notification(CatalogueNotification::Added(serde_json::from_str(params)?)),
                    REMOVED => Self::Notification(CatalogueNotification::Removed(serde_json::from_str(params)?)),
                    CHANGED => Self::Notification(CatalogueNotification::Changed(serde_json::from_str(params)?)),
                    _ => Self::NoEffect,
                }
            }
            EntryKind::Unknown => Self::NoEffect,
        })
    }
}

/// An entry as projections take it; `None` if it changes no state, or cannot be read.
#[must_use]
pub fn projected(entry: &Entry) -> Option<projection::Entry> {
    let change = match ParsedEntry::read(entry.kind, &entry.body) {
        Ok(ParsedEntry::Initial(state)) => projection::Change::Initial(state),
        Ok(ParsedEntry::Closed) => projection::Change::Closed,
        Ok(ParsedEntry::Action(action)) => projection::Change::Action(action),
        _ => return None,
    };
    Some(projection::Entry { seq: entry.seq, at_ms: entry.at_ms, channel: Arc::clone(&entry.channel), change })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActionBody<'a> {
    #[serde(borrow)]
    action: &'a RawValue,
    rejection_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct InitialBody<'a> {
    #[serde(borrow)]
    initial: Initial<&'a RawValue>,
}

#[derive(Deserialize)]
struct SideChatBody {
    beside: SideChat<String>,
}

#[derive(Deserialize)]
struct NotificationBody<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: &'a RawValue,
}
