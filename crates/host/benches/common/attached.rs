//! What each v2 client costs a host that is attached to a session in which nothing happens.

use std::time::Duration;

use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::child::{Other, raise_file_limit};
use crate::table;
use crate::v2_client::Client;

const CLIENTS: usize = 2_000;
/// Sessions in the second measure: each is watched by one client.
const SESSIONS: usize = 500;
/// How long they are idle before anything is measured: long enough to be asked whether they are there.
const IDLE: Duration = Duration::from_secs(12);

pub(crate) fn run(runtime: &Runtime) {
    raise_file_limit();
    table::row(&format!("{CLIENTS} idle clients of one session: KiB each"), measure(runtime, 1, CLIENTS), ..=40.0);
    table::row(&format!("{SESSIONS} idle clients, a session each: KiB each"), measure(runtime, SESSIONS, SESSIONS), ..);
}

/// What each client costs, where so many clients watch so many sessions. Each session has had a turn before.
fn measure(runtime: &Runtime, sessions: usize, count: usize) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Other::start(dir.path());
    let address = host.address;
    let names = runtime.block_on(async {
        let mut client = Client::dial(address).await;
        let mut names = Vec::new();
        for number in 0..sessions {
            let session = client.open(dir.path()).await;
            if number == 0 {
                // Only one: the agent's program goes on in a session that has had a turn.
                client
                    .say(json!({"type": "send", "sessionId": session, "prompt": "20 deltas, 1000 a second",
                    "clientMsgId": "1"}))
                    .await;
                client.until(|event| event["type"] == "turn_end").await;
            }
            client.say(json!({"type": "unwatch", "sessionId": session})).await;
            names.push(session);
        }
        // What the first ones bring with them is not theirs.
        for session in names.iter().take(50) {
            client.watch(session).await;
        }
        names
    });
    let mut all = JoinSet::new();
    let warm = runtime.block_on(attach(&mut all, address, &names, 50.min(count)));
    let before = host.memory();
    runtime.block_on(async {
        attach(&mut all, address, &names, count).await;
        tokio::time::sleep(IDLE).await;
    });
    let after = host.memory();
    assert!(all.try_join_next().is_none(), "all {warm} and {count} are there");
    (after.resident - before.resident) / count as f64 / 1024.0
}

/// Clients that watch these sessions in turn, and listen from then on; how many.
async fn attach(all: &mut JoinSet<()>, address: std::net::SocketAddr, names: &[String], count: usize) -> usize {
    for session in names.iter().cycle().take(count) {
        let mut client = Client::dial(address).await;
        client.watch(session).await;
        all.spawn(async move { assert!(client.next().await.is_none(), "nothing happens, and yet something came") });
    }
    count
}
