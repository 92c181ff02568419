//! What a setting is, and how a list of them becomes a table and a type.

use strum::Display;

use super::layers::Environment;
use super::value::{Bad, Shape, Shown};

/// A setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the file.
    pub(crate) key: &'static str,
    pub(crate) group: Group,
    /// Its value if nothing is given; for one that need not have a value, what that means.
    pub(crate) default: &'static str,
    pub(crate) shape: Shape,
    pub(super) doc: &'static [&'static str],
    pub(super) show: fn(&[String]) -> Result<Option<Shown>, Bad>,
}

/// What a setting is about. Those of links come first, then those of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display)]
pub(crate) enum Group {
    Ends,
    Frames,
    Listening,
    Connecting,
    Limits,
    Time,
    Log,
    Host,
    Fleet,
    Connections,
    Terminals,
    Files,
    Changes,
    Customizations,
    Completions,
    State,
    Store,
    Retention,
    Agents,
    Demo,
}

impl Setting {
    /// Its name on the command line, without the dashes in front.
    pub(crate) fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// Its name in the environment.
    pub(crate) fn variable(&self) -> String {
        format!("{}{}", Environment::PREFIX, self.key.to_ascii_uppercase())
    }

    /// What it is for: a first paragraph that says enough, and more.
    pub(crate) fn paragraphs(&self) -> Vec<String> {
        let lines = |lines: &[&str]| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        self.doc.split(|line| line.is_empty()).map(lines).collect()
    }
}

/// Makes, from one list, a table of settings and the type that holds them.
macro_rules! settings {
    ($name:ident: $($group:ident { $($(#[doc = $doc:literal])+ $key:ident: $kind:ty = $default:literal;)+ })+) => {
        /// These settings, in the order in which people see them.
        pub(super) const TABLE: &[Setting] = &[$($(Setting {
            key: stringify!($key),
            group: Group::$group,
            default: $default,
            shape: <$kind as Field>::SHAPE,
            doc: &[$($doc),+],
            show: |texts| Ok(<$kind as Field>::read(texts)?.shown()),
        },)+)+];

        /// The values of these settings.
        #[derive(Debug)]
        pub(crate) struct $name {
            $($($(#[doc = $doc])+ pub(crate) $key: $kind,)+)+
        }

        impl $name {
            /// Reads all of them, also those that this command does not use, so that a wrong value in a file is found.
            pub(crate) fn read(layers: &Layers) -> Result<Self, SettingError> {
                Ok(Self { $($($key: layers.read(stringify!($key))?,)+)+ })
            }
        }
    };
}

pub(super) use settings;
