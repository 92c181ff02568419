//! A message that is arriving: its bytes go into blocks, checked as they land, within what the budget grants.

use std::time::Instant;

use crate::budget::{Account, Full, GROUP_COST, Grant, Schedule, group_cost};
use crate::buffer::Buffer;
use crate::envelope::Envelope;
use crate::error::Violation;
use crate::json::{Path, Paths, Scanner, Utf8};
use crate::message::{Message, len64};

/// The front of a message, and room for the rest. `N` paths are looked for; they begin with those of the envelope.
#[derive(Debug)]
pub(crate) struct Assembly<const N: usize> {
    buffer: Buffer,
    utf8: Utf8,
    scanner: Scanner<Paths<N>>,
    grant: Grant,
    /// When room was last made: what is added then has arrived at that time.
    now: Instant,
}

/// A message that has arrived whole, with what was seen in it.
#[derive(Debug)]
pub(crate) struct Assembled<const N: usize> {
    pub(crate) message: Message,
    pub(crate) envelope: Envelope,
    pub(crate) looks: Paths<N>,
    /// Its room; `None` for one that came in a single frame.
    pub(crate) grant: Option<Grant>,
}

impl<const N: usize> Assembly<N> {
    /// Sets room aside for `declared` bytes, which may be nested `max_depth` deep; allocates nothing.
    pub(crate) fn begin(
        account: &Account,
        (declared, max_depth): (u64, u32),
        schedule: Schedule,
        paths: &'static [Path; N],
    ) -> Result<Self, Full> {
        let (grant, now) = (account.reserve_group(group_cost(declared), schedule)?, schedule.started);
        let buffer = Buffer::pooled(account.blocks());
        let scanner = Scanner::with_max_depth(Paths::new(paths), max_depth);
        Ok(Self { buffer, utf8: Utf8::default(), scanner, grant, now })
    }

    /// Bytes that have arrived.
    pub(crate) fn len(&self) -> u64 {
        len64(self.buffer.len())
    }

    /// How deep it may be nested.
    pub(crate) const fn max_depth(&self) -> u32 {
        self.scanner.max_depth()
    }

    /// Whether others need the room more.
    pub(crate) fn is_evicted(&self) -> bool {
        self.grant.evicted()
    }

    /// What has been seen so far.
    pub(crate) const fn looks(&self) -> &Paths<N> {
        self.scanner.visitor()
    }

    /// Whether exactly `bytes` lie from offset `at` on.
    pub(crate) fn holds(&self, at: usize, bytes: &[u8]) -> bool {
        self.buffer.holds(at, bytes)
    }

    /// Makes room for `len` more bytes, first in the budget, then in memory. `rest` is as in [`Buffer::block_for`];
    /// `beside` is what the caller holds for this message outside of it.
    pub(crate) fn make_room(&mut self, len: usize, rest: Option<usize>, beside: u64, now: Instant) -> Result<(), Full> {
        let block = self.buffer.block_for(len, rest);
        let size = self.buffer.capacity().saturating_add(len64(block)).saturating_add(beside);
        // What follows the nesting has grown with what came before.
        let size = size.saturating_add(len64(self.scanner.allocated()));
        self.now = now;
        self.grant.grow_to(size.saturating_add(GROUP_COST), now)?;
        self.buffer.add_block(block);
        Ok(())
    }

    /// Appends bytes if they continue a good message.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.utf8.feed(bytes).map_err(|_| Violation::MessageNotUtf8)?;
        self.push_text(bytes)
    }

    /// Appends whole characters, known to be UTF-8, if they continue a good message.
    pub(crate) fn push_text(&mut self, text: &[u8]) -> Result<(), Violation> {
        let max_depth = self.max_depth();
        self.scanner.feed(text).map_err(|error| Violation::of_message(error, max_depth))?;
        self.buffer.extend(text);
        self.grant.note_progress(self.len(), self.now);
        Ok(())
    }

    /// Appends `len` bytes that `fill` puts into place, if it says so and they continue a good message. `scratch` is as
    /// in [`Buffer::write`].
    pub(crate) fn write(
        &mut self,
        len: usize,
        scratch: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<bool, Violation> {
        let Self { buffer, utf8, scanner, .. } = self;
        let written = buffer.write(len, scratch, |place| {
            if fill(place) { check(utf8, scanner, place).map(|()| true) } else { Ok(false) }
        });
        self.grant.note_progress(self.len(), self.now);
        written
    }

    /// The message, if it is exactly one JSON-RPC request, response or notification.
    pub(crate) fn finish(mut self) -> Result<Assembled<N>, Violation> {
        self.utf8.finish().map_err(|_| Violation::MessageNotUtf8)?;
        let max_depth = self.max_depth();
        let looks = self.scanner.finish().map_err(|error| Violation::of_message(error, max_depth))?;
        self.grant.complete(self.buffer.capacity().saturating_add(GROUP_COST));
        let message = self.buffer.into_message().checked(max_depth);
        match Envelope::read(&looks) {
            Ok(envelope) if envelope.is_valid(&message, &looks) => {
                Ok(Assembled { message, envelope, looks, grant: Some(self.grant) })
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
