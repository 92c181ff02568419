//! How much space each channel takes in a log.

use std::ops::RangeInclusive;

use super::{ChannelInfo, Seq};

/// How much space a channel takes in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The channel.
    pub info: ChannelInfo,
    /// Number of entries.
    pub entries: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// The first and the last of them; `None` if there are none.
    pub seqs: Option<RangeInclusive<Seq>>,
    /// When these were appended, in milliseconds since 1970.
    pub times: Option<RangeInclusive<u64>>,
    /// How many rows it has.
    pub rows: u64,
}
