//! What a client may do, and what it hears when it may not.

use std::collections::HashSet;

use ahp_types::actions::{ActionType, StateAction};
use ahp_types::state::{RootState, SessionState, SnapshotState};
use breakbulk_host::test_support::gate::{
    self, ACTION_RULES, Client, Dispatcher, Features, GateContext, MAX_QUEUED_BYTES, MAX_QUEUED_MESSAGES, Rejection,
};
use breakbulk_host::test_support::state::ChannelKind;
use serde_json::{Value, json};

use crate::common::*;

fn me() -> Client {
    Client { id: "me".into() }
}

fn try_on(state: &SnapshotState, action: Value) -> Result<(), Rejection> {
    try_with(&GateContext::of(state), action)
}

fn try_with(facts: &GateContext<'_>, action: Value) -> Result<(), Rejection> {
    let action: StateAction = serde_json::from_value(action).unwrap();
    gate::check(&me(), &action, facts)
}

/// A state with some fields changed.
fn with(state: &SnapshotState, changes: Value) -> SnapshotState {
    let mut text = serde_json::to_value(state).unwrap();
    changes.as_object().unwrap().iter().for_each(|(key, value)| text[key] = value.clone());
    match ChannelKind::of(state) {
        ChannelKind::Chat => SnapshotState::Chat(serde_json::from_value(text).unwrap()),
        ChannelKind::Session => SnapshotState::Session(serde_json::from_value(text).unwrap()),
        ChannelKind::Terminal => SnapshotState::Terminal(serde_json::from_value(text).unwrap()),
        kind => panic!("{kind:?} is not changed in a test"),
    }
}

/// A chat in the middle of a turn with these parts.
fn in_turn(parts: Value) -> SnapshotState {
    let turn =
        json!({"id": "t", "startedAt": "2026-01-01T00:00:00.000Z", "message": message("do"), "responseParts": parts});
    with(&chat(), json!({"activeTurn": turn}))
}

fn tool(status: &str, more: Value) -> SnapshotState {
    let mut call = json!({"status": status, "toolCallId": "c", "toolName": "run", "displayName": "Run",
        "invocationMessage": "Runs"});
    more.as_object().unwrap().iter().for_each(|(key, value)| call[key] = value.clone());
    in_turn(json!([{"kind": "toolCall", "toolCall": call}]))
}

fn confirmed(more: Value) -> Value {
    let mut action = json!({"type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": "c", "approved": true});
    more.as_object().unwrap().iter().for_each(|(key, value)| action[key] = value.clone());
    action
}

fn complete(success: bool) -> Value {
    json!({"type": "chat/toolCallComplete", "turnId": "t", "toolCallId": "c",
        "result": {"success": success, "pastTenseMessage": "Ran"}})
}

#[test]
fn every_action_has_a_row_with_a_name_of_the_protocol() {
    let names: HashSet<&str> = ACTION_RULES.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), ACTION_RULES.len());
    for name in names {
        let known: ActionType = serde_json::from_value(json!(name)).unwrap();
        assert!(!matches!(known, ActionType::Unknown(_)), "{name}");
    }
}

#[test]
fn clients_dispatch_what_the_protocol_lets_them() {
    let theirs: HashSet<&str> =
        ACTION_RULES.iter().filter(|row| row.dispatcher == Dispatcher::Client).map(|row| row.name).collect();
    let expected = "root/configChanged session/titleChanged session/isReadChanged session/isArchivedChanged \
        session/activeClientSet session/activeClientRemoved session/workingDirectorySet session/workingDirectoryRemoved \
        session/workingDirectoryReplaced session/customizationToggled session/mcpServerStartRequested \
        session/mcpServerStopRequested session/mcpServerBackgroundRequested session/configChanged chat/turnStarted \
        chat/toolCallConfirmed chat/toolCallComplete chat/toolCallResultConfirmed chat/toolCallContentChanged \
        chat/turnCancelled chat/turnResume chat/workingDirectorySet chat/workingDirectoryRemoved chat/pendingMessageSet \
        chat/pendingMessageRemoved chat/queuedMessagesReordered chat/draftChanged chat/isReadChanged \
        chat/isArchivedChanged chat/inputAnswerChanged chat/inputCompleted chat/truncated changeset/filesReviewChanged \
        annotations/set annotations/updated annotations/removed annotations/entrySet annotations/entryRemoved \
        terminal/input terminal/resized terminal/claimed terminal/titleChanged terminal/cleared \
        automation/createRequested automation/updateRequested automation/removed automationRun/cancelRequested";
    assert_eq!(theirs, expected.split_whitespace().collect());
}

