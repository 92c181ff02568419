//! What clients dispatch is checked, logged, and told to all.

use serde_json::{Value, json};

use super::client::Raw;
use super::world::{House, SESSION, action_of, state};

fn dispatch(client: &mut Raw, channel: &str, seq: i64, action: Value) {
    client.notify("dispatchAction", json!({"channel": channel, "clientSeq": seq, "action": action}));
}

#[tokio::test]
async fn an_action_comes_back_with_its_origin_and_reaches_the_others() {
    let house = House::new().await;
    let (mut client, _) = house.with_session("c").await;
    let mut other = house.client("d").await;
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
    let house = House::new().await;
    let (mut client, chat) = house.with_session("c").await;
    client.subscribe(&chat).await;
    let before = house.log.bounds().await.unwrap().last;
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
    assert_eq!(house.log.bounds().await.unwrap().last, before);
}

#[tokio::test]
async fn an_action_on_a_channel_that_does_not_exist_is_passed_over() {
    let house = House::new().await;
    let mut client = house.client("c").await;
    let before = house.log.bounds().await.unwrap().last;
    dispatch(&mut client, "ahp-session:/none", 1, json!({"type": "session/titleChanged", "title": "x"}));
    client.call("ping", json!({"channel": "ahp-root://"})).await.unwrap();
    let other = client.call("dispatchAction", json!({"channel": "ahp-session:/none", "clientSeq": 2, "action": {"type": "session/titleChanged", "title": "x"}})).await;
    assert_eq!(other, Ok(Value::Null));
    assert_eq!(house.log.bounds().await.unwrap().last, before);
    assert!(client.backlog.is_empty());
}

#[tokio::test]
async fn annotations_are_counted_in_the_catalogue() {
    let house = House::new().await;
    let (mut client, chat) = house.with_session("c").await;
    let session = state(&mut client, SESSION).await;
    let channel = session["annotations"]["resource"].as_str().unwrap().to_owned();
    client.subscribe(&channel).await;
    let entry =
        json!({"id": "e", "text": "look here", "author": {"kind": "user"}, "createdAt": "2026-01-01T00:00:00Z"});
    let annotation = json!({"id": "a", "origin": {"session": SESSION, "chat": chat, "turnId": "t"}, "turnId": "t",
        "resource": house.path("f"), "resolved": false, "entries": [entry]});
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
    let house = House::new().await;
    let (mut client, chat) = house.with_session("c").await;
    let (log, busy) = (house.log.clone(), chat.clone());
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
    let house = House::on_disk().await;
    let (mut first, chat) = house.with_session("c").await;
    first.subscribe(&chat).await;
    let mut clients = vec![first];
    for n in 1..8 {
        let mut client = house.client(&format!("c{n}")).await;
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
