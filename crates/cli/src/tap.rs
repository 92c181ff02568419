//! `breakbulk tap`: a bridge that prints what passes, one line a message.

mod follow;
mod groups;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use breakbulk::gateway::{FrameCounts, SideId, Watcher};
use breakbulk_proto::Kind;
use tokio_util::sync::CancellationToken;

use self::follow::{Follower, Line};
use crate::args::TapOptions;
use crate::bridge::Bridge;
use crate::failure::Error;
use crate::runtime;
use crate::settings::{BridgeSettings, Layers, Origin, Settings, in_full};
use crate::shutdown;
use crate::units;

/// The validated settings of `tap`.
#[derive(Debug)]
pub(crate) struct TapSettings {
    bridge: BridgeSettings,
    /// Whether it prints for programs.
    json: bool,
    output: TapOutput,
    /// The longest message that is put together from segments to be looked at.
    max_message_bytes: u64,
}

/// Where lines go.
#[derive(Debug)]
enum TapOutput {
    Stdout,
    /// Standard output carries the messages themselves.
    Stderr,
    File(PathBuf),
}

impl TapSettings {
    pub(crate) fn prove(args: TapOptions, mut settings: Settings, mut layers: Layers) -> Result<Self, Error> {
        layers.put("listen", &args.listen, Origin::Flag("--listen".into()));
        layers.put("connect", &in_full(&args.url), Origin::Argument("URL"));
        (settings.listen, settings.connect) = (layers.read("listen")?, layers.read("connect")?);
        let max_message_bytes = settings.max_message.0;
        let bridge = BridgeSettings::prove(settings, &layers)?;
        let is_on_stdio =
            bridge.downstream.address.transport.is_stdio() || bridge.upstream.address.transport.is_stdio();
        let output = match args.output {
            Some(path) => TapOutput::File(path),
            None if is_on_stdio => TapOutput::Stderr,
            None => TapOutput::Stdout,
        };
        Ok(Self { bridge, json: args.json, output, max_message_bytes })
    }
}

/// Prints until a signal stops it, or until nobody reads its output any more.
pub(crate) fn run(settings: TapSettings) -> Result<(), Error> {
    let printer = Arc::new(Mutex::new(Printer::open(&settings)?));
    let (clients, max_message_bytes) = (AtomicU64::new(0), settings.max_message_bytes);
    runtime::run(async {
        let requested = shutdown::requested().map_err(Error::Runtime)?;
        let unread = CancellationToken::new();
        let is_unread = unread.clone();
        let shutdown = async move {
            tokio::select! {
                signal = requested => signal.to_string(),
                () = is_unread.cancelled() => "standard output is closed".to_owned(),
            }
        };
        let watch = || -> Option<Watcher> {
            let number = clients.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            let mut follower = Follower::new(number, max_message_bytes);
            let (unread, printer) = (unread.clone(), Arc::clone(&printer));
            Some(Box::new(move |passed| {
                let Some(line) = follower.follow(passed) else { return };
                if printer.lock().unwrap_or_else(PoisonError::into_inner).print(&line).is_err() {
                    unread.cancel();
                }
            }))
        };
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        tokio::spawn(async move {
            let signal = shutdown.await;
            stopping.cancel();
            tracing::info!("{signal}: stopping when open work is finished");
        });
        let bridge = Bridge::open(settings.bridge).await?;
        bridge.say_where(None);
        bridge.serve(stop, watch).await
    })
}

/// Writes lines to where they go.
struct Printer {
    json: bool,
    /// `None` for standard error, which is locked by whoever writes there.
    out: Option<Box<dyn Write + Send>>,
    has_head: bool,
}

impl Printer {
    fn open(settings: &TapSettings) -> Result<Self, Error> {
        let out: Option<Box<dyn Write + Send>> = match &settings.output {
            TapOutput::Stdout => Some(Box::new(io::stdout())),
            TapOutput::Stderr => None,
            TapOutput::File(path) => {
                let file = File::options().create(true).append(true).open(path);
                Some(Box::new(file.map_err(|error| Error::File(path.clone(), error))?))
            }
        };
        Ok(Self { json: settings.json, out, has_head: settings.json })
    }

    fn print(&mut self, line: &Line) -> io::Result<()> {
        let head = if std::mem::replace(&mut self.has_head, true) { String::new() } else { format!("{HEAD}\n") };
        let text = if self.json { json(line) } else { text(line) };
        match &mut self.out {
            Some(out) => writeln!(out, "{head}{text}").and_then(|()| out.flush()),
            None => {
                // The messages pass whether or not anybody reads this.
                let _ = writeln!(io::stderr().lock(), "{head}{text}");
                Ok(())
            }
        }
    }
}

const HEAD: &str =
    "TIME          CLIENT   MESSAGE                                      ID       SIZE  SEGMENTS      TOOK   LATENCY";

/// For a person.
fn text(line: &Line) -> String {
    let arrow = match line.to {
        SideId::Upstream => "→",
        SideId::Downstream => "←",
    };
    // Lines are short, so they have the time of day without the date.
    let moment = units::moment(line.at);
    let time = moment.split_once('T').map_or(&*moment, |(_, time)| time);
    let what = match (&line.method, &line.answers, line.error) {
        (Some(method), ..) => match &line.action {
            Some(action) => format!("{method} {action}"),
            None => method.clone(),
        },
        (None, Some(method), Some(code)) => format!("error {code} to {method}"),
        (None, Some(method), None) => format!("answer to {method}"),
        (None, None, Some(code)) => format!("error {code}"),
        (None, None, None) => kind(line.kind).to_owned(),
    };
    let FrameCounts { received, sent } = line.segments;
    let segments = if received == sent { sent.to_string() } else { format!("{received}→{sent}") };
    let latency = line.latency.map(units::time).unwrap_or_default();
    let text = format!(
        "{time:<13} {:>6} {arrow} {:<40} {:>6} {:>10} {segments:>9} {:>9} {latency:>9}",
        line.client,
        plain(&what),
        line.id.as_deref().map(plain).unwrap_or_default(),
        units::size(line.bytes),
        units::time(line.took),
    );
    text.trim_end().to_owned()
}

fn json(line: &Line) -> String {
    let to = match line.to {
        SideId::Upstream => "host",
        SideId::Downstream => "client",
    };
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    // The id of a message that we cannot read to its end may not be JSON.
    let id: Option<serde_json::Value> = line.id.as_deref().and_then(|id| serde_json::from_str(id).ok());
    serde_json::json!({
        "at": units::moment(line.at),
        "client": line.client,
        "clientId": line.client_id,
        "toward": to,
        "kind": kind(line.kind),
        "method": line.method,
        "action": line.action,
        "channel": line.channel,
        "id": id,
        "answers": line.answers,
        "error": line.error,
        "bytes": line.bytes,
        "segmentsIn": line.segments.received,
        "segmentsOut": line.segments.sent,
        "micros": micros(line.took),
        "latencyMicros": line.latency.map(micros),
    })
    .to_string()
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Request => "request",
        Kind::Notification => "notification",
        Kind::Response => "response",
        Kind::Other => "message",
    }
}

/// A name that a peer gave, without characters that control a terminal.
fn plain(name: &str) -> String {
    if name.contains(units::is_terminal_control) { name.escape_debug().to_string() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_moves_no_cursor_and_begins_no_line() {
        assert_eq!(plain("chat/turnStarted"), "chat/turnStarted");
        assert_eq!(plain("a\u{1b}[31mb\nc\u{9b}2J"), "a\\u{1b}[31mb\\nc\\u{9b}2J");
    }
}
