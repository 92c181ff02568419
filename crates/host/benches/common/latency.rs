//! How long it takes from the moment at which an agent writes a line until each client has the event.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::child::Other;
use crate::race::percentile;
use crate::scripted_agent::now;
use crate::table;
use crate::v2_client::Client;

const CLIENTS: usize = 20;
/// Deltas of a turn, and how many of them in a second.
const DELTAS: usize = 1_000;
const RATE: usize = 200;
const TURNS: usize = 5;
/// Syncs that are timed before each turn.
const SYNCS: usize = 100;
/// What is written before each of them: about as long as a logged delta.
const ENTRY: [u8; 300] = [b'x'; 300];

/// In each round the disk is timed, and then a turn streams to all clients.
pub(crate) fn run(runtime: &Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let host = Other::start(dir.path());
    let mut file = OpenOptions::new().create(true).append(true).open(dir.path().join("plain")).unwrap();
    let (mut syncs, mut delays) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let mut clients = clients(&host, dir.path()).await;
        for turn in 0..TURNS {
            syncs.extend((0..SYNCS).map(|_| sync(&mut file)));
            let (session, first) = (&clients.session, &mut clients.all[0]);
            let prompt = format!("{DELTAS} deltas, {RATE} a second");
            first
                .say(json!({"type": "send", "sessionId": session, "prompt": prompt,
                "clientMsgId": turn.to_string()}))
                .await;
            let streamed = futures_of(clients.all.drain(..).map(stream));
            for task in streamed {
                let (client, new) = task.await.unwrap();
                assert_eq!(new.len(), DELTAS, "each client has each delta once");
                // The first turn starts the agent and warms what is cold.
                if turn > 0 {
                    delays.extend(new);
                }
                clients.all.push(client);
            }
        }
    });
    let sync = percentile(syncs, 0.5) * 1e3;
    let of = |part| percentile(delays.clone(), part) * 1e3;
    table::row("ms for one fdatasync of a plain file, median", sync, ..);
    table::row("ms from an agent's line to 20 clients at 200 a second, median", of(0.5), ..=sync + 2.0);
    table::row("ms from an agent's line to 20 clients at 200 a second, p99", of(0.99), ..=3.0 * sync + 5.0);
    table::row("ms from an agent's line to 20 clients at 200 a second, the longest", of(1.0), ..);
}

/// Clients that watch one session.
struct Clients {
    session: String,
    all: Vec<Client>,
}

async fn clients(host: &Other, dir: &Path) -> Clients {
    let mut first = Client::dial(host.address).await;
    let session = first.open(dir).await;
    let mut all = vec![first];
    while all.len() < CLIENTS {
        let mut client = Client::dial(host.address).await;
        client.watch(&session).await;
        all.push(client);
    }
    Clients { session, all }
}

/// Begins all of these at once.
fn futures_of<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<tokio::task::JoinHandle<T>> {
    futures.map(tokio::spawn).collect()
}

/// Takes what comes until the turn is over: how long each delta took, in seconds.
async fn stream(mut client: Client) -> (Client, Vec<f64>) {
    let mut delays = Vec::with_capacity(DELTAS);
    loop {
        let text = client.next().await.expect("the host is there");
        let at = now();
        let event: Value = serde_json::from_slice(&text).unwrap();
        match event["type"].as_str().unwrap() {
            "block_delta" => {
                // The log may have merged several.
                let stamps = event["delta"].as_str().unwrap().split_whitespace().map(|stamp| stamp.parse().unwrap());
                delays.extend(stamps.map(|stamp: u64| at.saturating_sub(stamp) as f64 / 1e9));
            }
            "turn_end" => {
                assert_eq!(event["outcome"], "complete", "{event}");
                return (client, delays);
            }
            "error" => panic!("{event}"),
            _ => {}
        }
    }
}

fn sync(file: &mut File) -> f64 {
    let begin = Instant::now();
    file.write_all(&ENTRY).unwrap();
    file.sync_data().unwrap();
    begin.elapsed().as_secs_f64()
}
