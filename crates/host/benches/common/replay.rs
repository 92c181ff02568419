//! A client that comes back after 10,000 small actions.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use breakbulk::{Dialect, Driver, Setup};
use breakbulk_host::log::sqlite::SqliteLog;
use breakbulk_host::log::{Bytes, Log, Seq};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Event, Input, Limits, Message, Ticket};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::chat::{CHAT, prepare};
use crate::child::Other;
use crate::client::{CAP, Client};
use crate::host::{Host, listener};
use crate::race::{median, rounds};
use crate::table;

/// What is missed.
const MISSED: u64 = 10_000;
/// Three more make a turn of a hundred actions.
const DELTAS: usize = 97;
/// What an agent says at once, about.
const DELTA: usize = 100;
/// Turns of a short log, and of a long one.
const SHORT: usize = 110;
const LONG: usize = 10_000;
/// How often a client comes back, so that what stays is seen. The allocator keeps what a thread has freed for that thread,
/// and chance says which threads a replay meets: after a few the peak is one of many, after so many all have had their turn.
const REPLAYS: usize = 100;
/// How many hosts are asked on each log: pages still come to a process a little by chance.
const HOSTS: usize = 11;

/// A replay, over reading the same rows at once and writing them in one plain frame. Both readers check what they get;
/// how long it takes to write the rows to one that does not is shown too.
pub(crate) fn speed(runtime: &Runtime) {
    let dir = tempfile::tempdir().unwrap();
    runtime.block_on(prepare(dir.path(), SHORT, DELTAS, DELTA));
    let host = runtime.block_on(Host::open(dir.path()));
    let after = runtime.block_on(host.log.bounds()).unwrap().last - MISSED;
    let rows = runtime.block_on(rows_by(host.log.clone(), after));
    let mut times = Vec::new();
    for _ in 0..=rounds() {
        let ours = runtime.block_on(reconnect(host.address, after));
        let bare = runtime.block_on(fetch(rows, true));
        times.push([ours, bare, runtime.block_on(fetch(rows, false))]);
    }
    // The first round only warms up.
    let times = &times[1..];
    let named = |what: &str| format!("10,000 actions replayed at {CAP}: {what}");
    table::row(&named("ms"), median(times, |[ours, ..]| ours * 1e3), ..);
    let ratio = median(times, |[ours, _, checked]| ours / checked);
    table::row(&named("over reading the rows and writing them"), ratio, ..=2.0);
    let ratio = median(times, |[ours, bare, _]| ours / bare);
    table::row(&named("over reading the rows and writing them, unchecked"), ratio, ..);
    runtime.block_on(host.close());
}

/// How long it takes from the request until all of the answer is there.
async fn reconnect(address: SocketAddr, after: Seq) -> f64 {
    let mut client = Client::dial(address).await;
    let params =
        json!({"channel": "ahp-root://", "clientId": "me", "lastSeenServerSeq": after, "subscriptions": [CHAT]});
    let begin = Instant::now();
    let answer = client.call("reconnect", &params).await;
    let took = begin.elapsed().as_secs_f64();
    let text = answer.to_bytes();
    let word = br#""serverSeq":"#;
    let count = text.windows(word.len()).filter(|window| *window == word).count();
    assert_eq!(count as u64, MISSED, "{} bytes", text.len());
    took
}

async fn fetch(address: SocketAddr, front_only: bool) -> f64 {
    let mut client = Client::plain(address, front_only).await;
    let begin = Instant::now();
    client.call("rows", &json!({})).await;
    begin.elapsed().as_secs_f64()
}

/// Answers everybody with the rows, in one plain message: the least that there is to do.
async fn rows_by(log: Arc<SqliteLog>, after: Seq) -> SocketAddr {
    let mut listener = listener().await;
    let address = listener.local_address();
    tokio::spawn(async move {
        loop {
            let setup = Setup::new(Dialect::Plain, Role::Server, Limits::default());
            let machine = setup.machine(Budget::default().account(None)).unwrap();
            let mut driver = Driver::new(listener.accept().await.link, machine);
            let log = log.clone();
            tokio::spawn(async move {
                while let Some(event) = driver.next().await {
                    if matches!(event, Event::Message { .. }) {
                        let rows = log.read(CHAT, after + 1..Seq::MAX >> 1, usize::MAX).await.unwrap();
                        let front = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":["#);
                        let rows = rows.into_iter().flat_map(|row| [row.body, Bytes::from_static(b",")]);
                        let end = Bytes::from_static(b"0]}");
                        let message: Message = [front].into_iter().chain(rows).chain([end]).collect();
                        driver.handle(Input::send(Ticket(1), message));
                    }
                }
            });
        }
    });
    address
}

/// What the same replays take of a short log and of a long one, in turn. Each host is a process of its own, just started.
pub(crate) fn memory(runtime: &Runtime) {
    let logs = [SHORT, LONG].map(|turns| {
        let dir = tempfile::tempdir().unwrap();
        runtime.block_on(prepare(dir.path(), turns, DELTAS, DELTA));
        let after = runtime.block_on(seen(dir.path()));
        (dir, after)
    });
    let grown = |(dir, after): &(TempDir, Seq)| {
        let mut host = Other::start(dir.path());
        let before = host.memory();
        for _ in 0..REPLAYS {
            runtime.block_on(reconnect(host.address, *after));
        }
        host.memory().peak - before.resident
    };
    let hosts: Vec<_> = (0..HOSTS).map(|_| logs.each_ref().map(grown)).collect();
    let [short, long] = [0, 1].map(|log| median(&hosts, |grown| grown[log]));
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    table::row("10,000 actions replayed from a log of 11,000: MiB", mib(short), ..);
    table::row("10,000 actions replayed from a log of 1,000,000: MiB", mib(long), ..);
    table::row("10,000 actions replayed: memory, long log over short", long / short, ..=1.1);
}

/// What a client has seen that has missed just so much.
async fn seen(dir: &Path) -> Seq {
    let log = SqliteLog::open_for_reading(dir).await.unwrap();
    log.bounds().await.unwrap().last - MISSED
}
