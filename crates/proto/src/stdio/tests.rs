//! One end of a pipe against what the wire form and its peers demand: what the tests share.

mod any;
mod bounds;
mod receive;
mod send;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::budget::{Budget, BudgetConfig};
use crate::error::{Over, SendError, Violation};
use crate::limits::LimitsConfig;
use crate::machine::{Capacity, Lane, Meta, Progress, Subject, Ticket};
use crate::message::Message;
use crate::rpc;

const ID: &str = "0B4D6F2A-1C3E-4A5B-8C7D-9E0F1A2B3C4D";
const OTHER: &str = "1b4d6f2a-1c3e-4a5b-8c7d-9e0f1a2b3c4d";
const SECOND: Duration = Duration::from_secs(1);

struct Endpoint {
    machine: Connection,
    now: Instant,
}

impl Endpoint {
    fn new() -> Self {
        Self::with(LimitsConfig::default(), &Budget::default())
    }

    fn with(limits: LimitsConfig, budget: &Budget) -> Self {
        let config = BudgetConfig { process_bytes: u64::MAX, principal_bytes: u64::MAX, floor_bytes: 0 };
        let limits = Limits::prove(limits, &config).unwrap();
        let machine = Connection::new(Config::new(limits, [3; 32]), budget.account(Some("peer")));
        Self { machine, now: Instant::now() }
    }

    fn handle(&mut self, input: Input) {
        self.machine.handle(input, self.now);
    }

    fn send(&mut self, ticket: u64, text: impl Into<Message>) {
        self.handle(Input::send(Ticket(ticket), text));
    }

    fn line(&mut self) -> Option<Bytes> {
        match self.machine.poll_transmit(self.now)? {
            Transmit::Frame { bytes, .. } => Some(bytes.to_bytes()),
            Transmit::Close(reason) => panic!("closed: {reason}"),
        }
    }

    fn lines(&mut self) -> Vec<Bytes> {
        std::iter::from_fn(|| self.line()).collect()
    }

    fn receive(&mut self, line: impl Into<Bytes>) {
        self.handle(Input::frame(line));
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.machine.poll_event()).collect()
    }

    fn messages(&mut self) -> Vec<Bytes> {
        let events = self.events().into_iter();
        events
            .filter_map(
                |event| if let Event::Message { message, .. } = event { Some(message.to_bytes()) } else { None },
            )
            .collect()
    }

    /// The only event, which is a failure.
    fn failure(&mut self) -> (u64, Violation, Option<Message>) {
        match self.events().as_slice() {
            [Event::ReceiveFailed { ordinal, violation, reply }] => (*ordinal, violation.clone(), reply.clone()),
            other => panic!("{other:?}"),
        }
    }
}

fn small_budget(bytes: u64) -> Budget {
    Budget::new(BudgetConfig { process_bytes: bytes, principal_bytes: bytes, floor_bytes: 0 })
}

/// A notification of exactly `len` bytes.
fn note(len: usize) -> String {
    let (front, back) = (r#"{"jsonrpc":"2.0","method":"m","params":[""#, r#""]}"#);
    format!("{front}{}{back}", "x".repeat(len - front.len() - back.len()))
}

fn frame(id: &str, index: usize, total: usize, data: &str) -> String {
    format!("{id}:{index}:{total}:{data}")
}

/// The frames of `text` in pieces of `size` bytes.
fn frames(id: &str, text: &str, size: usize) -> Vec<String> {
    let total = text.len().div_ceil(size);
    text.as_bytes()
        .chunks(size)
        .enumerate()
        .map(|(index, data)| frame(id, index, total, std::str::from_utf8(data).unwrap()))
        .collect()
}
