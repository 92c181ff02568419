//! Programs that die, hang, flood or write garbage: the turn fails by name, nothing stays behind, and others do not notice.

use std::sync::Arc;
use std::time::Duration;

use breakbulk_host::agent::ProcessLimits;
use breakbulk_host::agent::claude::{Claude, ClaudeConfig};
use serde_json::Value;

use super::fake::{FIRST, Fake, NEXT, asks, calls, closed, interrupted, opened, result, turn};
use super::turns::host;
use crate::test_host::{CHAT, OTHER, TestHost, text};

/// A host whose programs have these limits.
async fn limited(fake: &Fake, change: impl FnOnce(&mut ProcessLimits)) -> TestHost {
    let mut config: ClaudeConfig = fake.config();
    change(&mut config.program.process);
    TestHost::new(Arc::new(Claude::new(config))).await
}

/// The error with which a turn ended.
fn error(turn: &Value) -> (String, String) {
    assert_eq!(turn["state"], "error", "{turn:#}");
    let parts = turn["responseParts"].as_array().unwrap();
    let error = &parts.iter().find(|part| part["kind"] == "error").unwrap()["error"];
    (error["errorType"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

async fn gone(pid: &str) {
    let is_alive = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z')))
    };
    let wait = async {
        while is_alive() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
}

#[tokio::test]
async fn a_program_that_is_killed_in_the_middle_of_a_turn_fails_it_by_name_and_the_next_turn_resumes() {
    let first = format!("{FIRST}!!! children\n{}!!! stderr out of luck\n!!! kill\n", opened("a", "I th"));
    let fake = Fake::new(&[&first, &format!("{FIRST}{}", turn("b", "Here."))]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    let turns = host.turns(CHAT, 1).await;
    let (kind, message) = error(&turns[0]);
    assert_eq!(kind, "agentKilled");
    assert!(message.contains("signal 9") && message.contains("out of luck"), "{message}");
    assert_eq!(text(&turns[0]), "I th");
    for pid in fake.children() {
        gone(&pid).await;
    }
    // It is not run again by itself; the next prompt resumes.
    assert_eq!(fake.arguments().len(), 1);
    host.prompt(CHAT, "2", "And?").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!(text(&turns[1]), "Here.");
    assert!(fake.arguments()[1].contains("--resume s-1"), "{:?}", fake.arguments());
}

#[tokio::test]
async fn a_program_that_exits_at_once_fails_the_turn_with_its_last_words() {
    let fake = Fake::new(&["!!! stderr Invalid API key\n!!! exit 1\n"]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    let (kind, message) = error(&host.turns(CHAT, 1).await[0]);
    assert_eq!(kind, "agentExited");
    assert!(message.contains("status 1") && message.contains("Invalid API key"), "{message}");
}

#[tokio::test]
async fn a_program_that_hangs_is_killed_after_a_while_but_not_while_a_person_is_asked() {
    let short = Duration::from_millis(300);
    let fake = Fake::new(&[&format!("{FIRST}{}{}!!! hang\n", opened("a", "I th"), asks("t1"))]);
    let host = limited(&fake, |limits| limits.silence = short).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.asked(1).await;
    // Nothing happens here, however long it takes: the program waits for us.
    tokio::time::sleep(short * 4).await;
    assert_eq!(host.asked(1).await.len(), 1);
    host.answer(false).await;
    let (kind, _) = error(&host.turns(CHAT, 1).await[0]);
    assert_eq!(kind, "agentSilent");
}

#[tokio::test]
async fn a_tool_about_which_nobody_was_asked_may_take_any_time() {
    let short = Duration::from_millis(300);
    let fake = Fake::new(&[&format!("{FIRST}{}{}{}", opened("a", "I th"), calls("t1"), interrupted())]);
    let host = limited(&fake, |limits| limits.silence = short).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.until(CHAT, |chat| chat["activeTurn"].to_string().contains("\"t1\"")).await;
    tokio::time::sleep(short * 4).await;
    host.cancel(CHAT, "1").await;
    assert_eq!(host.turns(CHAT, 1).await[0]["state"], "cancelled");
}

#[tokio::test]
async fn a_program_that_does_not_start_is_killed() {
    let fake = Fake::new(&["!!! hang\n"]);
    let host = limited(&fake, |limits| limits.start = Duration::from_secs(1)).await;
    host.prompt(CHAT, "1", "Hi").await;
    assert_eq!(error(&host.turns(CHAT, 1).await[0]).0, "agentDidNotStart");
}

#[tokio::test]
async fn a_program_that_does_not_stop_is_killed_and_the_next_prompt_starts_another() {
    let first = format!("{FIRST}{}!!! hang\n", opened("a", "I th"));
    let fake = Fake::new(&[&first, &format!("{FIRST}{}", turn("b", "Here."))]);
    let host = limited(&fake, |limits| limits.cancel = Duration::from_millis(300)).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.until(CHAT, |chat| chat["activeTurn"]["responseParts"][0]["content"] == "I th").await;
    host.cancel(CHAT, "1").await;
    host.turns(CHAT, 1).await;
    host.prompt(CHAT, "2", "And?").await;
    let turns = host.turns(CHAT, 2).await;
    assert_eq!((turns[0]["state"].as_str(), text(&turns[1]).as_str()), (Some("cancelled"), "Here."));
}

#[tokio::test]
async fn a_flood_fails_the_turn_and_another_chat_does_not_notice() {
    let flood = format!("{FIRST}{}!!! flood\n", opened("a", "I th"));
    let fake = Fake::new(&[&flood, &format!("{FIRST}{}", turn("b", "Here."))]);
    let host = limited(&fake, |limits| limits.max_noise_bytes = 64 << 20).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.until(CHAT, |chat| chat["activeTurn"].is_object() || chat["turns"][0].is_object()).await;
    host.until(CHAT, |chat| chat.to_string().contains("I th")).await;
    host.prompt(OTHER, "1", "Hi").await;
    assert_eq!(text(&host.turns(OTHER, 1).await[0]), "Here.");
    assert_eq!(error(&host.turns(CHAT, 1).await[0]).0, "agentFlooded");
}

#[tokio::test]
async fn garbage_and_lines_that_are_too_long_are_skipped() {
    let noise =
        "!!! raw not json\n!!! raw {\"type\":\n!!! raw [1,2]\n!!! raw {\"type\":\"new_in_version_9\"}\n!!! long 5000\n";
    let script = format!("{FIRST}{noise}{}{noise}{}{noise}{}", opened("a", "Hello."), closed("a"), result("success"));
    let fake = Fake::new(&[&script]);
    let host = limited(&fake, |limits| limits.max_line_bytes = 4_000).await;
    host.prompt(CHAT, "1", "Hi").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!((turns[0]["state"].as_str(), text(&turns[0]).as_str()), (Some("complete"), "Hello."));
}

#[tokio::test]
async fn an_idle_program_is_ended_and_the_next_prompt_resumes() {
    let first = format!("{FIRST}!!! children\n{}{NEXT}", turn("a", "Hello."));
    let fake = Fake::new(&[&first, &format!("{FIRST}{}", turn("b", "Again."))]);
    let host = limited(&fake, |limits| limits.idle = Duration::from_millis(200)).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.turns(CHAT, 1).await;
    let children = fake.children();
    assert_eq!(children.len(), 2);
    for pid in children {
        gone(&pid).await;
    }
    host.prompt(CHAT, "2", "And?").await;
    assert_eq!(text(&host.turns(CHAT, 2).await[1]), "Again.");
    assert!(fake.arguments()[1].contains("--resume s-1"), "{:?}", fake.arguments());
}

#[tokio::test]
async fn when_the_host_stops_nothing_of_the_program_is_left() {
    let fake = Fake::new(&[&format!("{FIRST}!!! children\n{}!!! hang\n", opened("a", "I th"))]);
    let host = host(&fake).await;
    host.prompt(CHAT, "1", "Hi").await;
    host.until(CHAT, |chat| chat["activeTurn"]["responseParts"][0]["content"] == "I th").await;
    host.inner.stop().await;
    for pid in fake.children() {
        gone(&pid).await;
    }
}
