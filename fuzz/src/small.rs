//! Limits and a budget so small that a fuzzer reaches them.

use std::time::{Duration, Instant};

use breakbulk_proto::{Account, Budget, BudgetConfig, Event, Input, Limits, LimitsConfig, Machine, Message};
use bytes::Bytes;

/// A small budget; dropping it checks that everything was given back.
pub struct Small(Budget);

impl Small {
    const BUDGET: BudgetConfig =
        BudgetConfig { process_bytes: 96 << 10, principal_bytes: 64 << 10, floor_bytes: 4 << 10 };

    /// A budget of which nothing is used.
    #[expect(clippy::new_without_default, reason = "a budget is made on purpose")]
    pub fn new() -> Self {
        Self(Budget::new(Self::BUDGET))
    }

    /// One connection's share.
    pub fn account(&self) -> Account {
        self.0.account(Some("fuzz"))
    }

    /// Limits that fit the budget, and are soon reached.
    pub fn limits() -> Limits {
        let config = LimitsConfig {
            max_frame_bytes: 1024,
            max_message_bytes: 32 << 10,
            max_depth: 64,
            max_groups: 3,
            group_timeout: Some(Duration::from_secs(2)),
            grace: Duration::from_secs(1),
            max_queued_bytes: 128 << 10,
            max_held_bytes: 16 << 10,
        };
        Limits::prove(config, &Self::BUDGET).expect("the limits fit the budget")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!((self.0.held(), self.0.used()), (0, 0), "bytes are held by nobody");
        }
    }
}

/// What comes of one frame: the messages that it completes, then every other event, as text.
pub fn outcome<M: Machine>(mut machine: M, frames: impl IntoIterator<Item = Bytes>) -> (Vec<Message>, Vec<String>) {
    let now = Instant::now();
    for frame in frames {
        machine.handle(Input::frame(frame), now);
    }
    let (mut messages, mut rest) = (Vec::new(), Vec::new());
    while let Some(event) = machine.poll_event() {
        match event {
            Event::Message { message, .. } => messages.push(message),
            other => rest.push(format!("{other:?}")),
        }
    }
    while let Some(transmit) = machine.poll_transmit(now) {
        rest.push(format!("{transmit:?}"));
    }
    (messages, rest)
}

/// Asserts that a frame and the same one with space before it came to the same.
pub fn assert_same(ours: &(Vec<Message>, Vec<String>), theirs: &(Vec<Message>, Vec<String>)) {
    assert_eq!(ours.0.len(), theirs.0.len());
    for (plain, spaced) in ours.0.iter().zip(&theirs.0) {
        assert_eq!(plain.to_bytes().trim_ascii_start(), spaced.to_bytes().trim_ascii_start());
    }
    // Offsets of a fault differ by the space; its name does not.
    let name = |text: &String| text.split(|c: char| c.is_ascii_digit()).next().map(str::to_owned);
    assert_eq!(ours.1.iter().map(name).collect::<Vec<_>>(), theirs.1.iter().map(name).collect::<Vec<_>>());
}
