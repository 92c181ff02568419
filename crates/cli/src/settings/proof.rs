//! Validated settings: what each command needs, with no two settings that contradict each other.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use breakbulk::{Address, Dialer, Gateway, Route, Transport, tls};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Limits, LimitsConfig, LimitsError};
use http::HeaderMap;

use super::kinds::{Fingerprint, Header, Host, LogLevel, Secret, WebOrigin};
use super::names::{LogFormat, Proxy, Roots};
use super::serve::check_query;
use super::{FleetSettings, HostLimits, HostSettings, Layers, Origin, SettingError, Settings, find};
use crate::units;

/// The validated settings of `bridge`.
#[derive(Debug)]
pub(crate) struct BridgeSettings {
    /// From the clients.
    pub(crate) downstream: Route,
    /// To the host.
    pub(crate) upstream: Route,
    /// Whether the command of an `exec:` address outlives a connection.
    pub(crate) keep: bool,
    pub(crate) access: Access,
    pub(crate) link: LinkSettings,
    /// Clients at once.
    pub(crate) max_connections: usize,
    /// How long open messages may take to finish at the end.
    pub(crate) shutdown_timeout: Duration,
}

/// The default limit of clients of a bridge: each may be a process.
const MAX_CONNECTIONS: usize = 256;

/// How many connections there may be at once.
pub(super) fn connections(settings: &Settings, usual: usize) -> usize {
    settings.max_connections.map_or(usual, |count| usize::try_from(count.0).unwrap_or(usize::MAX))
}

/// Who may connect to a listener.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) key: ClientAuth,
    /// Whether other machines may connect.
    pub(crate) bind_any: bool,
    pub(crate) origins: Vec<WebOrigin>,
    pub(crate) hosts: Vec<Host>,
    /// For `wss:`; `None` for every other address.
    pub(crate) tls: Option<ServerTls>,
}

/// How a client authenticates.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClientAuth {
    /// With a token that is generated at start and printed.
    Made,
    /// With this token.
    Token(Secret),
    /// Not at all: everyone who can reach the port may connect.
    Nothing,
}

/// The TLS settings of a listener.
#[derive(Debug)]
pub(crate) struct ServerTls {
    pub(crate) certificate: Certificate,
    /// Who signs the certificates of clients, if they must have any.
    pub(crate) client_ca: Option<PathBuf>,
}

/// The certificate of a listener.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Certificate {
    /// One that is made at start, and whose fingerprint is printed.
    Made,
    /// One from files.
    Files(Identity),
}

/// A certificate and its key, both PEM.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// What every command that opens a link needs.
#[derive(Debug)]
pub(crate) struct LinkSettings {
    pub(crate) limits: Limits,
    pub(crate) budget: BudgetConfig,
    pub(crate) headers: HeaderMap,
    pub(crate) proxy: Proxy,
    pub(crate) trust: Trust,
    /// Our certificate, for a peer that requests one.
    pub(crate) identity: Option<Identity>,
    pub(crate) connect_timeout: Duration,
    pub(crate) ping_interval: Duration,
    pub(crate) idle_timeout: Duration,
}

/// Which certificates of a peer we trust.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Those that these signed.
    Signed { roots: Roots, ca: Option<PathBuf> },
    /// One.
    Fingerprint(Fingerprint),
    /// All.
    Anything,
}

/// What is logged, and how.
#[derive(Debug)]
pub(crate) struct LogSettings {
    pub(crate) format: LogFormat,
    pub(crate) level: LogLevel,
}

impl LogSettings {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self { format: settings.log_format, level: settings.log_level.clone() }
    }
}

