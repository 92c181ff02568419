//! The last client: asks the host what it shows when everything is at rest.

use std::sync::Arc;

use breakbulk::client::{Client, Config, Event};
use breakbulk_proto::Budget;

use crate::sim::author::dial;
use crate::sim::follower::Follower;
use crate::sim::scene::Scene;

/// Takes a snapshot of every channel.
pub(crate) async fn ask(scene: Arc<Scene>) -> turmoil::Result {
    let mut config = Config::new("auditor");
    config.subscriptions = scene.plan.channels();
    config.subscriptions.push("ahp-root://".into());
    (config.limits, config.budget) = (scene.plan.limits(), Budget::new(scene.plan.budget()));
    let count = config.subscriptions.len();
    let dialing = Arc::clone(&scene);
    let dial = move || {
        let scene = Arc::clone(&dialing);
        async move { dial(&scene).await }
    };
    let (_client, mut events) = Client::start(dial, config);
    let mut follower = Follower::default();
    while follower.channels.len() < count {
        if let Event::Snapshot { snapshot, .. } = events.next().await.ok_or("the auditor has ended")? {
            follower.snapshot(&snapshot.to_bytes());
        }
    }
    let shown = follower.channels.into_iter().map(|(name, followed)| (name, followed.state)).collect();
    scene.facts().shown = Some(shown);
    Ok(())
}
