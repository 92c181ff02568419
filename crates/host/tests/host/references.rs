//! A client with a small message limit gets large content by reference; other clients get it whole.

use ahp::{Client, ClientConfig, SubscriptionEvent};
use ahp_types::actions::StateAction;
use ahp_types::commands::{ResourceReadParams, ResourceReadResult};
use ahp_types::state::{SnapshotState, ToolResultContent};
use ahp_ws::WebSocketTransport;
use breakbulk::{AccessPolicy, ListenConfig, Listener, link};
use breakbulk_host::log::Batch;
use breakbulk_host::test_support::state::entry;
use breakbulk_proto::Capacity;
use serde_json::{Value, json};

use super::client::Raw;
use super::test_host::{SESSION, TestHost, action_of, decode, prompt, reduce, soon, state};

/// The frame limit of a client that does not know segments.
const CAP: u64 = 65_536;
const NOT_FOUND: i64 = -32008;

impl TestHost {
    /// A client that does not know segments, on a link with a frame limit.
    fn plain(&self) -> Raw {
        let (near, far) = link::pair(&Capacity::of(CAP), 64);
        let endpoint = self.inner.endpoint().clone();
        tokio::spawn(async move { endpoint.serve(far, Some("someone".into())).await });
        Raw::plain(near)
    }

    /// Logs actions of a chat, as an agent would.
    async fn log(&self, chat: &str, actions: impl IntoIterator<Item = Value>) -> u64 {
        let mut batch = Batch::new();
        for action in actions {
            let action: StateAction = serde_json::from_value(action).unwrap();
            batch = batch.entry(chat, entry::action(chat, &action, None).unwrap());
        }
        *self.log.append(batch).await.unwrap().last().unwrap()
    }
}

async fn read(client: &mut Raw, chat: &str, uri: &str) -> Result<Value, Value> {
    client.call("resourceRead", json!({"channel": chat, "uri": uri})).await
}

/// Sends a prompt, and waits until the turn has ended.
async fn say(client: &mut Raw, chat: &str, turn: &str, text: &str) -> Value {
    client.notify("dispatchAction", json!({"channel": chat, "clientSeq": 1, "action": prompt(turn, text)}));
    let mut completed = Value::Null;
    loop {
        let message = client.next().await.expect("an action before the end");
        let action = &message["params"]["action"];
        match action["type"].as_str() {
            Some("chat/toolCallComplete") => completed = action["result"]["content"][0].clone(),
            Some("chat/turnComplete") => return completed,
            _ => {}
        }
    }
}

/// The actions of a turn with a tool whose result has these blocks.
fn turn(id: &str, blocks: &[Value]) -> Vec<Value> {
    let call = |mut action: Value| {
        (action["turnId"], action["toolCallId"]) = (json!(id), json!("c"));
        action
    };
    vec![
        prompt(id, "do"),
        call(json!({"type": "chat/toolCallStart", "toolName": "n", "displayName": "N"})),
        call(json!({"type": "chat/toolCallReady", "invocationMessage": "m", "confirmed": "not-needed"})),
        call(json!({"type": "chat/toolCallComplete",
            "result": {"success": true, "pastTenseMessage": "did", "content": blocks}})),
        json!({"type": "chat/turnComplete", "turnId": id, "duration": 1}),
    ]
}

fn block(letter: &str, bytes: usize) -> Value {
    json!({"type": "text", "text": letter.repeat(bytes)})
}

