//! `breakbulk log`: looks at a host's log, and looks after it.

mod place;
mod print;

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Channels, DamagedRecord, ExportError, Log, ReadError, Seq};
use breakbulk_host::maintenance::{self, UnsavedChannel, erase, save_all};

pub(crate) use self::place::connect;
use self::place::{OpenLog, Place};
use self::print::Titles;
use crate::args::{CompactArgs, CopyArgs, EraseArgs, ExportArgs, ListArgs, LogCommand, ShowArgs};
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
            LogCommand::Verify(args) => verify(&place(args.settings)?.1).await,
            LogCommand::Export(args) => export(args).await,
            LogCommand::Compact(args) => compact(args).await,
            LogCommand::Erase(args) => remove(args).await,
            LogCommand::Copy(args) => copy(args).await,
        }
    })
}

async fn list(args: ListArgs) -> Result<(), Error> {
    let log = place(args.settings)?.1.open().await?;
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
async fn titles(log: &OpenLog) -> Titles {
    let sessions = maintenance::sessions(&log.shared()).await.unwrap_or_default();
    sessions.into_iter().map(|summary| (summary.resource, summary.title)).collect()
}

async fn show(args: ShowArgs) -> Result<(), Error> {
    let ShowArgs { channel, from, limit, json, settings } = args;
    let place = place(settings)?.1;
    let log = place.open().await?.shared();
    let infos = log.channels(None).await.map_err(unread)?;
    let Some(info) = infos.into_iter().find(|info| *info.channel == channel) else {
        return Err(Error::Host(format!("{} has no channel {channel:?}", place.name())));
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

async fn verify(place: &Place) -> Result<(), Error> {
    let log = place.open().await?;
    let bar = Bar::alone("verify ");
    let seen = move |done, total| {
        bar.expect(total);
        bar.reach(done);
    };
    let report = log.verify(seen).await.map_err(unread)?;
    print::report(&report, output())?;
    match report.damaged.len() {
        _ if !report.faults.is_empty() => Err(Error::DamagedFile),
        0 if report.missing_end.is_some() => Err(Error::MissingEntries),
        0 => Ok(()),
        count => Err(Error::Damaged(count)),
    }
}

async fn export(args: ExportArgs) -> Result<(), Error> {
    let place = place(args.settings)?.1;
    let log = place.open().await?;
    let channels = match &args.session {
        None => Channels::All,
        Some(session) => {
            let infos = log.shared().channels(Some(session)).await.map_err(unread)?;
            if infos.is_empty() {
                return Err(no_session(session, &place));
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
    let (configuration, place) = place(args.settings)?;
    let policy = settings::retention(&configuration.layers)?;
    let Place::Directory(dir) = place else {
        let why =
            "a log in NATS is not compacted: JetStream gives space back, and the node that owns the host trims it";
        return Err(Error::Arguments(why.to_owned()));
    };
    drop(Place::Directory(dir.clone()).open().await?);
    let log = SqliteLog::open(&dir, Options::default()).await.map_err(unopened)?;
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
    let place = place(settings)?.1;
    if !yes {
        return Err(Error::Arguments(format!("this erases {name} for good: add --yes to confirm")));
    }
    let log = place.open_for_writing().await?;
    let erased = erase(&log.shared(), &name).await.map_err(|error| Error::Host(error.message));
    // The entries of the root are only released, and not overwritten. Compacting overwrites them.
    if let (true, true, OpenLog::File(log)) = (erased.is_ok(), name == ROOT, &log) {
        log.compact().await.map_err(|error| Error::Host(error.to_string()))?;
    }
    log.close().await;
    let Some(entries) = erased? else {
        return Err(Error::Host(format!("{} has no session or channel {name:?}", place.name())));
    };
    let mut out = output();
    let what = if name == ROOT { "the past of " } else { "" };
    let entries = units::count(entries, "entry", "entries");
    writeln!(out, "{what}{name} is gone, with {entries}").and_then(|()| out.flush()).map_err(Error::Output)
}

async fn copy(args: CopyArgs) -> Result<(), Error> {
    let CopyArgs { from, to, settings } = args;
    let (_, mut configuration) = crate::prepare(settings)?;
    let from = Place::named(&from, "--from", &mut configuration)?;
    let to = Place::named(&to, "--to", &mut configuration)?;
    let copied = from.copy_to(&to).await?;
    let (channels, entries) =
        (units::count(copied.channels, "channel", "channels"), units::count(copied.entries, "entry", "entries"));
    let mut out = output();
    let size = units::size(copied.bytes);
    writeln!(out, "{channels}, {entries}, {size} copied to {}", to.name())
        .and_then(|()| out.flush())
        .map_err(Error::Output)
}

/// Reads the settings; where the log is.
fn place<S: Scope>(args: SettingsArgs<S>) -> Result<(Configuration, Place), Error> {
    let (_, configuration) = crate::prepare(args)?;
    let place = Place::of(&configuration)?;
    Ok((configuration, place))
}

fn no_session(session: &str, place: &Place) -> Error {
    Error::Host(format!("{} has no session {session:?}", place.name()))
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
