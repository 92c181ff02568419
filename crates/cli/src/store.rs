//! `breakbulk log`: looks at a host's log, and looks after it.

mod print;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Channels, DamagedRecord, ExportError, Log, OpenError, ReadError, Seq};
use breakbulk_host::maintenance::{self, UnsavedChannel, erase, save_all};

use self::print::Titles;
use crate::args::{CompactArgs, EraseArgs, ExportArgs, ListArgs, LogCommand, ShowArgs};
use crate::bar::Bar;
use crate::failure::Error;
use crate::runtime;
use crate::serve::unopened;
use crate::settings::{self, Configuration, Scope, SettingsArgs};
use crate::units;

/// The channel that a host cannot do without.
const ROOT: &str = "ahp-root://";

/// Bytes of bodies that are held at a time.
const PAGE: usize = 1 << 20;

/// How many damaged records an export names on standard error. Its output names all of them.
const MAX_NAMED: usize = 20;

/// Does what a command asks for.
pub(crate) fn run(command: LogCommand) -> Result<(), Error> {
    runtime::run(async {
        match command {
            LogCommand::List(args) => list(args).await,
            LogCommand::Show(args) => show(args).await,
            LogCommand::Verify(args) => verify(&data(args.settings)?.1).await,
            LogCommand::Export(args) => export(args).await,
            LogCommand::Compact(args) => compact(args).await,
            LogCommand::Erase(args) => remove(args).await,
        }
    })
}

async fn list(args: ListArgs) -> Result<(), Error> {
    let log = open(&data(args.settings)?.1).await?;
    let mut usages = log.usage().await.map_err(unread)?;
    if let Some(session) = &args.session {
        usages.retain(|usage| usage.info.session.as_deref() == Some(session));
    }
    // Those of the host itself first, then session by session.
    usages.sort_by(|one, other| one.info.session.cmp(&other.info.session));
    let titles = titles(&log).await;
    if args.json { print::list(&usages, &titles, output()) } else { print::table(&usages, &titles, output()) }
}

/// The titles of the sessions. If the list of sessions cannot be read there are no titles, but the rest of the log can
/// still be shown.
async fn titles(log: &SqliteLog) -> Titles {
    let log: Arc<dyn Log> = Arc::new(log.clone());
    let sessions = maintenance::sessions(&log).await.unwrap_or_default();
    sessions.into_iter().map(|summary| (summary.resource, summary.title)).collect()
}

async fn show(args: ShowArgs) -> Result<(), Error> {
    let ShowArgs { channel, from, limit, json, settings } = args;
    let dir = data(settings)?.1;
    let log = open(&dir).await?;
    let infos = log.channels(None).await.map_err(unread)?;
    let Some(info) = infos.into_iter().find(|info| *info.channel == channel) else {
        return Err(Error::Host(format!("{} has no channel {channel:?}", dir.display())));
    };
    if from < info.first && info.first > 1 {
        note(&format!("entries before {} were trimmed", info.first));
    }
    let (mut out, mut next, mut left) = (output(), from.max(info.first), limit.unwrap_or(u64::MAX));
    let mut damaged: usize = 0;
    while left > 0 {
        let page = match log.read(&channel, next..Seq::MAX, PAGE).await {
            Err(ReadError::Damaged(record @ DamagedRecord::Entry { seq })) => {
                note(&format!("{record} is damaged"));
                (damaged, next) = (damaged.saturating_add(1), seq.saturating_add(1));
                continue;
            }
            page => page.map_err(unread)?,
        };
        let Some(last) = page.last() else { break };
        next = last.seq.saturating_add(1);
        for entry in page.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            left = left.saturating_sub(1);
            print::entry(entry, json, &mut out).map_err(Error::Output)?;
        }
    }
    out.flush().map_err(Error::Output)?;
    if damaged == 0 { Ok(()) } else { Err(Error::Damaged(damaged)) }
}

async fn verify(dir: &Path) -> Result<(), Error> {
    let log = open(dir).await?;
    let bar = Bar::alone("verify ");
    let seen = move |done, total| {
        bar.expect(total);
        bar.reach(done);
    };
    let report = log.verify_with(seen).await.map_err(unread)?;
    print::report(&report, output())?;
    match report.damaged.len() {
        _ if !report.faults.is_empty() => Err(Error::DamagedFile),
        0 if report.missing_end.is_some() => Err(Error::MissingEntries),
        0 => Ok(()),
        count => Err(Error::Damaged(count)),
    }
}

