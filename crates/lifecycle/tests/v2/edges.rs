//! The specification's rules and its table of edge cases, one test each; and orders that only a log can show.

use breakbulk_lifecycle::projection::{Change, worker_chat};
use breakbulk_lifecycle::v2::wire::{Body, Decision, Event, SessionState, SnapshotReason};
use breakbulk_lifecycle::v2::{Config, Cursor, Kept, LongContent, Model, PERMISSION_TIMEOUT_MS, Start};
use serde_json::{Value, json};

use crate::world::actions::*;
use crate::world::{CHAT, SESSION, World, bare, config};

/// The types of all events after those with which a session begins.
fn types(world: &World) -> Vec<String> {
    world.told().iter().skip(2).map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

fn only(world: &World, kind: &str) -> Vec<Value> {
    world.told().into_iter().filter(|event| event["type"] == kind).collect()
}

fn model(world: &World) -> Model {
    let mut model = Model::new("s1");
    for event in world.events().iter().flatten() {
        model.apply(event);
    }
    model
}

#[test]
fn redacted_thinking_starts_and_ends_and_shows_nothing() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(thinking("t", "m/0:redacted")).chat(thought_ended("t", "m/0:redacted", "block"));
    let blocks: Vec<Value> = world.told().into_iter().filter(|event| event.get("blockType").is_some()).collect();
    assert_eq!(
        blocks,
        [
            json!({"type": "block_start", "messageId": "m", "blockId": "b0", "blockType": "redacted_thinking"}),
            json!({"type": "block_end", "messageId": "m", "blockId": "b0", "blockType": "redacted_thinking"}),
        ]
    );
    let snapshot = world.now.snapshot(&world.projector());
    let shot = snapshot.iter().map(bare).find(|event| event["type"] == "message_snapshot").unwrap();
    assert_eq!(shot["blocks"][0], json!({"blockId": "b0", "blockType": "redacted_thinking", "done": true}));
}

#[test]
fn a_tool_result_says_whether_it_is_an_error() {
    let mut world = World::new();
    world.chat(turn("t", "p"));
    for (tool, success) in [("a", true), ("b", false)] {
        world.chat(call("t", "m", tool)).chat(runs("t", tool, "{}")).chat(result("t", tool, "out", success));
    }
    assert_eq!(
        only(&world, "tool_result"),
        [
            json!({"type": "tool_result", "messageId": "m", "toolId": "a", "result": "out", "isError": false}),
            json!({"type": "tool_result", "messageId": "m", "toolId": "b", "result": "out", "isError": true}),
        ]
    );
}

#[test]
fn an_abort_in_the_middle_of_a_stream_ends_the_block_the_message_the_turn_and_the_session() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0")).chat(delta("t", "m/0", "mid"));
    world.put(SESSION, Change::Closed);
    let types = types(&world);
    let end = ["block_end", "message_end", "turn_end", "session_state", "session_end"];
    assert_eq!(types[types.len() - 5..], end);
    let model = model(&world);
    assert!(model.state().current.is_none() && model.state().ended && !model.state().running);
}

#[test]
fn a_client_whose_connection_dropped_silently_gets_a_snapshot_and_the_stream_goes_on() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0")).chat(delta("t", "m/0", "one "));
    let mut projector = world.projector();
    let shot = world.now.snapshot(&projector);
    let mut model = Model::new("s1");
    shot.iter().for_each(|event| assert!(model.apply(event)));
    let wanted = json!({"type": "message_snapshot", "messageId": "m",
        "blocks": [{"blockId": "b0", "blockType": "text", "content": "one ", "done": false}]});
    assert!(shot.iter().map(bare).any(|event| event == wanted), "{shot:#?}");
    world.chat(delta("t", "m/0", "two"));
    for event in crate::world::apply(&mut projector, world.log.last().unwrap()) {
        assert!(model.apply(&event));
    }
    let current = model.state().current.as_ref().unwrap();
    assert_eq!((&*current.blocks[0].content, current.blocks[0].done), ("one two", false));
}

