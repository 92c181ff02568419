//! `breakbulk tap`: a bridge that prints what passes, one line a message.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use breakbulk::gateway::{Passed, Toward, Watcher};
use breakbulk_proto::Kind;
use tokio_util::sync::CancellationToken;

use crate::bridge;
use crate::failure::Error;
use crate::runtime;
use crate::settings::{BridgeSettings, Layers, Origin, SettingError, Settings};
use crate::shutdown;

/// What `tap` does.
#[derive(Debug)]
pub(crate) struct TapSettings {
    bridge: BridgeSettings,
    /// Whether it prints for programs.
    json: bool,
}

impl TapSettings {
    pub(crate) fn prove(
        url: &str,
        listen: &str,
        json: bool,
        mut settings: Settings,
        mut layers: Layers,
    ) -> Result<Self, SettingError> {
        layers.put("listen", listen, Origin::Flag("--listen".into()));
        layers.put("connect", url, Origin::Argument("URL"));
        (settings.listen, settings.connect) = (layers.read("listen")?, layers.read("connect")?);
        for (key, address) in [("listen", &settings.listen), ("connect", &settings.connect)] {
            if address.as_ref().is_some_and(|address| address.way.is_stdio()) {
                let why = "allowed is all but stdio:, since tap prints to standard output";
                return Err(layers.refuse(key, why.into()));
            }
        }
        Ok(Self { bridge: BridgeSettings::prove(settings, &layers)?, json })
    }
}

/// Prints until it is told to stop, or nobody reads any more what it prints.
pub(crate) fn run(settings: TapSettings) -> Result<(), Error> {
    let print = if settings.json { json } else { text };
    runtime::run(async {
        let requested = shutdown::requested().map_err(Error::Runtime)?;
        let unread = CancellationToken::new();
        let is_unread = unread.clone();
        let shutdown = async move {
            tokio::select! {
                signal = requested => signal,
                () = is_unread.cancelled() => "nobody reads what is printed",
            }
        };
        let watch = || -> Option<Watcher> {
            let unread = unread.clone();
            Some(Box::new(move |passed| {
                let mut out = io::stdout().lock();
                if writeln!(out, "{}", print(&passed)).and_then(|()| out.flush()).is_err() {
                    unread.cancel();
                }
            }))
        };
        bridge::serve(&settings.bridge, shutdown, watch).await
    })
}

/// For a person: direction, method, size, segments in and out, time.
fn text(passed: &Passed) -> String {
    let arrow = match passed.toward {
        Toward::Far => "→",
        Toward::Near => "←",
    };
    let name = passed.method.as_deref().map_or(Cow::Borrowed(kind(passed.kind)), plain);
    let (came, left) = passed.frames;
    let segments = if came == left { came.to_string() } else { format!("{came}→{left}") };
    format!("{arrow} {name:<32} {:>10} {segments:>9} {:>9}", size(passed.size), time(passed.took))
}

fn json(passed: &Passed) -> String {
    let toward = match passed.toward {
        Toward::Far => "host",
        Toward::Near => "client",
    };
    serde_json::json!({
        "toward": toward,
        "kind": kind(passed.kind),
        "method": passed.method,
        "bytes": passed.size,
        "segmentsIn": passed.frames.0,
        "segmentsOut": passed.frames.1,
        "micros": u64::try_from(passed.took.as_micros()).unwrap_or(u64::MAX),
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

/// A peer's name for something, without what a terminal would obey.
fn plain(name: &str) -> Cow<'_, str> {
    if name.contains(char::is_control) { name.escape_debug().to_string().into() } else { name.into() }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

fn time(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
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
