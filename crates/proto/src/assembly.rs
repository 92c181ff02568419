//! A message that is arriving in parts: its bytes are checked and put into blocks, for which the budget has granted memory.

use std::time::Instant;

use crate::budget::{Account, Full, GROUP_COST, Grant, Schedule, group_cost};
use crate::buffer::Buffer;
use crate::envelope::Envelope;
use crate::error::Violation;
use crate::json::{Path, Paths, Scanner, Utf8};
use crate::message::{Message, len64};

/// A message of which a part has arrived. `N` paths are looked for in it; they begin with those of the envelope.
#[derive(Debug)]
pub(crate) struct Assembly<const N: usize> {
    buffer: Buffer,
    utf8: Utf8,
    scanner: Scanner<Paths<N>>,
    grant: Grant,
    /// When [`reserve`](Self::reserve) was last called: the bytes that are appended next arrived then.
    now: Instant,
}

/// A message that has arrived whole, with what was seen in it.
#[derive(Debug)]
pub(crate) struct Assembled<const N: usize> {
    pub(crate) message: Message,
    pub(crate) envelope: Envelope,
    pub(crate) paths: Paths<N>,
    /// Its memory; `None` for a message that came in a single frame.
    pub(crate) grant: Option<Grant>,
}

impl<const N: usize> Assembly<N> {
    /// Reserves memory in the budget for `declared` bytes of JSON, which may be nested `max_depth` deep. Allocates nothing.
    pub(crate) fn begin(
        account: &Account,
        declared: u64,
        max_depth: u32,
        schedule: Schedule,
        paths: &'static [Path; N],
    ) -> Result<Self, Full> {
        Ok(Self {
            buffer: Buffer::pooled(account.blocks()),
            utf8: Utf8::default(),
            scanner: Scanner::with_max_depth(Paths::new(paths), max_depth),
            grant: account.reserve_group(group_cost(declared), schedule)?,
            now: schedule.started,
        })
    }

    /// Bytes that have arrived.
    pub(crate) fn len(&self) -> u64 {
        len64(self.buffer.len())
    }

    /// How deep it may be nested.
    pub(crate) const fn max_depth(&self) -> u32 {
        self.scanner.max_depth()
    }

    /// Whether the budget has evicted it.
    pub(crate) fn is_evicted(&self) -> bool {
        self.grant.evicted()
    }

    /// What has been found so far.
    pub(crate) const fn paths(&self) -> &Paths<N> {
        self.scanner.visitor()
    }

    /// Whether the bytes from offset `at` on begin with `bytes`.
    pub(crate) fn holds(&self, at: usize, bytes: &[u8]) -> bool {
        self.buffer.holds(at, bytes)
    }

    /// Reserves memory for `len` more bytes in the budget, then allocates it. `rest` is as in [`Buffer::block_for`];
    /// `beside` is what the caller holds for this message outside of it.
    pub(crate) fn reserve(&mut self, len: usize, rest: Option<usize>, beside: u64, now: Instant) -> Result<(), Full> {
        let block = self.buffer.block_for(len, rest);
        let size = self.buffer.capacity().saturating_add(len64(block)).saturating_add(beside);
        // The scanner's record of the nesting grows with what has arrived.
        let size = size.saturating_add(len64(self.scanner.allocated()));
        self.now = now;
        self.grant.grow_to(size.saturating_add(GROUP_COST), now)?;
        self.buffer.add_block(block);
        Ok(())
    }

    /// Appends bytes, if they continue a valid message.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.utf8.feed(bytes).map_err(|_| Violation::MessageNotUtf8)?;
        self.push_text(bytes)
    }

    /// Appends whole characters that are known to be UTF-8, if they continue a valid message.
    pub(crate) fn push_text(&mut self, text: &[u8]) -> Result<(), Violation> {
        let max_depth = self.max_depth();
        self.scanner.feed(text).map_err(|error| Violation::of_message(error, max_depth))?;
        self.buffer.extend(text);
        self.grant.note_progress(self.len(), self.now);
        Ok(())
    }

    /// Appends `len` bytes that `fill` writes, if it returns true and they continue a valid message. `len` is at most `MAX`.
    pub(crate) fn write<const MAX: usize>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<bool, Violation> {
        let Self { buffer, utf8, scanner, .. } = self;
        let written = buffer.write::<MAX, _>(len, |place| {
            if fill(place) { check(utf8, scanner, place).map(|()| true) } else { Ok(false) }
        });
        self.grant.note_progress(self.len(), self.now);
        written
    }

    /// The message, if it is exactly one JSON-RPC request, response or notification.
    pub(crate) fn finish(mut self) -> Result<Assembled<N>, Violation> {
        self.utf8.finish().map_err(|_| Violation::MessageNotUtf8)?;
        let max_depth = self.max_depth();
        let paths = self.scanner.finish().map_err(|error| Violation::of_message(error, max_depth))?;
        self.grant.complete(self.buffer.capacity().saturating_add(GROUP_COST));
        let message = self.buffer.into_message().checked(max_depth);
        match Envelope::read(&paths) {
            Ok(envelope) if envelope.is_valid(&message, &paths) => {
                Ok(Assembled { message, envelope, paths, grant: Some(self.grant) })
            }
            Ok(_) | Err(Violation::FrameNotObject) => Err(Violation::MessageNotJsonRpc),
            Err(violation) => Err(violation),
        }
    }
}

fn check<const N: usize>(utf8: &mut Utf8, scanner: &mut Scanner<Paths<N>>, bytes: &[u8]) -> Result<(), Violation> {
    utf8.feed(bytes).map_err(|_| Violation::MessageNotUtf8)?;
    let max_depth = scanner.max_depth();
    scanner.feed(bytes).map_err(|error| Violation::of_message(error, max_depth))
}
