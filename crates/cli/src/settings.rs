//! Every setting, once: its key, its kind, its default and what it is for.
//!
//! Flags, environment variables, the keys of the file, what `breakbulk config` prints and the tables in
//! `docs/configuration.md` all follow from [`all`].

mod agents;
mod configuration;
mod error;
mod file;
mod flags;
mod fleet;
mod host;
mod kinds;
mod layers;
mod names;
mod proof;
mod relay;
mod serve;
mod table;
mod value;

use std::path::PathBuf;

use breakbulk::Preset;
use breakbulk::address::Size;
use breakbulk::{Address, Dialect};

pub(crate) use self::agents::AgentSettings;
pub(crate) use self::configuration::Configuration;
pub(crate) use self::error::SettingError;
pub(crate) use self::flags::{
    Bridge, Copying, Everything, FleetWide, Peer, Relay, Scope, Serve, SettingsArgs, Stored, Tap, Upkeep,
};
pub(crate) use self::fleet::FleetSettings;
pub(crate) use self::host::HostSettings;
use self::kinds::{Count, Fingerprint, Header, Host, Listen, Secret, WebOrigin};
pub(crate) use self::kinds::{LogLevel, in_full};
pub(crate) use self::layers::{Layers, Origin};
pub(crate) use self::names::{LogFormat, Proxy, Roots};
pub(crate) use self::proof::{
    Access, BridgeSettings, Certificate, ClientAuth, Identity, LinkSettings, LogSettings, REMOTE, ServerTls, Trust,
    check, check_files, to_peer,
};
pub(crate) use self::relay::RelaySettings;

