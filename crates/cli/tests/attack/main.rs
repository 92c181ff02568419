//! Attacks on the real program with a small memory, each beside one client that behaves well: what the program takes, and
//! what that client notices.
//!
//! `cargo xtask attack` runs all of them and has bounds for time too. As tests, a few of them run in short, and only memory
//! counts: the machine may be busy.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod attacks;
mod client;
mod host;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use attacks::Attack;
use host::Host;
use witness::{Seen, Witness};

/// What the program may hold.
const MEMORY: &str = "64MiB";
/// What that may come to in fact: half as much again, and 64 MB for the program itself.
const RSS_MB: u64 = (64 << 20) * 3 / 2 / 1_000_000 + 64;
/// What the well-behaved client may notice, if the machine has nothing else to do.
const PING_P99: Duration = Duration::from_millis(50);
const WORST_EDIT: Duration = Duration::from_millis(500);

/// Runs one attack on a host of its own.
async fn run(attack: Attack) -> (u64, Seen) {
    let host = Arc::new(Host::start(MEMORY));
    let witness = Witness::start(&host).await;
    attack.run(&host).await;
    let seen = witness.stop().await;
    (host.peak_mb(), seen)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, and has bounds for time: cargo xtask attack"]
async fn every_attack_within_its_bounds() {
    println!("| attack | RSS peak | limit | ping p99 | worst durable edit | |\n|---|---|---|---|---|---|");
    let mut over = 0;
    for attack in Attack::ALL {
        let (peak, seen) = run(attack).await;
        let is_ok = peak <= RSS_MB && seen.ping_p99() <= PING_P99 && seen.worst_edit() <= WORST_EDIT;
        over += usize::from(!is_ok);
        println!(
            "| {} | {peak} MB | {RSS_MB} MB | {:.1} ms of {} | {:.0} ms of {} | {} |",
            attack.name(),
            seen.ping_p99().as_secs_f64() * 1e3,
            seen.pings(),
            seen.worst_edit().as_secs_f64() * 1e3,
            seen.edits(),
            if is_ok { "ok" } else { "over" }
        );
    }
    assert_eq!(over, 0, "attacks over their bounds");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_stay_within_the_memory() {
    let (peak, seen) = run(Attack::Reads { clients: 20 }).await;
    assert!(peak <= RSS_MB, "{peak} MB");
    assert!(seen.pings() > 0 && seen.edits() > 0, "the other client was served");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_that_nobody_reads_stay_within_the_memory() {
    let (peak, seen) = run(Attack::Subscribes { clients: 40 }).await;
    assert!(peak <= RSS_MB, "{peak} MB");
    assert!(seen.pings() > 0 && seen.edits() > 0, "the other client was served");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_edits_stay_within_the_memory() {
    let (peak, seen) = run(Attack::Edits { clients: 6 }).await;
    assert!(peak <= RSS_MB, "{peak} MB");
    assert!(seen.pings() > 0 && seen.edits() > 0, "the other client was served");
}
