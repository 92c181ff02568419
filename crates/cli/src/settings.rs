//! Every setting, once: its key, its kind, its default and what it is for.
//!
//! Flags, environment variables, the keys of the file, what `breakbulk config` prints and the tables in
//! `docs/configuration.md` all follow from [`TABLE`].

mod configuration;
mod error;
mod file;
mod flags;
mod kinds;
mod layers;
mod names;
mod proof;
mod value;

use std::path::PathBuf;

use breakbulk::address::Size;
use breakbulk::preset::Preset;
use breakbulk::{Address, Dialect};
use strum::Display;

pub(crate) use self::configuration::Configuration;
pub(crate) use self::error::SettingError;
pub(crate) use self::flags::SettingsArgs;
pub(crate) use self::kinds::LogLevel;
use self::kinds::{Fingerprint, Header, Host, Secret, WebOrigin};
use self::layers::Environment;
pub(crate) use self::layers::{Layers, Origin};
pub(crate) use self::names::{LogFormat, Proxy, Roots};
pub(crate) use self::proof::{
    BridgeSettings, Certificate, Door, Identity, Key, LinkSettings, LogSettings, ServerTls, Trust, check, peer,
};
pub(crate) use self::value::Shown;
#[cfg(test)]
pub(crate) use self::value::Value;
use self::value::{Bad, Field, Shape};
use crate::span::Span;

#[cfg(test)]
mod tests;

/// A setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the file.
    pub(crate) key: &'static str,
    pub(crate) group: Group,
    /// Its value if nothing is given; for one that need not have a value, what that means.
    pub(crate) default: &'static str,
    pub(crate) shape: Shape,
    doc: &'static [&'static str],
    show: fn(&[String]) -> Result<Option<Shown>, Bad>,
}

/// What a setting is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub(crate) enum Group {
    Ends,
    Frames,
    Listening,
    Connecting,
    Limits,
    Time,
    Log,
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

