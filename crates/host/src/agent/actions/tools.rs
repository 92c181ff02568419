//! Tool calls on a chat's channel: streaming, awaiting an answer, running, over.

use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::{
    ChatToolCallCompleteAction, ChatToolCallConfirmedAction, ChatToolCallContentChangedAction, ChatToolCallReadyAction,
    ChatToolCallStartAction, SessionInputNeededRemovedAction, SessionInputNeededSetAction, StateAction,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    SessionInputRequest, SessionToolConfirmationRequest, ToolCallCancellationReason, ToolCallConfirmationReason,
    ToolCallConfirmationState, ToolCallPendingConfirmationState, ToolInput, ToolResultContent,
    ToolResultSubagentContent,
};
use breakbulk_lifecycle::projection::worker_chat;
use breakbulk_lifecycle::{Answer, Ask, Call, Content, Ending, Id, Outcome, ToolResult};

use super::step::{Command, Reaction, Step, SubAgentChat};
use super::{Translator, TurnChannel, convert};

/// What is known of a tool call.
#[derive(Debug)]
pub(super) struct ToolCall {
    call: Call,
    agent: Option<Id>,
    meta: JsonObject,
    stage: CallStage,
    /// The whole input.
    pub(super) input: Option<String>,
    /// The chat of its sub-agent.
    worker: Option<ToolResultContent>,
}

/// The stage of a call as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStage {
    Streaming,
    Pending,
    Running,
    Over,
}

impl Translator {
    pub(super) fn tool_begun(&mut self, call: Call, agent: Option<Id>, meta: JsonObject, steps: &mut Vec<Step>) {
        if let Some(turn_channel) = self.turn_channels.get(&agent) {
            let action = ChatToolCallStartAction {
                turn_id: turn_channel.turn.to_string(),
                tool_call_id: call.tool.to_string(),
                meta: Some(meta.clone()),
                tool_name: call.name.clone(),
                display_name: call.title.clone(),
                intention: call.intention.clone(),
                contributor: None,
            };
            turn_channel.act(StateAction::ChatToolCallStart(action), steps);
        }
        let id = call.tool.clone();
        self.tools.insert(id, ToolCall { call, agent, meta, stage: CallStage::Streaming, input: None, worker: None });
    }

    pub(super) fn tool_asked(&mut self, tool: &Id, ask: Ask, steps: &mut Vec<Step>) {
        let Some((tool, turn_channel)) = call_and_channel(&mut self.tools, &self.turn_channels, tool) else { return };
        if tool.stage == CallStage::Over {
            return;
        }
        tool.stage = CallStage::Pending;
        let pending = tool.pending(ask);
        let ready = ChatToolCallReadyAction {
            invocation_message: pending.invocation_message.clone(),
            confirmation_title: pending.confirmation_title.clone(),
            editable: pending.editable,
            options: pending.options.clone(),
            ..tool.ready(turn_channel)
        };
        turn_channel.act(StateAction::ChatToolCallReady(ready), steps);
        let request = SessionToolConfirmationRequest {
            id: request_id(turn_channel, &tool.call.tool),
            chat: turn_channel.channel.to_string(),
            turn_id: turn_channel.turn.to_string(),
            tool_call: ToolCallConfirmationState::PendingConfirmation(pending),
        };
        let request = SessionInputRequest::ToolConfirmation(request);
        let needed = Box::new(SessionInputNeededSetAction { request });
        steps.push(on(&self.session, StateAction::SessionInputNeededSet(needed)));
    }

    /// An answer of a client is in the log already. This is for an agent that has decided by itself.
    pub(super) fn tool_answered(&mut self, tool: &Id, answer: Answer, steps: &mut Vec<Step>) {
        let Some((tool, turn_channel)) = call_and_channel(&mut self.tools, &self.turn_channels, tool) else { return };
        if tool.stage != CallStage::Pending {
            return;
        }
        tool.stage = if answer.allows() { CallStage::Running } else { CallStage::Over };
        turn_channel.act(StateAction::ChatToolCallConfirmed(tool.confirmed(turn_channel, answer)), steps);
        steps.push(input_not_needed(&self.session, turn_channel, tool));
    }

    pub(super) fn tool_started(&mut self, tool: &Id, steps: &mut Vec<Step>) {
        let Some((tool, turn_channel)) = call_and_channel(&mut self.tools, &self.turn_channels, tool) else { return };
        if tool.stage == CallStage::Streaming {
            tool.stage = CallStage::Running;
            let confirmed = Some(ToolCallConfirmationReason::NotNeeded);
            turn_channel.act(
                StateAction::ChatToolCallReady(ChatToolCallReadyAction { confirmed, ..tool.ready(turn_channel) }),
                steps,
            );
        }
    }

