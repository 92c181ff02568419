//! What clients are told.

use std::collections::BTreeSet;

use breakbulk_lifecycle::v2::wire::{AckOutcome, Body, ConnectionEvent, Outgoing, SessionState};
use serde_json::json;

use crate::world::{DemoWithMode, TestHost, assert_same, soon};

/// The `type` of something that a server sends.
fn name_of(outgoing: &Outgoing) -> String {
    serde_json::to_value(outgoing).unwrap()["type"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_event_is_told_by_a_host_with_the_demo_agent() {
    let host = TestHost::with(DemoWithMode::patient(), |config| {
        config.v2.permission_timeout = std::time::Duration::from_secs(2);
    })
    .await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "/think", "a").await;
    client.send(&session, "/run true", "b").await;
    let permission = client.asked(&session).await;
    // A client that comes now sees the message as a snapshot, and the question.
    let mut second = host.watcher(&session).await;
    assert_eq!(second.state(&session).permissions, client.state(&session).permissions);
    client.decide(&permission, "once").await;
    client.idle(&session).await;
    client.say(json!({"type": "set_mode", "sessionId": session, "mode": "plan"})).await;
    client.event(|body| matches!(body, Body::ModeChanged { mode } if mode == "plan")).await;
    client.send(&session, "/run true", "c").await;
    client.event(|body| matches!(body, Body::PermissionTimeout { .. })).await;
    client.idle(&session).await;
    client.turn(&session, "/fail", "d").await;
    client.send(&session, "/slow wait", "e").await;
    client.send(&session, "later", "f").await;
    client.event(|body| matches!(body, Body::QueueChanged { queue, .. } if queue.len() == 1)).await;
    client.say(json!({"type": "stop", "sessionId": session})).await;
    client.event(|body| matches!(body, Body::SessionEnd {})).await;
    client.say(json!({"type": "list"})).await;
    client.say(json!({"type": "ping"})).await;
    client.say(json!({"type": "dance"})).await;
    client.refusal().await;
    client
        .say(json!({"type": "reattach", "clientId": client.id.clone(), "sessions": [
        {"sessionId": "ahp-session:/none"}, {"sessionId": session, "lastSeq": 0}]}))
        .await;
    client.event(|body| matches!(body, Body::SessionEnd {})).await;
    let told: BTreeSet<String> = client.seen.iter().chain(&second.seen).map(name_of).collect();
    let all = [
        "ack",
        "block_delta",
        "block_end",
        "block_start",
        "client_id",
        "error",
        "message_end",
        "message_snapshot",
        "message_start",
        "mode_changed",
        "permission_request",
        "permission_resolved",
        "permission_timeout",
        "pong",
        "queue_changed",
        "reattach_failed",
        "reattached",
        "session_end",
        "session_id",
        "session_start",
        "session_state",
        "sessions",
        "tool_result",
        "turn_end",
        "user_message",
    ];
    let missing: Vec<&str> = all.into_iter().filter(|name| !told.contains(*name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
    second.until(|second| second.state(&session).ended).await;
    assert_eq!(second.state(&session).messages, client.state(&session).messages);
}

#[tokio::test]
async fn time_never_goes_back_and_seqs_ascend() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    for (prompt, id) in [("hello", "1"), ("/think", "2")] {
        client.turn(&session, prompt, id).await;
    }
    let events = client.events(&session);
    assert!(events.is_sorted_by_key(|event| event.ts));
    assert!(events.is_sorted_by(|a, b| (a.seq, a.sub) < (b.seq, b.sub)));
    // The time is that of the log, also after a restart.
    let last = events.last().unwrap().ts;
    let host = host.crash(DemoWithMode::quick()).await;
    let second = host.watcher(&session).await;
    let again = second.events(&session);
    assert!(again.iter().all(|event| event.ts >= last) && again.is_sorted_by_key(|event| event.ts));
}

#[tokio::test]
async fn a_session_of_an_ahp_client_and_that_of_a_v2_client_hold_the_same() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "/think", "1").await;
    client.send(&session, "/tools 2", "2").await;
    for decision in ["once", "deny"] {
        let permission = client.asked(&session).await;
        client.decide(&permission, decision).await;
        client.until(|client| client.state(&session).permissions.iter().all(|open| *open.perm_id != *permission)).await;
    }
    client.idle(&session).await;
    let chat = host.ahp(&host.chat_of(&session).await).await;
    let mut ahp = Vec::new();
    for turn in chat["turns"].as_array().unwrap() {
        ahp.push(turn["message"]["text"].clone());
        for part in turn["responseParts"].as_array().unwrap() {
            ahp.push(match part["kind"].as_str().unwrap() {
                "toolCall" => {
                    let call = &part["toolCall"];
                    let text = call["content"].as_array().map(|all| all[0]["text"].clone());
                    json!([call["toolName"], call["toolInput"], call["status"], text.unwrap_or_default()])
                }
                _ => part["content"].clone(),
            });
        }
    }
    let mut v2 = Vec::new();
    for block in client.state(&session).messages.iter().flat_map(|message| &message.blocks) {
        v2.push(match &block.tool {
            None => json!(block.content),
            Some(tool) => {
                let outcome = tool.outcome.as_ref().unwrap();
                let (status, text) = match outcome.is_error {
                    true => ("cancelled", json!(null)),
                    false => ("completed", json!(outcome.result)),
                };
                json!([tool.tool_name, tool.input, status, text])
            }
        });
    }
    assert_eq!(v2, ahp);
    assert!(v2.len() > 6, "{v2:?}");
}

#[tokio::test]
async fn a_second_client_sees_the_question_and_the_answer() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    let mut second = host.watcher(&session).await;
    second.turn(&session, "hello", "1").await;
    client.turn_ended(&session, "1").await;
    assert_same(client.state(&session), second.state(&session));
}

#[tokio::test]
async fn a_client_that_vanishes_costs_nothing() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (client, _) = host.opened().await;
    assert_eq!((host.host.v2().clients(), host.host.v2().watches(), host.host.v2().feeds()), (1, 1, 1));
    client.close().await;
    soon(async {
        while host.host.v2().feeds() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((host.host.v2().clients(), host.host.v2().watches()), (0, 0));
}

#[tokio::test]
async fn the_standing_of_a_session_is_told_when_a_client_comes() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    let ConnectionEvent::Ack { outcome, .. } = client.send(&session, "/slow hello", "1").await else { panic!() };
    assert_eq!(outcome, AckOutcome::Started);
    client.until(|client| client.state(&session).running).await;
    let mut second = host.client().await;
    let ConnectionEvent::Reattached { running, state, .. } = second.watch(&session, None).await else { panic!() };
    assert_eq!((running, state), (true, Some(SessionState::Running)));
}
