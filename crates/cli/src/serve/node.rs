//! A node of a fleet: it serves the host while it owns it, and carries its clients to the owner while another node does.

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use breakbulk::dial::ProxyChoice;
use breakbulk::listen::{BoxBody, Forwarding, Upstream};
use breakbulk::{Accepted, AccessPolicy, Address, Dialer, Listener, Transport};
use breakbulk_host::Host;
use breakbulk_host::fleet::{LeaseStore, Nats, NodeInfo, NodeStatus, OpenLogError, Ownership, Presence, Standing};
use breakbulk_host::log::jetstream::{JetStreamConfig, JetStreamLog};
use breakbulk_host::log::{Log, LogHealth};
use http::{HeaderMap, Method, Response};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::clients::Clients;
use super::entrance::Entrance;
use super::host_parts::HostParts;
use super::manager;
use crate::args::Format;
use crate::content;
use crate::failure::Error;
use crate::open;
use crate::page;
use crate::pages::{Health, Subject};
use crate::settings::{FleetSettings, ServeSettings};
use crate::shutdown::Signal;

/// How long a client waits beside the lease while nobody serves, and at most.
const OPENING: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Clients that may wait while nobody serves. If one more comes, the oldest has to come again.
const MAX_WAITING: usize = 4_096;
/// How long opening a connection to the owner may take. It is near.
const NEAR: Duration = Duration::from_secs(2);
/// How long agents and terminals may take to end when another node may serve already.
const ABANDONING: Duration = Duration::from_secs(6);
/// The wait after the log could not be opened.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the lease may take to be given back. Without an answer, it ends by itself.
const HANDING_OVER: Duration = Duration::from_secs(2);

/// Runs a node until it is told to stop.
pub(super) async fn run(
    mut settings: ServeSettings,
    fleet: FleetSettings,
    format: Format,
    open: bool,
    shutdown: impl Future<Output = Signal>,
) -> Result<(), Error> {
    let id = node_id()?;
    let failed = |error: breakbulk_host::fleet::ConnectError| Error::Host(error.to_string());
    let nats = fleet.access.connect(&id).await.map_err(failed)?;
    nats.check_jetstream().await.map_err(failed)?;
    let leases = LeaseStore::open(&nats, fleet.replicas).await.map_err(failed)?;
    let parts = HostParts::new(&mut settings);
    let log = log_config(&fleet, &parts, &id);
    let prepared = JetStreamLog::prepare(nats.client(), &log).await;
    prepared.map_err(|error| Error::Host(nats.explain(&error.to_string()).to_string()))?;

    let (say, upstream) = watch::channel(Upstream::Nobody);
    let served = Arc::new(Served::default());
    let forwarding = forwarding(&settings, &fleet, upstream.clone());
    let subject = NodePages { served: Arc::clone(&served), upstream: upstream.clone(), nats: nats.clone(), forwarding };
    let advertised = fleet.advertise.as_ref().and_then(authority);
    let forwarding = subject.forwarding.clone();
    let entrance = Entrance::open(&settings, subject, |config| {
        config.forwarding = Some(forwarding.clone());
        config.max_handshakes = MAX_WAITING;
        // Other nodes use this name for us.
        if let Some(name) = advertised {
            let access = std::mem::replace(&mut config.access, AccessPolicy::open());
            config.access = access.allow_host(name);
        }
    });
    let entrance = entrance.await?;
    let address = match &fleet.advertise {
        Some(address) => address.to_string(),
        None => own_address(&entrance)?,
    };
    let me = NodeInfo { id, address };
    info!(log = %fleet.access.address, host = %fleet.host, node = me.id, address = me.address, "this is a node of a fleet");
    parts.say();
    let describe = {
        let (served, forwarding, node) = (Arc::clone(&served), forwarding, me.clone());
        move || NodeStatus {
            node: node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: served.epoch(),
            clients: served.host().map_or(0, |host| count(host.endpoint().clients().len())),
            carried: count(forwarding.carried()),
        }
    };
    let _presence = Presence::start(&nats, &fleet.host, describe).await.map_err(failed)?;
    let ownership = Ownership::start(leases, fleet.host.clone(), me, fleet.lease);
    let (max_connections, shutdown_timeout) = (settings.max_connections, settings.shutdown_timeout);
    let node = Node { parts, log, nats, ownership, served, upstream: say, shutdown_timeout };
    Doors { clients: Clients::new(max_connections), entrance, shutdown_timeout }
        .serve(node, upstream, format, open, shutdown)
        .await
}

