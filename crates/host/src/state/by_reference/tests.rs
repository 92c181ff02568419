//! Whatever is sent by reference fits, and is what it was when the references are followed.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use ahp::reducers::{apply_action_to_chat, apply_action_to_session};
use ahp_types::actions::StateAction;
use ahp_types::state::{ChatState, SessionState};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::state::content::in_whole_chat;

const CHAT: &str = "ahp-chat:/1";

fn chat() -> ChatState {
    let chat = json!({"resource": CHAT, "title": "t", "status": 1, "modifiedAt": "2026-01-01T00:00:00Z", "turns": []});
    serde_json::from_value(chat).unwrap()
}

fn text(value: &Value) -> Bytes {
    value.to_string().into()
}

fn read(message: &Message) -> Value {
    serde_json::from_slice(&message.to_bytes()).unwrap()
}

/// Follows all references to a chat, and puts what they name where they were.
fn restore(value: &mut Value, chat: &ChatState) {
    let ours = |value: &Value| value["uri"].as_str().is_some_and(|uri| uri.starts_with(SCHEME));
    let named = |value: &Value| in_whole_chat(chat, value["uri"].as_str().unwrap()).expect("what was sent is there");
    match value {
        Value::Array(items) => {
            let mut at = 0;
            while at < items.len() {
                if items[at]["kind"] == "contentRef" && ours(&items[at]) {
                    let before = named(&items.remove(at)).data;
                    assert_eq!(items[at]["kind"], "markdown");
                    items[at]["content"] = json!(before + items[at]["content"].as_str().unwrap());
                }
                restore(&mut items[at], chat);
                at += 1;
            }
        }
        Value::Object(members) if members.contains_key("uri") && ours(&Value::Object(members.clone())) => {
            let content = named(&Value::Object(members.clone()));
            if !members.contains_key("type") {
                assert!(!members.contains_key("nonce"), "an input may change");
                *value = json!(content.data);
                return;
            }
            assert_eq!(members["type"], "resource");
            members.retain(|name, _| !["uri", "sizeHint", "nonce", "contentType"].contains(&name.as_str()));
            if content.is_base64 {
                members["type"] = json!("embeddedResource");
                members.insert("data".into(), json!(content.data));
                members.insert("contentType".into(), json!(content.content_type));
            } else {
                members["type"] = json!("text");
                members.insert("text".into(), json!(content.data));
            }
        }
        Value::Object(members) => members.values_mut().for_each(|member| restore(member, chat)),
        _ => {}
    }
}

#[derive(Debug, Clone)]
enum Op {
    Act(Value),
    /// The client gets a snapshot in so many bytes.
    Show(usize),
}

fn words() -> impl Strategy<Value = String> {
    let some = "[a-z\"\\\\\u{e9}\u{1F980}\n\u{1b}]{0,40}";
    prop_oneof![2 => some, 1 => (some, 5..60_usize).prop_map(|(some, times)| some.repeat(times))]
}

fn block() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => words().prop_map(|text| json!({"type": "text", "text": text})),
        1 => words().prop_map(|text| json!({"type": "embeddedResource", "data": text, "contentType": "image/png"})),
        1 => words().prop_map(|text| json!({"type": "subagent", "resource": "ahp-chat:/2", "title": text})),
    ]
}