#[test]
fn a_response_of_only_a_tool_is_a_message_with_one_block() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(call("t", "m", "a")).chat(input("t", "a", r#"{"x":"#));
    world.chat(input("t", "a", "1}")).chat(input_ended("t", "m", "a", "block"));
    world.chat(input_ended("t", "m", "a", "message"));
    assert_eq!(
        types(&world),
        ["user_message", "session_state", "message_start", "block_start", "block_end", "message_end"]
    );
    let end = json!({"type": "block_end", "messageId": "m", "blockId": "b0", "blockType": "tool_use",
        "toolName": "Bash", "toolId": "a", "input": "{\"x\":1}", "rawInput": {"x": 1}});
    assert_eq!(only(&world, "block_end"), [end]);
}

#[test]
fn several_calls_each_have_one_end_and_one_result_matched_by_tool_id() {
    let mut world = World::new();
    world.chat(turn("t", "p"));
    for tool in ["a", "b", "c"] {
        world.chat(call("t", "m", tool)).chat(input("t", tool, tool)).chat(input_ended("t", "m", tool, "block"));
    }
    for tool in ["c", "a", "b"] {
        world.chat(runs("t", tool, tool)).chat(result("t", tool, &format!("of {tool}"), true));
    }
    world.chat(complete("t"));
    assert_eq!(only(&world, "block_end").len(), 3);
    assert_eq!(only(&world, "tool_result").len(), 3);
    let model = model(&world);
    for block in &model.state().messages[1].blocks {
        let tool = block.tool.as_ref().unwrap();
        let result = &tool.outcome.as_ref().unwrap().result;
        assert_eq!(*result, format!("of {}", tool.tool_id.as_ref().unwrap()));
    }
}

#[test]
fn an_interrupt_ends_the_turn_gives_the_queue_back_and_the_next_prompt_runs() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0")).chat(delta("t", "m/0", "mid"));
    let waiting = |id: &str| {
        json!({"type": "chat/pendingMessageSet", "kind": "queued", "id": id, "message": {"text": format!("later {id}"),
            "origin": {"kind": "user"}, "_meta": {"breakbulk": {"clientMsgId": format!("c{id}")}}}})
    };
    world.chat(waiting("1")).chat(waiting("2")).chat(cancelled("t"));
    for id in ["1", "2"] {
        world.chat(json!({"type": "chat/pendingMessageRemoved", "kind": "queued", "id": id}));
    }
    world.chat(turn("u", "now this"));
    let queued = |id: &str| json!({"id": id, "prompt": format!("later {id}"), "clientMsgId": format!("c{id}")});
    assert_eq!(
        only(&world, "queue_changed"),
        [
            json!({"type": "queue_changed", "queue": [queued("1")]}),
            json!({"type": "queue_changed", "queue": [queued("1"), queued("2")]}),
            json!({"type": "queue_changed", "queue": [queued("2")], "returned": [queued("1")]}),
            json!({"type": "queue_changed", "queue": [], "returned": [queued("2")]}),
        ]
    );
    assert_eq!(only(&world, "turn_end"), [json!({"type": "turn_end", "turnId": "t", "outcome": "cancelled"})]);
    let model = model(&world);
    assert!(model.state().running && model.state().queue.is_empty());
}

#[test]
fn a_prompt_from_the_queue_leaves_it_when_its_turn_begins() {
    let mut world = World::new();
    world.chat(turn("t", "p"));
    world.chat(json!({"type": "chat/pendingMessageSet", "kind": "queued", "id": "1",
        "message": {"text": "later", "origin": {"kind": "user"}}}));
    world.chat(complete("t"));
    let mut next = turn("u", "later");
    next["queuedMessageId"] = json!("1");
    world.chat(next);
    assert_eq!(only(&world, "queue_changed").last(), Some(&json!({"type": "queue_changed", "queue": []})));
    let tail = types(&world);
    assert_eq!(tail[tail.len() - 3..], ["queue_changed", "user_message", "session_state"]);
}

#[test]
fn the_end_of_a_message_waits_for_its_blocks() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0")).chat(ended("t", "m/0", "message"));
    assert!(only(&world, "message_end").is_empty());
    world.chat(delta("t", "m/0", "late")).chat(ended("t", "m/0", "block"));
    let tail = types(&world);
    assert_eq!(tail[tail.len() - 3..], ["block_delta", "block_end", "message_end"]);
    world.chat(ended("t", "m/0", "message")).chat(complete("t"));
    assert_eq!(only(&world, "message_end").len(), 1);
}

