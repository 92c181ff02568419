//! Lengths as `u64` and as `usize`, without a cast that could lose bits.

/// A length in memory as the protocol and the limits count it.
pub(crate) fn to_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// A limit as a length in memory. One that is larger than any memory becomes the largest length.
pub(crate) fn to_usize(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
