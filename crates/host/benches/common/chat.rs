//! Chats that are long, in the log of a host that is not there yet.

use std::path::Path;

use breakbulk_host::log::{Batch, Log};
use breakbulk_host::test_support::state::{SnapshotState, entry};
use serde_json::{Value, json};

use crate::host::Host;

pub(crate) const CHAT: &str = "ahp-chat:/1";
/// Entries in one batch.
const BATCH: usize = 5_000;

/// A log with one chat whose turns are made of so many parts, each of so many bytes.
pub(crate) async fn prepare(dir: &Path, turns: usize, parts: usize, part_bytes: usize) {
    let host = Host::open(dir).await;
    let chat = json!({"resource": CHAT, "title": "A chat", "status": 1, "modifiedAt": "2026-01-01T00:00:00.000Z",
        "turns": []});
    let chat = SnapshotState::Chat(serde_json::from_value(chat).unwrap());
    let batch = Batch::new().open(CHAT, None).entry(CHAT, entry::initial(CHAT, &chat).unwrap());
    host.log.append(batch).await.unwrap();
    let text = "x".repeat(part_bytes);
    let (mut batch, mut entries) = (Batch::new(), 0);
    for turn in 0..turns {
        let actions = actions(turn, parts, &text);
        entries += actions.len();
        batch = actions.into_iter().fold(batch, |batch, action| {
            let action = serde_json::from_value(action).unwrap();
            batch.entry(CHAT, entry::action(CHAT, &action, None).unwrap())
        });
        if entries >= BATCH || turn + 1 == turns {
            let seqs = host.log.append(std::mem::take(&mut batch)).await.unwrap();
            host.state.reached(*seqs.last().unwrap()).await.unwrap();
            entries = 0;
        }
    }
    host.close().await;
}

/// A turn: it begins, an answer streams in, it ends.
fn actions(turn: usize, parts: usize, text: &str) -> Vec<Value> {
    let id = format!("turn {turn}");
    let message = json!({"text": "go on", "origin": {"kind": "user"}});
    let begin = [
        json!({"type": "chat/turnStarted", "turnId": id, "startedAt": "2026-01-01T00:00:00.000Z", "message": message}),
        json!({"type": "chat/responsePart", "turnId": id, "part": {"kind": "markdown", "id": "p", "content": ""}}),
    ];
    let deltas = (0..parts).map(|_| json!({"type": "chat/delta", "turnId": id, "partId": "p", "content": text}));
    let end = json!({"type": "chat/turnComplete", "turnId": id, "duration": 5});
    begin.into_iter().chain(deltas).chain([end]).collect()
}
