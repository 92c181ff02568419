//! Transfers that arrive: chunks in any order inside a window become one checked message.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::budget::{Account, GROUP_COST, Grant, Schedule, group_cost};
use crate::buffer::Buffer;
use crate::error::Violation;
use crate::json::{self, Paths, Scanner};
use crate::machine::{Meta, Progress, Subject};
use crate::message::{len_usize, len64};

use super::book::{Key, Peer};
use super::wire::{PATHS, Start, Text};
use super::{Config, Time};

/// What a chunk costs that waits for an earlier one: its place in the table.
const HELD_COST: u64 = 64;
/// How many assembled chunks are remembered, to tell a repeated one from a different one.
const MARKS: usize = 32;

/// The transfers that are arriving.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    transfers: HashMap<Key, Transfer>,
    /// Where a chunk is unescaped.
    scratch: Vec<u8>,
    /// No transfer expires before this.
    wake: Option<Duration>,
}

impl Receiver {
    /// Opens a transfer. Its declared size is set aside in accounting, and nothing is allocated for it.
    ///
    /// # Errors
    /// It is over a limit, there is no room for it, or the token is in use by another one.
    pub(super) fn start(
        &mut self,
        (key, token): (Key, &str),
        (start, at): (Start, u64),
        meta: &Meta,
        (config, account, time): (&Config, &Account, Time),
        ordinal: u64,
    ) -> Result<Started, Violation> {
        if let Some(open) = self.transfers.get(&key) {
            let same = open.start == start && open.first == at;
            return if same { Ok(Started::Before) } else { Err(Violation::TransferInFlight) };
        }
        self.admit(&start, &meta.peer, config)?;
        let schedule = Schedule { started: time.now, timeout: config.hard_timeout };
        let grant =
            account.reserve(group_cost(start.bytes), schedule).map_err(|_| Violation::NoRoom { size: start.bytes })?;
        let transfer = Transfer {
            ordinal,
            token: token.into(),
            peer: meta.peer.clone(),
            frame: meta.id.clone(),
            start,
            first: at,
            next: at.saturating_add(1),
            passed: None,
            highest: at,
            chunks: 0,
            bytes: 0,
            window: len_usize(config.window.into()),
            buffer: Buffer::pooled(account.blocks()),
            hash: Sha256::new(),
            check: Scanner::new(Paths::new(&PATHS)),
            held: BTreeMap::new(),
            held_bytes: 0,
            marks: VecDeque::new(),
            grant,
            soft: time.read.saturating_add(config.soft_timeout),
            hard: time.read.saturating_add(config.hard_timeout),
        };
        self.wake = Some(self.wake.unwrap_or(transfer.due()).min(transfer.due()));
        self.transfers.insert(key, transfer);
        Ok(Started::Now)
    }

    /// Takes a chunk, of which `inside` is the inside of a string.
    pub(super) fn chunk(&mut self, key: Key, at: u64, inside: &[u8], config: &Config, time: Time) -> Chunk {
        let Some(transfer) = self.transfers.get_mut(&key) else {
            return Chunk::Stray;
        };
        self.scratch.clear();
        if json::unescape_into(&mut self.scratch, inside).is_none() {
            return Chunk::NotText;
        }
        transfer.soft = time.read.saturating_add(config.soft_timeout);
        match transfer.chunk(at, &self.scratch, time.now) {
            Ok(()) => Chunk::Taken(transfer.progress()),
            Err(violation) => Chunk::Failed(violation),
        }
    }

    /// Whether a transfer is open.
    pub(super) fn is_open(&self, key: Key) -> bool {
        self.transfers.contains_key(&key)
    }

    /// Takes a transfer out of the table.
    pub(super) fn remove(&mut self, key: Key) -> Option<Transfer> {
        self.transfers.remove(&key)
    }

    /// The transfers that took too long, or that others need the room of.
    pub(super) fn due(&mut self, read: Duration) -> Vec<(Key, Violation)> {
        let mut due = Vec::new();
        self.wake = None;
        for (key, open) in &self.transfers {
            if open.due() <= read {
                due.push((open.ordinal, *key, Violation::TimedOut { received: open.bytes }));
            } else if open.grant.evicted() {
                due.push((open.ordinal, *key, Violation::NoRoom { size: open.start.bytes }));
            } else {
                self.wake = Some(self.wake.unwrap_or(open.due()).min(open.due()));
            }
        }
        due.sort_unstable_by_key(|(ordinal, ..)| *ordinal);
        due.into_iter().map(|(_, key, violation)| (key, violation)).collect()
    }

