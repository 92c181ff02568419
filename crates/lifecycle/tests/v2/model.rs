//! The model does not trust the server: what is missing is made, what is left open is ended, what is late has a rule.

use breakbulk_lifecycle::BlockType;
use breakbulk_lifecycle::v2::wire::Event;
use breakbulk_lifecycle::v2::{Author, MessageState, Model};
use serde_json::{Value, json};

/// The state after these events, of one entry each.
fn after(events: &[Value]) -> MessageState {
    let mut model = Model::new("s");
    for (seq, event) in events.iter().enumerate() {
        assert!(model.apply(&enveloped(event, seq + 1)));
    }
    model.state().clone()
}

fn enveloped(event: &Value, seq: usize) -> Event {
    let mut event = event.clone();
    let rest = json!({"v": 2, "ts": 1, "seq": seq, "sessionId": "s"});
    event.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    serde_json::from_value(event).unwrap()
}

fn start(message: &str) -> Value {
    json!({"type": "message_start", "messageId": message})
}

fn delta(message: &str, block: &str, text: &str) -> Value {
    json!({"type": "block_delta", "messageId": message, "blockId": block, "blockType": "text", "delta": text})
}

fn end(message: &str) -> Value {
    json!({"type": "message_end", "messageId": message})
}

fn call(message: &str, tool: &str, input: Option<&str>) -> Value {
    json!({"type": "block_end", "messageId": message, "blockId": "b0", "blockType": "tool_use", "toolName": "Bash",
        "toolId": tool, "input": input})
}

fn result(message: &str, tool: &str, text: &str) -> Value {
    json!({"type": "tool_result", "messageId": message, "toolId": tool, "result": text, "isError": false})
}

#[test]
fn a_message_that_begins_ends_the_one_that_was_left_open() {
    let state = after(&[start("m"), delta("m", "b0", "orphan"), start("n")]);
    assert_eq!(state.messages[0].blocks[0].content, "orphan");
    assert!(state.messages[0].blocks[0].done);
    assert_eq!(&*state.current.unwrap().message_id, "n");
}

#[test]
fn the_end_of_the_turn_and_of_the_session_end_what_was_left_open() {
    let turn_end = json!({"type": "turn_end", "turnId": "t", "outcome": "complete"});
    for last in [turn_end, json!({"type": "session_end"})] {
        let running = json!({"type": "session_state", "state": "running"});
        let state = after(&[running, start("m"), delta("m", "b0", "x"), last]);
        assert!(state.current.is_none() && !state.running);
        assert!(state.messages[0].blocks[0].done);
    }
}

#[test]
fn a_block_or_message_that_nobody_started_is_made() {
    let state = after(&[delta("m", "b7", "x"), delta("m", "b7", "y")]);
    let current = state.current.unwrap();
    assert_eq!((&*current.message_id, current.author), ("m", Author::Agent));
    assert_eq!((&*current.blocks[0].block_id, &*current.blocks[0].content), ("b7", "xy"));
    let state = after(&[call("m", "a", Some("{}"))]);
    let block = &state.current.unwrap().blocks[0];
    assert_eq!((block.block_type, block.done), (BlockType::ToolInput, true));
}

#[test]
fn what_comes_late_for_a_finished_message_is_applied_to_it() {
    let state = after(&[
        start("m"),
        call("m", "a", Some("{}")),
        end("m"),
        start("n"),
        result("m", "a", "late"),
        delta("m", "b1", "x"),
    ]);
    let finished = &state.messages[0];
    assert_eq!(finished.blocks[0].tool.as_ref().unwrap().outcome.as_ref().unwrap().result, "late");
    assert_eq!(finished.blocks[1].content, "x");
    assert_eq!(&*state.current.unwrap().message_id, "n");
}

#[test]
fn a_result_of_an_unknown_call_and_the_end_of_an_unknown_message_are_ignored() {
    let state = after(&[start("m"), result("m", "nobody's", "x"), end("nobody's")]);
    assert!(state.messages.is_empty());
    assert!(state.current.unwrap().blocks.is_empty());
}

