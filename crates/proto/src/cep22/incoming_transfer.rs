//! One transfer that is arriving: its chunks may come in any order within a window, and become one checked message.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::assembly::Assembly;
use crate::budget::{Account, Schedule};
use crate::error::{Differs, Over, Violation};
use crate::machine::{Meta, Progress, Subject};
use crate::message::{len_usize, len64};

use super::Config;
use super::wire::{PATH_COUNT, PATHS, ParsedMessage, Start, hex};

/// The cost of a chunk that waits for an earlier one, in addition to its bytes: its entry in the table.
const HELD_COST: u64 = 64;
/// How many assembled chunks are remembered, to tell a repeated chunk from a different one with the same `progress`.
const MARKS: usize = 32;

/// The facts that are needed to report on a transfer, and to answer it.
#[derive(Debug, Clone)]
pub(super) struct TransferHeader {
    pub(super) ordinal: u64,
    pub(super) token: Box<str>,
    /// The metadata of its `start` frame.
    pub(super) meta: Meta,
    /// The highest `progress` seen.
    pub(super) highest: u64,
}

/// One transfer that is arriving.
#[derive(Debug)]
pub(super) struct IncomingTransfer {
    pub(super) header: TransferHeader,
    pub(super) start: Start,
    /// The `progress` of `start`.
    pub(super) first: u64,
    /// The `progress` that is assembled next, unless no chunk has it.
    next: u64,
    /// The first `progress` that was skipped, because no chunk with it had come.
    passed: Option<u64>,
    /// How many chunks have come, held ones included.
    chunks: u64,
    /// How many bytes have come, held ones included.
    bytes: u64,
    window: usize,
    assembly: Assembly<PATH_COUNT>,
    hash: Sha256,
    /// Chunks that wait for an earlier one, by `progress`.
    held: BTreeMap<u64, Vec<u8>>,
    /// The chunks that were assembled last: `progress`, offset and length.
    marks: VecDeque<(u64, usize, usize)>,
    /// When the transfer is given up, by the clock that stops while we do not read: if nothing more comes, and in any case.
    pub(super) soft: Duration,
    hard: Duration,
}

impl IncomingTransfer {
    /// Opens a transfer. Its declared size is reserved in the budget; nothing is allocated yet.
    ///
    /// # Errors
    /// The budget does not have so much memory.
    pub(super) fn begin(
        header: TransferHeader,
        start: Start,
        (config, account): (&Config, &Account),
        (now, read): (Instant, Duration),
    ) -> Result<Self, Violation> {
        let time = config.limits.time_for(start.bytes);
        let schedule = Schedule { started: now, timeout: time };
        let assembly = Assembly::begin(account, start.bytes, config.limits.max_depth, schedule, &PATHS);
        let assembly = assembly.map_err(|_| Violation::OverBudget(start.bytes))?;
        let first = header.highest;
        Ok(Self {
            header,
            start,
            first,
            next: first.saturating_add(1),
            passed: None,
            chunks: 0,
            bytes: 0,
            window: len_usize(config.window.into()),
            assembly,
            hash: Sha256::default(),
            held: BTreeMap::new(),
            marks: VecDeque::new(),
            soft: read.saturating_add(config.soft_timeout),
            hard: read.saturating_add(config.hard_timeout.max(time)),
        })
    }

    /// Takes a chunk. A repeated one is ignored.
    ///
    /// # Errors
    /// It breaks a rule, or the budget has no memory for it.
    pub(super) fn chunk(&mut self, at: u64, text: &[u8], now: Instant) -> Result<(), Violation> {
        if self.is_repeated(at, text)? {
            return Ok(());
        }
        self.chunks = self.chunks.saturating_add(1);
        self.bytes = self.bytes.saturating_add(len64(text.len()));
        Over::check(self.chunks, self.start.chunks).map_err(Violation::TooManyChunks)?;
        if self.bytes > self.start.bytes {
            return Err(Violation::SizeMismatch(Differs { got: self.bytes, want: self.start.bytes }));
        }
        self.header.highest = self.header.highest.max(at);
        if at == self.next {
            self.append(at, text, now)?;
        } else {
            self.held.insert(at, text.to_vec());
            self.reserve(0, now)?;
        }
        // A chunk that is missing when the window is full will not come any more. When all chunks are here, a gap is only a gap in
        // the numbering.
        while let Some((&at, _)) = self.held.first_key_value() {
            if at != self.next {
                if self.held.len() <= self.window && self.chunks < self.start.chunks {
                    break;
                }
                self.passed.get_or_insert(self.next);
            }
            if let Some(text) = self.held.remove(&at) {
                self.append(at, &text, now)?;
            }
        }
        Ok(())
    }

