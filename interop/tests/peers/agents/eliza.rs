//! `elizacp`, which needs no model.

use super::installed::{eliza, skip};
use super::scene::{AgentTable, Scene};

#[tokio::test(flavor = "multi_thread")]
async fn eliza_answers_both_kinds_of_clients() {
    let Some(program) = eliza() else { return skip("elizacp") };
    let agent = AgentTable {
        name: "elizacp",
        kind: "acp",
        command: [program.to_str().unwrap(), "--deterministic", "acp"].map(str::to_owned).to_vec(),
        env: Vec::new(),
    };
    let mut scene = Scene::begin(&agent).await;
    for prompt in ["Hello", "I am sad about my code"] {
        let turn = scene.turn(prompt).await;
        assert_eq!(turn["state"], "complete", "{turn}");
        assert!(!crate::serve::guest::words(&turn).is_empty(), "{turn}");
    }
    scene.end().await;
}
