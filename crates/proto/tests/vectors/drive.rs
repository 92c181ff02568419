//! Runs the steps of a case as a driver would, and notes what comes out.

use std::time::{Duration, Instant};

use breakbulk_proto::ahp::Negotiated;
use breakbulk_proto::{
    Account, Budget, BudgetConfig, Capacity, CloseReason, Grant, Input, Lane, Message, Meta, Overhead, Receipt,
    Refusal, Schedule, Tag, Ticket,
};
use bytes::Bytes;

use super::build::{Built, Setup};
use super::case::Dialect;
use super::compare;
use super::expect::Expect;
use super::record::{Promises, Record};
use super::step::{AckResult, AckSpec, CapacitySpec, CloseSpec, MetaSpec, Step};

/// Looks at a machine between any two inputs.
pub(crate) trait Watch {
    /// One case begins, with this much to hold.
    fn begin(&mut self, _budget: BudgetConfig) {}

    /// A frame of so many bytes arrives.
    fn fed(&mut self, _bytes: usize) {}

    /// Everything that came out was taken, and what was taken was let go of.
    fn settled(&mut self, _budget: &Budget) {}

    /// The machine is gone.
    fn end(&mut self, _budget: &Budget) {}

    /// Whether what comes out is kept and compared. Without it only `ack` steps keep anything: the frames' tags.
    fn keeps(&self) -> bool {
        true
    }
}

/// Nobody looks.
impl Watch for () {}

pub(super) fn run(
    dialect: Dialect,
    setup: &Setup,
    steps: &[Step],
    expect: &Expect,
    watch: &mut dyn Watch,
) -> Result<(), String> {
    let budget = Budget::new(setup.budget());
    watch.begin(setup.budget());
    let mut driver = Driver::new(dialect, setup, budget.clone(), watch);
    let result = driver.all(steps).and_then(|()| driver.check(expect).map_err(|how| format!("at the end: {how}")));
    let Driver { built, crowd, watch, .. } = driver;
    drop((built, crowd));
    watch.end(&budget);
    result?;
    match (budget.held(), budget.used()) {
        (0, 0) => Ok(()),
        (held, used) => Err(format!("after the connection is gone, {held} bytes are held and {used} used")),
    }
}

pub(super) struct Driver<'a> {
    pub(super) dialect: Dialect,
    setup: &'a Setup,
    pub(super) budget: Budget,
    negotiated: Negotiated,
    pub(super) built: Built,
    pub(super) now: Instant,
    pub(super) record: Record,
    pub(super) promises: Promises,
    /// Texts as the application sent them, by ticket.
    pub(super) sends: Vec<Vec<u8>>,
    tickets: u64,
    /// Tags of all frames, in order.
    tags: Vec<Tag>,
    capacity: Option<CapacitySpec>,
    /// What others hold of the same budget.
    crowd: Vec<(Account, Option<Grant>)>,
    watch: &'a mut dyn Watch,
}

impl<'a> Driver<'a> {
    fn new(dialect: Dialect, setup: &'a Setup, budget: Budget, watch: &'a mut dyn Watch) -> Self {
        let negotiated = Negotiated::default();
        Self {
            dialect,
            setup,
            built: setup.build(dialect, &budget, &negotiated),
            budget,
            negotiated,
            now: Instant::now(),
            record: Record::default(),
            promises: Promises::default(),
            sends: Vec::new(),
            tickets: 0,
            tags: Vec::new(),
            capacity: None,
            crowd: Vec::new(),
            watch,
        }
    }

