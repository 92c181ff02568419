//! `breakbulk serve`: an agent host on a port of this machine.

mod manager;
mod page_address;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use breakbulk::external::{Acceptor, ExternalPeer};
use breakbulk::listen::BoxBody;
use breakbulk::{Accepted, BoxLink, Listener, LogLimit, Transport};
use breakbulk_host::Host;
use breakbulk_host::agent::acp::Acp;
use breakbulk_host::agent::claude::Claude;
use breakbulk_host::agent::demo::Demo;
use breakbulk_host::agent::{Agent, find_program, merge_actions};
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Log, LogHealth, OpenError};
use breakbulk_proto::Budget;
use http::{HeaderMap, Method, Response};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{Level, debug, error, info, warn};

use crate::args::Format;
use crate::content;
use crate::external;
use crate::failure::Error;
use crate::log::say;
use crate::open::{self, Admission};
use crate::page;
use crate::pages::{self, Health as Condition, Subject};
use crate::pairing::{self, Pairing};
use crate::runtime;
use crate::settings::{AgentSettings, HostLimits, PATH, ServeSettings, V2_PATH};
use crate::shutdown;

use self::page_address::{Redirect, page_address, print_qr_code};

/// Clients that are being told to come again later. One more is simply cut.
const MAX_TURNED_AWAY: usize = 64;
/// How long that may take.
const FAREWELL: Duration = Duration::from_secs(5);
/// The principal of all clients when no token is required.
const ANYONE: &str = "anyone";
/// How long to wait for a killed process to exit.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// Serves until it is told to stop, or until another host has taken over the log.
pub(crate) fn run(settings: ServeSettings, format: Format, open: bool) -> Result<(), Error> {
    runtime::raise_file_limit();
    runtime::run(async move {
        let shutdown = shutdown::requested().map_err(Error::Runtime)?;
        let mut server = Server::start(settings).await?;
        server.say(format)?;
        let _redirect = open.then(|| server.open_page());
        manager::ready();
        let health = server.log.health();
        let result = tokio::select! {
            signal = shutdown => {
                info!("{signal}: stopping when open work is finished");
                Ok(())
            }
            () = fenced(health) => Err(Error::Host("another host has taken over the log".into())),
            () = server.serve() => Ok(()),
        };
        manager::stopping();
        server.stop().await;
        result
    })
}

/// A host with its clients.
struct Server {
    data: PathBuf,
    log: SqliteLog,
    host: Host,
    listener: Listener,
    /// Relays through which clients come.
    relays: Vec<Box<dyn Acceptor>>,
    /// The pairing codes of private addresses, each once.
    pairings: Vec<Pairing>,
    admission: Admission,
    clients: JoinSet<()>,
    turned_away: JoinSet<()>,
    log_limit: LogLimit,
    max_connections: usize,
    shutdown_timeout: Duration,
}

