//! JSON in memory that it fills: a text that grows as it is written may hold twice its length, and three times while it moves.

use std::io::{self, Write};

use serde::Serialize;

/// Up to here a text may grow as it is written: it is written once, not twice.
const SMALL: usize = 256 << 10;

/// The JSON of a value.
pub(crate) fn to_vec(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Measured { text: Vec::new(), len: 0 };
    serde_json::to_writer(&mut text, value)?;
    let Measured { mut text, len } = text;
    if len > text.len() {
        // It is written again, into a place of its length.
        text = Vec::with_capacity(len);
        serde_json::to_writer(&mut text, value)?;
    }
    Ok(text)
}

/// The beginning of a text, and the length of all of it.
struct Measured {
    text: Vec<u8>,
    len: usize,
}

impl Write for Measured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.len = self.len.saturating_add(bytes.len());
        if self.len <= SMALL {
            self.text.extend_from_slice(bytes);
        } else {
            self.text = Vec::new();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_has_no_more_memory_than_bytes() {
        for len in [0, 1, SMALL - 2, SMALL - 1, SMALL, 3 * SMALL] {
            let value = "\n".repeat(len / 2);
            let text = to_vec(&value).unwrap();
            assert_eq!(text, serde_json::to_vec(&value).unwrap());
            assert!(text.len() <= SMALL || text.capacity() == text.len(), "{len}: {}", text.capacity());
        }
    }
}
