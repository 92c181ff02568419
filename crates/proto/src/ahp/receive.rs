//! The receiving half: a table of unfinished groups, the rules for segments, and what happens to groups that take too long.

use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::handshake::Invitation;
use super::wire::{self, Control, PATH_COUNT, PATHS, Segment};
use crate::assembly::{Assembled, Assembly};
use crate::budget::{Account, GROUP_COST, Grant, Schedule};
use crate::clock::ReadClock;
use crate::error::{CloseReason, Differs, Over, Violation};
use crate::limits::Limits;
use crate::message::{Message, len_usize, len64};
use crate::rpc;

/// What a frame turned out to be.
#[derive(Debug)]
pub(super) enum ReceivedFrame {
    /// A whole message.
    Whole(Incoming),
    /// A segment. If it is the last of its group, `complete` is the message.
    Segment { ordinal: u64, received: u64, expected: u64, complete: Option<Incoming> },
    /// The budget has no memory for the group that this frame begins. The frame has to be passed in again later.
    OutOfBudget,
}

/// A message that arrived.
pub(super) type Incoming = Assembled<PATH_COUNT>;

/// The reassembly table of one connection.
#[derive(Debug)]
pub(super) struct Receiver {
    limits: Limits,
    account: Account,
    /// Measures the age of groups.
    pub(super) clock: ReadClock,
    groups: Vec<IncomingGroup>,
}

#[derive(Debug)]
struct IncomingGroup {
    id: Box<[u8]>,
    ordinal: u64,
    total: u32,
    next: u32,
    first_len: u64,
    started: Duration,
    assembly: Assembly<PATH_COUNT>,
}

impl Receiver {
    pub(super) fn new(limits: Limits, account: Account) -> Self {
        Self { limits, clock: account.clock(), account, groups: Vec::new() }
    }

    /// Takes a frame. If it begins a group, `begin` is called for the ordinal of that group.
    pub(super) fn frame(
        &mut self,
        frame: &Bytes,
        invitation: Invitation,
        now: Instant,
        begin: impl FnOnce() -> u64,
    ) -> Result<ReceivedFrame, CloseReason> {
        let is_invited = invitation != Invitation::None;
        let limit = match invitation {
            Invitation::Segments => self.limits.max_frame_bytes,
            Invitation::None | Invitation::Either => self.limits.max_message_bytes,
        };
        Over::check(len64(frame.len()), limit).map_err(Violation::FrameTooLarge)?;
        if is_invited && let Some(segment) = Segment::recognise(frame) {
            return self.segment(&segment, Some(frame), now, begin);
        }
        let max_depth = self.limits.max_depth;
        let message = Message::from(frame.clone()).checked(max_depth);
        let (paths, envelope) = rpc::read_frame(&message, &PATHS, max_depth)?;
        if Control::of(&envelope, &message) != Some(Control::Segment) {
            return Ok(ReceivedFrame::Whole(Incoming { message, envelope, paths, grant: None }));
        }
        if !is_invited {
            return Err(CloseReason::Violation(Violation::UninvitedSegment));
        }
        let segment = Segment::parse(&message, &paths, &envelope)?;
        self.segment(&segment, None, now, begin)
    }

    /// Adds a segment to its group. `frame` is the frame of a segment that was only recognised by its template, and not parsed.
    fn segment(
        &mut self,
        segment: &Segment<'_>,
        frame: Option<&Bytes>,
        now: Instant,
        begin: impl FnOnce() -> u64,
    ) -> Result<ReceivedFrame, CloseReason> {
        let open = self.groups.iter().position(|group| *group.id == *segment.group_id);
        let place = open.unwrap_or(self.groups.len());
        if open.is_some() && segment.begins() {
            return Err(CloseReason::Violation(Violation::GroupInFlight));
        }
        let (index, total) = segment.numbers()?;
        let len = wire::decoded_len(segment.data()?);
        if open.is_none() {
            let Some(assembly) = self.admit(index, total, len, now)? else {
                return Ok(ReceivedFrame::OutOfBudget);
            };
            let (id, started) = (segment.group_id.as_ref().into(), self.clock.read(now));
            self.groups.push(IncomingGroup { id, ordinal: begin(), total, next: 0, first_len: len, started, assembly });
        }
        let limit = self.limits.max_message_bytes;
        let group = self.groups.get_mut(place).ok_or(Violation::GroupUnknown(index))?;
        group.expect(index, total)?;
        group.reserve(len, segment.data()?, limit, now)?;
        group.append(segment, frame)?;
        Over::check(group.assembly.len(), limit).map_err(Violation::MessageTooLarge)?;
        let ordinal = group.ordinal;
        let (received, expected) = (group.assembly.len(), group.expected_len().min(limit));
        let complete = if group.next == total { Some(self.groups.swap_remove(place).complete()?) } else { None };
        Ok(ReceivedFrame::Segment { ordinal, received, expected, complete })
    }

    /// Begins a group, and reserves memory for what it declares. `None` if the budget does not have that now, but may have it later.
    fn admit(
        &self,
        index: u32,
        total: u32,
        len: u64,
        now: Instant,
    ) -> Result<Option<Assembly<PATH_COUNT>>, CloseReason> {
        if index != 0 {
            return Err(CloseReason::Violation(Violation::GroupUnknown(index)));
        }
        let limit = self.limits.max_groups;
        if len64(self.groups.len()) >= u64::from(limit) {
            return Err(CloseReason::Violation(Violation::TooManyGroups(limit)));
        }
        let declared = len.saturating_mul(u64::from(total)).min(self.limits.max_message_bytes);
        let schedule = Schedule { started: now, timeout: self.limits.time_for(declared) };
        match Assembly::begin(&self.account, declared, self.limits.max_depth, schedule, &PATHS) {
            Ok(assembly) => Ok(Some(assembly)),
            Err(full) if self.groups.is_empty() && self.account.could_grant(full.bytes) => Ok(None),
            Err(full) => Err(CloseReason::OverBudget(full.bytes)),
        }
    }

