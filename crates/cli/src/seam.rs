//! What the library will have and does not have yet: addresses that parse, and the list of presets.
//!
//! Everything else here uses these through this module. When the library has them, the whole of it becomes
//! `pub(crate) use breakbulk::{Address, preset::Preset};` and the questions below, asked of `Address::way`.

use std::fmt;
use std::str::FromStr;

use breakbulk::Dialect;

/// One end of a gateway. The fields beside `text` are those of `breakbulk::Address`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    text: String,
    /// The wire form, if it was named.
    pub(crate) dialect: Option<Dialect>,
    /// The longest frame that the way takes, if it was named.
    pub(crate) cap: Option<u64>,
    /// Where the cap comes from, if a preset was named.
    pub(crate) preset: Option<&'static Preset>,
}

const SCHEMES: [&str; 5] = ["ws://", "wss://", "unix:", "stdio:", "exec:"];

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            let query = |name| query_value(text, name);
            let (cap, dialect) = (query("cap"), query("dialect"));
            let cap = cap.map(str::parse::<crate::size::Size>).transpose()?.map(|cap| cap.0);
            let dialect = dialect.map(str::parse).transpose().map_err(|_| "unknown dialect".to_owned())?;
            let preset = query("preset").and_then(Preset::find);
            Ok(Self { text: text.to_owned(), dialect, cap, preset })
        } else {
            Err("allowed are ws://HOST:PORT, wss://HOST:PORT, unix:PATH, stdio: and exec:COMMAND".to_owned())
        }
    }
}

/// Secrets in a query are not shown.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.text.clone();
        for name in ["token", "access_token"] {
            if let Some(value) = query_value(&self.text, name) {
                text = text.replace(&format!("{name}={value}"), &format!("{name}=…"));
            }
        }
        f.write_str(&text)
    }
}

/// Whether it is our own standard input and output.
pub(crate) fn is_stdio(address: &Address) -> bool {
    address.text.starts_with("stdio:")
}

/// Whether it is a WebSocket.
pub(crate) fn is_web_socket(address: &Address) -> bool {
    address.text.starts_with("ws://") || is_tls(address)
}

/// Whether it is a WebSocket over TLS.
pub(crate) fn is_tls(address: &Address) -> bool {
    address.text.starts_with("wss://")
}

fn query_value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = text.split_once('?')?;
    let query = query.split(' ').next()?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// A way whose cap is known. The fields are those of `breakbulk::preset::Preset`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Preset {
    pub(crate) name: &'static str,
    pub(crate) cap: u64,
    pub(crate) about: &'static str,
    pub(crate) source: &'static str,
}

impl Preset {
    /// Placeholders: two that tests name, with the caps that their documentation states.
    pub(crate) const ALL: &'static [Self] = &[
        Self {
            name: "web-pubsub",
            cap: 1_000_000,
            about: "Azure Web PubSub; a longer frame closes the connection",
            source: "https://learn.microsoft.com/azure/azure-web-pubsub/",
        },
        Self {
            name: "nostr",
            cap: 65_536,
            about: "Nostr relays; a longer event is refused",
            source: "https://github.com/nostr-protocol/nips/blob/master/11.md",
        },
    ];

    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|preset| preset.name == name)
    }
}
