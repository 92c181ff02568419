//! `breakbulk tap`: what passes on a link, one line a message.

use crate::failure::Error;
use crate::runtime;
use crate::seam::Address;
use crate::settings::{Layers, LinkSettings, Settings, peer};

/// What `tap` does.
#[derive(Debug)]
#[expect(dead_code, reason = "tap reads all of it when it is built")]
pub(crate) struct TapSettings {
    pub(crate) address: Address,
    /// Whether it prints for programs.
    pub(crate) json: bool,
    pub(crate) link: LinkSettings,
}

impl TapSettings {
    pub(crate) fn prove(url: &str, json: bool, settings: Settings, layers: &Layers) -> Result<Self, Error> {
        let address = peer(url, &settings)?;
        Ok(Self { address, json, link: LinkSettings::prove(settings, layers)? })
    }
}

/// Prints until the link ends.
pub(crate) fn run(settings: TapSettings) -> Result<(), Error> {
    runtime::run(tap(settings))
}

/// The one place where the library is called.
async fn tap(settings: TapSettings) -> Result<(), Error> {
    tracing::debug!(address = %settings.address, "tap");
    Err(Error::NotBuilt("tap"))
}
