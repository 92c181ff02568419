//! The `resource*` methods and `completions`, with their error codes.

use serde_json::json;

use super::test_host::{CHAT, ROOT, SESSION, TestHost};

#[tokio::test]
async fn each_method_on_files_works_once_through_the_wire() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    let at = |name: &str| json!({"channel": ROOT, "uri": host.uri(name)});
    let between =
        |from: &str, to: &str| json!({"channel": ROOT, "source": host.uri(from), "destination": host.uri(to)});
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
    assert!(!host.path("z.txt").exists() && host.path("a/b/x.txt").exists());
}

#[tokio::test]
async fn each_failure_of_a_file_has_its_code() {
    let host = TestHost::new().await;
    host.write("there", "");
    let mut client = host.client("c").await;
    let read = |uri: &str| json!({"channel": ROOT, "uri": uri});
    assert_eq!(client.fails("resourceRead", read(&host.uri("nowhere"))).await, -32008);
    assert_eq!(client.fails("resourceRead", read("virtual://nobody/x")).await, -32008);
    assert_eq!(client.fails("resourceRead", read("ahp-session:/none/changes/uncommitted/blob/1")).await, -32008);
    assert_eq!(client.fails("resourceRead", read("file:///etc/passwd")).await, -32009);
    assert_eq!(client.fails("resourceRead", read("file://host/x")).await, -32602);
    assert_eq!(client.fails("resourceRead", json!({"channel": ROOT})).await, -32602);
    assert_eq!(client.fails("resourceTouch", read(&host.uri("x"))).await, -32601);
    let copy = json!({
        "channel": ROOT, "source": host.uri("there"), "destination": host.uri("there2"), "failIfExists": true
    });
    client.call("resourceCopy", copy.clone()).await.unwrap();
    assert_eq!(client.fails("resourceCopy", copy).await, -32010);
    let write = json!({
        "channel": ROOT, "uri": host.uri("there"), "data": "x", "encoding": "utf-8", "ifMatch": "other"
    });
    assert_eq!(client.fails("resourceWrite", write).await, -32011);
}

#[tokio::test]
async fn an_error_of_a_file_names_it() {
    let host = TestHost::new().await;
    host.write("there", "");
    let mut client = host.client("c").await;
    let (missing, other) = (host.uri("missing"), host.uri("other"));
    let error = client.call("resourceRead", json!({"channel": ROOT, "uri": missing})).await.unwrap_err();
    assert_eq!(error["message"], format!("not found: {missing}"));
    let copy = json!({"channel": ROOT, "source": missing, "destination": other});
    let error = client.call("resourceCopy", copy).await.unwrap_err();
    assert_eq!(error["message"], format!("not found: source {missing}, destination {other}"));
    let content = json!({"channel": ROOT, "uri": "ahp-content:/none"});
    let error = client.call("resourceRead", content).await.unwrap_err();
    assert_eq!(error["message"], "not found: ahp-content:/none");
    let error = client.call("fetchTurns", json!({"channel": "ahp-chat:/none", "cursor": "x"})).await.unwrap_err();
    assert_eq!(error["message"], "there is no channel \"ahp-chat:/none\"");
    let long = host.uri(&"x".repeat(5000));
    let error = client.call("resourceRead", json!({"channel": ROOT, "uri": long})).await.unwrap_err();
    assert_eq!(error["message"], format!("not found: {}…", &long[..512]));
}

#[tokio::test]
async fn access_is_granted_inside_of_the_roots_and_denied_outside() {
    let host = TestHost::new().await;
    host.write("there", "");
    let mut client = host.client("c").await;
    let request = |uri: &str| json!({"channel": ROOT, "uri": uri, "write": true});
    for name in ["there", "not-yet"] {
        assert_eq!(client.call("resourceRequest", request(&host.uri(name))).await, Ok(json!({})), "{name}");
    }
    assert_eq!(client.fails("resourceRequest", request("file:///etc/passwd")).await, -32009);
    assert_eq!(client.fails("resourceRequest", request("file:///no/such/place")).await, -32009);
}

#[tokio::test]
async fn a_large_file_is_written_and_read_whole() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    let text = "0123456789".repeat(300_000);
    let params = json!({"channel": ROOT, "uri": host.uri("big"), "data": text, "encoding": "utf-8"});
    client.call("resourceWrite", params).await.unwrap();
    let read = client.call("resourceRead", json!({"channel": ROOT, "uri": host.uri("big")})).await.unwrap();
    assert_eq!(read["data"].as_str().map(str::len), Some(3_000_000));
}

#[tokio::test]
async fn completions_come_from_where_the_session_or_chat_works_and_else_from_the_roots() {
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("elsewhere.md"), "").unwrap();
    let root = other.path().to_owned();
    let host = TestHost::with(|config| config.files.roots.insert(0, root)).await;
    host.write("else.md", "");
    host.session(json!([])).await;
    let mut client = host.client("c").await;
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
