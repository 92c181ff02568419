//! Memory, counted exactly: a segment costs none of its own, and a peer cannot make us hold much more than it sent.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "../benches/common/corpus.rs"]
mod corpus;
#[path = "../benches/common/dialects.rs"]
mod dialects;
#[path = "../benches/common/dice.rs"]
mod dice;
#[path = "../benches/common/meter.rs"]
mod meter;
#[path = "../benches/common/pair.rs"]
mod pair;

use breakbulk_proto::{Machine, Message};
use meter::Cost;
use pair::Pair;

/// What an end may hold beside bytes: its entries in tables, an id, its scratch.
const SMALL: u64 = 8192;

fn message() -> Message {
    Message::from(corpus::agent(corpus::LEN))
}

fn assert_peaks<M: Machine>(cap: u64, pair: impl FnMut() -> Pair<M>) {
    let message = message();
    let (cold, _) = meter::cold_and_warm(pair, &message);
    let sender_peak = u64::try_from(cold.sender.peak).unwrap();
    assert!(sender_peak <= cap + SMALL, "the sender held {sender_peak} beside the message, at a cap of {cap}");
    let receiver_peak = cold.receiver.peak as f64 / message.len() as f64;
    assert!(receiver_peak <= 1.25, "the receiver held {receiver_peak} times the message");
    assert!(cold.receiver_excess <= 2.0, "the receiver held {} times what had arrived", cold.receiver_excess);
}

#[test]
fn ahp_holds_one_frame_at_one_end_and_little_more_than_the_message_at_the_other() {
    for cap in [900_000, 65_536, 512] {
        assert_peaks(cap, || dialects::ahp(cap));
    }
}

#[test]
fn cep22_holds_one_frame_at_one_end_and_little_more_than_the_message_at_the_other() {
    assert_peaks(65_536, || dialects::cep22(65_536));
}

#[test]
fn stdio_holds_one_frame_at_one_end_and_little_more_than_the_message_at_the_other() {
    assert_peaks(61_440, dialects::stdio);
}

#[test]
fn allocations_do_not_grow_with_the_number_of_segments() {
    let message = message();
    let warm = |cap| meter::cold_and_warm(|| dialects::ahp(cap), &message).1;
    let (few, many): (Cost, Cost) = (warm(65_536), warm(512));
    assert!(many.frames > 100 * few.frames, "{} frames against {}", many.frames, few.frames);
    let (sender, receiver) = (many.sender.allocations, many.receiver.allocations);
    // The frame and its handle: used again and again, and let go of with the last segment.
    assert_eq!((sender, few.sender.allocations), (2, 2), "the sender's frame is that of all segments of a message");
    // Blocks double from the first segment's length on: with shorter segments there are a few more.
    assert!(receiver <= few.receiver.allocations + 32, "{receiver} against {}", few.receiver.allocations);
}
