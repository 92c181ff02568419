//! Any updates in any order, cut anywhere, come out well formed, and no text is lost.

use agent_client_protocol_schema::v1::StopReason;
use breakbulk_lifecycle::{Answer, BlockType, Event};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Host;

/// One thing that the agent or the host does.
#[derive(Debug, Clone)]
enum Act {
    Update(Value),
    Ask(String),
    Answer(String, bool),
    Begin,
    End,
}

fn act() -> impl Strategy<Value = Act> {
    let id = prop_oneof![Just("a"), Just("b"), Just("t1-plan")].prop_map(str::to_owned);
    let chunk_kind = prop_oneof![Just("agent_message_chunk"), Just("agent_thought_chunk"), Just("user_message_chunk")];
    let chunk = (chunk_kind, "[a-c]{0,3}", proptest::option::of("[xy]")).prop_map(|(kind, text, message)| {
        let mut update = json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
        if let Some(message) = message {
            update["messageId"] = json!(message);
        }
        Act::Update(update)
    });
    let call =
        id.clone().prop_map(|id| Act::Update(json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "T"})));
    let status = prop_oneof![Just("pending"), Just("in_progress"), Just("completed"), Just("failed")];
    let update = (id.clone(), status, any::<bool>(), any::<bool>()).prop_map(|(id, status, has_input, has_content)| {
        let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "status": status});
        if has_input {
            update["rawInput"] = json!({"x": 1});
        }
        if has_content {
            update["content"] = json!([{"type": "content", "content": {"type": "text", "text": "out"}}]);
        }
        Act::Update(update)
    });
    let plan = Just(Act::Update(json!({"sessionUpdate": "plan", "entries": []})));
    prop_oneof![
        4 => chunk,
        2 => call,
        4 => update,
        1 => plan,
        2 => id.clone().prop_map(Act::Ask),
        2 => (id, any::<bool>()).prop_map(|(id, allows)| Act::Answer(id, allows)),
        1 => Just(Act::Begin),
        1 => Just(Act::End),
    ]
}

proptest! {
    #[test]
    fn any_updates_in_any_order_come_out_well_formed(acts in vec(act(), 0..60)) {
        let mut host = Host::prompted();
        let mut is_open = true;
        let (mut turns, mut expected) = (1, String::new());
        for act in acts {
            match act {
                Act::Update(mut update) => {
                    // No two messages of a session have one name.
                    if let Some(message) = update["messageId"].as_str() {
                        update["messageId"] = json!(format!("{turns}{message}"));
                    }
                    if is_open && update["sessionUpdate"] == "agent_message_chunk" {
                        expected.push_str(update["content"]["text"].as_str().unwrap_or_default());
                    }
                    host.update(&update);
                }
                Act::Ask(tool) => {
                    host.ask(&json!({"sessionId": "s", "toolCall": {"toolCallId": tool}, "options": []}));
                }
                Act::Answer(tool, allows) => {
                    let answer = if allows { Answer::yes() } else { Answer::no() };
                    host.acp.answer(&tool.as_str().into(), &answer);
                    host.drain();
                }
                Act::Begin => {
                    turns += 1;
                    host.acp.begin(format!("t{turns}").into());
                    host.drain();
                    is_open = true;
                }
                Act::End => {
                    host.end(StopReason::EndTurn);
                    is_open = false;
                }
            }
        }
        host.crash();
        host.assert_well_formed();
        let text: String = host.events.iter().filter_map(|event| match event {
            Event::BlockDelta { kind: BlockType::Text, text, .. } => Some(text.as_str()),
            _ => None,
        }).collect();
        prop_assert_eq!(text, expected);
    }
}