#[test]
fn what_is_the_hosts_or_of_another_channel_or_unknown_is_refused() {
    assert_eq!(
        try_on(&chat(), json!({"type": "chat/activityChanged"})),
        Err(Rejection::OnlyTheHost { action: "chat/activityChanged" })
    );
    assert_eq!(
        try_on(&chat(), json!({"type": "session/titleChanged", "title": "x"})),
        Err(Rejection::WrongChannel {
            action: "session/titleChanged",
            wanted: ChannelKind::Session,
            found: ChannelKind::Chat
        })
    );
    assert_eq!(try_on(&chat(), json!({"type": "chat/later"})), Err(Rejection::Unknown));
    // A known action that lacks a field is no known action.
    assert_eq!(try_on(&chat(), json!({"type": "chat/turnStarted"})), Err(Rejection::Unknown));
}

fn queued(id: usize, text: &str) -> Value {
    json!({"id": id.to_string(), "message": message(text)})
}

fn queue(kind: &str, id: usize, text: &str) -> Value {
    json!({"type": "chat/pendingMessageSet", "kind": kind, "id": id.to_string(), "message": message(text)})
}

#[test]
fn the_messages_that_wait_in_a_chat_are_limited_in_number() {
    let of = |count| {
        let waiting: Vec<_> = (0..count).map(|id| queued(id, "x")).collect();
        with(&in_turn(json!([])), json!({"queuedMessages": waiting}))
    };
    assert_eq!(try_on(&of(MAX_QUEUED_MESSAGES - 1), queue("queued", 1_000, "x")), Ok(()));
    let full = of(MAX_QUEUED_MESSAGES);
    assert_eq!(try_on(&full, queue("queued", 1_000, "x")), Err(Rejection::QueueFull));
    // One that waits can be changed; a steering message is not in the queue.
    assert_eq!(try_on(&full, queue("queued", 7, "y")), Ok(()));
    assert_eq!(try_on(&full, queue("steering", 1_000, "x")), Ok(()));
}

#[test]
fn the_messages_that_wait_in_a_chat_are_limited_in_bytes_and_one_alone_is_not() {
    let long = "x".repeat(MAX_QUEUED_BYTES / 2);
    let waiting = with(&in_turn(json!([])), json!({"queuedMessages": [queued(1, &long)]}));
    assert_eq!(try_on(&waiting, queue("queued", 2, &long[100..])), Ok(()));
    let Err(Rejection::QueueTooLong { bytes, new }) = try_on(&waiting, queue("queued", 2, &long)) else {
        panic!("it is too long")
    };
    assert!(bytes > long.len() && new == bytes, "{bytes} {new}");
    assert_eq!(try_on(&waiting, queue("queued", 1, &long)), Ok(()), "in place of the one that waits");
    let alone = "x".repeat(MAX_QUEUED_BYTES + 1);
    assert_eq!(try_on(&in_turn(json!([])), queue("queued", 1, &alone)), Ok(()));
}

#[test]
fn a_turn_starts_when_none_is_active_with_a_message_of_the_user_and_a_time() {
    assert_eq!(try_on(&chat(), started("t")), Ok(()));
    assert_eq!(try_on(&in_turn(json!([])), started("u")), Err(Rejection::TurnInProgress));
    let mut action = started("t");
    action["message"]["origin"]["kind"] = json!("agent");
    assert_eq!(try_on(&chat(), action), Err(Rejection::NotTheUser));
    let mut action = started("t");
    action["startedAt"] = json!("yesterday");
    assert_eq!(try_on(&chat(), action), Err(Rejection::Timestamp));
    let mut action = started("t");
    action["queuedMessageId"] = json!("q");
    assert_eq!(try_on(&chat(), action), Err(Rejection::NoPendingMessage));
    let read_only = with(&chat(), json!({"interactivity": "read-only"}));
    assert_eq!(try_on(&read_only, started("t")), Err(Rejection::ReadOnly));
    let SnapshotState::Session(creating) = session() else { unreachable!() };
    let chat = chat();
    let facts = GateContext { session: Some(&creating), ..GateContext::of(&chat) };
    assert_eq!(try_with(&facts, started("t")), Err(Rejection::NotReady));
}

#[test]
fn only_the_active_turn_is_cancelled_and_only_a_resumable_one_resumed() {
    let cancel = json!({"type": "chat/turnCancelled", "turnId": "t", "duration": 1});
    assert_eq!(try_on(&chat(), cancel.clone()), Err(Rejection::NoActiveTurn));
    assert_eq!(try_on(&in_turn(json!([])), cancel), Ok(()));
    let (chat, resume) = (chat(), json!({"type": "chat/turnResume", "turnId": "t"}));
    assert_eq!(try_on(&chat, resume.clone()), Err(Rejection::NotResumable));
    assert_eq!(try_with(&GateContext { resumable: Some("t"), ..GateContext::of(&chat) }, resume), Ok(()));
}

