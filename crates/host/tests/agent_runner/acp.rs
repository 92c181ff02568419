//! An agent that speaks ACP, from a client's prompt to the program and back.

pub(crate) mod fake;

use std::sync::Arc;
use std::time::Duration;

use breakbulk_host::agent::acp::Acp;
use serde_json::{Value, json};

use self::fake::Fake;
use crate::test_host::{CHAT, SESSION, TestHost, calls, text};

async fn host(fake: &Fake) -> TestHost {
    TestHost::new(Arc::new(Acp::new(fake.config()))).await
}

/// The error with which a turn ended.
fn failure(turn: &Value) -> (&str, &str) {
    let parts = turn["responseParts"].as_array().unwrap();
    let error = &parts.iter().find(|part| part["kind"] == "error").unwrap()["error"];
    (error["errorType"].as_str().unwrap(), error["message"].as_str().unwrap())
}

#[tokio::test]
async fn an_answer_streams_and_the_next_prompt_goes_to_the_same_program() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    host.prompt(CHAT, "2", "say two").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!((text(&turns[0]).as_str(), text(&turns[1]).as_str()), ("one", "two"));
    assert_eq!((fake.starts(), fake.prompts()), (1, vec!["say one".to_owned(), "say two".to_owned()]));
}

#[tokio::test]
async fn a_permission_is_asked_with_the_options_of_the_agent() {
    let fake = Fake::new();
    let host = host(&fake).await;
    for (turn, approved, status) in [("1", true, "completed"), ("2", false, "cancelled")] {
        host.prompt(CHAT, turn, "tool").await;
        let asked = host.asked(1).await;
        let options = asked[0]["toolCall"]["options"].as_array().unwrap();
        assert!(options.iter().any(|option| option["id"] == "always:all"), "{options:?}");
        host.answer(approved).await;
        let turns = host.turns(CHAT, turn.parse().unwrap()).await;
        let calls = calls(turns.last().unwrap());
        assert_eq!(calls[0]["status"], status, "{calls:?}");
    }
    assert_eq!(fake.answers(), ["yes", "no"]);
}

#[tokio::test]
async fn files_and_terminals_of_the_agent_are_those_of_the_host() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "file").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(text(&turns[0]), "written by the agent; outside: refused");
    assert_eq!(std::fs::read_to_string(host.path().join("made/agent.txt")).unwrap(), "written by the agent");
    host.prompt(CHAT, "2", "run").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!(text(&turns[1]), "from a terminal, exit 7");
}

#[tokio::test]
async fn a_cancel_reaches_the_agent_and_its_answer_ends_the_turn() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "hang").await;
    host.until(CHAT, |state| state["activeTurn"].to_string().contains("waiting")).await;
    host.cancel(CHAT, "1").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(turns[0]["state"], "cancelled");
    host.prompt(CHAT, "2", "say on").await;
    assert_eq!(text(&host.turns(CHAT, 2).await[1]), "on");
    assert_eq!(fake.starts(), 1);
}

#[tokio::test]
async fn an_agent_that_dies_ends_its_turn_by_name_and_the_next_prompt_resumes() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    host.prompt(CHAT, "2", "die").await;
    let turns = host.turns(CHAT, 2).await;
    let (kind, message) = failure(&turns[1]);
    assert_eq!(kind, "agentExited");
    assert!(message.contains("status 3") && message.contains("I am dying"), "{message}");
    host.prompt(CHAT, "3", "say three").await;
    assert_eq!(text(&host.turns(CHAT, 3).await[2]), "three");
    assert_eq!(fake.starts(), 2);
    assert_eq!(fake.loaded(), ["s-1"], "it goes on with its own memory");
    assert_eq!(fake.prompts(), ["say one", "die", "say three"], "no prompt runs twice");
}

#[tokio::test]
async fn an_agent_without_a_memory_is_told_the_history() {
    let fake = Fake::forgetful();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    let host = host.crash(Arc::new(Acp::new(fake.config()))).await;
    host.prompt(CHAT, "2", "say two").await;
    assert_eq!(text(&host.turns(CHAT, 2).await[1]), "two");
    let prompts = fake.prompts();
    assert!(prompts[1].contains("say one") && prompts[1].ends_with("say two"), "{prompts:?}");
}

#[tokio::test]
async fn garbage_is_skipped_and_a_program_that_is_no_agent_is_an_error() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "garbage").await;
    assert_eq!(text(&host.turns(CHAT, 1).await[0]), "still here");

    let mut config = fake.config();
    config.program.command = ["sh", "-c", "echo no agent >&2; exit 4"].map(Into::into).to_vec();
    let host = TestHost::new(Arc::new(Acp::new(config))).await;
    host.prompt(CHAT, "1", "say one").await;
    let turns = host.turns(CHAT, 1).await;
    let (kind, message) = failure(&turns[0]);
    assert_eq!(kind, "agentExited");
    assert!(message.contains("status 4") && message.contains("no agent"), "{message}");
}

#[tokio::test]
async fn the_mode_and_the_model_of_a_session_reach_the_agent() {
    let fake = Fake::new();
    let mut config = fake.config();
    (config.program.mode, config.program.model) = (Some("code".to_owned()), Some("large".to_owned()));
    let host = TestHost::new(Arc::new(Acp::new(config))).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    assert_eq!(fake.told("session/set_mode")[0]["modeId"], json!("code"));
    assert_eq!(fake.told("session/set_config_option")[0]["value"], json!("large"));
}

