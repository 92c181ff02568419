//! One content becomes a reference of the protocol.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::place::Version;
use super::sites::{Site, What};

/// What takes the place of a content.
#[derive(Debug)]
pub(super) struct Swap {
    pub(super) json: String,
    /// Bytes of the content.
    pub(super) bytes: u64,
}

/// The reference to a content; `None` if it is of a kind that has none, or is a reference already.
pub(super) fn swap(site: &Site<'_>) -> Option<Swap> {
    match site.what {
        What::Block => block(site),
        What::Input => input(site),
        What::Attachment => attachment(site),
        What::Part => part(site),
    }
}

fn block(site: &Site<'_>) -> Option<Swap> {
    let members = Members::read(site.raw)?;
    Some(match &*members.text("type")? {
        "text" => {
            let content = members.text("text")?;
            referring(site, ("type", "resource"), &content, content.len(), "text/plain")
        }
        "embeddedResource" => {
            let content = members.text("data")?;
            referring(site, ("type", "resource"), &content, decoded(&content), &members.text("contentType")?)
        }
        _ => return None,
    })
}

/// What an input is may change until the call is confirmed, and its place with it: so it has no version, and no nonce.
fn input(site: &Site<'_>) -> Option<Swap> {
    let content = Text::read(site.raw)?;
    let reference = json!({"uri": site.uri(None), "sizeHint": content.len(), "contentType": "text/plain"});
    Some(Swap { json: reference.to_string(), bytes: wide(content.len()) })
}

/// All else that is said of it stays.
fn attachment(site: &Site<'_>) -> Option<Swap> {
    let members = Members::read(site.raw)?;
    if members.text("type")? != "embeddedResource" {
        return None;
    }
    let content = members.text("data")?;
    let swap = referring(site, ("type", "resource"), &content, decoded(&content), &members.text("contentType")?);
    let kept = members.0.iter().filter(|(name, _)| !["type", "data", "contentType"].contains(&&**name));
    let kept: String = kept.map(|(name, raw)| format!(",{}:{}", Value::from(&**name), raw.get())).collect();
    let json = format!("{}{kept}}}", swap.json.strip_suffix('}')?);
    Some(Swap { json, ..swap })
}

/// A part by reference has no id. Behind it is an empty one that has, so that what is added later finds its place.
fn part(site: &Site<'_>) -> Option<Swap> {
    let members = Members::read(site.raw)?;
    let (id, content) = (members.text("id")?, members.text("content")?);
    let swap = referring(site, ("kind", "contentRef"), &content, content.len(), "text/markdown");
    let rest = json!({"kind": "markdown", "id": id, "content": ""});
    Some(Swap { json: format!("{},{rest}", swap.json), ..swap })
}

/// An object with this tag and the fields of a content reference. The version is that of the content as it was inline:
/// what is in base64 is not decoded for that.
fn referring(site: &Site<'_>, tag: (&str, &str), content: &str, size: usize, kind: &str) -> Swap {
    let version = Version::of(content.as_bytes());
    let (name, value) = tag;
    let (uri, nonce) = (site.uri(Some(version)), version.to_string());
    let object = json!({name: value, "uri": uri, "sizeHint": size, "contentType": kind, "nonce": nonce});
    Swap { json: object.to_string(), bytes: wide(content.len()) }
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

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
