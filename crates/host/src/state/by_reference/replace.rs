//! Makes the reference of the protocol that replaces a content.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::candidates::{Candidate, CandidateKind};
use super::reference::Version;
use crate::size::to_u64;

/// The JSON that replaces a content.
#[derive(Debug)]
pub(super) struct Replacement {
    pub(super) json: String,
    /// Bytes of the content.
    pub(super) bytes: u64,
}

/// The replacement of a content; `None` if the protocol has no reference for it, or it is one already.
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

/// The input of a call may change until the call is confirmed, so its reference has no version and no nonce.
fn input(candidate: &Candidate<'_>) -> Option<Replacement> {
    let content = Text::read(candidate.raw)?;
    let reference = json!({"uri": candidate.uri(None), "sizeHint": content.len(), "contentType": "text/plain"});
    Some(Replacement { json: reference.to_string(), bytes: to_u64(content.len()) })
}

/// All other members of the attachment stay.
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

/// A `contentRef` part has no id. An empty `markdown` part with the id follows it, so that later deltas find it.
fn part(candidate: &Candidate<'_>) -> Option<Replacement> {
    let members = Members::read(candidate.raw)?;
    let (id, content) = (members.text("id")?, members.text("content")?);
    let replacement = referring(candidate, ("kind", "contentRef"), &content, content.len(), "text/markdown");
    let rest = json!({"kind": "markdown", "id": id, "content": ""});
    Some(Replacement { json: format!("{},{rest}", replacement.json), ..replacement })
}

/// An object with this tag and the members of a content reference. The version is computed from the content as it is written:
/// base64 is not decoded.
fn referring(candidate: &Candidate<'_>, tag: (&str, &str), content: &str, size: usize, kind: &str) -> Replacement {
    let version = Version::of(content.as_bytes());
    let (name, value) = tag;
    let (uri, nonce) = (candidate.uri(Some(version)), version.to_string());
    let object = json!({name: value, "uri": uri, "sizeHint": size, "contentType": kind, "nonce": nonce});
    Replacement { json: object.to_string(), bytes: to_u64(content.len()) }
}

/// The decoded length of a base64 text, about.
const fn decoded(base64: &str) -> usize {
    base64.len() / 4 * 3
}

/// The members of an object, with their values unparsed.
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
