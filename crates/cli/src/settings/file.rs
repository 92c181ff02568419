//! The configuration file: TOML, keys at the top level, and those of each of several bridges in a table of its own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::agents::AgentTable;
use super::error::SettingError;
use super::flags::{Bridge, Scope};
use super::layers::{Environment, Origin};
use super::value::Arity;
use super::{Group, Setting, all, find};

/// What a file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) values: Values,
    /// The `[[bridge]]` tables, in their order.
    pub(crate) bridges: Vec<Table>,
    /// The `[[agent]]` tables, in their order.
    pub(crate) agents: Vec<AgentTable>,
}

/// For each key its line and its texts.
type Values = Vec<(&'static str, usize, Vec<String>)>;

/// A `[[bridge]]` table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// Its name, or else its number.
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) values: Values,
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
        let Some((path, origin)) = named.or_else(|| Some((environment.default_file()?, Origin::Default))) else {
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
        let place = Place { path: &path, text };
        let table = match DeTable::parse(text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                let line = place.line(error.span().map_or(0, |span| span.start));
                let why = error.message().lines().collect::<Vec<_>>().join(", ");
                return Err(SettingError::Syntax { path, line, why });
            }
        };
        let (mut values, mut bridges, mut agents) = (Vec::new(), Vec::new(), Vec::new());
        for (key, value) in &table {
            if key.get_ref() == BRIDGE {
                bridges = tables(key.span().start, value.get_ref(), &place)?;
            } else if let Some(found) = agent_tables(key.get_ref(), value.get_ref()) {
                for (at, table) in found {
                    agents.push(AgentTable::read(at, table, |at| place.origin(at))?);
                }
            } else {
                values.push(place.value(key, value)?);
            }
        }
        Ok(Self { path, values, bridges, agents })
    }

    /// What the file says of one of its bridges: its own table, and below that the top level.
    pub(crate) fn of_bridge(&self, table: &Table) -> Self {
        let values = table.values.iter().chain(&self.values).cloned().collect();
        Self { path: self.path.clone(), values, bridges: Vec::new(), agents: Vec::new() }
    }
}

/// The key of the tables of bridges.
const BRIDGE: &str = "bridge";

/// The key of the tables of agents.
const AGENT: &str = "agent";

/// The text of a file, for whoever says where something is wrong in it.
struct Place<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn line(&self, at: usize) -> usize {
        self.text.bytes().take(at).filter(|byte| *byte == b'\n').count().saturating_add(1)
    }

    fn origin(&self, at: usize) -> Origin {
        Origin::File { path: self.path.to_owned(), line: self.line(at) }
    }

    /// One setting.
    fn value(
        &self,
        key: &TomlKey<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(&'static str, usize, Vec<String>), SettingError> {
        let key_text = key.get_ref().as_ref();
        let origin = self.origin(key.span().start);
        let Some(setting) = find(key_text) else {
            return Err(SettingError::Unknown { key: key_text.to_owned(), near: near(key_text), origin });
        };
        let Some(texts) = texts(setting, value.get_ref()) else {
            let (kind, why) = (value.get_ref().type_str(), expected(setting));
            return Err(SettingError::Type { key: setting.key, kind, origin, why });
        };
        Ok((setting.key, self.line(value.span().start), texts))
    }
}

/// A key as the parser has it.
type TomlKey<'a> = Spanned<std::borrow::Cow<'a, str>>;

