//! From lines to messages: raw ones as they are, frames by group, all else for the log.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::group::{Group, Opening, answered_id, failed_answer, numbers};
use super::wire::{GroupId, Header};
use crate::budget::{Account, Schedule, group_cost};
use crate::buffer::Pool;
use crate::clock::ReadClock;
use crate::error::Violation;
use crate::limits::Limits;
use crate::machine::{Event, Meta, Progress, Subject};
use crate::message::{Message, len64};
use crate::outbox::Outbox;
use crate::outgoing::check;

/// Names of ended groups that are remembered, so that late frames of them begin nothing.
const MAX_ENDED: usize = 4096;
/// How often to look whether the budget has room again, or wants some back.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How much of a line that is too long is searched for the id that it answers.
const FRONT: usize = 64 << 10;

/// Messages on their way in.
#[derive(Debug)]
pub(super) struct Receiver {
    limits: Limits,
    max_line_bytes: u64,
    account: Account,
    pool: Pool,
    groups: BTreeMap<GroupId, Group>,
    ended: Ended,
    ordinals: u64,
    paused: bool,
    clock: ReadClock,
    looked: Option<Instant>,
    stall: Option<Stall>,
    /// Too much has come since there was no room: what finds none now fails at once.
    impatient: bool,
}

/// A first frame for which there is no room yet, and the lines that came after it.
#[derive(Debug)]
struct Stall {
    ordinal: u64,
    first: Line,
    rest: VecDeque<Line>,
    rest_bytes: u64,
    give_up: Instant,
}

impl Stall {
    fn push(&mut self, line: Line) {
        self.rest_bytes = self.rest_bytes.saturating_add(len64(line.bytes.len()));
        self.rest.push_back(line);
    }
}

#[derive(Debug)]
struct Line {
    bytes: Bytes,
    meta: Meta,
}

impl Receiver {
    pub(super) fn new(limits: Limits, max_line_bytes: u64, account: Account) -> Self {
        Self {
            limits,
            max_line_bytes,
            account,
            pool: Pool::default(),
            groups: BTreeMap::new(),
            ended: Ended::default(),
            ordinals: 0,
            paused: false,
            clock: ReadClock::new(),
            looked: None,
            stall: None,
            impatient: false,
        }
    }

    /// Whether there is room for what has begun.
    pub(super) const fn wants_frames(&self) -> bool {
        self.stall.is_none()
    }

    pub(super) fn receive(&mut self, bytes: Bytes, meta: Meta, now: Instant, outbox: &mut Outbox) {
        let line = Line { bytes, meta };
        let Some(stall) = &mut self.stall else {
            return self.line(line, now, outbox);
        };
        stall.push(line);
        if stall.rest_bytes > self.max_line_bytes {
            // The driver reads on although we asked it not to.
            self.end_stall(now, true, outbox);
        }
    }

    /// Gives up what is too old, and tries again what had no room.
    pub(super) fn timeout(&mut self, now: Instant, outbox: &mut Outbox) {
        self.looked = Some(now);
        let evicted = self.find(Group::is_evicted);
        for id in evicted {
            let size = self.groups.get(&id).map_or(0, Group::received);
            self.fail(id, Violation::NoRoom { size }, outbox);
        }
        let reading = self.clock.at(now);
        for id in self.find(|group| group.deadline <= reading) {
            self.expire(id, outbox);
        }
        if let Some(stall) = &self.stall {
            let late = stall.give_up <= now;
            self.end_stall(now, late, outbox);
        }
    }

