//! Our own options, as they stand among the parameters of a query.

use std::fmt;

use percent_encoding::percent_decode_str;

use super::error::AddressError;
use super::mask;
use super::size::Size;
use crate::dialect::Dialect;
use crate::preset::Preset;
use crate::private::{PairingCode, PrivateOption};

/// The options that an address names. Displayed as parameters, joined by `&`.
#[derive(Debug, Default)]
pub(super) struct Options {
    pub(super) dialect: Option<Dialect>,
    pub(super) cap: Option<u64>,
    pub(super) preset: Option<&'static Preset>,
    pub(super) private: Option<PrivateOption>,
}

impl Options {
    /// From a query in which nothing but options may stand.
    pub(super) fn parse(query: &str) -> Result<Self, AddressError> {
        let mut options = Self::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            if !options.take(part)? {
                let name = part.split_once('=').map_or(part, |(name, _)| name);
                return Err(AddressError::unknown_option(name));
            }
        }
        Ok(options)
    }

    /// Takes a parameter if it is one of ours. Names and values are compared as they are, without any unescaping, except that the path in
    /// `private=` may have escapes.
    pub(super) fn take(&mut self, part: &str) -> Result<bool, AddressError> {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        match name {
            "cap" => {
                let size: Size = value.parse().map_err(|error| AddressError::Cap { text: value.to_owned(), error })?;
                once(&mut self.cap, size.0, "cap")?;
            }
            "dialect" => {
                let dialect = value.parse().map_err(|_| AddressError::Dialect(value.to_owned()))?;
                once(&mut self.dialect, dialect, "dialect")?;
            }
            "preset" => {
                let preset = Preset::find(value).ok_or_else(|| AddressError::Preset(value.to_owned()))?;
                once(&mut self.preset, preset, "preset")?;
            }
            "private" => {
                let text = percent_decode_str(value).decode_utf8_lossy();
                let private = match &*text {
                    "" => return Err(AddressError::PrivateOfNothing),
                    text if PairingCode::is_meant(text) => {
                        PrivateOption::Code(text.parse().map_err(AddressError::Private)?)
                    }
                    text => PrivateOption::File(text.into()),
                };
                once(&mut self.private, private, "private")?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether nothing was named.
    pub(super) const fn is_empty(&self) -> bool {
        self.dialect.is_none() && self.cap.is_none() && self.preset.is_none() && self.private.is_none()
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if let Some(preset) = self.preset {
            write!(f, "preset={}", preset.name)?;
            between = "&";
        }
        if let Some(cap) = self.cap {
            write!(f, "{between}cap={cap}")?;
            between = "&";
        }
        if let Some(dialect) = self.dialect {
            write!(f, "{between}dialect={dialect}")?;
            between = "&";
        }
        match &self.private {
            Some(PrivateOption::Code(_)) => write!(f, "{between}private={}", mask::MASK),
            Some(PrivateOption::File(path)) => write!(f, "{between}private={}", mask::escaped(&path.to_string_lossy())),
            None => Ok(()),
        }
    }
}

/// The option of ours that was probably meant by an unknown name: they differ by one extra letter, or by two exchanged
/// letters. No more than that, because the peer may have parameters of its own, such as `reset` and `map`.
pub(super) fn likely(name: &str) -> Option<&'static str> {
    let is_meant = |option: &str| {
        let letters: Vec<char> = name.chars().collect();
        let without = |left_out: usize| -> String {
            letters.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, letter)| letter).collect()
        };
        let exchanged = |at: usize| -> String {
            let mut letters = letters.clone();
            letters.swap(at, at + 1);
            letters.into_iter().collect()
        };
        match letters.len() {
            len if len == option.len() + 1 => (0..len).any(|at| without(at) == option),
            len if len == option.len() => (0..len - 1).any(|at| exchanged(at) == option),
            _ => false,
        }
    };
    ["cap", "dialect", "preset", "private"].into_iter().find(|option| is_meant(option))
}

/// All names, for an error that says what is allowed.
pub(super) fn preset_names() -> String {
    let names: Vec<_> = Preset::ALL.iter().map(|preset| preset.name).collect();
    names.join(", ")
}

fn once<T>(slot: &mut Option<T>, value: T, name: &'static str) -> Result<(), AddressError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(AddressError::RepeatedOption(name)),
    }
}
