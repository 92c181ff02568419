//! The `resource*` methods and `completions`, with their error codes.

use serde_json::json;

use super::world::{CHAT, ROOT, SESSION, World};

#[tokio::test]
async fn each_method_on_files_works_once_through_the_wire() {
    let world = World::new().await;
    let mut client = world.client("c").await;
    let at = |name: &str| json!({"channel": ROOT, "uri": world.uri(name)});
    let between =
        |from: &str, to: &str| json!({"channel": ROOT, "source": world.uri(from), "destination": world.uri(to)});
    client.call("resourceMkdir", at("a/b")).await.unwrap();
    let mut write = at("a/b/x.txt");
    (write["data"], write["encoding"]) = (json!("héllo"), json!("utf-8"));
    client.call("resourceWrite", write).await.unwrap();
    assert_eq!(client.call("resourceRead", at("a/b/x.txt")).await.unwrap()["data"], "héllo");
    client.call("resourceCopy", between("a/b/x.txt", "a/y.txt")).await.unwrap();
    client.call("resourceMove", between("a/y.txt", "z.txt")).await.unwrap();
    let list = client.call("resourceList", at("a")).await.unwrap();
    assert_eq!(list["entries"], json!([{"name": "b", "type": "directory"}]));
    assert_eq!(client.call("resourceResolve", at("z.txt")).await.unwrap()["size"], 6);
    client.call("resourceDelete", at("z.txt")).await.unwrap();
    assert!(!world.path("z.txt").exists() && world.path("a/b/x.txt").exists());
}

#[tokio::test]
async fn each_failure_of_a_file_has_its_code() {
    let world = World::new().await;
    world.write("there", "");
    let mut client = world.client("c").await;
    let read = |uri: &str| json!({"channel": ROOT, "uri": uri});
    assert_eq!(client.fails("resourceRead", read(&world.uri("nowhere"))).await, -32008);
    assert_eq!(client.fails("resourceRead", read("virtual://nobody/x")).await, -32008);
    assert_eq!(client.fails("resourceRead", read("ahp-session:/none/changes/uncommitted/blob/1")).await, -32008);
    assert_eq!(client.fails("resourceRead", read("file:///etc/passwd")).await, -32009);
    assert_eq!(client.fails("resourceRead", read("file://host/x")).await, -32602);
    assert_eq!(client.fails("resourceRead", json!({"channel": ROOT})).await, -32602);
    assert_eq!(client.fails("resourceTouch", read(&world.uri("x"))).await, -32601);
    let copy = json!({
        "channel": ROOT, "source": world.uri("there"), "destination": world.uri("there2"), "failIfExists": true
    });
    client.call("resourceCopy", copy.clone()).await.unwrap();
    assert_eq!(client.fails("resourceCopy", copy).await, -32010);
    let write = json!({
        "channel": ROOT, "uri": world.uri("there"), "data": "x", "encoding": "utf-8", "ifMatch": "other"
    });
    assert_eq!(client.fails("resourceWrite", write).await, -32011);
}

#[tokio::test]
async fn access_is_granted_inside_of_the_roots_and_denied_outside() {
    let world = World::new().await;
    world.write("there", "");
    let mut client = world.client("c").await;
    let request = |uri: &str| json!({"channel": ROOT, "uri": uri, "write": true});
    for name in ["there", "not-yet"] {
        assert_eq!(client.call("resourceRequest", request(&world.uri(name))).await, Ok(json!({})), "{name}");
    }
    assert_eq!(client.fails("resourceRequest", request("file:///etc/passwd")).await, -32009);
    assert_eq!(client.fails("resourceRequest", request("file:///no/such/place")).await, -32009);
}

#[tokio::test]
async fn a_large_file_is_written_and_read_whole() {
    let world = World::new().await;
    let mut client = world.client("c").await;
    let text = "0123456789".repeat(300_000);
    let params = json!({"channel": ROOT, "uri": world.uri("big"), "data": text, "encoding": "utf-8"});
    client.call("resourceWrite", params).await.unwrap();
    let read = client.call("resourceRead", json!({"channel": ROOT, "uri": world.uri("big")})).await.unwrap();
    assert_eq!(read["data"].as_str().map(str::len), Some(3_000_000));
}

#[tokio::test]
async fn completions_come_from_where_the_session_or_chat_works_and_else_from_the_roots() {
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("elsewhere.md"), "").unwrap();
    let root = other.path().to_owned();
    let world = World::with(|config| config.files.roots.insert(0, root)).await;
    world.write("else.md", "");
    world.session(json!([])).await;
    let mut client = world.client("c").await;
    for (channel, want) in
        [(SESSION, vec!["@else.md"]), (CHAT, vec!["@else.md"]), (ROOT, vec!["@elsewhere.md", "@else.md"])]
    {
        let params = json!({"channel": channel, "kind": "userMessage", "text": "@els", "offset": 4});
        let result = client.call("completions", params).await.unwrap();
        let items: Vec<_> = result["items"].as_array().unwrap().iter().map(|item| &item["insertText"]).collect();
        assert_eq!(items, want, "{channel}");
    }
    let params = json!({"channel": SESSION, "kind": "userMessage", "text": "@e", "offset": 9});
    assert_eq!(client.fails("completions", params).await, -32602);
}
