//! The configuration file: TOML, keys at the top level.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::SettingError;
use super::layers::{Environment, Origin};
use super::value::Arity;
use super::{Setting, all, find};

/// What a file says: for each key its line and its texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) values: Vec<(&'static str, usize, Vec<String>)>,
}

impl File {
    /// Reads the file that the flag names, else the one that the environment names, else the usual one if it is there.
    pub(crate) fn find(flag: Option<&Path>, environment: &Environment) -> Result<Option<(Self, Origin)>, SettingError> {
        let named = flag.map(|path| (path.to_owned(), Origin::Flag("--config".into())));
        let named = named.or_else(|| {
            let path = environment.get(Environment::CONFIG)?;
            Some((path.into(), Origin::Environment(Environment::CONFIG.into())))
        });
        let is_named = named.is_some();
        let Some((path, origin)) = named.or_else(|| Some((environment.usual_file()?, Origin::Default))) else {
            return Ok(None);
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some((Self::parse(path, &text)?, origin))),
            Err(error) if error.kind() == ErrorKind::NotFound && !is_named => Ok(None),
            Err(error) => Err(SettingError::Unreadable { path, origin, error }),
        }
    }

    /// Reads the text of a file. Whether values hold is seen later: only a value that is used must.
    pub(crate) fn parse(path: PathBuf, text: &str) -> Result<Self, SettingError> {
        let line = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count().saturating_add(1);
        let table = match DeTable::parse(text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                let line = line(error.span().map_or(0, |span| span.start));
                let why = error.message().lines().collect::<Vec<_>>().join(", ");
                return Err(SettingError::Syntax { path, line, why });
            }
        };
        let mut values = Vec::new();
        for (key, value) in &table {
            let origin = || Origin::File { path: path.clone(), line: line(key.span().start) };
            let key_text = key.get_ref().as_ref();
            let Some(setting) = find(key_text) else {
                return Err(SettingError::Unknown { key: key_text.to_owned(), near: near(key_text), origin: origin() });
            };
            let Some(texts) = texts(setting, value.get_ref()) else {
                let (kind, why) = (value.get_ref().type_str(), expected(setting));
                return Err(SettingError::Type { key: setting.key, kind, origin: origin(), why });
            };
            values.push((setting.key, line(value.span().start), texts));
        }
        Ok(Self { path, values })
    }
}

/// A value as a flag would have it; `None` if its type is wrong.
fn texts(setting: &Setting, value: &DeValue<'_>) -> Option<Vec<String>> {
    match (setting.shape.arity, value) {
        (Arity::Many { .. }, DeValue::Array(array)) => array.iter().map(|value| one(value.get_ref())).collect(),
        (Arity::Switch, DeValue::Boolean(value)) => Some(vec![value.to_string()]),
        (Arity::Switch, _) => None,
        (_, value) => one(value).map(|text| vec![text]),
    }
}

fn one(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
        }
        _ => None,
    }
}

/// The type that a setting has in a file.
const fn expected(setting: &Setting) -> &'static str {
    match setting.shape.arity {
        Arity::Many { .. } => "allowed is a list of strings",
        Arity::Switch => "allowed are true and false",
        Arity::One | Arity::Optional => "allowed is a string or a whole number",
    }
}

/// The key that was probably meant.
fn near(key: &str) -> Option<&'static str> {
    const ALIKE: f64 = 0.6;
    let key = key.to_ascii_lowercase();
    let likeness = |setting: &&Setting| strsim::normalized_damerau_levenshtein(setting.key, &key);
    let best = all().max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    (likeness(&best) >= ALIKE).then_some(best.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, String> {
        File::parse("b.toml".into(), text).map_err(|error| error.to_string())
    }

    #[test]
    fn values_come_with_their_lines() {
        let text = "# ours\ncap = 0x10\nno_auth = true\n\nheader = [\n  'A: b',\n  'C: d',\n]\nallow_host = 'h'\nidle_timeout = \"9s\"\n";
        let file = parse(text).unwrap();
        let find =
            |key| file.values.iter().find(|value| value.0 == key).map(|value| (value.1, value.2.clone())).unwrap();
        assert_eq!(find("cap"), (2, vec!["16".to_owned()]));
        assert_eq!(find("no_auth"), (3, vec!["true".to_owned()]));
        assert_eq!(find("header"), (5, vec!["A: b".to_owned(), "C: d".to_owned()]));
        assert_eq!(find("allow_host"), (9, vec!["h".to_owned()]));
        assert_eq!(find("idle_timeout"), (10, vec!["9s".to_owned()]));
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        for (text, want) in [
            ("\nmax_mesage = 1", "unknown key \"max_mesage\" (file b.toml:2); did you mean max_message?"),
            ("max-message = 1", "unknown key \"max-message\" (file b.toml:1); did you mean max_message?"),
            ("Cap = 1", "unknown key \"Cap\" (file b.toml:1); did you mean cap?"),
            ("colour = 'red'", "unknown key \"colour\" (file b.toml:1)"),
            ("[tls]\ncert = 'a'", "unknown key \"tls\" (file b.toml:1)"),
        ] {
            assert_eq!(parse(text).unwrap_err(), want);
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused() {
        for (text, want) in [
            ("cap = 1.5", "cap is of type float (file b.toml:1): allowed is a string or a whole number"),
            ("no_auth = 'yes'", "no_auth is of type string (file b.toml:1): allowed are true and false"),
            ("header = true", "header is of type boolean (file b.toml:1): allowed is a list of strings"),
            ("cap = [1]", "cap is of type array (file b.toml:1): allowed is a string or a whole number"),
        ] {
            assert_eq!(parse(text).unwrap_err(), want);
        }
    }

    #[test]
    fn what_is_no_toml_is_refused_on_one_line() {
        for text in ["cap = ", "cap = 1\ncap = 2", "= 3", "\n\ncap 1"] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("b.toml:") && error.contains(" is not TOML: "), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert!(parse("\n\ncap 1").unwrap_err().starts_with("b.toml:3 "));
    }
}