    /// Checks the whole message, after `end` has come.
    ///
    /// # Errors
    /// Chunks or bytes are missing, or the message is not what was declared, or no JSON-RPC message.
    pub(super) fn finish(self, at: u64) -> Result<ParsedMessage, Violation> {
        if at <= self.header.highest {
            return Err(Violation::ProgressNotIncreasing { got: at, after: self.header.highest });
        }
        if self.chunks != self.start.chunks {
            return Err(Violation::ChunksMissing(Differs { got: self.chunks, want: self.start.chunks }));
        }
        if self.bytes != self.start.bytes {
            return Err(Violation::SizeMismatch(Differs { got: self.bytes, want: self.start.bytes }));
        }
        if hex(self.hash) != self.start.digest {
            return Err(Violation::DigestMismatch);
        }
        let whole = self.assembly.finish()?;
        let text = ParsedMessage { message: whole.message, envelope: whole.envelope, paths: whole.paths };
        if text.is_part() { Err(Violation::NestedSegment) } else { Ok(text) }
    }

    /// When the transfer is given up, by the clock that stops while we do not read.
    pub(super) fn due(&self) -> Duration {
        self.soft.min(self.hard)
    }

    /// Why the transfer has to be given up now, if it has to.
    pub(super) fn lost(&self, read: Duration) -> Option<Violation> {
        if self.due() <= read {
            return Some(Violation::TimedOut(self.bytes));
        }
        self.assembly.is_evicted().then_some(Violation::OverBudget(self.start.bytes))
    }

    /// Whether the budget has evicted it.
    pub(super) fn is_evicted(&self) -> bool {
        self.assembly.is_evicted()
    }

    pub(super) const fn progress(&self) -> Progress {
        Progress { subject: Subject::Incoming(self.header.ordinal), done: self.bytes, total: self.start.bytes }
    }

    /// Whether this chunk has come before. A chunk whose `progress` was skipped comes too late, which is an error.
    fn is_repeated(&self, at: u64, text: &[u8]) -> Result<bool, Violation> {
        if at <= self.first {
            return Err(Violation::ProgressNotIncreasing { got: at, after: self.first });
        }
        let same = if at >= self.next {
            let Some(held) = self.held.get(&at) else {
                return Ok(false);
            };
            *held == text
        } else if let Some((_, offset, len)) = self.marks.iter().find(|(place, ..)| *place == at) {
            *len == text.len() && self.assembly.holds(*offset, text)
        } else if self.marks.len() == MARKS && self.marks.front().is_some_and(|(place, ..)| at < *place) {
            true
        } else {
            return Err(Violation::OutsideWindow { at, window: len64(self.window) });
        };
        if same { Ok(true) } else { Err(Violation::ChunkConflict(at)) }
    }

    fn append(&mut self, at: u64, text: &[u8], now: Instant) -> Result<(), Violation> {
        self.next = at.saturating_add(1);
        if self.marks.len() == MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back((at, len_usize(self.assembly.len()), text.len()));
        self.reserve(text.len(), now)?;
        self.hash.update(text);
        // The frame was checked to be UTF-8, so the unescaped text is, too.
        self.assembly.push_text(text).map_err(|violation| match self.passed {
            Some(at) => Violation::OutsideWindow { at, window: len64(self.window) },
            None => violation,
        })
    }

    /// Reserves memory for what has come, and for `len` more bytes.
    fn reserve(&mut self, len: usize, now: Instant) -> Result<(), Violation> {
        let cost = |sum: u64, text: &Vec<u8>| sum.saturating_add(HELD_COST).saturating_add(len64(text.capacity()));
        let held = self.held.values().fold(0, cost);
        let rest = len_usize(self.start.bytes.saturating_sub(self.assembly.len()));
        if self.assembly.is_evicted() || self.assembly.reserve(len, Some(rest), held, now).is_err() {
            return Err(Violation::OverBudget(self.start.bytes));
        }
        Ok(())
    }
}
