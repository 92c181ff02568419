//! Where clients come in: the listener of a host with its pages, and what a client must show.

use std::io::{self, Write};
use std::path::PathBuf;

use breakbulk::{ListenConfig, Listener, Transport};
use tracing::{Level, warn};

use super::page_address::{Redirect, page_address, print_qr_code};
use crate::args::Format;
use crate::failure::Error;
use crate::log::say;
use crate::open::{self, Admission};
use crate::pages::{self, Subject};
use crate::pairing::{self, Pairing};
use crate::settings::{PATH, ServeSettings, V2_PATH};

pub(super) struct Entrance {
    pub(super) listener: Listener,
    pub(super) admission: Admission,
    /// The pairing codes of private addresses, each once.
    pub(super) pairings: Vec<Pairing>,
    data: PathBuf,
}

impl Entrance {
    /// Begins to listen. `more` changes how.
    pub(super) async fn open(
        settings: &ServeSettings,
        subject: impl Subject,
        more: impl FnOnce(&mut ListenConfig),
    ) -> Result<Self, Error> {
        let ServeSettings { route, access, link, data, .. } = settings;
        let Transport::WebSocket { host: name, port, .. } = &route.address.transport else {
            return Err(Error::Listen("a host can listen on ws: and wss: only".into()));
        };
        let paths = vec![PATH.to_owned(), V2_PATH.to_owned()];
        let pages = pages::all(subject, paths.clone());
        let (key, pairing) = pairing::host_key(route)?.unzip();
        let listening = open::listener((name, *port), access, open::web_socket(route, link), |config| {
            (config.paths, config.pages, config.private) = (paths, Some(pages), key);
            more(config);
        });
        let (listener, admission) = listening.await?;
        Ok(Self { listener, admission, pairings: Vec::from_iter(pairing), data: data.clone() })
    }

    /// Says where it listens, and what a client must show.
    pub(super) fn say(&self, format: Format) -> Result<(), Error> {
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
    pub(super) fn open_page(&self) -> Option<Redirect> {
        let Admission { scheme, token, .. } = &self.admission;
        let token = token.as_ref().map(breakbulk::Token::reveal);
        let page = page_address(scheme, self.listener.local_address(), token);
        let opened = Redirect::open(&self.data, &page);
        opened.inspect_err(|error| warn!("cannot open a browser: {error}; follow the address above")).ok()
    }
}
