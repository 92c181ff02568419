//! Changesets and customizations of a session, found when somebody follows it.

use serde_json::{Value, json};

use super::test_host::{CHANGES, Client, ROOT, SESSION, TestHost};

/// A session in a repository with one commit and one changed file, and a client.
async fn repository() -> (TestHost, Client) {
    let host = TestHost::new().await;
    host.git(&["init", "-q"]);
    host.write("a.txt", "old\n");
    host.write("AGENTS.md", "# How to work here\n");
    host.git(&["add", "-A"]);
    host.git(&["commit", "-q", "-m", "first"]);
    host.write("a.txt", "new\nlines\n");
    host.session(json!([])).await;
    let client = host.client("c").await;
    (host, client)
}

/// Follows the session until it lists its changeset, then the changeset.
async fn open(client: &mut Client) -> Value {
    client.subscribe(SESSION).await;
    let changed = client.action("session/changesetsChanged").await;
    assert_eq!(changed["action"]["changesets"][0]["uriTemplate"], CHANGES);
    ready(client).await
}

/// The changeset once it is computed.
async fn ready(client: &mut Client) -> Value {
    loop {
        let state = client.subscribe(CHANGES).await;
        if state["status"] == "ready" {
            return state;
        }
        client.unsubscribe(CHANGES).await;
    }
}

#[tokio::test]
async fn a_session_that_is_followed_gets_its_customizations_and_changes() {
    let (_world, mut client) = repository().await;
    let state = open(&mut client).await;
    assert_eq!(state["files"].as_array().unwrap().len(), 1, "{state}");
    let found = client.action("session/customizationsChanged").await["action"]["customizations"].to_string();
    assert!(found.contains("AGENTS.md"), "{found}");
}

#[tokio::test]
async fn what_was_before_a_change_is_read_and_never_written() {
    let (_world, mut client) = repository().await;
    let state = open(&mut client).await;
    let before = &state["files"][0]["edit"]["before"]["content"]["uri"];
    let params = json!({"channel": SESSION, "uri": before});
    assert_eq!(client.call("resourceRead", params.clone()).await.unwrap()["data"], "old\n");
    let mut base64 = params.clone();
    base64["encoding"] = json!("base64");
    assert_eq!(client.call("resourceRead", base64).await.unwrap()["data"], "b2xkCg==");
    assert_eq!(client.call("resourceRequest", params.clone()).await, Ok(json!({})));
    let mut write = params;
    write["write"] = json!(true);
    assert_eq!(client.fails("resourceRequest", write).await, -32009);
}

#[tokio::test]
async fn operations_work_and_each_failure_has_its_code() {
    let (host, mut client) = repository().await;
    open(&mut client).await;
    let invoke =
        |channel: &str, id: &str, target: Value| json!({"channel": channel, "operationId": id, "target": target});
    let file = |name: &str| json!({"kind": "resource", "resource": host.uri(name), "side": "after"});
    assert_eq!(client.fails("invokeChangesetOperation", invoke(CHANGES, "explode", file("a.txt"))).await, -32602);
    assert_eq!(client.fails("invokeChangesetOperation", invoke(CHANGES, "discard", file("b.txt"))).await, -32008);
    let none = "ahp-session:/none/changes/uncommitted";
    assert_eq!(client.fails("invokeChangesetOperation", invoke(none, "discard", file("a.txt"))).await, -32008);
    client.call("invokeChangesetOperation", invoke(CHANGES, "discard", file("a.txt"))).await.unwrap();
    assert_eq!(std::fs::read_to_string(host.path("a.txt")).unwrap(), "old\n");
    client.action("changeset/fileRemoved").await;
}

#[tokio::test]
async fn after_a_commit_the_changes_are_gone_for_who_follows_them_anew() {
    let (host, mut client) = repository().await;
    open(&mut client).await;
    host.git(&["commit", "-q", "-a", "-m", "second"]);
    let mut other = host.client("other").await;
    other.subscribe(CHANGES).await;
    client.action("changeset/fileRemoved").await;
}

#[tokio::test]
async fn after_a_restart_a_changeset_is_opened_again_when_it_is_needed() {
    let (mut host, mut client) = repository().await;
    let state = open(&mut client).await;
    let before = state["files"][0]["edit"]["before"]["content"]["uri"].clone();
    drop(client);
    host.restart().await;
    let logged = host.logged(SESSION).await;
    let mut client = host.client("c").await;
    let read = client.call("resourceRead", json!({"channel": SESSION, "uri": before})).await.unwrap();
    assert_eq!(read["data"], "old\n");
    assert_eq!(host.logged(SESSION).await, logged, "nothing is new for the session");
}