    fn all(&mut self, steps: &[Step]) -> Result<(), String> {
        for (n, step) in steps.iter().enumerate() {
            self.step(step).map_err(|how| format!("at step {}: {how}", n + 1))?;
        }
        if self.setup.hold {
            self.take(usize::MAX);
            self.settle();
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Frame(text) => self.frame(text.0.clone().into(), Meta::default()),
            Step::FrameFrom(from) => self.frame(from.text.0.clone().into(), meta(&from.meta)),
            Step::Segment(group, index, total, text) => {
                self.frame(super::wire::segment(group, *index, *total, &text.0).into(), Meta::default());
            }
            Step::Segments(segments) => {
                segments.frames()?.for_each(|frame| self.frame(frame, Meta::default()));
            }
            Step::Flood { from, count, frame, meta: spec } => {
                (*from..from + count).for_each(|n| self.frame(frame.numbered(n).into(), meta(spec)));
            }
            Step::Send(text) => self.send(text.0.clone(), Lane::Auto, Meta::default()),
            Step::SendFree(text) => self.send(text.0.clone(), Lane::Free, Meta::default()),
            Step::SendTo(to) => self.send(to.text.0.clone(), Lane::Auto, meta(&to.meta)),
            Step::SendMany { count, text } => {
                (0..*count).for_each(|n| self.send(text.numbered(n), Lane::Auto, Meta::default()));
            }
            Step::Capacity(spec) => {
                self.capacity = Some(*spec);
                self.handle(Input::Capacity(capacity(*spec)));
            }
            Step::Wait(millis) => self.now += Duration::from_millis(*millis),
            Step::Sleep(millis) => self.sleep(self.now + Duration::from_millis(*millis)),
            Step::Timeout(_) => self.handle(Input::Timeout),
            Step::EndOfInput(_) => self.handle(Input::EndOfInput),
            Step::Pause(paused) => self.handle(Input::Paused(*paused)),
            Step::Close(spec) => self.handle(Input::Close(close(*spec))),
            Step::Ack(spec) => self.ack(spec)?,
            Step::Take(_) if !self.setup.hold => return Err("take needs hold in the setup".into()),
            Step::Take(count) => {
                self.take(*count);
                self.settle();
            }
            Step::Crowd(bytes) => self.crowd("another", *bytes),
            Step::CrowdSelf(bytes) => self.crowd("someone", *bytes),
            Step::Uncrowd(_) => self.crowd.clear(),
            Step::NoteSeq(ordinal, seq) => {
                self.built.ahp().ok_or("only ahp has seqs")?.note_seq(*ordinal, *seq);
            }
            Step::Reconnect(_) => self.reconnect()?,
            Step::Expect(expect) => self.check(expect)?,
        }
        Ok(())
    }

    fn crowd(&mut self, principal: &str, bytes: u64) {
        let account = self.budget.account(Some(principal));
        let schedule = Schedule { started: self.now, timeout: Duration::from_secs(30) };
        let grant = account.reserve(bytes, schedule).ok();
        self.crowd.push((account, grant));
    }

    fn frame(&mut self, bytes: Bytes, meta: Meta) {
        self.watch.fed(bytes.len());
        self.handle(Input::Frame { bytes, meta });
    }

    fn send(&mut self, text: Vec<u8>, lane: Lane, meta: Meta) {
        self.tickets += 1;
        if self.watch.keeps() {
            self.sends.push(text.clone());
        }
        let ticket = Ticket(self.tickets);
        self.handle(Input::Send { ticket, message: Message::from(text), lane, meta });
    }

    fn ack(&mut self, spec: &AckSpec) -> Result<(), String> {
        let tag = self.tags.get(spec.frame.wrapping_sub(1)).copied();
        let tag = tag.ok_or_else(|| format!("there are only {} frames", self.tags.len()))?;
        let result = match spec.result {
            AckResult::Taken => Ok(Receipt { id: spec.id.as_deref().map(Into::into) }),
            AckResult::TooLarge => Err(Refusal::TooLarge),
            AckResult::TooFast => Err(Refusal::TooFast),
            AckResult::Other => Err(Refusal::Other),
        };
        self.handle(Input::Acked { tag, result });
        Ok(())
    }

    fn sleep(&mut self, until: Instant) {
        while let Some(due) = self.built.machine().poll_timeout()
            && due <= until
        {
            self.now = due.max(self.now);
            self.handle(Input::Timeout);
            let next = self.built.machine().poll_timeout();
            if next.is_some_and(|next| next <= self.now) {
                self.promises.break_with("a timeout is due again at once".into());
                break;
            }
        }
        self.now = until;
    }