    /// While we do not read, no group grows older.
    pub(super) fn pause(&mut self, paused: bool, now: Instant) {
        self.paused = paused;
        self.clock.run(!paused, now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let look = self.looked.and_then(|looked| looked.checked_add(LOOK_AGAIN));
        let waits = self.stall.is_some() || !self.groups.is_empty();
        let oldest = self.groups.values().map(|group| group.deadline).min();
        let sweep = oldest.and_then(|deadline| self.clock.when(deadline));
        sweep.into_iter().chain(look.filter(|_| waits)).min()
    }

    /// Forgets everything unfinished.
    pub(super) fn abandon(&mut self) {
        self.groups.clear();
        self.stall = None;
    }

    fn line(&mut self, line: Line, now: Instant, outbox: &mut Outbox) {
        let Line { mut bytes, meta } = line;
        if bytes.last() == Some(&b'\r') {
            bytes.truncate(bytes.len().saturating_sub(1));
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let (size, limit) = (len64(bytes.len()), self.max_line_bytes);
        let too_long = (size > limit).then_some(Violation::LineTooLong { size, limit });
        if let Some((header, data)) = Header::read(&bytes) {
            return self.frame(header, data, Line { bytes, meta }, too_long, now, outbox);
        }
        if let Some(violation) = too_long {
            let front = bytes.get(..FRONT).unwrap_or(&bytes);
            let reply = answered_id(front).map(|id| failed_answer(&id, &violation));
            let ordinal = self.ordinal();
            return outbox.receive_failed(ordinal, violation, reply);
        }
        let message = Message::from(bytes.clone());
        if check(&message).is_ok_and(|envelope| envelope.is_valid(&message)) {
            let ordinal = self.ordinal();
            outbox.event(Event::Message { message, ordinal, meta });
        } else {
            outbox.count("line-for-the-log");
            outbox.event(Event::Line(bytes));
        }
    }

    fn frame(
        &mut self,
        header: Header,
        data: usize,
        line: Line,
        too_long: Option<Violation>,
        now: Instant,
        outbox: &mut Outbox,
    ) {
        if self.ended.contains(header.id) {
            return outbox.count("late-frame");
        }
        let open = self.groups.contains_key(&header.id);
        match too_long {
            Some(violation) if open => self.fail(header.id, violation, outbox),
            Some(violation) => self.refuse(header.id, violation, outbox),
            None if open => self.add(header, line.bytes.get(data..).unwrap_or_default(), now, outbox),
            None => match self.admit(header) {
                Ok(()) => self.begin(header, data, line, now, outbox),
                Err(violation) => self.refuse(header.id, violation, outbox),
            },
        }
    }

    /// Begins a group with its first frame to arrive. Without room for it, waits, if nothing else is open that could
    /// end while we wait.
    fn begin(&mut self, header: Header, data: usize, line: Line, now: Instant, outbox: &mut Outbox) {
        let ordinal = self.ordinal();
        let Err(size) = self.open(ordinal, header, &line, data, now) else {
            return self.add(header, line.bytes.get(data..).unwrap_or_default(), now, outbox);
        };
        if !self.groups.is_empty() || self.impatient {
            self.ended.add(header.id);
            return outbox.receive_failed(ordinal, Violation::NoRoom { size }, None);
        }
        outbox.count("stalled");
        self.looked = Some(now);
        let give_up = now.checked_add(self.limits.sweep_after()).unwrap_or(now);
        self.stall = Some(Stall { ordinal, first: line, rest: VecDeque::new(), rest_bytes: 0, give_up });
    }

    /// Fails a group that does not even begin.
    fn refuse(&mut self, id: GroupId, violation: Violation, outbox: &mut Outbox) {
        self.ended.add(id);
        let ordinal = self.ordinal();
        outbox.receive_failed(ordinal, violation, None);
    }

    /// Whether a group may begin, whatever its size.
    fn admit(&self, header: Header) -> Result<(), Violation> {
        numbers(header)?;
        let limit = self.limits.max_groups();
        if len64(self.groups.len()) >= u64::from(limit) {
            return Err(Violation::TooManyGroups { limit });
        }
        Ok(())
    }

    /// Begins a group.
    ///
    /// # Errors
    /// The size for which there is no room.
    fn open(&mut self, ordinal: u64, header: Header, line: &Line, data: usize, now: Instant) -> Result<(), u64> {
        let timeout = self.limits.sweep_after();
        let max_bytes = self.limits.max_message_bytes();
        let len = len64(line.bytes.len().saturating_sub(data));
        let declared = len.saturating_mul(header.total).min(max_bytes);
        let schedule = Schedule { started: now, timeout };
        let grant = self.account.reserve(group_cost(declared), schedule).map_err(|_| declared)?;
        self.clock.run(!self.paused, now);
        self.looked.get_or_insert(now);
        let opening = Opening {
            ordinal,
            meta: line.meta.clone(),
            deadline: self.clock.at(now).saturating_add(timeout),
            total: u32::try_from(header.total).unwrap_or(u32::MAX),
            declared,
        };
        self.groups.insert(header.id, Group::new(opening, max_bytes, grant, self.pool.clone()));
        Ok(())
    }

    /// Gives a frame to its group, which is open.
    fn add(&mut self, header: Header, data: &[u8], now: Instant, outbox: &mut Outbox) {
        let Some(group) = self.groups.get_mut(&header.id) else { return };
        let (received, subject) = (group.received(), Subject::Incoming(group.ordinal));
        let added =
            if group.is_evicted() { Err(Violation::NoRoom { size: received }) } else { group.add(header, data, now) };
        match added {
            Err(violation) => self.fail(header.id, violation, outbox),
            Ok(()) if group.is_complete() => self.complete(header.id, outbox),
            Ok(()) => outbox.progress(Progress { subject, done: group.received(), total: group.expected() }),
        }
    }

    fn complete(&mut self, id: GroupId, outbox: &mut Outbox) {
        let Some(group) = self.end(id) else { return };
        let ordinal = group.ordinal;
        match group.finish() {
            Ok((message, meta)) => outbox.event(Event::Message { message, ordinal, meta }),
            Err(violation) => outbox.receive_failed(ordinal, violation, None),
        }
    }

    fn fail(&mut self, id: GroupId, violation: Violation, outbox: &mut Outbox) {
        let Some(group) = self.end(id) else { return };
        let reply = group.reply(&violation);
        outbox.receive_failed(group.ordinal, violation, reply);
    }

    fn expire(&mut self, id: GroupId, outbox: &mut Outbox) {
        let Some(group) = self.end(id) else { return };
        outbox.count("group-expired");
        outbox.event(Event::Expired { ordinal: group.ordinal, received: group.received() });
    }

    fn end(&mut self, id: GroupId) -> Option<Group> {
        self.ended.add(id);
        self.groups.remove(&id)
    }

    /// The groups for which `is` holds, oldest first.
    fn find(&self, is: impl Fn(&Group) -> bool) -> Vec<GroupId> {
        let mut found: Vec<_> = self.groups.iter().filter(|(_, group)| is(group)).collect();
        found.sort_by_key(|(_, group)| group.ordinal);
        found.into_iter().map(|(id, _)| *id).collect()
    }

    /// Begins the group that had no room, if it has now; with `give_up` it fails if not. Then goes on with what came
    /// after it.
    fn end_stall(&mut self, now: Instant, give_up: bool, outbox: &mut Outbox) {
        let Some(stall) = self.stall.take() else { return };
        let Some((header, data)) = Header::read(&stall.first.bytes) else { return };
        match self.open(stall.ordinal, header, &stall.first, data, now) {
            Ok(()) => self.add(header, stall.first.bytes.get(data..).unwrap_or_default(), now, outbox),
            Err(size) if give_up => {
                self.ended.add(header.id);
                outbox.receive_failed(stall.ordinal, Violation::NoRoom { size }, None);
            }
            Err(_) => {
                self.stall = Some(stall);
                return;
            }
        }
        self.impatient = give_up;
        for line in stall.rest {
            match &mut self.stall {
                Some(again) => again.push(line),
                None => self.line(line, now, outbox),
            }
        }
        self.impatient = false;
    }

    const fn ordinal(&mut self) -> u64 {
        let ordinal = self.ordinals;
        self.ordinals = ordinal.saturating_add(1);
        ordinal
    }
}

/// The groups that ended last.
#[derive(Debug, Default)]
struct Ended {
    order: VecDeque<GroupId>,
    ids: BTreeSet<GroupId>,
}

impl Ended {
    fn contains(&self, id: GroupId) -> bool {
        self.ids.contains(&id)
    }

    fn add(&mut self, id: GroupId) {
        if !self.ids.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_ENDED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}