impl BridgeSettings {
    pub(crate) fn prove(settings: Settings, layers: &Layers) -> Result<Self, SettingError> {
        let listen = settings.listen.clone().ok_or_else(|| missing("listen"))?.0;
        let connect = settings.connect.as_ref().ok_or_else(|| missing("connect"))?;
        if listen.transport.is_stdio() && connect.transport.is_stdio() {
            return Err(together(layers, "listen", "connect", "cannot both be stdio:"));
        }
        if let Transport::WebSocket { target, .. } = &listen.transport {
            check_query(target).map_err(|why| layers.refuse("listen", why))?;
        }
        let (keep, shutdown_timeout) = (settings.keep, settings.shutdown_timeout.0);
        let max_connections = connections(&settings, MAX_CONNECTIONS);
        let access = Access::prove(&settings, Some(&listen), layers)?;
        let (upstream, link) = to_peer(settings, layers)?;
        let downstream = link.route(listen, Role::Server).map_err(|why| layers.refuse("listen", why))?;
        let fits = |budget| Gateway::check_memory(&downstream.setup, &upstream.setup, budget);
        fits(link.budget).map_err(|error| no_memory(&error, layers, link.budget, |budget| fits(budget).is_ok()))?;
        Ok(Self { downstream, upstream, keep, access, link, max_connections, shutdown_timeout })
    }

    /// Whether one of its ends is our own standard input and output.
    pub(crate) const fn uses_stdio(&self) -> bool {
        self.downstream.address.transport.is_stdio() || self.upstream.address.transport.is_stdio()
    }
}

/// Why an address other than loopback is refused. A host name can be checked only after it is resolved.
pub(crate) const REMOTE: &str = "can be reached from other machines: listen on 127.0.0.1, or add --bind-any";

impl Access {
    /// The token that clients must send, if one was configured.
    pub(crate) fn token(&self) -> Option<breakbulk::Token> {
        match &self.key {
            // It was parsed before.
            ClientAuth::Token(secret) => secret.reveal().parse().ok(),
            ClientAuth::Made | ClientAuth::Nothing => None,
        }
    }

    pub(super) fn prove(settings: &Settings, listen: Option<&Address>, layers: &Layers) -> Result<Self, SettingError> {
        let key = match (&settings.token, settings.no_auth) {
            (Some(_), true) => return Err(together(layers, "token", "no_auth", "cannot be used together")),
            (Some(token), false) => {
                let proven = token.reveal().parse::<breakbulk::Token>();
                proven.map_err(|why| layers.refuse("token", why.to_string()))?;
                ClientAuth::Token(token.clone())
            }
            (None, true) => ClientAuth::Nothing,
            (None, false) => ClientAuth::Made,
        };
        let files = identity(&settings.tls_cert, &settings.tls_key, ("tls_cert", "tls_key"), layers)?;
        let certificate = match (files, settings.tls_self_signed) {
            (Some(_), true) => return Err(together(layers, "tls_cert", "tls_self_signed", "cannot be used together")),
            (Some(files), false) => Some(Certificate::Files(files)),
            (None, made) => made.then_some(Certificate::Made),
        };
        let client_ca = settings.tls_client_ca.clone();
        let tls = match (certificate, listen.is_some_and(|listen| listen.transport.is_tls())) {
            (Some(certificate), true) => Some(ServerTls { certificate, client_ca }),
            (None, true) => {
                return Err(layers.refuse("listen", "wss: needs tls_cert and tls_key, or tls_self_signed".into()));
            }
            // With a configured certificate, a port without TLS would be a mistake.
            (Some(_), false) if listen.is_some_and(|listen| listen.transport.is_web_socket()) => {
                return Err(layers.refuse("listen", "a certificate is set, so it must be wss:".into()));
            }
            (_, false) => None,
        };
        if let Some(Transport::WebSocket { host, .. }) = listen.map(|listen| &listen.transport)
            && !settings.bind_any
            && host.parse().is_ok_and(|ip: IpAddr| !ip.to_canonical().is_loopback())
        {
            return Err(layers.refuse("listen", format!("it {REMOTE}")));
        }
        let (origins, hosts) = (settings.allow_origin.clone(), settings.allow_host.clone());
        Ok(Self { key, bind_any: settings.bind_any, origins, hosts, tls })
    }
}

