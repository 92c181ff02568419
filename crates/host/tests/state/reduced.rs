//! Snapshots for those who take little, and what their references name.

use std::sync::Arc;

use ahp_types::state::ChatState;
use breakbulk_host::log::{Log, MemoryLog, Seq};
use breakbulk_host::test_support::state::{State, StateConfig, StateError};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::*;

/// Appends a turn with a tool's result of this many bytes and an answer of that many.
async fn tool_turn(log: &dyn Log, id: &str, result: usize, answer: usize) -> Seq {
    let call = |mut action: Value| {
        (action["turnId"], action["toolCallId"]) = (json!(id), json!("c"));
        action
    };
    let blocks = json!([{"type": "text", "text": format!("{id}{}", "é\"\n".repeat(result / 4))}]);
    let part = json!({"kind": "markdown", "id": "p", "content": "y".repeat(answer)});
    for action in [
        started(id),
        call(json!({"type": "chat/toolCallStart", "toolName": "n", "displayName": "N"})),
        call(json!({"type": "chat/toolCallReady", "invocationMessage": "m", "confirmed": "not-needed"})),
        call(json!({"type": "chat/toolCallComplete",
            "result": {"success": true, "pastTenseMessage": "did", "content": blocks}})),
        json!({"type": "chat/responsePart", "turnId": id, "part": part}),
    ] {
        act(log, CHAT, action).await;
    }
    act(log, CHAT, json!({"type": "chat/turnComplete", "turnId": id, "duration": 5})).await
}

async fn chat_of(turns: &[(&str, usize, usize)]) -> Arc<dyn Log> {
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
    begin(&*log, CHAT, &chat()).await;
    for (id, result, answer) in turns {
        tool_turn(&*log, id, *result, *answer).await;
    }
    log
}

/// All URIs of ours in a text.
fn collect_references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.starts_with("ahp-content:") => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
        Value::Object(members) => members.values().for_each(|member| collect_references(member, found)),
        _ => {}
    }
}

/// Follows the references of the turns that [`tool_turn`] makes.
async fn restored(state: &State, mut chat: Value) -> Value {
    for turn in chat["turns"].as_array_mut().unwrap() {
        let parts = turn["responseParts"].as_array_mut().unwrap();
        if let Some(uri) = parts[0]["toolCall"]["content"][0]["uri"].as_str() {
            let text = state.content(uri).await.unwrap().data;
            parts[0]["toolCall"]["content"][0] = json!({"type": "text", "text": text});
        }
        if let Some(uri) = parts[1]["uri"].as_str() {
            let content = state.content(uri).await.unwrap();
            assert_eq!(content.content_type, "text/markdown");
            parts.remove(1);
            parts[1]["content"] = json!(content.data);
        }
    }
    chat
}

async fn reduced(state: &State, log: &dyn Log, turns: u64, max_bytes: usize) -> Option<(Value, u64, bool)> {
    let last_seq = log.bounds().await.unwrap().last;
    let reduced = state.reduced_snapshot(CHAT, last(turns), last_seq, max_bytes).await.unwrap()?;
    assert!(reduced.snapshot.body.len() <= max_bytes, "{} in {max_bytes}", reduced.snapshot.body.len());
    let shown = json_of(&reduced.snapshot);
    let read: ChatState = serde_json::from_value(shown.clone()).unwrap();
    assert_eq!(reduced.is_windowed, read.turns_next_cursor.is_some());
    Some((shown, reduced.references.count, reduced.is_windowed))
}

#[tokio::test]
async fn a_snapshot_that_is_too_large_has_references_and_the_last_turns_that_fit() {
    let log = chat_of(&[("a", 9000, 10), ("b", 90_000, 10), ("c", 10, 10), ("d", 500_000, 3000)]).await;
    for config in [StateConfig::default(), eager()] {
        let state = open(&log, config).await;
        let whole = seen(&state, &*log, CHAT, ALL).await;
        let (all, references, is_windowed) = reduced(&state, &*log, 50, 20_000).await.unwrap();
        assert_eq!((ids(&all), references, is_windowed), (vec!["a", "b", "c", "d"], 3, false));
        assert_eq!(all["turns"][3]["responseParts"][1]["content"], json!("y".repeat(3000)), "what fits stays");
        assert_eq!(restored(&state, all).await, whole);
        let (some, ..) = reduced(&state, &*log, 50, 2800).await.unwrap();
        assert_eq!(ids(&some), ["b", "c", "d"]);
        let (some, ..) = reduced(&state, &*log, 1, 20_000).await.unwrap();
        assert_eq!(ids(&some), ["d"]);
        assert!(reduced(&state, &*log, 50, 800).await.is_none());
        let untouched = reduced(&state, &*log, 50, 10_000_000).await.unwrap();
        assert_eq!(untouched, (whole, 0, false));
    }
}

#[tokio::test]
async fn the_pages_before_a_tight_window_are_within_what_is_taken() {
    let log = chat_of(&[("a", 10, 10), ("b", 10, 4000), ("c", 10, 10), ("d", 10, 10)]).await;
    let state = open(&log, StateConfig::default()).await;
    let windowed = seen(&state, &*log, CHAT, last(1)).await;
    let mut cursor = windowed["turnsNextCursor"].as_str().map(str::to_owned);
    let mut pages = Vec::new();
    while let Some(page) = state.fetch_turns(CHAT, cursor.as_deref(), 1500).await.unwrap() {
        let page: Value = serde_json::from_slice(&page.action.to_bytes()).unwrap();
        pages.push(ids(&page).join(" "));
        cursor = page["turnsNextCursor"].as_str().map(str::to_owned);
    }
    assert_eq!(pages, ["c", "b", "a"]);
}