    pub(super) fn tool_output(&mut self, tool: &Id, content: Vec<Content>, steps: &mut Vec<Step>) {
        let Some((tool, turn_channel)) = call_and_channel(&mut self.tools, &self.turn_channels, tool) else { return };
        tool.show(turn_channel, content.into_iter().map(convert::content), steps);
    }

    /// A call that was stopped while it ran has failed; one that never ran is cancelled.
    pub(super) fn tool_ended(&mut self, tool: &Id, ending: Ending, steps: &mut Vec<Step>) {
        let Some((tool, turn_channel)) = call_and_channel(&mut self.tools, &self.turn_channels, tool) else { return };
        let (result, reason) = match ending {
            Ending::Done(result) => (result, None),
            Ending::Cancelled { reason } => {
                let error = reason.clone().unwrap_or_else(|| "The call was stopped.".to_owned());
                (ToolResult::failed(format!("Stopped {}", tool.call.title), error), reason)
            }
        };
        let before = std::mem::replace(&mut tool.stage, CallStage::Over);
        match before {
            CallStage::Over => {}
            CallStage::Running => {
                turn_channel.act(StateAction::ChatToolCallComplete(tool.complete(turn_channel, result)), steps)
            }
            CallStage::Streaming | CallStage::Pending => {
                if before == CallStage::Streaming {
                    turn_channel.act(StateAction::ChatToolCallReady(tool.ready(turn_channel)), steps);
                } else {
                    steps.push(input_not_needed(&self.session, turn_channel, tool));
                }
                let mut confirmed = tool.confirmed(turn_channel, Answer::Withdrawn);
                confirmed.reason_message = reason.map(Into::into);
                turn_channel.act(StateAction::ChatToolCallConfirmed(confirmed), steps);
            }
        }
    }

    /// Opens a chat for a sub-agent, to which its call refers.
    pub(super) fn agent_started(&mut self, id: Id, name: String, task: String, now: Duration, steps: &mut Vec<Step>) {
        let Some((tool, turn_channel)) = call_and_channel(&mut self.tools, &self.turn_channels, &id) else { return };
        let chat: Arc<str> = worker_chat(&turn_channel.channel, &turn_channel.turn, &id).into();
        let described = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        tool.worker = Some(ToolResultContent::Subagent(ToolResultSubagentContent {
            resource: chat.to_string(),
            title: described(&name).unwrap_or_else(|| tool.call.title.clone()),
            agent_name: described(&name),
            description: described(&task),
        }));
        let parent = Arc::clone(&turn_channel.channel);
        steps.push(Step::Open(SubAgentChat {
            chat: Arc::clone(&chat),
            parent,
            tool: id.clone(),
            turn: id.clone(),
            name,
            task,
        }));
        tool.show(turn_channel, std::iter::empty(), steps);
        self.turn_channels.insert(Some(id.clone()), TurnChannel { channel: chat, turn: id, began: now });
    }

    pub(super) fn agent_ended(&mut self, tool: Id, outcome: Outcome, now: Duration, steps: &mut Vec<Step>) {
        if let Some(turn_channel) = self.turn_channels.remove(&Some(tool)) {
            turn_channel.end(outcome, now, steps);
        }
    }

    pub(super) fn client_answered(&mut self, channel: &str, action: ChatToolCallConfirmedAction) -> Reaction {
        let Some((tool, turn_channel)) =
            call_and_channel(&mut self.tools, &self.turn_channels, action.tool_call_id.as_str())
        else {
            return Reaction::default();
        };
        if tool.stage != CallStage::Pending
            || *turn_channel.channel != *channel
            || *turn_channel.turn != *action.turn_id
        {
            return Reaction::default();
        }
        tool.stage = if action.approved { CallStage::Running } else { CallStage::Over };
        if let Some(edited) = action.edited_tool_input.as_ref().filter(|_| action.approved) {
            tool.input = Some(edited.clone());
        }
        let steps = vec![input_not_needed(&self.session, turn_channel, tool)];
        let command = Command::Answer { tool: tool.call.tool.clone(), answer: answer_of(action) };
        Reaction { command: Some(command), steps }
    }

    /// The session no longer waits for what a speaker has asked.
    pub(super) fn withdraw_all(&mut self, agent: &Option<Id>) -> Vec<Step> {
        let Some(turn_channel) = self.turn_channels.get(agent) else { return Vec::new() };
        let asked = self.tools.values_mut().filter(|tool| tool.agent == *agent && tool.stage == CallStage::Pending);
        asked
            .map(|tool| {
                tool.stage = CallStage::Over;
                input_not_needed(&self.session, turn_channel, tool)
            })
            .collect()
    }
}