/// The `[[bridge]]` tables.
fn tables(at: usize, value: &DeValue<'_>, place: &Place<'_>) -> Result<Vec<Table>, SettingError> {
    let wrong = |kind, at| SettingError::Type {
        key: BRIDGE,
        kind,
        origin: place.origin(at),
        why: "allowed are tables, each begun with [[bridge]]",
    };
    let DeValue::Array(array) = value else { return Err(wrong(value.type_str(), at)) };
    let mut tables: Vec<Table> = Vec::new();
    for item in array.iter() {
        let at = item.span().start;
        let DeValue::Table(found) = item.get_ref() else { return Err(wrong(item.get_ref().type_str(), at)) };
        let number = tables.len().saturating_add(1);
        let mut table = Table { name: number.to_string(), line: place.line(at), values: Vec::new() };
        for (key, value) in found {
            let origin = || place.origin(key.span().start);
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("name", DeValue::String(name)) => table.name = name.to_string(),
                ("name", value) => {
                    let (kind, why) = (value.type_str(), "allowed is a string");
                    return Err(SettingError::Type { key: "name", kind, origin: origin(), why });
                }
                (key_text, _) => {
                    if let Some(setting) = find(key_text).filter(|setting| !is_of_one_bridge(setting)) {
                        return Err(SettingError::NotOfOneBridge { key: setting.key, origin: origin() });
                    }
                    table.values.push(place.value(key, value)?);
                }
            }
        }
        if tables.iter().any(|other| other.name == table.name) {
            return Err(SettingError::SameName { name: table.name, origin: place.origin(at) });
        }
        tables.push(table);
    }
    Ok(tables)
}

/// The `[[agent]]` tables, if that is what the key is about: a list of names is a setting like others.
fn agent_tables<'a, 'b>(key: &str, value: &'a DeValue<'b>) -> Option<Vec<(usize, &'a DeTable<'b>)>> {
    let DeValue::Array(array) = value else { return None };
    let table = |item: &'a Spanned<DeValue<'b>>| match item.get_ref() {
        DeValue::Table(table) => Some((item.span().start, table)),
        _ => None,
    };
    if key == AGENT && !array.is_empty() { array.iter().map(table).collect() } else { None }
}

/// Whether a setting may differ from bridge to bridge: the log is the whole program's.
fn is_of_one_bridge(setting: &Setting) -> bool {
    Bridge::has(setting) && setting.group != Group::Log
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
            ("[[bridge]]\n\nlistn = 'a'", "unknown key \"listn\" (file b.toml:3); did you mean listen?"),
            (
                "[bridge]\nlisten = 'a'",
                "bridge is of type table (file b.toml:1): allowed are tables, each begun with [[bridge]]",
            ),
            (
                "bridge = ['a']",
                "bridge is of type string (file b.toml:1): allowed are tables, each begun with [[bridge]]",
            ),
            ("[[bridge]]\nname = 1", "name is of type integer (file b.toml:2): allowed is a string"),
            (
                "[[bridge]]\nlog_level = 'off'",
                "log_level (file b.toml:2) is a setting of the whole program, not of one bridge",
            ),
            (
                "[[bridge]]\nkeep_for = '1d'",
                "keep_for (file b.toml:2) is a setting of the whole program, not of one bridge",
            ),
            (
                "[[bridge]]\nname = 'a'\n[[bridge]]\nname = 'a'",
                "two bridges are called \"a\" (file b.toml:3): allowed is each name once",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), want);
        }
    }

    #[test]
    fn a_bridge_has_its_own_values_before_those_of_the_top_level() {
        let text = "cap = 1000\nkeep = true\n[[bridge]]\nname = 'a'\ncap = 2000\n[[bridge]]\nlisten = ':1'\n";
        let file = parse(text).unwrap();
        let names: Vec<_> = file.bridges.iter().map(|table| (table.name.as_str(), table.line)).collect();
        assert_eq!(names, [("a", 3), ("2", 6)]);
        let values = |table: usize| {
            let file = file.of_bridge(&file.bridges[table]);
            file.values.iter().map(|(key, line, texts)| (*key, *line, texts.join(","))).collect::<Vec<_>>()
        };
        assert_eq!(values(0)[0], ("cap", 5, "2000".to_owned()));
        assert_eq!(
            values(1),
            [("listen", 7, ":1".to_owned()), ("cap", 1, "1000".to_owned()), ("keep", 2, "true".to_owned())]
        );
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
