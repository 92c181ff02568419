//! What commands do.

use breakbulk_lifecycle::v2::wire::{AckOutcome, Body, ConnectionEvent, Outgoing};
use serde_json::json;

use crate::world::{DemoWithMode, TestHost};

#[tokio::test]
async fn a_command_that_cannot_be_read_is_named_and_the_connection_lives() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let mut client = host.client().await;
    for (text, command, field) in [
        ("not JSON", None, None),
        ("[]", None, None),
        (r#"{"type":"dance"}"#, Some("dance"), None),
        (r#"{"type":"send","sessionId":"s"}"#, Some("send"), Some("prompt")),
        (r#"{"type":"watch","sessionId":5}"#, Some("watch"), Some("sessionId")),
        (r#"{"type":"watch","sessionId":"ahp-session:/none"}"#, Some("watch"), None),
        (r#"{"type":"stop","sessionId":"ahp-session:/none"}"#, Some("stop"), None),
        (r#"{"type":"permission_response","permId":"p","decision":"once"}"#, Some("permission_response"), None),
        (r#"{"type":"open","agent":"nobody","cwd":"/"}"#, Some("open"), None),
    ] {
        client.say_text(text.to_owned()).await;
        let refusal = client.refusal().await;
        assert_eq!((refusal.command.as_deref(), refusal.field.as_deref()), (command, field), "{refusal:?}");
        assert!(command.is_none_or(|command| refusal.error.contains(command)), "{refusal:?}");
    }
    client.say(json!({"type": "ping"})).await;
    assert_eq!(client.answer().await, ConnectionEvent::Pong {});
}

#[tokio::test]
async fn a_client_says_hello_before_anything_else() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let mut client = host.link();
    client.say(json!({"type": "list"})).await;
    assert_eq!(client.refusal().await.command.as_deref(), Some("list"));
    client.say(json!({"type": "hello", "protocolVersion": 3})).await;
    assert_eq!(client.refusal().await.field.as_deref(), Some("protocolVersion"));
    client.hello().await;
    client.say(json!({"type": "list"})).await;
    assert_eq!(client.answer().await, ConnectionEvent::Sessions { sessions: Vec::new() });
}

#[tokio::test]
async fn a_prompt_that_is_sent_while_a_turn_runs_waits_and_then_runs() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/run true", "1").await;
    let permission = client.asked(&session).await;
    let ConnectionEvent::Ack { outcome, repeated, .. } = client.send(&session, "second", "2").await else { panic!() };
    assert_eq!((outcome, repeated), (AckOutcome::Queued, false));
    client.until(|client| client.state(&session).queue.len() == 1).await;
    assert_eq!(client.state(&session).queue[0].client_msg_id.as_deref(), Some("2"));
    client.decide(&permission, "deny").await;
    client.until(|client| client.prompts(&session).len() == 2).await;
    client.idle(&session).await;
    assert_eq!(client.prompts(&session), ["/run true", "second"]);
}

#[tokio::test]
async fn an_interrupt_cancels_the_turn_gives_the_queue_back_and_says_something_else() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/slow one", "1").await;
    client.send(&session, "two", "2").await;
    client.send(&session, "three", "3").await;
    client.until(|client| client.state(&session).queue.len() == 2).await;
    client.say(json!({"type": "interrupt", "sessionId": session, "prompt": "four", "clientMsgId": "4"})).await;
    client.until(|client| client.prompts(&session).len() == 2).await;
    client.idle(&session).await;
    let returned = client.events(&session).into_iter().filter_map(|event| match &event.body {
        Body::QueueChanged { returned, .. } => Some(returned.iter().map(|prompt| prompt.prompt.clone())),
        _ => None,
    });
    assert_eq!(returned.flatten().collect::<Vec<_>>(), ["two", "three"]);
    assert_eq!(client.prompts(&session), ["/slow one", "four"]);
    let again = json!({"type": "interrupt", "sessionId": session, "prompt": "four", "clientMsgId": "4"});
    client.say(again).await;
    let ack = client.answer().await;
    assert!(matches!(ack, ConnectionEvent::Ack { outcome: AckOutcome::Started, repeated: true, .. }), "{ack:?}");
}

#[tokio::test]
async fn a_session_that_was_stopped_goes_on_with_the_next_prompt() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/slow one", "1").await;
    client.until(|client| client.state(&session).running).await;
    client.say(json!({"type": "stop", "sessionId": session})).await;
    client.until(|client| client.state(&session).ended).await;
    assert!(!client.state(&session).running);
    // Again, which changes nothing.
    client.say(json!({"type": "stop", "sessionId": session})).await;
    assert!(matches!(client.answer().await, ConnectionEvent::Ack { outcome: AckOutcome::Done, .. }));
    client.turn(&session, "two", "2").await;
    client.until(|client| client.prompts(&session).len() == 2).await;
    client.idle(&session).await;
    assert!(!client.state(&session).ended);
}

#[tokio::test]
async fn a_session_that_is_disposed_of_ends_for_its_watchers() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "hello", "1").await;
    crate::history::dispose(&host, &session).await;
    client.until(|client| client.state(&session).ended).await;
    let mut second = host.client().await;
    second.say(json!({"type": "watch", "sessionId": session})).await;
    assert_eq!(second.refusal().await.command.as_deref(), Some("watch"));
    let failed = host.link().reattach(client, &session).await;
    assert!(matches!(failed, ConnectionEvent::ReattachFailed { .. }), "{failed:?}");
}

#[tokio::test]
async fn an_image_reaches_the_agent() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    let image = json!({"mediaType": "image/png", "data": "iVBORw0KGgo="});
    client
        .say(json!({"type": "send", "sessionId": session, "prompt": "look", "clientMsgId": "1", "images": [image]}))
        .await;
    let said = client.event(|body| matches!(body, Body::UserMessage { .. })).await;
    let Body::UserMessage { attachments, .. } = said.body else { panic!() };
    assert_eq!(attachments[0].media_type.as_deref(), Some("image/png"));
    client.until(|client| client.state(&session).messages.len() == 2).await;
    let answer = &client.state(&session).messages[1].blocks;
    assert!(answer.iter().any(|block| block.content.contains("1 attachments")), "{answer:?}");
}

#[tokio::test]
async fn two_sessions_of_one_connection_do_not_hold_each_other_up() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, first) = host.opened().await;
    let second = client.open(host.path(), Some("second")).await;
    let again = client.open(host.path(), Some("second")).await;
    assert_eq!(second, again);
    client.send(&first, "/slow one", "1").await;
    client.turn(&second, "hello", "1").await;
    client.until(|client| client.prompts(&second).len() == 1).await;
    client.idle(&second).await;
    assert!(client.state(&first).running);
    client.say(json!({"type": "unwatch", "sessionId": first})).await;
    client.say(json!({"type": "ping"})).await;
    client.until(|client| client.seen.last() == Some(&Outgoing::Connection(ConnectionEvent::Pong {}))).await;
    client.say(json!({"type": "stop", "sessionId": first})).await;
    client.answer().await;
    client.turn(&second, "hello", "2").await;
    assert!(!client.state(&first).ended, "nobody tells of a session that is not watched");
}
