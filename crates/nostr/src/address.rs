//! `nostr:RELAY,RELAY?key=FILE&server=PUBKEY`: the relays, who we are, and whom we talk to.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use breakbulk::{Address, Transport};
use nostr::nips::nip19::{FromBech32, Nip19Profile};
use nostr::{PublicKey, RelayUrl};
use thiserror::Error;

/// All options, for error messages.
const OPTIONS: &str =
    "key, server, encryption, allow, allow_file, announce, about, website, picture, max_clients, idle";
/// How many clients may have a session at once, unless the address says otherwise.
const MAX_CLIENTS: usize = 64;
/// How long a client may be silent before its session ends, unless the address says otherwise.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// How many relays an address may name.
const MAX_RELAYS: usize = 16;

/// What a `nostr:` address says.
#[derive(Debug, Clone)]
pub struct NostrAddress {
    /// The relays, in the order in which they are named.
    pub(crate) relays: Vec<RelayAddress>,
    /// The key file.
    pub(crate) key: Option<PathBuf>,
    /// The server to connect to.
    pub(crate) server: Option<PublicKey>,
    pub(crate) encryption: Encryption,
    /// The clients that may come in; `None` if all may.
    pub(crate) allow: Option<HashSet<PublicKey>>,
    pub(crate) announce: Option<Profile>,
    pub(crate) max_clients: usize,
    pub(crate) idle: Duration,
}

/// A relay.
#[derive(Debug, Clone)]
pub(crate) struct RelayAddress {
    /// Where it is.
    pub(crate) address: Address,
    /// The same, as Nostr writes it: in relay lists and in answers to `AUTH`.
    pub(crate) url: RelayUrl,
}

/// Whether messages are encrypted to their receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// A client encrypts. A server answers as it was asked.
    Optional,
    /// Messages that are not encrypted are ignored.
    Required,
    /// Nothing is encrypted, and encrypted messages are ignored.
    Off,
}

/// How a server describes itself in public.
#[derive(Debug, Clone, Default)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) about: Option<String>,
    pub(crate) website: Option<String>,
    pub(crate) picture: Option<String>,
}

/// Why an address cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NostrAddressError {
    /// It names no relay.
    #[error("a nostr: address needs a relay: nostr:wss://RELAY?key=FILE")]
    NoRelay,
    /// It names too many relays.
    #[error("a nostr: address takes at most {MAX_RELAYS} relays")]
    TooManyRelays,
    /// A relay is not a WebSocket address.
    #[error("{0:?} is not the address of a relay: ws://HOST or wss://HOST")]
    Relay(String),
    /// An option is not known.
    #[error("a nostr: address has no option {0:?}; it has {OPTIONS}")]
    UnknownOption(String),
    /// An option comes twice.
    #[error("the option {0:?} comes twice in a nostr: address")]
    Twice(String),
    /// The value of an option cannot be used.
    #[error("{value:?} is no value for the option {option:?} of a nostr: address: it is {want}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it has to be.
        want: &'static str,
    },
    /// The file of allowed clients cannot be read.
    #[error("the file of allowed clients {} cannot be read: {source}", .path.display())]
    AllowFile {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A server was to be reached, and none is named.
    #[error("--connect nostr:RELAY needs the server's public key: nostr:RELAY?server=PUBKEY")]
    NoServer,
    /// A server was to be offered, and it has no key.
    #[error("--listen nostr:RELAY needs a key file: nostr:RELAY?key=FILE (it is made if it is not there)")]
    NoKey,
    /// An option makes no sense in this direction.
    #[error("the option {option:?} of a nostr: address is only for --{direction}")]
    Direction {
        /// The option.
        option: &'static str,
        /// The side on which it makes sense.
        direction: &'static str,
    },
}

