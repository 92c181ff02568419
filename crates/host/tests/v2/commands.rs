//! What commands do.

use breakbulk_lifecycle::v2::wire::{AckOutcome, Body, ConnectionEvent, Outgoing, SessionState};
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
    assert_eq!(client.answer().await, ConnectionEvent::Sessions { sessions: Vec::new(), next_cursor: None });
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

#[tokio::test]
async fn an_open_that_comes_again_means_the_same_session_and_with_other_fields_is_refused() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let mut client = host.client().await;
    let open = json!({"type": "open", "agent": "demo", "cwd": host.path(), "mode": "default", "clientMsgId": "o"});
    let ack = async |client: &mut crate::world::Client, command: &serde_json::Value| {
        client.say(command.clone()).await;
        let ConnectionEvent::Ack { session_id, repeated, .. } = client.answer().await else { panic!() };
        (session_id.unwrap(), repeated)
    };
    let (session, repeated) = ack(&mut client, &open).await;
    assert!(!repeated);
    // The mode is another one now, and more commands were given than are remembered of a session; the command is the same.
    client.say(json!({"type": "set_mode", "sessionId": session, "mode": "plan"})).await;
    client.answer().await;
    client.turn(&session, "hello", "o").await;
    assert_eq!(ack(&mut client, &open).await, (session.clone(), true));
    let host = host.crash(DemoWithMode::quick()).await;
    let mut client = host.client().await;
    assert_eq!(ack(&mut client, &open).await, (session.clone(), true));
    for (field, other) in
        [("mode", json!("plan")), ("model", json!("large")), ("mode", json!(null)), ("cwd", json!("/"))]
    {
        let mut other_open = open.clone();
        other_open[field] = other;
        client.say(other_open).await;
        let refusal = client.refusal().await;
        assert_eq!(refusal.client_msg_id.as_deref(), Some("o"), "{refusal:?}");
    }
    // A session that was disposed of is gone with all that was done in it: the command makes another one.
    crate::history::dispose(&host, &session).await;
    assert_eq!(ack(&mut client, &open).await, (session.clone(), false));
    client.turn(&session, "hello", "o").await;
    assert_eq!(client.prompts(&session), ["hello"]);
}

#[tokio::test]
async fn a_list_that_does_not_fit_one_event_comes_in_pages_and_leaves_nothing_out() {
    let host = TestHost::with(DemoWithMode::quick(), |config| config.v2.max_event_bytes = 2_000).await;
    let mut client = host.client().await;
    let mut wanted = Vec::new();
    for _ in 0..20 {
        wanted.push(client.open(host.path(), None).await);
        let last = wanted.last().unwrap().clone();
        client.say(json!({"type": "unwatch", "sessionId": last})).await;
    }
    for limit in [None, Some(1), Some(7), Some(1_000)] {
        let (mut found, mut cursor, mut pages) = (Vec::new(), None, 0);
        loop {
            client.say(json!({"type": "list", "cursor": cursor, "limit": limit})).await;
            let answer = client.answer().await;
            assert!(serde_json::to_vec(&answer).unwrap().len() <= 2_000);
            let ConnectionEvent::Sessions { sessions, next_cursor } = answer else { panic!("{answer:?}") };
            assert!(limit.is_none_or(|limit| sessions.len() <= limit));
            found.extend(sessions.into_iter().map(|info| info.session_id));
            (cursor, pages) = (next_cursor, pages + 1);
            if cursor.is_none() {
                break;
            }
        }
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
        assert!(pages > 1);
    }
    client.say(json!({"type": "list", "cursor": "nonsense"})).await;
    assert_eq!(client.refusal().await.command.as_deref(), Some("list"));
    client.say(json!({"type": "list", "limit": 0})).await;
    assert_eq!(client.refusal().await.field.as_deref(), Some("limit"));
}

#[tokio::test]
async fn a_stop_ends_the_session_whatever_it_is_doing() {
    for (prompts, doing) in [
        (&[][..], SessionState::Idle),
        (&["/slow one"], SessionState::Running),
        (&["/run true"], SessionState::RequiresAction),
        (&["/slow one", "two", "three"], SessionState::Running),
    ] {
        let host = TestHost::new(DemoWithMode::patient()).await;
        let (mut client, session) = host.opened().await;
        let mut second = host.watcher(&session).await;
        for (number, prompt) in prompts.iter().enumerate() {
            client.send(&session, prompt, &number.to_string()).await;
        }
        let waiting = prompts.len().saturating_sub(1);
        client
            .until(|client| client.state(&session).state == doing && client.state(&session).queue.len() == waiting)
            .await;
        client.say(json!({"type": "stop", "sessionId": session})).await;
        for watcher in [&mut client, &mut second] {
            watcher.event(|body| matches!(body, Body::SessionEnd {})).await;
            let state = watcher.state(&session);
            assert!(state.ended && !state.running && state.current.is_none(), "{doing:?}");
            assert!(state.permissions.is_empty() && state.queue.is_empty(), "{doing:?}");
        }
        let returned: usize = client
            .events(&session)
            .iter()
            .map(|event| match &event.body {
                Body::QueueChanged { returned, .. } => returned.len(),
                _ => 0,
            })
            .sum();
        assert_eq!(returned, waiting);
        // Whoever comes later is told too, with nothing, with what it had before, and with all of it.
        let events = client.events(&session);
        let all = events.last().map(|event| event.seq);
        let before = events.iter().find(|event| !event.more).map(|event| event.seq);
        for last in [None, before] {
            let mut late = host.client().await;
            late.watch(&session, last).await;
            late.event(|body| matches!(body, Body::SessionEnd {})).await;
        }
        let late = host.client().await.watch(&session, all).await;
        assert!(matches!(late, ConnectionEvent::Reattached { ended: true, running: false, .. }), "{late:?}");
    }
}

#[tokio::test]
async fn a_stop_of_a_session_whose_turn_a_crash_cut_off_ends_it() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/slow one", "1").await;
    client.until(|client| client.state(&session).running).await;
    let host = host.crash(DemoWithMode::quick()).await;
    let mut back = host.watcher(&session).await;
    back.say(json!({"type": "stop", "sessionId": session})).await;
    back.event(|body| matches!(body, Body::SessionEnd {})).await;
    assert!(back.state(&session).ended);
}

#[tokio::test]
async fn the_branch_of_the_working_directory_is_told() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let start = async |dir: &std::path::Path| {
        let mut client = host.client().await;
        let session = client.open(dir, None).await;
        client.until(|client| client.model(&session).last_seq().is_some()).await;
        (client.state(&session).branch.clone(), client.state(&session).is_worktree)
    };
    assert_eq!(start(host.path()).await, (None, false));
    let git = host.path().join(".git");
    std::fs::create_dir_all(git.join("objects")).unwrap();
    std::fs::write(git.join("HEAD"), "ref: refs/heads/feature/a\n").unwrap();
    assert_eq!(start(host.path()).await, (Some("feature/a".to_owned()), false));
    // A linked work tree names its repository, which names the common one.
    let (tree, own) = (host.path().join("tree"), git.join("worktrees/tree"));
    std::fs::create_dir_all(&own).unwrap();
    std::fs::create_dir_all(&tree).unwrap();
    std::fs::write(tree.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
    std::fs::write(own.join("commondir"), "../..\n").unwrap();
    std::fs::write(own.join("HEAD"), "ref: refs/heads/other\n").unwrap();
    assert_eq!(start(&tree).await, (Some("other".to_owned()), true));
}
