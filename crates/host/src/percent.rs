//! Percent escapes in the URIs of this host, and a strict decoder.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, percent_encode};

/// What is escaped in a name: everything except letters, digits and the unreserved characters of RFC 3986.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What is escaped in a path: everything except the `pchar` of RFC 3986, without those that some parsers treat specially.
const PATH: &AsciiSet = &NAME
    .remove(b'/')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b'=')
    .remove(b'@');

/// A name that may stand next to any other character.
pub(crate) fn name(text: &str) -> PercentEncode<'_> {
    percent_encode(text.as_bytes(), NAME)
}

/// A path. Its slashes stay; its names are bytes.
pub(crate) fn path(bytes: &[u8]) -> PercentEncode<'_> {
    percent_encode(bytes, PATH)
}

/// Decodes a text; `None` if a `%` is not followed by two hexadecimal digits.
pub(crate) fn read(text: &str) -> Option<Cow<'_, [u8]>> {
    let is_whole =
        |after: &str| after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    text.split('%').skip(1).all(is_whole).then(|| percent_decode_str(text).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_stands_for_itself_depends_on_where_it_is() {
        let text = "aZ9-._~/!$&'()*+,=@:%?#[] é\0";
        assert_eq!(name(text).to_string(), "aZ9-._~%2F%21%24%26%27%28%29%2A%2B%2C%3D%40%3A%25%3F%23%5B%5D%20%C3%A9%00");
        assert_eq!(path(text.as_bytes()).to_string(), "aZ9-._~/!$&'()*+,=@%3A%25%3F%23%5B%5D%20%C3%A9%00");
    }

    #[test]
    fn an_escape_without_two_digits_is_none() {
        for text in ["%", "a%", "%4", "%4g", "%g4", "%+1", "%%41", "%41%", "%é"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("%41%2fé%25").as_deref(), Some("A/é%".as_bytes()));
    }

    proptest! {
        #[test]
        fn what_was_escaped_comes_back(bytes: Vec<u8>, text: String) {
            let back = |escaped: PercentEncode<'_>| read(&escaped.to_string()).map(Cow::into_owned);
            prop_assert_eq!(back(path(&bytes)), Some(bytes.clone()));
            prop_assert_eq!(back(name(&text)), Some(text.into_bytes()));
        }
    }
}
