//! Checks that bytes are UTF-8, in any number of pieces.

use super::check::{Fault, JsonError};
use crate::message::len64;

/// A push checker of UTF-8: feed it pieces, then finish. A character may lie across pieces.
#[derive(Clone, Debug, Default)]
pub struct Utf8 {
    /// Bytes taken so far, the carried ones included.
    offset: u64,
    /// The front of a character whose other bytes did not come yet.
    carry: [u8; 4],
    carried: usize,
    error: Option<JsonError>,
}

impl Utf8 {
    /// Checks the next piece. After an error, every further piece gets the same one.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), JsonError> {
        if self.error.is_none() {
            self.error = self.check(bytes).err();
        }
        self.error.map_or(Ok(()), Err)
    }

    /// Whether all was UTF-8 and the last character is complete.
    pub fn finish(&self) -> Result<(), JsonError> {
        match self.error {
            Some(error) => Err(error),
            None if self.carried > 0 => Err(self.bad_carry()),
            None => Ok(()),
        }
    }

    fn check(&mut self, mut bytes: &[u8]) -> Result<(), JsonError> {
        while self.carried > 0
            && let Some((&byte, rest)) = bytes.split_first()
        {
            self.carry(byte)?;
            bytes = rest;
        }
        let (whole, tail) = bytes.split_at_checked(bytes.len().saturating_sub(cut_len(bytes))).unwrap_or((bytes, &[]));
        if simdutf8::basic::from_utf8(whole).is_err() {
            let good = std::str::from_utf8(whole).map_or_else(|error| error.valid_up_to(), str::len);
            return Err(JsonError { fault: Fault::Utf8, offset: self.offset.saturating_add(len64(good)) });
        }
        self.offset = self.offset.saturating_add(len64(whole.len()));
        tail.iter().try_for_each(|&byte| self.carry(byte))
    }

    /// Adds a byte to the character that is carried.
    fn carry(&mut self, byte: u8) -> Result<(), JsonError> {
        self.offset = self.offset.saturating_add(1);
        if let Some(slot) = self.carry.get_mut(self.carried) {
            *slot = byte;
        }
        self.carried = self.carried.saturating_add(1);
        match std::str::from_utf8(self.carry.get(..self.carried).unwrap_or_default()) {
            Ok(_) => self.carried = 0,
            Err(error) if error.error_len().is_none() => {}
            Err(_) => return Err(self.bad_carry()),
        }
        Ok(())
    }

    fn bad_carry(&self) -> JsonError {
        JsonError { fault: Fault::Utf8, offset: self.offset.saturating_sub(len64(self.carried)) }
    }
}

/// How many bytes at the end look like the front of a character that is cut off.
fn cut_len(bytes: &[u8]) -> usize {
    for (byte, len) in bytes.iter().rev().zip(1..=3) {
        let whole = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if len < whole { len } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(pieces: &[&[u8]]) -> Result<(), JsonError> {
        let mut utf8 = Utf8::default();
        pieces.iter().try_for_each(|piece| utf8.feed(piece))?;
        utf8.finish()
    }

    fn by_std(bytes: &[u8]) -> Result<(), JsonError> {
        std::str::from_utf8(bytes)
            .map(|_| ())
            .map_err(|error| JsonError { fault: Fault::Utf8, offset: u64::try_from(error.valid_up_to()).unwrap() })
    }

    fn agrees_at_every_cut(bytes: &[u8]) {
        let want = by_std(bytes);
        for i in 0..=bytes.len() {
            for j in i..=bytes.len() {
                assert_eq!(verdict(&[&bytes[..i], &bytes[i..j], &bytes[j..]]), want, "{bytes:x?} cut at {i} and {j}");
            }
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(verdict(&single), want, "{bytes:x?} byte by byte");
    }

    fn nasty() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b'a'),
            0x80_u8..=0xbf,
            0xc0_u8..=0xdf,
            0xe0_u8..=0xef,
            0xf0_u8..=0xff,
            prop::sample::select(vec![0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xe0, 0xed, 0xf0, 0xf4]),
        ];
        prop::collection::vec(byte, 0..10)
    }

    #[test]
    fn each_two_byte_prefix_gets_the_verdict_of_std() {
        for a in 0x7f..=0xff {
            for b in 0x7f..=0xff {
                agrees_at_every_cut(&[b'x', a, b]);
                agrees_at_every_cut(&[a, b, 0x80, 0x80, b'x']);
            }
        }
    }

    #[test]
    fn an_error_stays() {
        let mut utf8 = Utf8::default();
        assert_eq!(utf8.feed(b"ab\xff"), Err(JsonError { fault: Fault::Utf8, offset: 2 }));
        assert_eq!(utf8.feed(b"ok"), Err(JsonError { fault: Fault::Utf8, offset: 2 }));
        assert_eq!(utf8.finish(), Err(JsonError { fault: Fault::Utf8, offset: 2 }));
    }

    proptest! {
        #[test]
        fn any_cut_gets_the_verdict_of_std(bytes in prop_oneof![nasty(), any::<String>().prop_map(|s| s.chars().take(8).collect::<String>().into_bytes())]) {
            agrees_at_every_cut(&bytes);
        }

        #[test]
        fn long_text_with_one_bad_byte_is_refused_at_it(text in "[a-z中é🎈]{60,200}", at in 0_usize..200, byte: u8, cut in 0_usize..400) {
            let mut bytes = text.into_bytes();
            if let Some(slot) = bytes.get_mut(at) { *slot = byte; }
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(verdict(&[a, b]), by_std(&bytes));
        }
    }
}
