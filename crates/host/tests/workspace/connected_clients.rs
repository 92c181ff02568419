//! Resources that clients publish: others read them through the host, as long as the client is connected.

use serde_json::{Value, json};

use super::test_host::{CHAT, Client, ROOT, SESSION, TestHost};

const URI: &str = "virtual://publisher/plugin/skill.md";

fn answer(client: &mut Client, asked: &Value, result: Value) {
    client.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": result}));
}

#[tokio::test]
async fn what_a_client_publishes_is_asked_of_it_and_its_answer_passed_on() {
    let host = TestHost::new().await;
    let (mut publisher, mut reader) = (host.client("publisher").await, host.client("reader").await);
    let id = reader.ask("resourceRead", json!({"channel": ROOT, "uri": URI, "encoding": "utf-8"}));
    let asked = publisher.asked().await;
    assert_eq!((&asked["method"], &asked["params"]["uri"]), (&json!("resourceRead"), &json!(URI)));
    let contents = json!({"data": "# Skill", "encoding": "utf-8"});
    answer(&mut publisher, &asked, contents.clone());
    assert_eq!(reader.answer(id).await, Ok(contents));

    let id = reader.ask("resourceRequest", json!({"channel": ROOT, "uri": URI, "write": true}));
    let asked = publisher.asked().await;
    let error = json!({"code": -32009, "message": "no", "data": {"request": {"x": 1}}});
    publisher.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
    assert_eq!(reader.answer(id).await, Err(error), "errors pass on as they are");
}

#[tokio::test]
async fn a_plugin_that_a_client_brought_to_the_session_is_asked_of_it() {
    let host = TestHost::new().await;
    let plugin = json!({"type": "plugin", "id": "p", "uri": "mem:plugins/p", "name": "p"});
    host.session(json!([{"clientId": "publisher", "tools": [], "customizations": [plugin]}])).await;
    let (mut publisher, mut reader) = (host.client("publisher").await, host.client("reader").await);
    for channel in [SESSION, CHAT] {
        let id = reader.ask("resourceList", json!({"channel": channel, "uri": "mem:plugins/p/skills"}));
        let asked = publisher.asked().await;
        answer(&mut publisher, &asked, json!({"entries": []}));
        assert_eq!(reader.answer(id).await, Ok(json!({"entries": []})));
    }
    for (channel, uri) in [(ROOT, "mem:plugins/p/x"), (SESSION, "mem:plugins/pp"), (SESSION, "mem:other")] {
        assert_eq!(reader.fails("resourceRead", json!({"channel": channel, "uri": uri})).await, -32008, "{uri}");
    }
}

#[tokio::test]
async fn a_request_is_rejected_when_the_client_goes_and_nobody_is_asked_afterwards() {
    let host = TestHost::new().await;
    let (mut publisher, mut reader) = (host.client("publisher").await, host.client("reader").await);
    let id = reader.ask("resourceRead", json!({"channel": ROOT, "uri": URI}));
    publisher.asked().await;
    drop(publisher);
    let error = reader.answer(id).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("clientGone")));
    assert_eq!(reader.fails("resourceRead", json!({"channel": ROOT, "uri": URI})).await, -32008);
}

#[tokio::test]
async fn a_client_that_came_back_is_asked_on_its_new_link() {
    let host = TestHost::new().await;
    let (old, mut reader) = (host.client("publisher").await, host.client("reader").await);
    let mut publisher = host.client("publisher").await;
    // The older link is fenced, and goes after the newer has come.
    super::test_host::soon(old.served).await.unwrap();
    let id = reader.ask("resourceRead", json!({"channel": ROOT, "uri": URI}));
    let asked = publisher.asked().await;
    answer(&mut publisher, &asked, json!({"data": "", "encoding": "utf-8"}));
    assert!(reader.answer(id).await.is_ok());
}

#[tokio::test]
async fn nothing_is_copied_between_a_client_and_the_roots() {
    let host = TestHost::new().await;
    let _publisher = host.client("publisher").await;
    let mut reader = host.client("reader").await;
    let params = json!({"channel": ROOT, "source": URI, "destination": host.uri("x")});
    assert_eq!(reader.fails("resourceCopy", params).await, -32602);
}