#[test]
fn the_end_of_a_call_without_a_streamed_input_waits_until_the_call_is_ready() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(call("t", "m", "a")).chat(input_ended("t", "m", "a", "block"));
    world.chat(input_ended("t", "m", "a", "message"));
    assert!(only(&world, "block_end").is_empty() && only(&world, "message_end").is_empty());
    world.chat(runs("t", "a", "{}"));
    assert_eq!(only(&world, "block_end")[0]["input"], "{}");
    assert_eq!(only(&world, "message_end").len(), 1);
}

#[test]
fn the_next_message_forces_the_end_of_the_one_before() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0")).chat(ended("t", "m/0", "message")).chat(text("t", "n/1"));
    assert_eq!(
        types(&world)[2..],
        ["message_start", "block_start", "block_end", "message_end", "message_start", "block_start"]
    );
}

#[test]
fn a_session_that_was_stopped_ends_and_goes_on_with_the_next_prompt() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(complete("t"));
    world.json(SESSION, json!({"type": "session/metaChanged", "_meta": {"breakbulk": {"ended": true}}}));
    assert!(model(&world).state().ended);
    let snapshot = world.now.snapshot(&world.now.resume(config()));
    assert_eq!(snapshot.last().unwrap().body, Body::SessionEnd {});
    world.json(SESSION, json!({"type": "session/metaChanged", "_meta": {}}));
    world.chat(turn("u", "q"));
    let model = model(&world);
    assert!(!model.state().ended && model.state().running);
}

