//! What can be wrong with settings, as one line for a person: the key, the value, where it came from, what is allowed.

use std::path::PathBuf;

use thiserror::Error;

use super::layers::Origin;

/// A setting that does not hold.
#[derive(Debug, Error)]
pub(crate) enum SettingError {
    /// A value is not of its kind, or out of its range.
    #[error("{key} is {value:?} ({origin}): {why}")]
    Value { key: &'static str, value: String, origin: Origin, why: String },
    /// A value in the file is of another type. It is not shown: it may be a secret, or many lines long.
    #[error("{key} is of type {kind} ({origin}): {why}")]
    Type { key: &'static str, kind: &'static str, origin: Origin, why: &'static str },
    /// The same for a value that must not be shown.
    #[error("{key} ({origin}) is invalid: {why}")]
    Hidden { key: &'static str, origin: Origin, why: String },
    /// The file has a key that is none of ours.
    #[error("unknown key {key:?} ({origin}){}", near.map(|near| format!("; did you mean {near}?")).unwrap_or_default())]
    Unknown { key: String, near: Option<&'static str>, origin: Origin },
    /// A table of one bridge has a key that is none of a bridge.
    #[error("{key} ({origin}) is a setting of the whole program, not of one bridge")]
    NotOfOneBridge { key: &'static str, origin: Origin },
    /// Two bridges have one name.
    #[error("two bridges are called {name:?} ({origin}): allowed is each name once")]
    SameName { name: String, origin: Origin },
    /// Several bridges cannot share an end.
    #[error(
        "{key} ({origin}) would hold for each of the bridges in the file: leave it out, or write it into one [[bridge]]"
    )]
    OfAllBridges { key: &'static str, origin: Origin },
    /// A command needs it.
    #[error("{key} is not set: give --{flag}, {variable}, or {key} in the file")]
    Missing { key: &'static str, flag: String, variable: String },
    /// A bridge of the file needs it.
    #[error("{key} is not set: write {key} = \"ADDRESS\" into that [[bridge]]")]
    MissingOfBridge { key: &'static str },
    /// Two settings contradict each other.
    #[error("{} ({}) and {} ({}) {why}", one.0, one.1, other.0, other.1)]
    Together { one: (&'static str, Origin), other: (&'static str, Origin), why: &'static str },
    /// The file cannot be read.
    #[error("cannot read {} ({origin}): {error}", path.display())]
    Unreadable { path: PathBuf, origin: Origin, error: std::io::Error },
    /// The file is not TOML.
    #[error("{}:{line} is not TOML: {why}", path.display())]
    Syntax { path: PathBuf, line: usize, why: String },
    /// A variable is not text.
    #[error("{variable} is not UTF-8")]
    NotText { variable: String },
}