impl Server {
    async fn start(settings: ServeSettings) -> Result<Self, Error> {
        let ServeSettings { route, via, access, link, is_capped, data, agents, limits, .. } = settings;
        let ServeSettings { max_connections, shutdown_timeout, .. } = settings;
        let Transport::WebSocket { host: name, port, .. } = route.address.transport.clone() else {
            return Err(Error::Listen("a host can listen on ws: and wss: only".into()));
        };
        let HostLimits { host: mut config, mut store, demo, .. } = limits;
        let roots = config.files.roots.clone();
        let shell = config.terminals.command.first().cloned();
        config.endpoint.limits = route.setup.limits;
        if is_capped {
            let cap = usize::try_from(route.max_frame_bytes()).unwrap_or(usize::MAX);
            config.v2.max_event_bytes = config.v2.max_event_bytes.min(cap);
        }
        config.endpoint.max_whole_frame_bytes = is_capped.then(|| route.max_frame_bytes());
        store.merge = Some(Arc::new(merge_actions));
        let log = open_log(&data, store).await?;
        let offered = agents.iter().map(AgentSettings::description).collect::<Vec<_>>().join(", ");
        let agents = agents.into_iter().map(|agent| match agent {
            AgentSettings::Demo => Arc::new(Demo::new(demo)) as Arc<dyn Agent>,
            AgentSettings::Claude(config) => Arc::new(Claude::new(*config)) as Arc<dyn Agent>,
            AgentSettings::Acp(config) => Arc::new(Acp::new(*config)) as Arc<dyn Agent>,
        });
        let begun = Host::start(Arc::new(log.clone()), agents.collect(), config, Budget::new(link.budget)).await;
        let host = begun.map_err(|error| Error::Host(format!("the host cannot start: {error}")))?;
        let paths = vec![PATH.to_owned(), V2_PATH.to_owned()];
        let pages = pages::all(host.clone(), paths.clone());
        let opened = async {
            let (key, pairing) = pairing::host_key(&route)?.unzip();
            let listening = open::listener((&name, port), &access, open::web_socket(&route, &link), |config| {
                (config.paths, config.pages, config.private) = (paths, Some(pages), key);
            });
            let (listener, admission) = listening.await?;
            let mut relays = Vec::new();
            let mut pairings = Vec::from_iter(pairing);
            for route in &via {
                let (acceptor, notes, pairing) = external::acceptor(route, &link).await?;
                notes.iter().for_each(|note| info!("{note}"));
                relays.push(acceptor);
                let is_known = |pairing: &Pairing| pairings.iter().any(|known: &Pairing| known.code == pairing.code);
                let pairing = pairing.filter(|pairing| !is_known(pairing));
                pairings.extend(pairing);
            }
            Ok((listener, admission, relays, pairings))
        };
        let (listener, admission, relays, pairings) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                host.stop().await;
                log.close().await;
                return Err(error);
            }
        };
        info!(data = %data.display(), "the log is open");
        info!("agents: {offered}");
        warn_of_data_in(&roots, &data);
        if let Some(why) = shell.as_deref().and_then(why_no_program) {
            warn!("{why}: terminals cannot be started; see --shell");
        }
        let (clients, turned_away) = (JoinSet::new(), JoinSet::new());
        let log_limit = LogLimit::default();
        Ok(Self {
            data,
            log,
            host,
            listener,
            relays,
            pairings,
            admission,
            clients,
            turned_away,
            log_limit,
            max_connections,
            shutdown_timeout,
        })
    }

    /// Says where it listens, and what a client must show.
    fn say(&self, format: Format) -> Result<(), Error> {
        let Admission { scheme, token, is_new, .. } = &self.admission;
        let listening = self.listener.local_address();
        let address = format!("{scheme}://{listening}{PATH}");
        match format {
            Format::Json => {
                // For programs of any sort: few of them know what to do with a fragment.
                let token = token.as_ref().map(breakbulk::Token::reveal);
                let with_token = token.map(|token| format!("{address}?token={}", open::escaped(token)));
                let v2 = with_token.as_ref().unwrap_or(&address).replacen(PATH, V2_PATH, 1);
                let page = page_address(scheme, listening, token);
                let ahp = with_token.as_ref().unwrap_or(&address);
                let mut ready = serde_json::json!({ "ahp": ahp, "page": page, "v2": v2, "token": token });
                if !self.pairings.is_empty() {
                    let codes: Vec<String> = self.pairings.iter().map(|pairing| pairing.code.reveal()).collect();
                    ready["pairingCodes"] = codes.into();
                }
                let mut out = io::stdout().lock();
                writeln!(out, "{ready}").and_then(|()| out.flush()).map_err(Error::Output)?;
            }
            Format::Text => {
                let token = token.as_ref().filter(|_| *is_new).map(breakbulk::Token::reveal);
                let page = page_address(scheme, listening, token);
                say(Level::INFO, &format!("page at {page}"));
                print_qr_code(&page, listening);
                for note in self.admission.notes(&address) {
                    say(Level::INFO, &note);
                }
                self.pairings.iter().for_each(Pairing::say);
            }
        }
        Ok(())
    }

    /// Opens the page in a browser on this machine.
    fn open_page(&self) -> Option<Redirect> {
        let Admission { scheme, token, .. } = &self.admission;
        let token = token.as_ref().map(breakbulk::Token::reveal);
        let page = page_address(scheme, self.listener.local_address(), token);
        let opened = Redirect::open(&self.data, &page);
        opened.inspect_err(|error| warn!("cannot open a browser: {error}; follow the address above")).ok()
    }

    /// Takes clients in, for ever.
    async fn serve(&mut self) {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => self.take(accepted),
                peer = accept_any(&mut self.relays) => self.take_external(peer),
                Some(_) = self.clients.join_next() => {}
                Some(_) = self.turned_away.join_next() => {}
            }
        }
    }

    fn take(&mut self, accepted: Accepted) {
        let is_v2 = accepted.path() == V2_PATH;
        let Accepted { link, peer, principal, .. } = accepted;
        self.take_link(link, &peer.to_string(), principal, is_v2);
    }

    /// A client has come through a relay. There it speaks AHP.
    fn take_external(&mut self, ExternalPeer { link, name, principal }: ExternalPeer) {
        self.take_link(link, &name, principal, false);
    }

    fn take_link(&mut self, link: BoxLink, peer: &str, principal: Option<Arc<str>>, is_v2: bool) {
        let host = self.host.clone();
        // Without a token all clients are one principal.
        let principal = principal.or_else(|| Some(Arc::from(ANYONE)));
        if self.clients.len() < self.max_connections {
            debug!(peer, "a connection is accepted");
            self.clients.spawn(async move {
                drop(match is_v2 {
                    true => host.v2().serve(link, principal).await,
                    false => host.endpoint().serve(link, principal).await,
                });
            });
            return;
        }
        if let Some(permit) = self.log_limit.permit("connections") {
            let (limit, left_out) = (self.max_connections, permit.left_out());
            warn!(peer, limit, left_out, "too many connections: one more is closed with 1013 (try again later)");
        }
        if self.turned_away.len() < MAX_TURNED_AWAY {
            self.turned_away.spawn(async move {
                let turned_away = async {
                    match is_v2 {
                        true => host.v2().turn_away(link).await,
                        false => host.endpoint().turn_away(link).await,
                    }
                };
                drop(timeout(FAREWELL, turned_away).await);
            });
        }
    }

    /// Stops listening, asks clients to connect again later, waits a while until they have left, and closes the log.
    async fn stop(self) {
        let Self { log, host, listener, relays, mut clients, shutdown_timeout, .. } = self;
        drop((listener, relays));
        let end = async {
            host.stop().await;
            while clients.join_next().await.is_some() {}
        };
        if timeout(shutdown_timeout, end).await.is_err() {
            warn!("not everything was finished within {} s", shutdown_timeout.as_secs_f32());
        }
        clients.shutdown().await;
        drop(host);
        log.close().await;
    }
}

