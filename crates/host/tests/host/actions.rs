//! Actions of clients are checked, logged, and sent to all followers.

use breakbulk_host::log::AppendError;
use serde_json::{Value, json};

use super::client::Raw;
use super::test_host::{SESSION, TestHost, action_of, state};

fn dispatch(client: &mut Raw, channel: &str, seq: i64, action: Value) {
    client.notify("dispatchAction", json!({"channel": channel, "clientSeq": seq, "action": action}));
}

#[tokio::test]
async fn an_action_comes_back_with_its_origin_and_reaches_the_others() {
    let host = TestHost::new().await;
    let (mut client, _) = host.with_session("c").await;
    let mut other = host.client("d").await;
    other.subscribe(SESSION).await;
    dispatch(&mut client, SESSION, 7, json!({"type": "session/titleChanged", "title": "Named"}));
    let mine = action_of(&mut client, "session/titleChanged").await;
    assert_eq!(mine["origin"], json!({"clientId": "c", "clientSeq": 7}));
    assert_eq!(action_of(&mut other, "session/titleChanged").await, mine);
    assert_eq!(state(&mut other, SESSION).await["title"], "Named");
    // The catalogue hears of it too.
    loop {
        let message = other.next().await.unwrap();
        if message["method"] == "root/sessionSummaryChanged" {
            assert_eq!(message["params"]["changes"]["title"], "Named");
            break;
        }
    }
}

#[tokio::test]
async fn a_refused_action_goes_back_to_its_sender_and_leaves_no_trace() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    client.subscribe(&chat).await;
    let before = host.log.bounds().await.unwrap().last;
    for (channel, action) in [
        (SESSION, json!({"type": "session/ready"})),
        (SESSION, json!({"type": "no/such"})),
        (SESSION, json!({"type": "session/workingDirectorySet", "directory": "file:///"})),
        (SESSION, json!({"type": "session/mcpServerStartRequested", "id": "x"})),
        (&chat, json!({"type": "session/titleChanged", "title": "x"})),
        (&chat, json!({"type": "chat/turnCancelled", "turnId": "none", "duration": 1})),
    ] {
        dispatch(&mut client, channel, 1, action.clone());
        let refused = loop {
            let message = client.next().await.unwrap();
            if message["params"].get("rejectionReason").is_some() {
                break message["params"].clone();
            }
        };
        assert_eq!(refused["action"], action);
        assert_eq!(refused["origin"]["clientId"], "c");
    }
    assert_eq!(host.log.bounds().await.unwrap().last, before);
}

#[tokio::test]
async fn an_action_on_a_channel_that_does_not_exist_is_refused_by_name() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    let before = host.log.bounds().await.unwrap().last;
    for (channel, action) in [
        ("ahp-session:/none", json!({"type": "session/titleChanged", "title": "x"})),
        ("ahp-terminal:/none", json!({"type": "terminal/input", "data": "x"})),
    ] {
        let why = format!("there is no channel {channel:?}");
        dispatch(&mut client, channel, 1, action.clone());
        let refused = client.action().await.1;
        assert_eq!((&refused["rejectionReason"], &refused["action"]), (&json!(why), &action));
        assert_eq!(refused["origin"], json!({"clientId": "c", "clientSeq": 1}));
        let params = json!({"channel": channel, "clientSeq": 2, "action": action});
        let error = client.call("dispatchAction", params).await.unwrap_err();
        assert_eq!((&error["code"], &error["message"]), (&json!(-32008), &json!(why)));
        assert_eq!(client.action().await.1["origin"]["clientSeq"], 2, "it goes back as well");
    }
    assert_eq!(host.log.bounds().await.unwrap().last, before);
}