/// The variable with the access key of a relay.
pub(crate) const ACCESS_KEY_VARIABLE: &str = layers::Environment::ACCESS_KEY;
pub(crate) use self::serve::{HostLimits, PATH, ServeSettings, USUAL, V2_PATH, check_scheme, data, retention};
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
        /// Where clients connect: ws://HOST:PORT, wss://HOST:PORT, unix:PATH, stdio: or exec:COMMAND.
        ///
        /// A bridge also takes nostr: and webpubsub: addresses, see docs/nostr.md and docs/webpubsub.md. HOST:PORT is short for ws://HOST:PORT, and :PORT for ws://127.0.0.1:PORT. Port 0 means any free port.
        ///
        /// Options are in the query: ?cap=900000 (the longest frame), ?dialect=ahp|cep22|stdio|plain (the wire form),
        /// ?preset=NAME. With exec: they come before the command: 'exec:?dialect=stdio server --flag'.
        ///
        /// `serve` accepts ws: and wss: only, with the path /ahp or none. Its default is ws://127.0.0.1:4140/ahp.
        listen: Option<Listen> = "serve: ws://127.0.0.1:4140/ahp";
        /// The host to connect each client to, in the same forms.
        connect: Option<Address> = "none";
        /// Keep the command of an exec: address running when a client leaves, for the next client.
        ///
        /// One client at a time has the command; the others wait. The next client gets it when it has answered all requests
        /// of the one before. A command that has exited, or does not answer within 10 seconds after a client has left, is
        /// started again.
        keep: bool = "false";
    }
    Frames {
        /// The known service between us and the peer, for its frame limit: `breakbulk presets` lists them.
        preset: Option<&'static Preset> = "none";
        /// The longest frame to and from the peer. Overrides the cap of a preset.
        ///
        /// The peer is at --connect, or at the URL of `send`, `chat` and `tap`; with `serve` it is every client. A cap or a
        /// preset in the address itself overrides this.
        cap: Option<Size> = "none";
        /// The wire form to and from the peer.
        ///
        /// A dialect in the address itself overrides this. The default is ahp for a WebSocket with a cap, and plain for
        /// everything else.
        dialect: Option<Dialect> = "from the address";
    }
    Listening {
        /// The token that clients must send: as `Authorization: Bearer TOKEN`, or as ?token=TOKEN.
        ///
        /// If it is not set, a new token is made at each start and printed. Other users of this machine can read the
        /// arguments of a program: prefer the environment variable or the file.
        token: Option<Secret> = "made and printed at start";
        /// Require no token: every program and user that can reach the port can connect.
        no_auth: bool = "false";
        /// Allow a listening address that is not loopback, so that other machines can connect.
        bind_any: bool = "false";
        /// Accept web pages of this origin, such as https://example.com. May be given several times.
        ///
        /// Pages from the listening address itself are always accepted.
        allow_origin: Vec<WebOrigin> = "none";
        /// Accept clients that use this host name for us. May be given several times.
        ///
        /// The listening address and the names of loopback are always accepted, with the listening port. If another port is
        /// forwarded to us, give the name without a port, such as 127.0.0.1.
        allow_host: Vec<Host> = "none";
        /// The server's certificate, with its chain (PEM). For wss: addresses.
        tls_cert: Option<PathBuf> = "none";
        /// The key of that certificate (PEM).
        tls_key: Option<PathBuf> = "none";
        /// Make a certificate at start, for development, and print its fingerprint for --tls-fingerprint.
        tls_self_signed: bool = "false";
        /// Accept only clients with a certificate that one of these authorities signed (PEM).
        tls_client_ca: Option<PathBuf> = "none";
    }
    Connecting {
        /// A header to send, such as 'Authorization: Bearer TOKEN'. May be given several times.
        header: Vec<Header> = "none";
        /// Use the HTTP proxy that the environment names, or none.
        ///
        /// The variables are https_proxy for wss:, http_proxy for ws:, and all_proxy for both. Hosts in no_proxy, and this
        /// machine, are reached without a proxy. Upper case works too, except HTTP_PROXY, which in a CGI program a stranger
        /// can set.
        proxy: Proxy = "environment";
        /// Which authorities to trust: native (this machine's), webpki (built in), or both.
        tls_roots: Roots = "both";
        /// Trust these authorities, too (PEM).
        tls_ca: Option<PathBuf> = "none";
        /// Trust only the certificate with this digest.
        tls_fingerprint: Option<Fingerprint> = "none";
        /// Trust any certificate. An attacker between us and the peer can then read and change everything.
        insecure: bool = "false";
        /// The certificate to send to a peer that asks for one (PEM).
        tls_client_cert: Option<PathBuf> = "none";
        /// The key of that certificate (PEM).
        tls_client_key: Option<PathBuf> = "none";
    }
    Limits {
        /// The longest frame to accept.
        ///
        /// On links of a bridge without segments, a frame is a whole message, and max_message counts instead.
        max_frame: Option<Size> = "4MiB, or max_message if less";
        /// The longest message to accept.
        max_message: Size = "32MiB";
        /// How deep arrays and objects may be nested in a message. A deeper one is neither accepted nor sent.
        ///
        /// The default is far above what peers send; many of them accept only 128 or 1,000 levels. From 16 to 16777216.
        max_nesting: u32 = "1000000";
        /// How many unfinished messages a peer may have. Fewer, if memory cannot hold that many of the longest message.
        max_groups: u32 = "8";
        /// How many connections may be open. One more is closed with 1013 (try again later).
        max_connections: Option<Count> = "16384 for serve, 256 for a bridge";
        /// How many bytes may wait to be sent on a connection.
        max_queued: Size = "128MiB";
        /// How many bytes of finished messages a connection may hold back until an earlier message is finished.
        max_held: Size = "64MiB";
        /// How many bytes of messages all connections together may hold.
        ///
        /// A host divides this into requests, answers, sessions and what the log keeps in memory. A bridge holds in it all messages that arrive and wait, and always leaves enough for the longest message of each direction.
        memory: Size = "512MiB";
        /// How many bytes of messages the connections of one token together may hold.
        memory_per_token: Size = "320MiB";
        /// How many bytes of messages each connection may hold in addition, whatever others hold.
        memory_per_connection: Size = "64KiB";
    }
    Time {
        /// How long connecting may take.
        connect_timeout: Span = "10s";
        /// How often to ping a silent peer.
        ping_interval: Span = "10s";
        /// How long a peer may be silent before the connection is closed.
        idle_timeout: Span = "30s";
        /// How long a message may take from its first frame to its last. Advertised to peers.
        ///
        /// On a pipe (stdio) and in cep22 this is the time of the longest message; a shorter one has proportionally less.
        group_timeout: Option<Span> = "as max_message at 64 KiB/s, 30s to 10m";
        /// How much longer than group_timeout to wait, for frames that were sent in time and are still on their way.
        grace: Span = "5s";
        /// How long open messages may take to finish at shutdown.
        shutdown_timeout: Span = "5s";
    }
    Log {
        /// The format of log lines: text for people, json for programs.
        log_format: LogFormat = "text";
        /// What to log: off, error, warn, info, debug, trace, or a filter such as warn,breakbulk=debug.
        log_level: LogLevel = "info";
    }
}