impl ToolCall {
    /// The action that its input is complete. Without further fields, clients are asked to confirm the call.
    fn ready(&self, turn_channel: &TurnChannel) -> ChatToolCallReadyAction {
        ChatToolCallReadyAction {
            turn_id: turn_channel.turn.to_string(),
            tool_call_id: self.call.tool.to_string(),
            meta: Some(self.meta.clone()),
            contributor: None,
            intention: None,
            invocation_message: self.call.intention.as_ref().unwrap_or(&self.call.title).clone().into(),
            tool_input: self.input.clone().map(ToolInput::Inline),
            confirmation_title: None,
            risk_assessment: None,
            edits: None,
            editable: None,
            confirmed: None,
            options: None,
        }
    }

    fn pending(&self, ask: Ask) -> ToolCallPendingConfirmationState {
        let options: Vec<_> = ask.choices.into_iter().map(convert::option).collect();
        ToolCallPendingConfirmationState {
            tool_call_id: self.call.tool.to_string(),
            tool_name: self.call.name.clone(),
            display_name: self.call.title.clone(),
            intention: self.call.intention.clone(),
            contributor: None,
            meta: Some(self.meta.clone()),
            invocation_message: ask.message.into(),
            tool_input: self.input.clone().map(ToolInput::Inline),
            confirmation_title: Some(ask.title.into()),
            risk_assessment: None,
            edits: None,
            editable: Some(ask.editable),
            options: Some(options).filter(|options| !options.is_empty()),
        }
    }

    fn confirmed(&self, turn_channel: &TurnChannel, answer: Answer) -> ChatToolCallConfirmedAction {
        let approved = answer.allows();
        let (reason, message, input, choice) = match answer {
            Answer::Allowed { input, choice } => (None, None, input, choice),
            Answer::Denied { reason, choice } => (Some(ToolCallCancellationReason::Denied), reason, None, choice),
            Answer::Withdrawn => (Some(ToolCallCancellationReason::Skipped), None, None, None),
        };
        ChatToolCallConfirmedAction {
            turn_id: turn_channel.turn.to_string(),
            tool_call_id: self.call.tool.to_string(),
            meta: None,
            approved,
            confirmed: approved.then_some(ToolCallConfirmationReason::Setting),
            reason,
            edited_tool_input: input,
            user_suggestion: None,
            reason_message: message.map(Into::into),
            selected_option_id: choice,
        }
    }

    fn complete(&self, turn_channel: &TurnChannel, result: ToolResult) -> ChatToolCallCompleteAction {
        let mut result = convert::result(result);
        if let Some(worker) = self.worker.clone() {
            result.content.get_or_insert_default().insert(0, worker);
        }
        ChatToolCallCompleteAction {
            turn_id: turn_channel.turn.to_string(),
            tool_call_id: self.call.tool.to_string(),
            meta: None,
            result,
            requires_result_confirmation: None,
        }
    }

    /// Shows what it has so far. Its sub-agent comes first.
    fn show(
        &self,
        turn_channel: &TurnChannel,
        content: impl Iterator<Item = ToolResultContent>,
        steps: &mut Vec<Step>,
    ) {
        if self.stage == CallStage::Running {
            let action = ChatToolCallContentChangedAction {
                turn_id: turn_channel.turn.to_string(),
                tool_call_id: self.call.tool.to_string(),
                meta: None,
                content: self.worker.clone().into_iter().chain(content).collect(),
            };
            turn_channel.act(StateAction::ChatToolCallContentChanged(action), steps);
        }
    }
}

/// A call and its channel, if clients can see it.
fn call_and_channel<'a>(
    tools: &'a mut std::collections::HashMap<Id, ToolCall>,
    turn_channels: &'a std::collections::HashMap<Option<Id>, TurnChannel>,
    tool: &str,
) -> Option<(&'a mut ToolCall, &'a TurnChannel)> {
    let tool = tools.get_mut(tool)?;
    let turn_channel = turn_channels.get(&tool.agent)?;
    Some((tool, turn_channel))
}

/// What a client's answer means to the agent.
fn answer_of(action: ChatToolCallConfirmedAction) -> Answer {
    let choice = action.selected_option_id;
    if action.approved {
        return Answer::Allowed { input: action.edited_tool_input, choice };
    }
    let said = action.reason_message.map(|message| message.as_text().to_owned());
    Answer::Denied { reason: said.or_else(|| action.user_suggestion.map(|message| message.text)), choice }
}

pub(super) fn on(channel: &Arc<str>, action: StateAction) -> Step {
    Step::Act { channel: Arc::clone(channel), action: Box::new(action) }
}

/// The id of the session's request for input.
fn request_id(turn_channel: &TurnChannel, tool: &Id) -> String {
    format!("{}#{}#{tool}", turn_channel.channel, turn_channel.turn)
}

fn input_not_needed(session: &Arc<str>, turn_channel: &TurnChannel, tool: &ToolCall) -> Step {
    let id = request_id(turn_channel, &tool.call.tool);
    on(session, StateAction::SessionInputNeededRemoved(SessionInputNeededRemovedAction { id }))
}
