//! Every event and every command, as JSON that was written from the protocol's description.

use breakbulk_lifecycle::v2::wire::{
    Body, Command, CommandError, CommandLimits, ConnectionEvent, Event, Outgoing, Refusal,
};
use serde_json::{Value, json};

/// Events of a session, without what all have.
fn events() -> Vec<Value> {
    vec![
        json!({"type": "session_start", "branch": "main", "cwd": "/a", "worktree": false}),
        json!({"type": "session_start", "agent": "claude", "branch": null, "cwd": "/a", "worktree": true, "title": "t",
            "mode": "plan", "snapshot": true, "hasEarlier": true}),
        json!({"type": "session_id"}),
        json!({"type": "user_message", "turnId": "t", "text": "hi", "clientMsgId": "c",
            "attachments": [{"label": "a photo", "mediaType": "image/png"}]}),
        json!({"type": "user_message", "turnId": "t", "text": "h", "truncated": true, "bytes": 2, "url": "/x"}),
        json!({"type": "message_start", "messageId": "m"}),
        json!({"type": "message_start", "messageId": "m", "parentToolId": "a"}),
        json!({"type": "block_start", "messageId": "m", "blockId": "b0", "blockType": "text"}),
        json!({"type": "block_start", "messageId": "m", "blockId": "b0", "blockType": "thinking"}),
        json!({"type": "block_start", "messageId": "m", "blockId": "b0", "blockType": "redacted_thinking"}),
        json!({"type": "block_start", "messageId": "m", "blockId": "b0", "blockType": "tool_use", "toolName": "Bash",
            "toolId": "a"}),
        json!({"type": "block_delta", "messageId": "m", "blockId": "b0", "blockType": "text", "delta": "x"}),
        json!({"type": "block_end", "messageId": "m", "blockId": "b0", "blockType": "redacted_thinking"}),
        json!({"type": "block_end", "messageId": "m", "blockId": "b0", "blockType": "tool_use", "toolName": "Bash",
            "toolId": "a", "input": "{\"x\":1}", "rawInput": {"x": 1}}),
        json!({"type": "tool_result", "messageId": "m", "toolId": "a", "result": "x", "isError": false}),
        json!({"type": "tool_result", "messageId": "m", "toolId": "a", "result": "x", "isError": true,
            "truncated": true, "bytes": 70_000, "url": "/content/x"}),
        json!({"type": "message_end", "messageId": "m"}),
        json!({"type": "message_snapshot", "messageId": "m", "blocks": [
            {"blockId": "b0", "blockType": "text", "content": "all text so far", "done": false},
            {"blockId": "b1", "blockType": "tool_use", "done": true, "toolName": "Task", "toolId": "a",
                "input": "{}", "rawInput": {}, "result": "ok", "isError": false, "blocks": [
                    {"messageId": "n", "blockId": "b0", "blockType": "text", "content": "nested", "done": true}]}]}),
        json!({"type": "permission_request", "permId": "p", "toolName": "Bash", "toolInput": {"x": 1}, "title": "t",
            "description": "d", "displayName": "n", "tier": "high", "toolId": "a", "expiresAt": 120_000,
            "options": [{"id": "o", "label": "Yes", "decision": "once"}]}),
        json!({"type": "permission_request", "permId": "p", "toolName": "Bash", "toolInput": "{\"x", "toolId": "a",
            "expiresAt": 1, "truncated": true}),
        json!({"type": "permission_resolved", "permId": "p", "decision": "always"}),
        json!({"type": "permission_timeout", "permId": "p"}),
        json!({"type": "mode_changed", "mode": "plan"}),
        json!({"type": "queue_changed", "queue": [{"id": "q", "prompt": "next", "clientMsgId": "c"}],
            "returned": [{"id": "r", "prompt": "never"}]}),
        json!({"type": "session_state", "state": "requires_action"}),
        json!({"type": "turn_end", "turnId": "t", "outcome": "complete", "usage": {"inputTokens": 1,
            "outputTokens": 2, "cacheReadTokens": 3, "model": "m"}}),
        json!({"type": "turn_end", "turnId": "t", "outcome": "error", "error": "no", "errorType": "agentEnded"}),
        json!({"type": "notice", "text": "n"}),
        json!({"type": "truncated", "turnId": "t"}),
        json!({"type": "error", "error": "no", "errorType": "agentEnded"}),
        json!({"type": "session_end"}),
    ]
}

