//! Finds the bytes that a JSON string must escape: `"`, `\` and controls.

const ONES: u64 = u64::MAX / 0xff;
const HIGHS: u64 = ONES * 0x80;

/// How many bytes at the front of `bytes` stand for themselves in a JSON string.
#[inline(always)]
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    let mut len = 0_usize;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let marks = specials(u64::from_le_bytes(*word));
        if marks != 0 {
            return len.wrapping_add(usize::try_from(marks.trailing_zeros() / 8).unwrap_or(0));
        }
        len = len.wrapping_add(8);
    }
    len.wrapping_add(rest.iter().take_while(|&&byte| !is_special(byte)).count())
}

/// Copies the bytes that [`plain_len`] counts to the front of `out`, as far as they fit, and up to 7 bytes after them. That takes fewer
/// branches than to count first and copy then.
#[inline(always)]
pub(super) fn copy_plain(out: &mut [u8], bytes: &[u8]) -> usize {
    let mut len = 0_usize;
    for (word, place) in bytes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
        *place = *word;
        let marks = specials(u64::from_le_bytes(*word));
        if marks != 0 {
            return len.wrapping_add(usize::try_from(marks.trailing_zeros() / 8).unwrap_or(0));
        }
        len = len.wrapping_add(8);
    }
    let rest = bytes.iter().zip(out).skip(len).take_while(|(byte, _)| !is_special(**byte));
    len.wrapping_add(rest.map(|(byte, place)| *place = *byte).count())
}

/// Whether `byte` cannot stand for itself in a JSON string.
const fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Marks the high bit of each special byte; exact up to the lowest mark, which is all that callers look at.
#[inline(always)]
const fn specials(word: u64) -> u64 {
    // With bit 1 flipped, a quote is 0x20 and a space is 0x22: controls and quotes are then all below 0x21.
    let low = (word ^ (ONES * 0x02)).wrapping_sub(ONES * 0x21);
    let slash = (word ^ (ONES * 0x5c)).wrapping_sub(ONES);
    (low | slash) & !word & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_classed_alike_alone_and_in_a_word() {
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                for at in 0..7 {
                    let mut word = [b'a'; 8];
                    (word[at], word[at + 1]) = (first, second);
                    let want = word.iter().position(|&byte| is_special(byte)).unwrap_or(8);
                    assert_eq!(plain_len(&word), want, "{word:x?}");
                }
            }
        }
    }

    #[test]
    fn a_run_may_end_anywhere() {
        for len in 0..40 {
            let mut bytes = vec![b'a'; 40];
            assert_eq!(plain_len(&bytes[..len]), len);
            bytes[len] = b'"';
            assert_eq!(plain_len(&bytes), len);
            let mut out = [0; 41];
            assert_eq!(copy_plain(&mut out, &bytes), len);
            assert_eq!(out[..len], bytes[..len]);
            assert_eq!(copy_plain(&mut out[..len / 2], &bytes), len / 2);
        }
    }
}
