//! The receiving half: a line is a whole message, a frame of a group, or something for the log.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::MAX_TOTAL;
use crate::assembly::{Assembled, Assembly};
use crate::budget::{Account, Schedule};
use crate::clock::ReadClock;
use crate::envelope::{ENVELOPE, Envelope, Kind};
use crate::error::{Differs, LineFault, Over, Violation};
use crate::error_responses::{ErrorResponses, Recipient};
use crate::event_queue::EventQueue;
use crate::limits::Limits;
use crate::line::{self, Line};
use crate::machine::{Event, Meta, Progress, Subject};
use crate::message::{Message, len_usize, len64};
use crate::recent::Recent;
use crate::rpc;
use crate::salvage::Salvage;

/// The cost of a frame that waits for an earlier one, in addition to its bytes: its entry in the map, and its
/// allocation.
const HELD_COST: u64 = 64;
/// The cost of any other frame: its entry in a list whose capacity may be twice its length. The frame's header is three
/// times as long, so a flood of short frames costs the peer more than us.
const PLACE_COST: u64 = 16;

/// The groups that are arriving.
#[derive(Debug)]
pub(super) struct Receiver {
    limits: Limits,
    max_line_bytes: u64,
    account: Account,
    /// Oldest first.
    pub(super) groups: Vec<IncomingGroup>,
    /// Ids of groups that have ended, so that a late frame does not begin such a group again.
    ended: Recent<u128, (), 2048>,
    ordinals: u64,
    lines: u64,
    /// Error responses for the peer, to requests of it that were given up.
    pub(super) replies: Vec<ErrorResponses>,
    /// Measures the age of groups. Stopped while we do not read.
    pub(super) clock: ReadClock,
    /// When the last group began.
    heard: Option<Instant>,
}

impl Receiver {
    pub(super) fn new(limits: Limits, max_line_bytes: u64, account: Account) -> Self {
        Self {
            limits,
            max_line_bytes,
            clock: account.clock(),
            account,
            groups: Vec::new(),
            ended: Recent::default(),
            ordinals: 0,
            lines: 0,
            replies: Vec::new(),
            heard: None,
        }
    }