async fn export(args: ExportArgs) -> Result<(), Error> {
    let dir = data(args.settings)?.1;
    let log = open(&dir).await?;
    let channels = match &args.session {
        None => Channels::All,
        Some(session) => {
            let infos = log.channels(Some(session)).await.map_err(unread)?;
            if infos.is_empty() {
                return Err(no_session(session, &dir));
            }
            Channels::only(infos.into_iter().map(|info| info.channel))
        }
    };
    let mut out = output();
    let exported = log.export(channels, &mut out).await;
    // The entries that could be read are useful even if others are damaged.
    let flushed = out.flush().map_err(Error::Output);
    let damaged = exported.map_err(|error| match error {
        ExportError::Write(error) => Error::Output(error),
        error => Error::Host(error.to_string()),
    })?;
    flushed?;
    for record in damaged.iter().take(MAX_NAMED) {
        note(&format!("{record} is damaged, and left out"));
    }
    match damaged.len() {
        0 => Ok(()),
        count => Err(Error::Damaged(count)),
    }
}

async fn compact(args: CompactArgs) -> Result<(), Error> {
    let (configuration, dir) = data(args.settings)?;
    let policy = settings::retention(&configuration.layers)?;
    let log = open_for_writing(&dir).await?;
    let before = length(&dir);
    let mut is_complete = true;
    if policy.wants_snapshots(before) {
        let shared: Arc<dyn Log> = Arc::new(log.clone());
        let unsaved = save_all(&shared).await.map_err(|error| Error::Host(error.to_string()))?;
        for UnsavedChannel { channel, error } in unsaved {
            is_complete = false;
            note(&format!("no entries of {channel} are removed, because it cannot be saved: {error}"));
        }
    }
    let trimmed = log.retain(policy).await.map_err(|error| Error::Host(error.to_string()))?;
    log.compact().await.map_err(|error| Error::Host(error.to_string()))?;
    log.close().await;
    let mut out = output();
    let (before, now) = (units::size(before), units::size(length(&dir)));
    let trimmed = units::count(trimmed, "entry", "entries");
    writeln!(out, "{trimmed} trimmed; {before} before, {now} now").and_then(|()| out.flush()).map_err(Error::Output)?;
    if is_complete {
        Ok(())
    } else {
        Err(Error::Host("not every channel was trimmed: see above, then run it again".to_owned()))
    }
}

async fn remove(args: EraseArgs) -> Result<(), Error> {
    let EraseArgs { name, yes, settings } = args;
    let dir = data(settings)?.1;
    if !yes {
        return Err(Error::Arguments(format!("this erases {name} for good: add --yes to confirm")));
    }
    let log = open_for_writing(&dir).await?;
    let shared: Arc<dyn Log> = Arc::new(log.clone());
    let erased = erase(&shared, &name).await.map_err(|error| Error::Host(error.message));
    // The entries of the root are only released, and not overwritten. Compacting overwrites them.
    if erased.is_ok() && name == ROOT {
        log.compact().await.map_err(|error| Error::Host(error.to_string()))?;
    }
    log.close().await;
    let Some(entries) = erased? else {
        return Err(Error::Host(format!("{} has no session or channel {name:?}", dir.display())));
    };
    let mut out = output();
    let what = if name == ROOT { "the past of " } else { "" };
    let entries = units::count(entries, "entry", "entries");
    writeln!(out, "{what}{name} is gone, with {entries}").and_then(|()| out.flush()).map_err(Error::Output)
}

/// Reads the settings; where the log is.
fn data<S: Scope>(args: SettingsArgs<S>) -> Result<(Configuration, PathBuf), Error> {
    let (_, configuration) = crate::prepare(args)?;
    let dir = settings::data(&configuration)?;
    Ok((configuration, dir))
}

/// Opens a log that a host may be writing to.
async fn open(dir: &Path) -> Result<SqliteLog, Error> {
    SqliteLog::open_for_reading(dir).await.map_err(|error| match error {
        OpenError::Missing(path) => {
            let dir = path.parent().unwrap_or(&path);
            Error::Host(format!("{} has no log; is --data the directory of the host?", dir.display()))
        }
        error => unopened(error),
    })
}

/// Opens a log that no host has. Nothing is made where there is none.
async fn open_for_writing(dir: &Path) -> Result<SqliteLog, Error> {
    drop(open(dir).await?);
    SqliteLog::open(dir, Options::default()).await.map_err(unopened)
}

fn no_session(session: &str, dir: &Path) -> Error {
    Error::Host(format!("{} has no session {session:?}", dir.display()))
}

fn unread(error: ReadError) -> Error {
    let text = error.to_string();
    // SQLite's text for a page that it cannot read.
    if text.contains("database disk image is malformed") { Error::DamagedFile } else { Error::Host(text) }
}

/// Bytes of the log's file.
fn length(dir: &Path) -> u64 {
    std::fs::metadata(dir.join("log.db")).map_or(0, |file| file.len())
}

fn note(text: &str) {
    // If this fails, nobody reads standard error.
    let _ = writeln!(io::stderr(), "breakbulk: {text}");
}

/// Standard output that a task may hold.
fn output() -> impl Write + Send {
    BufWriter::with_capacity(1 << 16, io::stdout())
}