#[tokio::test]
async fn a_session_outside_of_any_work_tree_has_no_changeset() {
    let host = TestHost::new().await;
    host.write("AGENTS.md", "# Here\n");
    host.session(json!([])).await;
    let mut client = host.client("c").await;
    client.subscribe(SESSION).await;
    client.action("session/customizationsChanged").await;
    assert_eq!(client.fails("subscribe", json!({"channel": CHANGES})).await, -32008);
}

#[tokio::test]
async fn what_a_client_does_to_files_shows_in_the_changeset_that_it_follows() {
    let (host, mut client) = repository().await;
    open(&mut client).await;
    let set = |name: &str| {
        let uri = host.uri(name);
        move |message: &Value| {
            let action = &message["params"]["action"];
            action["type"] == "changeset/fileSet" && action["file"]["edit"]["after"]["uri"] == uri.as_str()
        }
    };
    let write = json!({"channel": SESSION, "uri": host.uri("b.txt"), "data": "b\n", "encoding": "utf-8"});
    client.call("resourceWrite", write).await.unwrap();
    client.find(set("b.txt")).await;
    let moved = json!({"channel": SESSION, "source": host.uri("b.txt"), "destination": host.uri("c.txt")});
    client.call("resourceMove", moved).await.unwrap();
    client.find(set("c.txt")).await;
    // Also when another does it.
    let mut other = host.client("other").await;
    let copied = json!({"channel": SESSION, "source": host.uri("c.txt"), "destination": host.uri("d.txt")});
    other.call("resourceCopy", copied).await.unwrap();
    client.find(set("d.txt")).await;
    other.call("resourceDelete", json!({"channel": SESSION, "uri": host.uri("a.txt")})).await.unwrap();
    client
        .find(|message| message["params"]["action"]["file"]["edit"]["before"]["uri"] == host.uri("a.txt").as_str())
        .await;
}

#[tokio::test]
async fn a_file_that_describes_how_to_work_is_found_when_a_client_writes_it() {
    let (host, mut client) = repository().await;
    open(&mut client).await;
    client.action("session/customizationsChanged").await;
    let write = json!({"channel": SESSION, "uri": host.uri("CLAUDE.md"), "data": "# So\n", "encoding": "utf-8"});
    client.call("resourceWrite", write).await.unwrap();
    let found = client.action("session/customizationsChanged").await["action"]["customizations"].to_string();
    assert!(found.contains("CLAUDE.md"), "{found}");
}

#[tokio::test]
async fn what_nobody_told_shows_where_the_work_tree_is_watched() {
    let (host, mut client) = repository().await;
    open(&mut client).await;
    let watch = json!({"channel": ROOT, "uri": host.uri(""), "recursive": true});
    let watch = client.call("createResourceWatch", watch).await.unwrap()["channel"].as_str().unwrap().to_owned();
    client.subscribe(&watch).await;
    host.write("b.txt", "b\n");
    let set = client.action("changeset/fileSet").await;
    assert_eq!(set["action"]["file"]["edit"]["after"]["uri"], host.uri("b.txt"));
}

#[tokio::test]
async fn nobody_looks_at_what_nobody_follows() {
    let (host, mut client) = repository().await;
    open(&mut client).await;
    client.unsubscribe(CHANGES).await;
    // The scans that were requested before it end.
    host.inner.scans_ended().await;
    let before = host.logged(CHANGES).await;
    let write = json!({"channel": SESSION, "uri": host.uri("b.txt"), "data": "b\n", "encoding": "utf-8"});
    client.call("resourceWrite", write).await.unwrap();
    host.inner.scans_ended().await;
    assert_eq!(host.logged(CHANGES).await, before);
}

#[tokio::test]
async fn the_changeset_of_a_directory_that_the_session_has_no_more_is_gone() {
    let (host, mut client) = repository().await;
    host.write("sub/b.txt", "b\n");
    host.act(SESSION, json!({"type": "session/workingDirectorySet", "directory": host.uri("sub")})).await;
    open(&mut client).await;
    let second = format!("{CHANGES}/1");
    client.subscribe(&second).await;
    host.act(SESSION, json!({"type": "session/workingDirectoryRemoved", "directory": host.uri("sub")})).await;
    client.subscribe(CHANGES).await;
    let changed = client.action("session/changesetsChanged").await;
    assert_eq!(changed["action"]["changesets"].as_array().unwrap().len(), 1, "{changed}");
    assert_eq!(client.fails("subscribe", json!({"channel": second})).await, -32008);
    // It comes back with its directory.
    host.act(SESSION, json!({"type": "session/workingDirectorySet", "directory": host.uri("sub")})).await;
    client.subscribe(CHANGES).await;
    client.action("session/changesetsChanged").await;
    client.subscribe(&second).await;
}
