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
    let [large, small, smallest] =
        [900_000, 65_536, 512].map(|cap| rows(&format!("ahp, cap {cap}"), cap, || dialects::ahp(cap), &message));
    growth("cap 900000 to 65536", &large, &small);
    growth("cap 900000 to 512", &large, &smallest);
    rows("cep22, cap 65536", 65_536, || dialects::cep22(65_536), &message);
    rows("stdio", 61_440, dialects::stdio, &message);
}

/// Prints the peaks of a pair's first message; returns what a later one costs.
fn rows<M: Machine>(name: &str, cap: u64, pair: impl FnMut() -> Pair<M>, message: &Message) -> Cost {
    let (cold, warm) = meter::cold_and_warm(pair, message);
    let (frames, len) = (warm.frames as f64, message.len() as f64);
    let sender_peak = cold.sender.peak as f64 / (cap as f64 + SMALL);
    table::row(&format!("{name}: frames"), frames, ..);
    table::row(&format!("{name}: sender's allocations, warm"), warm.sender.allocations as f64, ..);
    table::row(&format!("{name}: receiver's allocations, warm"), warm.receiver.allocations as f64, ..);
    table::row(&format!("{name}: sender's peak over a frame and 8 KB"), sender_peak, ..=1.0);
    table::row(&format!("{name}: receiver's peak over the message"), cold.receiver.peak as f64 / len, ..=1.25);
    table::row(&format!("{name}: receiver's peak over what had arrived"), cold.receiver_excess, ..=2.0);
    warm
}

/// Prints how many more allocations each further segment of the same message costs.
fn growth(caps: &str, few: &Cost, many: &Cost) {
    let segments = many.frames as f64 - few.frames as f64;
    let added = |few: u64, many: u64| (many as f64 - few as f64) / segments;
    let sender = added(few.sender.allocations, many.sender.allocations);
    let receiver = added(few.receiver.allocations, many.receiver.allocations);
    table::row(&format!("ahp, {caps}: sender's allocations per added segment"), sender, ..=0.001);
    table::row(&format!("ahp, {caps}: receiver's allocations per added segment"), receiver, ..=0.001);
}
