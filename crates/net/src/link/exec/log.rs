//! A child's standard error, line by line, in our log.

use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of a longer line, the rest is dropped: a log is no place for it.
const MAX_LOGGED_LINE: u64 = 4 << 10;

/// Logs lines until there are no more. `logged` counts their bytes.
pub(super) fn lines(stderr: impl Read, name: &str, logged: &AtomicU64) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LOGGED_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        logged.fetch_add(line.len() as u64, Ordering::Relaxed);
        let is_cut = line.len() as u64 == MAX_LOGGED_LINE && line.last() != Some(&b'\n');
        let text = String::from_utf8_lossy(line.trim_ascii_end());
        if !text.is_empty() {
            let rest = if is_cut { "…" } else { "" };
            tracing::info!(target: "breakbulk::exec", command = name, "{text}{rest}");
        }
        if is_cut && reader.skip_until(b'\n').is_err() {
            return;
        }
    }
}