#[test]
fn a_tool_call_is_confirmed_while_it_waits_for_that() {
    let waits = tool("pending-confirmation", json!({"options": [{"id": "yes", "label": "Yes", "kind": "approve"}]}));
    assert_eq!(try_on(&waits, confirmed(json!({}))), Ok(()));
    assert_eq!(try_on(&waits, confirmed(json!({"selectedOptionId": "yes"}))), Ok(()));
    assert_eq!(try_on(&waits, confirmed(json!({"selectedOptionId": "no"}))), Err(Rejection::NoOption));
    assert_eq!(try_on(&waits, confirmed(json!({"editedToolInput": "{}"}))), Err(Rejection::NotEditable));
    assert_eq!(try_on(&waits, confirmed(json!({"toolCallId": "d"}))), Err(Rejection::NoToolCall));
    assert_eq!(try_on(&waits, confirmed(json!({"turnId": "u"}))), Err(Rejection::NoActiveTurn));
    let runs = tool("running", json!({"confirmed": "not-needed"}));
    assert_eq!(try_on(&runs, confirmed(json!({}))), Err(Rejection::ToolCallState));
}

#[test]
fn a_tool_call_is_completed_by_the_client_that_runs_it() {
    let by = |client: &str| {
        tool("running", json!({"confirmed": "not-needed", "contributor": {"kind": "client", "clientId": client}}))
    };
    assert_eq!(try_on(&by("me"), complete(true)), Ok(()));
    assert_eq!(try_on(&by("you"), complete(true)), Err(Rejection::NotYourToolCall));
    let hosts = tool("running", json!({"confirmed": "not-needed"}));
    assert_eq!(try_on(&hosts, complete(true)), Err(Rejection::NotYourToolCall));
}

#[test]
fn an_input_request_is_accepted_when_all_that_must_be_answered_is() {
    let request = json!({"id": "i", "questions": [{"kind": "text", "id": "q", "message": "?", "required": true}]});
    let asks = in_turn(json!([{"kind": "inputRequest", "request": request}]));
    let completed = |response: &str, answers: Value| json!({"type": "chat/inputCompleted", "requestId": "i", "response": response, "answers": answers});
    let answer = |state: &str| json!({"q": {"state": state, "value": {"kind": "text", "value": "x"}}});
    assert_eq!(try_on(&asks, completed("accept", json!({}))), Err(Rejection::Unanswered));
    assert_eq!(try_on(&asks, completed("accept", answer("draft"))), Err(Rejection::Unanswered));
    assert_eq!(try_on(&asks, completed("accept", answer("submitted"))), Ok(()));
    assert_eq!(try_on(&asks, completed("cancel", json!({}))), Ok(()));
    assert_eq!(try_on(&chat(), completed("cancel", json!({}))), Err(Rejection::NoInputRequest));
    let changed = |id: &str| json!({"type": "chat/inputAnswerChanged", "requestId": "i", "questionId": id});
    assert_eq!((try_on(&asks, changed("q")), try_on(&asks, changed("r"))), (Ok(()), Err(Rejection::NoQuestion)));
}

#[test]
fn a_client_speaks_for_itself_only() {
    let set = |id: &str| json!({"type": "session/activeClientSet", "activeClient": {"clientId": id, "tools": []}});
    assert_eq!((try_on(&session(), set("me")), try_on(&session(), set("you"))), (Ok(()), Err(Rejection::NotYou)));
    let claim = json!({"type": "terminal/claimed", "claim": {"kind": "client", "clientId": "me"}});
    assert_eq!(try_on(&terminal(), claim.clone()), Err(Rejection::NotYourTerminal));
    let mine = with(&terminal(), json!({"claim": {"kind": "client", "clientId": "me"}}));
    assert_eq!(try_on(&mine, claim), Ok(()));
}

