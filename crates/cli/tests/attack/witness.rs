//! The client that behaves well: it pings and makes small durable edits, one after the other, and keeps the times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use breakbulk::Dialect;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::host::Host;

/// Pings between two edits.
const PINGS: usize = 5;
/// Between two of anything.
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Witness {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Seen>,
}

/// How long things took.
#[derive(Default)]
pub(crate) struct Seen {
    pings: Vec<Duration>,
    edits: Vec<Duration>,
}

impl Witness {
    /// Connects, and begins.
    pub(crate) async fn start(host: &Host) -> Self {
        let mut client = Client::new(host, Dialect::Ahp, "witness").await;
        let chat = client.session("ahp-session:/witness").await;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let task = tokio::spawn(async move {
            let mut seen = Seen::default();
            while !over.load(Ordering::Relaxed) {
                for _ in 0..PINGS {
                    let begun = Instant::now();
                    client.call("ping", json!({})).await.unwrap();
                    seen.pings.push(begun.elapsed());
                    tokio::time::sleep(PAUSE).await;
                }
                let draft = json!({"text": format!("edit {}", seen.edits.len()), "origin": {"kind": "user"}});
                let action = json!({"type": "chat/draftChanged", "draft": draft});
                let params = json!({"channel": chat, "clientSeq": seen.edits.len() + 1, "action": action});
                let begun = Instant::now();
                client.call("dispatchAction", params).await.unwrap();
                seen.edits.push(begun.elapsed());
                tokio::time::sleep(PAUSE).await;
            }
            seen
        });
        Self { is_over, task }
    }

    /// What it has seen. It panics here if it was not served.
    pub(crate) async fn stop(self) -> Seen {
        self.is_over.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

impl Seen {
    pub(crate) fn pings(&self) -> usize {
        self.pings.len()
    }

    pub(crate) fn edits(&self) -> usize {
        self.edits.len()
    }

    /// The time that 99 of 100 pings took no longer than.
    pub(crate) fn ping_p99(&self) -> Duration {
        let mut pings = self.pings.clone();
        pings.sort_unstable();
        pings.get(pings.len() * 99 / 100).copied().unwrap_or_default()
    }

    pub(crate) fn worst_edit(&self) -> Duration {
        self.edits.iter().max().copied().unwrap_or_default()
    }
}
