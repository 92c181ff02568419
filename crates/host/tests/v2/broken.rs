//! The ways in which others broke, each as the fact that must hold here.

use std::time::Duration;

use breakbulk_host::endpoint::EndReason;
use breakbulk_host::log::{Channels, Entry};
use breakbulk_lifecycle::v2::wire::{AckOutcome, Body, ConnectionEvent, Outgoing, SnapshotReason, TurnOutcome};
use serde_json::json;

use crate::world::{DemoWithMode, TestHost, assert_same, soon};

#[tokio::test]
async fn the_first_prompt_after_coming_back_runs() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "one", "1").await;
    let mut back = host.link();
    back.reattach(client, &session).await;
    back.turn(&session, "two", "2").await;
    back.until(|back| back.prompts(&session).len() == 2).await;
    back.idle(&session).await;
    assert_eq!(back.prompts(&session), ["one", "two"]);
}

#[tokio::test]
async fn a_client_that_believes_a_turn_runs_is_told_that_it_does_not() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    let mut other = host.watcher(&session).await;
    client.send(&session, "/slow one", "1").await;
    client.until(|client| client.state(&session).running).await;
    // It is over while the client is away.
    other.say(json!({"type": "interrupt", "sessionId": session, "clientMsgId": "2"})).await;
    other.event(|body| matches!(body, Body::TurnEnd { .. })).await;
    let mut back = host.link();
    let ConnectionEvent::Reattached { running, .. } = back.reattach(client, &session).await else { panic!() };
    assert!(!running);
    let ConnectionEvent::Ack { outcome, .. } = back.send(&session, "two", "3").await else { panic!() };
    assert_eq!(outcome, AckOutcome::Started);
}

#[tokio::test]
async fn the_end_of_an_old_connection_does_not_remove_the_new_one() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "one", "1").await;
    let (id, last) = (client.id.clone(), client.model(&session).last_seq());
    let mut back = host.link();
    back.say(json!({"type": "reattach", "clientId": id, "sessions": [{"sessionId": session, "lastSeq": last}]})).await;
    assert!(matches!(back.answer().await, ConnectionEvent::Reattached { .. }));
    assert!(matches!(client.ended().await, EndReason::Fenced));
    assert_eq!(host.host.v2().clients(), 1);
    back.send(&session, "two", "2").await;
    back.event(|body| matches!(body, Body::TurnEnd { .. })).await;
}

#[tokio::test]
async fn one_clients_sessions_do_not_bleed_into_anothers() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut first, one) = host.opened().await;
    let (mut second, two) = host.opened().await;
    first.turn(&one, "mine", "1").await;
    second.turn(&two, "mine too", "1").await;
    assert_eq!(first.models.keys().collect::<Vec<_>>(), [&one]);
    assert_eq!(second.models.keys().collect::<Vec<_>>(), [&two]);
    assert_eq!((first.prompts(&one).len(), second.prompts(&two).len()), (1, 1));
}

#[tokio::test]
async fn a_cursor_behind_the_end_of_a_session_finds_it_ended() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/slow one", "1").await;
    client.until(|client| client.state(&session).running).await;
    client.say(json!({"type": "stop", "sessionId": session})).await;
    client.until(|client| client.state(&session).ended).await;
    // Others go on, so the cursor of the log is far behind the end of this one.
    let (mut other, another) = host.opened().await;
    other.turn(&another, "hello", "1").await;
    let last = other.model(&another).last_seq();
    let mut back = host.client().await;
    let ConnectionEvent::Reattached { running, ended, snapshot, .. } = back.watch(&session, last).await else {
        panic!()
    };
    assert_eq!((running, ended, snapshot), (false, true, None));
}

#[tokio::test]
async fn a_cursor_beyond_the_end_of_the_log_gets_a_snapshot_and_is_told_so() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "one", "1").await;
    let mut back = host.client().await;
    let ConnectionEvent::Reattached { snapshot, .. } = back.watch(&session, Some(1 << 40)).await else { panic!() };
    assert_eq!(snapshot, Some(SnapshotReason::Future));
    back.until(|back| back.model(&session).last_seq().is_some()).await;
    assert_same(back.state(&session), client.state(&session));
}

#[tokio::test]
async fn a_prompt_whose_acknowledgement_was_lost_runs_once() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "one", "1").await;
    // On another connection, and after a restart.
    let mut back = host.link();
    back.reattach(client, &session).await;
    let ack = back.send(&session, "one", "1").await;
    assert!(matches!(ack, ConnectionEvent::Ack { outcome: AckOutcome::Started, repeated: true, .. }), "{ack:?}");
    let host = host.crash(DemoWithMode::quick()).await;
    let mut back = host.watcher(&session).await;
    let ack = back.send(&session, "one", "1").await;
    assert!(matches!(ack, ConnectionEvent::Ack { repeated: true, .. }), "{ack:?}");
    // The same id with another payload is refused.
    back.say(json!({"type": "send", "sessionId": session, "prompt": "other", "clientMsgId": "1"})).await;
    assert_eq!(back.refusal().await.client_msg_id.as_deref(), Some("1"));
    back.turn(&session, "two", "2").await;
    back.until(|back| back.prompts(&session).len() == 2).await;
    assert_eq!(back.prompts(&session), ["one", "two"]);
}

