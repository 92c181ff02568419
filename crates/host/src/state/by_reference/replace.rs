//! One content becomes a reference of the protocol.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::candidates::{Candidate, CandidateKind};
use super::reference::Version;
use crate::size::to_u64;

/// What takes the place of a content.
#[derive(Debug)]
pub(super) struct Replacement {
    pub(super) json: String,
    /// Bytes of the content.
    pub(super) bytes: u64,
}

/// The reference to a content; `None` if it is of a kind that has none, or is a reference already.
pub(super) fn replacement(candidate: &Candidate<'_>) -> Option<Replacement> {
    match candidate.kind {
        CandidateKind::Block => block(candidate),
        CandidateKind::Input => input(candidate),
        CandidateKind::Attachment => attachment(candidate),
        CandidateKind::Part => part(candidate),
    }
}

fn block(candidate: &Candidate<'_>) -> Option<Replacement> {
    let members = Members::read(candidate.raw)?;
    Some(match &*members.text("type")? {
        "text" => {
            let content = members.text("text")?;
            referring(candidate, ("type", "resource"), &content, content.len(), "text/plain")
        }
        "embeddedResource" => {
            let content = members.text("data")?;
            referring(candidate, ("type", "resource"), &content, decoded(&content), &members.text("contentType")?)
        }
        _ => return None,
    })
}

/// What an input is may change until the call is confirmed, and its place with it: so it has no version, and no nonce.
fn input(candidate: &Candidate<'_>) -> Option<Replacement> {
    let content = Text::read(candidate.raw)?;
    let reference = json!({"uri": candidate.uri(None), "sizeHint": content.len(), "contentType": "text/plain"});
    Some(Replacement { json: reference.to_string(), bytes: to_u64(content.len()) })
}

/// All else that is said of it stays.
fn attachment(candidate: &Candidate<'_>) -> Option<Replacement> {
    let members = Members::read(candidate.raw)?;
    if members.text("type")? != "embeddedResource" {
        return None;
    }
    let content = members.text("data")?;
    let replacement =
        referring(candidate, ("type", "resource"), &content, decoded(&content), &members.text("contentType")?);
    let kept = members.0.iter().filter(|(name, _)| !["type", "data", "contentType"].contains(&&**name));
    let kept: String = kept.map(|(name, raw)| format!(",{}:{}", Value::from(&**name), raw.get())).collect();
    let json = format!("{}{kept}}}", replacement.json.strip_suffix('}')?);
    Some(Replacement { json, ..replacement })
}

/// A part by reference has no id. Behind it is an empty one that has, so that what is added later finds its place.
fn part(candidate: &Candidate<'_>) -> Option<Replacement> {
    let members = Members::read(candidate.raw)?;
    let (id, content) = (members.text("id")?, members.text("content")?);
    let replacement = referring(candidate, ("kind", "contentRef"), &content, content.len(), "text/markdown");
    let rest = json!({"kind": "markdown", "id": id, "content": ""});
    Some(Replacement { json: format!("{},{rest}", replacement.json), ..replacement })
}

/// An object with this tag and the fields of a content reference. The version is that of the content as it was inline:
/// what is in base64 is not decoded for that.
fn referring(candidate: &Candidate<'_>, tag: (&str, &str), content: &str, size: usize, kind: &str) -> Replacement {
    let version = Version::of(content.as_bytes());
    let (name, value) = tag;
    let (uri, nonce) = (candidate.uri(Some(version)), version.to_string());
    let object = json!({name: value, "uri": uri, "sizeHint": size, "contentType": kind, "nonce": nonce});
    Replacement { json: object.to_string(), bytes: to_u64(content.len()) }
}

/// About how long something in base64 is.
const fn decoded(base64: &str) -> usize {
    base64.len() / 4 * 3
}

/// The members of an object as they are written. No deeper.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// A member that is a text.
    fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.0.iter().find(|(known, _)| known == name).and_then(|(_, raw)| Text::read(raw.get()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Text(name)) = map.next_key()? {
                    members.push((name, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// A text, borrowed where it can be.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Text<'a> {
    fn read(text: &'a str) -> Option<Cow<'a, str>> {
        serde_json::from_str::<Self>(text).ok().map(|Self(text)| text)
    }
}