#[tokio::test]
async fn an_agent_that_never_opens_a_session_is_ended_by_the_start_timeout() {
    let fake = Fake::new().hanging();
    let mut config = fake.config();
    config.program.process.start = Duration::from_millis(400);
    let host = TestHost::new(Arc::new(Acp::new(config))).await;
    host.prompt(CHAT, "1", "say one").await;
    let turns = host.turns(CHAT, 1).await;
    let (kind, message) = failure(&turns[0]);
    assert_eq!(kind, "agentDidNotStart", "{message}");
    assert_eq!(fake.told("session/new").len(), 1, "it had answered to initialize");
    gone(&fake.pid()).await;
}

#[tokio::test]
async fn a_mode_that_the_agent_chooses_is_the_sessions_and_is_not_set_back() {
    let fake = Fake::new();
    let mut config = fake.config();
    config.program.mode = Some("code".to_owned());
    let host = TestHost::new(Arc::new(Acp::new(config))).await;
    host.prompt(CHAT, "1", "mode ask").await;
    host.turns(CHAT, 1).await;
    host.until(SESSION, |session| session["config"]["values"]["mode"] == "ask").await;
    host.prompt(CHAT, "2", "say two").await;
    host.turns(CHAT, 2).await;
    let modes: Vec<Value> = fake.told("session/set_mode").iter().map(|params| params["modeId"].clone()).collect();
    assert_eq!(modes, ["code"], "the session's own at first, and nothing later");
    let changed = json!({"type": "session/configChanged", "config": {"mode": "code"}});
    host.act(SESSION, changed).await;
    host.prompt(CHAT, "3", "say three").await;
    host.turns(CHAT, 3).await;
    assert_eq!(fake.told("session/set_mode").len(), 2, "what a client chooses after that is told to it");
}

#[tokio::test]
async fn commands_that_the_agent_offers_complete_a_slash_and_go_to_it_as_they_are() {
    let fake = Fake::new();
    let host = host(&fake).await;
    assert_eq!(host.completions("/", 1).await, Vec::<Value>::new(), "nothing is known before it has run");
    host.prompt(CHAT, "1", "commands").await;
    host.turns(CHAT, 1).await;
    let labels = |found: Vec<Value>| found.iter().map(|item| item["insertText"].clone()).collect::<Vec<_>>();
    assert_eq!(labels(host.completions("/", 1).await), ["/init", "/review "]);
    assert_eq!(labels(host.completions("/re", 3).await), ["/review "]);
    assert_eq!(labels(host.completions("a /re", 5).await), [""; 0], "a command begins the message");
    assert_eq!(labels(host.completions("/review it", 10).await), [""; 0]);
    let item = &host.completions("/in", 3).await[0];
    assert_eq!((&item["rangeStart"], &item["rangeEnd"]), (&json!(0), &json!(3)));
    let message = json!({"text": "/init", "origin": {"kind": "user"}, "attachments": [item["attachment"]]});
    host.act(
        CHAT,
        json!({"type": "chat/turnStarted", "turnId": "2", "startedAt": "2026-01-01T00:00:00.000Z", "message": message}),
    )
    .await;
    host.turns(CHAT, 2).await;
    assert_eq!(fake.prompts(), ["commands", "/init"]);
}

#[tokio::test]
async fn a_session_that_is_stopped_ends_its_program_at_once_and_the_next_prompt_resumes() {
    let fake = Fake::new();
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "say one").await;
    host.turns(CHAT, 1).await;
    let pid = fake.pid();
    host.act(SESSION, json!({"type": "session/metaChanged", "_meta": {"breakbulk": {"ended": true}}})).await;
    gone(&pid).await;
    host.prompt(CHAT, "2", "say two").await;
    assert_eq!(text(&host.turns(CHAT, 2).await[1]), "two");
    assert_eq!(fake.starts(), 2);
}

#[tokio::test]
async fn sessions_that_name_no_directory_work_in_the_agents_own() {
    let fake = Fake::new();
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().canonicalize().unwrap().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let mut config = fake.config();
    config.program.directory = Some(inner.clone());
    let host = TestHost::rooted(Arc::new(Acp::new(config)), folder).await;
    host.call("createSession", json!({"channel": "ahp-session:/own"})).await.unwrap();
    let session = host.see("ahp-session:/own").await;
    assert_eq!(session["workingDirectories"], json!([format!("file://{}", inner.display())]));
    let chat = session["defaultChat"].as_str().unwrap();
    host.prompt(chat, "1", "say one").await;
    host.turns(chat, 1).await;
    assert_eq!(fake.told("session/new")[0]["cwd"], json!(inner));
}

#[tokio::test]
async fn images_and_embedded_resources_reach_an_agent_that_takes_them() {
    let fake = Fake::new();
    let host = host(&fake).await;
    let image = json!({"type": "embeddedResource", "label": "a.png", "contentType": "image/png", "data": "AAAA"});
    let note = json!({"type": "embeddedResource", "label": "n", "contentType": "text/plain", "data": "aGk="});
    let message = json!({"text": "say seen", "origin": {"kind": "user"}, "attachments": [image, note]});
    host.act(
        CHAT,
        json!({"type": "chat/turnStarted", "turnId": "1", "startedAt": "2026-01-01T00:00:00.000Z", "message": message}),
    )
    .await;
    host.turns(CHAT, 1).await;
    let prompt = fake.told("session/prompt")[0]["prompt"].clone();
    assert_eq!((&prompt[0]["type"], &prompt[0]["data"]), (&json!("image"), &json!("AAAA")));
    assert_eq!((&prompt[1]["type"], &prompt[1]["resource"]["text"]), (&json!("resource"), &json!("hi")));
}

/// Waits until a process is gone, or dead and not yet reaped.
async fn gone(pid: &str) {
    let is_alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z')))
    };
    let wait = async {
        while is_alive() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the program ends");
}
