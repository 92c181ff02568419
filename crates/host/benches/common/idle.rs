//! Many connections on which nothing happens.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::child::{Other, raise_file_limit};
use crate::client::Client;
use crate::table;

const CONNECTIONS: usize = 10_000;
/// Open files beside connections.
const OTHER_FILES: usize = 200;
/// Those that come in at the same time.
const AT_ONCE: usize = 50;
/// How long they are idle before anything is measured: long enough to be asked whether they are there.
const IDLE: Duration = Duration::from_secs(12);

/// What each costs the host.
pub(crate) fn run(runtime: &Runtime) {
    let files = usize::try_from(raise_file_limit()).unwrap_or(usize::MAX);
    let count = CONNECTIONS.min(files.saturating_sub(OTHER_FILES));
    let dir = tempfile::tempdir().unwrap();
    let mut host = Other::start(dir.path());
    let address = host.address;
    // What the first ones bring with them is not theirs.
    let mut all = runtime.block_on(async {
        let mut all = JoinSet::new();
        connect(&mut all, address, 0..AT_ONCE).await;
        all
    });
    let before = host.memory();
    runtime.block_on(async {
        connect(&mut all, address, AT_ONCE..AT_ONCE + count).await;
        tokio::time::sleep(IDLE).await;
    });
    let after = host.memory();
    assert!(all.try_join_next().is_none(), "all are there");
    let each = (after.resident - before.resident) / count as f64 / 1024.0;
    let peak = (after.peak - before.resident) / count as f64 / 1024.0;
    table::row(&format!("{count} idle connections: KiB each"), each, ..=24.0);
    table::row(&format!("{count} idle connections: KiB each, at the peak"), peak, ..);
}

async fn connect(all: &mut JoinSet<()>, address: std::net::SocketAddr, ids: std::ops::Range<usize>) {
    let mut coming = JoinSet::new();
    for id in ids {
        if coming.len() >= AT_ONCE {
            hold(all, coming.join_next().await.unwrap().unwrap());
        }
        coming.spawn(async move {
            let mut client = Client::dial(address).await;
            client.initialize(&format!("client {id}"), &["ahp-root://"]).await;
            client
        });
    }
    while let Some(client) = coming.join_next().await {
        hold(all, client.unwrap());
    }
}

/// It listens, and so answers when it is asked whether it is there.
fn hold(all: &mut JoinSet<()>, mut client: Client) {
    all.spawn(async move { assert!(client.next().await.is_none(), "nothing happens, and yet something came") });
}
