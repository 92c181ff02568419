//! The key of a WebSocket handshake, and the answer by which a server proves that it has read the key.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

/// RFC 6455 appends this to the key before it is hashed, so that no server of another protocol gives the right answer by chance.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A client's key: 16 random bytes.
#[derive(Debug)]
pub(crate) struct Key(String);

impl Key {
    /// A new key.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub(crate) fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(STANDARD.encode(bytes)))
    }

    /// The value of `Sec-WebSocket-Key`.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The value of `Sec-WebSocket-Accept` for this key.
pub(crate) fn accept_for(key: &[u8]) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_that_of_the_standards_example() {
        assert_eq!(accept_for(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(Key::generate().unwrap().as_str().len(), 24);
    }
}
