//! How fast agents' lines are translated, and v2 events are made, followed, written and read, on one core: medians of rounds.
//!
//! `cargo bench -p breakbulk-host --all-features --bench agents -- rates` prints the same with targets.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "common/rates.rs"]
mod rates;

fn main() {
    for (name, rate) in rates::translators().into_iter().chain(rates::v2()) {
        println!("{name:<28}{:>8.2} million events a second", rate / 1e6);
    }
}
