//! Sessions are made, listed, and disposed of.

use breakbulk_host::log::{Batch, NewEntry};
use serde_json::{Value, json};

use super::client::Raw;
use super::test_host::{SESSION, TestHost, prompt, state};

fn code(answer: Result<Value, Value>) -> i64 {
    answer.unwrap_err()["code"].as_i64().unwrap()
}

async fn list(client: &mut Raw) -> Vec<String> {
    let listed = client.call("listSessions", json!({"channel": "ahp-root://"})).await.unwrap();
    listed["items"].as_array().unwrap().iter().map(|item| item["resource"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_page_of_the_list_has_at_least_one_session() {
    let host = TestHost::new().await;
    let (mut client, _) = host.with_session("c").await;
    for limit in [0, -1] {
        let refused = client.call("listSessions", json!({"channel": "ahp-root://", "limit": limit})).await;
        assert_eq!(refused.unwrap_err()["message"], "limit must be at least 1");
    }
}

#[tokio::test]
async fn a_new_session_is_ready_has_a_chat_and_is_announced_to_all() {
    let host = TestHost::new().await;
    let mut other = host.client("other").await;
    let (mut client, chat) = host.with_session("c").await;
    let session = state(&mut client, SESSION).await;
    assert_eq!(session["lifecycle"], "ready");
    assert_eq!(session["provider"], "demo");
    assert_eq!(session["workingDirectories"], json!([host.uri()]));
    assert_eq!(session["chats"][0]["resource"], *chat);
    assert_eq!(state(&mut client, &chat).await["turns"], json!([]));
    let added = other.next().await.unwrap();
    assert_eq!(
        (&added["method"], &added["params"]["summary"]["resource"]),
        (&json!("root/sessionAdded"), &json!(SESSION))
    );
    assert_eq!(other.action().await.1["action"]["activeSessions"], 1);
    assert_eq!(list(&mut other).await, [SESSION]);
}

#[tokio::test]
async fn what_is_wrong_with_a_new_session_has_the_code_that_the_protocol_has_for_it() {
    let host = TestHost::new().await;
    let (mut client, _) = host.with_session("c").await;
    let create = async |client: &mut Raw, params: Value| code(client.call("createSession", params).await);
    assert_eq!(create(&mut client, json!({"channel": SESSION})).await, -32003);
    assert_eq!(create(&mut client, json!({"channel": "ahp-session:/2", "provider": "nobody"})).await, -32002);
    assert_eq!(create(&mut client, json!({"channel": "file:///x"})).await, -32602);
    assert_eq!(create(&mut client, json!({"channel": "ahp-session:/2", "config": {"a": 1}})).await, -32602);
    for (method, params, named) in [
        ("createSession", json!({"channel": "ahp-session:/2", "provider": "nobody"}), "agent \"nobody\""),
        ("disposeSession", json!({"channel": "ahp-session:/none"}), "session \"ahp-session:/none\""),
        ("disposeChat", json!({"channel": "ahp-chat:/none"}), "chat \"ahp-chat:/none\""),
    ] {
        let message = client.call(method, params).await.unwrap_err()["message"].to_string();
        assert!(message.replace("\\\"", "\"").contains(&format!("there is no {named}")), "{message}");
    }
    let outside = json!({"channel": "ahp-session:/2", "workingDirectories": ["file:///"]});
    assert_eq!(create(&mut client, outside).await, -32009);
    let missing = json!({"channel": "ahp-session:/2", "workingDirectories": [host.path("none")]});
    assert_eq!(create(&mut client, missing).await, -32008);
    let other = json!({"channel": "ahp-session:/2", "activeClient": {"clientId": "d", "tools": []}});
    assert_eq!(create(&mut client, other).await, -32602);
    assert_eq!(list(&mut client).await, [SESSION]);
}

#[tokio::test]
async fn of_two_who_give_a_session_the_same_name_one_does() {
    let host = TestHost::new().await;
    let (mut a, mut b) = (host.client("a").await, host.client("b").await);
    let params = json!({"channel": SESSION});
    let (a, b) = tokio::join!(a.call("createSession", params.clone()), b.call("createSession", params));
    assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    assert_eq!(code(a.and(b)), -32003);
}

#[tokio::test]
async fn a_session_that_is_disposed_of_leaves_nothing() {
    let host = TestHost::new().await;
    let (mut client, chat) = host.with_session("c").await;
    client.call("disposeSession", json!({"channel": SESSION})).await.unwrap();
    assert_eq!(list(&mut client).await, [""; 0]);
    for channel in [SESSION, &chat] {
        assert_eq!(code(client.call("subscribe", json!({"channel": channel})).await), -32008);
    }
    assert_eq!(code(client.call("disposeSession", json!({"channel": SESSION})).await), -32001);
    assert!(host.log.channels(Some(SESSION)).await.unwrap().is_empty());
    assert_eq!(state(&mut client, "ahp-root://").await["activeSessions"], 0);
}

#[tokio::test]
async fn a_disposal_that_a_crash_has_cut_off_can_be_finished() {
    let host = TestHost::new().await;
    let (client, chat) = host.with_session("c").await;
    // What a host has logged first when it is killed then.
    let removed = json!({"method": "root/sessionRemoved", "params": {"channel": "ahp-root://", "session": SESSION}});
    let entry = NewEntry::new("ahp-root://", removed.to_string()).about(SESSION);
    host.log.append(Batch::new().push(entry)).await.unwrap();
    drop(client);
    let host = host.again().await;
    let mut client = host.client("c").await;
    assert_eq!(list(&mut client).await, [""; 0]);
    client.call("disposeSession", json!({"channel": SESSION})).await.unwrap();
    for channel in [SESSION, &chat] {
        assert_eq!(code(client.call("subscribe", json!({"channel": channel})).await), -32008);
    }
    assert!(host.log.channels(Some(SESSION)).await.unwrap().is_empty());
    assert_eq!(code(client.call("disposeSession", json!({"channel": SESSION})).await), -32001);
}

#[tokio::test]
async fn sessions_outlive_the_host() {
    let host = TestHost::new().await;
    let (_, chat) = host.with_session("c").await;
    let host = host.again().await;
    let mut client = host.client("c").await;
    assert_eq!(list(&mut client).await, [SESSION]);
    assert_eq!(state(&mut client, &chat).await["resource"], *chat);
    let root = state(&mut client, "ahp-root://").await;
    assert_eq!((&root["agents"][0]["provider"], &root["activeSessions"]), (&json!("demo"), &json!(1)));
}

#[tokio::test]
async fn settings_are_those_of_the_agent() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    let resolved = client.call("resolveSessionConfig", json!({"channel": "ahp-root://"})).await.unwrap();
    assert_eq!(resolved, json!({"schema": {"type": "object", "properties": {}}, "values": {}}));
    let asked = json!({"channel": "ahp-root://", "property": "x"});
    assert_eq!(code(client.call("sessionConfigCompletions", asked).await), -32602);
    let token = json!({"channel": "ahp-root://", "resource": "https://x.example", "token": "t"});
    assert_eq!(code(client.call("authenticate", token).await), -32602);
}

#[tokio::test]
async fn what_is_not_offered_says_so() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    for method in ["moveChat", "runAutomation", "listAutomationTriggerDefinitions", "no/such"] {
        assert_eq!(code(client.call(method, json!({"channel": "ahp-root://"})).await), -32601, "{method}");
    }
}

#[tokio::test]
async fn who_follows_a_session_that_is_disposed_of_follows_it_no_more() {
    let host = TestHost::with(|config| config.endpoint.max_subscriptions = 4).await;
    let mut client = host.client("c").await;
    for n in 0..6 {
        let session = format!("ahp-session:/{n}");
        client.call("createSession", json!({"channel": session})).await.unwrap();
        let chat = state(&mut client, &session).await["defaultChat"].clone();
        client.subscribe(chat.as_str().unwrap()).await;
        client.call("disposeSession", json!({"channel": session})).await.unwrap();
        assert_eq!(code(client.call("subscribe", json!({"channel": session})).await), -32008);
        assert_eq!(code(client.call("subscribe", json!({"channel": chat})).await), -32008);
    }
    assert_eq!(list(&mut client).await, [""; 0]);
    let names: Vec<_> = host.log.channels(None).await.unwrap().into_iter().map(|info| info.channel).collect();
    assert_eq!(names, ["ahp-root://".into()], "nothing of them is left");
}

#[tokio::test]
async fn a_time_that_a_client_made_up_does_not_put_its_session_first() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    for session in ["ahp-session:/1", "ahp-session:/2"] {
        client.call("createSession", json!({"channel": session})).await.unwrap();
    }
    for (session, at) in
        [("ahp-session:/1", "2999-01-01T00:00:00.000Z"), ("ahp-session:/2", "1999-01-01T00:00:00.000Z")]
    {
        let chat = state(&mut client, session).await["defaultChat"].as_str().unwrap().to_owned();
        let mut action = prompt("t", "/echo");
        action["startedAt"] = json!(at);
        let params = json!({"channel": chat, "clientSeq": 1, "action": action});
        client.call("dispatchAction", params).await.unwrap();
        // When the catalogue says that the session rests, it has heard of all of it.
        loop {
            let message = client.next().await.unwrap();
            let params = &message["params"];
            if message["method"] == "root/sessionSummaryChanged" && params["session"] == session {
                if let Some(modified) = params["changes"]["modifiedAt"].as_str() {
                    assert!(("2026".."2999").contains(&modified), "{message}");
                }
                if params["changes"]["status"].as_u64().is_some_and(|status| status & 31 == 1) {
                    break;
                }
            }
        }
        assert_eq!(list(&mut client).await[0], session);
    }
}
