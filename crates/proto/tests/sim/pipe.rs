//! A `stdio` world: several writers share one pipe, and somebody else writes log lines into it.

use std::time::{Duration, Instant};

use breakbulk_proto::stdio::{Config, Connection};
use breakbulk_proto::{
    Budget, BudgetConfig, Capacity, CloseReason, Event, Input, Limits, LimitsConfig, Machine, Ticket, Transmit,
};
use bytes::Bytes;

use crate::sim::ledger::{Counts, Lane, Ledger, Strictness};
use crate::sim::middle::UP;
use crate::sim::rng::Rng;
use crate::sim::tally::Tally;
use crate::sim::trace::{front, trace};
use crate::sim::world::Outcome;

/// The book of the lines that are no messages.
const LOG: (u64, usize) = (u64::MAX, UP);

/// Runs a world to its end.
pub(crate) fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    while world.step() {}
    world.finish()
}

struct World {
    rng: Rng,
    now: Instant,
    writers: Vec<Connection>,
    reader: Connection,
    budget: Budget,
    limits: Limits,
    /// Lines that come later than they were written.
    late: Vec<Bytes>,
    manner: Manner,
    messages: u64,
    lines: u64,
    left: u64,
    max_text: u64,
    /// Messages that the reader said it gave up.
    given_up: u64,
    ledger: Ledger,
    tally: Tally,
}