#[test]
fn a_permission_expires_two_minutes_after_it_was_logged_and_shows_the_same_deadline_after_a_reattach() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(call("t", "m", "a")).chat(asks("t", "a", r#"{"x":1}"#));
    world.json(SESSION, needed(CHAT, "t", "a", r#"{"x":1}"#));
    let deadline = world.now.at_ms + PERMISSION_TIMEOUT_MS;
    let asked = only(&world, "permission_request");
    assert_eq!(
        asked,
        [json!({"type": "permission_request", "permId": "ahp-chat:/c#t#a", "toolName": "Bash", "toolInput": {"x": 1},
            "title": "Bash", "description": "May it run?", "displayName": "Run a command", "toolId": "a",
            "expiresAt": deadline})]
    );
    assert_eq!(model(&world).state().state, SessionState::RequiresAction);
    world.chat(text("t", "m/1")).chat(delta("t", "m/1", "meanwhile"));
    for projector in [world.projector(), world.now.resume(config())] {
        let again: Vec<Value> = world.now.snapshot(&projector).iter().map(bare).collect();
        assert!(again.contains(&asked[0]), "{again:#?}");
        assert_eq!(again.last().unwrap()["state"], "requires_action");
    }
}

#[test]
fn a_permission_is_resolved_once_by_an_answer_a_timeout_or_the_end_of_the_turn() {
    let answered = |action: Value| {
        let mut world = World::new();
        world.chat(turn("t", "p")).chat(call("t", "m", "a")).chat(asks("t", "a", "{}"));
        world.json(SESSION, needed(CHAT, "t", "a", "{}")).chat(action);
        world.json(SESSION, not_needed(CHAT, "t", "a"));
        let told = world.told().into_iter().filter(|event| event.get("permId").is_some()).skip(1);
        let told: Vec<Value> = told.collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(model(&world).state().permissions.is_empty());
        (told[0]["type"].as_str().unwrap().to_owned(), told[0]["decision"].clone(), model(&world).state().state)
    };
    let resolved = "permission_resolved".to_owned();
    assert_eq!(answered(confirmed("t", "a", true)), (resolved.clone(), json!("once"), SessionState::Running));
    assert_eq!(answered(confirmed("t", "a", false)), (resolved.clone(), json!("deny"), SessionState::Running));
    let mut always = confirmed("t", "a", true);
    always["selectedOptionId"] = json!("allow_always");
    assert_eq!(answered(always), (resolved.clone(), json!("always"), SessionState::Running));
    let mut late = confirmed("t", "a", false);
    late["_meta"] = json!({"breakbulk": {"message": "m", "timeout": true}});
    assert_eq!(answered(late), ("permission_timeout".to_owned(), Value::Null, SessionState::Running));
    assert_eq!(answered(cancelled("t")), (resolved, json!("deny"), SessionState::Idle));
}

#[test]
fn an_input_that_somebody_edits_is_told_again() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(call("t", "m", "a")).chat(input("t", "a", "old"));
    world.chat(input_ended("t", "m", "a", "block")).chat(asks("t", "a", "old"));
    let mut edited = confirmed("t", "a", true);
    edited["editedToolInput"] = json!("new");
    world.chat(edited);
    let inputs: Vec<Value> = only(&world, "block_end").iter().map(|event| event["input"].clone()).collect();
    assert_eq!(inputs, ["old", "new"]);
}

#[test]
fn a_long_result_is_cut_marked_and_says_where_the_whole_is() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(call("t", "m", "a")).chat(runs("t", "a", "{}"));
    world.chat(result("t", "a", &"ü".repeat(600), true));
    let config = Config {
        max_result_bytes: 101,
        url: std::sync::Arc::new(|source| match source {
            LongContent::Result { turn, tool, .. } => format!("/content/{turn}/{tool}"),
            LongContent::Prompt { turn, .. } => format!("/prompt/{turn}"),
        }),
        ..config()
    };
    let events = world.events_with(config.clone());
    let wanted = json!({"type": "tool_result", "messageId": "m", "toolId": "a", "result": "ü".repeat(50),
        "isError": false, "truncated": true, "bytes": 1_200, "url": "/content/t/a"});
    assert_eq!(bare(events.iter().flatten().last().unwrap()), wanted);
    let snapshot = world.now.snapshot(&world.now.resume(config));
    let shot = snapshot.iter().map(bare).find(|event| event["type"] == "message_snapshot").unwrap();
    assert_eq!(shot["blocks"][0]["url"], "/content/t/a");
    assert_eq!(shot["blocks"][0]["bytes"], 1_200);
}

#[test]
fn no_event_is_larger_than_the_frame_and_the_pieces_are_the_whole() {
    let long = "\u{1}ü\"".repeat(20_000);
    let mut world = World::new();
    world.chat(turn("t", &long)).chat(text("t", "m/0")).chat(delta("t", "m/0", &long));
    world.chat(call("t", "m", "a")).chat(input("t", "a", &long)).chat(input_ended("t", "m", "a", "block"));
    world.chat(asks("t", "a", &long)).json(SESSION, needed(CHAT, "t", "a", &long));
    for id in ["1", "2"] {
        world.chat(json!({"type": "chat/pendingMessageSet", "kind": "queued", "id": id,
            "message": {"text": long, "origin": {"kind": "user"}}}));
    }
    let small = Config { max_event_bytes: 8 << 10, ..config() };
    let live: Vec<Event> = world.events_with(small.clone()).into_iter().flatten().collect();
    let snapshot = world.now.snapshot(&world.now.resume(small));
    for events in [&live, &snapshot] {
        let mut model = Model::new("s1");
        for event in events {
            assert!(serde_json::to_string(event).unwrap().len() <= 8 << 10);
            model.apply(event);
        }
        let message = model.state().current.as_ref().unwrap();
        assert_eq!(message.blocks[0].content, long);
        assert_eq!(message.blocks[1].tool.as_ref().unwrap().input.as_ref(), Some(&long));
    }
}

#[test]
fn time_never_goes_back_even_if_the_log_says_so() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0"));
    world.now.at_ms = 3;
    world.chat(delta("t", "m/0", "x"));
    let times: Vec<u64> = world.events().iter().flatten().map(|event| event.ts).collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn a_sub_agent_is_heard_inside_the_call_that_began_it() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(call("t", "m", "a")).chat(runs("t", "a", "{}"));
    world.worker("ahp-chat:/c.t.a", CHAT, "a");
    let w = "ahp-chat:/c.t.a";
    world.json(w, turn("a", "task")).json(w, text("a", "n/0")).json(w, delta("a", "n/0", "deep"));
    let started = only(&world, "message_start");
    assert_eq!(started[1], json!({"type": "message_start", "messageId": "n", "parentToolId": "a"}));
    // The sub-agent's prompt is not a person's.
    assert_eq!(only(&world, "user_message").len(), 1);
    let snapshot: Vec<Value> = world.now.snapshot(&world.projector()).iter().map(bare).collect();
    let shot = snapshot.iter().find(|event| event["type"] == "message_snapshot").unwrap();
    assert_eq!(
        shot["blocks"][0]["blocks"],
        json!([{"messageId": "n", "blockId": "b0", "blockType": "text", "content": "deep", "done": false}])
    );
    world.json(w, ended("a", "n/0", "block")).json(w, complete("a")).chat(result("t", "a", "ok", true));
    let model = model(&world);
    let call = &model.state().current.as_ref().unwrap().blocks[0];
    assert_eq!((&*call.blocks[0].content, call.blocks[0].done), ("deep", true));
}