    /// When to look for transfers that took too long.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.wake.filter(|_| !self.transfers.is_empty())
    }

    fn admit(&self, start: &Start, peer: &Peer, config: &Config) -> Result<(), Violation> {
        let limit = config.limits.max_message_bytes();
        if start.bytes > limit {
            return Err(Violation::MessageTooLarge { size: start.bytes, limit });
        }
        if start.chunks > config.max_chunks {
            return Err(Violation::TooManyChunks { count: start.chunks, limit: config.max_chunks });
        }
        let limit = config.max_transfers;
        let own = self.transfers.values().filter(|open| open.peer == *peer).count();
        if len64(own) >= limit.into() {
            return Err(Violation::TooManyTransfers { limit });
        }
        let limit = config.max_transfers_in_all;
        if len64(self.transfers.len()) >= limit.into() {
            return Err(Violation::TooManyTransfers { limit });
        }
        Ok(())
    }
}

/// What a `start` did.
pub(super) enum Started {
    /// It opened a transfer.
    Now,
    /// It came before.
    Before,
}

/// What became of a chunk.
pub(super) enum Chunk {
    Taken(Progress),
    /// Its transfer broke a rule.
    Failed(Violation),
    /// It belongs to no transfer.
    Stray,
    /// It is not the inside of a string.
    NotText,
}

/// One transfer that is arriving.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) ordinal: u64,
    pub(super) token: Box<str>,
    pub(super) peer: Peer,
    /// The link's name of the frame that began it.
    pub(super) frame: Option<Arc<str>>,
    start: Start,
    /// The place of `start`.
    first: u64,
    /// The place that is assembled next, unless it turns out to be empty.
    next: u64,
    /// The first place that was taken as empty.
    passed: Option<u64>,
    /// The highest place seen.
    pub(super) highest: u64,
    /// Chunks that came, held ones included.
    chunks: u64,
    /// Bytes that came, held ones included.
    bytes: u64,
    window: usize,
    buffer: Buffer,
    hash: Sha256,
    check: Scanner<Paths<18>>,
    /// Chunks that came before an earlier one.
    held: BTreeMap<u64, Vec<u8>>,
    held_bytes: u64,
    /// The last chunks assembled: place and fingerprint.
    marks: VecDeque<(u64, u64)>,
    grant: Grant,
    /// Readings of the clock that stands still while we do not read.
    soft: Duration,
    hard: Duration,
}

impl Transfer {
    /// Checks the whole, once `end` came.
    ///
    /// # Errors
    /// Chunks or bytes are missing, or the message is not what was declared, or no JSON-RPC message.
    pub(super) fn end(mut self, at: u64) -> Result<Text, Violation> {
        if at <= self.highest {
            return Err(Violation::ProgressNotIncreasing { got: at, after: self.highest });
        }
        if self.chunks != self.start.chunks {
            return Err(Violation::ChunksMissing { got: self.chunks, want: self.start.chunks });
        }
        if self.bytes != self.start.bytes {
            return Err(Violation::SizeMismatch { got: self.bytes, want: self.start.bytes });
        }
        self.drain(usize::MAX)?;
        if self.hash.finalize().as_slice() != self.start.digest {
            return Err(Violation::DigestMismatch);
        }
        let paths = self.check.finish().map_err(Violation::MessageNotJson)?;
        let text = Text::found(self.buffer.into_message(), paths).map_err(|violation| match violation {
            Violation::FrameNotObject => Violation::MessageNotJsonRpc,
            other => other,
        })?;
        if !text.envelope.is_valid(&text.message) {
            return Err(Violation::MessageNotJsonRpc);
        }
        if text.is_part() { Err(Violation::NestedSegment) } else { Ok(text) }
    }

    fn due(&self) -> Duration {
        self.soft.min(self.hard)
    }

    fn progress(&self) -> Progress {
        Progress { subject: Subject::Incoming(self.ordinal), done: self.bytes, total: self.start.bytes }
    }

