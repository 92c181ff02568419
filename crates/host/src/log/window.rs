//! The newest entries, shared by all readers; and what readers have to know before they read: trims.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::{Channels, Entry, ReadError, Seq};

/// The entries at the end of the log: all durable entries after `after`.
#[derive(Debug, Default)]
pub(super) struct Window {
    entries: VecDeque<Entry>,
    after: Seq,
    bytes: usize,
    max_bytes: usize,
    trims: HashMap<Arc<str>, Seq>,
    highest_trim: Seq,
}

/// What a reader finds in the window.
pub(super) enum WindowLookup {
    /// Entries, perhaps none, and the position after them.
    Page(Vec<Entry>, Seq),
    /// The reader is too far behind, and has to read the store.
    Behind,
}

impl Window {
    /// No entries. It holds up to `max_bytes` of bodies, and at least one entry.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Removes everything: the log was opened, and ends with `last`.
    pub(super) fn reset(&mut self, last: Seq, trims: HashMap<Arc<str>, Seq>) {
        self.entries.clear();
        self.bytes = 0;
        self.after = last;
        self.highest_trim = trims.values().copied().max().unwrap_or(0);
        self.trims = trims;
    }

    /// Adds entries that are durable now. Old ones that no longer fit are removed, but never the newest one.
    pub(super) fn push(&mut self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.bytes += entry.body.len();
            self.entries.push_back(entry);
        }
        while self.bytes > self.max_bytes && self.entries.len() > 1 {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.body.len();
            self.after = oldest.seq;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All recent entries, oldest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The entries after a position, as far as `max_bytes` go.
    pub(super) fn page(&self, after: Seq, channels: &Channels, max_bytes: usize) -> WindowLookup {
        if after < self.after {
            return WindowLookup::Behind;
        }
        let from = self.entries.partition_point(|entry| entry.seq <= after);
        let (mut page, mut bytes, mut position) = (Vec::new(), 0, after);
        for entry in self.entries.range(from..) {
            if channels.contains(&entry.channel) {
                bytes += entry.body.len();
                if bytes > max_bytes && !page.is_empty() {
                    break;
                }
                page.push(entry.clone());
            }
            position = entry.seq;
        }
        WindowLookup::Page(page, position)
    }

    /// Whether a position can still be followed on these channels.
    pub(super) fn check(&self, after: Seq, channels: &Channels) -> Result<(), ReadError> {
        if after >= self.highest_trim {
            return Ok(());
        }
        let trims = self.trims.iter().filter(|(channel, _)| channels.contains(channel)).map(|(_, seq)| *seq);
        match trims.max() {
            Some(trimmed) if after < trimmed => Err(ReadError::Trimmed { first: trimmed + 1 }),
            _ => Ok(()),
        }
    }

    /// One more than the highest trimmed seq.
    pub(super) fn first(&self) -> Seq {
        self.highest_trim + 1
    }

    /// Records that a channel is trimmed up to a seq. To be called before the entries are removed, so that a reader that misses
    /// them in the store gets an error.
    pub(super) fn trim(&mut self, channel: &Arc<str>, seq: Seq) {
        let trimmed = self.trims.entry(channel.clone()).or_default();
        *trimmed = seq.max(*trimmed);
        self.highest_trim = seq.max(self.highest_trim);
    }

    /// Removes erased channels and entries.
    pub(super) fn erase(&mut self, channels: &[Arc<str>], seqs: &HashSet<Seq>) {
        let uris: HashSet<&str> = channels.iter().map(|uri| &**uri).collect();
        self.entries.retain(|entry| !uris.contains(&*entry.channel) && !seqs.contains(&entry.seq));
        self.bytes = self.entries.iter().map(|entry| entry.body.len()).sum();
        for uri in channels {
            self.trims.remove(uri);
        }
        self.highest_trim = self.trims.values().copied().max().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: Seq, len: usize) -> Entry {
        Entry::new(seq, 0, "c".into(), vec![b'x'; len].into())
    }

    #[test]
    fn the_window_keeps_the_newest_entry_however_large_it_is() {
        let mut window = Window::new(10);
        window.push([entry(1, 4), entry(3, 4)]);
        assert!(matches!(window.page(0, &Channels::All, 100), WindowLookup::Page(page, 3) if page.len() == 2));
        window.push([entry(4, 50)]);
        assert!(matches!(window.page(2, &Channels::All, 100), WindowLookup::Behind));
        assert!(matches!(window.page(3, &Channels::All, 1), WindowLookup::Page(page, 4) if page.len() == 1));
    }

    #[test]
    fn a_reader_of_other_channels_moves_on_without_entries() {
        let mut window = Window::new(100);
        window.push([entry(5, 4)]);
        assert!(matches!(window.page(0, &Channels::only(["d"]), 100), WindowLookup::Page(page, 5) if page.is_empty()));
    }
}