/// Makes, from one list, the table of settings and the type that holds them.
macro_rules! settings {
    ($($group:ident { $($(#[doc = $doc:literal])+ $key:ident: $kind:ty = $default:literal;)+ })+) => {
        /// All settings, in the order in which people see them.
        pub(crate) const TABLE: &[Setting] = &[$($(Setting {
            key: stringify!($key),
            group: Group::$group,
            default: $default,
            shape: <$kind as Field>::SHAPE,
            doc: &[$($doc),+],
            show: |texts| Ok(<$kind as Field>::read(texts)?.shown()),
        },)+)+];

        /// What each setting is. [`proof`] makes of it what a command needs.
        #[derive(Debug)]
        pub(crate) struct Settings {
            $($($(#[doc = $doc])+ pub(crate) $key: $kind,)+)+
        }

        impl Settings {
            /// Reads all of them, the wrong ones of other commands too: what is written down should hold.
            pub(crate) fn read(layers: &Layers) -> Result<Self, SettingError> {
                Ok(Self { $($($key: layers.read(stringify!($key))?,)+)+ })
            }
        }
    };
}

settings! {
    Ends {
        /// Where clients come in: ws://HOST:PORT, wss://HOST:PORT, unix:PATH, stdio: or exec:COMMAND.
        ///
        /// An address takes options in its query: ?cap=900000 (the longest frame), ?dialect=ahp|cep22|stdio|plain (the
        /// wire form), ?preset=NAME. With exec: they stand before the command: 'exec:?dialect=stdio server --flag'.
        listen: Option<Address> = "none";
        /// Where they are taken to, in the same forms.
        connect: Option<Address> = "none";
        /// Keep the command of an exec: address running when a connection ends, for the next one.
        keep: bool = "false";
    }
    Frames {
        /// The well-known way that leads to the peer, for its cap: `breakbulk presets` lists them.
        preset: Option<&'static Preset> = "none";
        /// The longest frame on the way to the peer. Goes before a preset's.
        ///
        /// The peer is at --connect, or at the URL of `send` and `tap`. An address that has a cap or a preset of its own
        /// keeps it.
        cap: Option<Size> = "none";
        /// The wire form on the way to the peer.
        ///
        /// An address that names its own keeps it. A WebSocket with a cap speaks ahp unless told otherwise, and
        /// everything else is plain.
        dialect: Option<Dialect> = "from the address";
    }
    Listening {
        /// What a client must show: as `Authorization: Bearer TOKEN`, or as ?token=TOKEN.
        ///
        /// Without one, a new token is made at each start and printed. Other people on this machine can read the
        /// arguments of a program: prefer the environment variable or the file.
        token: Option<Secret> = "made and printed at start";
        /// Let everyone in who can reach the port, without a token: every program and user on this machine.
        no_auth: bool = "false";
        /// Allow a listening address that is not loopback, so that other machines can connect.
        bind_any: bool = "false";
        /// Let pages of this origin in, such as https://example.com. May be given many times.
        ///
        /// Without any, only a page from the listening address itself may connect.
        allow_origin: Vec<WebOrigin> = "none";
        /// Let clients in that call us by this host name. May be given many times.
        ///
        /// The listening address and the names of loopback are always allowed.
        allow_host: Vec<Host> = "none";
        /// The certificate to show, with its chain (PEM). For wss: addresses.
        tls_cert: Option<PathBuf> = "none";
        /// The key of that certificate (PEM).
        tls_key: Option<PathBuf> = "none";
        /// Make a certificate at start, for development, and print its fingerprint for --tls-fingerprint.
        tls_self_signed: bool = "false";
        /// Let only clients in whose certificate was signed by one of these (PEM).
        tls_client_ca: Option<PathBuf> = "none";
    }
    Connecting {
        /// A header to send, such as 'Authorization: Bearer TOKEN'. May be given many times.
        header: Vec<Header> = "none";
        /// Use the HTTP proxy that HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY name, or none.
        proxy: Proxy = "environment";
        /// Whose certificates to trust: this machine's, those built in, or either.
        tls_roots: Roots = "both";
        /// Trust what these signed, too (PEM).
        tls_ca: Option<PathBuf> = "none";
        /// Trust exactly the certificate with this digest, and no other.
        tls_fingerprint: Option<Fingerprint> = "none";
        /// Trust any certificate. Whoever is between us and the peer can then read and change everything.
        insecure: bool = "false";
        /// The certificate to show to the peer (PEM).
        tls_client_cert: Option<PathBuf> = "none";
        /// The key of that certificate (PEM).
        tls_client_key: Option<PathBuf> = "none";
    }
    Limits {
        /// The longest frame to take.
        max_frame: Option<Size> = "4MiB, or max_message if less";
        /// The longest message to take.
        max_message: Size = "32MiB";
        /// How many messages a peer may have begun and not finished.
        max_groups: u32 = "8";
        /// Bytes of messages that may wait to be sent on a connection.
        max_queued: Size = "128MiB";
        /// Bytes of finished messages that a connection may hold back until an earlier one is finished.
        max_held: Size = "64MiB";
        /// Bytes of unfinished messages that all connections together may hold.
        memory: Size = "512MiB";
        /// Bytes of unfinished messages that the connections of one token together may hold.
        memory_per_token: Size = "256MiB";
        /// Bytes of unfinished messages that each connection may hold beside those.
        memory_per_connection: Size = "64KiB";
    }
    Time {
        /// How long a connection may take to be made.
        connect_timeout: Span = "10s";
        /// How often to ask a silent peer whether it is there.
        ping_interval: Span = "10s";
        /// How long a peer may be silent before it is given up.
        idle_timeout: Span = "30s";
        /// How long a message may take to arrive, once begun.
        group_timeout: Span = "30s";
        /// How much longer than that to wait: what was sent in time may still be on its way.
        grace: Span = "5s";
        /// How long open messages may take to finish at the end.
        shutdown_timeout: Span = "5s";
    }
    Log {
        /// How log lines look: text for people, json for programs.
        log_format: LogFormat = "text";
        /// What to log: off, error, warn, info, debug, trace, or a filter such as warn,breakbulk=debug.
        log_level: LogLevel = "info";
    }
}