#[test]
fn turns_that_are_taken_back_are_gone() {
    let mut world = World::new();
    for id in ["t", "u"] {
        world.chat(turn(id, id)).chat(text(id, &format!("{id}m/0"))).chat(complete(id));
    }
    world.chat(turn("v", "v")).chat(text("v", "vm/0"));
    world.chat(json!({"type": "chat/truncated", "turnId": "nobody's"}));
    assert!(model(&world).state().running);
    world.chat(json!({"type": "chat/truncated", "turnId": "t"}));
    let model = model(&world);
    let left: Vec<&str> = model.state().messages.iter().map(|message| &*message.message_id).collect();
    assert_eq!(left, ["t", "tm"]);
    assert!(!model.state().running && model.state().current.is_none());
}

#[test]
fn the_mode_is_told_when_it_changes() {
    let mut world = World::new();
    for mode in ["default", "plan", "plan"] {
        world.json(SESSION, json!({"type": "session/configChanged", "config": {"mode": mode}}));
    }
    assert_eq!(only(&world, "mode_changed"), [json!({"type": "mode_changed", "mode": "plan"})]);
}

// The ways in which others broke, as far as they can be seen here.

#[test]
fn a_cursor_from_the_future_or_before_what_is_kept_gets_a_snapshot() {
    let kept = Kept { after: 10, last: 20 };
    assert_eq!(Cursor(None).start(kept), Start::Fresh);
    assert_eq!(Cursor(Some(21)).start(kept), Start::Future);
    assert_eq!(Cursor(Some(9)).start(kept), Start::Trimmed);
    assert_eq!(Cursor(Some(10)).start(kept), Start::Replay { after: 10 });
    assert_eq!(Cursor(Some(20)).start(kept), Start::Replay { after: 20 });
    assert_eq!(Start::Replay { after: 20 }.reason(), None);
    assert_eq!(Start::Future.reason(), Some(SnapshotReason::Future));
}

#[test]
fn a_snapshot_of_an_older_log_replaces_what_a_client_from_the_future_holds() {
    let mut world = World::new();
    world.chat(turn("t", "p"));
    let mut model = model(&world);
    for _ in 0..9 {
        world.chat(delta("t", "nobody's", "x"));
    }
    let mut restored = World::new();
    restored.chat(turn("u", "another"));
    restored.now.seq -= 1;
    for event in restored.now.snapshot(&restored.projector()) {
        assert!(model.apply(&event));
    }
    assert_eq!(&*model.state().messages[0].message_id, "u");
    assert_eq!(model.last_seq(), Some(restored.now.seq));
}

#[test]
fn a_client_that_believed_that_a_turn_runs_learns_that_it_does_not() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0"));
    let mut stale = model(&world);
    assert!(stale.state().running);
    world.chat(complete("t"));
    let mut by_snapshot = stale.clone();
    for event in world.events().iter().flatten() {
        stale.apply(event);
    }
    for event in world.now.snapshot(&world.now.resume(config())) {
        by_snapshot.apply(&event);
    }
    assert!(!stale.state().running && !by_snapshot.state().running);
    assert!(stale.state().current.is_none());
    assert_eq!(stale.state(), by_snapshot.state());
}

#[test]
fn events_of_one_session_do_not_bleed_into_another() {
    let mut world = World::new();
    world.chat(turn("t", "p"));
    let mut other = Model::new("s2");
    assert!(world.events().iter().flatten().all(|event| !other.apply(event)));
    assert!(other.state().messages.is_empty() && other.last_seq().is_none());
}

#[test]
fn an_ended_session_says_so_to_a_client_whose_cursor_has_passed_its_end() {
    let mut world = World::new();
    world.chat(turn("t", "p"));
    world.put(SESSION, Change::Closed);
    let projector = world.projector();
    assert!(projector.is_over());
    assert_eq!(projector.state(), SessionState::Idle);
    assert_eq!(world.now.snapshot(&projector).last().unwrap().body, Body::SessionEnd {});
}

