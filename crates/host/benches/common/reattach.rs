//! A client that comes back to a session with a long history, and what that costs beside one with a short history.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Log, Seq};
use breakbulk_host::test_support::state::{State, StateConfig, entry};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::child::Other;
use crate::host::Host;
use crate::race::{median, rounds};
use crate::table;
use crate::v2_client::Client;

/// Bytes that the agent says in a turn.
const TURN: usize = 10_000;
/// Turns of the two sessions: 1 MB and 100 MB.
const SHORT: usize = 100;
const LONG: usize = 10_000;
/// Entries in one batch.
const BATCH: usize = 1_000;
/// Hosts on the same log, one after the other: which pages a process gets is chance.
const HOSTS: usize = 5;

pub(crate) fn run(runtime: &Runtime) {
    let [short, long] = [SHORT, LONG].map(|turns| measure(runtime, turns));
    table::row("100 MB of history: ms to reattach, the first after a start", long.first * 1e3, ..=20.0);
    table::row("100 MB of history: ms to reattach", long.usual * 1e3, ..=20.0);
    table::row("1 MB of history: ms to reattach", short.usual * 1e3, ..);
    let mib = f64::from(1 << 20);
    table::row("1 MB of history: MiB that the host has grown by at most", short.grown / mib, ..);
    table::row("100 MB of history: MiB that the host has grown by at most", long.grown / mib, ..);
    table::row("memory of the host at most, 100 MB over 1 MB", long.peak / short.peak, ..=1.1);
    table::row("100 MB of history, all of it to a client that has nothing: ms", long.whole * 1e3, ..);
    table::row("the same: MiB that the host has grown by at most", long.whole_grown / mib, ..);
}

#[derive(Clone, Copy)]
struct Measured {
    first: f64,
    usual: f64,
    /// The most memory, and by how much it was more than before the first client.
    peak: f64,
    grown: f64,
    /// How long a snapshot of everything took, and by how much the host has grown then.
    whole: f64,
    whole_grown: f64,
}

fn measure(runtime: &Runtime, turns: usize) -> Measured {
    let dir = tempfile::tempdir().unwrap();
    let (session, last) = runtime.block_on(prepare(dir.path(), turns));
    let hosts = [(); HOSTS].map(|()| {
        let mut host = Other::start(dir.path());
        let before = host.memory();
        let times: Vec<f64> = (0..=rounds()).map(|_| runtime.block_on(reattach(&host, &session, last))).collect();
        let peak = host.memory().peak;
        let whole = runtime.block_on(snapshot(&host, &session));
        let whole_grown = host.memory().peak - before.resident;
        let (first, usual) = (times[0], median(&times[1..], |time| *time));
        Measured { first, usual, peak, grown: peak - before.resident, whole, whole_grown }
    });
    let of = |figure: fn(&Measured) -> f64| median(&hosts, figure);
    Measured {
        first: of(|host| host.first),
        usual: of(|host| host.usual),
        peak: of(|host| host.peak),
        grown: of(|host| host.grown),
        whole: of(|host| host.whole),
        whole_grown: of(|host| host.whole_grown),
    }
}

/// How long it takes from the command until all that was missed is there: the last turn.
async fn reattach(host: &Other, session: &str, last: Seq) -> f64 {
    let mut client = Client::dial(host.address).await;
    let begin = Instant::now();
    client.say(json!({"type": "watch", "sessionId": session, "lastSeq": last})).await;
    let attached = client.until(|event| event["type"] == "reattached").await;
    assert!(attached["snapshot"].is_null(), "{attached}");
    client.until(|event| event["type"] == "turn_end").await;
    begin.elapsed().as_secs_f64()
}

/// How long it takes until a client that had nothing has all.
async fn snapshot(host: &Other, session: &str) -> f64 {
    let mut client = Client::dial(host.address).await;
    let begin = Instant::now();
    client.watch(session).await;
    begin.elapsed().as_secs_f64()
}

/// A log with a session of so many turns; the session, and what a client has that misses the last turn.
async fn prepare(dir: &Path, turns: usize) -> (String, Seq) {
    let host = Host::open(dir).await;
    let session = Client::dial(host.address).await.open(dir).await;
    let channels = host.log.channels(Some(&session)).await.unwrap();
    let chat = channels.iter().find(|info| info.channel.starts_with("ahp-chat:")).unwrap().channel.to_string();
    host.close().await;
    let log = Arc::new(SqliteLog::open(&dir.join("log"), Options::default()).await.unwrap());
    let state = State::open(log.clone(), StateConfig::default()).await.unwrap();
    let (mut batch, mut entries, mut last) = (Batch::new(), 0, 0);
    for turn in 0..turns {
        let actions = actions(turn);
        entries += actions.len();
        batch = actions.iter().fold(batch, |batch, action| {
            let action = serde_json::from_value(action.clone()).unwrap();
            batch.entry(&*chat, entry::action(&chat, &action, None).unwrap())
        });
        if entries >= BATCH || turn + 2 >= turns {
            let seqs = log.append(std::mem::take(&mut batch)).await.unwrap();
            state.reached(*seqs.last().unwrap()).await.unwrap();
            entries = 0;
            if turn + 2 == turns {
                last = *seqs.last().unwrap();
            }
        }
    }
    state.close().await.unwrap();
    log.close().await;
    (session, last)
}

/// A turn: a person asks, and an answer streams in.
fn actions(turn: usize) -> Vec<Value> {
    let (id, part) = (format!("turn {turn}"), format!("message {turn}/0"));
    let message = json!({"text": "go on", "origin": {"kind": "user"}});
    let begin = [
        json!({"type": "chat/turnStarted", "turnId": id, "startedAt": "2026-01-01T00:00:00.000Z", "message": message}),
        json!({"type": "chat/responsePart", "turnId": id, "part": {"kind": "markdown", "id": part, "content": ""}}),
    ];
    let delta = json!({"type": "chat/delta", "turnId": id, "partId": part, "content": "x".repeat(TURN / 10)});
    let end = json!({"type": "chat/turnComplete", "turnId": id, "duration": 5});
    begin.into_iter().chain(std::iter::repeat_n(delta, 10)).chain([end]).collect()
}