    fn reconnect(&mut self) -> Result<(), String> {
        let broken = self.promises.broken();
        if !broken.is_empty() {
            return Err(broken.join("; "));
        }
        self.built = self.setup.build(self.dialect, &self.budget, &self.negotiated);
        (self.record, self.promises, self.capacity) = Default::default();
        (self.sends, self.tickets, self.tags) = Default::default();
        Ok(())
    }

    fn handle(&mut self, input: Input) {
        self.built.machine().handle(input, self.now);
        if !self.setup.hold || self.promises.is_closed() {
            self.take(usize::MAX);
        }
        self.settle();
    }

    /// The link takes up to `count` frames.
    fn take(&mut self, count: usize) {
        for _ in 0..count {
            let Some(transmit) = self.built.machine().poll_transmit(self.now) else { return };
            if let breakbulk_proto::Transmit::Frame { tag, bytes, .. } = &transmit {
                self.tags.push(*tag);
                self.measure(bytes.to_bytes());
            }
            self.promises.transmit(transmit, &mut self.record);
            self.forget();
        }
    }

    /// No frame is longer than the link and the peer take.
    fn measure(&mut self, frame: Bytes) {
        let size = frame.len() as u64;
        if let Some(spec) = self.capacity {
            let escaped = breakbulk_proto::json::escaped_len(&frame);
            let wire = if spec.escapes { escaped } else { size } + spec.fixed;
            if wire > spec.cap {
                self.promises.break_with(format!("a frame takes {wire} bytes on a link of {}", spec.cap));
            }
        }
        if self.dialect == Dialect::Stdio {
            let is_line = std::str::from_utf8(&frame).is_ok_and(|line| !line.contains(['\n', '\r']));
            let is_named = match super::wire::piece(self.dialect, &frame) {
                super::wire::Piece::Segment { group, .. } => group == group.to_uppercase(),
                _ => true,
            };
            if !is_line || !is_named || size > 61_439 {
                self.promises.break_with("a line that SwiftAgentKit would not read".into());
            }
        }
        let peer = self.built.ahp().and_then(|connection| connection.peer());
        if let Some(limit) = peer.map(|peer| peer.max_frame_bytes).filter(|limit| size > *limit) {
            self.promises.break_with(format!("a frame of {size} bytes goes to a peer that takes {limit}"));
        }
    }

    /// The application takes every event.
    fn settle(&mut self) {
        while let Some(event) = self.built.machine().poll_event() {
            self.promises.event(event, &mut self.record);
            self.forget();
        }
        self.watch.settled(&self.budget);
    }

    /// Lets go of what came out, if nobody compares it.
    fn forget(&mut self) {
        if !self.watch.keeps() {
            self.record = Record::default();
        }
    }

    fn check(&mut self, expect: &Expect) -> Result<(), String> {
        if !self.watch.keeps() {
            return Ok(());
        }
        let differences = compare::differences(self, expect);
        self.record = Record::default();
        if differences.is_empty() { Ok(()) } else { Err(format!("\n  {}", differences.join("\n  "))) }
    }
}

fn meta(spec: &MetaSpec) -> Meta {
    let text = |field: &Option<String>| field.as_deref().map(Into::into);
    Meta {
        peer: text(&spec.peer),
        id: text(&spec.id),
        about: text(&spec.about),
        supports_parts: spec.supports_parts,
        ..Meta::default()
    }
}

fn capacity(spec: CapacitySpec) -> Capacity {
    let CapacitySpec { cap, fixed, escapes } = spec;
    let overhead = match (escapes, fixed) {
        (true, _) => Overhead::new(move |measure| measure.escaped - measure.bytes + fixed),
        (false, 0) => Overhead::default(),
        (false, _) => Overhead::new(move |_| fixed),
    };
    Capacity { cap, overhead }
}

fn close(spec: CloseSpec) -> CloseReason {
    match spec {
        CloseSpec::Normal => CloseReason::Normal,
        CloseSpec::Restart => CloseReason::Restart,
        CloseSpec::Peer(code) => CloseReason::Peer { code },
    }
}