    pub(super) fn line(&mut self, mut line: Bytes, meta: Meta, now: Instant, events: &mut EventQueue) {
        if line.ends_with(b"\r") {
            line.truncate(line.len().saturating_sub(1));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        self.lines = self.lines.saturating_add(1);
        let fits = Over::check(len64(line.len()), self.max_line_bytes).map_err(Violation::LineTooLong);
        if let Some(frame) = Frame::read(&line) {
            let numbers = fits.and(frame.numbers);
            return self.frame(&Frame { numbers, ..frame }, meta, now, events);
        }
        if let Err(violation) = fits {
            return self.fail(Caller::read(&line), violation, None, events);
        }
        match Line::read(&line, self.limits.max_depth) {
            Line::Message(message, envelope) => {
                events.push(Event::Message { message, envelope, ordinal: self.ordinal(), meta });
            }
            Line::Bad(why, meant) => {
                let number = self.lines;
                self.replies.push(line::report((number, &line), (why, &meant), &mut self.ordinals, events));
            }
            Line::Log(line) => {
                events.count("line-that-is-no-message");
                events.push(Event::Line(line));
            }
        }
    }

    /// Gives up groups that took too long, and those that the budget evicted.
    pub(super) fn timeout(&mut self, now: Instant, events: &mut EventQueue) {
        let reading = self.clock.read(now);
        let over = |group: &mut IncomingGroup| group.due() <= reading || group.assembly.is_evicted();
        for group in self.groups.extract_if(.., over).collect::<Vec<_>>() {
            self.ended.insert(group.id, ());
            let received = group.received();
            if group.assembly.is_evicted() {
                self.fail(group.caller, Violation::OverBudget(received), Some(group.ordinal), events);
                continue;
            }
            events.count("group-expired");
            events.push(Event::Expired { ordinal: group.ordinal, received });
            // The caller of a request still needs an answer.
            if group.caller.is_some() {
                self.fail(group.caller, Violation::TimedOut(received), Some(group.ordinal), events);
            }
        }
    }

    /// The input has ended: gives up all groups.
    pub(super) fn end(&mut self, events: &mut EventQueue) {
        for group in std::mem::take(&mut self.groups) {
            let (bytes, answered) = (group.received(), group.caller.is_some());
            let why = LineFault::Unfinished;
            let violation = Violation::BadLine { line: group.line, bytes, why, answered, left: 0 };
            self.fail(group.caller, violation, Some(group.ordinal), events);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        // An evicted group is dropped at once.
        let evicted = self.heard.filter(|_| self.groups.iter().any(|group| group.assembly.is_evicted()));
        evicted.or_else(|| self.clock.when(self.groups.iter().map(IncomingGroup::due).min()?))
    }

    /// Sets the task to wake when the budget evicts a group.
    pub(super) fn wake_with(&self, waker: &Waker) {
        self.account.wake_with(waker);
    }

    /// Adds a frame to its group. The frame may begin the group, and may complete it.
    fn frame(&mut self, frame: &Frame, meta: Meta, now: Instant, events: &mut EventQueue) {
        let place = self.groups.iter().position(|group| group.id == frame.id).unwrap_or(self.groups.len());
        if place == self.groups.len() {
            if self.ended.get(frame.id).is_some() {
                return events.count("late-frame");
            }
            if let Err(violation) = self.begin(frame, meta, now) {
                self.ended.insert(frame.id, ());
                return self.fail(frame.caller(), violation, None, events);
            }
        }
        let Some(group) = self.groups.get_mut(place) else { return };
        let before = group.received();
        let added = group.add(frame, self.limits.max_message_bytes, now);
        if added.is_ok() && group.received() > before {
            group.soft = self.clock.read(now).saturating_add(self.limits.progress_timeout());
        }
        if added.is_ok() && group.next() < group.total {
            let (subject, done) = (Subject::Incoming(group.ordinal), group.received());
            return events.push_progress(Progress { subject, done, total: group.declared.max(done) });
        }
        self.ended.insert(frame.id, ());
        let IncomingGroup { ordinal, meta, caller, assembly, .. } = self.groups.remove(place);
        match added.and_then(|()| assembly.finish()) {
            Ok(Assembled { message, envelope, .. }) => {
                let envelope = Box::new(envelope);
                events.push(Event::Message { message, envelope, ordinal, meta });
            }
            Err(violation) => self.fail(caller, violation, Some(ordinal), events),
        }
    }

    /// Reports a message that fails. If it answered a request of ours, the event has an error for the caller. If it was a request of the
    /// peer, the peer gets an error response.
    fn fail(&mut self, caller: Option<Caller>, violation: Violation, ordinal: Option<u64>, events: &mut EventQueue) {
        let ordinal = ordinal.unwrap_or_else(|| self.ordinal());
        let reply = match &caller {
            Some(Caller::Ours(id)) => Some(rpc::receive_failed(id, &violation)),
            Some(Caller::Peer(id)) => {
                self.replies.push(ErrorResponses::new(Recipient::Peer, violation.clone(), [&id[..]]));
                None
            }
            None => None,
        };
        events.receive_failed(ordinal, violation, reply);
    }

    /// Begins a group with the first of its frames that arrives.
    fn begin(&mut self, frame: &Frame, meta: Meta, now: Instant) -> Result<(), Violation> {
        let (_, total) = frame.numbers.clone()?;
        let limit = self.limits.max_groups;
        if len64(self.groups.len()) >= u64::from(limit) {
            return Err(Violation::TooManyGroups(limit));
        }
        let declared = len64(frame.data.len()).saturating_mul(total.into()).min(self.limits.max_message_bytes);
        let schedule = Schedule { started: now, timeout: self.limits.time_for(declared) };
        let assembly = Assembly::begin(&self.account, declared, self.limits.max_depth, schedule, &ENVELOPE)
            .map_err(|_| Violation::OverBudget(declared))?;
        self.heard = Some(now);
        let (soft, grace) = (self.limits.progress_timeout(), self.limits.grace);
        let (started, ordinal) = (self.clock.read(now), self.ordinal());
        self.groups.push(IncomingGroup {
            id: frame.id,
            ordinal,
            line: self.lines,
            meta,
            soft: started.saturating_add(soft),
            hard: started.saturating_add(schedule.timeout.max(soft)),
            grace,
            total,
            declared,
            starts: Vec::new(),
            held: BTreeMap::new(),
            held_bytes: 0,
            caller: None,
            assembly,
        });
        Ok(())
    }

    const fn ordinal(&mut self) -> u64 {
        self.ordinals = self.ordinals.saturating_add(1);
        self.ordinals.saturating_sub(1)
    }
}

/// A message of which some frames have come. Frames in order are in the assembly; those after a missing one are held.
#[derive(Debug)]
pub(super) struct IncomingGroup {
    id: u128,
    ordinal: u64,
    /// The number of the line that began it.
    line: u64,
    meta: Meta,
    /// When it is given up unless more of it comes, by the clock that stops while we do not read.
    soft: Duration,
    /// When it is given up in any case. The longer the message, the later.
    hard: Duration,
    /// How much longer we wait then, because frames that were sent in time may still be on their way.
    grace: Duration,
    total: u32,
    /// The length of the whole message, if all frames are as long as the first that came.
    declared: u64,
    /// The offsets at which the frames in the assembly begin.
    starts: Vec<usize>,
    held: BTreeMap<u32, Box<[u8]>>,
    held_bytes: u64,
    /// Who gets an error if the message fails, according to its first frame.
    caller: Option<Caller>,
    assembly: Assembly<6>,
}

impl IncomingGroup {
    /// When it is given up, by the clock that stops while we do not read.
    fn due(&self) -> Duration {
        self.soft.min(self.hard).saturating_add(self.grace)
    }

    /// The index of the first missing frame.
    fn next(&self) -> u32 {
        u32::try_from(self.starts.len()).unwrap_or(u32::MAX)
    }

    /// How many bytes have come.
    fn received(&self) -> u64 {
        self.assembly.len().saturating_add(self.held_bytes)
    }

    /// Takes a frame. A repetition of one that has come changes nothing.
    fn add(&mut self, frame: &Frame, limit: u64, now: Instant) -> Result<(), Violation> {
        let ((index, total), data) = (frame.numbers.clone()?, &frame.data);
        if total != self.total {
            return Err(Violation::TotalChanged(Differs { got: total.into(), want: self.total.into() }));
        }
        if let Some(same) = self.repeats(index, data) {
            return if same { Ok(()) } else { Err(Violation::ChunkConflict(index.into())) };
        }
        let size = self.received().saturating_add(len64(data.len()));
        Over::check(size, limit).map_err(Violation::MessageTooLarge)?;
        if index > self.next() {
            self.held_bytes = self.held_bytes.saturating_add(len64(data.len()));
            self.reserve(0, now)?;
            self.held.insert(index, data.as_ref().into());
            return Ok(());
        }
        let added = self.append(data, now);
        if index == 0 {
            let envelope = Envelope::read(self.assembly.paths()).ok();
            self.caller = envelope.and_then(|envelope| Caller::of(&envelope, &Message::from(data.clone())));
        }
        added?;
        while let Some(data) = self.held.remove(&self.next()) {
            self.append(&data, now)?;
            self.held_bytes = self.held_bytes.saturating_sub(len64(data.len()));
        }
        Ok(())
    }

    /// Compares a frame with an earlier one of the same index. `None` if there was none.
    fn repeats(&self, index: u32, data: &[u8]) -> Option<bool> {
        let mut places = self.starts.get(len_usize(index.into())..).unwrap_or_default().iter();
        let Some(start) = places.next() else {
            return self.held.get(&index).map(|held| **held == *data);
        };
        let end = places.next().copied().unwrap_or(len_usize(self.assembly.len()));
        Some(end.saturating_sub(*start) == data.len() && self.assembly.holds(*start, data))
    }

    fn append(&mut self, data: &[u8], now: Instant) -> Result<(), Violation> {
        self.reserve(data.len(), now)?;
        self.starts.push(len_usize(self.assembly.len()));
        self.assembly.push(data)
    }

    /// Reserves memory for `len` more bytes in the assembly, and for what one more frame costs beside it.
    fn reserve(&mut self, len: usize, now: Instant) -> Result<(), Violation> {
        let frames = |count: usize, cost: u64| len64(count).saturating_add(1).saturating_mul(cost);
        let beside = self.held_bytes.saturating_add(frames(self.held.len(), HELD_COST));
        let beside = beside.saturating_add(frames(self.starts.len(), PLACE_COST));
        let after = u64::from(self.total.saturating_sub(self.next()).saturating_sub(1));
        let rest = self.declared.saturating_mul(after).checked_div(self.total.into()).map_or(0, len_usize);
        let rest = (after == 0 || rest >= len).then_some(rest);
        let size = self.received().saturating_add(len64(len));
        self.assembly.reserve(len, rest, beside, now).map_err(|_| Violation::OverBudget(size))
    }
}

/// One frame.
#[derive(Debug)]
struct Frame {
    id: u128,
    /// Its index and total, after checking that the index is below the total, and the total is not too large.
    numbers: Result<(u32, u32), Violation>,
    data: Bytes,
}

impl Frame {
    /// Reads a line; `None` if it is no frame.
    fn read(line: &Bytes) -> Option<Self> {
        let (uuid, rest) = line.split_first_chunk::<36>()?;
        let mut fields = rest.strip_prefix(b":")?.splitn(3, |byte| *byte == b':');
        let (index, total) = (number(fields.next()?)?, number(fields.next()?)?);
        let numbers = match (u32::try_from(index), u32::try_from(total)) {
            (Ok(index), Ok(total)) if index < total && total <= MAX_TOTAL => Ok((index, total)),
            _ => Err(Violation::FrameNumbersInvalid { index, total }),
        };
        Some(Self { id: read_uuid(uuid)?, numbers, data: line.slice_ref(fields.next()?) })
    }

    /// Who gets an error if the message that this frame begins fails.
    fn caller(&self) -> Option<Caller> {
        let is_first = matches!(self.numbers, Ok((0, _)));
        if is_first { Caller::read(&self.data) } else { None }
    }
}

/// The caller that waits if a message is lost: ours, if the message is a response, or the peer's, if it is a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Caller {
    /// The message answers a request of ours.
    Ours(Bytes),
    /// The message is a request of the peer's.
    Peer(Bytes),
}

impl Caller {
    /// Reads the id from the front of a message. The rest may show that it was not valid, but whoever waits gets an error all the
    /// same.
    fn of(envelope: &Envelope, front: &Message) -> Option<Self> {
        Self::from(Salvage::of(envelope, front))
    }

