//! The translator of ACP: each of its rules as a case, and any updates in any order.

mod cases;
mod connection;
mod properties;
mod recordings;

use agent_client_protocol_schema::v1::{RequestPermissionRequest, SessionUpdate, StopReason};
use breakbulk_lifecycle::acp::{Limits, SessionSignal, Translator};
use breakbulk_lifecycle::{Checker, Event, Failure, Outcome, Writer};
use serde_json::Value;

/// A translator, the writer behind it, and everything that came of it.
pub(crate) struct Host {
    pub(crate) acp: Translator,
    writer: Writer,
    /// What the translator gave, before the writer.
    pub(crate) raw: Vec<Event>,
    /// What the writer made of it.
    pub(crate) events: Vec<Event>,
    pub(crate) signals: Vec<SessionSignal>,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self {
            acp: Translator::new(Limits::default()),
            writer: Writer::new(),
            raw: Vec::new(),
            events: Vec::new(),
            signals: Vec::new(),
        }
    }

    /// A host that has handed over one prompt, `t1`.
    pub(crate) fn prompted() -> Self {
        let mut host = Self::new();
        host.acp.begin("t1".into());
        host
    }

    pub(crate) fn update(&mut self, update: &Value) {
        self.acp.update(parse(update));
        self.drain();
    }

    pub(crate) fn updates(&mut self, updates: &[Value]) {
        updates.iter().for_each(|update| self.update(update));
    }

    pub(crate) fn ask(&mut self, request: &Value) -> bool {
        let request: RequestPermissionRequest = serde_json::from_value(request.clone()).expect("a request");
        let is_asked = self.acp.ask(request);
        self.drain();
        is_asked
    }

    pub(crate) fn end(&mut self, reason: StopReason) {
        self.acp.end(reason);
        self.drain();
    }

    pub(crate) fn crash(&mut self) {
        self.acp.fail(Failure::new("agentEnded", "gone"));
        self.drain();
        self.writer.end(Outcome::Cancelled);
        self.drain();
    }

    pub(crate) fn drain(&mut self) {
        while let Some(event) = self.acp.poll_event() {
            self.raw.push(event.clone());
            self.writer.write(event);
        }
        self.signals.extend(std::iter::from_fn(|| self.acp.poll_signal()));
        self.events.extend(std::iter::from_fn(|| self.writer.poll()).map(|formed| formed.into_event()));
    }

    /// Asserts that the events are well formed, and that no turn is open.
    pub(crate) fn assert_well_formed(&self) {
        let mut checker = Checker::new();
        for event in &self.events {
            assert_eq!(checker.check(event), Ok(()), "{event:?} in {:#?}", self.events);
        }
        assert!(!matches!(self.events.last(), Some(event) if !matches!(event, Event::TurnEnded { .. })));
    }
}

pub(crate) fn parse(update: &Value) -> SessionUpdate {
    serde_json::from_value(update.clone()).expect("an update")
}
