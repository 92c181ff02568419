//! Verifies every record against its checksum, and the integrity of the store itself.

use rusqlite::Row;

use super::super::{DamagedRecord, ReadError, Report, Seq};
use super::acknowledged::AcknowledgedFile;
use super::files::LogFiles;
use super::reader::{Reader, store};
use super::{db, holes, pieces, record};

/// Records that are verified in one read transaction: between two, the writer can reuse its write-ahead log.
const STEP: usize = 1_000;

/// Verifies every record, and reports its progress in bytes.
pub(super) fn walk(reader: &Reader, files: &LogFiles, mut seen: impl FnMut(u64)) -> Result<Report, ReadError> {
    let mut report = Report::default();
    ends(reader, files, &mut report).map_err(store)?;
    // It checks trees and indices. Its messages are for people.
    let check = reader.connection.prepare("PRAGMA integrity_check(100)").and_then(|mut check| {
        let lines = check.query_map([], |row| row.get::<_, String>(0))?;
        lines.collect::<rusqlite::Result<Vec<_>>>()
    });
    match check {
        Ok(lines) => report.faults.extend(lines.into_iter().filter(|line| line != "ok")),
        Err(error) => report.faults.push(error.to_string()),
    }
    entries(reader, &mut report, &mut seen)?;
    // Entries matter most. If snapshots or rows cannot be read, that is one more fault.
    if let Err(error) = snapshots(reader, &mut report).and_then(|()| rows(reader, &mut report, &mut seen)) {
        report.faults.push(error.to_string());
    }
    Ok(report)
}

/// Compares the end of the log with what was acknowledged.
fn ends(reader: &Reader, files: &LogFiles, report: &mut Report) -> rusqlite::Result<()> {
    // The acknowledged seq is read first, because a host may append meanwhile.
    let marked = AcknowledgedFile::look(files);
    let (last, gaps) = (reader.last()?, db::load_gaps(&reader.connection)?);
    let told = gaps.newest().filter(|gap| gap.after == last).and_then(|gap| gap.lost);
    report.missing_end = marked.filter(|marked| *marked > last && told.is_none_or(|told| told < *marked));
    report.lost = gaps.iter().filter(|gap| gap.lost.is_some()).collect();
    Ok(())
}

fn entries(reader: &Reader, report: &mut Report, seen: &mut impl FnMut(u64)) -> Result<(), ReadError> {
    let sql = "SELECT seq, channel, at, crc, about, body FROM entry WHERE seq >= ?1 ORDER BY seq LIMIT ?2";
    let mut query = reader.connection.prepare(sql).map_err(store)?;
    let last = reader.last().map_err(store)?;
    let mut after: Seq = 0;
    loop {
        let (begin, mut rows) = (after, query.query((after.saturating_add(1), STEP as u64)).map_err(store)?);
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                Err(error) if holes::is_corrupt(&error) && after >= last => return Ok(()),
                Err(error) if holes::is_corrupt(&error) => {
                    let lost = reader.lost_after(after, last.max(after))?;
                    after = lost.end().unwrap_or(last).max(after);
                    report.damaged.push(lost);
                    break;
                }
                Err(error) => return Err(store(error)),
            };
            after = row.get(0).map_err(store)?;
            match entry_len(reader, row) {
                Some(len) => {
                    report.entries += 1;
                    report.bytes += len;
                }
                None => report.damaged.push(DamagedRecord::Entry { seq: after }),
            }
        }
        seen(report.bytes);
        if after == begin {
            return Ok(());
        }
    }
}

/// The length of a body, if its entry is intact.
fn entry_len(reader: &Reader, row: &Row<'_>) -> Option<u64> {
    let (seq, channel, at, crc): (Seq, i64, u64, u32) =
        (row.get(0).ok()?, row.get(1).ok()?, row.get(2).ok()?, row.get(3).ok()?);
    let about = row.get_ref(4).ok()?.as_str_or_null().ok()?;
    let body = pieces::body(&reader.connection, row, 5, None).ok()?;
    let body = body.bytes();
    (record::entry_sum(seq, channel, at, about, body) == crc).then_some(body.len() as u64)
}

fn snapshots(reader: &Reader, report: &mut Report) -> rusqlite::Result<()> {
    let sql = "SELECT channel, seq, version, crc, body, uri FROM snapshot JOIN channel ON channel.id = channel";
    let mut query = reader.connection.prepare(sql)?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (id, seq, version): (i64, Seq, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let body = record::blob(row.get_ref(4)?);
        if row.get::<_, u32>(3).ok() == Some(record::snapshot_sum(id, seq, &version, body)) {
            report.snapshots += 1;
            report.bytes += body.len() as u64;
        } else {
            let channel = row.get(5)?;
            report.damaged.push(DamagedRecord::Snapshot { channel });
        }
    }
    Ok(())
}

fn rows(reader: &Reader, report: &mut Report, seen: &mut impl FnMut(u64)) -> rusqlite::Result<()> {
    let sql = "SELECT part.id, crc, body, uri FROM part JOIN channel ON channel.id = part.id >> 32";
    let mut query = reader.connection.prepare(sql)?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let key: i64 = row.get(0)?;
        let body = record::blob(row.get_ref(2)?);
        if row.get::<_, u32>(1).ok() == Some(record::row_sum(key, body)) {
            report.rows += 1;
            seen(report.bytes);
            report.bytes += body.len() as u64;
        } else {
            let (channel, index) = (row.get(3)?, record::row_index(key));
            report.damaged.push(DamagedRecord::Row { channel, index });
        }
    }
    Ok(())
}
