//! How fast over loopback WebSockets, as ratios: segmented against plain, bridged against direct, and how long a small
//! message waits while a large one moves.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "../../proto/benches/common/corpus.rs"]
mod corpus;
#[path = "../../proto/benches/common/dice.rs"]
mod dice;
#[path = "../../proto/benches/common/table.rs"]
mod table;
#[path = "common/throttle.rs"]
mod throttle;
#[path = "common/wire.rs"]
mod wire;

use std::time::{Duration, Instant};

use breakbulk::Dialect;
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Lane, Message};
use tokio::runtime::Runtime;
use wire::{Wire, straight};

/// What is moved while small messages pass it.
const BULK: usize = 32_000_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    table::head("Over loopback WebSockets");
    against_plain(&runtime, "10 MB", corpus::LEN, 900_000, (1.2, Some(1.4)));
    against_plain(&runtime, "10 MB", corpus::LEN, 65_536, (1.6, None));
    against_plain(&runtime, "32 MB", BULK, 900_000, (1.15, None));
    bridge(&runtime);
    table::head("A small message while 32 MB move");
    latency(&runtime, "loopback", None);
    latency(&runtime, "10 MB/s", Some(10e6));
}

/// One message in segments, over the same in one frame.
fn against_plain(runtime: &Runtime, name: &str, len: usize, cap: u64, (wall, cpu): (f64, Option<f64>)) {
    let message = Message::from(corpus::agent(len));
    let segmented = runtime.block_on(Wire::new(Dialect::Ahp, Role::Client, cap, straight));
    let plain = runtime.block_on(Wire::new(Dialect::Plain, Role::Client, 64 << 20, straight));
    let times = race(runtime, &message, [segmented, plain]);
    table::row(
        &format!("{name} at {cap}: wall time over one plain frame"),
        median(&times, |[a, b]| a.0 / b.0),
        ..=wall,
    );
    let ratio = median(&times, |[a, b]| a.1 / b.1);
    let measure = format!("{name} at {cap}: CPU over one plain frame");
    match cpu {
        Some(most) => table::row(&measure, ratio, ..=most),
        None => table::row(&measure, ratio, ..),
    }
}

/// Through two gateways, over a direct link in segments.
fn bridge(runtime: &Runtime) {
    let message = Message::from(corpus::agent(corpus::LEN));
    let bridged = runtime.block_on(Wire::bridged(900_000));
    let direct = runtime.block_on(Wire::new(Dialect::Ahp, Role::Client, 900_000, straight));
    let times = race(runtime, &message, [bridged, direct]);
    let ratio = median(&times, |[a, b]| a.0 / b.0);
    table::row("10 MB through a bridge pair: wall time over direct", ratio, ..=2.0);
}

/// Wall and CPU seconds that each wire takes for a message, round by round.
fn race<const N: usize>(runtime: &Runtime, message: &Message, mut wires: [Wire; N]) -> Vec<[(f64, f64); N]> {
    (0..rounds())
        .map(|_| {
            wires.each_mut().map(|wire| {
                runtime.block_on(wire.carry(message));
                let (begin, cpu) = (Instant::now(), cpu_time());
                runtime.block_on(wire.carry(message));
                (begin.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64())
            })
        })
        .collect()
}

/// How long a small message takes while a large one moves: free of it, and behind it.
fn latency(runtime: &Runtime, name: &str, rate: Option<f64>) {
    let mut waits = [Vec::new(), Vec::new(), Vec::new()];
    let mut moved = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..if rate.is_some() { 1 } else { rounds().min(7) } {
        for (way, (waits, moved)) in
            [Way::Behind, Way::Free, Way::OtherChannel].into_iter().zip(waits.iter_mut().zip(&mut moved))
        {
            let (all, took) = runtime.block_on(passing(way, rate));
            waits.extend(all);
            moved.push(took);
        }
    }
    let [behind, free, other] = waits.map(|waits| percentile(waits, 0.95));
    let [contiguous, with_free, _] = moved.map(|moved| percentile(moved, 0.5));
    table::row(&format!("{name}: ms behind it, p95"), behind * 1e3, ..);
    table::row(&format!("{name}: ms for a free message, p95"), free * 1e3, ..);
    table::row(&format!("{name}: times better, free"), behind / free, 40.0..);
    table::row(&format!("{name}: times better, action on another channel"), behind / other, 40.0..);
    table::row(&format!("{name}: time of the 32 MB over the contiguous one"), with_free / contiguous, ..=1.1);
}

/// How a small message relates to the large one.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// It must arrive after it.
    Behind,
    /// It may pass.
    Free,
    /// It is an action on another channel, to a peer with a settled cursor.
    OtherChannel,
}

/// Moves the large message, and a small one every few milliseconds; how long each small one took, and the large one.
async fn passing(way: Way, rate: Option<f64>) -> (Vec<f64>, f64) {
    let role = if way == Way::OtherChannel { Role::Server } else { Role::Client };
    let by = async |address| match rate {
        Some(rate) => throttle::throttle(address, rate).await,
        None => address,
    };
    let mut wire = Wire::new(Dialect::Ahp, role, 900_000, by).await;
    wire.carry(&Message::from(corpus::agent(1 << 20))).await;
    let begin = Instant::now();
    let lane = if way == Way::Free { Lane::Free } else { Lane::Auto };
    wire.from.send(action("bulk", 0, BULK), Lane::Auto);
    let pause = Duration::from_micros(if rate.is_some() { 20_000 } else { 500 });
    let (mut sent, mut waits, mut took) = (Vec::new(), Vec::new(), None);
    let mut ticks = tokio::time::interval(pause);
    while took.is_none() || waits.len() < sent.len() {
        tokio::select! {
            _ = ticks.tick(), if took.is_none() => {
                wire.from.send(action("small", sent.len(), 100), lane);
                sent.push(Instant::now());
            }
            message = wire.to.next() => match message.len() {
                0..1_000 => waits.push(sent[waits.len()].elapsed().as_secs_f64()),
                _ => took = Some(begin.elapsed().as_secs_f64()),
            },
        }
    }
    (waits, took.unwrap_or_default())
}

fn action(channel: &str, seq: usize, len: usize) -> Message {
    let text = "pack ".repeat(len / 5);
    format!(
        r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"{channel}","serverSeq":{seq},"text":"{text}"}}}}"#
    )
    .into()
}

fn median<const N: usize>(times: &[[(f64, f64); N]], figure: impl Fn(&[(f64, f64); N]) -> f64) -> f64 {
    percentile(times.iter().map(figure).collect(), 0.5)
}

fn percentile(mut figures: Vec<f64>, part: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[((figures.len() - 1) as f64 * part) as usize]
}

/// CPU time of the whole process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn rounds() -> usize {
    std::env::var("BREAKBULK_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(21)
}