    /// Reserves memory for a whole message that has to wait.
    pub(super) fn hold(&self, bytes: u64, now: Instant) -> Option<Grant> {
        let (bytes, timeout) = (bytes.saturating_add(GROUP_COST), self.limits.time_for(bytes));
        let mut grant = self.account.reserve(bytes, Schedule { started: now, timeout }).ok()?;
        grant.complete(bytes);
        Some(grant)
    }

    /// Drops groups that took longer than allowed. Returns their ordinals, and how much of each had arrived.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<(u64, u64)> {
        let (bound, reading) = (self.limits.sweep_after(), self.clock.read(now));
        let old = self.groups.extract_if(.., |group| reading.saturating_sub(group.started) >= bound);
        old.map(|group| (group.ordinal, group.assembly.len())).collect()
    }

    /// Whether the budget has evicted a group.
    pub(super) fn is_evicted(&self) -> bool {
        self.groups.iter().any(|group| group.assembly.is_evicted())
    }

    /// When the oldest group will be too old, if we go on reading until then.
    pub(super) fn due(&self) -> Option<Instant> {
        let oldest = self.groups.iter().map(|group| group.started).min()?;
        self.clock.when(oldest.saturating_add(self.limits.sweep_after()))
    }

    /// Sets the task to wake when the budget evicts a group.
    pub(super) fn wake_with(&self, waker: &Waker) {
        self.account.wake_with(waker);
    }

    /// The longest message that we accept.
    pub(super) fn longest_message(&self) -> u64 {
        self.limits.max_message_bytes
    }

    /// How long a group may take.
    pub(super) fn group_timeout(&self) -> Duration {
        self.limits.group_timeout()
    }

    /// Drops all groups.
    pub(super) fn clear(&mut self) {
        self.groups = Vec::new();
    }
}

impl IncomingGroup {
    /// Checks that this segment is the next one.
    fn expect(&mut self, index: u32, total: u32) -> Result<(), Violation> {
        if total != self.total {
            return Err(Violation::TotalChanged(Differs { got: total.into(), want: self.total.into() }));
        }
        if index != self.next {
            return Err(Violation::IndexOutOfOrder(Differs { got: index.into(), want: self.next.into() }));
        }
        self.next = self.next.saturating_add(1);
        Ok(())
    }

    /// Reserves memory for `len` more bytes, then allocates it.
    fn reserve(&mut self, len: u64, data: &[u8], limit: u64, now: Instant) -> Result<(), CloseReason> {
        let size = self.assembly.len().saturating_add(len);
        // In a frame that was only recognised, what seems to be data may have escapes, and be shorter. Then its length is checked when
        // it is decoded.
        if size > limit && !is_odd(data) {
            return Err(CloseReason::Violation(Violation::MessageTooLarge(Over { size, limit })));
        }
        let after = u64::from(self.total.saturating_sub(self.next));
        let rest = self.first_len.saturating_mul(after);
        // A message may grow to the limit, so no block has to be larger than what is left to it.
        let left = limit.saturating_sub(self.assembly.len());
        let rest = if after == 0 || rest >= len { rest.min(left) } else { left };
        let reserved = self.assembly.reserve(len_usize(len), Some(len_usize(rest)), 0, now);
        reserved.map_err(|full| CloseReason::OverBudget(full.bytes))
    }

    fn append(&mut self, segment: &Segment<'_>, frame: Option<&Bytes>) -> Result<(), Violation> {
        let max_depth = self.assembly.max_depth();
        let data = segment.data()?;
        let Err(done) = wire::decode(data, &mut self.assembly)? else {
            return Ok(());
        };
        // A frame that was only recognised may have escapes in its data, or more members after it. What was decoded so far had
        // neither, so only the rest is parsed.
        let frame = frame.filter(|_| is_odd(data)).ok_or(Violation::DataNotBase64)?;
        let message = Message::from(frame.clone());
        let (paths, envelope) = rpc::read_frame(&message, &PATHS, max_depth)?;
        let parsed = Segment::parse(&message, &paths, &envelope)?;
        let rest = parsed.data()?.get(done..).unwrap_or_default();
        wire::decode(rest, &mut self.assembly)?.map_err(|_| Violation::DataNotBase64)
    }

    /// The length of the whole message, if all segments are as long as the first.
    fn expected_len(&self) -> u64 {
        let rest = u64::from(self.total.saturating_sub(self.next));
        self.assembly.len().saturating_add(self.first_len.saturating_mul(rest))
    }

    fn complete(self) -> Result<Incoming, Violation> {
        let whole = self.assembly.finish()?;
        if Control::of(&whole.envelope, &whole.message) == Some(Control::Segment) {
            return Err(Violation::NestedSegment);
        }
        Ok(whole)
    }
}

/// Whether data that was only recognised may have escapes in it, or end earlier than it seems.
fn is_odd(data: &[u8]) -> bool {
    data.iter().any(|byte| matches!(byte, b'\\' | b'"'))
}
