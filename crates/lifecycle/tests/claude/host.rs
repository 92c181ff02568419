//! A host in small: a conversation, the writer behind it, and everything that came of it.

use breakbulk_lifecycle::claude::{Conversation, Limits, Prompt, Signal};
use breakbulk_lifecycle::{Checker, Event, ExitReason, Failure, Id, Outcome, Received, Writer};
use serde_json::Value;

/// A conversation, and all that it has said so far.
pub(crate) struct Host {
    pub(crate) claude: Conversation,
    writer: Writer,
    /// What the translator said, before the writer.
    pub(crate) raw: Vec<Event>,
    /// What the writer made of it.
    pub(crate) events: Vec<Event>,
    pub(crate) signals: Vec<Signal>,
    /// What was written to the program.
    pub(crate) written: Vec<Value>,
    /// Events and signals in their order, one line each.
    pub(crate) transcript: Vec<String>,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self {
            claude: Conversation::new("run", limits),
            writer: Writer::new(),
            raw: Vec::new(),
            events: Vec::new(),
            signals: Vec::new(),
            written: Vec::new(),
            transcript: Vec::new(),
        }
    }

    /// A host that has handed over one prompt.
    pub(crate) fn prompted() -> Self {
        let mut host = Self::new();
        host.send("t1", "u1");
        host
    }

    pub(crate) fn send(&mut self, turn: &str, uuid: &str) {
        self.claude.send(Prompt::text(turn, uuid, "do it"));
        self.drain();
    }

    pub(crate) fn hear(&mut self, line: &Value) -> Received {
        self.hear_text(&line.to_string())
    }

    pub(crate) fn hear_all(&mut self, lines: &[Value]) {
        for line in lines {
            self.hear(line);
        }
    }

    pub(crate) fn hear_text(&mut self, line: &str) -> Received {
        let received = self.claude.receive(line.as_bytes());
        self.drain();
        received
    }

    /// The program dies.
    pub(crate) fn crash(&mut self) {
        self.claude.end(ExitReason::Failed(Failure::new("agentEnded", "gone")));
        self.drain();
    }

    pub(crate) fn drain(&mut self) {
        while let Some(line) = self.claude.poll_line() {
            let (end, line) = line.split_last().expect("a line has a line break");
            assert_eq!(*end, b'\n');
            assert!(!line.contains(&b'\n'));
            self.written.push(serde_json::from_slice(line).expect("a line is JSON"));
        }
        while let Some(event) = self.claude.poll_event() {
            self.raw.push(event.clone());
            self.writer.write(event);
            while let Some(formed) = self.writer.poll() {
                let event = formed.into_event();
                self.transcript.push(crate::golden::shown(&event));
                self.events.push(event);
            }
        }
        while let Some(signal) = self.claude.poll_signal() {
            self.transcript.push(crate::golden::shown_signal(&signal));
            self.signals.push(signal);
        }
    }

    /// Events that made no sense to the writer.
    pub(crate) const fn strays(&self) -> u64 {
        self.writer.strays()
    }

    /// Ends the program if it has not ended, and checks that all of it was well formed.
    pub(crate) fn finish(mut self) -> Self {
        self.crash();
        self.check();
        self
    }

    pub(crate) fn check(&self) {
        let mut checker = Checker::new();
        for event in &self.events {
            assert_eq!(checker.check(event), Ok(()), "{event:?} in\n{}", self.transcript.join("\n"));
        }
        assert!(checker.is_done(), "a turn is left open:\n{}", self.transcript.join("\n"));
    }

    pub(crate) fn outcome(&self, turn: &str) -> Option<&Outcome> {
        self.events.iter().find_map(|event| match event {
            Event::TurnEnded { turn: ended, outcome } if **ended == *turn => Some(outcome),
            _ => None,
        })
    }

    /// How often a turn began and ended.
    pub(crate) fn times(&self, turn: &Id) -> (usize, usize) {
        let begun = self.events.iter().filter(|event| matches!(event, Event::TurnStarted { turn: of } if of == turn));
        let ended = self.events.iter().filter(|event| matches!(event, Event::TurnEnded { turn: of, .. } if of == turn));
        (begun.count(), ended.count())
    }

    /// What came, one line each.
    pub(crate) fn shown(&self) -> Vec<&str> {
        self.transcript.iter().map(String::as_str).collect()
    }
}
