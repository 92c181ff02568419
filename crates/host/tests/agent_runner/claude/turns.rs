//! Prompts, answers, permissions, memory and models, from a client to the program and back.

use std::sync::Arc;

use breakbulk_host::agent::Agent;
use breakbulk_host::agent::claude::{Claude, ClaudeConfig};
use serde_json::{Value, json};

use super::fake::{FIRST, Fake, NEXT, asks, closed, interrupted, opened, result, tool_result, turn};
use crate::test_host::{CHAT, SESSION, TestHost, calls, text};

pub(super) async fn host(fake: &Fake) -> TestHost {
    TestHost::new(Arc::new(Claude::new(fake.config()))).await
}

/// What a prompt says, whichever form it has.
fn said(prompt: &Value) -> String {
    match &prompt["message"]["content"] {
        Value::String(text) => text.clone(),
        parts => parts.as_array().unwrap().iter().map(|part| part["text"].as_str().unwrap_or("[image]")).collect(),
    }
}

#[tokio::test]
async fn an_answer_streams_into_the_chat_with_its_usage() {
    let fake = Fake::new(&[&format!("{FIRST}{}{NEXT}{}", turn("a", "Hello."), turn("b", "Again."))]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.turns(CHAT, 1).await;
    host.prompt(CHAT, "2", "And?").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!((text(&turns[0]).as_str(), text(&turns[1]).as_str()), ("Hello.", "Again."));
    assert_eq!((&turns[0]["usage"]["inputTokens"], &turns[0]["usage"]["outputTokens"]), (&json!(3), &json!(4)));
    assert_eq!(turns[0]["usage"]["_meta"]["breakbulk"]["costMicros"], 250_000);
    let prompts = fake.prompts();
    assert_eq!(prompts.iter().map(said).collect::<Vec<_>>(), ["Hi", "And?"]);
    assert_ne!(prompts[0]["uuid"], prompts[1]["uuid"]);
    assert_eq!(fake.arguments().len(), 1);
    assert!(!fake.arguments()[0].contains("--resume"), "{:?}", fake.arguments());
    // The program said which models it has.
    let agent = Claude::new(fake.config());
    assert!(agent.info().models.iter().any(|model| model.id == "sonnet"));
}

#[tokio::test]
async fn a_permission_is_asked_and_the_answer_reaches_the_program() {
    let script = format!(
        "{FIRST}{}{}{}{}{}{}{}{}",
        opened("a", "I look."),
        asks("t1"),
        tool_result("t1", "files", false),
        asks("t2"),
        tool_result("t2", "The user denied this call.", true),
        asks("t3"),
        tool_result("t3", "more", false),
        format_args!("{}{}", closed("a"), result("success")),
    );
    let fake = Fake::new(&[&script]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    for (tool, answer) in [
        ("t1", json!({"approved": true, "confirmed": "user-action", "editedToolInput": "{\"command\":\"ls -l\"}"})),
        ("t2", json!({"approved": false, "reason": "denied", "reasonMessage": "not that"})),
        ("t3", json!({"approved": true, "confirmed": "user-action", "selectedOptionId": "always"})),
    ] {
        let asked = host.asked(1).await;
        assert_eq!(asked[0]["toolCall"]["toolCallId"], tool);
        let options = asked[0]["toolCall"]["options"].as_array().unwrap();
        assert!(options.iter().any(|option| option["id"] == "always"), "{options:?}");
        let mut action = answer;
        action["type"] = json!("chat/toolCallConfirmed");
        action["turnId"] = json!("1");
        action["toolCallId"] = json!(tool);
        host.act(CHAT, action).await;
        host.asked(0).await;
    }
    let turns = host.turns(CHAT, 1).await;
    let states: Vec<Value> = calls(&turns[0]).iter().map(|call| call["status"].clone()).collect();
    assert_eq!(states, ["completed", "cancelled", "completed"]);
    let told = fake.told();
    let answers: Vec<&Value> = told
        .iter()
        .filter(|line| line["type"] == "control_response")
        .map(|line| &line["response"]["response"])
        .collect();
    assert_eq!(answers[0], &json!({"behavior": "allow", "updatedInput": {"command": "ls -l"}}));
    assert_eq!(answers[1], &json!({"behavior": "deny", "message": "not that"}));
    assert_eq!(answers[2]["updatedPermissions"][0]["type"], "addRules");
    assert_eq!(answers[2]["updatedInput"], json!({"command": "ls"}));
}

#[tokio::test]
async fn an_input_that_was_edited_into_nonsense_denies_the_call() {
    let script = format!("{FIRST}{}{}{}", opened("a", ""), asks("t1"), tool_result("t1", "no", true));
    let fake = Fake::new(&[&format!("{script}{}{}", closed("a"), result("success"))]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.asked(1).await;
    let action = json!({"type": "chat/toolCallConfirmed", "turnId": "1", "toolCallId": "t1", "approved": true,
        "confirmed": "user-action", "editedToolInput": "[1]"});
    host.act(CHAT, action).await;
    host.turns(CHAT, 1).await;
    let told = fake.told();
    let answer = told.iter().find(|line| line["type"] == "control_response").unwrap();
    assert_eq!(answer["response"]["response"]["behavior"], "deny");
}

#[tokio::test]
async fn an_interrupt_ends_the_turn_and_the_program_goes_on() {
    let script = format!("{FIRST}{}{}{NEXT}{}", opened("a", "I th"), interrupted(), turn("b", "Yes?"));
    let fake = Fake::new(&[&script]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.until(CHAT, |chat| chat["activeTurn"]["responseParts"][0]["content"] == "I th").await;
    host.cancel(CHAT, "1").await;
    host.turns(CHAT, 1).await;
    host.prompt(CHAT, "2", "Hello?").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!((turns[0]["state"].as_str(), text(&turns[1]).as_str()), (Some("cancelled"), "Yes?"));
    assert_eq!(fake.arguments().len(), 1);
}

#[tokio::test]
async fn after_a_restart_of_the_host_the_program_resumes_with_its_token() {
    let fake = Fake::new(&[&format!("{FIRST}{}", turn("a", "Hello.")), &format!("{FIRST}{}", turn("b", "Again."))]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.turns(CHAT, 1).await;
    let host = host.crash(Arc::new(Claude::new(fake.config()))).await;
    host.prompt(CHAT, "2", "And?").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!(text(&turns[1]), "Again.");
    assert!(fake.arguments()[1].contains("--resume s-1"), "{:?}", fake.arguments());
    assert_eq!(fake.prompts().iter().map(said).collect::<Vec<_>>(), ["Hi", "And?"]);
}

#[tokio::test]
async fn a_token_that_the_program_does_not_know_is_replaced_by_the_history() {
    let unknown = json!({"type": "result", "subtype": "error_during_execution", "is_error": true, "num_turns": 0,
        "session_id": "s-1", "errors": ["No conversation found with session ID: s-1"]});
    for ending in [format!("<<< {unknown}\n!!! exit 1\n"), "!!! stderr No conversation found\n!!! exit 1\n".to_owned()]
    {
        let first = format!("{FIRST}{}", turn("a", "Hello."));
        let fake = Fake::new(&[&first, &format!("{FIRST}{ending}"), &format!("{FIRST}{}", turn("b", "Again."))]);
        let host = host(&fake).await;
        host.prompt(CHAT, "1", "Hi").await;
        host.turns(CHAT, 1).await;
        let host = host.crash(Arc::new(Claude::new(fake.config()))).await;
        host.prompt(CHAT, "2", "And?").await;
        let turns = host.turns(CHAT, 2).await;
        assert_eq!((turns[1]["state"].as_str(), text(&turns[1]).as_str()), (Some("complete"), "Again."));
        let arguments = fake.arguments();
        assert_eq!(arguments.iter().map(|line| line.contains("--resume")).collect::<Vec<_>>(), [false, true, false]);
        let prompts: Vec<String> = fake.prompts().iter().map(said).collect();
        assert_eq!((prompts.len(), prompts[1].as_str()), (3, "And?"));
        let last = &prompts[2];
        assert!(last.contains("earlier turns") && last.contains("User: Hi") && last.contains("You: Hello."), "{last}");
        assert!(last.ends_with("And?"), "{last}");
    }
}

#[tokio::test]
async fn the_model_of_a_message_and_the_mode_of_the_session_reach_the_program() {
    let script = format!("{FIRST}{}{NEXT}{}", turn("a", "1"), turn("b", "2"));
    let fake = Fake::new(&[&script]);
    let mut config = fake.config();
    (config.program.mode, config.program.model) = (Some("plan".to_owned()), Some("m1".to_owned()));
    let host = TestHost::new(Arc::new(Claude::new(config))).await;
    let prompt = |turn: &str, model: Value| {
        json!({"type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00Z",
            "message": {"text": "Hi", "origin": {"kind": "user"}, "model": model}})
    };
    host.act(CHAT, prompt("1", json!({"id": "m2"}))).await;
    host.turns(CHAT, 1).await;
    host.act(CHAT, prompt("2", Value::Null)).await;
    host.turns(CHAT, 2).await;
    assert!(fake.arguments()[0].contains("--model m1 --permission-mode plan"), "{:?}", fake.arguments());
    let told = fake.told();
    let models: Vec<&Value> = told
        .iter()
        .filter(|line| line["request"]["subtype"] == "set_model")
        .map(|line| &line["request"]["model"])
        .collect();
    assert_eq!(models, ["m2", "m1"]);
}

#[tokio::test]
async fn a_change_of_the_sessions_mode_reaches_a_running_program() {
    let script = format!("{FIRST}{}{}", opened("a", "I th"), asks("t1"));
    let fake = Fake::new(&[&format!("{script}{}{}{}", tool_result("t1", "x", false), closed("a"), result("success"))]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.asked(1).await;
    let changed = json!({"type": "session/configChanged", "config": {"mode": "acceptEdits"}, "replace": true});
    host.act(SESSION, changed).await;
    host.until(SESSION, |session| session["config"]["values"]["mode"] == "acceptEdits").await;
    host.answer(true).await;
    host.turns(CHAT, 1).await;
    let told = fake.told();
    let modes: Vec<&Value> = told.iter().filter(|line| line["request"]["subtype"] == "set_permission_mode").collect();
    assert_eq!(modes.len(), 1);
    assert_eq!(modes[0]["request"]["mode"], "acceptEdits");
}

#[tokio::test]
async fn a_turn_that_the_program_begins_by_itself_is_a_turn_of_the_chat_and_the_next_prompt_goes_to_the_same_program() {
    let script = format!("{FIRST}{}{}{NEXT}{}", turn("a", "One."), turn("b", "By the way."), turn("c", "Three."));
    let fake = Fake::new(&[&script]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!(
        (turns[1]["message"]["origin"]["kind"].as_str(), text(&turns[1]).as_str()),
        (Some("agent"), "By the way.")
    );
    host.prompt(CHAT, "3", "And?").await;
    assert_eq!(text(&host.turns(CHAT, 3).await[2]), "Three.");
    assert_eq!(fake.arguments().len(), 1);
    // The token stands for the turn that was last.
    let kept = host.see(SESSION).await["_meta"]["breakbulk"]["resume"][CHAT].clone();
    assert_eq!(kept, json!({"token": "s-1", "turn": "3"}));
}

#[tokio::test]
async fn images_and_texts_are_given_with_the_prompt() {
    let fake = Fake::new(&[&format!("{FIRST}{}", turn("a", "Nice."))]);
    let host = host(&fake).await;
    let image = json!({"type": "embeddedResource", "label": "a.png", "contentType": "image/png", "data": "AAAA"});
    let action = json!({"type": "chat/turnStarted", "turnId": "1", "startedAt": "2026-01-01T00:00:00Z",
        "message": {"text": "Look", "origin": {"kind": "user"}, "attachments": [image]}});
    host.act(CHAT, action).await;
    host.turns(CHAT, 1).await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    let want = json!([{"type": "image", "source": source}, {"type": "text", "text": "Look"}]);
    assert_eq!(fake.prompts()[0]["message"]["content"], want);
}

#[tokio::test]
async fn a_program_that_is_not_there_fails_the_turn_and_the_check() {
    let mut config = ClaudeConfig::default();
    config.program.command = vec!["no-such-program-here".into()];
    let agent = Arc::new(Claude::new(config));
    assert!(agent.check().await.is_err());
    let host = TestHost::new(agent).await;
    host.prompt(CHAT, "1", "Hi").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!(turns[0]["state"], "error");
    assert!(host.see(SESSION).await["inputNeeded"].as_array().is_none_or(Vec::is_empty));
}

#[tokio::test]
async fn a_mode_that_the_program_changes_to_is_the_sessions_and_is_not_set_back() {
    let changed = "<<< {\"type\":\"system\",\"subtype\":\"status\",\"permissionMode\":\"acceptEdits\"}\n";
    let script = format!(
        "{FIRST}{}{changed}{}{}{NEXT}{changed}{}",
        opened("a", "One"),
        closed("a"),
        result("success"),
        result("success")
    );
    let fake = Fake::new(&[&script]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.turns(CHAT, 1).await;
    host.until(SESSION, |session| session["config"]["values"]["mode"] == "acceptEdits").await;
    host.prompt(CHAT, "2", "Again").await;
    host.turns(CHAT, 2).await;
    let wishes = fake.told().into_iter().filter(|line| line["request"]["subtype"] == "set_permission_mode").count();
    assert_eq!(wishes, 0, "it is in that mode already");
}

#[tokio::test]
async fn commands_that_the_program_offers_complete_a_slash() {
    let fake = Fake::new(&[&format!("{FIRST}{}", turn("a", "Hello."))]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.turns(CHAT, 1).await;
    let found = host.completions("/com", 4).await;
    assert_eq!(found[0]["insertText"], "/compact ", "{found:?}");
    assert_eq!(found[0]["attachment"]["_meta"]["breakbulk"]["description"], "Forget");
}
