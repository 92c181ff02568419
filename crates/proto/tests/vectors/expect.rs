//! What a case expects. What is not mentioned must not have happened, except where a field says that it may.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::step::MetaSpec;
use super::text::Text;

/// What must have happened.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Expect {
    /// Messages that reached the application, in this order.
    pub(super) messages: Vec<Text>,
    /// In place of `messages`: how many they are, where they are too many to write down.
    pub(super) message_count: Option<usize>,
    /// Frames that went to the link, in this order.
    pub(super) frames: Vec<Text>,
    /// In place of `frames`: what holds for the frames, where their text depends on a seed.
    pub(super) frames_like: Option<FramesLike>,
    /// Why the connection closed: name and code.
    pub(super) closed: Option<(String, u16)>,
    /// Messages of ours that failed.
    pub(super) failed: Vec<SendFailed>,
    /// Messages of the peer's that failed alone.
    pub(super) refused: Vec<ReceiveFailed>,
    /// Messages of the peer's that took too long: ordinal, and bytes that had come.
    pub(super) expired: Vec<(u64, u64)>,
    /// Lines for the log.
    pub(super) lines: Vec<Text>,
    /// Whether the machine asks not to read on.
    pub(super) stopped: bool,

    /// Any, unless mentioned: the sentence that the close reason is told in, with its sizes and limits.
    pub(super) because: Option<String>,
    /// Any, unless mentioned: the ordinals of the messages.
    pub(super) ordinals: Option<Vec<u64>>,
    /// Any, unless mentioned: what the link knows about the messages.
    pub(super) metas: Option<Vec<MetaSpec>>,
    /// Any, unless mentioned: what the link is told about the frames.
    pub(super) frame_metas: Option<Vec<MetaSpec>>,
    /// Any, unless mentioned: messages of ours that were handed over whole, by ticket.
    pub(super) sent: Option<Vec<u64>>,
    /// Any, unless mentioned: how far messages have come, one entry each time that it was told: `our 1: 300 of 900` for
    /// the message with ticket 1, `their 0: 300 of 900` for the one with ordinal 0.
    pub(super) progress: Option<Vec<String>>,
    /// Any, unless mentioned: all counters that are not zero. (Each reason above has one in any case.)
    pub(super) counters: Option<BTreeMap<String, u64>>,
    /// Any, unless mentioned: the first ordinal that is not settled.
    pub(super) settled: Option<u64>,
    /// Any, unless mentioned: where to resume; `null` is nowhere.
    #[serde(deserialize_with = "mentioned")]
    pub(super) cursor: Option<Option<u64>>,
    /// Any, unless mentioned: what the peer takes; `null` is no segments.
    #[serde(deserialize_with = "mentioned")]
    pub(super) peer: Option<Option<ChunkingSpec>>,
    /// Any, unless mentioned: when the next timeout is due, in milliseconds from now; `null` is never.
    #[serde(deserialize_with = "mentioned")]
    pub(super) timeout: Option<Option<u64>>,
    /// Any, unless mentioned: bytes set aside in the budget.
    pub(super) held: Option<u64>,
}

/// What holds for frames whose text depends on a seed. Whatever is not mentioned may be anything.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FramesLike {
    pub(super) count: Option<usize>,
    /// No frame is longer, and at least one is exactly as long.
    pub(super) longest: Option<usize>,
    /// No frame is longer.
    pub(super) at_most: Option<usize>,
    /// The messages that they carry, in the order in which they are complete.
    pub(super) messages: Option<Vec<Text>>,
    /// What each frame carries: see `wire::trace`.
    pub(super) trace: Option<Vec<String>>,
    /// What is somewhere in each frame.
    pub(super) contain: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SendFailed {
    pub(super) ticket: u64,
    pub(super) error: String,
    /// What the caller of a request sees.
    #[serde(default)]
    pub(super) reply: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceiveFailed {
    pub(super) ordinal: u64,
    pub(super) violation: String,
    /// What the caller of a request sees.
    #[serde(default)]
    pub(super) reply: Option<Text>,
}

/// What one side takes. Left-out fields are the RFC's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChunkingSpec {
    pub(super) frame: u64,
    pub(super) message: u64,
    #[serde(default = "default_groups")]
    pub(super) groups: u32,
    #[serde(default = "default_timeout")]
    pub(super) timeout: u64,
    #[serde(default)]
    pub(super) settled_cursor: bool,
}

fn default_groups() -> u32 {
    8
}

fn default_timeout() -> u64 {
    30_000
}

/// Tells a field that is `null` from one that is left out.
fn mentioned<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
