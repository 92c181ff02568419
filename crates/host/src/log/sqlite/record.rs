//! The format of records: checksums, the seqs of a batch, the key of a row.

use rusqlite::types::ValueRef;

use super::super::Seq;

/// The checksum of an entry. It covers everything that readers get.
pub(super) fn entry_sum(seq: Seq, channel: i64, at_ms: u64, about: Option<&str>, body: &[u8]) -> u32 {
    let mut head = [0; 24];
    let numbers = [seq.to_le_bytes(), channel.to_le_bytes(), at_ms.to_le_bytes()];
    head.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
    let mut crc = crc32c::crc32c(&head);
    if let Some(about) = about {
        crc = crc32c::crc32c_append(crc, about.as_bytes());
    }
    crc32c::crc32c_append(crc, body)
}

/// The checksum of a row.
pub(super) fn row_sum(key: i64, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&key.to_le_bytes()), body)
}

/// The checksum of a snapshot.
pub(super) fn snapshot_sum(channel: i64, seq: Seq, version: &str, body: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(&channel.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &seq.to_le_bytes());
    crc = crc32c::crc32c_append(crc, version.as_bytes());
    crc32c::crc32c_append(crc, body)
}

/// The bytes of a column. A value that is neither text nor blob gives none, so its checksum is wrong.
pub(super) fn blob(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes,
        _ => &[],
    }
}

/// The key of a row.
pub(super) fn row_key(channel: i64, index: u64) -> i64 {
    (channel << 32).saturating_add_unsigned(index.min(1 << 32))
}

/// The index in a row's key.
pub(super) fn row_index(key: i64) -> u64 {
    u64::from_le_bytes(key.to_le_bytes()) & u64::from(u32::MAX)
}

/// The seqs of a batch: the first one, then the distance to each next one, with seven bits a byte.
pub(super) fn pack(seqs: &[Seq]) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::with_capacity(seqs.len() + 4), 0);
    for seq in seqs {
        // Seqs may descend, because merged deltas share an earlier one: the lowest bit is the sign.
        let mut left = if *seq >= before { (seq - before) << 1 } else { (before - seq) << 1 | 1 };
        while left >= 0x80 {
            bytes.push((left & 0x7F | 0x80) as u8);
            left >>= 7;
        }
        bytes.push(left as u8);
        before = *seq;
    }
    bytes
}

/// What [`pack`] packed.
pub(super) fn unpack(bytes: &[u8]) -> Vec<Seq> {
    let (mut seqs, mut before, mut value, mut shift) = (Vec::new(), 0_u64, 0_u64, 0);
    for byte in bytes {
        value |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
        shift += 7;
        if byte & 0x80 == 0 {
            let distance = value >> 1;
            before = if value & 1 == 0 { before.wrapping_add(distance) } else { before.wrapping_sub(distance) };
            seqs.push(before);
            (value, shift) = (0, 0);
        }
    }
    seqs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seqs_unpack_to_what_was_packed_in_any_order() {
        for seqs in [vec![], vec![1], vec![5, 6, 7], vec![1 << 52, 3, 3, 900, 1]] {
            assert_eq!(unpack(&pack(&seqs)), seqs);
        }
        assert_eq!(pack(&[7, 8, 9]).len(), 3);
    }

    #[test]
    fn a_row_s_key_sorts_by_channel_then_index_and_gives_the_index_back() {
        assert!(row_key(1, u64::from(u32::MAX)) < row_key(2, 0));
        assert_eq!(row_index(row_key(7, 12_345)), 12_345);
    }

    #[test]
    fn a_checksum_depends_on_everything_that_a_reader_is_told() {
        let sum = entry_sum(1, 2, 3, Some("s"), b"x");
        for other in [
            entry_sum(2, 2, 3, Some("s"), b"x"),
            entry_sum(1, 3, 3, Some("s"), b"x"),
            entry_sum(1, 2, 4, Some("s"), b"x"),
            entry_sum(1, 2, 3, None, b"x"),
            entry_sum(1, 2, 3, Some("s"), b"y"),
        ] {
            assert_ne!(sum, other);
        }
    }
}
