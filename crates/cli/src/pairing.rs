//! The keys of private links: for the side that listens, and what a person has to know to connect to it.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use breakbulk::Route;
use breakbulk::private::{HostKey, PairingCode};
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use tracing::Level;

use crate::failure::Error;
use crate::log::say;

/// The pairing code of a host, and where it is.
#[derive(Debug)]
pub(crate) struct Pairing {
    pub(crate) code: PairingCode,
    /// Whether the key was made for this run.
    is_new: bool,
    file: PathBuf,
}

/// The key of the side that listens at a route, if its links are private. It is made if its file is not there.
pub(crate) fn host_key(route: &Route) -> Result<Option<(HostKey, Pairing)>, Error> {
    let Some(private) = &route.address.private else { return Ok(None) };
    let loaded = private.host_key().map_err(|error| Error::Arguments(format!("{}: {error}", route.address)))?;
    let pairing = Pairing { code: loaded.key.pairing_code(), is_new: loaded.is_new, file: loaded.pairing_file };
    Ok(Some((loaded.key, pairing)))
}

impl Pairing {
    /// Prints the code, in a terminal also as a QR code. A code that is not new, and that nobody would see, stays in its file: standard
    /// error may be kept.
    pub(crate) fn say(&self) {
        let is_seen = io::stderr().is_terminal();
        if !is_seen && !self.is_new {
            return say(Level::INFO, &format!("private: clients need the pairing code in {}", self.file.display()));
        }
        let code = self.code.reveal();
        say(Level::INFO, &format!("private: clients need the pairing code {code} (also in {})", self.file.display()));
        if is_seen {
            print_qr_code(&code);
        }
    }
}

/// Prints a text as a QR code. A text that is too long for one has been printed as it is.
pub(crate) fn print_qr_code(text: &str) {
    if let Ok(code) = QrCode::new(text) {
        let code = code.render::<Dense1x2>().dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build();
        // If this fails, nobody reads standard error.
        let _ = writeln!(io::stderr(), "{code}");
    }
}