impl NostrAddress {
    /// Reads the target and the options of an address.
    ///
    /// # Errors
    /// A relay or an option cannot be used.
    pub fn parse(target: &str, options: &[(String, String)]) -> Result<Self, NostrAddressError> {
        let mut this = Self {
            relays: relays(target)?,
            key: None,
            server: None,
            encryption: Encryption::Optional,
            allow: None,
            announce: None,
            max_clients: MAX_CLIENTS,
            idle: IDLE,
        };
        let mut profile = Profile::default();
        let mut seen = HashSet::new();
        for (name, value) in options {
            if !seen.insert(name.as_str()) {
                return Err(NostrAddressError::Twice(name.clone()));
            }
            match name.as_str() {
                "key" => this.key = Some(value.into()),
                "server" => {
                    let (server, relays) = server(value)?;
                    this.server = Some(server);
                    this.relays.extend(relays);
                }
                "encryption" => this.encryption = encryption(value)?,
                "allow" => {
                    let keys = value.split(',').map(|text| public_key("allow", text)).collect::<Result<Vec<_>, _>>()?;
                    this.allow.get_or_insert_default().extend(keys);
                }
                "allow_file" => this.allow.get_or_insert_default().extend(allowed_in(value)?),
                "announce" => profile.name.clone_from(value),
                "about" => profile.about = Some(value.clone()),
                "website" => profile.website = Some(value.clone()),
                "picture" => profile.picture = Some(value.clone()),
                "max_clients" => this.max_clients = number("max_clients", value, "a number from 1 to 4096", 4096)?,
                "idle" => {
                    let seconds = number("idle", value, "a number of seconds from 1 to 604800", 604_800)?;
                    this.idle = Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX));
                }
                _ => return Err(NostrAddressError::UnknownOption(name.clone())),
            }
        }
        if seen.contains("announce") {
            this.announce = Some(profile);
        } else if let Some(option) = ["about", "website", "picture"].into_iter().find(|option| seen.contains(option)) {
            let want = "shown only in announcements, so it needs announce=NAME beside it";
            return Err(NostrAddressError::Value { option, value: String::new(), want });
        }
        if this.relays.is_empty() {
            return Err(NostrAddressError::NoRelay);
        }
        if this.relays.len() > MAX_RELAYS {
            return Err(NostrAddressError::TooManyRelays);
        }
        Ok(this)
    }

    /// The server that is to be reached.
    pub(crate) fn server(&self) -> Result<PublicKey, NostrAddressError> {
        for (option, is_set) in [("allow", self.allow.is_some()), ("announce", self.announce.is_some())] {
            if is_set {
                return Err(NostrAddressError::Direction { option, direction: "listen" });
            }
        }
        self.server.ok_or(NostrAddressError::NoServer)
    }

    /// The key file of the server that is offered.
    pub(crate) fn listening_key(&self) -> Result<&PathBuf, NostrAddressError> {
        if self.server.is_some() {
            return Err(NostrAddressError::Direction { option: "server", direction: "connect" });
        }
        self.key.as_ref().ok_or(NostrAddressError::NoKey)
    }
}

fn relays(target: &str) -> Result<Vec<RelayAddress>, NostrAddressError> {
    target.split(',').map(str::trim).filter(|part| !part.is_empty()).map(relay).collect()
}

fn relay(text: &str) -> Result<RelayAddress, NostrAddressError> {
    let wrong = || NostrAddressError::Relay(text.to_owned());
    let full = if text.contains("://") { text.to_owned() } else { format!("wss://{text}") };
    let address: Address = full.parse().map_err(|_| wrong())?;
    let url = RelayUrl::parse(&full).map_err(|_| wrong())?;
    if !matches!(address.transport, Transport::WebSocket { .. }) {
        return Err(wrong());
    }
    Ok(RelayAddress { address, url })
}

/// The server's key, and the relays that its profile names.
fn server(text: &str) -> Result<(PublicKey, Vec<RelayAddress>), NostrAddressError> {
    if let Ok(profile) = Nip19Profile::from_bech32(text) {
        let relays = profile.relays.iter().map(|url| relay(url.as_str())).collect::<Result<_, _>>()?;
        return Ok((profile.public_key, relays));
    }
    Ok((public_key("server", text)?, Vec::new()))
}

