//! What a message in the stream of entries says: in a header as JSON, so that it can be read without the bodies.
//!
//! The bodies of a run of entries are the payload, one after the other. A body too long for a message is in the other stream,
//! and named in the header. A message that decides something has no payload.

use std::sync::Arc;

use async_nats::HeaderMap;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::super::{BatchId, Gap, Seq};

/// The header with the [`Head`].
pub(super) const HEADER: &str = "Breakbulk";

/// What a message says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    /// On the first message of a group.
    #[serde(rename = "g", skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<Group>,
    #[serde(rename = "r", skip_serializing_if = "Option::is_none")]
    pub(super) run: Option<Run>,
    #[serde(rename = "d", skip_serializing_if = "Option::is_none")]
    pub(super) decision: Option<Decision>,
}

/// What was appended together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Group {
    /// Distinguishes it from what another writer may have published in its place.
    pub(super) id: u64,
    /// How many messages it has.
    #[serde(rename = "n")]
    pub(super) messages: u64,
    /// Its batches, with the seqs of their entries.
    #[serde(rename = "b", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) batches: Vec<AppendedBatch>,
    /// The channels that it opens.
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) opened: Vec<(Arc<str>, Option<Arc<str>>)>,
}

/// A batch and the seqs of its entries, as ranges.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AppendedBatch(pub(super) WireId, pub(super) Vec<(Seq, u64)>);

/// A batch id as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) struct WireId(pub(super) BatchId);

impl From<WireId> for String {
    fn from(id: WireId) -> Self {
        id.0.to_string()
    }
}

impl TryFrom<String> for WireId {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

/// Entries of one channel with consecutive seqs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    #[serde(rename = "c")]
    pub(super) channel: Arc<str>,
    #[serde(rename = "a", skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<Arc<str>>,
    /// The seq of the first entry.
    #[serde(rename = "s")]
    pub(super) first: Seq,
    #[serde(rename = "t")]
    pub(super) at_ms: u64,
    /// The length of each body.
    #[serde(rename = "l")]
    pub(super) lengths: Vec<u64>,
    /// The bodies that are not in the payload, by their index.
    #[serde(rename = "x", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) blobs: Vec<(usize, BlobRef)>,
    /// The checksum of all this and of the payload.
    #[serde(rename = "k")]
    pub(super) sum: u32,
}

/// Where a long body is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlobRef {
    /// The subjects of its parts begin so.
    pub(super) subject: Arc<str>,
    pub(super) length: u64,
    pub(super) sum: u32,
}

/// A message that decides something for all who follow the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Decision {
    /// A new owner writes from here on. What an earlier one publishes later is refused by the stream.
    Fence { epoch: u64, gap: Gap, node: String },
    /// A snapshot and rows of a channel are in the other stream.
    Save(SavedChannel),
    /// A channel has no entries up to `upto` any more; its messages before `before` are removed. `last` is its last entry.
    Trim { channel: Arc<str>, upto: Seq, ends: LogEnd, last: Seq, before: u64 },
    /// A session or a channel is gone, with its channels and all that is about it. `lasts` are the last entries of other channels,
    /// which may be among what is removed.
    Erase { name: Arc<str>, ends: LogEnd, lasts: Vec<(Arc<str>, Seq)>, gone: Vec<Arc<str>> },
}

/// How far the log was, for those who cannot see it from entries that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogEnd {
    pub(super) last: Seq,
    pub(super) at_ms: u64,
}

/// What was saved of a channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedChannel {
    pub(super) channel: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<SavedSnapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cut_rows: Option<u64>,
    /// The generation of the rows below: a part of their subjects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<Arc<str>>,
    /// Their indices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) rows: Vec<u64>,
}

/// A saved snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedSnapshot {
    pub(super) seq: Seq,
    pub(super) version: String,
    pub(super) blob: BlobRef,
}

impl Run {
    /// The seq of the last entry.
    pub(super) fn last(&self) -> Seq {
        self.first.saturating_add(self.lengths.len() as u64).saturating_sub(1)
    }

    /// The checksum that it should have with this payload.
    pub(super) fn checksum(&self, payload: &[u8]) -> u32 {
        let mut sum = crc32c::crc32c(self.channel.as_bytes());
        sum = crc32c::crc32c_append(sum, self.about.as_deref().unwrap_or_default().as_bytes());
        sum = crc32c::crc32c_append(sum, &self.first.to_le_bytes());
        sum = crc32c::crc32c_append(sum, &self.at_ms.to_le_bytes());
        for length in &self.lengths {
            sum = crc32c::crc32c_append(sum, &length.to_le_bytes());
        }
        for (_, blob) in &self.blobs {
            sum = crc32c::crc32c_append(sum, &blob.sum.to_le_bytes());
        }
        crc32c::crc32c_append(sum, payload)
    }
}

/// A message that is published.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) subject: String,
    pub(super) head: Head,
    pub(super) payload: Bytes,
}

impl Outgoing {
    /// Its headers.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, serde_json::to_string(&self.head).unwrap_or_default());
        headers
    }
}

/// A message that was read.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    /// Its sequence in the stream.
    pub(super) position: u64,
    /// `None` if it cannot be understood.
    pub(super) head: Option<Head>,
    pub(super) payload: Bytes,
}

impl Stored {
    pub(super) fn new(position: u64, headers: Option<&HeaderMap>, payload: Bytes) -> Self {
        let text = headers.and_then(|headers| headers.get(HEADER)).map(|value| value.as_str());
        Self { position, head: text.and_then(|text| serde_json::from_str(text).ok()), payload }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back_as_it_was_written_and_its_sum_covers_the_payload() {
        let mut run = Run {
            channel: "ahp-chat:/ü".into(),
            about: Some("ahp-session:/1".into()),
            first: 7,
            at_ms: 9,
            lengths: vec![1, 2],
            blobs: vec![(1, BlobRef { subject: "bb.a.d.x.y.1".into(), length: 2, sum: 3 })],
            sum: 0,
        };
        run.sum = run.checksum(b"x");
        let group = Group {
            id: u64::MAX,
            messages: 1,
            batches: vec![AppendedBatch(WireId(BatchId::new()), vec![(7, 2)])],
            opened: vec![("ahp-chat:/ü".into(), None)],
        };
        let head = Head { group: Some(group), run: Some(run.clone()), decision: None };
        let outgoing = Outgoing { subject: String::new(), head: head.clone(), payload: Bytes::from_static(b"x") };
        let stored = Stored::new(1, Some(&outgoing.headers()), outgoing.payload);
        assert_eq!(stored.head, Some(head));
        assert_ne!(run.checksum(b"y"), run.sum);
        assert_eq!(run.last(), 8);
    }
}
