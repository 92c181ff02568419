//! A whole conversation, from logged actions to the bytes that a client reads.

use serde_json::{Value, json};

use crate::world::actions::*;
use crate::world::{CHAT, SESSION, World};

/// A turn with thinking, text, a call that somebody allows, a second message, and a question that waits.
fn conversation() -> World {
    let mut world = World::new();
    let mut said = turn("t1", "Count the files");
    said["message"]["_meta"] = json!({"breakbulk": {"clientMsgId": "c1"}});
    world.chat(said);
    world
        .chat(thinking("t1", "m1/0"))
        .chat(thought("t1", "m1/0", "Use ls."))
        .chat(thought_ended("t1", "m1/0", "block"));
    world.chat(text("t1", "m1/1")).chat(delta("t1", "m1/1", "I look")).chat(delta("t1", "m1/1", " at them."));
    world.chat(ended("t1", "m1/1", "block"));
    world.chat(call("t1", "m1", "a")).chat(input("t1", "a", r#"{"command":"#)).chat(input("t1", "a", r#""ls"}"#));
    world.chat(input_ended("t1", "m1", "a", "block")).chat(input_ended("t1", "m1", "a", "message"));
    world.chat(asks("t1", "a", r#"{"command":"ls"}"#));
    world.json(SESSION, needed(CHAT, "t1", "a", r#"{"command":"ls"}"#));
    world.chat(confirmed("t1", "a", true)).json(SESSION, not_needed(CHAT, "t1", "a"));
    world.chat(result("t1", "a", "one\ntwo", true));
    world.chat(text("t1", "m2/3")).chat(delta("t1", "m2/3", "Two."));
    world
}

#[test]
fn a_conversation_is_told_event_by_event() {
    let mut world = conversation();
    world.chat(ended("t1", "m2/3", "block")).chat(ended("t1", "m2/3", "message"));
    world.chat(json!({"type": "chat/usage", "turnId": "t1", "usage": {"inputTokens": 10, "outputTokens": 2}}));
    world.chat(complete("t1"));
    let lines: Vec<String> =
        world.events().iter().flatten().map(|event| serde_json::to_string(event).unwrap()).collect();
    compare(&lines, include_str!("golden/conversation.jsonl"));
}

#[test]
fn a_client_that_comes_in_the_middle_is_told_what_there_is() {
    let world = conversation();
    let events = world.now.snapshot(&world.projector());
    let lines: Vec<String> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    compare(&lines, include_str!("golden/middle.jsonl"));
}

/// Compares line by line. To see what it should be, read the failure; there is nothing that writes these files.
fn compare(lines: &[String], golden: &str) {
    for (at, (line, wanted)) in lines.iter().zip(golden.lines()).enumerate() {
        let (line, wanted): (Value, Value) =
            (serde_json::from_str(line).unwrap(), serde_json::from_str(wanted).unwrap());
        assert_eq!(line, wanted, "line {}", at + 1);
    }
    assert_eq!(lines.len(), golden.lines().count(), "{lines:#?}");
}
