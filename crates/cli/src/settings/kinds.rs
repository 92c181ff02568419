//! Types of the values of settings: secrets, headers, sizes, addresses. Those with a fixed list of names are in `names.rs`.

use std::fmt;
use std::path::PathBuf;

use breakbulk::Preset;
use breakbulk::address::{Size, SizeError};
use breakbulk::{Address, AddressError};
use breakbulk_host::fleet::NatsAddress;
use breakbulk_host::log::jetstream::HostName;
use serde_json::Value as Json;
use tracing_subscriber::EnvFilter;

use super::value::{Value, allowed};
use crate::span::Span;

/// What stands for a secret wherever it is shown.
const HIDDEN: &str = "(set)";

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// The text itself, for whoever needs it and will not show it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Value for Secret {
    const NAME: &'static str = "TOKEN";

    fn may_show(_bad: &str) -> bool {
        false
    }

    /// It must pass in a header and in a query as it is.
    fn parse(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if !text.is_empty() && text.bytes().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err("allowed are letters, digits and -._~+/=".to_owned())
        }
    }

    fn text(&self) -> String {
        HIDDEN.to_owned()
    }
}

/// A header of a request. What it says is often a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: String,
    pub(crate) value: Secret,
}

impl Value for Header {
    const NAME: &'static str = "NAME: VALUE";
    // Values have commas.
    const SEPARATOR: char = '\n';

    fn may_show(_bad: &str) -> bool {
        false
    }

    fn parse(text: &str) -> Result<Self, String> {
        let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let in_value = |c: char| c == '\t' || !c.is_control();
        let (name, value) = text.split_once(':').unwrap_or_default();
        let value = value.trim();
        if !name.is_empty() && name.bytes().all(in_name) && value.chars().all(in_value) {
            Ok(Self { name: name.to_owned(), value: Secret(value.to_owned()) })
        } else {
            Err("allowed is a name, a colon and a value on one line".to_owned())
        }
    }

    fn text(&self) -> String {
        format!("{}: {HIDDEN}", self.name)
    }
}

/// Where a page comes from: `https://example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebOrigin(pub(crate) String);

impl Value for WebOrigin {
    const NAME: &'static str = "ORIGIN";

    fn parse(text: &str) -> Result<Self, String> {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        match host.map(Host::parse) {
            Some(Ok(_)) => Ok(Self(text.to_ascii_lowercase())),
            _ => Err("allowed is http:// or https:// and a host, such as https://example.com".to_owned()),
        }
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// A host as a `Host` header has it: a name or an address, perhaps with a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host(pub(crate) String);

impl Value for Host {
    const NAME: &'static str = "HOST";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        if !text.is_empty() && text.bytes().all(plain) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err("allowed is a host, perhaps with a port, such as example.com or example.com:9100".to_owned())
        }
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// The SHA-256 digest of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [u8; 32]);

impl Value for Fingerprint {
    const NAME: &'static str = "sha256:HEX";

    /// Colons between the digits are left out: other programs print them.
    fn parse(text: &str) -> Result<Self, String> {
        let digits: Option<Vec<u8>> = text.strip_prefix("sha256:").and_then(|hex| {
            let hex = hex.replace(':', "");
            hex.as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2)?, 16).ok())
                .collect()
        });
        let digest = digits.and_then(|digits| digits.try_into().ok());
        digest.map(Self).ok_or_else(|| "allowed is sha256: and 64 hexadecimal digits".to_owned())
    }

    fn text(&self) -> String {
        let digits: Vec<String> = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{}", digits.concat())
    }
}

/// A directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dir(pub(crate) PathBuf);

impl Value for Dir {
    const NAME: &'static str = "DIR";
    const IS_PATH: bool = true;
    // As in PATH: names have commas.
    const SEPARATOR: char = ':';

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("allowed is the name of a directory".to_owned()) } else { Ok(Self(text.into())) }
    }

    fn text(&self) -> String {
        self.0.display().to_string()
    }
}

impl Value for NatsAddress {
    const NAME: &'static str = "ADDRESS";
    // It has commas itself.
    const SEPARATOR: char = '\n';

    /// It may have a password.
    fn may_show(bad: &str) -> bool {
        !bad.contains('@')
    }

