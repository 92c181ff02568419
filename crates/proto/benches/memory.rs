//! How much memory, counted: allocations per segment, and each end's peak.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "common/corpus.rs"]
mod corpus;
#[path = "common/dialects.rs"]
mod dialects;
#[path = "common/dice.rs"]
mod dice;
#[path = "common/meter.rs"]
mod meter;
#[path = "common/pair.rs"]
mod pair;
#[path = "common/table.rs"]
mod table;

use breakbulk_proto::{Machine, Message};
use meter::Cost;
use pair::Pair;

/// What a sender may hold beside one frame: its entry in tables, its scratch.
const SMALL: f64 = 8192.0;

fn main() {
    let message = Message::from(corpus::agent(corpus::LEN));
    table::head("Memory");
    for cap in [900_000, 65_536, 512] {
        rows(&format!("ahp, cap {cap}"), cap, || dialects::ahp(cap), &message);
    }
    per_segment();
    rows("cep22, cap 65536", 65_536, || dialects::cep22(65_536), &message);
    rows("stdio", 61_440, dialects::stdio, &message);
}

/// Prints the peaks of a pair's first message, and what a later one allocates.
fn rows<M: Machine>(name: &str, cap: u64, pair: impl FnMut() -> Pair<M>, message: &Message) {
    let (cold, warm) = meter::cold_and_warm(pair, message);
    let (frames, len) = (warm.frames as f64, message.len() as f64);
    let sender_peak = cold.sender.peak as f64 / (cap as f64 + SMALL);
    table::row(&format!("{name}: frames"), frames, ..);
    table::row(&format!("{name}: sender's allocations, warm"), warm.sender.allocations as f64, ..);
    table::row(&format!("{name}: receiver's allocations, warm"), warm.receiver.allocations as f64, ..);
    table::row(&format!("{name}: sender's peak over a frame and 8 KB"), sender_peak, ..=1.0);
    table::row(&format!("{name}: receiver's peak over the message"), cold.receiver.peak as f64 / len, ..=1.25);
    table::row(&format!("{name}: receiver's peak over what had arrived"), cold.receiver_excess, ..=2.0);
}

/// Prints what each further segment allocates, once a connection has carried such a message: one message, cut into about
/// a thousand segments and into about sixty thousand. Blocks double from the first segment's length on, so shorter
/// segments need a few more of them; one allocation for every thousand segments would be a miss.
fn per_segment() {
    let message = Message::from(corpus::agent(16_500_000));
    let warm = |cap| meter::cold_and_warm(|| dialects::ahp(cap), &message).1;
    let (few, many): (Cost, Cost) = (warm(22_300), warm(512));
    let row = |end: &str, few_made: u64, many_made: u64| {
        let added = (many_made as f64 - few_made as f64) / (many.frames as f64 - few.frames as f64);
        let name = format!("ahp, warm, {} to {} segments: {end}'s allocations per added", few.frames, many.frames);
        table::row(&name, added, ..=0.001);
    };
    row("sender", few.sender.allocations, many.sender.allocations);
    row("receiver", few.receiver.allocations, many.receiver.allocations);
}