/// The next client that connects through any of the relays. Without relays, this never resolves.
async fn accept_any(relays: &mut Vec<Box<dyn Acceptor>>) -> ExternalPeer {
    std::future::poll_fn(|cx| {
        let mut accepted = None;
        relays.retain_mut(|relay| {
            if accepted.is_some() {
                return true;
            }
            match relay.poll_accept(cx) {
                Poll::Pending => true,
                Poll::Ready(Some(peer)) => {
                    accepted = Some(peer);
                    true
                }
                Poll::Ready(None) => false,
            }
        });
        accepted.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

impl Subject for Host {
    async fn content(&self, method: &Method, path: &str, headers: &HeaderMap) -> Option<Response<BoxBody>> {
        Some(content::answer(self, method, path, headers).await)
    }

    fn file(&self, path: &str, headers: &HeaderMap) -> Option<Response<BoxBody>> {
        page::answer(path, headers)
    }

    async fn health(&self) -> Condition {
        let health = Host::health(self).await;
        Condition { is_good: health.is_good(), text: health.to_json().to_string() }
    }

    fn metrics(&self) -> String {
        Host::metrics(self)
    }
}

/// Says how the log is whenever that changes; returns when this host can never write again.
async fn fenced(mut health: watch::Receiver<LogHealth>) {
    let mut before = health.borrow_and_update().clone();
    loop {
        if health.changed().await.is_err() {
            return std::future::pending().await;
        }
        let now = health.borrow_and_update().clone();
        // Each attempt to open it anew says the same again.
        if std::mem::replace(&mut before, now.clone()) == now {
            continue;
        }
        match now {
            LogHealth::Full => error!("the disk of the log is full: nothing is acknowledged until there is space"),
            LogHealth::Failed { reason } => {
                error!("writing the log failed; it is opened again and verified: {reason}")
            }
            LogHealth::Lost { seq } => error!(seq, "the log has lost acknowledged entries: see `breakbulk log verify`"),
            LogHealth::Fenced => return,
            // Of that the log has spoken itself.
            LogHealth::Good | LogHealth::Closed => {}
        }
    }
}

/// Opens the log for writing. A host that was killed a moment ago may still have it: that passes.
async fn open_log(data: &Path, options: Options) -> Result<SqliteLog, Error> {
    let begun = Instant::now();
    loop {
        match SqliteLog::open(data, options.clone()).await {
            Err(OpenError::InUse(_)) if begun.elapsed() < LAST_BREATH => tokio::time::sleep(LAST_BREATH / 20).await,
            opened => return opened.map_err(unopened),
        }
    }
}

/// Why a log does not open, for who wanted to write to it.
pub(crate) fn unopened(error: OpenError) -> Error {
    Error::Host(match error {
        OpenError::InUse(dir) => {
            format!("{} is in use by another host: stop it first, or name another directory", dir.display())
        }
        error => format!("cannot open the log: {error}"),
    })
}

/// What is inside of a root, clients may read and change.
fn warn_of_data_in(roots: &[PathBuf], data: &Path) {
    let real = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
    // It may not be there yet; the directory around it may.
    let real = real.canonicalize().or_else(|_| real.parent().unwrap_or(&real).canonicalize()).unwrap_or(real);
    if let Some(root) = roots.iter().find(|root| real.starts_with(root)) {
        let (root, data) = (root.display(), data.display());
        warn!(%root, %data, "the data directory is inside a root: clients can read and remove the log");
    }
}

/// Why a program cannot be started, as far as one can tell without starting it.
fn why_no_program(program: &OsStr) -> Option<String> {
    if find_program(program).is_some() {
        return None;
    }
    let name = program.display();
    let is_path = Path::new(program).components().count() > 1;
    Some(if is_path { format!("there is no file {name}") } else { format!("{name} is not in PATH") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::logged;
    use crate::settings::LogFormat;

    #[test]
    fn trouble_with_the_log_is_said_once_each_time_that_it_begins() {
        let text = logged(LogFormat::Text, "info", false, || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (say, hear) = watch::channel(LogHealth::Good);
            let tell = async {
                for health in [
                    LogHealth::Full,
                    LogHealth::Full,
                    LogHealth::Full,
                    LogHealth::Good,
                    LogHealth::Full,
                    LogHealth::Fenced,
                ] {
                    // The other is polled between two of them, whoever is first.
                    tokio::task::yield_now().await;
                    tokio::task::yield_now().await;
                    say.send_replace(health);
                }
            };
            runtime.block_on(async { tokio::join!(tell, fenced(hear)) });
        });
        assert_eq!(text.matches("the disk of the log is full").count(), 2, "{text}");
    }
}