impl LinkSettings {
    /// `usable` says how much of the memory arriving messages may take.
    pub(crate) fn prove(
        settings: Settings,
        layers: &Layers,
        usable: impl Fn(u64) -> u64,
    ) -> Result<Self, SettingError> {
        let trust = match (settings.tls_fingerprint, settings.insecure) {
            (Some(_), true) => return Err(together(layers, "tls_fingerprint", "insecure", "cannot be used together")),
            (Some(fingerprint), false) => Trust::Fingerprint(fingerprint),
            (None, true) => Trust::Anything,
            (None, false) => Trust::Signed { roots: settings.tls_roots, ca: settings.tls_ca.clone() },
        };
        let names = ("tls_client_cert", "tls_client_key");
        let identity = identity(&settings.tls_client_cert, &settings.tls_client_key, names, layers)?;
        if settings.ping_interval >= settings.idle_timeout {
            return Err(together(
                layers,
                "ping_interval",
                "idle_timeout",
                "contradict each other: the first must be shorter",
            ));
        }
        let budget = BudgetConfig {
            process_bytes: usable(settings.memory.0),
            principal_bytes: settings.memory_per_token.0,
            floor_bytes: settings.memory_per_connection.0,
        };
        let usual_frame = || LimitsConfig::default().max_frame_bytes.min(settings.max_message.0);
        let limits = LimitsConfig {
            max_frame_bytes: settings.max_frame.map_or_else(usual_frame, |max| max.0),
            max_message_bytes: settings.max_message.0,
            max_depth: settings.max_nesting,
            max_groups: settings.max_groups,
            group_timeout: settings.group_timeout.map(|timeout| timeout.0),
            grace: settings.grace.0,
            max_queued_bytes: settings.max_queued.0,
            max_held_bytes: settings.max_held.0,
        };
        let whole = BudgetConfig { process_bytes: settings.memory.0, ..budget };
        let fits = |budget: BudgetConfig| {
            let budget = BudgetConfig { process_bytes: usable(budget.process_bytes), ..budget };
            Limits::prove(limits, &budget).is_ok()
        };
        let limits = Limits::prove(limits, &budget).map_err(|error| limit(&error, layers, whole, fits))?;
        Ok(Self {
            limits,
            budget,
            headers: headers(&settings.header, layers)?,
            proxy: settings.proxy,
            trust,
            identity,
            connect_timeout: settings.connect_timeout.0,
            ping_interval: settings.ping_interval.0,
            idle_timeout: settings.idle_timeout.0,
        })
    }

    /// The route to an address, with its limits. The error says what is allowed.
    pub(super) fn route(&self, address: Address, role: Role) -> Result<Route, String> {
        Route::prove(address, role, self.limits, &self.budget).map_err(|error| match error.key {
            "max_frame_bytes" => format!("allowed as a cap are {} to {} bytes", error.min, error.max),
            _ => error.to_string(),
        })
    }
}

/// The route to the peer that we connect to.
pub(crate) fn to_peer(settings: Settings, layers: &Layers) -> Result<(Route, LinkSettings), SettingError> {
    let connect = settings.connect.clone().ok_or_else(|| missing("connect"))?;
    let (connect, capped_by) = towards_peer(connect, "connect", &settings);
    let link = LinkSettings::prove(settings, layers, |memory| memory)?;
    let route = link.route(connect, Role::Client).map_err(|why| layers.refuse(capped_by, why))?;
    Ok((route, link))
}