#[tokio::test]
async fn a_tool_result_of_five_megabytes_reaches_a_client_with_a_cap_by_reference_and_the_others_whole() {
    let host = TestHost::on_disk().await;
    let (mut large, chat) = host.with_session("large").await;
    large.subscribe(&chat).await;
    let mut plain = host.plain();
    let seen = plain.initialize("plain", &[&chat]).await["serverSeq"].as_i64().unwrap();
    let whole = say(&mut large, &chat, "t", "/big 5MB").await;
    let text = whole["text"].as_str().unwrap();
    assert!(text.len() >= 5_000_000, "{}", text.len());

    let action = action_of(&mut plain, "chat/toolCallComplete").await["action"].clone();
    let reference = action["result"]["content"][0].clone();
    assert_eq!((&reference["type"], &reference["sizeHint"]), (&json!("resource"), &json!(text.len())), "{reference}");
    let uri = reference["uri"].as_str().unwrap().to_owned();
    action_of(&mut plain, "chat/turnComplete").await;
    let error = read(&mut plain, &chat, &uri).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32011), &json!("messageTooLarge")), "{error}");
    assert_eq!(error["data"]["limit"], json!(CAP));
    let content = read(&mut large, &chat, &uri).await.unwrap();
    assert!(
        content["data"] == whole["text"] && content["encoding"] == "utf-8",
        "the reference names what the others have"
    );
    let encoded = json!({"channel": SESSION, "uri": uri, "encoding": "base64"});
    let encoded = large.call("resourceRead", encoded).await.unwrap();
    assert_eq!(
        (&encoded["encoding"], encoded["data"].as_str().unwrap().len()),
        (&json!("base64"), text.len().div_ceil(3) * 4)
    );

    // Coming back, in a replay; and to a snapshot.
    let mut again = host.plain();
    let result = again.reconnect("plain", seen, &[&chat]).await;
    assert_eq!((&result["type"], &result["missing"]), (&json!("replay"), &json!([])));
    let replayed = result["actions"].as_array().unwrap().iter();
    let replayed =
        replayed.map(|envelope| &envelope["action"]).find(|action| action["type"] == "chat/toolCallComplete");
    assert_eq!(replayed.unwrap()["result"]["content"][0], reference);
    let result = host.plain().reconnect("another", -1, &[&chat, SESSION]).await;
    assert_eq!((&result["type"], &result["missing"]), (&json!("snapshot"), &json!([])));
    assert!(result["snapshots"][0].to_string().contains(&uri));
    let shown = state(&mut again, &chat).await;
    assert!(shown.to_string().contains(&uri) && shown.get("turnsNextCursor").is_none());
    assert!(!state(&mut large, &chat).await.to_string().contains("ahp-content"), "who takes the whole gets the whole");

    let metrics = host.inner.metrics();
    let count = |name: &str| -> u64 {
        metrics.lines().find_map(|line| line.strip_prefix(name)).and_then(|rest| rest.trim().parse().ok()).unwrap()
    };
    assert_eq!(count("breakbulk_references_total"), 4, "{metrics}");
    assert_eq!(count("breakbulk_reference_bytes_total"), 4 * text.len() as u64);
    assert_eq!(host.inner.endpoint().counts().get("endpoint-by-reference"), 4);

    // Another life, and then no life.
    drop((large, plain, again));
    let host = host.again().await;
    let mut large = host.client("large").await;
    assert!(read(&mut large, &chat, &uri).await.unwrap()["data"] == whole["text"]);
    large.call("disposeSession", json!({"channel": SESSION})).await.unwrap();
    assert_eq!(read(&mut large, &chat, &uri).await.unwrap_err()["code"], NOT_FOUND);
}

#[tokio::test]
async fn what_a_client_with_a_cap_makes_of_references_is_what_the_others_have() {
    let host = TestHost::new().await;
    let (mut large, chat) = host.with_session("large").await;
    let mut plain = host.plain();
    let hello = plain.initialize("plain", &[&chat]).await;
    let mut mine = decode(&chat, hello["snapshots"][0]["state"].clone());
    let blocks = [block("a", 30_000), block("b", 31_000), block("c", 32_000)];
    let last = host.log(&chat, turn("t", &blocks)).await;
    loop {
        let message = plain.next().await.expect("an action before the end");
        let Ok(action) = serde_json::from_value::<StateAction>(message["params"]["action"].clone()) else { continue };
        reduce(&mut mine, &action);
        if message["params"]["serverSeq"] == last {
            break;
        }
    }
    let whole = state(&mut large, &chat).await;
    let mut mine = serde_json::to_value(match mine {
        SnapshotState::Chat(chat) => chat,
        _ => unreachable!(),
    })
    .unwrap();
    let at = "/turns/0/responseParts/0/toolCall/content/2";
    let reference = mine.pointer(at).unwrap().clone();
    let content = read(&mut plain, &chat, reference["uri"].as_str().unwrap()).await.unwrap();
    *mine.pointer_mut(at).unwrap() = json!({"type": "text", "text": content["data"]});
    assert_eq!(mine, whole, "the longest of three was enough");
}

