//! Memory as the allocator sees it, against the books of the budget.

use std::time::Instant;

use breakbulk_proto::ahp::{Chunking, Config, Connection, Role};
use breakbulk_proto::{Budget, BudgetConfig, Input, Limits, LimitsConfig, Machine, Ticket, Transmit};
use bytes::Bytes;

use crate::sim::rng::Rng;
use crate::sim::segment::Segment;

/// Who keeps the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Books {
    /// The budget.
    Honest,
    /// A saboteur, who counts the bytes that arrived and not the memory that they take.
    ByLength,
}

/// What a connection's tables may take beside what is charged for groups: they grow by doubling.
const TABLES: i64 = 1024;

/// Receives a few unevenly cut messages; returns the most bytes that were allocated and not on the books.
pub(crate) fn off_the_books(seed: u64, books: Books) -> i64 {
    let mut rng = Rng::new(seed);
    let budget = Budget::new(BudgetConfig::default());
    let now = Instant::now();
    let limits = LimitsConfig { max_frame_bytes: rng.range(1024, 8192), ..LimitsConfig::default() };
    let limits = Limits::prove(limits, &BudgetConfig::default()).expect("the limits hold together");
    let mut connection = |role| {
        let mut config = Config::new(role, limits, rng.bytes());
        config.agreed = Some(Chunking::from(&limits));
        Connection::new(config, budget.account(Some("someone")))
    };
    let (mut server, mut client) = (connection(Role::Server), connection(Role::Client));
    let frames = frames(&mut server, &mut rng, now);
    let mut lens = std::collections::BTreeMap::new();
    let (mut held, mut worst) = (0, 0);
    for segment in frames {
        let frame = segment.write();
        let len = lens.entry(segment.id.clone()).or_insert(0_u64);
        *len += segment.data.len() as u64;
        // The frame stays alive, so that only what the machine keeps for itself is seen.
        held += allocation_counter::measure(|| client.handle(Input::frame(frame.clone()), now)).bytes_current;
        let charged = match books {
            Books::Honest => budget.held(),
            Books::ByLength => lens.values().map(|len| len + (len >> 12) + 2048).sum(),
        };
        worst = worst.max(held - charged as i64 - TABLES);
    }
    worst
}

/// The segments of three messages, each cut in two again, of which the first is the larger.
fn frames(server: &mut Connection, rng: &mut Rng, now: Instant) -> Vec<Segment> {
    for n in 0..3 {
        let len = rng.range(10_000, 120_000) as usize;
        let text = rng.text(len);
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"c{n}","text":"{text}","serverSeq":{n}}}}}"#
        );
        server.handle(Input::send(Ticket(n), text), now);
    }
    let frame = |transmit| match transmit {
        Transmit::Frame { bytes, .. } => Some(bytes.to_bytes()),
        Transmit::Close(_) => None,
    };
    let frames: Vec<Bytes> = std::iter::from_fn(|| server.poll_transmit(now).and_then(frame)).collect();
    let segments = frames.iter().map(|frame| Segment::read(frame).expect("a segment"));
    segments
        .flat_map(|segment| segment.halve(segment.data.len() * if segment.index == 0 { 3 } else { 1 } / 4, 0))
        .collect()
}

#[test]
fn what_is_allocated_for_a_group_is_on_the_books() {
    for seed in 0..40 {
        let worst = off_the_books(seed, Books::Honest);
        assert!(worst <= 0, "seed {seed}: {worst} bytes are held and not charged");
    }
}