fn connection_events() -> Vec<Value> {
    vec![
        json!({"type": "client_id", "clientId": "c", "maxCommandBytes": 5}),
        json!({"type": "reattached", "clientId": "c", "sessionId": "s", "running": true, "state": "running"}),
        json!({"type": "reattached", "clientId": "c", "sessionId": "s", "running": false, "state": "idle",
            "ended": true, "snapshot": "future"}),
        json!({"type": "reattach_failed", "clientId": "c", "sessionId": "s", "reason": "no such session"}),
        json!({"type": "sessions", "sessions": [{"sessionId": "s", "title": "t", "agent": "demo", "cwd": "/a",
            "state": "idle", "modifiedAt": "2026-01-01T00:00:00Z"}], "nextCursor": "after"}),
        json!({"type": "ack", "command": "send", "clientMsgId": "m", "sessionId": "s", "outcome": "queued",
            "repeated": true}),
        json!({"type": "pong"}),
    ]
}

fn commands() -> Vec<Value> {
    vec![
        json!({"type": "hello", "protocolVersion": 2}),
        json!({"type": "list"}),
        json!({"type": "list", "cursor": "after", "limit": 5}),
        json!({"type": "open", "agent": "claude", "cwd": "/a", "model": "m", "mode": "plan", "clientMsgId": "c"}),
        json!({"type": "watch", "sessionId": "s", "lastSeq": 7}),
        json!({"type": "unwatch", "sessionId": "s"}),
        json!({"type": "send", "sessionId": "s", "prompt": "", "clientMsgId": "c",
            "images": [{"mediaType": "image/png", "data": "AA=="}], "model": "m", "mode": "plan"}),
        json!({"type": "queue", "sessionId": "s", "prompt": "p", "clientMsgId": "c"}),
        json!({"type": "interrupt", "sessionId": "s", "prompt": "p", "clientMsgId": "c"}),
        json!({"type": "interrupt", "sessionId": "s", "clientMsgId": "c"}),
        json!({"type": "stop", "sessionId": "s"}),
        json!({"type": "set_mode", "sessionId": "s", "mode": "plan"}),
        json!({"type": "permission_response", "permId": "p", "decision": "always", "answers": {"Which?": "this"}}),
        json!({"type": "reattach", "clientId": "c", "sessions": [{"sessionId": "s", "lastSeq": 7}, {"sessionId": "r"}]}),
        json!({"type": "ping"}),
    ]
}

