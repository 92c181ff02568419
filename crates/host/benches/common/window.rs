//! A window on a long chat.

use std::time::Instant;

use serde_json::json;
use tokio::runtime::Runtime;

use crate::chat::{CHAT, prepare};
use crate::child::Other;
use crate::client::Client;
use crate::race::{median, rounds};
use crate::table;

/// One part each.
const TURN: usize = 10_000;
/// How many of them are asked for.
const WINDOW: usize = 50;

/// How long it takes to subscribe to a window of a chat of 100 MB, and what that costs beside one of 10 MB.
pub(crate) fn run(runtime: &Runtime) {
    let [short, long] = [1_000, 10_000].map(|turns| measure(runtime, turns));
    table::row("50 of 10,000 turns: ms to subscribe, the first after a start", long.first * 1e3, ..=20.0);
    table::row("50 of 10,000 turns: ms to subscribe", long.usual * 1e3, ..=20.0);
    table::row("50 of 1,000 turns: ms to subscribe", short.usual * 1e3, ..);
    table::row("50 of 1,000 turns: MiB at most", short.peak / f64::from(1 << 20), ..);
    table::row("50 of 10,000 turns: MiB at most", long.peak / f64::from(1 << 20), ..);
    table::row("the same memory, 10,000 turns over 1,000", long.peak / short.peak, ..=1.1);
}

/// Hosts on the same log, one after the other: which pages a process gets is chance.
const HOSTS: usize = 5;

#[derive(Clone, Copy)]
struct Measured {
    first: f64,
    usual: f64,
    peak: f64,
}

fn measure(runtime: &Runtime, turns: usize) -> Measured {
    let dir = tempfile::tempdir().unwrap();
    runtime.block_on(prepare(dir.path(), turns, 1, TURN));
    let hosts = [(); HOSTS].map(|()| {
        let mut host = Other::start(dir.path());
        let times: Vec<f64> = (0..=rounds()).map(|_| runtime.block_on(subscribe(&host))).collect();
        Measured { first: times[0], usual: median(&times[1..], |time| *time), peak: host.memory().peak }
    });
    let of = |figure: fn(&Measured) -> f64| median(&hosts, figure);
    Measured { first: of(|host| host.first), usual: of(|host| host.usual), peak: of(|host| host.peak) }
}

/// How long it takes from the request until all of the answer is there.
async fn subscribe(host: &Other) -> f64 {
    let mut client = Client::dial(host.address).await;
    client.initialize("me", &[]).await;
    let begin = Instant::now();
    let answer = client.call("subscribe", &json!({"channel": CHAT, "view": {"turns": WINDOW}})).await;
    let took = begin.elapsed().as_secs_f64();
    assert!((WINDOW * TURN..2 * WINDOW * TURN).contains(&answer.len()), "{} bytes", answer.len());
    took
}