fn public_key(option: &'static str, text: &str) -> Result<PublicKey, NostrAddressError> {
    let want = "a public key: 64 hex digits or npub1…";
    let wrong = || NostrAddressError::Value { option, value: text.to_owned(), want };
    let key = PublicKey::parse(text.trim()).map_err(|_| wrong())?;
    // Some 64 digits are no point of the curve.
    key.xonly().map_err(|_| wrong())?;
    Ok(key)
}

/// One key a line. Empty lines and what follows a `#` are skipped.
fn allowed_in(path: &str) -> Result<Vec<PublicKey>, NostrAddressError> {
    let failed = |source| NostrAddressError::AllowFile { path: path.into(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(|line| public_key("allow_file", line)).collect()
}

fn encryption(text: &str) -> Result<Encryption, NostrAddressError> {
    Ok(match text {
        "optional" => Encryption::Optional,
        "required" => Encryption::Required,
        "off" => Encryption::Off,
        _ => {
            let want = "optional, required or off";
            return Err(NostrAddressError::Value { option: "encryption", value: text.to_owned(), want });
        }
    })
}

fn number(option: &'static str, text: &str, want: &'static str, most: usize) -> Result<usize, NostrAddressError> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| NostrAddressError::Value { option, value: text.to_owned(), want })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "3bf0c63fcb93463407af97a5e5ee64fa883d107ef9e558472c4eb9aaaefa459d";

    fn parse(target: &str, options: &[(&str, &str)]) -> Result<NostrAddress, NostrAddressError> {
        let options: Vec<_> = options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        NostrAddress::parse(target, &options)
    }

    #[test]
    fn relays_are_named_with_commas_and_are_secure_unless_they_say_otherwise() {
        let address = parse("ws://127.0.0.1:7777,relay.example", &[("server", KEY)]).unwrap();
        let relays: Vec<_> = address.relays.iter().map(|relay| relay.address.to_string()).collect();
        assert_eq!(relays, ["ws://127.0.0.1:7777/", "wss://relay.example/"]);
        assert_eq!(address.server().unwrap().to_hex(), KEY);
        assert!(matches!(address.listening_key(), Err(NostrAddressError::Direction { option: "server", .. })));
    }

    #[test]
    fn the_file_of_allowed_clients_has_one_key_a_line_and_comments() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("allowed");
        fs::write(&path, format!("# mine\n{KEY} # laptop\n\n")).unwrap();
        let address = parse("ws://r", &[("key", "k"), ("allow_file", path.to_str().unwrap())]).unwrap();
        assert_eq!(address.allow.unwrap().len(), 1);
    }

    #[test]
    fn each_mistake_in_an_address_has_a_name() {
        let error = |target: &str, options: &[(&str, &str)]| parse(target, options).unwrap_err().to_string();
        assert!(error("", &[]).contains("needs a relay"));
        assert!(error("exec:ls", &[]).contains("not the address of a relay"));
        assert!(error("ws://r", &[("keys", "f")]).contains("it has key, server"));
        assert!(error("ws://r", &[("key", "f"), ("key", "g")]).contains("comes twice"));
        assert!(error("ws://r", &[("server", "abc")]).contains("64 hex digits or npub1"));
        assert!(error("ws://r", &[("encryption", "no")]).contains("optional, required or off"));
        assert!(error("ws://r", &[("max_clients", "0")]).contains("1 to 4096"));
        assert!(error("ws://r", &[("about", "x")]).contains("announce=NAME"));
        assert!(parse("ws://r", &[]).unwrap().server().unwrap_err().to_string().contains("?server=PUBKEY"));
        assert!(parse("ws://r", &[]).unwrap().listening_key().unwrap_err().to_string().contains("?key=FILE"));
    }
}
