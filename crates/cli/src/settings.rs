//! Every setting, once: its key, its kind, its default and what it is for.
//!
//! Flags, environment variables, the keys of the file, what `breakbulk config` prints and the tables in
//! `docs/configuration.md` all follow from [`all`].

mod configuration;
mod error;
mod file;
mod flags;
mod host;
mod kinds;
mod layers;
mod names;
mod proof;
mod serve;
mod table;
mod value;

use std::path::PathBuf;

use breakbulk::address::Size;
use breakbulk::preset::Preset;
use breakbulk::{Address, Dialect};

pub(crate) use self::configuration::Configuration;
pub(crate) use self::error::SettingError;
pub(crate) use self::flags::{Bridge, Everything, Peer, Scope, Serve, SettingsArgs, Stored, Tap, Upkeep};
pub(crate) use self::host::HostSettings;
pub(crate) use self::kinds::LogLevel;
use self::kinds::{Fingerprint, Header, Host, Secret, WebOrigin};
pub(crate) use self::layers::{Layers, Origin};
pub(crate) use self::names::{AgentName, LogFormat, Proxy, Roots};
pub(crate) use self::proof::{
    BridgeSettings, Certificate, Door, Identity, Key, LinkSettings, LogSettings, REMOTE, ServerTls, Trust, check,
    check_files, to_peer,
};
pub(crate) use self::serve::{Means, PATH, ServeSettings, data, retention};
use self::table::settings;
pub(crate) use self::table::{Group, Setting};
use self::value::Field;
pub(crate) use self::value::Shown;
#[cfg(test)]
pub(crate) use self::value::Value;
use crate::span::Span;

#[cfg(test)]
mod tests;

/// All settings, in the order in which people see them.
pub(crate) fn all() -> impl DoubleEndedIterator<Item = &'static Setting> {
    TABLE.iter().chain(host::TABLE)
}

/// The setting with this key.
fn find(key: &str) -> Option<&'static Setting> {
    all().find(|setting| setting.key == key)
}

settings! { Settings:
    Ends {
        /// Where clients come in: ws://HOST:PORT, wss://HOST:PORT, unix:PATH, stdio: or exec:COMMAND.
        ///
        /// An address takes options in its query: ?cap=900000 (the longest frame), ?dialect=ahp|cep22|stdio|plain (the
        /// wire form), ?preset=NAME. With exec: they stand before the command: 'exec:?dialect=stdio server --flag'.
        ///
        /// `serve` takes the first two, with the path /ahp or none, and listens on ws://127.0.0.1:4140/ahp unless told
        /// otherwise.
        listen: Option<Address> = "none";
        /// Where they are taken to, in the same forms.
        connect: Option<Address> = "none";
        /// Keep the command of an exec: address running when a connection ends, for the next one.
        ///
        /// One connection at a time has it; the others wait. The next one gets it when it owes no answers to the one before,
        /// and anew when it has exited, or has not answered a client that is gone within 10 seconds.
        keep: bool = "false";
    }
    Frames {
        /// The well-known way that leads to the peer, for its cap: `breakbulk presets` lists them.
        preset: Option<&'static Preset> = "none";
        /// The longest frame on the way to the peer. Goes before a preset's.
        ///
        /// The peer is at --connect, or at the URL of `send` and `tap`; with `serve` it is every client. An address that
        /// has a cap or a preset of its own keeps it.
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
        /// The listening address and the names of loopback are always allowed, with the port that is listened on. Behind
        /// something that forwards another port, allow the name without a port, such as 127.0.0.1.
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
        /// Use the HTTP proxy that the environment names, or none.
        ///
        /// That is https_proxy for wss:, http_proxy for ws:, all_proxy for both, except for hosts that no_proxy names and for
        /// this machine. Capitals will do too, but for HTTP_PROXY, which in a CGI program a stranger can set.
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
        /// How many messages a peer may have begun and not finished; fewer, if memory has no room for so many of the longest.
        max_groups: u32 = "8";
        /// Bytes of messages that may wait to be sent on a connection.
        max_queued: Size = "128MiB";
        /// Bytes of finished messages that a connection may hold back until an earlier one is finished.
        max_held: Size = "64MiB";
        /// Bytes of unfinished messages that all connections together may hold.
        ///
        /// A bridge may hold so much that arrives from clients, as much from hosts, and as much that waits to leave;
        /// and as much, each way, of segments that are not whole.
        memory: Size = "512MiB";
        /// Bytes of unfinished messages that the connections of one token together may hold.
        memory_per_token: Size = "320MiB";
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
