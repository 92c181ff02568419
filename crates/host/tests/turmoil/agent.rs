//! An agent's turns, put into the log as they come.

use std::sync::Arc;

use breakbulk_host::log::{Batch, Log};
use serde_json::json;
use tokio::time::sleep;

use crate::sim::actions;
use crate::sim::shared::Shared;

/// Speaks when it is told to, for ever.
pub(crate) async fn speak(shared: Arc<Shared>, log: Arc<dyn Log>) {
    loop {
        let next = shared.facts().turns.pop_front();
        match next {
            Some(channel) => turn(&shared, &*log, &channel).await,
            None => shared.changed.notified().await,
        }
    }
}

async fn turn(shared: &Shared, log: &dyn Log, channel: &str) {
    let (id, words, pause) = {
        let facts = &mut *shared.facts();
        let count = facts.rng.range(1, 12);
        facts.tally.add("deltas", count);
        let words: Vec<_> = (0..count).map(|_| facts.rng.range(1, 60) as usize).collect();
        let words: Vec<_> = words.into_iter().map(|len| facts.rng.text(len)).collect();
        (format!("turn-{}", facts.number()), words, facts.rng.millis(0, 20))
    };
    for action in actions::turn(&id, &words) {
        let body = json!({"channel": channel, "action": action}).to_string();
        // The channel may not be there yet.
        if log.append(Batch::new().entry(channel, body)).await.is_err() {
            return;
        }
        sleep(pause).await;
    }
}
