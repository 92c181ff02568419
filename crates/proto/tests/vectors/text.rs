//! A text as a vector writes it: verbatim JSON, a string, or parts that are generated.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Bytes of a frame or of a message.
///
/// An object stands for itself, byte for byte as it is written in the file: its white space, key order and number
/// spellings are the frame's. A string stands for its content. An array stands for its parts, joined.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Text(pub(super) Vec<u8>);

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    /// A text, so many times.
    Repeat(Text, usize),
    /// Bytes in hex digits, for what is not UTF-8.
    Hex(String),
    /// The base64 of a text.
    Base64(Text),
    /// The inside of the JSON string that stands for a text.
    Escaped(Text),
    /// The SHA-256 of a text, in lower-case hex.
    Sha256(Text),
    /// Another text.
    Text(Text),
    /// An object, as it is written.
    Object(Text),
    /// The inside of an object, as it is written.
    Inside(Text),
}

impl Text {
    fn read(raw: &str) -> Result<Self, String> {
        let text = |error: serde_json::Error| error.to_string();
        match raw.as_bytes().first() {
            Some(b'"') => Ok(Self(serde_json::from_str::<String>(raw).map_err(text)?.into_bytes())),
            Some(b'{') => Ok(Self(raw.as_bytes().to_vec())),
            Some(b'[') => {
                let parts: Vec<Box<RawValue>> = serde_json::from_str(raw).map_err(text)?;
                let parts: Result<Vec<_>, _> = parts.iter().map(|part| Part::read(part.get())).collect();
                Ok(Self(parts?.concat()))
            }
            _ => Err(format!("{raw} is no text")),
        }
    }

    /// The text with each `{n}` replaced by a number.
    pub(super) fn numbered(&self, n: u64) -> Vec<u8> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => text.replace("{n}", &n.to_string()).into_bytes(),
            Err(_) => self.0.clone(),
        }
    }
}

impl Part {
    fn read(raw: &str) -> Result<Vec<u8>, String> {
        if raw.starts_with('"') {
            return Text::read(raw).map(|text| text.0);
        }
        let part: Self = serde_json::from_str(raw).map_err(|error| format!("{error} in part {raw}"))?;
        part.bytes()
    }

    fn bytes(self) -> Result<Vec<u8>, String> {
        Ok(match self {
            Self::Repeat(text, times) => text.0.repeat(times),
            Self::Base64(text) => BASE64_STANDARD.encode(text.0).into_bytes(),
            Self::Escaped(text) => {
                let text = String::from_utf8(text.0).map_err(|error| error.to_string())?;
                let quoted = text.serialize(serde_json::value::Serializer).map_err(|error| error.to_string())?;
                let quoted = quoted.to_string();
                quoted.as_bytes().get(1..quoted.len() - 1).unwrap_or_default().to_vec()
            }
            Self::Sha256(text) => super::wire::sha256(&text.0).into_bytes(),
            Self::Text(text) | Self::Object(text) => text.0,
            Self::Inside(text) => {
                let inside = text.0.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
                inside.ok_or("only an object has an inside")?.to_vec()
            }
            Self::Hex(digits) => {
                let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b' ').collect();
                let byte = |pair: &[u8]| {
                    let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2);
                    pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
                };
                let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
                bytes.ok_or("hex digits come in pairs")?
            }
        })
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::read(raw.get()).map_err(D::Error::custom)
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

/// A text as an error message shows it: short.
pub(super) fn shown(bytes: &[u8]) -> String {
    const MAX_SHOWN: usize = 300;
    let text = String::from_utf8_lossy(bytes.get(..MAX_SHOWN).unwrap_or(bytes)).into_owned();
    if bytes.len() > MAX_SHOWN { format!("{text}… ({} bytes)", bytes.len()) } else { text }
}
