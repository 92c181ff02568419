//! Where values come from: a flag goes before the environment, that before the file, that before the default.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::error::SettingError;
use super::file::File;
use super::flags::Typed;
use super::value::{Arity, Bad, Field, Shown};
use super::{Setting, all, find};

/// The value of each setting, as text, and where it comes from.
#[derive(Debug)]
pub(crate) struct Layers(BTreeMap<&'static str, Layered>);

/// The texts that a setting was given, and by whom.
#[derive(Debug)]
struct Layered {
    texts: Vec<String>,
    origin: Origin,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A flag, with its dashes.
    Flag(String),
    /// An argument without dashes, by the name that help gives it.
    Argument(&'static str),
    /// An environment variable.
    Environment(String),
    /// A line of the file.
    File { path: PathBuf, line: usize },
    /// The built-in default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Argument(_) => f.write_str("argument"),
            Self::Environment(variable) => f.write_str(variable),
            Self::File { path, line } => write!(f, "file {}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

impl Layers {
    /// Puts the layers on top of each other.
    pub(crate) fn new(typed: Vec<Typed>, environment: &Environment, file: File) -> Self {
        let mut layers = Self(BTreeMap::new());
        for Typed { key, flag, texts } in typed {
            layers.add(key, texts, Origin::Flag(flag));
        }
        for setting in all() {
            let variable = setting.variable();
            if let Some(text) = environment.get(&variable) {
                layers.add(setting.key, split(text, setting), Origin::Environment(variable));
            }
        }
        for (key, line, texts) in file.values {
            layers.add(key, texts, Origin::File { path: file.path.clone(), line });
        }
        for setting in all() {
            let texts = match setting.shape.arity {
                Arity::One => vec![setting.default.to_owned()],
                Arity::Optional | Arity::Many { .. } | Arity::Switch => Vec::new(),
            };
            layers.add(setting.key, texts, Origin::Default);
        }
        layers
    }

    /// Puts a value on top of all: one that a command takes in a way of its own.
    pub(crate) fn put(&mut self, key: &'static str, text: &str, origin: Origin) {
        self.0.insert(key, Layered { texts: vec![text.to_owned()], origin });
    }

    /// The value of the setting `key`.
    pub(crate) fn read<T: Field>(&self, key: &'static str) -> Result<T, SettingError> {
        T::read(self.texts(key)).map_err(|bad| self.refused(key, bad))
    }

    /// The value of `setting` as people and programs see it, if it is set.
    pub(crate) fn show(&self, setting: &Setting) -> Result<Option<Shown>, SettingError> {
        (setting.show)(self.texts(setting.key)).map_err(|bad| self.refused(setting.key, bad))
    }

    /// Where the value of the setting `key` comes from.
    pub(crate) fn origin(&self, key: &str) -> Origin {
        self.0.get(key).map_or(Origin::Default, |layered| layered.origin.clone())
    }

    /// Refuses values of these settings that are not from the file: of several bridges, each has its own.
    pub(crate) fn only_in_file<const N: usize>(&self, keys: [&'static str; N]) -> Result<(), SettingError> {
        let elsewhere = |key: &&str| !matches!(self.origin(key), Origin::File { .. } | Origin::Default);
        match keys.into_iter().find(|key| elsewhere(key)) {
            Some(key) => Err(SettingError::OfAllBridges { key, origin: self.origin(key) }),
            None => Ok(()),
        }
    }

    /// A value of the right kind that does not hold for another reason.
    pub(crate) fn refuse(&self, key: &'static str, why: String) -> SettingError {
        let shown = find(key).and_then(|setting| self.show(setting).ok().flatten());
        self.refused(key, Bad { text: shown.map(|shown| shown.lines.join(", ")), why })
    }

    /// A text that is no value of its setting.
    pub(super) fn refused(&self, key: &'static str, Bad { text, why }: Bad) -> SettingError {
        let (key, origin) = (self.name(key), self.origin(key));
        match text {
            Some(value) => SettingError::Value { key, value, origin, why },
            None => SettingError::Hidden { key, origin, why },
        }
    }

    /// The one text that a setting was given, if it was.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.texts(key).first().map(String::as_str)
    }

    /// The setting's name for people: for an argument without dashes, the name in `--help`.
    pub(super) fn name(&self, key: &'static str) -> &'static str {
        match self.origin(key) {
            Origin::Argument(name) => name,
            _ => key,
        }
    }

    fn texts(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], |layered| &layered.texts)
    }

    /// Adds a value below those that are there.
    fn add(&mut self, key: &'static str, texts: Vec<String>, origin: Origin) {
        self.0.entry(key).or_insert(Layered { texts, origin });
    }
}

/// One text of the environment as the texts of a setting.
fn split(text: &str, setting: &Setting) -> Vec<String> {
    match setting.shape.arity {
        Arity::Many { separator } => {
            text.split(separator).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect()
        }
        Arity::One | Arity::Optional | Arity::Switch => vec![text.to_owned()],
    }
}

/// The environment variables that the program reads. An empty variable counts as not set.
#[derive(Debug, Default)]
pub(crate) struct Environment(BTreeMap<String, String>);

impl Environment {
    /// What the names of our variables begin with.
    pub(crate) const PREFIX: &str = "BREAKBULK_";
    /// Names the file.
    pub(crate) const CONFIG: &str = "BREAKBULK_CONFIG";
    /// The variable with the access key of a relay, which is no setting, so that nothing prints it.
    pub(crate) const ACCESS_KEY: &str = "BREAKBULK_ACCESS_KEY";

    /// The variables that name the directories of the user.
    const HOME_VARIABLES: [&str; 3] = ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"];

    /// Takes our variables out of `all`.
    pub(crate) fn new(all: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, SettingError> {
        let mut ours = BTreeMap::new();
        for (variable, value) in all {
            let Ok(variable) = variable.into_string() else { continue };
            let is_ours = variable.starts_with(Self::PREFIX);
            if value.is_empty() || !(is_ours || Self::HOME_VARIABLES.contains(&&*variable)) {
                continue;
            }
            match value.into_string() {
                Ok(value) => drop(ours.insert(variable, value)),
                Err(_) if is_ours => return Err(SettingError::NotText { variable }),
                Err(_) => {}
            }
        }
        Ok(Self(ours))
    }

    /// The value of a variable.
    pub(crate) fn get(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(String::as_str)
    }

    /// Variables that begin with our prefix and are no settings.
    pub(crate) fn unknown_variables(&self) -> impl Iterator<Item = &str> {
        let known = |name: &str| {
            [Self::CONFIG, Self::ACCESS_KEY].contains(&name) || all().any(|setting| setting.variable() == name)
        };
        self.0.keys().map(String::as_str).filter(move |name| name.starts_with(Self::PREFIX) && !known(name))
    }

    /// The default place of the configuration file.
    pub(crate) fn default_file(&self) -> Option<PathBuf> {
        Some(self.base("XDG_CONFIG_HOME", ".config")?.join("breakbulk/config.toml"))
    }

    /// The default data directory of a host.
    pub(crate) fn default_data(&self) -> Option<PathBuf> {
        Some(self.base("XDG_DATA_HOME", ".local/share")?.join("breakbulk"))
    }

    /// The directory that a variable names, or else this one in the home.
    fn base(&self, variable: &str, in_home: &str) -> Option<PathBuf> {
        let absolute = |name| self.get(name).map(Path::new).filter(|path| path.is_absolute());
        absolute(variable).map(Path::to_owned).or_else(|| absolute("HOME").map(|home| home.join(in_home)))
    }
}