#[test]
fn a_result_finds_its_call_by_message_and_id_also_where_an_id_is_used_twice() {
    let two = [start("m"), call("m", "a", None), end("m"), start("n"), call("n", "a", None), result("m", "a", "first")];
    let state = after(&two);
    let outcome = |message: &breakbulk_lifecycle::v2::Message| message.blocks[0].tool.as_ref().unwrap().outcome.clone();
    assert_eq!(outcome(&state.messages[0]).unwrap().result, "first");
    assert_eq!(outcome(&state.current.unwrap()), None);
    // A server that says no message, or a wrong one, means the last call of that id.
    let state = after(&[start("m"), call("m", "a", None), result("x", "a", "found")]);
    assert_eq!(outcome(&state.current.unwrap()).unwrap().result, "found");
}

#[test]
fn a_message_whose_name_was_used_before_is_another_message() {
    let state = after(&[start("m"), delta("m", "b0", "one"), end("m"), start("m"), delta("m", "b0", "two"), end("m")]);
    let texts: Vec<&str> = state.messages.iter().map(|message| &*message.blocks[0].content).collect();
    assert_eq!(texts, ["one", "two"]);
}

#[test]
fn the_input_of_a_call_is_what_its_end_says_or_else_what_its_deltas_said() {
    let more =
        json!({"type": "block_delta", "messageId": "m", "blockId": "b0", "blockType": "tool_use", "delta": "{}"});
    let input = |events: &[Value]| {
        let block = after(events).current.unwrap().blocks[0].clone();
        assert_eq!(block.content, "");
        block.tool.unwrap().input
    };
    assert_eq!(input(&[start("m"), more.clone(), call("m", "a", Some("x"))]).as_deref(), Some("x"));
    assert_eq!(input(&[start("m"), more.clone(), call("m", "a", None)]).as_deref(), Some("{}"));
    // Told again: the new one counts.
    let again = [start("m"), call("m", "a", Some("old")), more, call("m", "a", None)];
    assert_eq!(input(&again).as_deref(), Some("{}"));
}

#[test]
fn a_snapshot_of_a_message_replaces_what_there_is_of_it() {
    let snapshot = json!({"type": "message_snapshot", "messageId": "m", "blocks": [
        {"blockId": "b0", "blockType": "text", "content": "all", "done": true},
        {"blockId": "b1", "blockType": "tool_use", "done": true, "toolName": "Task", "toolId": "a", "blocks": [
            {"messageId": "n", "blockId": "b0", "blockType": "text", "content": "deep", "done": false}]}]});
    let state = after(&[start("m"), delta("m", "b0", "part"), snapshot.clone(), delta("n", "b0", "er"), end("n")]);
    let current = state.current.unwrap();
    assert_eq!(current.blocks[0].content, "all");
    let nested = &current.blocks[1].blocks[0];
    assert_eq!((&*nested.content, nested.done), ("deeper", true));
    // Also where the message is finished.
    let state = after(&[start("m"), end("m"), start("o"), snapshot]);
    assert_eq!(state.messages[0].blocks.len(), 2);
    assert_eq!(&*state.current.unwrap().message_id, "o");
}

#[test]
fn an_event_of_the_past_is_ignored_and_last_seq_waits_for_the_whole_entry() {
    let mut model = Model::new("s");
    let mut first = enveloped(&start("m"), 5);
    first.more = true;
    let mut second = enveloped(&delta("m", "b0", "x"), 5);
    second.sub = 1;
    assert!(model.apply(&first));
    assert_eq!(model.last_seq(), None);
    assert!(model.apply(&second));
    assert_eq!(model.last_seq(), Some(5));
    for event in [&first, &second, &enveloped(&delta("m", "b0", "x"), 4)] {
        assert!(!model.apply(event));
    }
    assert_eq!(model.state().current.as_ref().unwrap().blocks[0].content, "x");
}
