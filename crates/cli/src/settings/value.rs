//! How a setting's value is written, read and shown.

use std::fmt::Display;
use std::path::PathBuf;

use serde_json::Value as Json;

/// One value: a size, a path, a name out of a few.
pub(crate) trait Value: Sized {
    /// What help calls it.
    const NAME: &'static str;
    /// Whether it names a file.
    const IS_PATH: bool = false;
    /// What stands between values where a list is one text.
    const SEPARATOR: char = ',';

    /// The values that a shell may offer; none if there are too many.
    fn choices() -> Vec<&'static str> {
        Vec::new()
    }

    /// Whether a text that is no such value may be shown: it may hold a secret all the same.
    fn may_show(_bad: &str) -> bool {
        true
    }

    /// Reads it; the error says what is allowed.
    fn parse(text: &str) -> Result<Self, String>;

    /// As a person wrote it, or would have.
    fn text(&self) -> String;

    /// As a configuration file would have it.
    fn json(&self) -> Json {
        Json::String(self.text())
    }
}

/// What a setting holds: one value, perhaps one, many, or yes or no.
pub(crate) trait Field: Sized {
    /// How it is written.
    const SHAPE: Shape;

    /// Reads it from the texts that were given; none if nothing was.
    fn read(texts: &[String]) -> Result<Self, Bad>;

    /// What it is; `None` if it is not set.
    fn shown(&self) -> Option<Shown>;
}

/// How a setting is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) arity: Arity,
    pub(crate) choices: fn() -> Vec<&'static str>,
    pub(crate) is_path: bool,
}

/// How many values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arity {
    /// One, with a default.
    One,
    /// One or none.
    Optional,
    /// Any number.
    Many {
        /// What stands between them in an environment variable.
        separator: char,
    },
    /// Yes or no.
    Switch,
}

/// A text that is no value of its setting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    /// `None` if it must not be shown.
    pub(crate) text: Option<String>,
    pub(crate) why: String,
}

/// A value for people and for programs.
#[derive(Debug, PartialEq)]
pub(crate) struct Shown {
    /// One line for each value.
    pub(crate) lines: Vec<String>,
    pub(crate) json: Json,
}

impl<T: Value> Field for T {
    const SHAPE: Shape = shape::<T>(Arity::One);

    fn read(texts: &[String]) -> Result<Self, Bad> {
        read_one(texts.first().map_or("", String::as_str))
    }

    fn shown(&self) -> Option<Shown> {
        Some(Shown { lines: vec![self.text()], json: self.json() })
    }
}

impl<T: Value> Field for Option<T> {
    const SHAPE: Shape = shape::<T>(Arity::Optional);

    fn read(texts: &[String]) -> Result<Self, Bad> {
        texts.first().map(|text| read_one(text)).transpose()
    }

    fn shown(&self) -> Option<Shown> {
        self.as_ref().and_then(Field::shown)
    }
}

impl<T: Value> Field for Vec<T> {
    const SHAPE: Shape = shape::<T>(Arity::Many { separator: T::SEPARATOR });

    fn read(texts: &[String]) -> Result<Self, Bad> {
        texts.iter().map(|text| read_one(text)).collect()
    }

    fn shown(&self) -> Option<Shown> {
        let json = Json::Array(self.iter().map(Value::json).collect());
        (!self.is_empty()).then(|| Shown { lines: self.iter().map(Value::text).collect(), json })
    }
}

impl Field for bool {
    const SHAPE: Shape =
        Shape { name: "BOOL", arity: Arity::Switch, choices: || vec!["true", "false"], is_path: false };

    fn read(texts: &[String]) -> Result<Self, Bad> {
        texts.first().map_or(Ok(false), |text| {
            text.parse().map_err(|_| Bad { text: Some(text.clone()), why: "allowed are true and false".into() })
        })
    }

    fn shown(&self) -> Option<Shown> {
        Some(Shown { lines: vec![self.to_string()], json: Json::Bool(*self) })
    }
}

impl Value for u32 {
    const NAME: &'static str = "N";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "allowed is a whole number".to_owned())
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn json(&self) -> Json {
        Json::from(*self)
    }
}

impl Value for PathBuf {
    const NAME: &'static str = "FILE";
    const IS_PATH: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("allowed is the name of a file".to_owned()) } else { Ok(Self::from(text)) }
    }

    fn text(&self) -> String {
        self.display().to_string()
    }
}

/// What is allowed where a value is one of a few names.
pub(crate) fn allowed(names: impl IntoIterator<Item: Display>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    format!("allowed are {}", names.join(", "))
}

const fn shape<T: Value>(arity: Arity) -> Shape {
    Shape { name: T::NAME, arity, choices: T::choices, is_path: T::IS_PATH }
}

fn read_one<T: Value>(text: &str) -> Result<T, Bad> {
    T::parse(text).map_err(|why| Bad { text: T::may_show(text).then(|| text.to_owned()), why })
}
