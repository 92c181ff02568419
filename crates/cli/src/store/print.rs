//! What is in a log, for people and for programs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use breakbulk_host::iso_8601;
use breakbulk_host::log::{Entry, Report, Usage};
use serde_json::{Value, json};

use crate::config::print_json;
use crate::failure::Error;
use crate::units;

/// How much of a body a person sees.
const WIDEST_BODY: usize = 120;

/// How much of a title a person sees.
const WIDEST_TITLE: usize = 60;

/// The titles of sessions, by their URIs.
pub(super) type Titles = BTreeMap<String, String>;

/// The title of the session that a channel is, or belongs to.
fn title<'a>(usage: &Usage, titles: &'a Titles) -> Option<&'a str> {
    let session = usage.info.session.as_deref().unwrap_or(&usage.info.channel);
    titles.get(session).map(String::as_str)
}

/// Prints channels as a table.
pub(super) fn table(usages: &[Usage], titles: &Titles, mut output: impl Write) -> Result<(), Error> {
    let head =
        ["CHANNEL", "ENTRIES", "BYTES", "FIRST", "LAST", "OLDEST", "NEWEST", "SESSION", "TITLE"].map(str::to_owned);
    let cells = usages.iter().map(|usage| cells(usage, titles));
    let rows: Vec<[String; 9]> = std::iter::once(head).chain(cells).collect();
    let width =
        |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let [channel, entries, bytes, first, last, oldest, newest, session] = std::array::from_fn(width);
    for [a, b, c, d, e, f, g, h, i] in &rows {
        let line = format!(
            "{a:channel$}  {b:>entries$}  {c:>bytes$}  {d:>first$}  {e:>last$}  {f:oldest$}  {g:newest$}  {h:session$}  {i}"
        );
        writeln!(output, "{}", line.trim_end()).map_err(Error::Output)?;
    }
    output.flush().map_err(Error::Output)
}

fn cells(usage: &Usage, titles: &Titles) -> [String; 9] {
    let Usage { info, entries, bytes, seqs, times, .. } = usage;
    let seq = |at: Option<&u64>| at.map_or_else(|| "-".to_owned(), u64::to_string);
    let when = |at: Option<&u64>| at.map_or_else(|| "-".to_owned(), |at| time(*at));
    [
        info.channel.to_string(),
        entries.to_string(),
        bytes.to_string(),
        seq(seqs.as_ref().map(|seqs| seqs.start())),
        seq(seqs.as_ref().map(|seqs| seqs.end())),
        when(times.as_ref().map(|times| times.start())),
        when(times.as_ref().map(|times| times.end())),
        info.session.as_deref().unwrap_or("-").to_owned(),
        title(usage, titles).map_or_else(|| "-".to_owned(), |title| on_one_line(title, WIDEST_TITLE)),
    ]
}

/// The beginning of a text, without what a terminal would obey.
fn on_one_line(text: &str, widest: usize) -> String {
    let mut shown: String =
        text.chars().take(widest).map(|c| if units::is_terminal_control(c) { ' ' } else { c }).collect();
    if text.chars().nth(widest).is_some() {
        shown.push('…');
    }
    shown
}

/// Prints channels for programs.
pub(super) fn list(usages: &[Usage], titles: &Titles, output: impl Write) -> Result<(), Error> {
    let object = |usage: &Usage| {
        let Usage { info, entries, bytes, seqs, times, rows } = usage;
        json!({
            "channel": &*info.channel,
            "session": info.session.as_deref(),
            "title": title(usage, titles),
            "entries": entries,
            "bytes": bytes,
            "rows": rows,
            "snapshot": info.snapshot,
            "readableFrom": info.first,
            "first": seqs.as_ref().map(|seqs| *seqs.start()),
            "last": seqs.as_ref().map(|seqs| *seqs.end()),
            "oldest": times.as_ref().map(|times| time(*times.start())),
            "newest": times.as_ref().map(|times| time(*times.end())),
        })
    };
    print_json(usages.iter().map(object), output)
}

/// Prints one entry on one line.
pub(super) fn entry(entry: &Entry, json: bool, mut output: impl Write) -> io::Result<()> {
    let Entry { seq, at_ms, channel, body, .. } = entry;
    let text = String::from_utf8_lossy(body);
    if json {
        let body = serde_json::from_str(&text).unwrap_or_else(|_| json!({ "invalid": text }));
        let line: Value = json!({ "seq": seq, "at": at_ms, "channel": &**channel, "body": body });
        return writeln!(output, "{line}");
    }
    let shown = on_one_line(&text, WIDEST_BODY);
    writeln!(output, "{seq:>10}  {}  {:>9}  {shown}", time(*at_ms), body.len())
}

/// Prints what a walk through the log found.
pub(super) fn report(report: &Report, mut output: impl Write) -> Result<(), Error> {
    let Report { entries, rows, snapshots, bytes, damaged, faults, missing_end, lost } = report;
    let good = if report.is_clean() { ", all as they were written" } else { " are as they were written" };
    let mut line = |text: String| writeln!(output, "{text}").map_err(Error::Output);
    line(format!("{entries} entries, {rows} rows, {snapshots} snapshots, {bytes} bytes{good}"))?;
    for record in damaged {
        line(format!("damaged: {record}"))?;
    }
    for fault in faults {
        line(format!("fault: {}", fault.replace('\n', " ")))?;
    }
    if let Some(acknowledged) = missing_end {
        line(format!(
            "missing: seqs up to {acknowledged} were acknowledged in this directory and are not in the log: it was \
             restored from a backup, or has lost its end (was log.db-wal left behind?)"
        ))?;
    }
    for gap in lost {
        line(format!(
            "note: after {}, seqs up to {} were acknowledged and are missing; the log continues at {}",
            gap.after,
            gap.lost.unwrap_or(gap.after),
            gap.next
        ))?;
    }
    output.flush().map_err(Error::Output)
}

fn time(at_ms: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(at_ms));
    time.and_then(iso_8601).unwrap_or_else(|| at_ms.to_string())
}
