//! References to content: URIs that are valid for as long as the content is in the state.
//!
//! ```text
//! ahp-content:/channel=ahp-chat%3A%2F1/turn=t1/call=c1/content=0?bytes=5000000&crc=9a71bb4c
//! ```
//!
//! A reference names a path in the state, not an entry of the log: entries are trimmed, turns are not. Its version identifies
//! the content, so that other content at the same path is not returned.

use std::fmt;

use crate::percent;

/// The scheme of the URIs. Clients cannot publish anything under `ahp-`.
pub(crate) const SCHEME: &str = "ahp-content:/";

/// A parsed reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) channel: String,
    /// The path from the channel's state to the content.
    pub(crate) steps: Vec<PathStep>,
    /// The version of the content. `None` for the input of a tool call, which may change.
    pub(crate) version: Option<Version>,
}

/// One step of the path: the kind of an element, and which one.
pub(crate) type PathStep = (&'static str, String);

/// All kinds of elements. Others are not parsed.
const KINDS: [&str; 9] = ["turn", "call", "content", "input", "text", "attachment", "suggestion", "pending", "draft"];

/// Identifies one content among all that were ever at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    /// Its length. If the text has grown since, this many bytes from its beginning.
    pub(crate) bytes: usize,
    /// Its CRC-32C. A collision helps nobody: whoever can write at a path can also read it.
    crc: u32,
}

impl Version {
    pub(crate) fn of(content: &[u8]) -> Self {
        Self { bytes: content.len(), crc: crc32c::crc32c(content) }
    }
}

/// The nonce of a content reference.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:08x}", self.bytes, self.crc)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}channel={}", percent::name(&self.channel))?;
        for (kind, which) in &self.steps {
            write!(f, "/{kind}={}", percent::name(which))?;
        }
        self.version.map_or(Ok(()), |Version { bytes, crc }| write!(f, "?bytes={bytes}&crc={crc:08x}"))
    }
}

impl Reference {
    /// Parses a URI; `None` if it is no reference of this host.
    pub(crate) fn read(uri: &str) -> Option<Self> {
        let rest = uri.strip_prefix(SCHEME)?;
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let mut segments = path.split('/');
        let channel = unescaped(segments.next()?.strip_prefix("channel=")?)?;
        let step = |segment: &str| {
            let (kind, which) = segment.split_once('=')?;
            Some((KINDS.into_iter().find(|known| *known == kind)?, unescaped(which)?))
        };
        let steps = segments.map(step).collect::<Option<_>>()?;
        let version = match query {
            Some(query) => {
                let (bytes, crc) = query.strip_prefix("bytes=")?.split_once("&crc=")?;
                Some(Version { bytes: bytes.parse().ok()?, crc: u32::from_str_radix(crc, 16).ok()? })
            }
            None => None,
        };
        Some(Self { channel, steps, version })
    }

    /// The path, in a form for pattern matching.
    pub(crate) fn path(&self) -> Vec<(&'static str, &str)> {
        self.steps.iter().map(|(kind, which)| (*kind, which.as_str())).collect()
    }
}

fn unescaped(text: &str) -> Option<String> {
    String::from_utf8(percent::read(text)?.into_owned()).ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_uri_says_where_and_which() {
        let steps = vec![("turn", "t/1".to_owned()), ("text", "é".to_owned())];
        let version = Some(Version::of(b"123456789"));
        let uri = Reference { channel: "ahp-chat:/1".into(), steps, version }.to_string();
        assert_eq!(uri, "ahp-content:/channel=ahp-chat%3A%2F1/turn=t%2F1/text=%C3%A9?bytes=9&crc=e3069283");
    }

    #[test]
    fn what_is_none_of_ours_is_not_read() {
        for uri in [
            "",
            "file:///a",
            "ahp-content:",
            "ahp-content:/turn=1",
            "ahp-content:/channel=c/else=1",
            "ahp-content:/channel=c/turn",
            "ahp-content:/channel=%zz",
            "ahp-content:/channel=%f",
            "ahp-content:/channel=%FF",
            "ahp-content:/channel=c?bytes=-1&crc=0",
            "ahp-content:/channel=c?crc=0",
            "ahp-content:/channel=c?bytes=1&crc=123456789",
        ] {
            assert_eq!(Reference::read(uri), None, "{uri}");
        }
    }

    proptest! {
        #[test]
        fn a_reference_comes_back_from_its_uri(
            channel in ".*",
            steps in prop::collection::vec((prop::sample::select(&KINDS[..]), ".*"), 0..5),
            content in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        ) {
            let reference = Reference { channel, steps, version: content.as_deref().map(Version::of) };
            let uri = reference.to_string();
            prop_assert!(uri.is_ascii() && !uri.contains("/.") && !uri.contains('#'));
            prop_assert_eq!(Reference::read(&uri).unwrap(), reference);
        }

        #[test]
        fn no_text_breaks_the_reading(text in "(ahp-content:/)?(channel=)?([a-z=/?&%0-9]|\\PC){0,40}") {
            Reference::read(&text);
        }
    }
}
