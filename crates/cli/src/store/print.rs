//! What is in a log, for people and for programs.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use breakbulk_host::files::iso_8601;
use breakbulk_host::log::{Entry, Report, Usage};
use serde_json::{Value, json};

use crate::config::print_json;
use crate::failure::Error;

/// How much of a body a person sees.
const WIDEST_BODY: usize = 120;

/// Prints channels as a table.
pub(super) fn table(usages: &[Usage], mut output: impl Write) -> Result<(), Error> {
    let head = ["CHANNEL", "ENTRIES", "BYTES", "FIRST", "LAST", "OLDEST", "NEWEST", "SESSION"].map(str::to_owned);
    let rows: Vec<[String; 8]> = std::iter::once(head).chain(usages.iter().map(cells)).collect();
    let width =
        |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let [channel, entries, bytes, first, last, oldest, newest] = std::array::from_fn(width);
    for [a, b, c, d, e, f, g, h] in &rows {
        let line =
            format!("{a:channel$}  {b:>entries$}  {c:>bytes$}  {d:>first$}  {e:>last$}  {f:oldest$}  {g:newest$}  {h}");
        writeln!(output, "{}", line.trim_end()).map_err(Error::Output)?;
    }
    output.flush().map_err(Error::Output)
}

fn cells(usage: &Usage) -> [String; 8] {
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
    ]
}

/// Prints channels for programs.
pub(super) fn list(usages: &[Usage], output: impl Write) -> Result<(), Error> {
    let object = |usage: &Usage| {
        let Usage { info, entries, bytes, seqs, times, rows } = usage;
        json!({
            "channel": &*info.channel,
            "session": info.session.as_deref(),
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
    let Entry { seq, at_ms, channel, body } = entry;
    let text = String::from_utf8_lossy(body);
    if json {
        let body = serde_json::from_str(&text).unwrap_or_else(|_| json!({ "invalid": text }));
        let line: Value = json!({ "seq": seq, "at": at_ms, "channel": &**channel, "body": body });
        return writeln!(output, "{line}");
    }
    let mut shown: String = text.chars().take(WIDEST_BODY).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    writeln!(output, "{seq:>10}  {}  {:>9}  {shown}", time(*at_ms), body.len())
}

/// Prints what a walk through the log found.
pub(super) fn report(report: &Report, mut output: impl Write) -> Result<(), Error> {
    let Report { entries, rows, snapshots, bytes, damaged, faults } = report;
    let good = if report.is_clean() { ", all as they were written" } else { " are as they were written" };
    let mut line = |text: String| writeln!(output, "{text}").map_err(Error::Output);
    line(format!("{entries} entries, {rows} rows, {snapshots} snapshots, {bytes} bytes{good}"))?;
    for record in damaged {
        line(format!("damaged: {record}"))?;
    }
    for fault in faults {
        line(format!("fault: {}", fault.replace('\n', " ")))?;
    }
    output.flush().map_err(Error::Output)
}

fn time(at_ms: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(at_ms));
    time.and_then(iso_8601).unwrap_or_else(|| at_ms.to_string())
}