#[tokio::test]
async fn a_client_with_segments_is_never_given_less_than_it_takes() {
    let host = TestHost::new().await;
    let (mut large, chat) = host.with_session("large").await;
    large.subscribe(&chat).await;
    // As much as one frame of its link has, and thirty times that.
    for bytes in [1 << 20, 30 << 20] {
        host.log(&chat, turn(&bytes.to_string(), &[block("x", bytes)])).await;
        let action = action_of(&mut large, "chat/toolCallComplete").await;
        assert_eq!(action["action"]["result"]["content"][0]["text"].as_str().unwrap().len(), bytes);
    }
    host.log(&chat, turn("more", &[block("x", 33 << 20)])).await;
    let action = action_of(&mut large, "chat/toolCallComplete").await;
    assert_eq!(action["action"]["result"]["content"][0]["type"], "resource", "its limit is 32 MiB");
}

#[tokio::test]
async fn a_chat_that_is_too_much_by_reference_too_is_shown_in_part_and_its_past_comes_in_pages() {
    let host = TestHost::new().await;
    let (_large, chat) = host.with_session("large").await;
    for n in 0..12 {
        let mut actions = turn(&format!("t{n}"), &[block("x", 100_000)]);
        actions[0]["message"]["text"] = json!("y".repeat(10_000));
        host.log(&chat, actions).await;
    }
    let mut plain = host.plain();
    plain.initialize("plain", &[]).await;
    let shown = state(&mut plain, &chat).await;
    let mut seen = shown["turns"].as_array().unwrap().len();
    assert!((2..=6).contains(&seen), "{seen}");
    let mut cursor = shown["turnsNextCursor"].clone();
    while cursor.is_string() {
        let id = plain.ask("fetchTurns", json!({"channel": chat, "cursor": cursor}));
        let loaded = action_of(&mut plain, "chat/turnsLoaded").await["action"].clone();
        seen += loaded["turns"].as_array().unwrap().len();
        assert!(loaded.to_string().contains("ahp-content:/") && !loaded.to_string().contains("xxxx"));
        cursor = loaded["turnsNextCursor"].clone();
        assert_eq!(plain.answer(id).await["result"], json!({}));
    }
    assert_eq!(seen, 12);
}

#[tokio::test]
async fn what_cannot_be_sent_in_any_form_is_refused_by_name() {
    let host = TestHost::new().await;
    let (mut large, chat) = host.with_session("large").await;
    let mut actions = turn("t", &[]);
    actions[0]["message"]["text"] = json!("y".repeat(100_000));
    host.log(&chat, actions).await;
    let mut plain = host.plain();
    plain.initialize("plain", &[]).await;
    let error = plain.call("subscribe", json!({"channel": chat})).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["limit"]), (&json!(-32011), &json!(CAP)), "{error}");
    assert!(error["data"]["size"].as_u64().unwrap() > 100_000);
    let windowed = large.call("subscribe", json!({"channel": chat, "view": {"turns": 1}})).await.unwrap();
    let cursor = windowed["snapshot"]["state"]["turnsNextCursor"].clone();
    assert!(cursor.is_null());
    host.log(&chat, turn("u", &[])).await;
    let windowed = plain.call("subscribe", json!({"channel": chat, "view": {"turns": 1}})).await.unwrap();
    let cursor = windowed["snapshot"]["state"]["turnsNextCursor"].clone();
    let error = plain.call("fetchTurns", json!({"channel": chat, "cursor": cursor})).await.unwrap_err();
    assert_eq!(error["data"]["reason"], "messageTooLarge", "and the connection lives: {error}");
    plain.call("ping", json!({"channel": "ahp-root://"})).await.unwrap();
}

