//! Tokens: JSON Web Tokens signed with HMAC-SHA-256, as the service and its SDKs use them.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Sha256;
use thiserror::Error;
use url::Url;

use crate::connection_string::AccessKey;

/// How far the clocks of two machines may differ.
const LEEWAY: u64 = 60;
/// The longest token that is read. The claims of a client with a thousand groups fit.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// The header of each token that we sign: `{"alg":"HS256","typ":"JWT"}`.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";

/// What a token says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The URL that it is for, perhaps one of several.
    #[serde(default, deserialize_with = "one_or_many", serialize_with = "as_one")]
    pub aud: Vec<String>,
    /// When it expires, in seconds since 1970.
    pub exp: Option<u64>,
    /// From when on it is valid, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<u64>,
    /// When it was issued, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iat: Option<u64>,
    /// The id of the user, for whoever connects with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub: Option<String>,
    /// What its bearer may do.
    #[serde(default, rename = "role", deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// The groups that its bearer is in from the start.
    #[serde(
        default,
        rename = "webpubsub.group",
        deserialize_with = "one_or_many",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub groups: Vec<String>,
}

/// Why a token is refused. Shows nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is none.
    #[error("a token is needed: ?access_token=TOKEN, or Authorization: Bearer TOKEN")]
    Missing,
    /// It is not a JSON Web Token.
    #[error("the token is not a JSON Web Token")]
    Malformed,
    /// It is signed in another way than with HMAC-SHA-256.
    #[error("the token is not signed with HS256")]
    Algorithm,
    /// It is signed with another key.
    #[error("the token is signed with another key")]
    Signature,
    /// It never expires.
    #[error("the token does not say when it expires")]
    NoExpiry,
    /// It has expired.
    #[error("the token has expired")]
    Expired,
    /// It is not valid yet.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// It is for another URL.
    #[error("the token is for another URL")]
    Audience,
}

impl Claims {
    /// The token that says this.
    #[must_use]
    pub fn sign(&self, key: &AccessKey) -> String {
        // A struct of texts and numbers is always JSON.
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default());
        let signed = format!("{HEADER}.{claims}");
        let signature = mac(key, signed.as_bytes()).finalize().into_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// What a token says, after its signature, its times and its audience were checked. The audience has to name `path`; the host is not
    /// compared, since a relay behind a proxy is known under several.
    ///
    /// # Errors
    /// It is not a valid token of this key; there is one variant per cause.
    pub fn verify(token: &str, key: &AccessKey, path: &str, now: u64) -> Result<Self, TokenError> {
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed);
        };
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        if decoded::<Header>(header)?.alg != "HS256" {
            return Err(TokenError::Algorithm);
        }
        let signed = token.get(..token.len() - signature.len() - 1).unwrap_or_default();
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Malformed)?;
        // Compares in constant time.
        mac(key, signed.as_bytes()).verify_slice(&signature).map_err(|_| TokenError::Signature)?;
        let claims: Self = decoded(claims)?;
        let expires = claims.exp.ok_or(TokenError::NoExpiry)?;
        if expires.saturating_add(LEEWAY) < now {
            return Err(TokenError::Expired);
        }
        if claims.nbf.is_some_and(|from| from > now.saturating_add(LEEWAY)) {
            return Err(TokenError::NotYetValid);
        }
        if !claims.aud.iter().any(|audience| is_for(audience, path)) {
            return Err(TokenError::Audience);
        }
        Ok(claims)
    }
}

/// The time now, in seconds since 1970.
#[must_use]
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[derive(Deserialize)]
struct Header {
    alg: String,
}

fn mac(key: &AccessKey, bytes: &[u8]) -> Hmac<Sha256> {
    let mut mac = match Hmac::<Sha256>::new_from_slice(key.bytes()) {
        Ok(mac) => mac,
        // HMAC takes keys of any length.
        Err(_) => Hmac::<Sha256>::new(&Default::default()),
    };
    mac.update(bytes);
    mac
}

