//! `breakbulk bridge`: carries messages between two sides, each in its own dialect. One process may run several bridges.

mod pages;

use std::sync::Arc;

use breakbulk::gateway::{Downstream, Losses, Served, Upstream, Watcher};
use breakbulk::{Gateway, Transport};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Level, error_span};

use self::pages::BridgePages;
use crate::failure::Error;
use crate::log;
use crate::open;
use crate::pairing::Pairing;
use crate::runtime;
use crate::settings::{BridgeSettings, Configuration, SettingError, Settings, check_files};
use crate::shutdown;

/// One of several bridges in a process.
#[derive(Debug)]
pub(crate) struct Named {
    name: String,
    settings: BridgeSettings,
}

/// Validates the settings of each bridge in the configuration file.
pub(crate) fn prove_all(configuration: &Configuration) -> Result<Vec<Named>, Error> {
    let bridges = configuration.bridges.iter().map(|(name, layers)| {
        let settings = || {
            layers.only_in_file(["listen", "connect"])?;
            let settings = Settings::read(layers)?;
            for (key, is_set) in [("listen", settings.listen.is_some()), ("connect", settings.connect.is_some())] {
                if !is_set {
                    return Err(SettingError::MissingOfBridge { key });
                }
            }
            check_files(&settings, layers)?;
            BridgeSettings::prove(settings, layers)
        };
        let settings = settings().map_err(|error: SettingError| named(name, error.into()))?;
        Ok(Named { name: name.clone(), settings })
    });
    let bridges: Vec<Named> = bridges.collect::<Result<_, Error>>()?;
    let mut on_stdio = bridges.iter().filter(|bridge| bridge.settings.uses_stdio());
    match (on_stdio.next(), on_stdio.next()) {
        (Some(one), Some(other)) => Err(Error::Arguments(format!(
            "bridge {:?} and bridge {:?} cannot both use stdio:, since there is one standard input",
            one.name, other.name
        ))),
        _ => Ok(bridges),
    }
}

/// Runs a bridge until both ends are done, or until it is told to stop.
pub(crate) fn run(settings: BridgeSettings) -> Result<(), Error> {
    runtime::run(async {
        let stop = stopped_by_signals()?;
        let bridge = Bridge::open(settings).await?;
        bridge.say_where(None);
        bridge.serve(stop, || None).await
    })
}

/// Runs several bridges until all have ended, or until a signal stops them. If one cannot start, none starts.
pub(crate) fn run_all(bridges: Vec<Named>) -> Result<(), Error> {
    runtime::run(async {
        let stop = stopped_by_signals()?;
        let mut opened = Vec::new();
        for Named { name, settings } in bridges {
            let bridge = Bridge::open(settings).await.map_err(|error| named(&name, error))?;
            opened.push((name, bridge));
        }
        for (name, bridge) in &opened {
            bridge.say_where(Some(name));
        }
        let mut running = JoinSet::new();
        for (name, bridge) in opened {
            let (stop, span) = (stop.clone(), error_span!("bridge", name));
            let served = async move { bridge.serve(stop, || None).await.map_err(|error| named(&name, error)) };
            running.spawn(served.instrument(span));
        }
        let mut first = Ok(());
        while let Some(ended) = running.join_next().await {
            // The other bridges go on. The failure is logged now, and the exit status shows it at the end.
            let ended = ended.unwrap_or(Err(Error::Bug));
            if let Err(error) = &ended {
                tracing::error!("{error}");
            }
            first = first.and(ended);
        }
        first
    })
}

/// A token that SIGINT, SIGTERM and SIGHUP cancel.
fn stopped_by_signals() -> Result<CancellationToken, Error> {
    let shutdown = shutdown::requested().map_err(Error::Runtime)?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let signal = shutdown.await;
        stopping.cancel();
        tracing::info!("{signal}: stopping when open work is finished");
    });
    Ok(stop)
}

fn named(name: &str, error: Error) -> Error {
    Error::Bridge { name: name.to_owned(), error: Box::new(error) }
}

/// A bridge that is ready to accept clients.
pub(crate) struct Bridge {
    gateway: Arc<Gateway>,
    downstream: Downstream,
    upstream: Upstream,
    /// Whether the only client is our standard input, so that the bridge ends with it and has its exit status.
    is_single: bool,
    /// What a person must know to connect.
    notes: Vec<String>,
    /// The pairing code of clients, if their links are private.
    pairing: Option<Pairing>,
}

impl Bridge {
    /// Opens both sides.
    pub(crate) async fn open(settings: BridgeSettings) -> Result<Self, Error> {
        let BridgeSettings {
            downstream: listen,
            upstream: connect,
            keep,
            access,
            link,
            max_connections,
            shutdown_timeout,
        } = settings;
        let gateway = Gateway::new(listen.setup.clone(), connect.setup.clone(), link.budget)
            .map_err(|error| Error::Arguments(error.to_string()))?;
        let gateway = Arc::new(gateway.with_drain_timeout(shutdown_timeout).with_max_clients(max_connections));
        let upstream = open::upstream(&connect, &link, keep)?;
        let pages = BridgePages(Arc::clone(&gateway));
        let (downstream, notes, pairing) = open::downstream(&listen, &access, &link, pages).await?;
        if keep && !matches!(connect.address.transport, Transport::Exec(_)) {
            tracing::warn!("--keep has no effect here: only the command of an exec: address can outlive a connection");
        }
        Ok(Self { gateway, downstream, upstream, is_single: listen.address.transport.is_single(), notes, pairing })
    }

    /// Prints the address to which clients connect.
    pub(crate) fn say_where(&self, name: Option<&str>) {
        for note in &self.notes {
            log::say(Level::INFO, &name.map_or_else(|| note.clone(), |name| format!("bridge {name}: {note}")));
        }
        if let Some(pairing) = &self.pairing {
            pairing.say();
        }
    }

    /// Serves clients until `stop` is cancelled. `watch` makes a watcher for each client.
    pub(crate) async fn serve(self, stop: CancellationToken, watch: impl Fn() -> Option<Watcher>) -> Result<(), Error> {
        match self.gateway.serve(self.downstream, self.upstream, stop, watch).await {
            Some(Served::Panicked) => Err(Error::Bug),
            // Clients of a listener come and go.
            Some(served) if self.is_single => outcome(served),
            _ => Ok(()),
        }
    }
}

fn outcome(served: Served) -> Result<(), Error> {
    match served {
        Served::Ended(outcome) => match outcome.failure() {
            Some(side) => Err(Error::Closed(side.reason.clone(), side.description.clone())),
            None if outcome.losses != Losses::default() => Err(Error::Lost(outcome.losses)),
            None => Ok(()),
        },
        Served::Unreachable(error) => Err(Error::Dial(error)),
        Served::Random(error) => Err(Error::Random(error)),
        _ => Ok(()),
    }
}