#[test]
fn working_directories_change_where_the_agent_can_and_the_first_one_is_protected() {
    let root = |capabilities: Value| -> RootState {
        let agent = json!({"provider": "demo", "displayName": "", "description": "", "models": [], "capabilities": capabilities});
        serde_json::from_value(json!({"agents": [agent]})).unwrap()
    };
    let state = with(&session(), json!({"workingDirectories": ["file:///a", "file:///b"]}));
    let try_as = |root: &RootState, action: Value| {
        try_with(&GateContext { root: Some(root), ..GateContext::of(&state) }, action)
    };
    let removed = |path: &str| json!({"type": "session/workingDirectoryRemoved", "directory": path});
    let replaced =
        |path: &str| json!({"type": "session/workingDirectoryReplaced", "directory": path, "replacement": "file:///c"});
    let (none, peers) = (root(json!({})), root(json!({"multipleWorkingDirectories": {}})));
    let moves = root(json!({"multipleWorkingDirectories": {"primaryReplacement": true}}));
    assert_eq!(try_as(&none, removed("file:///b")), Err(Rejection::OneDirectory));
    assert_eq!(try_as(&peers, removed("file:///a")), Ok(()));
    assert_eq!(try_as(&moves, removed("file:///a")), Err(Rejection::PrimaryDirectory));
    assert_eq!(try_as(&moves, replaced("file:///a")), Ok(()));
    assert_eq!(try_as(&peers, replaced("file:///a")), Err(Rejection::PrimaryDirectory));
    assert_eq!(try_as(&peers, replaced("file:///x")), Err(Rejection::NoDirectory));
    let SnapshotState::Session(session) = &state else { unreachable!() };
    let (chat, session): (_, &SessionState) = (chat(), session);
    let facts = GateContext { session: Some(session), root: Some(&peers), ..GateContext::of(&chat) };
    let set = |path: &str| json!({"type": "chat/workingDirectorySet", "directory": path});
    assert_eq!(try_with(&facts, set("file:///b")), Ok(()));
    assert_eq!(try_with(&facts, set("file:///c")), Err(Rejection::NoDirectory));
}

#[test]
fn only_properties_that_may_change_in_a_session_do() {
    let schema = json!({"type": "object", "properties": {"fixed": {"type": "string", "title": "F"},
        "free": {"type": "string", "title": "V", "sessionMutable": true}}});
    let state = with(&session(), json!({"config": {"schema": schema, "values": {"fixed": "x", "free": "x"}}}));
    let change =
        |config: Value, replace: bool| json!({"type": "session/configChanged", "config": config, "replace": replace});
    assert_eq!(try_on(&state, change(json!({"free": "y"}), false)), Ok(()));
    assert_eq!(
        try_on(&state, change(json!({"fixed": "y"}), false)),
        Err(Rejection::FixedProperty { name: "fixed".into() })
    );
    assert_eq!(
        try_on(&state, change(json!({"other": "y"}), false)),
        Err(Rejection::FixedProperty { name: "other".into() })
    );
    assert_eq!(
        try_on(&state, change(json!({"free": "y"}), true)),
        Err(Rejection::FixedProperty { name: "fixed".into() })
    );
    assert_eq!(try_on(&state, change(json!({"fixed": "x"}), true)), Ok(()));
    assert_eq!(try_on(&session(), change(json!({}), false)), Err(Rejection::NoConfig));
}

#[test]
fn a_terminal_that_has_exited_takes_no_input() {
    let input = json!({"type": "terminal/input", "data": "ls\n"});
    assert_eq!(try_on(&terminal(), input.clone()), Ok(()));
    let exited = with(&terminal(), json!({"lifecycle": {"status": "exited", "exitCode": 0}}));
    assert_eq!(try_on(&exited, input), Err(Rejection::Exited));
    assert_eq!(try_on(&terminal(), json!({"type": "terminal/resized", "cols": 0, "rows": 24})), Err(Rejection::Size));
    assert_eq!(try_on(&terminal(), json!({"type": "terminal/resized", "cols": 80, "rows": 24})), Ok(()));
}

#[test]
fn an_annotation_keeps_an_entry_and_a_review_needs_to_be_offered() {
    let note = json!({"id": "n", "origin": {"session": SESSION, "chat": CHAT, "turnId": "t"}, "resource": "file:///a",
        "resolved": false, "entries": [{"id": "e", "text": "x"}]});
    let notes = SnapshotState::Annotations(serde_json::from_value(json!({"annotations": [note]})).unwrap());
    let remove = json!({"type": "annotations/entryRemoved", "annotationId": "n", "entryId": "e"});
    assert_eq!(try_on(&notes, remove), Err(Rejection::EmptyAnnotation));
    assert_eq!(try_on(&notes, json!({"type": "annotations/removed", "annotationId": "n"})), Ok(()));
    let changes = SnapshotState::Changeset(serde_json::from_value(json!({"status": "ready", "files": []})).unwrap());
    let review = json!({"type": "changeset/filesReviewChanged", "files": [], "reviewed": true});
    assert_eq!(try_on(&changes, review.clone()), Err(Rejection::NotOffered));
    let features = Features { review: true, ..Features::default() };
    assert_eq!(try_with(&GateContext { features, ..GateContext::of(&changes) }, review), Ok(()));
}