#[test]
fn a_late_action_of_a_turn_that_is_over_changes_nothing() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0")).chat(cancelled("t")).chat(turn("u", "q"));
    let before = world.told().len();
    world.chat(delta("t", "m/0", "late")).chat(ended("t", "m/0", "block")).chat(call("t", "m", "a"));
    world.chat(text("t", "m/1")).chat(complete("t")).chat(failed("t", "x", "y"));
    assert_eq!(world.told().len(), before);
}

#[test]
fn a_turn_that_a_restart_cut_off_ends_with_an_error_that_says_so() {
    let mut world = World::new();
    world.chat(turn("t", "p")).chat(text("t", "m/0")).chat(delta("t", "m/0", "half"));
    world.chat(failed("t", "hostRestarted", "The host was restarted."));
    let end = json!({"type": "turn_end", "turnId": "t", "outcome": "error", "error": "The host was restarted.",
        "errorType": "hostRestarted"});
    assert_eq!(only(&world, "turn_end"), std::slice::from_ref(&end));
    let snapshot: Vec<Value> = world.now.snapshot(&world.now.resume(config())).iter().map(bare).collect();
    assert!(snapshot.contains(&end));
    assert_eq!(model(&world).state().error.as_deref(), Some("The host was restarted."));
    world.chat(turn("u", "again"));
    assert_eq!(model(&world).state().error, None);
}

#[test]
fn a_prompt_carries_the_id_that_its_client_gave_it_so_that_a_retry_is_known() {
    let mut world = World::new();
    let mut said = turn("t", "p");
    said["message"]["_meta"] = json!({"breakbulk": {"clientMsgId": "c1"}});
    world.chat(said);
    assert_eq!(only(&world, "user_message")[0]["clientMsgId"], "c1");
    let snapshot: Vec<Value> = world.now.snapshot(&world.now.resume(config())).iter().map(bare).collect();
    assert!(snapshot.iter().any(|event| event["clientMsgId"] == "c1"));
}

#[test]
fn an_answer_takes_the_option_that_means_it() {
    let options: Vec<ahp_types::state::ConfirmationOption> = crate::world::read(json!([
        {"id": "allow_always", "label": "Always", "kind": "approve"}, {"id": "yes", "label": "Yes", "kind": "approve"},
        {"id": "reject_always", "label": "Never", "kind": "deny"}]));
    assert_eq!(Decision::Once.choose(&options), Some("yes"));
    assert_eq!(Decision::Always.choose(&options), Some("allow_always"));
    assert_eq!(Decision::Deny.choose(&options), Some("reject_always"));
    assert_eq!(Decision::Always.choose(&options[1..]), None);
    assert!(Decision::Always.allows() && !Decision::Deny.allows());
}

#[test]
fn sub_agents_are_shown_to_a_depth_that_any_json_reader_can_read() {
    let mut world = World::new();
    world.chat(turn("t0", "p")).chat(call("t0", "m0", "a0")).chat(runs("t0", "a0", "{}"));
    let (mut chat, mut turn_id) = (CHAT.to_owned(), "t0".to_owned());
    for depth in 1..40 {
        let tool = format!("a{}", depth - 1);
        let worker = worker_chat(&chat, &turn_id, &tool);
        world.worker(&worker, &chat, &tool);
        world.json(&worker, turn(&tool, "task")).json(&worker, call(&tool, &format!("m{depth}"), &format!("a{depth}")));
        world.json(&worker, runs(&tool, &format!("a{depth}"), "{}"));
        (chat, turn_id) = (worker, tool);
    }
    let live = model(&world);
    let mut came = Model::new("s1");
    for event in world.now.snapshot(&world.projector()) {
        let text = serde_json::to_string(&event).unwrap();
        came.apply(&serde_json::from_str(&text).unwrap());
    }
    assert_eq!(came.state(), live.state());
    let mut blocks = &live.state().current.as_ref().unwrap().blocks;
    let mut depth = 0;
    while let Some(block) = blocks.first() {
        (blocks, depth) = (&block.blocks, depth + 1);
    }
    assert_eq!(depth, 33);
}