/// Checks that the settings do not contradict each other, for `breakbulk config`.
pub(crate) fn check(settings: Settings, layers: &Layers) -> Result<(), SettingError> {
    let host = HostSettings::read(layers)?;
    HostLimits::prove(&host, Vec::new(), layers)?;
    FleetSettings::prove(&host, layers)?;
    if settings.listen.is_some() && settings.connect.is_some() {
        return BridgeSettings::prove(settings, layers).map(drop);
    }
    Access::prove(&settings, None, layers)?;
    let downstream = settings.listen.clone().map(|listen| (listen.0, "listen"));
    // Settings about a peer are checked even if no peer is named.
    let peer = settings.connect.clone().or_else(|| "stdio:".parse().ok());
    let upstream = peer.map(|peer| towards_peer(peer, "connect", &settings));
    let link = LinkSettings::prove(settings, layers, |memory| memory)?;
    for (address, key) in downstream.into_iter().chain(upstream) {
        link.route(address, Role::Client).map_err(|why| layers.refuse(key, why))?;
    }
    Ok(())
}

/// The address of a peer with the options that other settings add to it, and the key of the setting that gives its cap.
/// The address is the value of `key`.
pub(super) fn towards_peer(mut address: Address, key: &'static str, settings: &Settings) -> (Address, &'static str) {
    address.dialect = address.dialect.or(settings.dialect);
    if address.cap.is_some() || address.preset.is_some() {
        return (address, key);
    }
    address.preset = settings.preset;
    address.cap = settings.cap.map(|cap| cap.0).or_else(|| settings.preset.map(|preset| preset.cap));
    let capped_by = match (settings.cap, settings.preset) {
        (Some(_), _) => "cap",
        (None, Some(_)) => "preset",
        (None, None) => key,
    };
    (address, capped_by)
}

/// The headers to send. Headers of the handshake itself are refused.
fn headers(named: &[Header], layers: &Layers) -> Result<HeaderMap, SettingError> {
    let mut dialer = Dialer::default();
    for Header { name, value } in named {
        let added = dialer.add_header(&format!("{name}: {}", value.reveal()));
        added.map_err(|why| layers.refuse("header", why.to_string()))?;
    }
    Ok(dialer.headers)
}

/// Whether the files that settings name can be used.
pub(crate) fn check_files(settings: &Settings, layers: &Layers) -> Result<(), SettingError> {
    for (key, path) in [("tls_ca", &settings.tls_ca), ("tls_client_ca", &settings.tls_client_ca)] {
        let checked = path.as_ref().map_or(Ok(()), |path| tls::check_authorities(path));
        checked.map_err(|why| layers.refuse(key, why.to_string()))?;
    }
    for (names, certificate, key) in [
        (("tls_cert", "tls_key"), &settings.tls_cert, &settings.tls_key),
        (("tls_client_cert", "tls_client_key"), &settings.tls_client_cert, &settings.tls_client_key),
    ] {
        let (Some(certificate), Some(key)) = (certificate.clone(), key.clone()) else { continue };
        let checked = tls::Identity { certificate, key: key.clone() }.check();
        checked.map_err(|why| {
            let is_key = matches!(&why, tls::TlsError::File { path, .. } if *path == key);
            layers.refuse(if is_key { names.1 } else { names.0 }, why.to_string())
        })?;
    }
    Ok(())
}

/// A limit that does not hold, under the name that it has here.
fn limit(
    error: &LimitsError,
    layers: &Layers,
    budget: BudgetConfig,
    fits: impl Fn(BudgetConfig) -> bool,
) -> SettingError {
    let name = error.key.trim_end_matches("_bytes").trim_end_matches("_ms");
    let unit = if error.key.ends_with("_bytes") {
        " bytes"
    } else if error.key.ends_with("_ms") {
        " ms"
    } else {
        ""
    };
    // The depth of trees of files has that name already.
    let name = if name == "max_depth" { "max_nesting" } else { name };
    let key = find(name).map_or(error.key, |setting| setting.key);
    let (least, most) = (error.min, error.max);
    let is_given = |key| layers.origin(key) != Origin::Default;
    // If two settings contradict each other, the error names the one that was set.
    match key {
        "max_frame" if !is_given("max_frame") => {
            return layers.refuse("max_message", format!("allowed are {} and more", units::bytes(least)));
        }
        "max_message" if !is_given("max_message") && error.value < least => {
            return layers
                .refuse("max_frame", format!("allowed are up to {}, which is max_message", units::bytes(error.value)));
        }
        "max_message" if !is_given("max_message") => return too_little(error.value, "", layers, budget, fits),
        _ => {}
    }
    let allowed = match key {
        "max_message" if error.value < least => {
            format!("allowed are {} and more, because of max_frame", units::bytes(least))
        }
        "max_message" => {
            format!("allowed are up to {}, because of memory and memory_per_token", units::bytes(most))
        }
        _ => format!("allowed are {least} to {most}{unit}"),
    };
    layers.refuse(key, allowed)
}

