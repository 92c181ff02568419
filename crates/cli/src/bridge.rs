//! `breakbulk bridge`: messages between two ends, each in its own wire form.

use std::future::Future;
use std::sync::Arc;

use breakbulk::gateway::{Lost, Served, Watcher};
use breakbulk::{Gateway, Way};
use breakbulk_proto::Budget;
use tokio_util::sync::CancellationToken;
use tracing::Level;

use crate::failure::Error;
use crate::log;
use crate::open;
use crate::runtime;
use crate::settings::BridgeSettings;
use crate::shutdown;

/// Runs a bridge until both ends are done, or until it is told to stop.
pub(crate) fn run(settings: BridgeSettings) -> Result<(), Error> {
    runtime::run(async {
        let shutdown = shutdown::requested().map_err(Error::Runtime)?;
        serve(&settings, shutdown, || None).await
    })
}

/// Takes clients from where the settings listen to where they connect. `watch` makes a watcher for each client.
pub(crate) async fn serve(
    settings: &BridgeSettings,
    shutdown: impl Future<Output = &'static str> + Send + 'static,
    watch: impl Fn() -> Option<Watcher>,
) -> Result<(), Error> {
    let BridgeSettings { near, far, keep, door, link, shutdown_timeout } = settings;
    let exit = open::exit(far, link, *keep)?;
    let (entrance, notes) = open::entrance(near, door, link).await?;
    let gateway = Gateway::new(near.setup.clone(), far.setup.clone(), Budget::new(link.budget));
    let gateway = gateway.with_drain(*shutdown_timeout);
    notes.iter().for_each(|note| log::say(Level::INFO, note));
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let signal = shutdown.await;
        stopping.cancel();
        tracing::info!("{signal}: stopping when what is under way has finished");
    });
    if *keep && !matches!(far.address.way, Way::Exec(_)) {
        tracing::warn!("keep means nothing here: only the command of an exec: address outlives a connection");
    }
    match Arc::new(gateway).serve(entrance, exit, stop, watch).await {
        Some(Served::Panicked) => Err(Error::Bug),
        // Clients of a listener come and go; only one that was there from the start decides how this ends.
        Some(served) if near.address.way.is_single() => outcome(served),
        _ => Ok(()),
    }
}

fn outcome(served: Served) -> Result<(), Error> {
    match served {
        Served::Ended(ended) => match ended.trouble() {
            Some(reason) => Err(Error::Closed(reason.clone())),
            None if ended.lost != Lost::default() => Err(Error::Lost(ended.lost)),
            None => Ok(()),
        },
        Served::Unreachable(error) => Err(Error::Dial(error)),
        Served::Random(error) => Err(Error::Random(error)),
        _ => Ok(()),
    }
}
