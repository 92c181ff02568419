//! Values that are one of a few names.

use breakbulk::Dialect;
use strum::{Display, EnumString, VariantNames};

use super::value::{Value, allowed};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For programs: one object a line.
    Json,
}

/// Whose word on certificates counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Roots {
    /// Those of this machine.
    Native,
    /// Those of Mozilla, built in.
    WebPki,
    /// Either.
    Both,
}

/// Which proxy is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Proxy {
    /// The one that `HTTPS_PROXY` and its like name.
    Environment,
    /// None.
    None,
}

/// A type with a name for each of its values.
macro_rules! names {
    ($($kind:ty, $name:literal;)+) => {$(
        impl Value for $kind {
            const NAME: &'static str = $name;

            fn choices() -> Vec<&'static str> {
                <$kind as VariantNames>::VARIANTS.to_vec()
            }

            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| allowed(Self::choices()))
            }

            fn text(&self) -> String {
                self.to_string()
            }
        }
    )+};
}

names! {
    Dialect, "DIALECT";
    LogFormat, "FORMAT";
    Roots, "ROOTS";
    Proxy, "PROXY";
}