fn message() -> impl Strategy<Value = Value> {
    let attachment = prop_oneof![
        words().prop_map(
            |data| json!({"type": "embeddedResource", "label": "l", "data": data, "contentType": "image/png",
            "displayKind": "image", "_meta": {"a": [1, {}]},
            "range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 1}}})
        ),
        words().prop_map(|text| json!({"type": "simple", "label": "l", "modelRepresentation": text})),
    ];
    let attachments = prop::option::of(prop::collection::vec(attachment, 0..3));
    (words(), attachments).prop_map(|(text, attachments)| {
        let mut message = json!({"text": text, "origin": {"kind": "user"}});
        if let Some(attachments) = attachments {
            message["attachments"] = json!(attachments);
        }
        message
    })
}

fn op() -> impl Strategy<Value = Op> {
    let in_turn = |action: Value| {
        let mut action = action;
        action["turnId"] = json!("t");
        Op::Act(action)
    };
    let call = move |mut action: Value| {
        action["toolCallId"] = json!("c");
        in_turn(action)
    };
    let turn = (0..3_u8, message()).prop_map(|(n, message)| {
        let (started_at, id) = ("2026-01-01T00:00:00Z", if n == 0 { "t" } else { "u" });
        Op::Act(json!({"type": "chat/turnStarted", "turnId": id, "startedAt": started_at, "message": message}))
    });
    let part = |id: &'static str| move |text: String| json!({"kind": "markdown", "id": id, "content": text});
    let blocks = || prop::collection::vec(block(), 0..4);
    prop_oneof![
        4 => turn,
        3 => words().prop_map(part("p")).prop_map(move |part| in_turn(json!({"type": "chat/responsePart", "part": part}))),
        4 => words().prop_map(move |text| in_turn(json!({"type": "chat/delta", "partId": "p", "content": text}))),
        2 => Just(call(json!({"type": "chat/toolCallStart", "toolName": "n", "displayName": "N"}))),
        3 => words().prop_map(move |text|
            call(json!({"type": "chat/toolCallReady", "invocationMessage": "m", "toolInput": text}))),
        1 => Just(call(json!({"type": "chat/toolCallReady", "invocationMessage": "m", "confirmed": "not-needed"}))),
        2 => prop::option::of(words()).prop_map(move |edited| {
            let mut action = json!({"type": "chat/toolCallConfirmed", "approved": true, "confirmed": "user-action"});
            if let Some(edited) = edited {
                action["editedToolInput"] = json!(edited);
            }
            call(action)
        }),
        1 => message().prop_map(move |message|
            call(json!({"type": "chat/toolCallConfirmed", "approved": false, "userSuggestion": message}))),
        3 => blocks().prop_map(move |content| call(json!({"type": "chat/toolCallContentChanged", "content": content}))),
        3 => blocks().prop_map(move |content| call(json!({"type": "chat/toolCallComplete",
            "result": {"success": true, "pastTenseMessage": "did", "content": content}}))),
        2 => Just(in_turn(json!({"type": "chat/turnComplete", "duration": 5}))),
        2 => message().prop_map(|message|
            Op::Act(json!({"type": "chat/pendingMessageSet", "kind": "queued", "id": "q", "message": message}))),
        1 => message().prop_map(|message|
            Op::Act(json!({"type": "chat/pendingMessageSet", "kind": "steering", "id": "s", "message": message}))),
        1 => message().prop_map(|draft| Op::Act(json!({"type": "chat/draftChanged", "draft": draft}))),
        3 => (300..20_000_usize).prop_map(Op::Show),
    ]
}

/// Turn and call ids come again, which a reference need not outlive: only the first of each turn is done.
fn without_repeated_ids(ops: Vec<Op>) -> Vec<Op> {
    let mut seen = std::collections::HashSet::new();
    let is_new = move |op: &Op| match op {
        Op::Act(action) if action["type"] == "chat/turnStarted" => seen.insert(action["turnId"].to_string()),
        Op::Act(action) if action["type"] == "chat/toolCallStart" => seen.insert("call".into()),
        Op::Act(action) if action["type"] == "chat/responsePart" => seen.insert("part".into()),
        _ => true,
    };
    ops.into_iter().filter(is_new).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn a_client_that_gets_references_has_what_the_others_have_when_it_follows_them(
        ops in prop::collection::vec(op(), 1..30).prop_map(without_repeated_ids),
        max_bytes in 300..4000_usize,
    ) {
        let (mut whole, mut reduced) = (chat(), chat());
        for op in ops {
            match op {
                Op::Act(action) => {
                    let typed: StateAction = serde_json::from_value(action.clone()).unwrap();
                    let body = text(&json!({"channel": CHAT, "action": typed}));
                    let sent = match entry(CHAT, &body, max_bytes) {
                        Some(reduced) => {
                            prop_assert!(reduced.text.len() <= max_bytes);
                            prop_assert_eq!(reduced.references.count == 0, body.len() <= max_bytes);
                            read(&reduced.text)
                        }
                        // It is refused, and the client comes back to a snapshot.
                        None => {
                            prop_assert!(body.len() > max_bytes);
                            read(&Message::from(body))
                        }
                    };
                    apply_action_to_chat(&mut whole, &typed);
                    apply_action_to_chat(&mut reduced, &serde_json::from_value(sent["action"].clone()).unwrap());
                }
                Op::Show(max_bytes) => {
                    let all = text(&json!({"resource": CHAT, "state": whole, "fromSeq": 1}));
                    if let Some(shown) = snapshot(CHAT, &all, max_bytes) {
                        prop_assert!(shown.text.len() <= max_bytes);
                        reduced = serde_json::from_value(read(&shown.text)["state"].clone()).unwrap();
                    } else {
                        prop_assert!(all.len() > max_bytes);
                        reduced = whole.clone();
                    }
                }
            }
            let mut restored = serde_json::to_value(&reduced).unwrap();
            restore(&mut restored, &whole);
            prop_assert_eq!(restored, serde_json::to_value(&whole).unwrap());
        }
    }

    #[test]
    fn no_text_breaks_the_search(body in "\\PC{0,60}", action in "[a-zA-Z/\"{}\\[\\]:,0-9]{0,60}") {
        for text in [body, format!(r#"{{"action":{{"type":"chat/toolCallComplete",{action}}}}}"#)] {
            let text = Bytes::from(text);
            prop_assert!(entry(CHAT, &text, 0).is_none());
            prop_assert!(snapshot(CHAT, &text, 0).is_none());
        }
    }
}

#[test]
fn the_longest_goes_first_and_no_more_than_must() {
    let blocks = [300, 5000, 1000].map(|len| json!({"type": "text", "text": "x".repeat(len)}));
    let result = json!({"success": true, "pastTenseMessage": "did", "content": blocks});
    let action = json!({"type": "chat/toolCallComplete", "turnId": "t", "toolCallId": "c", "result": result});
    let body = text(&json!({"channel": CHAT, "action": action}));
    let reduced = entry(CHAT, &body, 3000).unwrap();
    let content = read(&reduced.text)["action"]["result"]["content"].clone();
    let kinds: Vec<_> = content.as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(
        (kinds, reduced.references),
        (vec!["text", "resource", "text"], ReferenceStats { count: 1, bytes: 5000 })
    );
    assert_eq!(
        (&content[1]["sizeHint"], &content[1]["contentType"]),
        (&json!(5000), &json!("text/plain")),
        "{content:.300}"
    );
    let uri = content[1]["uri"].as_str().unwrap();
    assert!(uri.starts_with("ahp-content:/channel=ahp-chat%3A%2F1/turn=t/call=c/content=1?bytes=5000&crc="), "{uri}");
    assert_eq!(entry(CHAT, &body, 1500).unwrap().references.count, 2);
    assert!(entry(CHAT, &body, 200).is_none());
    let parts = reduced.text.parts();
    assert_eq!(parts[0].as_ptr(), body.as_ptr(), "all else are the log's own bytes");
}

#[test]
fn what_a_session_shows_of_a_call_is_where_its_chat_has_it() {
    let tool = json!({"status": "pending-confirmation", "toolCallId": "c", "toolName": "n", "displayName": "N",
        "invocationMessage": "m", "toolInput": "x".repeat(5000)});
    let request = json!({"kind": "toolConfirmation", "id": "r", "chat": CHAT, "turnId": "t", "toolCall": tool});
    let action = json!({"type": "session/inputNeededSet", "request": request});
    let reduced =
        entry("ahp-session:/1", &text(&json!({"channel": "ahp-session:/1", "action": action})), 1000).unwrap();
    let action = read(&reduced.text)["action"].clone();
    let uri = "ahp-content:/channel=ahp-chat%3A%2F1/turn=t/call=c/input=";
    assert_eq!(action["request"]["toolCall"]["toolInput"]["uri"], uri);
    let state =
        json!({"provider": "p", "title": "t", "status": 1, "lifecycle": "ready", "activeClients": [], "chats": []});
    let mut session: SessionState = serde_json::from_value(state).unwrap();
    apply_action_to_session(&mut session, &serde_json::from_value(action).unwrap());
    let shown = state_of(&session, 1000);
    assert_eq!(shown["inputNeeded"][0]["toolCall"]["toolInput"]["uri"], uri);
    session.input_needed = serde_json::from_value(json!([request])).unwrap();
    let shown = state_of(&session, 1000);
    assert_eq!(shown["inputNeeded"][0]["toolCall"]["toolInput"]["uri"], uri);
}

fn state_of(session: &SessionState, max_bytes: usize) -> Value {
    read(&state("ahp-session:/1", &text(&json!(session)), max_bytes).unwrap().text)
}

#[test]
fn what_has_no_reference_in_the_protocol_is_not_made_one() {
    let long = "x".repeat(5000);
    for action in [
        json!({"type": "chat/delta", "turnId": "t", "partId": "p", "content": long}),
        json!({"type": "chat/responsePart", "turnId": "t", "part": {"kind": "markdown", "id": "p", "content": long}}),
        json!({"type": "chat/responsePart", "turnId": "t", "part": {"kind": "reasoning", "id": "p", "content": long}}),
        json!({"type": "terminal/data", "data": long}),
        json!({"type": "chat/toolCallComplete", "turnId": "t", "toolCallId": "c",
            "result": {"success": true, "pastTenseMessage": "did", "structuredContent": {"a": long}}}),
        json!({"type": "of tomorrow", "content": [{"type": "text", "text": long}]}),
    ] {
        assert!(entry(CHAT, &text(&json!({"channel": CHAT, "action": action})), 1000).is_none(), "{action:.80}");
    }
    let reasoning = json!({"id": "t", "message": {"text": "", "origin": {"kind": "user"}}, "state": "complete",
        "responseParts": [{"kind": "reasoning", "id": "r", "content": long}]});
    assert!(turn(CHAT, &text(&reasoning), 1000).is_none());
}

#[test]
fn a_call_inside_of_a_part_and_turns_that_are_loaded_have_references_too() {
    let tool = json!({"status": "completed", "toolCallId": "c", "toolName": "n", "displayName": "N", "success": true,
        "invocationMessage": "m", "pastTenseMessage": "did", "confirmed": "not-needed",
        "content": [{"type": "text", "text": "x".repeat(5000)}]});
    let part = json!({"kind": "toolCall", "toolCall": tool});
    let one = json!({"type": "chat/responsePart", "turnId": "t", "part": part});
    let reduced = read(&action(CHAT, &text(&one), 1000).unwrap().text);
    assert_eq!(reduced["part"]["toolCall"]["content"][0]["type"], "resource");
    let loaded = json!({"id": "t", "message": {"text": "", "origin": {"kind": "user"}}, "state": "complete",
        "responseParts": [part, {"kind": "markdown", "id": "p", "content": "y".repeat(5000)}]});
    let reduced = action(CHAT, &text(&json!({"type": "chat/turnsLoaded", "turns": [loaded]})), 1500).unwrap();
    let parts = read(&reduced.text)["turns"][0]["responseParts"].clone();
    assert_eq!((reduced.references.count, parts[1]["kind"].as_str()), (2, Some("contentRef")));
    assert_eq!(parts[2], json!({"kind": "markdown", "id": "p", "content": ""}));
    assert!(serde_json::from_value::<StateAction>(read(&reduced.text)).is_ok());
}
