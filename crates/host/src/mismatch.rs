//! Describes which field of a client's JSON does not fit its type, without repeating the client's value.

use serde::de::DeserializeOwned;

/// The longest path in a message: the client may have chosen its keys.
const MAX_PATH_CHARS: usize = 64;

/// Describes why a text is not a `T`; `None` if it is one. For messages such as
/// `the field "claim.clientId" is missing`.
pub(crate) fn describe<T: DeserializeOwned>(text: &[u8]) -> Option<String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let error = serde_path_to_error::deserialize::<_, T>(&mut json).err()?;
    let path = error.path().to_string();
    let (path, error) = (if path == "." { String::new() } else { path }, error.into_inner());
    if error.to_string().starts_with("recursion limit") {
        return Some("it is nested too deeply".to_owned());
    }
    if !error.is_data() {
        return Some(format!("not JSON at line {} column {}", error.line(), error.column()));
    }
    Some(words(&path, &error.to_string()))
}

/// The description of a serde error at a path. Serde quotes the value, so only what was expected is taken from its message.
fn words(path: &str, error: &str) -> String {
    let error = error.rsplit_once(" at line ").map_or(error, |(error, _)| error);
    if let Some(name) = error.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        let whole = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        return format!("the field {} is missing", quoted(&whole));
    }
    let subject = if path.is_empty() { "the value".to_owned() } else { format!("the field {}", quoted(path)) };
    // The message ends with what was expected. The value before it may contain the same words.
    match error.rsplit_once(", expected ") {
        Some((_, expected)) if error.starts_with("unknown variant") => {
            format!("{subject} must be {}", expected.replace('`', "\""))
        }
        Some((_, expected)) => format!("{subject} must be {}", kind(expected)),
        None => format!("{subject} does not fit its type"),
    }
}

/// A type of Rust as a word of JSON.
fn kind(expected: &str) -> &str {
    let word = expected.split(' ').next().unwrap_or_default();
    match word {
        "i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64" | "usize" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        "struct" | "internally" | "adjacently" => "an object",
        _ => match expected {
            "a map" => "an object",
            "a sequence" => "an array",
            "a boolean" | "a string" => expected,
            _ => "of another type",
        },
    }
}

fn quoted(path: &str) -> String {
    let mut cut: String = path.chars().filter(|char| !char.is_control()).take(MAX_PATH_CHARS).collect();
    if cut.len() < path.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use std::collections::HashMap;

    use ahp_types::commands::{CreateTerminalParams, SubscribeParams};

    use super::*;

    #[test]
    fn a_field_is_named_and_its_value_is_not() {
        let terminal = |text: &str| describe::<CreateTerminalParams>(text.as_bytes()).unwrap();
        assert_eq!(terminal(r#"{"claim":{"kind":"client","clientId":"c"}}"#), r#"the field "channel" is missing"#);
        assert_eq!(
            terminal(r#"{"channel":"c","claim":{"kind":"client","clientId":"c"},"cols":"s3cret, expected i64"}"#),
            r#"the field "cols" must be an integer"#
        );
        assert!(!terminal(r#"{"channel":"c","claim":{"kind":"nobody"}}"#).contains("nobody"));
        assert_eq!(terminal("5"), "the value must be an object");
        assert_eq!(describe::<SubscribeParams>(br#"{"channel":"c"}"#), None);
        assert_eq!(
            describe::<SubscribeParams>(br#"{"channel":{"a":1}}"#).unwrap(),
            r#"the field "channel" must be a string"#
        );
    }

    #[test]
    fn a_key_that_the_peer_chose_is_cut() {
        let text = format!(r#"{{"{}\n":"x"}}"#, "k".repeat(5000));
        let words = describe::<HashMap<String, i64>>(text.as_bytes()).unwrap();
        assert!(words.len() < 120 && words.contains('…'), "{words}");
    }
}
