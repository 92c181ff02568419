//! Merges deltas that wait for the disk.

use ahp_types::actions::StateAction;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The part of a log entry ([`NewEntry::part`](crate::log::NewEntry::part)) that this action is: entries of one channel and
/// one part that follow each other may be merged by [`merge_actions`]. None for an action that stays alone.
#[must_use]
pub fn part_of(action: &StateAction) -> Option<String> {
    match action {
        StateAction::ChatDelta(action) if action.meta.is_none() => Some(key("delta", &action.turn_id, &action.part_id)),
        StateAction::ChatReasoning(action) if action.meta.is_none() => {
            Some(key("reasoning", &action.turn_id, &action.part_id))
        }
        StateAction::ChatToolCallDelta(action)
            if action.meta.is_none() && action.invocation_message.is_none() && action.content.is_some() =>
        {
            Some(key("input", &action.turn_id, &action.tool_call_id))
        }
        StateAction::ChatToolCallContentChanged(action) if action.meta.is_none() => {
            Some(key("output", &action.turn_id, &action.tool_call_id))
        }
        _ => None,
    }
}

/// Merges several bodies of one part: deltas are joined, of outputs the last one is kept. `None` if they cannot be merged.
#[must_use]
pub fn merge_actions(bodies: &[Bytes]) -> Option<Bytes> {
    let (last, before) = bodies.split_last()?;
    let last_body = MergeableBody::read(last)?;
    let before: Vec<MergeableBody<'_>> = before.iter().map(|body| MergeableBody::read(body)).collect::<Option<_>>()?;
    if before.iter().any(|body| !body.is_of_one_part_with(&last_body)) {
        return None;
    }
    if last_body.action.content.get().starts_with('[') {
        return Some(last.clone());
    }
    // Strings are joined in their escaped form.
    let mut content = String::with_capacity(bodies.iter().map(Bytes::len).sum());
    content.push('"');
    for body in before.iter().chain([&last_body]) {
        content.push_str(body.action.content.get().strip_prefix('"')?.strip_suffix('"')?);
    }
    content.push('"');
    let content = RawValue::from_string(content).ok()?;
    let action = MergeableAction { content: &content, ..last_body.action };
    serde_json::to_vec(&MergeableBody { action, ..last_body }).ok().map(Bytes::from)
}

/// Clients choose turn ids, so the length makes the key unambiguous.
fn key(kind: &str, turn: &str, part: &str) -> String {
    format!("{kind} {} {turn} {part}", turn.len())
}

/// An action of the kinds that are merged. An action with other members, or with an origin, is not merged.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MergeableBody<'a> {
    #[serde(borrow)]
    channel: &'a RawValue,
    #[serde(borrow)]
    action: MergeableAction<'a>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MergeableAction<'a> {
    #[serde(borrow)]
    r#type: &'a RawValue,
    #[serde(borrow)]
    turn_id: &'a RawValue,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    part_id: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    content: &'a RawValue,
}

impl<'a> MergeableBody<'a> {
    fn read(body: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    fn is_of_one_part_with(&self, other: &Self) -> bool {
        let key = |body: &Self| {
            let action = body.action;
            let all =
                [Some(body.channel), Some(action.r#type), Some(action.turn_id), action.part_id, action.tool_call_id];
            all.map(|value| value.map(|value| value.get().to_owned()))
        };
        key(self) == key(other)
    }
}