fn decoded<T: for<'a> Deserialize<'a>>(part: &str) -> Result<T, TokenError> {
    // Some libraries pad.
    let bytes = URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
}

/// Whether an audience names a path. Escapes do not count as a difference.
fn is_for(audience: &str, path: &str) -> bool {
    let Ok(url) = Url::parse(audience) else { return false };
    let plain = |path: &str| percent_decode_str(path.trim_end_matches('/')).collect::<Vec<u8>>();
    plain(url.path()).eq_ignore_ascii_case(&plain(path))
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        None(()),
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::None(()) => Vec::new(),
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

fn as_one<S: Serializer>(many: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    match many {
        [one] => serializer.serialize_str(one),
        many => many.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/client/hubs/agents";

    fn key() -> AccessKey {
        "0123456789abcdef0123456789abcdef".parse().unwrap()
    }

    fn claims() -> Claims {
        Claims {
            aud: vec!["http://127.0.0.1:8080/client/hubs/agents".into()],
            exp: Some(1000),
            sub: Some("ann".into()),
            roles: vec!["webpubsub.sendToGroup".into()],
            ..Claims::default()
        }
    }

    #[test]
    fn what_was_signed_is_read_back() {
        let read = Claims::verify(&claims().sign(&key()), &key(), PATH, 999).unwrap();
        assert_eq!(read, claims());
    }

    #[test]
    fn a_token_of_another_library_is_read() {
        // Header and claims as the npm package jsonwebtoken writes them: one role as a text, and the group as a list.
        let claims =
            r#"{"role":"r","webpubsub.group":["g","h"],"iat":1,"exp":3601,"aud":"https://x/client/hubs/agents"}"#;
        let signed = format!("{HEADER}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(mac(&key(), signed.as_bytes()).finalize().into_bytes());
        let read = Claims::verify(&format!("{signed}.{signature}"), &key(), PATH, 5).unwrap();
        assert_eq!((read.roles, read.groups), (vec!["r".to_owned()], vec!["g".to_owned(), "h".to_owned()]));
    }

    #[test]
    fn each_fault_has_a_name() {
        let other: AccessKey = "another key of sufficient length".replace(' ', "-").parse().unwrap();
        let verify = |claims: &Claims, key: &AccessKey, now| Claims::verify(&claims.sign(key), &self::key(), PATH, now);
        assert_eq!(verify(&claims(), &other, 0), Err(TokenError::Signature));
        assert_eq!(verify(&claims(), &key(), 1061), Err(TokenError::Expired));
        assert!(verify(&claims(), &key(), 1060).is_ok());
        assert_eq!(verify(&Claims { nbf: Some(100), ..claims() }, &key(), 39), Err(TokenError::NotYetValid));
        assert_eq!(verify(&Claims { exp: None, ..claims() }, &key(), 0), Err(TokenError::NoExpiry));
        let foreign = Claims { aud: vec!["http://h/client/hubs/other".into()], ..claims() };
        assert_eq!(verify(&foreign, &key(), 0), Err(TokenError::Audience));
        for text in ["", "a.b", "a.b.c.d", "..", "e30.e30.", &format!("{}.x", claims().sign(&key()))] {
            assert_eq!(Claims::verify(text, &key(), PATH, 0), Err(TokenError::Malformed), "{text}");
        }
    }

    #[test]
    fn a_token_that_claims_to_need_no_signature_is_refused() {
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims()).unwrap());
        assert_eq!(Claims::verify(&format!("{none}.{claims}."), &key(), PATH, 0), Err(TokenError::Algorithm));
    }

    #[test]
    fn no_altered_byte_passes() {
        let token = claims().sign(&key());
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let altered = String::from_utf8(bytes).unwrap();
            // The last character of a part may have bits that do not count.
            if let Ok(read) = Claims::verify(&altered, &key(), PATH, 0) {
                assert!(read == claims() && at + 1 == token.len(), "{at}");
            }
        }
    }
}
