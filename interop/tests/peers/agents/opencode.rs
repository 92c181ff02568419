//! `opencode acp`, with llmock as its model.

use serde_json::json;

use super::installed::{opencode, skip};
use super::model_server::ModelServer;
use super::scene::{AgentTable, Scene};

#[tokio::test(flavor = "multi_thread")]
async fn opencode_talks_to_both_kinds_of_clients_and_outlives_kills() {
    let Some(program) = opencode() else { return skip("opencode") };
    let model = ModelServer::start("node/models.mjs");
    let provider = json!({"npm": "@ai-sdk/openai-compatible", "name": "Mock", "models": {"small": {"name": "Small"}},
        "options": {"baseURL": format!("{}/v1", model.url), "apiKey": "a-fake-key"}});
    let config = json!({"provider": {"mock": provider}, "model": "mock/small", "small_model": "mock/small",
        "permission": {"bash": "ask", "edit": "ask"}, "share": "disabled", "autoupdate": false, "snapshot": false});
    let agent = AgentTable {
        name: "opencode",
        kind: "acp",
        command: vec![program.to_str().unwrap().to_owned(), "acp".to_owned()],
        env: vec![
            ("OPENCODE_CONFIG_CONTENT", config.to_string()),
            ("OPENCODE_DISABLE_AUTOUPDATE", "1".to_owned()),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1".to_owned()),
        ],
    };
    let mut scene = Scene::begin(&agent).await;
    scene.words_stream().await;
    scene.a_call_is_allowed_and_another_denied("execute").await;
    scene.an_answer_is_interrupted().await;
    scene.the_agent_is_killed().await;
    scene = scene.the_host_is_killed().await;
    scene.the_session_is_stopped().await;
    let found = scene.completions("/in").await;
    assert!(found.iter().any(|text| text.starts_with("/init")), "{found:?}");
    scene.end().await;
}