#[tokio::test]
async fn an_attachment_that_is_sent_back_by_reference_is_logged_whole() {
    let host = TestHost::new().await;
    let (mut large, chat) = host.with_session("large").await;
    large.subscribe(&chat).await;
    let image = json!({"type": "embeddedResource", "label": "an image", "data": "QUJD".repeat(30_000), "contentType": "image/png",
        "displayKind": "image", "_meta": {"a": 1}});
    let drafts = |attachments: &[&Value]| {
        let message = json!({"text": "look", "origin": {"kind": "user"}, "attachments": attachments});
        json!({"channel": chat, "clientSeq": 1, "action": {"type": "chat/draftChanged", "draft": message}})
    };
    let draft = |attachment: &Value| drafts(&[attachment]);
    large.notify("dispatchAction", draft(&image));
    action_of(&mut large, "chat/draftChanged").await;
    let mut plain = host.plain();
    plain.initialize("plain", &[]).await;
    let by = state(&mut plain, &chat).await["draft"]["attachments"][0].clone();
    assert_eq!((&by["type"], &by["sizeHint"], &by["label"]), (&json!("resource"), &json!(90_000), &json!("an image")));
    assert_eq!((&by["_meta"], &by["contentType"]), (&json!({"a": 1}), &json!("image/png")));
    plain.notify("dispatchAction", draft(&by));
    let echoed = action_of(&mut plain, "chat/draftChanged").await;
    assert_eq!(echoed["action"]["draft"]["attachments"][0], by, "its own echo is as it was sent");
    assert_eq!(action_of(&mut large, "chat/draftChanged").await["action"]["draft"]["attachments"][0], image);
    assert_eq!(state(&mut large, &chat).await["draft"]["attachments"][0], image);
    let mut gone = by.clone();
    gone["uri"] = json!(by["uri"].as_str().unwrap().replace("draft=0", "draft=1"));
    plain.notify("dispatchAction", draft(&gone));
    let refused = soon(action_of(&mut plain, "chat/draftChanged")).await;
    let reason = refused["rejectionReason"].as_str().unwrap();
    assert!(reason.starts_with("the content of the attachment \"ahp-content:/"), "{reason}");
    assert!(reason.ends_with("\" is not there any more"), "{reason}");

    // Some hundred bytes each, which together name more than anybody could send.
    large.notify("dispatchAction", drafts(&[&by; 1_000]));
    let refused = soon(action_of(&mut large, "chat/draftChanged")).await;
    assert_eq!(refused["rejectionReason"], "attachments by reference are over 67108864 bytes together");
}

#[tokio::test]
async fn the_official_client_behind_a_cap_reads_what_it_is_given_by_reference() {
    let host = TestHost::new().await;
    let (_large, chat) = host.with_session("large").await;
    let mut config = ListenConfig::new(([127, 0, 0, 1], 0).into(), AccessPolicy::open());
    config.link.cap = CAP;
    let mut listener = Listener::bind(config).await.unwrap();
    let url = format!("ws://{}/", listener.local_address());
    let endpoint = host.inner.endpoint().clone();
    tokio::spawn(async move { endpoint.serve(listener.accept().await.link, Some("someone".into())).await });
    let transport = soon(WebSocketTransport::connect(&url)).await.unwrap();
    let client = soon(Client::connect(transport, ClientConfig::default())).await.unwrap();
    soon(client.initialize("official".into(), vec!["1.0.0".into()], Vec::new())).await.unwrap();
    let (_, mut stream) = soon(client.subscribe(chat.clone())).await.unwrap();
    host.log(&chat, turn("t", &[block("a", 40_000), block("b", 50_000)])).await;
    let content = loop {
        let Some(SubscriptionEvent::Action(envelope)) = soon(stream.recv()).await else { panic!("an action") };
        if let StateAction::ChatToolCallComplete(action) = envelope.action {
            break action.result.content.unwrap();
        }
    };
    let [ToolResultContent::Text(first), ToolResultContent::Resource(second)] = &content[..] else {
        panic!("a text and a reference");
    };
    assert_eq!(first.text, "a".repeat(40_000));
    let params = ResourceReadParams { channel: chat, meta: None, uri: second.uri.clone(), encoding: None };
    let read: ResourceReadResult = soon(client.request("resourceRead", params)).await.unwrap();
    assert_eq!((read.data, read.content_type.as_deref()), ("b".repeat(50_000), Some("text/plain")));
}

