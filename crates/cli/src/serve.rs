//! `breakbulk serve`: an agent host on a port of this machine.

mod clients;
mod entrance;
mod host_parts;
mod manager;
mod node;
mod page_address;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use breakbulk::external::{Acceptor, ExternalPeer};
use breakbulk::listen::BoxBody;
use breakbulk_host::Host;
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Log, LogHealth, OpenError};
use http::{HeaderMap, Method, Response};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::args::Format;
use crate::content;
use crate::external;
use crate::failure::Error;
use crate::page;
use crate::pages::{Health as Condition, Subject};
use crate::pairing::Pairing;
use crate::runtime;
use crate::settings::ServeSettings;
use crate::shutdown;

use self::clients::Clients;
use self::entrance::Entrance;
use self::host_parts::HostParts;

/// How long to wait for a killed process to exit.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// Serves until it is told to stop, or until another host has taken over the log.
pub(crate) fn run(settings: ServeSettings, format: Format, open: bool) -> Result<(), Error> {
    runtime::raise_file_limit();
    runtime::run(async move {
        let shutdown = shutdown::requested().map_err(Error::Runtime)?;
        if let Some(fleet) = settings.fleet.clone() {
            return node::run(settings, fleet, format, open, shutdown).await;
        }
        let mut server = Server::start(settings).await?;
        server.entrance.say(format)?;
        let _redirect = open.then(|| server.entrance.open_page());
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

/// A host with its clients, and with its log in a file.
struct Server {
    log: SqliteLog,
    host: Host,
    entrance: Entrance,
    /// Relays through which clients come.
    relays: Vec<Box<dyn Acceptor>>,
    clients: Clients,
    shutdown_timeout: Duration,
}

impl Server {
    async fn start(mut settings: ServeSettings) -> Result<Self, Error> {
        let (data, via) = (settings.data.clone(), std::mem::take(&mut settings.via));
        let parts = HostParts::new(&mut settings);
        let ServeSettings { link, max_connections, shutdown_timeout, .. } = &settings;
        let (max_connections, shutdown_timeout) = (*max_connections, *shutdown_timeout);
        let log = open_log(&data, parts.store.clone()).await?;
        let host = parts.start(Arc::new(log.clone())).await?;
        let opened = async {
            let mut entrance = Entrance::open(&settings, host.clone(), |_| {}).await?;
            let mut relays = Vec::new();
            for route in &via {
                let (acceptor, notes, pairing) = external::acceptor(route, link).await?;
                notes.iter().for_each(|note| info!("{note}"));
                relays.push(acceptor);
                let is_known =
                    |pairing: &Pairing| entrance.pairings.iter().any(|known: &Pairing| known.code == pairing.code);
                let pairing = pairing.filter(|pairing| !is_known(pairing));
                entrance.pairings.extend(pairing);
            }
            Ok((entrance, relays))
        };
        let (entrance, relays) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                host.stop().await;
                log.close().await;
                return Err(error);
            }
        };
        info!(data = %data.display(), "the log is open");
        parts.say();
        warn_of_data_in(parts.roots(), &data);
        Ok(Self { log, host, entrance, relays, clients: Clients::new(max_connections), shutdown_timeout })
    }

    /// Takes clients in, for ever.
    async fn serve(&mut self) {
        loop {
            tokio::select! {
                accepted = self.entrance.listener.accept() => self.clients.take(&self.host, accepted),
                peer = accept_any(&mut self.relays) => self.clients.take_external(&self.host, peer),
                () = self.clients.one_left() => {}
            }
        }
    }

    /// Stops listening, asks clients to connect again later, waits a while until they have left, and closes the log.
    async fn stop(self) {
        let Self { log, host, entrance, relays, mut clients, shutdown_timeout } = self;
        drop((entrance, relays));
        let end = async {
            host.stop().await;
            clients.all_left().await;
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
