//! `breakbulk join`: frames in, messages out as they complete.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use breakbulk_proto::json::Compactor;
use breakbulk_proto::{CloseReason, Event, Input, Machine, Message, Subject, Ticket, Violation};

use crate::bar::Bar;
use crate::cep22::{self, WantedTransfer};
use crate::failure::{Error, Failure};
use crate::lines::{Lines, NextLine};
use crate::plan::{Ends, Plan};
use crate::rpc;

/// Joins the frames of `input`.
pub(crate) fn run(plan: &Plan, input: impl BufRead, output: impl Write, bar: &Bar) -> Result<(), Error> {
    let mut lines = Lines::new(input, plan.max_line_bytes());
    let mut joiner = Joiner::new(plan, output, bar);
    while !joiner.is_over() {
        match lines.next().map_err(Error::Reading)? {
            NextLine::End => break,
            NextLine::TooLong(_) if plan.too_long() == Ends::All => {
                joiner.too_long((lines.number(), None));
                joiner.is_over = true;
            }
            NextLine::TooLong(front) => {
                lines.skip().map_err(Error::Reading)?;
                joiner.too_long((lines.number(), Some(lines.len())));
                joiner.give_up(front);
            }
            NextLine::Line(line) => joiner.line(lines.number(), line)?,
        }
        bar.reach(lines.read());
    }
    joiner.end(lines.number())
}

/// Writes a text on one line: as it is, or without white space if it has line ends of its own.
pub(crate) fn print_line<'a>(
    output: &mut impl Write,
    parts: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
) -> io::Result<()> {
    let parts = parts.into_iter();
    let breaks = |part: &[u8]| part.contains(&b'\n') || part.contains(&b'\r');
    if parts.clone().any(breaks) {
        let mut compactor = Compactor::default();
        let mut line = Vec::new();
        for part in parts {
            compactor.feed(&mut line, part);
            output.write_all(&line)?;
            line.clear();
        }
    } else {
        for part in parts {
            output.write_all(part)?;
        }
    }
    output.write_all(b"\n")
}

/// A machine that is fed lines, and what became of them.
struct Joiner<'a, W> {
    plan: &'a Plan,
    bar: &'a Bar,
    machine: Box<dyn Machine>,
    /// Messages that were printed.
    messages: u64,
    now: Instant,
    /// Messages that have begun: bytes so far, and in all as far as one can tell.
    open: BTreeMap<u64, (u64, u64)>,
    /// The last line that was refused. The error answers that the machine makes for it are not printed: there is no caller here.
    refused_line: Option<u64>,
    /// The first line that belongs to no transfer, and how many there are.
    strays: Option<(u64, u64)>,
    /// The transfer that this is about, if not about all.
    wanted: Option<WantedTransfer<'a>>,
    output: W,
    /// The dialect of frames that were passed on as messages, because they are of another one than ours.
    other_dialect: Option<&'static str>,
    failed: bool,
    is_over: bool,
}

impl<'a, W: Write> Joiner<'a, W> {
    fn new(plan: &'a Plan, output: W, bar: &'a Bar) -> Self {
        Self {
            plan,
            bar,
            machine: plan.machine(),
            messages: 0,
            now: Instant::now(),
            open: BTreeMap::new(),
            refused_line: None,
            strays: None,
            wanted: plan.token().map(WantedTransfer::new),
            output,
            other_dialect: None,
            failed: false,
            is_over: false,
        }
    }

    /// Whether a violation has ended the work.
    const fn is_over(&self) -> bool {
        self.is_over
    }

