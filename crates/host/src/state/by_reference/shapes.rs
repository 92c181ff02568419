//! The JSON shapes of actions and states, as far as they contain something that may be sent by reference.
//!
//! Other members are skipped without recursion, however deep they are, and large values are not copied.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct EntryShape<'a> {
    #[serde(borrow)]
    pub(super) action: &'a RawValue,
}

#[derive(Deserialize)]
pub(super) struct SnapshotShape<'a> {
    #[serde(borrow)]
    pub(super) state: &'a RawValue,
}

#[derive(Deserialize)]
pub(super) struct TypeShape<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) name: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CompletedShape<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) result: OutcomeShape<'a>,
}

#[derive(Deserialize)]
pub(super) struct OutcomeShape<'a> {
    #[serde(borrow)]
    pub(super) content: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangedShape<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReadyShape<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_input: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StartedShape<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) message: MessageShape<'a>,
}

#[derive(Deserialize)]
pub(super) struct PendingShape<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) message: MessageShape<'a>,
}

#[derive(Deserialize)]
pub(super) struct DraftedShape<'a> {
    #[serde(borrow)]
    pub(super) draft: Option<MessageShape<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConfirmedShape<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) user_suggestion: Option<MessageShape<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartedShape<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) part: &'a RawValue,
}

#[derive(Deserialize)]
pub(super) struct LoadedShape<'a> {
    #[serde(borrow)]
    pub(super) turns: Vec<TurnShape<'a>>,
}

#[derive(Deserialize)]
pub(super) struct AskedShape<'a> {
    #[serde(borrow)]
    pub(super) request: RequestShape<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RequestShape<'a> {
    pub(super) chat: Option<Cow<'a, str>>,
    pub(super) turn_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) tool_call: Option<ToolShape<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StateShape<'a> {
    #[serde(borrow)]
    pub(super) turns: Option<Vec<TurnShape<'a>>>,
    #[serde(borrow)]
    pub(super) active_turn: Option<TurnShape<'a>>,
    #[serde(borrow)]
    pub(super) steering_message: Option<PendingShape<'a>>,
    #[serde(borrow)]
    pub(super) queued_messages: Option<Vec<PendingShape<'a>>>,
    #[serde(borrow)]
    pub(super) draft: Option<MessageShape<'a>>,
    #[serde(borrow)]
    pub(super) input_needed: Option<Vec<RequestShape<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnShape<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) message: MessageShape<'a>,
    #[serde(borrow)]
    pub(super) response_parts: Vec<&'a RawValue>,
}

#[derive(Deserialize, Default)]
pub(super) struct MessageShape<'a> {
    #[serde(borrow)]
    pub(super) attachments: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartShape<'a> {
    #[serde(borrow)]
    pub(super) kind: Cow<'a, str>,
    pub(super) id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) tool_call: Option<ToolShape<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolShape<'a> {
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    pub(super) tool_input: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) user_suggestion: Option<MessageShape<'a>>,
}