#[tokio::test]
async fn a_client_that_takes_little_reads_a_long_content_in_parts() {
    let host = TestHost::on_disk().await;
    let (mut large, chat) = host.with_session("large").await;
    large.subscribe(&chat).await;
    let mut plain = host.plain();
    plain.initialize("plain", &[&chat]).await;
    let whole = say(&mut large, &chat, "t", "/big 1MB").await["text"].as_str().unwrap().to_owned();
    let action = action_of(&mut plain, "chat/toolCallComplete").await["action"].clone();
    let uri = action["result"]["content"][0]["uri"].as_str().unwrap().to_owned();
    let mut read = String::new();
    loop {
        let range = json!({"offset": read.len(), "length": 40_000});
        let params = json!({"channel": chat, "uri": uri, "_meta": {"breakbulk": {"range": range}}});
        let part = plain.call("resourceRead", params).await.unwrap();
        let told = &part["_meta"]["breakbulk"]["range"];
        assert_eq!((&told["offset"], &told["size"]), (&json!(read.len()), &json!(whole.len())), "{told}");
        assert_eq!(part["encoding"], "utf-8");
        read.push_str(part["data"].as_str().unwrap());
        if told["length"] == 0 {
            break;
        }
    }
    assert!(read == whole);
    let beyond = json!({"channel": chat, "uri": uri, "_meta": {"breakbulk": {"range": {"offset": 0, "length": 0}}}});
    assert_eq!(plain.call("resourceRead", beyond).await.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn our_client_reads_a_resource_of_any_size_and_notices_that_it_has_changed() {
    use breakbulk::client::{Client, Config, ConnectError, ReadResourceError};
    let host = TestHost::on_disk().await;
    let endpoint = host.inner.endpoint().clone();
    let dial = move || {
        let endpoint = endpoint.clone();
        async move {
            let (near, far) = link::pair(&Capacity::of(1 << 20), 64);
            tokio::spawn(async move { endpoint.serve(far, Some("someone".into())).await });
            Ok::<_, ConnectError>(near)
        }
    };
    let (client, _events) = Client::start(dial, Config::new("reader"));
    // Longer than what the host reads at once.
    let content: Vec<u8> = (0..70_u32 << 20).map(|at| (at % 251) as u8).collect();
    let path = host.root.path().join("large");
    std::fs::write(&path, &content).unwrap();
    let uri = breakbulk_host::test_support::files::uri_of(&path);
    let mut reader = client.read_resource("ahp-root://", &uri).with_part_bytes(8 << 20);
    let mut read = Vec::new();
    while let Some(part) = soon(reader.next()).await.unwrap() {
        assert!(part.len() <= 8 << 20);
        read.extend_from_slice(&part);
    }
    assert!(read == content);
    let mut reader = client.read_resource("ahp-root://", &uri);
    assert!(soon(reader.next()).await.unwrap().is_some());
    std::fs::write(&path, "short").unwrap();
    assert_eq!(soon(reader.next()).await, Err(ReadResourceError::Changed));
    std::fs::write(&path, "").unwrap();
    assert_eq!(soon(client.read_resource("ahp-root://", &uri).next()).await, Ok(None));
    let missing = soon(client.read_resource("ahp-root://", format!("{uri}-not")).next()).await;
    assert!(matches!(missing, Err(ReadResourceError::Request(_))), "{missing:?}");
}
