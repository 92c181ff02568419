//! The last client: reads what the host shows when nothing happens any more.

use std::sync::Arc;

use breakbulk::client::{Client, Config, Event};
use breakbulk_proto::Budget;

use crate::sim::author::dial;
use crate::sim::follower::Follower;
use crate::sim::shared::Shared;

/// Takes a snapshot of every channel.
pub(crate) async fn ask(shared: Arc<Shared>) -> turmoil::Result {
    let mut config = Config::new("auditor");
    config.subscriptions = shared.plan.channels();
    config.subscriptions.push("ahp-root://".into());
    (config.limits, config.budget) = (shared.plan.limits(), Budget::new(shared.plan.budget()));
    let count = config.subscriptions.len();
    let dialing = Arc::clone(&shared);
    let dial = move || {
        let shared = Arc::clone(&dialing);
        async move { dial(&shared).await }
    };
    let (_client, mut events) = Client::start(dial, config);
    let mut follower = Follower::default();
    while follower.channels.len() < count {
        if let Event::Snapshot { snapshot, .. } = events.next().await.ok_or("the auditor has ended")? {
            follower.snapshot(&snapshot.to_bytes());
        }
    }
    let shown = follower.channels.into_iter().map(|(name, followed)| (name, followed.state)).collect();
    shared.facts().shown = Some(shown);
    Ok(())
}
