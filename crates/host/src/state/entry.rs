//! What the body of an entry says, written and read.
//!
//! | Body | Says |
//! |---|---|
//! | `{"channel":…,"action":{…},"origin":{…}}` | an action; `origin` where a client dispatched it |
//! | `{"channel":…,"initial":{"kind":…,"state":{…}}}` | what a channel begins with |
//! | `{"channel":…,"closed":true}` | the channel is no more, until it begins anew |
//! | `{"channel":…,"beside":{"chat":…,"turn":…}}` | a side chat knows this chat up to that turn, as it is now; without `turn`, nothing |
//! | `{"method":"root/sessionAdded","params":{…}}` | a notification of the catalogue, on the root channel |
//!
//! AHP has no action that makes or ends a channel, so the first entry of one is its initial state. Connections pass it over:
//! nobody follows a channel before it exists, and a later one (the root's, when a host starts with another
//! configuration) is for those who come with a snapshot.

use std::borrow::Cow;

use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::notifications::{SessionAddedParams, SessionRemovedParams, SessionSummaryChangedParams};
use ahp_types::state::SnapshotState;
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::kind::ChannelKind;
use crate::exact;

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

/// The body of an entry on a chat of which a side chat knows everything up to a turn from now on; without one, nothing.
///
/// # Errors
/// Never: names have a JSON.
pub fn beside(channel: &str, side: &str, turn: Option<&str>) -> serde_json::Result<Bytes> {
    #[derive(Serialize)]
    struct Body<'a> {
        channel: &'a str,
        beside: Beside<&'a str>,
    }
    serde_json::to_vec(&Body { channel, beside: Beside { chat: side, turn } }).map(Into::into)
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
    /// There is a new one.
    Added(Box<SessionAddedParams>),
    /// One is gone.
    Removed(SessionRemovedParams),
    /// What is said of one has changed.
    Changed(Box<SessionSummaryChangedParams>),
}

/// A state with its kind.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Initial<T> {
    pub(super) kind: ChannelKind,
    pub(super) state: T,
}

/// A side chat, and the turn that it is about.
#[derive(Debug, Serialize, Deserialize)]
struct Beside<T> {
    chat: T,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    turn: Option<T>,
}

/// What a body says to a reducer.
#[derive(Debug)]
pub(super) enum Said {
    Initial(SnapshotState),
    Closed,
    Beside {
        chat: String,
        turn: Option<String>,
    },
    Action(Box<StateAction>),
    CatalogueNotification(CatalogueNotification),
    /// Something that changes no state: a refused action, or what a later version writes.
    Nothing,
}

impl Said {
    pub(super) fn read(body: &[u8]) -> serde_json::Result<Self> {
        let body: Body<'_> = serde_json::from_slice(body)?;
        if body.rejection_reason.is_some() {
            return Ok(Self::Nothing);
        }
        if let Some(action) = body.action {
            return serde_json::from_str(action.get()).map(Self::Action);
        }
        if let Some(initial) = body.initial {
            return initial.kind.decode(initial.state.get()).map(Self::Initial);
        }
        if body.closed == Some(true) {
            return Ok(Self::Closed);
        }
        if let Some(Beside { chat, turn }) = body.beside {
            return Ok(Self::Beside { chat, turn });
        }
        let (Some(method), Some(params)) = (body.method, body.params) else { return Ok(Self::Nothing) };
        Ok(match method.as_ref() {
            ADDED => Self::CatalogueNotification(CatalogueNotification::Added(serde_json::from_str(params.get())?)),
            REMOVED => Self::CatalogueNotification(CatalogueNotification::Removed(serde_json::from_str(params.get())?)),
            CHANGED => Self::CatalogueNotification(CatalogueNotification::Changed(serde_json::from_str(params.get())?)),
            _ => Self::Nothing,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(borrow)]
    action: Option<&'a RawValue>,
    rejection_reason: Option<IgnoredAny>,
    #[serde(borrow)]
    initial: Option<Initial<&'a RawValue>>,
    closed: Option<bool>,
    beside: Option<Beside<String>>,
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}
