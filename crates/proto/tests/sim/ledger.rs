//! The ledger: every message by lane, number and SHA-256. Counts what was lost, duplicated, reordered, altered.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use sha2::{Digest as _, Sha256};

/// What identifies a text.
pub(crate) type Digest = [u8; 32];

pub(crate) fn digest(text: &[u8]) -> Digest {
    Sha256::digest(text).into()
}

/// The four counts, which must be zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) altered: u64,
}

impl Counts {
    pub(crate) fn is_clean(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.altered += other.altered;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, duplicated, reordered, altered } = self;
        write!(f, "lost {lost}, duplicated {duplicated}, reordered {reordered}, altered {altered}")
    }
}

/// Which messages a message has to stay in order with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// With all that is ordered.
    Barrier,
    /// Starts in order with all that is ordered, arrives in order with those of the same name.
    Named(String),
    /// With none.
    Free,
}

/// How strictly a receiver expects ordered messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// In order within a lane.
    PerLane,
    /// In order over all lanes.
    OverAll,
}

/// What was handed to one machine for its peer, and what came out there.
#[derive(Debug)]
struct Book {
    name: String,
    strictness: Strictness,
    entries: HashMap<Digest, Entry>,
    tickets: HashMap<u64, Digest>,
    next: u64,
    /// Per lane, and over all under `None`: the number that arrived last.
    last: HashMap<Option<String>, u64>,
    /// Ordered messages by the order in which they began to arrive.
    starts: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Entry {
    n: u64,
    lane: Lane,
    arrived: bool,
    failed: bool,
    excused: bool,
}

/// Names one direction of one link.
pub(crate) type BookId = (u64, usize);

/// All books of a run, and the sums.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) counts: Counts,
    pub(crate) notes: Vec<String>,
    books: HashMap<BookId, Book>,
}

/// More notes than this help nobody.
const MAX_NOTES: usize = 12;

impl Ledger {
    /// Opens the book of one direction of a link.
    pub(crate) fn open(&mut self, id: BookId, name: String, strictness: Strictness) {
        let book = Book {
            name,
            strictness,
            entries: HashMap::new(),
            tickets: HashMap::new(),
            next: 0,
            last: HashMap::new(),
            starts: BTreeMap::new(),
        };
        self.books.insert(id, book);
    }

    /// The link is gone: what was under way is unknown, and unknown is allowed.
    pub(crate) fn forget(&mut self, id: BookId) {
        self.books.remove(&id);
    }

    /// An application hands a message to its machine.
    pub(crate) fn handed(&mut self, id: BookId, ticket: u64, lane: Lane, text: &[u8]) {
        let Some(book) = self.books.get_mut(&id) else { return };
        book.next += 1;
        let key = digest(text);
        book.tickets.insert(ticket, key);
        let twin =
            book.entries.insert(key, Entry { n: book.next, lane, arrived: false, failed: false, excused: false });
        assert!(twin.is_none(), "the harness hands out the same text twice");
    }

    /// The machine says that a message was not sent.
    pub(crate) fn failed(&mut self, id: BookId, ticket: u64) {
        let Some(book) = self.books.get_mut(&id) else { return };
        if let Some(entry) = book.tickets.get(&ticket).and_then(|key| book.entries.get_mut(key)) {
            entry.failed = true;
        }
    }

    /// Nobody can tell whether a message arrived, or its receiver was told that it did not.
    pub(crate) fn excuse(&mut self, id: BookId, ticket: u64) {
        let Some(book) = self.books.get_mut(&id) else { return };
        if let Some(entry) = book.tickets.get(&ticket).and_then(|key| book.entries.get_mut(key)) {
            entry.excused = true;
        }
    }

    /// A message came out at the other end.
    pub(crate) fn arrived(&mut self, id: BookId, ordinal: u64, text: &[u8]) {
        let Some(book) = self.books.get_mut(&id) else { return };
        let name = book.name.clone();
        let Some(entry) = book.entries.get_mut(&digest(text)) else {
            return self.altered(format!("{name}: {} bytes arrived that nobody sent", text.len()));
        };
        let (n, lane) = (entry.n, entry.lane.clone());
        if std::mem::replace(&mut entry.arrived, true) {
            return self.duplicated(format!("{name}: message {n} arrived twice"));
        }
        if entry.failed {
            return self.duplicated(format!("{name}: message {n} arrived although its sender was told that it failed"));
        }
        let key = match (&lane, book.strictness) {
            (Lane::Free, _) => return,
            (Lane::Barrier, _) | (_, Strictness::OverAll) => None,
            (Lane::Named(lane), Strictness::PerLane) => Some(lane.clone()),
        };
        let late = book.last.get(&key).is_some_and(|last| *last > n);
        let behind = book.starts.range(..ordinal).next_back().is_some_and(|(_, before)| *before > n);
        let ahead = book.starts.range(ordinal..).next().is_some_and(|(_, after)| *after < n);
        let last = book.last.entry(key).or_default();
        *last = n.max(*last);
        book.starts.insert(ordinal, n);
        if late {
            self.reordered(format!("{name}: message {n} of {lane:?} arrived late"));
        } else if behind || ahead {
            self.reordered(format!("{name}: message {n} of {lane:?} started out of order"));
        }
    }

    /// Everything is at rest: what was handed over and did not fail must have arrived.
    pub(crate) fn settle(&mut self) {
        let missing: Vec<_> = self
            .books
            .values()
            .flat_map(|book| book.entries.values().map(|entry| (book.name.clone(), entry)))
            .filter(|(_, entry)| !entry.arrived && !entry.failed && !entry.excused)
            .map(|(name, entry)| format!("{name}: message {} of {:?} never arrived", entry.n, entry.lane))
            .collect();
        missing.into_iter().for_each(|note| self.lost(note));
    }

    pub(crate) fn lost(&mut self, note: String) {
        self.counts.lost += 1;
        self.note(format!("lost: {note}"));
    }

    pub(crate) fn duplicated(&mut self, note: String) {
        self.counts.duplicated += 1;
        self.note(format!("duplicated: {note}"));
    }

    pub(crate) fn reordered(&mut self, note: String) {
        self.counts.reordered += 1;
        self.note(format!("reordered: {note}"));
    }

    pub(crate) fn altered(&mut self, note: String) {
        self.counts.altered += 1;
        self.note(format!("altered: {note}"));
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(note);
        }
    }
}