    fn parse(text: &str) -> Result<Self, String> {
        text.parse::<Self>().map_err(|error| error.to_string())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for HostName {
    const NAME: &'static str = "NAME";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse::<Self>().map_err(|_| "allowed are 1 to 32 characters of a-z, 0-9, - and _".to_owned())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// How many of something there may be: at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) u64);

impl Value for Count {
    const NAME: &'static str = "N";

    fn parse(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number| *number > 0);
        number.map(Self).ok_or_else(|| "allowed is a whole number of 1 or more".to_owned())
    }

    fn text(&self) -> String {
        self.0.to_string()
    }

    fn json(&self) -> Json {
        Json::from(self.0)
    }
}

/// What is logged: a level for this program, or a filter for each part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLevel(String);

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl LogLevel {
    /// The filter. A level without targets applies to our own crates; libraries are logged from `warn` on, and fully at
    /// `trace`.
    pub(crate) fn filter(&self) -> EnvFilter {
        let level = &self.0;
        EnvFilter::new(match level.as_str() {
            "off" | "error" | "warn" | "trace" => level.clone(),
            "info" | "debug" => format!("warn,breakbulk={level},breakbulk_proto={level}"),
            filter => filter.to_owned(),
        })
    }
}

impl Value for LogLevel {
    const NAME: &'static str = "LEVEL";

    fn choices() -> Vec<&'static str> {
        LEVELS.to_vec()
    }

    fn parse(text: &str) -> Result<Self, String> {
        // A lone word that is no level would pass as a filter for a part of that name.
        let has_levels = text.contains('=') && !text.split(',').any(|part| part.trim_end().ends_with('='));
        let holds = LEVELS.contains(&text) || (has_levels && EnvFilter::builder().parse(text).is_ok());
        let why = || format!("{}, or a filter such as warn,breakbulk=debug", allowed(LEVELS));
        if holds { Ok(Self(text.to_owned())) } else { Err(why()) }
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

impl Value for &'static Preset {
    const NAME: &'static str = "PRESET";

    fn choices() -> Vec<&'static str> {
        Preset::ALL.iter().map(|preset| preset.name).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        Preset::find(text).ok_or_else(|| format!("{}; `breakbulk presets` tells more", allowed(Self::choices())))
    }

    fn text(&self) -> String {
        self.name.to_owned()
    }
}

impl Value for Size {
    const NAME: &'static str = "SIZE";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: SizeError| error.to_string())
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn json(&self) -> Json {
        Json::from(self.0)
    }
}

impl Value for Span {
    const NAME: &'static str = "TIME";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// Where to listen: an address, or HOST:PORT or :PORT alone, which is a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) Address);

impl Value for Listen {
    const NAME: &'static str = Address::NAME;

    fn may_show(bad: &str) -> bool {
        Address::may_show(bad)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let address = Self::address(text).map_err(|error| error.to_string())?;
        if address.token.is_some() {
            return Err("the token of clients is set with token, not in the address".to_owned());
        }
        Ok(Self(address))
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

impl Listen {
    /// The address that a text stands for.
    pub(super) fn address(text: &str) -> Result<Address, AddressError> {
        let is_port = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        in_full(text).parse().map_err(|error| match error {
            AddressError::UnknownScheme { scheme, likely: Some(_) } if is_port => {
                AddressError::UnknownScheme { scheme, likely: Some(format!(":{text}")) }
            }
            // The suggestion has a port, because the default would be 80, which is rarely free.
            AddressError::UnknownScheme { scheme, likely: Some(likely) }
                if likely.starts_with("ws") && !text.contains([':', '/']) =>
            {
                AddressError::UnknownScheme { scheme, likely: Some(format!("{likely}:0")) }
            }
            error => error,
        })
    }
}

/// An address in full: HOST:PORT and :PORT are short for a WebSocket's.
pub(crate) fn in_full(text: &str) -> String {
    in_short(text).unwrap_or_else(|| text.to_owned())
}

/// The address that HOST:PORT or :PORT stands for, perhaps with a path and options. Without a host it is loopback.
fn in_short(text: &str) -> Option<String> {
    let authority = text.split(['/', '?', '#']).next()?;
    let (host, port) = authority.rsplit_once(':')?;
    let first = host.split(':').next()?;
    let is_scheme = ["ws", "wss", "unix", "stdio", "exec"].iter().any(|scheme| first.eq_ignore_ascii_case(scheme));
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let here = if host.is_empty() { "127.0.0.1" } else { "" };
    (is_port && !is_scheme && !host.contains(char::is_whitespace)).then(|| format!("ws://{here}{text}"))
}

impl Value for Address {
    const NAME: &'static str = "ADDRESS";

    /// People put passwords and tokens into addresses.
    fn may_show(bad: &str) -> bool {
        !bad.contains(['@', '='])
    }

    fn parse(text: &str) -> Result<Self, String> {
        text.parse::<Self>().map_err(|error| error.to_string())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}
