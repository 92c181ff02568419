//! Merged deltas have the same effect as single ones.

use ahp_types::actions::{
    ChatDeltaAction, ChatReasoningAction, ChatToolCallContentChangedAction, ChatToolCallDeltaAction, StateAction,
};
use ahp_types::state::{ToolResultContent, ToolResultTextContent};
use breakbulk_host::test_support::agent::{merge_actions, part_of};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn merged_deltas_say_what_they_said_one_by_one(texts in prop::collection::vec(".{1,8}", 1..20), kind in 0..3) {
        let action = |content: &str| match kind {
            0 => delta("t", "p", content),
            1 => StateAction::ChatReasoning(ChatReasoningAction {
                turn_id: "t".into(), part_id: "p".into(), content: content.into(), meta: None,
            }),
            _ => StateAction::ChatToolCallDelta(ChatToolCallDeltaAction {
                turn_id: "t".into(), tool_call_id: "p".into(), content: Some(content.into()),
                meta: None, invocation_message: None,
            }),
        };
        let bodies: Vec<Bytes> = texts.iter().map(|text| body(&action(text))).collect();
        let merged: Value = serde_json::from_slice(&merge_actions(&bodies).unwrap()).unwrap();
        let whole: Value = serde_json::from_slice(&body(&action(&texts.concat()))).unwrap();
        prop_assert_eq!(merged, whole);
    }
}

#[test]
fn of_outputs_the_last_one_counts() {
    let output = |text: &str| {
        let content = vec![ToolResultContent::Text(ToolResultTextContent { text: text.into() })];
        StateAction::ChatToolCallContentChanged(ChatToolCallContentChangedAction {
            turn_id: "t".into(),
            tool_call_id: "a".into(),
            meta: None,
            content,
        })
    };
    assert_eq!(merge_actions(&[body(&output("1")), body(&output("2"))]), Some(body(&output("2"))));
    assert_eq!(part_of(&output("1")), part_of(&output("2")));
}

#[test]
fn only_deltas_of_one_part_are_merged() {
    let one = body(&delta("t", "p", "a"));
    for other in [delta("t", "q", "b"), delta("u", "p", "b")] {
        assert_eq!(merge_actions(&[one.clone(), body(&other)]), None);
        assert_ne!(part_of(&other), part_of(&delta("t", "p", "a")));
    }
    assert_ne!(part_of(&delta("t p", "q", "a")), part_of(&delta("t", "p q", "a")));
    let from_client =
        json!({ "channel": "c", "action": delta("t", "p", "b"), "origin": { "clientId": "x", "clientSeq": 1 } });
    assert_eq!(merge_actions(&[one.clone(), serde_json::to_vec(&from_client).unwrap().into()]), None);
    assert_eq!(merge_actions(&[one, Bytes::from_static(b"{}")]), None);
    assert_eq!(merge_actions(&[]), None);
    let mut marked = delta("t", "p", "");
    if let StateAction::ChatDelta(action) = &mut marked {
        action.meta = Some(serde_json::Map::new());
    }
    assert_eq!(part_of(&marked), None);
}

fn delta(turn: &str, part: &str, content: &str) -> StateAction {
    let (turn_id, part_id) = (turn.to_owned(), part.to_owned());
    StateAction::ChatDelta(ChatDeltaAction { turn_id, part_id, content: content.to_owned(), meta: None })
}

fn body(action: &StateAction) -> Bytes {
    serde_json::to_vec(&json!({ "channel": "c", "action": action })).unwrap().into()
}
