//! Chats are made, forked, and disposed of.

use serde_json::{Value, json};

use super::client::Raw;
use super::test_host::{SESSION, TestHost, action_of, state};

const SECOND: &str = "ahp-chat:/second";

async fn create(client: &mut Raw, params: Value) -> Result<Value, i64> {
    let made = client.call("createChat", params).await;
    made.map_err(|error| error["code"].as_i64().unwrap())
}

/// Logs completed turns, as an agent would.
async fn turns(host: &TestHost, chat: &str, count: usize) {
    use breakbulk_host::log::{Batch, Log};
    for n in 0..count {
        let started = super::test_host::prompt(&format!("t{n}"), &format!("prompt {n}"));
        let ended = json!({"type": "chat/turnComplete", "turnId": format!("t{n}"), "duration": 1});
        let body = |action: Value| json!({"channel": chat, "action": action}).to_string();
        let log: &dyn Log = &*host.log;
        log.append(Batch::new().entry(chat, body(started)).entry(chat, body(ended))).await.unwrap();
    }
}

#[tokio::test]
async fn a_second_chat_is_listed_in_its_session() {
    let host = TestHost::new().await;
    let (mut client, first) = host.with_session("c").await;
    create(&mut client, json!({"channel": SESSION, "chat": SECOND})).await.unwrap();
    let session = state(&mut client, SESSION).await;
    let listed: Vec<_> = session["chats"].as_array().unwrap().iter().map(|chat| &chat["resource"]).collect();
    assert_eq!(listed, [&json!(first), &json!(SECOND)]);
    assert_eq!(state(&mut client, SECOND).await["origin"]["kind"], "user");
    assert_eq!(create(&mut client, json!({"channel": SESSION, "chat": SECOND})).await, Err(-32010));
    assert_eq!(create(&mut client, json!({"channel": "ahp-session:/x", "chat": "ahp-chat:/3"})).await, Err(-32001));
    assert_eq!(create(&mut client, json!({"channel": SESSION, "chat": "ahp-root://"})).await, Err(-32602));
}

