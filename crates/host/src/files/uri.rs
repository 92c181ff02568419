//! File URIs and paths: decoded once, in one unambiguous form.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::percent;

/// Why a text is not the URI of a file on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UriError {
    /// Another scheme, or none.
    #[error("not a file: URI")]
    NotFile,
    /// It has a host. Files of other machines are not served, and `localhost` would be a second name for the same file.
    #[error("a file URI with a host")]
    Host,
    /// The path does not begin with a slash.
    #[error("a file URI without an absolute path")]
    NotAbsolute,
    /// A query or a fragment. A `?` or `#` that belongs to a name is written `%3F` or `%23`.
    #[error("a file URI with a query or a fragment")]
    Query,
    /// A `%` without two hexadecimal digits after it.
    #[error("a broken percent escape in a URI")]
    Escape,
    /// An escaped slash: no name can contain one.
    #[error("an escaped slash in a URI")]
    Slash,
    /// A NUL byte: no name can contain one.
    #[error("a NUL byte in a URI")]
    Nul,
}

/// The path that a file URI names: absolute, decoded once, without `.`, `..`, doubled or trailing slashes.
///
/// Dot segments are resolved in the text, as for any URI, before the file system is used; `..` at the top has no effect. Names
/// are bytes: [`uri_of`] returns names that are not UTF-8 unchanged. A path is no permission: [`Files`](super::Files) checks
/// where it may lead.
///
/// ```
/// # use breakbulk_host::test_support::files::path_of;
/// assert_eq!(path_of("file:///srv/a%20b/../c")?, std::path::Path::new("/srv/c"));
/// # Ok::<(), breakbulk_host::test_support::files::UriError>(())
/// ```
pub fn path_of(uri: &str) -> Result<PathBuf, UriError> {
    let (scheme, rest) = uri.split_once(':').ok_or(UriError::NotFile)?;
    if !scheme.eq_ignore_ascii_case("file") {
        return Err(UriError::NotFile);
    }
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some("") => return Err(UriError::NotAbsolute),
        Some(_) => return Err(UriError::Host),
        None if rest.starts_with('/') => rest,
        None => return Err(UriError::NotAbsolute),
    };
    if path.contains(['?', '#']) {
        return Err(UriError::Query);
    }
    let mut found = PathBuf::from("/");
    for segment in path.split('/') {
        match &*decode(segment)? {
            b"" | b"." => {}
            b".." => _ = found.pop(),
            name => found.push(OsString::from_vec(name.to_vec())),
        }
    }
    Ok(found)
}

/// The URI of a path. A relative one is taken from `/`.
///
/// ```
/// # use breakbulk_host::test_support::files::uri_of;
/// assert_eq!(uri_of("/srv/a b".as_ref()), "file:///srv/a%20b");
/// ```
#[must_use]
pub fn uri_of(path: &Path) -> String {
    let root = if path.has_root() { "" } else { "/" };
    format!("file://{root}{}", percent::path(path.as_os_str().as_bytes()))
}

fn decode(segment: &str) -> Result<Cow<'_, [u8]>, UriError> {
    let name = percent::read(segment).ok_or(UriError::Escape)?;
    if name.contains(&0) {
        return Err(UriError::Nul);
    }
    if name.contains(&b'/') { Err(UriError::Slash) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dot_segments_are_resolved_in_the_text_however_they_are_written() {
        for uri in ["file:///a/../b", "file:///a/%2e%2E/b", "file:///../../b", "FILE:/b", "file:///./b//", "file:///b/"]
        {
            assert_eq!(path_of(uri), Ok(PathBuf::from("/b")), "{uri}");
        }
    }

    #[test]
    fn a_double_encoded_dot_is_a_plain_name() {
        assert_eq!(path_of("file:///a/%252e%252e/b"), Ok(PathBuf::from("/a/%2e%2e/b")));
    }

    #[test]
    fn each_misspelling_has_its_name() {
        let cases = [
            ("/a", UriError::NotFile),
            ("http:///a", UriError::NotFile),
            ("", UriError::NotFile),
            ("file://host/a", UriError::Host),
            ("file://localhost/a", UriError::Host),
            ("file://", UriError::NotAbsolute),
            ("file:a", UriError::NotAbsolute),
            ("file:", UriError::NotAbsolute),
            ("file:///a?b", UriError::Query),
            ("file:///a#b", UriError::Query),
            ("file:///a%", UriError::Escape),
            ("file:///a%4", UriError::Escape),
            ("file:///a%+1", UriError::Escape),
            ("file:///a%2Fb", UriError::Slash),
            ("file:///a%00", UriError::Nul),
            ("file:///a\0", UriError::Nul),
        ];
        for (uri, want) in cases {
            assert_eq!(path_of(uri), Err(want), "{uri:?}");
        }
    }

    #[test]
    fn letters_of_any_language_may_stand_unescaped() {
        assert_eq!(path_of("file:///é"), path_of("file:///%C3%A9"));
    }

    proptest! {
        #[test]
        fn a_path_comes_back_from_its_uri(names in prop::collection::vec(prop::collection::vec(1u8.., 1..20), 0..8)) {
            let mut path = PathBuf::from("/");
            for name in names {
                let name: Vec<u8> = name.into_iter().map(|byte| if byte == b'/' { b'_' } else { byte }).collect();
                if name != b"." && name != b".." {
                    path.push(OsString::from_vec(name));
                }
            }
            let uri = uri_of(&path);
            prop_assert!(uri.is_ascii());
            prop_assert_eq!(path_of(&uri), Ok(path));
        }

        #[test]
        fn no_text_leads_to_a_path_with_dots_or_nul(text in "(file:)?/{0,3}([%./a2eE5F0:\\PC]|\\.\\.|%2e){0,24}") {
            if let Ok(path) = path_of(&text) {
                prop_assert!(path.is_absolute());
                prop_assert!(!path.as_os_str().as_bytes().contains(&0));
                let again: PathBuf = path.components().collect();
                prop_assert!(path.components().all(|part| !matches!(part, std::path::Component::ParentDir)));
                prop_assert_eq!(path_of(&uri_of(&path)), Ok(again));
            }
        }
    }
}