#[tokio::test]
async fn a_reference_outlives_a_restart_and_trimming_and_not_a_truncation_or_an_erased_session() {
    let log = chat_of(&[("a", 10, 10), ("b", 90_000, 10)]).await;
    let state = open(&log, StateConfig::default()).await;
    let (shown, ..) = reduced(&state, &*log, 50, 5000).await.unwrap();
    let mut uris = Vec::new();
    collect_references(&shown, &mut uris);
    let [uri] = &uris[..] else { panic!("{uris:?}") };
    let content = state.content(uri).await.unwrap();
    assert!(content.data.starts_with("bé") && content.data.len() > 80_000 && !content.is_base64);
    state.close().await.unwrap();
    drop(state);
    let last_seq = log.bounds().await.unwrap().last;
    assert!(log.trim(CHAT, last_seq + 1).await.unwrap() > 0);
    let state = open(&log, StateConfig::default()).await;
    assert_eq!(state.content(uri).await.unwrap(), content);
    let other = |from: &str, to: &str| uri.replace(from, to);
    for wrong in [
        other("turn=b", "turn=a"),
        other("turn=b", "turn=z"),
        other("call=c", "call=d"),
        other("content=0", "content=1"),
        other("content=0", "content=x"),
        other("content=0", "input="),
        other("content=0", "attachment=0"),
        other("ahp-chat", "ahp-chap"),
        other("crc=", "crc=1"),
        other("/turn=b", ""),
        "ahp-content:/".to_owned(),
    ] {
        assert_eq!(state.content(&wrong).await.unwrap_err(), StateError::NotFound, "{wrong}");
    }
    act(&*log, CHAT, json!({"type": "chat/truncated", "turnId": "a"})).await;
    assert_eq!(state.content(uri).await.unwrap_err(), StateError::NotFound);
    tool_turn(&*log, "b", 90_000, 10).await;
    assert_eq!(state.content(uri).await.unwrap(), content, "the same again is the same");
    state.forget(SESSION).await.unwrap();
    log.erase(SESSION).await.unwrap();
    assert_eq!(state.content(uri).await.unwrap_err(), StateError::NotFound);
}

#[tokio::test]
async fn a_text_that_has_grown_is_read_as_it_was_and_an_input_as_it_is() {
    let log = chat_of(&[]).await;
    let state = open(&log, StateConfig::default()).await;
    let part = json!({"kind": "markdown", "id": "p", "content": "é".repeat(4000)});
    let call = |mut action: Value| {
        (action["turnId"], action["toolCallId"]) = (json!("t"), json!("c"));
        action
    };
    let input = "x".repeat(4000);
    for action in [
        started("t"),
        json!({"type": "chat/responsePart", "turnId": "t", "part": part}),
        call(json!({"type": "chat/toolCallStart", "toolName": "n", "displayName": "N"})),
        call(json!({"type": "chat/toolCallReady", "invocationMessage": "m", "toolInput": input})),
    ] {
        act(&*log, CHAT, action).await;
    }
    let (shown, references, _) = reduced(&state, &*log, 50, 2500).await.unwrap();
    let mut uris = Vec::new();
    collect_references(&shown, &mut uris);
    assert_eq!((references, uris.len()), (2, 2));
    assert_eq!(shown["activeTurn"]["responseParts"][1], json!({"kind": "markdown", "id": "p", "content": ""}));
    act(&*log, CHAT, json!({"type": "chat/delta", "turnId": "t", "partId": "p", "content": "more"})).await;
    assert_eq!(state.content(&uris[0]).await.unwrap().data, "é".repeat(4000));
    assert_eq!(state.content(&uris[1]).await.unwrap().data, input);
    let edited = json!({"type": "chat/toolCallConfirmed", "approved": true, "editedToolInput": "edited"});
    act(&*log, CHAT, call(edited)).await;
    assert_eq!(state.content(&uris[1]).await.unwrap().data, "edited", "as the protocol wants it");
    act(&*log, CHAT, json!({"type": "chat/turnComplete", "turnId": "t", "duration": 1})).await;
    assert_eq!(state.content(&uris[0]).await.unwrap().data, "é".repeat(4000));
    assert_eq!(state.content(&uris[1]).await.unwrap().data, "edited");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_tight_snapshot_fits_and_is_the_end_of_the_whole(
        turns in prop::collection::vec((0..6000_usize, 0..6000_usize), 0..8),
        window in 0..9_u64,
        rooms in prop::collection::vec(0..12_000_usize, 4),
        is_eager in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let names: Vec<String> = (0..turns.len()).map(|n| format!("t{n}")).collect();
            let turns: Vec<_> = names.iter().zip(&turns).map(|(id, (a, b))| (id.as_str(), *a, *b)).collect();
            let log = chat_of(&turns).await;
            let state = open(&log, if is_eager { eager() } else { StateConfig::default() }).await;
            for max_bytes in rooms {
                let Some((shown, ..)) = reduced(&state, &*log, window, max_bytes).await else { continue };
                let count = ids(&shown).len() as u64;
                assert!(count <= window.max(1) && (count > 0 || turns.is_empty()));
                let whole = seen(&state, &*log, CHAT, last(count)).await;
                assert_eq!(restored(&state, shown).await, whole);
            }
        });
    }
}
