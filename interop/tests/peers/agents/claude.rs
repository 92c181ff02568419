//! The Claude Code program, with a fake of the Messages API that is ours.

use serde_json::json;

use super::installed::{claude, skip};
use super::model_server::ModelServer;
use super::scene::{AgentTable, Scene};
use crate::serve::guest::words;

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_talks_to_both_kinds_of_clients_and_outlives_kills() {
    let Some(program) = claude() else { return skip("claude") };
    let model = ModelServer::start("node/messages_api.mjs");
    let agent = AgentTable {
        name: "claude",
        kind: "claude",
        command: vec![program.to_str().unwrap().to_owned()],
        env: vec![
            ("ANTHROPIC_BASE_URL", model.url.clone()),
            ("ANTHROPIC_API_KEY", "sk-ant-a-fake-key".to_owned()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("DISABLE_AUTOUPDATER", "1".to_owned()),
        ],
    };
    let mut scene = Scene::begin(&agent).await;
    scene.words_stream().await;
    scene.a_call_is_allowed_and_another_denied("Bash").await;
    scene.an_answer_is_interrupted().await;
    scene.the_agent_is_killed().await;
    scene = scene.the_host_is_killed().await;
    scene.the_session_is_stopped().await;
    it_sees_an_image(&mut scene).await;
    it_completes_its_commands(&scene).await;
    scene.end().await;
}

/// A v2 client sends an image with its prompt.
async fn it_sees_an_image(scene: &mut Scene) {
    // One pixel.
    let pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let images = json!([{"mediaType": "image/png", "data": pixel}]);
    scene.v2.command(json!({"type": "send", "prompt": "see this", "clientMsgId": "image-1", "images": images})).await;
    let said = scene.last_turn("see this").await;
    assert_eq!(words(&said), "I see 1 image", "{said}");
}

async fn it_completes_its_commands(scene: &Scene) {
    let found = scene.completions("/comp").await;
    assert!(found.iter().any(|text| text.starts_with("/compact")), "{found:?}");
}
