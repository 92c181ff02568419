//! Reads the messages that a watcher receives, without building a JSON tree.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A message from the host.
pub(crate) enum Received<'a> {
    /// The envelope of an action.
    Action(&'a [u8]),
    /// A notification without a place in the order.
    Notice,
    Answer(u64, Answer<'a>),
}

pub(crate) enum Answer<'a> {
    Result(&'a str),
    Error,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    id: Option<u64>,
    method: Option<&'a str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
}

/// The result of `initialize`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Welcome {
    pub(crate) server_seq: u64,
}

/// The result of `reconnect`.
#[derive(Deserialize)]
pub(crate) struct Resumed<'a> {
    #[serde(borrow, default)]
    pub(crate) actions: Vec<&'a RawValue>,
    pub(crate) snapshots: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    pub(crate) missing: Vec<String>,
}

/// The result of `subscribe`.
#[derive(Deserialize)]
pub(crate) struct SnapshotOf<'a> {
    #[serde(borrow)]
    pub(crate) snapshot: &'a RawValue,
}

impl<'a> Received<'a> {
    pub(crate) fn read(text: &'a [u8]) -> Self {
        let Envelope { id, method, params, result } = serde_json::from_slice(text).unwrap();
        match (id, method, params) {
            (_, Some("action"), Some(params)) => Self::Action(params.get().as_bytes()),
            (Some(id), None, _) => {
                Self::Answer(id, result.map_or(Answer::Error, |result| Answer::Result(result.get())))
            }
            _ => Self::Notice,
        }
    }

    /// The channel and the seq of an action.
    pub(crate) fn place(envelope: &str) -> (String, u64) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Place {
            channel: String,
            server_seq: u64,
        }
        let Place { channel, server_seq } = serde_json::from_str(envelope).unwrap();
        (channel, server_seq)
    }
}