/// What clients reach of a node, whether it owns the host or not.
struct Doors {
    clients: Clients,
    entrance: Entrance,
    shutdown_timeout: Duration,
}

impl Doors {
    async fn serve(
        mut self,
        node: Node,
        mut upstream: watch::Receiver<Upstream>,
        format: Format,
        open: bool,
        shutdown: impl Future<Output = Signal>,
    ) -> Result<(), Error> {
        let served = Arc::clone(&node.served);
        let (stop, stopped) = watch::channel(false);
        let mut terms = tokio::spawn(node.serve_terms(stopped));
        let mut shutdown = std::pin::pin!(shutdown);
        let mut redirect = None;
        let mut is_ready = false;
        loop {
            tokio::select! {
                accepted = self.entrance.listener.accept() => self.take(&served, accepted),
                () = self.clients.one_left() => {}
                () = until(&mut upstream, |upstream| *upstream != Upstream::Nobody), if !is_ready => {
                    is_ready = true;
                    self.entrance.say(format)?;
                    redirect = open.then(|| self.entrance.open_page());
                    manager::ready();
                }
                // Without having been told to stop, they end only if there is no sense in going on.
                ended = &mut terms => {
                    manager::stopping();
                    self.clients.shutdown().await;
                    return ended.map_err(|_| Error::Bug)?.map(drop);
                }
                signal = &mut shutdown => {
                    info!("{signal}: handing over when open work is finished");
                    break;
                }
            }
        }
        manager::stopping();
        drop((self.entrance, redirect));
        stop.send_replace(true);
        let ended = terms.await.map_err(|_| Error::Bug)?;
        let Node { ownership, .. } = ended?;
        if timeout(self.shutdown_timeout, self.clients.all_left()).await.is_err() {
            warn!("not everything was finished within {} s", self.shutdown_timeout.as_secs_f32());
        }
        self.clients.shutdown().await;
        drop(ownership);
        Ok(())
    }

    fn take(&mut self, served: &Served, accepted: Accepted) {
        // If the host has just been given up, the client comes back.
        if let Some(host) = served.host() {
            self.clients.take(&host, accepted);
        }
    }
}

/// The host while this node owns it.
#[derive(Default)]
struct Served(RwLock<Option<ServedHost>>);

struct ServedHost {
    host: Host,
    epoch: u64,
    /// When the lease ends. A process that was stopped looks at the clock before it takes a client in.
    valid_until: watch::Receiver<Option<Instant>>,
}

impl Served {
    fn host(&self) -> Option<Host> {
        self.with(|served| served.host.clone())
    }

    fn epoch(&self) -> Option<u64> {
        self.with(|served| served.epoch)
    }

    fn with<T>(&self, read: impl FnOnce(&ServedHost) -> T) -> Option<T> {
        let served = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_valid = |served: &&ServedHost| served.valid_until.borrow().is_some_and(|end| Instant::now() < end);
        served.as_ref().filter(is_valid).map(read)
    }

    fn set(&self, host: Option<ServedHost>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = host;
    }
}

/// What a node needs to own the host.
struct Node {
    parts: HostParts,
    log: JetStreamConfig,
    nats: Nats,
    ownership: Ownership,
    served: Arc<Served>,
    upstream: watch::Sender<Upstream>,
    shutdown_timeout: Duration,
}

/// A time in which this node owns the host.
struct Term {
    host: Host,
    log: JetStreamLog,
    epoch: u64,
}

/// Why a term has not begun.
enum NoTerm {
    /// Another node owns the host meanwhile.
    Lost,
    /// The log cannot be opened now: JetStream does not answer, or the stream has no leader.
    Unavailable(Error),
    /// The host cannot be started.
    Failed(Error),
}

/// Why a term ends.
enum TermEnd {
    /// The node was told to stop.
    Stop,
    /// The lease could not be renewed, or another node has it.
    LeaseLost,
    /// The log has another owner.
    Fenced,
}