    fn chunk(&mut self, at: u64, text: &[u8], now: Instant) -> Result<(), Violation> {
        if self.is_repeated(at, text)? {
            return Ok(());
        }
        self.chunks = self.chunks.saturating_add(1);
        self.bytes = self.bytes.saturating_add(len64(text.len()));
        if self.chunks > self.start.chunks {
            return Err(Violation::TooManyChunks { count: self.chunks, limit: self.start.chunks });
        }
        if self.bytes > self.start.bytes {
            return Err(Violation::SizeMismatch { got: self.bytes, want: self.start.bytes });
        }
        self.highest = self.highest.max(at);
        if at == self.next {
            self.append(at, text)?;
        } else {
            self.held.insert(at, text.to_vec());
            self.held_bytes = self.held_bytes.saturating_add(len64(text.len()));
        }
        // When all are here, an empty place is only a gap in the numbering.
        self.drain(if self.chunks == self.start.chunks { usize::MAX } else { 0 })?;
        self.account(now)
    }

    /// Whether this chunk came before. A place that was passed over as empty cannot be filled any more.
    fn is_repeated(&self, at: u64, text: &[u8]) -> Result<bool, Violation> {
        if at <= self.first {
            return Err(Violation::ProgressNotIncreasing { got: at, after: self.first });
        }
        let same = if at >= self.next {
            let Some(held) = self.held.get(&at) else {
                return Ok(false);
            };
            *held == text
        } else if let Some((_, mark)) = self.marks.iter().find(|(place, _)| *place == at) {
            *mark == fingerprint(text)
        } else {
            let forgotten = self.marks.len() == MARKS && self.marks.front().is_some_and(|(place, _)| at < *place);
            let window = len64(self.window);
            return if forgotten { Ok(true) } else { Err(Violation::OutsideWindow { at, window }) };
        };
        if same { Ok(true) } else { Err(Violation::ChunkConflict { at }) }
    }

    /// Assembles held chunks whose turn has come. `past` gaps are taken as empty, and as many as it needs to get
    /// back inside the window: what is that late is not coming.
    fn drain(&mut self, mut past: usize) -> Result<(), Violation> {
        while let Some((at, _)) = self.held.first_key_value() {
            if *at != self.next {
                if past == 0 && self.held.len() <= self.window {
                    return Ok(());
                }
                past = past.saturating_sub(1);
                self.passed.get_or_insert(self.next);
            }
            let Some((at, text)) = self.held.pop_first() else {
                return Ok(());
            };
            self.held_bytes = self.held_bytes.saturating_sub(len64(text.len()));
            self.append(at, &text)?;
        }
        Ok(())
    }

    fn append(&mut self, at: u64, text: &[u8]) -> Result<(), Violation> {
        self.next = at.saturating_add(1);
        if self.marks.len() == MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back((at, fingerprint(text)));
        self.check.feed(text).map_err(|error| match self.passed {
            Some(at) => Violation::OutsideWindow { at, window: len64(self.window) },
            None => Violation::MessageNotJson(error),
        })?;
        self.hash.update(text);
        let rest = len_usize(self.start.bytes).saturating_sub(self.buffer.len());
        self.buffer.add_block(self.buffer.block_for(text.len(), Some(rest)));
        self.buffer.extend(text);
        Ok(())
    }

    /// Sees to it that what is held is covered by what was set aside.
    fn account(&mut self, now: Instant) -> Result<(), Violation> {
        let held = len64(self.held.len()).saturating_mul(HELD_COST).saturating_add(self.held_bytes);
        let size = self.buffer.capacity().saturating_add(held).saturating_add(GROUP_COST);
        self.grant.note_received(self.bytes);
        if self.grant.evicted() || self.grant.grow_to(size, now).is_err() {
            return Err(Violation::NoRoom { size: self.start.bytes });
        }
        Ok(())
    }
}

/// A hash that tells a repeated chunk from a different one. The digest, not this, guards the message.
fn fingerprint(text: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(ODD).rotate_left(29);
    let (blocks, rest) = text.as_chunks::<32>();
    // Four sums, so that one multiplication need not wait for the last.
    let mut sums = [1_u64, 2, 3, len64(text.len())];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum = mix(*sum, u64::from_le_bytes(*word));
        }
    }
    let tail = rest.iter().fold(0, |sum, &byte| mix(sum, byte.into()));
    sums.into_iter().fold(tail, mix)
}
