//! How much space each channel takes in the log.

use std::collections::HashMap;

use super::super::{ChannelInfo, ReadError, Seq, Usage};
use super::pieces::BODY_LENGTH;
use super::reader::{Reader, store};

/// The sums of one channel's entries.
#[derive(Debug, Clone, Copy)]
struct Sum {
    entries: u64,
    bytes: u64,
    seqs: (Seq, Seq),
    times: (u64, u64),
}

/// Sums up all entries and rows, without reading their bodies.
pub(super) fn all(reader: &Reader) -> Result<Vec<Usage>, ReadError> {
    let infos = reader.channels(None)?;
    let sql = format!(
        "SELECT uri, count(*), sum({BODY_LENGTH}), min(seq), max(seq), min(at), max(at)
         FROM entry JOIN channel ON channel.id = channel
         WHERE NOT erased AND seq > trimmed GROUP BY channel.id"
    );
    let mut query = reader.connection.prepare(&sql).map_err(store)?;
    let sums = query.query_map([], |row| {
        let (seqs, times) = ((row.get(3)?, row.get(4)?), (row.get(5)?, row.get(6)?));
        Ok((row.get(0)?, Sum { entries: row.get(1)?, bytes: row.get(2)?, seqs, times }))
    });
    let sums: HashMap<String, Sum> = sums.and_then(Iterator::collect).map_err(store)?;
    let sql = "SELECT uri, count(*) FROM part JOIN channel ON channel.id = part.id >> 32 GROUP BY channel.id";
    let mut query = reader.connection.prepare(sql).map_err(store)?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    let rows: HashMap<String, u64> = rows.and_then(Iterator::collect).map_err(store)?;
    let usage = |info: ChannelInfo| {
        let channel = &*info.channel;
        usage(sums.get(channel).copied(), rows.get(channel).copied().unwrap_or(0), info)
    };
    Ok(infos.into_iter().map(usage).collect())
}

fn usage(sum: Option<Sum>, rows: u64, info: ChannelInfo) -> Usage {
    match sum {
        None => Usage { info, entries: 0, bytes: 0, seqs: None, times: None, rows },
        Some(Sum { entries, bytes, seqs, times }) => {
            let (seqs, times) = (Some(seqs.0..=seqs.1), Some(times.0..=times.1));
            Usage { info, entries, bytes, seqs, times, rows }
        }
    }
}