/// What happens to lines, in a hundred.
#[derive(Debug, Clone, Copy)]
struct Manner {
    late: u64,
    twice: u64,
    noise: u64,
    carriage_returns: u64,
    dropped: u64,
    tight: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x57D10);
        let now = Instant::now();
        let manner = Manner {
            late: rng.pick(&[0, 0, 20]),
            twice: rng.pick(&[0, 10]),
            noise: rng.pick(&[0, 10]),
            carriage_returns: rng.pick(&[0, 50, 100]),
            dropped: rng.pick(&[0, 0, 0, 2]),
            tight: rng.chance(20),
        };
        let room = if manner.tight { rng.range(40 << 10, 64 << 10) } else { 4 << 20 };
        let budget = BudgetConfig { process_bytes: room, principal_bytes: room, floor_bytes: 4 << 10 };
        let config = LimitsConfig {
            max_message_bytes: 34 << 10,
            max_frame_bytes: 4096,
            max_groups: 64,
            group_timeout: Some(Duration::from_secs(10)),
            ..LimitsConfig::default()
        };
        let limits = Limits::prove(config, &budget).expect("the limits hold together");
        let budget = Budget::new(budget);
        let end = |rng: &mut Rng| Connection::new(Config::new(limits, rng.bytes()), budget.account(Some("pipe")));
        let mut writers: Vec<_> = (0..rng.range(1, 4)).map(|_| end(&mut rng)).collect();
        let reader = end(&mut rng);
        let mut ledger = Ledger::default();
        ledger.open(LOG, "log lines".into(), Strictness::PerLane);
        for (n, writer) in writers.iter_mut().enumerate() {
            writer.handle(Input::Capacity(Capacity::of(rng.range(200, 3000))), now);
            ledger.open((n as u64, UP), format!("writer {n}"), Strictness::PerLane);
        }
        Self {
            now,
            writers,
            reader,
            budget,
            limits,
            late: Vec::new(),
            manner,
            messages: 0,
            lines: 0,
            left: rng.range(3, 30),
            max_text: rng.pick(&[500, 8000, 30_000]),
            given_up: 0,
            ledger,
            tally: Tally::default(),
            rng,
        }
    }

    /// A writer writes a line, or an application sends. Says whether anything is left to do.
    fn step(&mut self) -> bool {
        self.now += self.rng.millis(0, 3);
        if self.left > 0 && self.rng.chance(30) {
            self.left -= 1;
            self.send();
        }
        if self.rng.chance(self.manner.noise) {
            self.noise();
        }
        let busy = self.write();
        if !busy && self.left == 0 {
            let late = std::mem::take(&mut self.late);
            late.iter().for_each(|line| self.pass(line));
        } else if !self.late.is_empty() && self.rng.chance(30) {
            let at = self.rng.below(self.late.len() as u64) as usize;
            let line = self.late.swap_remove(at);
            self.pass(&line);
        }
        if self.reader.poll_timeout().is_some_and(|at| at <= self.now) {
            self.reader.handle(Input::Timeout, self.now);
            self.events();
        }
        busy || self.left > 0 || !self.late.is_empty()
    }

    /// An application sends a message, on one line or on several.
    fn send(&mut self) {
        let writer = self.rng.below(self.writers.len() as u64) as usize;
        let len = if self.rng.chance(50) { 100 } else { self.max_text };
        let len = self.rng.range(5, len) as usize;
        self.messages += 1;
        let (n, text) = (self.messages, self.rng.text(len));
        let line =
            format!(r#"{{"jsonrpc":"2.0","method":"say","params":{{"writer":{writer},"n":{n},"text":"{text}"}}}}"#);
        let sent = if self.rng.chance(20) { line.replacen(r#","method""#, ",\n  \"method\"", 1) } else { line.clone() };
        // Late lines may belong to any message, so only without them is there an order.
        let lane = if self.manner.late > 0 { Lane::Free } else { Lane::Named("pipe".into()) };
        self.ledger.handed((writer as u64, UP), n, lane, line.as_bytes());
        self.tally.one("pipe messages");
        self.writers[writer].handle(Input::send(Ticket(n), sent), self.now);
    }

    /// Somebody else writes something.
    fn noise(&mut self) {
        self.lines += 1;
        self.tally.one("pipe log lines");
        let n = self.lines;
        let line = match self.rng.below(4) {
            0 => return self.hand(&Bytes::from_static(b"")),
            1 => format!("INFO {n} started"),
            2 => format!("no-uuid-{n}:0:3:data"),
            _ => format!(r#"{{"level":"info","n":{n}}}"#),
        };
        self.ledger.handed(LOG, n, Lane::Free, line.as_bytes());
        self.hand(&Bytes::from(line));
    }

    /// One of the writers writes its next line. Says whether there was one.
    fn write(&mut self) -> bool {
        let first = self.rng.below(self.writers.len() as u64) as usize;
        for at in 0..self.writers.len() {
            let writer = (first + at) % self.writers.len();
            if !self.reader.wants_frames() {
                return true;
            }
            let Some(Transmit::Frame { bytes, .. }) = self.writers[writer].poll_transmit(self.now) else { continue };
            let bytes = bytes.to_bytes();
            assert!(!bytes.contains(&b'\n'), "a line end inside a line");
            let frame = is_frame(&bytes);
            self.tally.one(if frame { "pipe frames" } else { "pipe raw lines" });
            // Of a message of which nothing arrives, nobody can know; so the first frame stays.
            if frame && !is_first(&bytes) && self.rng.chance(self.manner.dropped) {
                self.tally.one("pipe frames dropped");
            } else if frame && self.rng.chance(self.manner.late) {
                self.late.push(bytes);
            } else {
                self.pass(&bytes);
            }
            return true;
        }
        false
    }

    fn pass(&mut self, line: &Bytes) {
        self.hand(line);
        if is_frame(line) && self.rng.chance(self.manner.twice) {
            self.tally.one("pipe frames repeated");
            self.hand(line);
        }
    }

    fn hand(&mut self, line: &Bytes) {
        let mut bytes = line.to_vec();
        if self.rng.chance(self.manner.carriage_returns) {
            bytes.push(b'\r');
        }
        trace(|| format!("reader reads {}", front(&bytes)));
        self.reader.handle(Input::frame(bytes), self.now);
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.reader.poll_event() {
            trace(|| format!("reader event {event:?}"));
            match event {
                Event::Message { message, ordinal, .. } => {
                    let text = message.to_bytes();
                    let value: serde_json::Value = serde_json::from_slice(&text).expect("what arrives is JSON");
                    let writer = value["params"]["writer"].as_u64().unwrap_or(0);
                    self.tally.one("pipe messages received");
                    self.ledger.arrived((writer, UP), ordinal, &text);
                }
                Event::Line(line) => self.ledger.arrived(LOG, 0, &line),
                Event::ReceiveFailed { violation, .. } => {
                    self.tally.one("pipe messages that failed");
                    self.give_up(&format!("{violation}"), self.manner.tight);
                }
                Event::Expired { .. } => {
                    self.tally.one("pipe messages that expired");
                    self.give_up("expired", self.manner.dropped > 0 || self.manner.tight);
                }
                _ => {}
            }
        }
    }

    /// The reader gave a message up; `why_not` says whether it had a reason.
    fn give_up(&mut self, why: &str, why_not: bool) {
        self.given_up += 1;
        if !why_not {
            self.ledger.lost(format!("a message was given up for no reason: {why}"));
        }
    }

    fn finish(mut self) -> Outcome {
        // What has not come by now does not come.
        self.now += self.limits.sweep_after() * 2;
        for _ in 0..4 {
            self.reader.handle(Input::Timeout, self.now);
            self.events();
            self.now += self.limits.sweep_after();
        }
        let before = self.ledger.counts.lost;
        self.ledger.settle();
        let missing = self.ledger.counts.lost - before;
        if missing <= self.given_up {
            // Each that is missing was reported.
            self.ledger.counts.lost = before;
        }
        self.close();
        let held = self.budget.held();
        if held > 0 {
            self.ledger.altered(format!("{held} bytes are charged at rest"));
        }
        self.tally.one("runs with a pipe");
        let counts: Counts = self.ledger.counts;
        Outcome { counts, notes: self.ledger.notes, tally: self.tally }
    }

    fn close(&mut self) {
        for end in self.writers.iter_mut().chain([&mut self.reader]) {
            end.handle(Input::Close(CloseReason::Normal), self.now);
            let events: Vec<_> = std::iter::from_fn(|| end.poll_event()).collect();
            assert!(matches!(events.last(), Some(Event::Closed(_))), "Closed comes last");
            let closed = events.iter().filter(|event| matches!(event, Event::Closed(_)));
            assert_eq!(closed.count(), 1, "Closed comes once");
            assert!(matches!(end.poll_transmit(self.now), Some(Transmit::Close(_))), "a Close for the link");
            assert!(end.poll_transmit(self.now).is_none() && end.poll_timeout().is_none());
        }
    }
}

fn is_frame(line: &[u8]) -> bool {
    line.first().is_some_and(|byte| *byte != b'{')
}

fn is_first(frame: &[u8]) -> bool {
    frame.split(|byte| *byte == b':').nth(1) == Some(b"0")
}