#[tokio::test]
async fn a_fork_has_the_turns_up_to_where_it_was_made() {
    let host = TestHost::new().await;
    let (mut client, first) = host.with_session("c").await;
    turns(&host, &first, 3).await;
    let source = json!({"kind": "fork", "chat": first, "turnId": "t1"});
    create(&mut client, json!({"channel": SESSION, "chat": SECOND, "source": source})).await.unwrap();
    let fork = state(&mut client, SECOND).await;
    let ids: Vec<_> = fork["turns"].as_array().unwrap().iter().map(|turn| turn["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["t0", "t1"]);
    assert_eq!(fork["origin"], source);
    let nowhere = json!({"kind": "fork", "chat": first, "turnId": "none"});
    assert_eq!(
        create(&mut client, json!({"channel": SESSION, "chat": "ahp-chat:/3", "source": nowhere})).await,
        Err(-32008)
    );
    let stranger = json!({"kind": "fork", "chat": "ahp-chat:/x", "turnId": "t1"});
    assert_eq!(
        create(&mut client, json!({"channel": SESSION, "chat": "ahp-chat:/3", "source": stranger})).await,
        Err(-32008)
    );
}

#[tokio::test]
async fn a_side_chat_begins_empty_and_remembers_what_was_selected() {
    let host = TestHost::new().await;
    let (mut client, first) = host.with_session("c").await;
    turns(&host, &first, 1).await;
    let selection = json!({"text": "these words", "responsePartId": "p", "turnId": "t0"});
    let source = json!({"kind": "sideChat", "chat": first, "turnId": "t0", "selection": selection});
    create(&mut client, json!({"channel": SESSION, "chat": SECOND, "source": source})).await.unwrap();
    let side = state(&mut client, SECOND).await;
    assert_eq!(side["turns"], json!([]));
    assert_eq!(side["origin"]["selection"]["text"], "these words");
}

#[tokio::test]
async fn a_side_chat_is_about_a_turn_of_a_chat_of_its_session_or_it_is_refused() {
    let host = TestHost::new().await;
    let (mut client, first) = host.with_session("c").await;
    turns(&host, &first, 1).await;
    client.call("createSession", json!({"channel": "ahp-session:/2"})).await.unwrap();
    let elsewhere = state(&mut client, "ahp-session:/2").await["defaultChat"].as_str().unwrap().to_owned();
    turns(&host, &elsewhere, 1).await;
    for (wrong, code) in [
        (json!({"kind": "sideChat", "chat": first}), -32602),
        (json!({"kind": "sideChat", "turnId": "t0"}), -32602),
        (json!({"kind": "sideChat", "chat": first, "turnId": "t0", "selection": {"text": ""}}), -32602),
        (json!({"kind": "sideChat", "chat": first, "turnId": "none"}), -32008),
        (json!({"kind": "sideChat", "chat": "ahp-chat:/x", "turnId": "t0"}), -32008),
        (json!({"kind": "sideChat", "chat": elsewhere, "turnId": "t0"}), -32008),
    ] {
        let params = json!({"channel": SESSION, "chat": SECOND, "source": wrong});
        assert_eq!(create(&mut client, params).await, Err(code), "{wrong}");
    }
    assert_eq!(state(&mut client, SESSION).await["chats"].as_array().unwrap().len(), 1);
    // Of all these nobody who follows the chat has heard, and of a good one neither.
    let seen = client.subscribe(&first).await["snapshot"]["fromSeq"].as_i64().unwrap();
    let source = json!({"kind": "sideChat", "chat": first, "turnId": "t0"});
    create(&mut client, json!({"channel": SESSION, "chat": SECOND, "source": source})).await.unwrap();
    let mut again = host.link();
    let missed = again.reconnect("d", seen, &[&first]).await;
    assert_eq!((&missed["type"], &missed["actions"]), (&json!("replay"), &json!([])));
}

#[tokio::test]
async fn directories_of_a_chat_are_some_of_its_session() {
    let host = TestHost::new().await;
    let (mut client, _) = host.with_session("c").await;
    let wrong = json!({"channel": SESSION, "chat": SECOND, "workingDirectories": [host.path("else")]});
    assert_eq!(create(&mut client, wrong).await, Err(-32602));
    let right = json!({"channel": SESSION, "chat": SECOND, "workingDirectories": [host.uri()]});
    create(&mut client, right).await.unwrap();
    assert_eq!(state(&mut client, SECOND).await["workingDirectories"], json!([host.uri()]));
}

#[tokio::test]
async fn a_chat_that_is_disposed_of_is_gone_and_another_is_the_default() {
    let host = TestHost::new().await;
    let (mut client, first) = host.with_session("c").await;
    create(&mut client, json!({"channel": SESSION, "chat": SECOND})).await.unwrap();
    client.call("disposeChat", json!({"channel": first})).await.unwrap();
    let session = state(&mut client, SESSION).await;
    assert_eq!((session["chats"].as_array().unwrap().len(), &session["defaultChat"]), (1, &json!(SECOND)));
    let gone = client.call("subscribe", json!({"channel": first})).await.unwrap_err();
    assert_eq!(gone["code"], -32008);
    assert_eq!(client.call("disposeChat", json!({"channel": first})).await.unwrap_err()["code"], -32008);
    let host = host.again().await;
    let mut client = host.client("c").await;
    assert_eq!(client.call("subscribe", json!({"channel": first})).await.unwrap_err()["code"], -32008);
    // The name is free again.
    create(&mut client, json!({"channel": SESSION, "chat": first})).await.unwrap();
    assert_eq!(state(&mut client, &first).await["turns"], json!([]));
}

#[tokio::test]
async fn older_turns_come_before_the_answer_to_who_asked_alone() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    let mut other = host.client("d").await;
    turns(&host, &chat, 5).await;
    other.subscribe(&chat).await;
    let shown = client.call("subscribe", json!({"channel": chat, "view": {"turns": 2}})).await.unwrap();
    let shown = &shown["snapshot"]["state"];
    assert_eq!(shown["turns"].as_array().unwrap().len(), 2);
    let cursor = &shown["turnsNextCursor"];
    client.backlog.clear();
    let answer = client.call("fetchTurns", json!({"channel": chat, "cursor": cursor})).await.unwrap();
    assert_eq!(answer, json!({}));
    // What came before the answer is in the backlog by now.
    let loaded = client.backlog.pop_front().unwrap();
    let action = &loaded["params"]["action"];
    assert_eq!(action["type"], "chat/turnsLoaded");
    let ids: Vec<_> = action["turns"].as_array().unwrap().iter().map(|turn| turn["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["t0", "t1", "t2"]);
    other.call("ping", json!({"channel": "ahp-root://"})).await.unwrap();
    assert!(other.backlog.iter().all(|message| message["params"]["action"]["type"] != "chat/turnsLoaded"));
    let wrong = client.call("fetchTurns", json!({"channel": chat, "cursor": "nonsense"})).await.unwrap_err();
    assert_eq!(wrong["code"], -32602);
}

#[tokio::test]
async fn who_sees_a_window_comes_back_to_a_snapshot_when_turns_are_taken_away() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    turns(&host, &chat, 5).await;
    let mut windowed = host.client("d").await;
    let shown = windowed.call("subscribe", json!({"channel": chat, "view": {"turns": 2}})).await.unwrap();
    let seen = shown["snapshot"]["fromSeq"].as_i64().unwrap();
    client.subscribe(&chat).await;
    let truncated = json!({"type": "chat/truncated", "turnId": "t1"});
    client.notify("dispatchAction", json!({"channel": chat, "clientSeq": 1, "action": truncated}));
    // Who has all turns hears of it like of anything else.
    action_of(&mut client, "chat/truncated").await;
    assert_eq!(windowed.code().await, 1012);
    let mut windowed = host.link();
    let result = windowed.reconnect("d", seen, &[&chat]).await;
    assert_eq!(result["type"], "snapshot");
    let ids: Vec<_> =
        result["snapshots"][0]["state"]["turns"].as_array().unwrap().iter().map(|turn| &turn["id"]).collect();
    assert_eq!(ids, ["t0", "t1"]);
}

#[tokio::test]
async fn who_follows_a_chat_that_is_disposed_of_hears_of_it_and_may_follow_another_of_that_name() {
    let host = TestHost::new().await;
    let (mut client, _) = host.with_session("c").await;
    let second = json!({"channel": SESSION, "chat": "ahp-chat:/second"});
    for _ in 0..2 {
        create(&mut client, second.clone()).await.unwrap();
        assert_eq!(state(&mut client, "ahp-chat:/second").await["turns"], json!([]));
        client.call("disposeChat", json!({"channel": "ahp-chat:/second"})).await.unwrap();
        let removed = action_of(&mut client, "session/chatRemoved").await;
        assert_eq!(removed["action"]["chat"], "ahp-chat:/second");
        let gone = client.call("subscribe", json!({"channel": "ahp-chat:/second"})).await.unwrap_err();
        assert_eq!(gone["code"], -32008);
    }
}

#[tokio::test]
async fn the_last_working_directory_of_a_chat_or_a_session_stays() {
    let host = TestHost::new().await;
    let (mut client, _) = host.with_session("c").await;
    let chat = "ahp-chat:/subset";
    let made = json!({"channel": SESSION, "chat": chat, "workingDirectories": [host.uri()]});
    client.call("createChat", made).await.unwrap();
    for (channel, kind) in [(chat, "chat/workingDirectoryRemoved"), (SESSION, "session/workingDirectoryRemoved")] {
        let action = json!({"type": kind, "directory": host.uri()});
        let params = json!({"channel": channel, "clientSeq": 1, "action": action});
        let error = client.call("dispatchAction", params).await.unwrap_err();
        assert_eq!(error["message"], "the last working directory cannot be removed: add another one first");
        assert_eq!(state(&mut client, channel).await["workingDirectories"], json!([host.uri()]));
    }
    // With another one it goes, and the chat goes on.
    std::fs::create_dir(host.root.path().join("b")).unwrap();
    for (channel, kind, directory) in [
        (SESSION, "session/workingDirectorySet", host.path("b")),
        (chat, "chat/workingDirectorySet", host.path("b")),
        (chat, "chat/workingDirectoryRemoved", host.uri()),
    ] {
        let params = json!({"channel": channel, "clientSeq": 2, "action": {"type": kind, "directory": directory}});
        assert_eq!(client.call("dispatchAction", params).await, Ok(Value::Null), "{kind}");
    }
    // The session has another one, but the chat has not.
    let action = json!({"type": "session/workingDirectoryRemoved", "directory": host.path("b")});
    let params = json!({"channel": SESSION, "clientSeq": 3, "action": action});
    let error = client.call("dispatchAction", params).await.unwrap_err();
    assert_eq!(
        error["message"],
        "the directory is the only one of a chat of this session: give that chat another one first"
    );
    assert_eq!(state(&mut client, SESSION).await["workingDirectories"], json!([host.uri(), host.path("b")]));
    let empty = json!({"channel": SESSION, "chat": "ahp-chat:/empty", "workingDirectories": []});
    let error = client.call("createChat", empty).await.unwrap_err();
    assert!(error["message"].as_str().unwrap().starts_with("workingDirectories is empty"), "{error}");
}