/// The code and message of the error of an action that was dispatched as a request.
async fn refusal(client: &mut Raw, channel: &str, action: Value) -> (i64, String) {
    let params = json!({"channel": channel, "clientSeq": 1, "action": action});
    let error = client.call("dispatchAction", params).await.expect_err("it is refused");
    client.backlog.clear();
    (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn what_does_not_fit_in_an_action_is_named() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    for (channel, action, why) in [
        (SESSION, json!({"type": "no/such"}), r#"this host does not know the action "no/such""#),
        (SESSION, json!({"kind": "x"}), r#"invalid action: it must be an object with a "type""#),
        (
            SESSION,
            json!({"type": "session/titleChanged"}),
            r#"invalid action session/titleChanged: the field "title" is missing"#,
        ),
        (
            &*chat,
            json!({"type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00Z", "message": {"text": 1}}),
            r#"invalid action chat/turnStarted: the field "message.text" must be a string"#,
        ),
    ] {
        assert_eq!(refusal(&mut client, channel, action).await, (-32602, why.to_owned()));
    }
}

#[tokio::test]
async fn titles_and_ids_that_a_client_chooses_are_bounded() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    let (long, longer) = ("ä".repeat(1024), "ä".repeat(1025));
    let titled = |title: &str| json!({"type": "session/titleChanged", "title": title});
    let named = |name: &str| json!({"type": "session/activeClientSet", "activeClient": {"clientId": "c", "tools": [], "displayName": name}});
    let began = |turn: &str| {
        json!({"type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00Z",
            "message": {"text": "/echo", "origin": {"kind": "user"}}})
    };
    let waits = |id: &str| json!({"type": "chat/pendingMessageSet", "kind": "queued", "id": id, "message": {"text": "x", "origin": {"kind": "user"}}});
    for (channel, action, why) in [
        (SESSION, titled(&longer), "title has 1025 characters, the limit is 1024"),
        (SESSION, named(&longer), "activeClient.displayName has 1025 characters, the limit is 1024"),
        (&*chat, began(&"x".repeat(257)), "turnId has 257 bytes, the limit is 256"),
        (&*chat, waits(&"x".repeat(257)), "id has 257 bytes, the limit is 256"),
    ] {
        assert_eq!(refusal(&mut client, channel, action).await, (-32602, why.to_owned()));
    }
    for action in [titled(&long), named(&long)] {
        let params = json!({"channel": SESSION, "clientSeq": 1, "action": action});
        assert_eq!(client.call("dispatchAction", params).await, Ok(Value::Null));
    }
    let params =
        json!({"channel": "ahp-session:/2", "activeClient": {"clientId": "c", "tools": [], "displayName": longer}});
    assert_eq!(client.call("createSession", params).await.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn a_time_after_which_a_turn_could_not_end_is_refused_with_what_is_allowed() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    let began = |at: &str| json!({"type": "chat/turnStarted", "turnId": "t", "startedAt": at, "message": {"text": "/echo", "origin": {"kind": "user"}}});
    for at in ["9999-12-31T00:00:00Z", "9999-06-01T00:00:00Z", "yesterday"] {
        let (code, why) = refusal(&mut client, &chat, began(at)).await;
        assert_eq!(code, -32600);
        assert!(why.contains("in a year before 9998"), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_log_is_said_at_once_and_the_same_everywhere() {
    let (host, log) = TestHost::on_memory().await;
    let (mut client, _) = host.with_session("c").await;
    log.refuse(Some(AppendError::Full));
    let start = tokio::time::Instant::now();
    let title = json!({"channel": SESSION, "clientSeq": 1, "action": {"type": "session/titleChanged", "title": "x"}});
    for (method, params) in [
        ("dispatchAction", title),
        ("createSession", json!({"channel": "ahp-session:/2"})),
        ("createChat", json!({"channel": SESSION, "chat": "ahp-chat:/2"})),
        ("createTerminal", json!({"channel": "ahp-terminal:/1", "claim": {"kind": "client", "clientId": "c"}})),
        ("disposeSession", json!({"channel": SESSION})),
    ] {
        let error = client.call(method, params).await.unwrap_err();
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("logFull")), "{method}");
        assert!(error["message"].as_str().unwrap().contains("disk of the host is full"), "{error}");
    }
    assert_eq!(start.elapsed(), std::time::Duration::ZERO, "by a clock that only waiting moves");
}

#[tokio::test]
async fn annotations_are_counted_in_the_catalogue() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    let session = state(&mut client, SESSION).await;
    let channel = session["annotations"]["resource"].as_str().unwrap().to_owned();
    client.subscribe(&channel).await;
    let entry =
        json!({"id": "e", "text": "look here", "author": {"kind": "user"}, "createdAt": "2026-01-01T00:00:00Z"});
    let annotation = json!({"id": "a", "origin": {"session": SESSION, "chat": chat, "turnId": "t"}, "turnId": "t",
        "resource": host.path("f"), "resolved": false, "entries": [entry]});
    dispatch(&mut client, &channel, 1, json!({"type": "annotations/set", "annotation": annotation}));
    loop {
        let message = client.next().await.unwrap();
        assert_eq!(message["params"].get("rejectionReason"), None, "{message}");
        if message["method"] == "root/sessionSummaryChanged" {
            let counted = &message["params"]["changes"]["annotations"];
            assert_eq!((&counted["annotationCount"], &counted["entryCount"]), (&json!(1), &json!(1)));
            break;
        }
    }
}

#[tokio::test]
async fn while_a_chat_is_busy_a_client_is_still_heard() {
    use breakbulk_host::log::Batch;
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    let (log, busy) = (host.log.clone(), chat.clone());
    let noise = tokio::spawn(async move {
        loop {
            let body = json!({"channel": busy, "action": {"type": "chat/activityChanged", "activity": "busy"}});
            log.append(Batch::new().entry(busy.as_str(), body.to_string())).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    client.subscribe(&chat).await;
    dispatch(&mut client, &chat, 3, json!({"type": "chat/isReadChanged", "isRead": true}));
    let heard = action_of(&mut client, "chat/isReadChanged").await;
    noise.abort();
    assert_eq!(heard["origin"]["clientSeq"], 3);
    assert_eq!(heard.get("rejectionReason"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn however_many_clients_change_one_chat_at_once_each_is_heard() {
    let host = TestHost::on_disk().await;
    let (mut first, chat) = host.with_session("c").await;
    first.subscribe(&chat).await;
    let mut clients = vec![first];
    for n in 1..8 {
        let mut client = host.client(&format!("c{n}")).await;
        client.subscribe(&chat).await;
        clients.push(client);
    }
    for n in 1..=30 {
        for client in &mut clients {
            let draft = json!({"text": "x".repeat(5000), "origin": {"kind": "user"}});
            dispatch(client, &chat, n, json!({"type": "chat/draftChanged", "draft": draft}));
        }
    }
    let heard = clients.into_iter().map(|mut client| {
        tokio::spawn(async move {
            for _ in 0..8 * 30 {
                let action = action_of(&mut client, "chat/draftChanged").await;
                assert_eq!(action.get("rejectionReason"), None);
            }
        })
    });
    for client in heard.collect::<Vec<_>>() {
        client.await.unwrap();
    }
}