    /// Reads the id from a text that need not be JSON.
    fn read(text: &[u8]) -> Option<Self> {
        Salvage::read(text).into_iter().next().and_then(Self::from)
    }

    fn from(meant: Salvage) -> Option<Self> {
        match meant.kind {
            Kind::Request => Some(Self::Peer(meant.id?)),
            Kind::Response => Some(Self::Ours(meant.id?)),
            Kind::Notification | Kind::Other => None,
        }
    }
}

/// Reads 8-4-4-4-12 hex digits of any case.
fn read_uuid(text: &[u8; 36]) -> Option<u128> {
    text.iter().enumerate().try_fold(0_u128, |value, (at, byte)| match (at, byte) {
        (8 | 13 | 18 | 23, b'-') => Some(value),
        (8 | 13 | 18 | 23, _) => None,
        _ => Some(value << 4 | u128::from(char::from(*byte).to_digit(16)?)),
    })
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0B4D6F2A-1C3E-4A5B-8C7D-9E0F1A2B3C4D";

    fn read(line: &str) -> Option<((u32, u32), Bytes)> {
        Frame::read(&Bytes::copy_from_slice(line.as_bytes())).map(|frame| (frame.numbers.unwrap(), frame.data))
    }

    #[test]
    fn data_is_what_follows_the_third_colon_even_nothing() {
        assert_eq!(read(&format!("{ID}:1:3:a:b:")), Some(((1, 3), "a:b:".into())));
        assert_eq!(read(&format!("{}:007:8:", ID.to_lowercase())), Some(((7, 8), "".into())));
    }

    #[test]
    fn a_line_without_a_real_uuid_or_with_other_than_digits_is_no_frame() {
        for line in [
            "".into(),
            ID.into(),
            format!("{ID}:1:3"),
            format!("{ID}:1:"),
            format!("{ID}::3:x"),
            format!("{ID}:-1:3:x"),
            format!("{ID}:+1:3:x"),
            format!("{ID}: 1:3:x"),
            format!("{ID}:1:3.0:x"),
            format!("{ID}:1:{}:x", "9".repeat(20)),
            format!("{}:0:1:x", ID.replace('D', "G")),
            format!("{}:0:1:x", ID.replace('-', "0")),
            format!(" {ID}:0:1:x"),
            "a1b2c3-4d5e-6f7g-8h9i-j0k1l2m3n4o5:0:3:x".into(),
        ] {
            assert_eq!(read(&line), None, "{line}");
        }
    }

    #[test]
    fn who_has_to_hear_is_found_in_the_front() {
        let caller = |text: &str| {
            let paths = crate::json::Paths::new(&ENVELOPE);
            let mut scanner = crate::json::Scanner::new(paths);
            scanner.feed(text.as_bytes()).unwrap();
            Caller::of(&Envelope::read(scanner.visitor()).unwrap(), &Message::from(text.to_owned()))
        };
        let ours = |id: &'static str| Some(Caller::Ours(id.into()));
        let peer = |id: &'static str| Some(Caller::Peer(id.into()));
        assert_eq!(caller(r#"{"jsonrpc":"2.0","id":7,"result":{"a":"#), ours("7"));
        assert_eq!(caller(r#"{"id":"q","error":{}}"#), ours("\"q\""));
        assert_eq!(caller(r#"{"jsonrpc":"2.0","id":7"#), None);
        assert_eq!(caller(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"#), peer("7"));
        assert_eq!(caller(r#"{"jsonrpc":"2.0","method":"m","params":{"id":7"#), None);
        assert_eq!(caller(r#"{"jsonrpc":"2.0","result":{"id":7}"#), None);
        assert_eq!(caller(r#"{"result":1,"id":12"#), None, "perhaps not all of the id");
        assert_eq!(caller(&format!(r#"{{"id":"{}","result":1"#, "x".repeat(300))), None);
    }
}