    fn line(&mut self, number: u64, line: Vec<u8>) -> Result<(), Error> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        if self.wanted.as_mut().is_some_and(|wanted| wanted.is_of_another(&line)) {
            return Ok(());
        }
        let size = line.strip_suffix(b"\r").unwrap_or(&line).len() as u64;
        let strays = cep22::stray_frames(self.machine.counters());
        self.machine.handle(Input::frame(self.plan.frame(line)), self.now);
        if cep22::stray_frames(self.machine.counters()) > strays {
            let (first, count) = self.strays.unwrap_or((number, 0));
            self.strays = Some((first, count + 1));
        }
        let before = self.messages;
        while let Some(event) = self.machine.poll_event() {
            self.event(event, (number, Some(size)))?;
        }
        // Answers to the sender are dropped: there is no sender.
        while self.machine.poll_transmit(self.now).is_some() {}
        if self.messages > before {
            self.output.flush().map_err(Error::Output)?;
        }
        Ok(())
    }

    fn too_long(&mut self, line: (u64, Option<u64>)) {
        let text = format!("a line is over the limit of {} bytes", self.plan.max_line_bytes());
        self.fail(line, text, self.plan.line_rule());
    }

    /// Fails the message that a line which is too long belongs to. The line itself was reported before.
    fn give_up(&mut self, front: Vec<u8>) {
        if self.plan.too_long() == Ends::Group {
            self.machine.handle(Input::frame(front), self.now);
        }
        while let Some(Event::ReceiveFailed { ordinal, .. }) = self.machine.poll_event() {
            self.open.remove(&ordinal);
        }
    }

    fn event(&mut self, event: Event, line: (u64, Option<u64>)) -> Result<(), Error> {
        match event {
            Event::Message { .. } if self.refused_line == Some(line.0) => {}
            Event::Message { message, ordinal, .. } => {
                let is_whole = self.open.remove(&ordinal).is_none();
                self.message(&message, is_whole, line)?;
            }
            Event::Progress(progress) => {
                if let Subject::Incoming(ordinal) = progress.subject {
                    self.open.insert(ordinal, (progress.done, progress.total));
                }
            }
            Event::ReceiveFailed { ordinal, violation, .. } => {
                self.open.remove(&ordinal);
                self.refused_line = Some(line.0);
                self.broken(line, &violation);
            }
            Event::Line(_) => {
                self.fail(line, "neither a message nor a frame; ignored".into(), "line-unknown");
            }
            Event::Closed(CloseReason::Violation(violation)) => {
                self.broken(line, &violation);
                self.is_over = true;
            }
            Event::Closed(reason) => {
                self.fail(line, reason.to_string(), reason.name());
                self.is_over = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn message(&mut self, message: &Message, is_whole: bool, line: (u64, Option<u64>)) -> Result<(), Error> {
        // A machine holds a limited number of unanswered requests. Nobody answers the requests of a recording, so we
        // do.
        if self.plan.counts_requests()
            && let Some(answer) = rpc::answer(message)
        {
            self.machine.handle(Input::send(Ticket(0), answer), self.now);
        }
        // Every machine checks messages that came in segments, but not every one those that came in one frame.
        if is_whole && let Some(violation) = rpc::flaw(&message.to_bytes(), self.plan.limits()) {
            self.broken(line, &violation);
            return Ok(());
        }
        if is_whole && self.other_dialect.is_none() {
            self.other_dialect = self.plan.is_frame_of(message);
        }
        self.messages += 1;
        let parts: Vec<_> = message.slices().collect();
        print_line(&mut self.output, parts.iter().copied()).map_err(Error::Output)
    }

    /// Reports unfinished messages, unless a violation has ended the work.
    fn end(mut self, last_line: u64) -> Result<(), Error> {
        self.output.flush().map_err(Error::Output)?;
        if !self.is_over {
            self.unfinished(last_line);
        }
        // The frames after a failed transfer belong to no transfer either; that needs no second report.
        if let Some((first, count)) = self.strays.filter(|_| !self.failed) {
            let text = format!("the first of {count} frames that belong to no open transfer");
            self.fail((first, None), text, "part-of-no-transfer");
        }
        if let Some(text) = self.wanted.as_ref().and_then(WantedTransfer::lack) {
            self.failed |= self.messages == 0;
            self.bar.say(Failure { line: None, text, rule: "token-not-found" });
        }
        match self.other_dialect {
            _ if self.failed => Err(Error::Reported),
            Some(dialect) => Err(Error::OtherDialect(dialect)),
            None => Ok(()),
        }
    }

    fn unfinished(&mut self, last_line: u64) {
        let open = std::mem::take(&mut self.open);
        if open.is_empty() && self.plan.holds_parts() {
            let text = "the input ends inside a message, after 0 bytes of it".into();
            self.fail((last_line, None), text, "unfinished");
        }
        for (done, total) in open.into_values() {
            let text = format!("the input ends inside a message, after {done} of about {total} bytes");
            self.fail((last_line, None), text, "unfinished");
        }
    }

    fn broken(&mut self, line: (u64, Option<u64>), violation: &Violation) {
        let text = match violation {
            // The message may have come in one frame.
            Violation::MessageNotJsonRpc => "JSON, but not a JSON-RPC message".into(),
            // The line is named in front already.
            Violation::BadLine { why, .. } => format!("not a message: {why}"),
            other => other.to_string(),
        };
        self.fail(line, text, violation.name());
    }

    fn fail(&mut self, line: (u64, Option<u64>), text: String, rule: &'static str) {
        self.failed = true;
        self.bar.say(Failure { line: Some(line), text, rule });
    }
}