#[tokio::test]
async fn one_of_many_equal_prompts_at_once_runs() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(host.client().await);
    }
    let command = json!({"type": "send", "sessionId": session, "prompt": "one", "clientMsgId": "1"});
    for other in &mut others {
        other.say(command.clone()).await;
    }
    let mut first = 0;
    for other in &mut others {
        let ConnectionEvent::Ack { repeated, .. } = other.answer().await else { panic!() };
        first += u32::from(!repeated);
    }
    client.event(|body| matches!(body, Body::TurnEnd { .. })).await;
    assert_eq!((first, client.prompts(&session).len()), (1, 1));
}

#[tokio::test]
async fn a_prompt_that_a_crash_cut_off_is_reported_and_not_run_again() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/slow one", "1").await;
    client.until(|client| client.state(&session).current.is_some()).await;
    let host = host.crash(DemoWithMode::quick()).await;
    let mut back = host.link();
    let ConnectionEvent::Reattached { running, snapshot, .. } = back.reattach(client, &session).await else { panic!() };
    assert_eq!((running, snapshot), (false, None));
    let end = back.event(|body| matches!(body, Body::TurnEnd { .. })).await;
    let Body::TurnEnd { outcome, error_type, .. } = end.body else { panic!() };
    assert_eq!((outcome, error_type.as_deref()), (TurnOutcome::Error, Some("hostRestarted")));
    let ack = back.send(&session, "/slow one", "1").await;
    assert!(matches!(ack, ConnectionEvent::Ack { repeated: true, .. }), "{ack:?}");
    back.turn(&session, "two", "2").await;
    back.until(|back| back.prompts(&session).len() == 2).await;
    back.idle(&session).await;
    assert_eq!(back.prompts(&session), ["/slow one", "two"]);
    assert!(back.state(&session).current.is_none());
}

#[tokio::test]
async fn a_pending_approval_is_shown_again_with_its_first_deadline() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/run true", "1").await;
    client.asked(&session).await;
    let first = client.state(&session).permissions.clone();
    // A deadline that counts from now would be another one.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let fresh = host.watcher(&session).await;
    assert_eq!(fresh.state(&session).permissions, first);
    let mut back = host.link();
    back.reattach(client, &session).await;
    back.decide(&first[0].perm_id, "once").await;
    back.event(|body| matches!(body, Body::PermissionResolved { .. })).await;
    back.idle(&session).await;
}

#[tokio::test]
async fn a_permission_that_nobody_answers_in_time_is_denied_also_if_nobody_watches() {
    let host = TestHost::with(DemoWithMode::quick(), |config| {
        config.v2.permission_timeout = Duration::from_millis(300);
    })
    .await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/run true", "1").await;
    let permission = client.asked(&session).await;
    let mut back = host.link();
    let (models, id) = (client.models.clone(), client.id.clone());
    client.close().await;
    // The host denies it by itself.
    let chat = host.chat_of(&session).await;
    let mut tail = host.log.tail(0, Channels::only([chat.as_str()]));
    let is_answer = |entry: &Entry| entry.action_type().as_deref() == Some("chat/toolCallConfirmed");
    while !soon(tail.next(1 << 20)).await.unwrap().iter().any(is_answer) {}
    (back.models, back.id) = (models, id);
    let last = back.model(&session).last_seq();
    back.say(json!({"type": "reattach", "clientId": back.id.clone(),
        "sessions": [{"sessionId": session, "lastSeq": last}]}))
        .await;
    let timeout = back.event(|body| matches!(body, Body::PermissionTimeout { .. })).await;
    let Body::PermissionTimeout { perm_id } = timeout.body else { panic!() };
    assert_eq!(*perm_id, *permission);
    back.idle(&session).await;
    // An answer comes too late.
    back.say(json!({"type": "permission_response", "permId": permission, "decision": "once"})).await;
    back.refusal().await;
}

#[tokio::test]
async fn a_page_of_a_watch_that_was_replaced_is_not_sent() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    for id in ["1", "2", "3"] {
        client.turn(&session, "/think", id).await;
    }
    let whole = client.state(&session).clone();
    let mut back = host.client().await;
    // Many watches of one session, each before the one before it has sent anything.
    for _ in 0..20 {
        back.say(json!({"type": "watch", "sessionId": session})).await;
    }
    back.say(json!({"type": "unwatch", "sessionId": session})).await;
    let last = client.model(&session).last_seq();
    back.say(json!({"type": "watch", "sessionId": session, "lastSeq": last})).await;
    back.say(json!({"type": "ping"})).await;
    back.until(|back| back.seen.last() == Some(&Outgoing::Connection(ConnectionEvent::Pong {}))).await;
    // After the last watch there is nothing of any earlier one.
    let begin = back.seen.len();
    client.turn(&session, "end", "4").await;
    let wanted = client.model(&session).last_seq();
    back.until(|back| back.model(&session).last_seq() >= wanted).await;
    let late =
        back.seen[begin..].iter().filter(|seen| matches!(seen, Outgoing::Event(event) if Some(event.seq) <= last));
    assert_eq!(late.count(), 0);
    assert_ne!(&whole, client.state(&session));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_closed() {
    let host = TestHost::with(DemoWithMode::quick(), |config| {
        config.v2.stall_time = Duration::from_millis(300);
    })
    .await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "/big 60000", "1").await;
    let mut deaf = host.link_with(1 << 20, 1);
    deaf.hello().await;
    deaf.say(json!({"type": "watch", "sessionId": session})).await;
    let served = &mut deaf.served;
    assert!(matches!(soon(served).await.unwrap(), EndReason::Stalled { .. }));
}
