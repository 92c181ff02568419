//! What is shown in place of a secret.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use url::form_urlencoded;

/// Stands for what is not shown.
pub(super) const MASK: &str = "…";

/// A path and a query, with the values of secret parameters masked.
pub(super) fn target(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else {
        return target.to_owned();
    };
    let parts: Vec<_> = query.split('&').map(parameter).collect();
    format!("{path}?{}", parts.join("&"))
}

/// A command, with the values of secret arguments masked: `--token=x`, `--token x` and `TOKEN=x`.
pub(super) fn command(words: &[String]) -> Vec<String> {
    let mut is_value = false;
    let mask = |word: &String| {
        let was_value = std::mem::take(&mut is_value);
        match word.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{name}={MASK}"),
            None if was_value => MASK.to_owned(),
            None => {
                is_value = word.starts_with('-') && is_secret(word);
                word.clone()
            }
            Some(_) => {
                if was_value {
                    MASK.to_owned()
                } else {
                    word.clone()
                }
            }
        }
    };
    words.iter().map(mask).collect()
}

/// Settings that are joined by semicolons, as in a connection string, with the values of secret ones masked; and an address of a
/// WebSocket, with the values of secret parameters masked.
pub(super) fn settings(text: &str) -> String {
    let parts = text.split(';').map(|part| match part.split_once('=') {
        Some((name, value)) if !value.is_empty() && is_secret(name) => format!("{name}={MASK}"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(";")
}

/// An option as it stands in a query, with its value masked if it is a secret.
pub(super) fn option(name: &str, value: &str) -> String {
    match value {
        "" => escaped(name),
        _ if is_secret(name) => format!("{}={MASK}", escaped(name)),
        value => format!("{}={}", escaped(name), escaped(value)),
    }
}

/// A text as it stands in an option.
pub(super) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, OPTION).to_string()
}

/// Characters that are escaped in the name or the value of an option.
const OPTION: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'&').add(b'=').add(b'?').add(b'#');

/// The name is looked at as the peer will read it, so that escapes hide nothing.
fn parameter(part: &str) -> String {
    match (form_urlencoded::parse(part.as_bytes()).next(), part.split_once('=')) {
        (Some((name, value)), Some((written, _))) if !value.is_empty() && is_secret(&name) => {
            format!("{written}={MASK}")
        }
        _ => part.to_owned(),
    }
}

/// Errs on the side of hiding.
fn is_secret(name: &str) -> bool {
    const PARTS: [&str; 7] = ["token", "secret", "passw", "credential", "auth", "signature", "jwt"];
    let name = name.to_ascii_lowercase();
    PARTS.iter().any(|part| name.contains(part)) || name.ends_with("key") || name.ends_with("sig")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_parameters_are_masked_and_others_are_kept() {
        for (shown, written) in [
            ("/p?a=1&access_token=…&b=%20", "/p?a=1&access_token=s3cret&b=%20"),
            ("/?token=…", "/?token=a=b"),
            ("/?access%5Ftoken=…", "/?access%5Ftoken=s3cret"),
            ("/?API-Key=…&sig=…", "/?API-Key=s3cret&sig=s3cret"),
            ("/?token=", "/?token="),
            ("/?&&a", "/?&&a"),
            ("/token", "/token"),
        ] {
            assert_eq!(target(written), shown);
        }
    }

    #[test]
    fn the_key_of_a_connection_string_is_masked() {
        let shown = settings("Endpoint=https://h.example;AccessKey=c2VjcmV0=;Version=1.0;");
        assert_eq!(shown, "Endpoint=https://h.example;AccessKey=…;Version=1.0;");
        assert_eq!((option("access_token", "x"), option("hub", "a&b")), ("access_token=…".into(), "hub=a%26b".into()));
    }

    #[test]
    fn values_of_secret_arguments_are_masked_and_others_are_kept() {
        let words = |text: &str| shell_words::split(text).unwrap();
        for (shown, written) in [
            ("serve --token … --port 1", "serve --token s3cret --port 1"),
            ("env API_KEY=… serve x=1", "env API_KEY=s3cret serve x=1"),
            ("serve --password=… a", "serve --password=a=b a"),
            ("serve --token … b", "serve --token a=b b"),
            ("token x", "token x"),
        ] {
            assert_eq!(command(&words(written)), words(shown));
        }
    }
}
