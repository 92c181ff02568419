//! Access tokens.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::HeaderValue;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// The shortest token. A shorter one could be guessed.
const MIN_BYTES: usize = 16;
/// The longest token. A longer one would not fit a request.
const MAX_BYTES: usize = 1024;

/// An access token. Only [`reveal`](Self::reveal) shows its text.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// A new token: 256 random bits in base64url.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes).into()))
    }

    /// The text, for the one place where a person has to see it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether this is the token. Takes the same time however much of it is right.
    pub(super) fn is(&self, shown: &[u8]) -> bool {
        self.digest().ct_eq(&digest(shown)).into()
    }

    /// The principal of clients with this token. The token cannot be computed from it.
    pub(super) fn principal(&self) -> Arc<str> {
        let [a, b, c, d, ..] = self.digest();
        format!("token:{:08x}", u32::from_be_bytes([a, b, c, d])).into()
    }

    /// The value of the `Authorization` header.
    pub(crate) fn bearer(&self) -> HeaderValue {
        // A token has no character that a header could not.
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", self.0)).unwrap_or(HeaderValue::from_static("Bearer"));
        value.set_sensitive(true);
        value
    }

    fn digest(&self) -> [u8; 32] {
        digest(self.0.as_bytes())
    }
}

/// A token as a person configures it: visible ASCII, 16 to 1,024 characters.
impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::NotVisible);
        }
        if !(MIN_BYTES..=MAX_BYTES).contains(&text.len()) {
            return Err(TokenError::Length(text.len()));
        }
        Ok(Self(text.into()))
    }
}

/// Takes the same time however much of the two is equal.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.is(other.0.as_bytes())
    }
}

impl Eq for Token {}

/// Does not show the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a text is not a valid token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is so many bytes long.
    #[error("a token has 16 to 1,024 characters, not {0}")]
    Length(usize),
    /// It has white space, control characters or characters beyond ASCII.
    #[error("a token has visible ASCII characters only")]
    NotVisible,
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_tokens_differ_and_read_back() {
        let (one, two) = (Token::generate().unwrap(), Token::generate().unwrap());
        assert_ne!(one.reveal(), two.reveal());
        assert_eq!(one.reveal().len(), 43);
        let again: Token = one.reveal().parse().unwrap();
        assert!(again.is(one.reveal().as_bytes()) && !again.is(two.reveal().as_bytes()) && !again.is(b""));
        assert_eq!(again.principal(), one.principal());
        assert_ne!(two.principal(), one.principal());
    }

    #[test]
    fn a_token_is_never_shown_by_accident() {
        let token = Token::generate().unwrap();
        let shown = format!("{token:?} {:?} {}", token.bearer(), token.principal());
        assert!(!shown.contains(token.reveal()), "{shown}");
    }

    #[test]
    fn weak_and_unusable_tokens_are_refused() {
        assert_eq!("password".parse::<Token>().unwrap_err(), TokenError::Length(8));
        assert_eq!("correct horse battery".parse::<Token>().unwrap_err(), TokenError::NotVisible);
        assert_eq!("ä".repeat(20).parse::<Token>().unwrap_err(), TokenError::NotVisible);
        assert!("0123456789abcdef".parse::<Token>().is_ok());
    }
}
