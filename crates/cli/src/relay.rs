//! `breakbulk relay`: a relay that speaks the protocol of Azure Web PubSub.

use std::io::{self, Write};
use std::path::Path;

use breakbulk::Transport;
use breakbulk::link::{Keepalive, WebSocketConfig};
use breakbulk_webpubsub::relay::{Relay, RelayConfig};
use breakbulk_webpubsub::{AccessKey, ConnectionString, Endpoint};
use tokio_util::sync::CancellationToken;
use tracing::{Level, info};

use crate::args::{Format, RelayOptions};
use crate::failure::Error;
use crate::log::say;
use crate::open;
use crate::runtime;
use crate::settings::{ACCESS_KEY_VARIABLE, RelaySettings};
use crate::shutdown;

/// A key file is one short line.
const MAX_KEY_FILE: u64 = 4096;

/// Serves until it is told to stop.
pub(crate) fn run(options: RelayOptions, settings: RelaySettings) -> Result<(), Error> {
    runtime::raise_file_limit();
    let (key, is_new) = key(options.key_file.as_deref())?;
    let mut config = RelayConfig::new(key.clone());
    config.cap = settings.cap.unwrap_or(config.cap);
    config.oversize_code = options.close_code;
    config.queue_bytes = options.queue.0;
    config.queue_messages = usize::try_from(options.queue_messages).unwrap_or(usize::MAX).max(1);
    config.keep = options.keep_clients.0;
    config.total_bytes = settings.memory;
    config.max_connections = settings.max_connections.unwrap_or(config.max_connections);
    config.max_clients = config.max_connections.saturating_mul(2);
    // With its own code the WebSocket stack refuses a longer frame before it is buffered; otherwise the relay has to see it.
    let max_frame_bytes = if config.oversize_code == 1009 { config.cap } else { config.cap.saturating_mul(2) };
    let keepalive = Some(Keepalive { ping_after: settings.ping_interval, dead_after: settings.idle_timeout });
    let link = WebSocketConfig { max_frame_bytes, keepalive, ..WebSocketConfig::default() };
    runtime::run(async move {
        let shutdown = shutdown::requested().map_err(Error::Runtime)?;
        let Transport::WebSocket { tls, host, port, .. } = &settings.listen.transport else {
            return Err(Error::Listen("a relay can listen on ws: and wss: only".into()));
        };
        let relay = Relay::new(config);
        let (listener, admission) = open::listener((host, *port), &settings.access, link, |config| {
            (config.gate, config.pages) = (Some(relay.gate()), Some(relay.pages()));
        })
        .await?;
        let endpoint = Endpoint { is_tls: *tls, host: host.clone(), port: listener.local_address().port() };
        announce(&ConnectionString { endpoint, key }, is_new, options.format)?;
        if let Some(note) = admission.certificate_note() {
            say(Level::INFO, &note);
        }
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        tokio::spawn(async move {
            let signal = shutdown.await;
            info!("{signal}: stopping");
            stopping.cancel();
        });
        relay.serve(listener, stop).await;
        Ok(())
    })
}

/// The line for programs, with its fields in this order.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadyLine<'a> {
    endpoint: &'a str,
    connection_string: &'a str,
}

/// Says where the relay is. A key that somebody gave us is theirs to show.
fn announce(string: &ConnectionString, is_new: bool, format: Format) -> Result<(), Error> {
    let endpoint = string.endpoint.http_url();
    match format {
        Format::Json => {
            let ready = ReadyLine { endpoint: &endpoint, connection_string: &string.reveal() };
            let ready = serde_json::to_string(&ready).map_err(|error| Error::Output(error.into()))?;
            let mut out = io::stdout().lock();
            writeln!(out, "{ready}").and_then(|()| out.flush()).map_err(Error::Output)
        }
        Format::Text => {
            say(Level::INFO, &format!("relay listening on {endpoint}"));
            if is_new {
                say(Level::INFO, &format!("connection string: {}", string.reveal()));
            }
            Ok(())
        }
    }
}

/// The access key, and whether it was made for this run.
fn key(file: Option<&Path>) -> Result<(AccessKey, bool), Error> {
    let bad = |why: String| Error::Arguments(format!("the access key cannot be used: {why}"));
    let given = match file {
        Some(path) => Some(read(path).map_err(|error| Error::File(path.to_owned(), error))?),
        None => std::env::var(ACCESS_KEY_VARIABLE).ok().filter(|key| !key.is_empty()),
    };
    match given {
        Some(text) => {
            let key = text.trim().parse().map_err(|_| bad("it needs at least 16 visible characters".to_owned()))?;
            Ok((key, false))
        }
        None => Ok((AccessKey::generate().map_err(Error::Random)?, true)),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(std::fs::File::open(path)?, MAX_KEY_FILE), &mut text)?;
    Ok(text)
}
