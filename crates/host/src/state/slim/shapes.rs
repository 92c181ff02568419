//! The shapes of actions and states, as far as something may be sent by reference.
//!
//! What is not named here is passed over without recursion, however deep it is, and what is large is not copied.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct Entry<'a> {
    #[serde(borrow)]
    pub(super) action: &'a RawValue,
}

#[derive(Deserialize)]
pub(super) struct Snapshot<'a> {
    #[serde(borrow)]
    pub(super) state: &'a RawValue,
}

#[derive(Deserialize)]
pub(super) struct Type<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) name: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Completed<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) result: Outcome<'a>,
}

#[derive(Deserialize)]
pub(super) struct Outcome<'a> {
    #[serde(borrow)]
    pub(super) content: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Changed<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ready<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_input: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Started<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) message: Message<'a>,
}

#[derive(Deserialize)]
pub(super) struct Pending<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) message: Message<'a>,
}

#[derive(Deserialize)]
pub(super) struct Drafted<'a> {
    #[serde(borrow)]
    pub(super) draft: Option<Message<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Confirmed<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) user_suggestion: Option<Message<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Parted<'a> {
    #[serde(borrow)]
    pub(super) turn_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) part: &'a RawValue,
}

#[derive(Deserialize)]
pub(super) struct Loaded<'a> {
    #[serde(borrow)]
    pub(super) turns: Vec<Turn<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Asked<'a> {
    #[serde(borrow)]
    pub(super) request: Request<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    pub(super) chat: Option<Cow<'a, str>>,
    pub(super) turn_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) tool_call: Option<Tool<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct State<'a> {
    #[serde(borrow)]
    pub(super) turns: Option<Vec<Turn<'a>>>,
    #[serde(borrow)]
    pub(super) active_turn: Option<Turn<'a>>,
    #[serde(borrow)]
    pub(super) steering_message: Option<Pending<'a>>,
    #[serde(borrow)]
    pub(super) queued_messages: Option<Vec<Pending<'a>>>,
    #[serde(borrow)]
    pub(super) draft: Option<Message<'a>>,
    #[serde(borrow)]
    pub(super) input_needed: Option<Vec<Request<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Turn<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) message: Message<'a>,
    #[serde(borrow)]
    pub(super) response_parts: Vec<&'a RawValue>,
}

#[derive(Deserialize, Default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) attachments: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Part<'a> {
    #[serde(borrow)]
    pub(super) kind: Cow<'a, str>,
    pub(super) id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) tool_call: Option<Tool<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tool<'a> {
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    pub(super) tool_input: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) user_suggestion: Option<Message<'a>>,
}