impl Node {
    /// Serves whenever this node owns the host, until it is told to stop.
    async fn serve_terms(self, mut stopped: watch::Receiver<bool>) -> Result<Self, Error> {
        let mut standing = self.ownership.standing();
        let mut has_served = false;
        loop {
            tokio::select! {
                () = self.owned(&mut standing) => {}
                () = until(&mut stopped, |stopped| *stopped) => {
                    self.hand_over().await;
                    return Ok(self);
                }
            }
            let term = match self.open(&mut standing).await {
                Ok(term) => term,
                Err(NoTerm::Lost) => continue,
                Err(NoTerm::Failed(error)) if !has_served && !*stopped.borrow() => {
                    self.hand_over().await;
                    return Err(error);
                }
                Err(NoTerm::Unavailable(error) | NoTerm::Failed(error)) => {
                    error!("this node cannot serve the host, and leaves it to others: {error}");
                    self.ownership.step_back().await;
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            has_served = true;
            let epoch = term.epoch;
            let valid_until = self.ownership.valid_until();
            self.served.set(Some(ServedHost { host: term.host.clone(), epoch, valid_until }));
            self.upstream.send_replace(Upstream::Here);
            let end = tokio::select! {
                () = until(&mut stopped, |stopped| *stopped) => TermEnd::Stop,
                () = until(&mut standing, |standing| !matches!(standing, Standing::Owner { .. })) => TermEnd::LeaseLost,
                () = super::fenced(term.log.health()) => TermEnd::Fenced,
            };
            self.upstream.send_replace(Upstream::Nobody);
            match end {
                TermEnd::Stop => {
                    let stopped = async {
                        term.host.stop().await;
                        term.log.close().await;
                    };
                    if timeout(self.shutdown_timeout, stopped).await.is_err() {
                        warn!("not everything was finished within {} s", self.shutdown_timeout.as_secs_f32());
                        term.log.abandon();
                    }
                    self.served.set(None);
                    self.hand_over().await;
                    return Ok(self);
                }
                TermEnd::LeaseLost => {
                    warn!(epoch, "this node has lost the host: its lease could not be renewed in time")
                }
                TermEnd::Fenced => warn!(epoch, "this node has lost the host: another node has taken over the log"),
            }
            term.log.abandon();
            if timeout(ABANDONING, term.host.abandon()).await.is_err() {
                warn!("agents and terminals did not end in time");
                term.host.endpoint().stop();
                term.host.v2().stop();
            }
            self.served.set(None);
            if matches!(end, TermEnd::Fenced) {
                self.ownership.step_back().await;
            }
        }
    }

    /// Waits until this node owns the host, and says meanwhile where the owner is.
    async fn owned(&self, standing: &mut watch::Receiver<Standing>) {
        loop {
            let now = standing.borrow_and_update().clone();
            let upstream = match now {
                Standing::Owner { .. } => {
                    self.upstream.send_replace(Upstream::Nobody);
                    return;
                }
                Standing::Other(record) => record.node.address.parse().map_or(Upstream::Nobody, Upstream::At),
                Standing::Nobody => Upstream::Nobody,
            };
            self.upstream.send_if_modified(|known| std::mem::replace(known, upstream.clone()) != upstream);
            if standing.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Opens the log, which fences a former owner, and starts the host.
    async fn open(&self, standing: &mut watch::Receiver<Standing>) -> Result<Term, NoTerm> {
        let opened = async {
            let log = match self.ownership.open_log(self.nats.client(), &self.log).await {
                Ok(log) => log,
                Err(OpenLogError::NotOwner) => return Err(NoTerm::Lost),
                Err(error) => {
                    return Err(NoTerm::Unavailable(Error::Host(self.nats.explain(&error.to_string()).to_string())));
                }
            };
            match self.parts.start(Arc::new(log.clone())).await {
                Ok(host) => Ok(Term { host, epoch: log.epoch(), log }),
                Err(_) if *log.health().borrow() == LogHealth::Fenced => Err(NoTerm::Lost),
                Err(error) => {
                    log.abandon();
                    Err(NoTerm::Failed(error))
                }
            }
        };
        tokio::select! {
            term = opened => term,
            () = until(standing, |standing| !matches!(standing, Standing::Owner { .. })) => Err(NoTerm::Lost),
        }
    }

    async fn hand_over(&self) {
        if timeout(HANDING_OVER, self.ownership.hand_over()).await.is_err() {
            warn!("the lease could not be given back: another node takes over when it ends");
        }
    }
}

/// The pages of a node. Content is that of the host, wherever it is.
struct NodePages {
    served: Arc<Served>,
    upstream: watch::Receiver<Upstream>,
    nats: Nats,
    forwarding: Forwarding,
}

impl Subject for NodePages {
    async fn content(&self, method: &Method, path: &str, headers: &HeaderMap) -> Option<Response<BoxBody>> {
        if let Some(host) = self.served.host() {
            return Some(content::answer(&host, method, path, headers).await);
        }
        self.forwarding.page(method, &format!("/content/{path}"), headers).await
    }

    fn file(&self, path: &str, headers: &HeaderMap) -> Option<Response<BoxBody>> {
        page::answer(path, headers)
    }

    /// Whether clients that come here are served, by this node or by another.
    async fn health(&self) -> Health {
        if let Some(host) = self.served.host() {
            let health = host.health().await;
            let mut json = health.to_json();
            json["owner"] = "this node".into();
            return Health { is_good: health.is_good(), text: json.to_string() };
        }
        let has_owner = matches!(*self.upstream.borrow(), Upstream::At(_));
        let is_connected = self.nats.is_connected();
        let word = |good| if good { "ok" } else { "failed" };
        let json = serde_json::json!({
            "status": word(has_owner && is_connected),
            "checks": { "nats": word(is_connected), "owner": word(has_owner) },
            "owner": if has_owner { "another node" } else { "nobody" },
        });
        Health { is_good: has_owner && is_connected, text: json.to_string() }
    }

    fn metrics(&self) -> String {
        let mut page = match self.served.host() {
            Some(host) => Host::metrics(&host),
            None => format!(
                "# HELP breakbulk_build_info Which program this is.\n# TYPE breakbulk_build_info gauge\n\
                 breakbulk_build_info{{version=\"{}\"}} 1\n",
                env!("CARGO_PKG_VERSION")
            ),
        };
        let epoch = self.served.epoch();
        for (name, help, value) in [
            ("breakbulk_fleet_owner", "Whether this node owns the host.", u64::from(epoch.is_some())),
            ("breakbulk_fleet_epoch", "The number of its ownership; 0 if it does not own.", epoch.unwrap_or(0)),
            (
                "breakbulk_fleet_carried_connections",
                "Connections that are carried to the owner.",
                count(self.forwarding.carried()),
            ),
        ] {
            // Writing to a text does not fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        page
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Resolves when a watched value is as wanted, or nobody changes it any more.
async fn until<T>(watched: &mut watch::Receiver<T>, is_wanted: impl FnMut(&T) -> bool) {
    drop(watched.wait_for(is_wanted).await);
}

/// Which process this is: the name of the machine, and a random part.
fn node_id() -> Result<String, Error> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(Error::Random)?;
    let name = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    let name: String =
        name.unwrap_or_default().trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
    let name = if name.is_empty() { "node".to_owned() } else { name };
    Ok(format!("{name}-{:08x}", u32::from_be_bytes(random)))
}

fn log_config(fleet: &FleetSettings, parts: &HostParts, node: &str) -> JetStreamConfig {
    let mut config = JetStreamConfig::new(fleet.host.clone());
    config.node = node.to_owned();
    config.replicas = fleet.replicas;
    config.merge.clone_from(&parts.store.merge);
    config.max_batch_bytes = parts.store.max_batch_bytes;
    config.max_queued_bytes = parts.store.max_queued_bytes;
    config.recent_bytes = parts.store.recent_bytes;
    config
}

fn forwarding(settings: &ServeSettings, fleet: &FleetSettings, upstream: watch::Receiver<Upstream>) -> Forwarding {
    let mut dialer: Dialer = open::socket_dialer(&settings.route, &settings.link);
    (dialer.proxy, dialer.timeout) = (ProxyChoice::Never, NEAR);
    dialer.token = settings.access.token();
    let wait = fleet.lease.saturating_add(OPENING).min(LONGEST_WAIT);
    Forwarding::new(upstream, dialer, wait, settings.max_connections)
}

/// Host and port of an address.
fn authority(address: &Address) -> Option<String> {
    let Transport::WebSocket { host, port, .. } = &address.transport else { return None };
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// The listening address, if other nodes can use it.
fn own_address(entrance: &Entrance) -> Result<String, Error> {
    let Entrance { listener, admission, .. } = entrance;
    let listening = Listener::local_address(listener);
    if listening.ip().is_unspecified() {
        let why = format!("other nodes cannot reach {listening}: set advertise to the address of this machine");
        return Err(Error::Arguments(why));
    }
    Ok(format!("{}://{listening}", admission.scheme))
}