/// The error when a bridge has no memory for the longest message of each direction. It names the setting that the user
/// gave.
fn no_memory(
    error: &LimitsError,
    layers: &Layers,
    budget: BudgetConfig,
    fits: impl Fn(BudgetConfig) -> bool,
) -> SettingError {
    if layers.origin("max_message") != Origin::Default {
        let why = "because memory and memory_per_token must hold one message from each side at the same time";
        return layers.refuse("max_message", format!("allowed are up to {}, {why}", units::bytes(error.max)));
    }
    too_little(error.value, " and one message from each side may arrive at the same time", layers, budget, fits)
}

/// The error when there is too little memory for messages of `max_message` bytes: says how much is needed. If either of
/// two settings could be changed, it names the one that the user gave.
fn too_little(
    max_message: u64,
    also: &str,
    layers: &Layers,
    budget: BudgetConfig,
    fits: impl Fn(BudgetConfig) -> bool,
) -> SettingError {
    let key = if layers.origin("memory") == Origin::Default { "memory_per_token" } else { "memory" };
    // The other one may be too small as well; that is told when this one suffices.
    let with = |mebibytes: u64| {
        let bytes = mebibytes.saturating_mul(1 << 20);
        match key {
            "memory" => BudgetConfig { process_bytes: bytes, principal_bytes: u64::MAX >> 8, ..budget },
            _ => BudgetConfig { process_bytes: u64::MAX >> 8, principal_bytes: bytes, ..budget },
        }
    };
    let (mut too_few, mut enough) = (0_u64, MOST_MEBIBYTES);
    while enough.saturating_sub(too_few) > 1 {
        let middle = too_few.midpoint(enough);
        if fits(with(middle)) { enough = middle } else { too_few = middle }
    }
    let needed = if enough == MOST_MEBIBYTES { "more memory".to_owned() } else { format!("at least {enough}MiB") };
    let max_message = units::bytes(max_message);
    let why = format!("max_message is {max_message}{also}: raise {key}, or lower max_message");
    layers.refuse(key, format!("it needs {needed}, because {why}"))
}

/// More memory than any machine has.
const MOST_MEBIBYTES: u64 = 1 << 30;

fn identity(
    certificate: &Option<PathBuf>,
    key: &Option<PathBuf>,
    names: (&'static str, &'static str),
    layers: &Layers,
) -> Result<Option<Identity>, SettingError> {
    match (certificate.clone(), key.clone()) {
        (Some(certificate), Some(key)) => Ok(Some(Identity { certificate, key })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(layers.refuse(names.0, format!("it also needs {}", names.1))),
        (None, Some(_)) => Err(layers.refuse(names.1, format!("it also needs {}", names.0))),
    }
}

pub(super) fn missing(key: &'static str) -> SettingError {
    let (flag, variable) = find(key).map(|setting| (setting.flag(), setting.variable())).unwrap_or_default();
    SettingError::Missing { key, flag, variable }
}

pub(super) fn together(layers: &Layers, one: &'static str, other: &'static str, why: &'static str) -> SettingError {
    let named = |key| (layers.name(key), layers.origin(key));
    SettingError::Together { one: named(one), other: named(other), why }
}