#[test]
fn every_event_of_a_session_is_read_and_written_with_an_envelope() {
    for mut value in events() {
        let object = value.as_object_mut().unwrap();
        object.extend([("v".into(), json!(2)), ("ts".into(), json!(5)), ("seq".into(), json!(9))]);
        object.extend([("sessionId".into(), json!("s")), ("sub".into(), json!(1)), ("more".into(), json!(true))]);
        let Outgoing::Event(event) = serde_json::from_value(value.clone()).unwrap() else { panic!("{value}") };
        assert_eq!(serde_json::to_value(&event).unwrap(), value);
        assert_eq!((event.ts, event.seq, event.sub, event.more), (5, 9, 1, true));
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.starts_with(r#"{"v":2,"type":""#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), *event);
    }
}

#[test]
fn every_event_has_a_golden_json() {
    // The compiler says when an event is missing here.
    let name = |body: &Body| match body {
        Body::SessionStart { .. } => 0,
        Body::SessionId {} => 1,
        Body::UserMessage { .. } => 2,
        Body::MessageStart { .. } => 3,
        Body::BlockStart { .. } => 4,
        Body::BlockDelta { .. } => 5,
        Body::BlockEnd { .. } => 6,
        Body::ToolResult { .. } => 7,
        Body::MessageEnd { .. } => 8,
        Body::MessageSnapshot { .. } => 9,
        Body::PermissionRequest { .. } => 10,
        Body::PermissionResolved { .. } => 11,
        Body::PermissionTimeout { .. } => 12,
        Body::ModeChanged { .. } => 13,
        Body::QueueChanged { .. } => 14,
        Body::SessionState { .. } => 15,
        Body::TurnEnd { .. } => 16,
        Body::Notice { .. } => 17,
        Body::Truncated { .. } => 18,
        Body::Error { .. } => 19,
        Body::SessionEnd {} => 20,
    };
    let mut seen: Vec<i32> = events().into_iter().map(|value| name(&serde_json::from_value(value).unwrap())).collect();
    seen.dedup();
    assert_eq!(seen, (0..=20).collect::<Vec<_>>());
}

#[test]
fn events_of_a_connection_have_neither_version_nor_time() {
    for value in connection_events() {
        let Outgoing::Connection(event) = serde_json::from_value(value.clone()).unwrap() else { panic!("{value}") };
        assert_eq!(serde_json::to_value(&event).unwrap(), value);
        match event {
            ConnectionEvent::ClientId { .. }
            | ConnectionEvent::Reattached { .. }
            | ConnectionEvent::ReattachFailed { .. }
            | ConnectionEvent::Sessions { .. }
            | ConnectionEvent::Ack { .. }
            | ConnectionEvent::Pong {} => {}
        }
    }
}

#[test]
fn an_event_of_another_version_is_refused() {
    let text = r#"{"v":3,"type":"session_end","ts":1,"seq":1,"sessionId":"s"}"#;
    assert!(serde_json::from_str::<Event>(text).is_err());
}

#[test]
fn every_command_is_read_and_written() {
    let mut names = Vec::new();
    for value in commands() {
        let command = read(&value.to_string()).unwrap();
        assert_eq!(serde_json::to_value(&command).unwrap(), value);
        assert_eq!(command.name(), value["type"]);
        names.push(command.name());
        assert_eq!(command.client_msg_id(), value["clientMsgId"].as_str());
        let mut more = value.clone();
        more["unknown"] = json!({"a": [1]});
        assert_eq!(read(&more.to_string()).unwrap(), command);
    }
    names.dedup();
    assert_eq!(names.len(), 13);
}

#[test]
fn a_malformed_command_is_refused_with_its_name_and_the_field() {
    for value in commands() {
        let required = |field: &str| match value["type"].as_str().unwrap() {
            "list" => false,
            "open" => !["model", "mode", "clientMsgId"].contains(&field),
            "permission_response" => field != "answers",
            "interrupt" => field != "prompt",
            _ => !["lastSeq", "images", "model", "mode"].contains(&field),
        };
        for (field, _) in value.as_object().unwrap().iter().filter(|(field, _)| *field != "type") {
            let mut wrong = value.clone();
            wrong[field] = json!(-1.5);
            let error = read(&wrong.to_string()).unwrap_err();
            assert_eq!((error.command(), error.field()), (value["type"].as_str(), Some(field.as_str())));
            assert!(error.to_string().starts_with(value["type"].as_str().unwrap()), "{error}");
            let mut missing = value.clone();
            missing.as_object_mut().unwrap().remove(field);
            match read(&missing.to_string()) {
                Ok(_) => assert!(!required(field), "{missing}"),
                Err(error) => assert_eq!(error.field(), Some(field.as_str())),
            }
        }
    }
}

#[test]
fn what_is_no_command_is_refused_with_what_can_be_named() {
    let error = |text: &str| read(text).unwrap_err();
    assert_eq!(error(r#"{"type":"fly"}"#), CommandError::Unknown { command: "fly".into() });
    assert_eq!(error(r#"{"type":"fly"}"#).to_string(), r#"unknown command "fly""#);
    let CommandError::Unknown { command } = error(&format!(r#"{{"type":"{}"}}"#, "ü".repeat(999))) else { panic!() };
    assert_eq!(command.chars().count(), 64);
    for text in ["", "{", "[]", "7", r#"{"type":7}"#, "{}", "\u{0}"] {
        assert!(matches!(error(text), CommandError::NotAnObject { .. }), "{text}");
    }
    assert_eq!(read(r#"{"type":"hello","protocolVersion":3}"#).unwrap_err().field(), Some("protocolVersion"));
}

#[test]
fn sizes_and_depths_of_commands_are_bounded() {
    let limits = CommandLimits { max_bytes: 4_000, max_images: 1, max_sessions: 1, ..CommandLimits::default() };
    let read = |text: &str| Command::read(text.as_bytes(), &limits);
    let send =
        |prompt: &str| json!({"type": "send", "sessionId": "s", "clientMsgId": "c", "prompt": prompt}).to_string();
    assert!(matches!(read(&send(&"x".repeat(4_000))), Err(CommandError::TooLarge { limit: 4_000, .. })));
    let deep = format!(r#"{{"type":"list","x":{}{}}}"#, "[".repeat(1_500), "]".repeat(1_500));
    assert_eq!(read(&deep), Err(CommandError::TooDeep { limit: 32 }));
    // Brackets in a string nest nothing.
    assert!(read(&send(&"[{\\\"".repeat(99))).is_ok());
    let image = json!({"mediaType": "image/png", "data": ""});
    let mut many = json!({"type": "send", "sessionId": "s", "clientMsgId": "c", "prompt": "", "images": [image]});
    assert!(read(&many.to_string()).is_ok());
    many["images"].as_array_mut().unwrap().push(image.clone());
    assert_eq!(read(&many.to_string()).unwrap_err().field(), Some("images"));
    let many = json!({"type": "reattach", "clientId": "c", "sessions": [{"sessionId": "s"}, {"sessionId": "r"}]});
    assert_eq!(read(&many.to_string()).unwrap_err().field(), Some("sessions"));
    for name in ["", &"x".repeat(5_000)] {
        let long = json!({"type": "stop", "sessionId": name}).to_string();
        assert_eq!(super::wire::read(&long).unwrap_err().field(), Some("sessionId"));
    }
}

#[test]
fn the_same_client_msg_id_with_another_payload_is_another_command() {
    let first = read(r#"{"type":"send","sessionId":"s","prompt":"p","clientMsgId":"c"}"#).unwrap();
    let again = read(r#"{"clientMsgId":"c","prompt":"p","type":"send","sessionId":"s","images":null}"#).unwrap();
    let other = read(r#"{"type":"send","sessionId":"s","prompt":"q","clientMsgId":"c"}"#).unwrap();
    assert_eq!(first, again);
    assert_eq!(first.client_msg_id(), other.client_msg_id());
    assert_ne!(first, other);
}

#[test]
fn a_refusal_is_an_error_that_names_the_command_and_has_no_place_in_a_session() {
    let error = read(r#"{"type":"stop"}"#).unwrap_err();
    let refusal = Refusal::malformed(&error, 5);
    let written = json!({"v": 2, "type": "error", "ts": 5, "error": "stop: the field \"sessionId\" is missing",
        "command": "stop", "field": "sessionId"});
    assert_eq!(serde_json::to_value(&refusal).unwrap(), written);
    assert_eq!(serde_json::from_value::<Outgoing>(written).unwrap(), Outgoing::Refusal(refusal));
}

fn read(text: &str) -> Result<Command, CommandError> {
    Command::read(text.as_bytes(), &CommandLimits::default())
}

/// The rows of the tables in docs/v2.md whose first cell names one of these types, each with its other cells.
fn documented(name: &str) -> Vec<String> {
    let text = include_str!("../../../../docs/v2.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let name = format!("`{name}`");
    rows.filter(|(first, _)| first.split(", ").any(|known| known == name)).map(|(_, rest)| rest.to_owned()).collect()
}

#[test]
fn the_documentation_names_every_command_and_event_with_every_field() {
    for value in events().iter().chain(&connection_events()).chain(&commands()) {
        let name = value["type"].as_str().unwrap();
        let rows = documented(name);
        assert_eq!(rows.len(), 1, "docs/v2.md has one row for {name}");
        let fields = rows[0].split(" | ").next().unwrap();
        for (field, _) in value.as_object().unwrap().iter().filter(|(field, _)| *field != "type") {
            let is_named = ["", "?"].iter().any(|mark| fields.contains(&format!("`{field}{mark}`")));
            assert!(is_named, "docs/v2.md does not name {field} of {name}");
        }
    }
}
