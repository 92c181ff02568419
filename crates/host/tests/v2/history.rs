//! Long histories, long results, and sessions that end.

use breakbulk_lifecycle::v2::wire::{Body, ConnectionEvent, SnapshotReason};

use crate::world::{DemoWithMode, TestHost, assert_same};

/// Disposes of a session, as an AHP client does.
pub(crate) async fn dispose(host: &TestHost, session: &str) {
    host.ahp_call("disposeSession", serde_json::json!({"channel": session})).await;
}

#[tokio::test]
async fn a_history_comes_in_pages_and_is_whole() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    for turn in 0..30 {
        client.turn(&session, "/big 20000", &format!("{turn}")).await;
    }
    let fresh = host.watcher(&session).await;
    assert_same(fresh.state(&session), client.state(&session));
    let events = fresh.events(&session);
    let (last, others) = events.split_last().unwrap();
    assert!(!last.more && others.iter().all(|event| event.more));
}

#[tokio::test]
async fn a_long_result_is_cut_and_says_where_the_whole_is() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    client.send(&session, "/big 300000", "1").await;
    let result = client.event(|body| matches!(body, Body::ToolResult { .. })).await;
    let Body::ToolResult { result, truncated, bytes, url, .. } = result.body else { panic!() };
    assert!(truncated && result.len() <= 64 << 10 && bytes.unwrap() >= 300_000, "{} of {bytes:?}", result.len());
    let url = url.unwrap();
    let (whole, etag) = read_content(&host, &url).await;
    assert!(whole.len() as u64 == bytes.unwrap() && whole.starts_with(&result));
    // The same when the turn is over.
    client.turn_ended(&session, "1").await;
    assert_eq!(read_content(&host, &url).await, (whole, etag));
}

/// All of a content, and its tag. No piece of it is long.
async fn read_content(host: &TestHost, url: &str) -> (String, String) {
    let content = host.host.content(url.strip_prefix("/content/").unwrap(), Some("reader".into())).await.unwrap();
    let mut whole = Vec::new();
    while (whole.len() as u64) < content.size() {
        let piece = content.read(whole.len() as u64..content.size()).await.unwrap();
        assert!(!piece.is_empty() && piece.len() <= 64 << 10, "{}", piece.len());
        whole.extend_from_slice(&piece);
    }
    assert!(content.read(content.size()..u64::MAX).await.unwrap().is_empty());
    (String::from_utf8(whole).unwrap(), content.etag().to_owned())
}

#[tokio::test]
async fn long_results_and_prompts_are_read_in_pieces_from_memory_and_from_the_disk() {
    let host = TestHost::durable(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    let prompt = format!("say \"{}\" \u{1F6A2}\n", "漢字 and text ".repeat(20_000));
    client.turn(&session, &prompt, "1").await;
    for number in 2..5 {
        client.turn(&session, "/big 3000000", &number.to_string()).await;
    }
    let events = client.events(&session);
    let urls: Vec<(String, u64)> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::ToolResult { url, bytes, .. } | Body::UserMessage { url, bytes, .. } => url.clone().zip(*bytes),
            _ => None,
        })
        .collect();
    assert_eq!(urls.len(), 4);
    let mut before = Vec::new();
    for (url, bytes) in &urls {
        let (whole, etag) = read_content(&host, url).await;
        assert_eq!(whole.len() as u64, *bytes);
        before.push((whole, etag));
    }
    assert_eq!(before[0].0, prompt);
    // Any range is that of the whole, wherever pieces of the record end.
    let content = host.host.content(urls[1].0.strip_prefix("/content/").unwrap(), Some("reader".into())).await.unwrap();
    for start in [0, 1, 65_535, 65_536, 1_048_575, 2_999_999] {
        let piece = content.read(start..start + 10).await.unwrap();
        let start = usize::try_from(start).unwrap();
        assert_eq!(piece, before[1].0.as_bytes()[start..start + piece.len()]);
    }
    // The records are on the disk now.
    let host = host.crash(DemoWithMode::quick()).await;
    let chat = host.chat_of(&session).await;
    let state = breakbulk_host::test_support::state::State::open(host.log.clone(), Default::default()).await.unwrap();
    state.save(&chat).await.unwrap();
    let host = host.crash(DemoWithMode::quick()).await;
    for ((url, _), known) in urls.iter().zip(&before) {
        assert!(read_content(&host, url).await == *known, "{url}");
    }
    for missing in ["result/x/y/z", "prompt/x/y", "result/x/y", "other/x"] {
        assert!(host.host.content(missing, Some("reader".into())).await.is_err(), "{missing}");
    }
}

#[tokio::test]
async fn no_frame_is_longer_than_the_limit() {
    let host = TestHost::with(DemoWithMode::quick(), |config| config.v2.max_event_bytes = 4_000).await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, &format!("say {}", "much ".repeat(4_000)), "1").await;
    let fresh = host.watcher(&session).await;
    for event in client.events(&session).into_iter().chain(fresh.events(&session)) {
        let bytes = serde_json::to_vec(event).unwrap().len();
        assert!(bytes <= 4_000, "{bytes}");
    }
    assert_same(fresh.state(&session), client.state(&session));
}

#[tokio::test]
async fn a_cursor_older_than_what_is_kept_gets_a_snapshot_and_is_told_so() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    let first = client.model(&session).last_seq();
    for turn in ["1", "2", "3"] {
        client.turn(&session, "hello", turn).await;
    }
    host.trim(&host.chat_of(&session).await).await;
    // The feed of another watcher would still hold it.
    let (stayed, host) = (client.state(&session).clone(), host.crash(DemoWithMode::quick()).await);
    let mut back = host.client().await;
    let ConnectionEvent::Reattached { snapshot, .. } = back.watch(&session, first).await else { panic!() };
    assert_eq!(snapshot, Some(SnapshotReason::Trimmed));
    back.until(|back| back.model(&session).last_seq().is_some()).await;
    assert_eq!(*back.state(&session), stayed);
    // It goes on as it should.
    back.turn(&session, "hello", "4").await;
    let fresh = host.watcher(&session).await;
    assert_same(fresh.state(&session), back.state(&session));
}
