//! JSON in exactly allocated memory. A buffer that grows while JSON is written may take twice the length of the text, and three
//! times while it is moved.

use std::io::{self, Write};

use serde::Serialize;

/// Up to this length the buffer may grow, so that the JSON is written only once.
const SMALL: usize = 256 << 10;

/// The JSON of a value.
pub(crate) fn to_vec(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Measured { text: Vec::new(), len: 0 };
    serde_json::to_writer(&mut text, value)?;
    let Measured { mut text, len } = text;
    if len > text.len() {
        // It is written again, into a buffer of the right length.
        text = Vec::with_capacity(len);
        serde_json::to_writer(&mut text, value)?;
    }
    Ok(text)
}

/// The length of the JSON of a value, which is not kept.
pub(crate) fn len(value: &impl Serialize) -> usize {
    struct Length(usize);
    impl Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    // What cannot be written as JSON is not logged either.
    serde_json::to_writer(&mut length, value).map_or(0, |()| length.0)
}

/// Measures a text, and keeps it while it is short.
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
