//! `breakbulk bridge`: messages between two ends, each in its own wire form.

use std::future::Future;

use crate::failure::Error;
use crate::runtime;
use crate::settings::BridgeSettings;
use crate::shutdown;

/// Runs a bridge until both ends are done, or until it is told to stop.
pub(crate) fn run(settings: BridgeSettings) -> Result<(), Error> {
    runtime::run(async {
        let shutdown = shutdown::requested().map_err(Error::Runtime)?;
        bridge(settings, shutdown).await
    })
}

/// The one place where the library's gateway is called.
async fn bridge(settings: BridgeSettings, shutdown: impl Future<Output = &'static str>) -> Result<(), Error> {
    tracing::debug!(listen = %settings.listen, connect = %settings.connect, "bridge");
    drop(shutdown);
    Err(Error::NotBuilt("bridge"))
}
