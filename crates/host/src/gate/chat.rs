//! What a client may do in a chat.

use std::collections::HashMap;

use ahp::reducers::{ReduceOutcome, apply_action_to_chat};
use ahp_types::actions::{
    ChatInputCompletedAction, ChatPendingMessageSetAction, ChatToolCallCompleteAction, ChatToolCallConfirmedAction,
    ChatTurnCompleteAction, ChatTurnStartedAction, StateAction,
};
use ahp_types::state::{
    ChatInputAnswer, ChatInputQuestion, ChatInputRequest, ChatInputResponseKind, ChatInteractivity, ChatState, Message,
    MessageKind, PendingMessage, PendingMessageKind, ResponsePart, SessionLifecycle, ToolCallContributor,
    ToolCallState,
};

use super::session::{directories, not_the_last};
use super::{Client, GateContext, Rejection};
use crate::exact;

/// A year: longer than any turn.
const LONGEST_TURN_MS: i64 = 365 * 24 * 60 * 60 * 1000;

/// The most messages that wait in a chat: more than a person types ahead. Each of them is in the chat's state, and in every
/// snapshot of it.
pub const MAX_QUEUED_MESSAGES: usize = 256;

/// The most bytes of them, as JSON. One message alone may be longer, up to the longest that a client may send.
pub const MAX_QUEUED_BYTES: usize = 32 << 20;

pub(super) fn check(
    client: &Client,
    action: &StateAction,
    chat: &ChatState,
    context: &GateContext<'_>,
) -> Result<(), Rejection> {
    use StateAction as A;
    match action {
        A::ChatTurnStarted(a) => turn_started(a, chat, context),
        A::ChatTurnCancelled(a) => active(chat, &a.turn_id),
        A::ChatTurnResume(a) => {
            writable(chat)?;
            idle(chat)?;
            if context.resumable == Some(&a.turn_id) { Ok(()) } else { Err(Rejection::NotResumable) }
        }
        A::ChatTruncated(_) => writable(chat),
        A::ChatToolCallConfirmed(a) => confirmed(a, chat),
        A::ChatToolCallComplete(a) => complete(client, a, chat),
        A::ChatToolCallContentChanged(a) => runs(client, tool_call(chat, &a.turn_id, &a.tool_call_id)?),
        A::ChatToolCallResultConfirmed(a) => match tool_call(chat, &a.turn_id, &a.tool_call_id)? {
            ToolCallState::PendingResultConfirmation(_) => Ok(()),
            _ => Err(Rejection::ToolCallState),
        },
        A::ChatPendingMessageSet(a) => {
            writable(chat)?;
            by_the_user(&a.message)?;
            check_queue_limits(a, chat)
        }
        A::ChatPendingMessageRemoved(a) => pending(chat, &a.kind, &a.id),
        A::ChatDraftChanged(a) => a.draft.as_ref().map_or(Ok(()), by_the_user),
        A::ChatInputAnswerChanged(a) => {
            let request = input_request(chat, &a.request_id)?;
            let asked =
                request.questions.iter().flatten().any(|question| id_and_required(question).0 == Some(&*a.question_id));
            if asked { Ok(()) } else { Err(Rejection::NoQuestion) }
        }
        A::ChatInputCompleted(a) => input_completed(a, input_request(chat, &a.request_id)?),
        A::ChatWorkingDirectorySet(a) => {
            directories(context)?;
            let known = context.session.and_then(|session| session.working_directories.as_ref());
            if known.is_some_and(|known| known.contains(&a.directory)) { Ok(()) } else { Err(Rejection::NoDirectory) }
        }
        A::ChatWorkingDirectoryRemoved(a) => {
            directories(context)?;
            not_the_last(chat.working_directories.as_ref(), &a.directory)
        }
        // Any client may, at any time.
        A::ChatQueuedMessagesReordered(_) | A::ChatIsReadChanged(_) | A::ChatIsArchivedChanged(_) => Ok(()),
        _ => Err(super::only_the_host(action)),
    }
}

fn turn_started(a: &ChatTurnStartedAction, chat: &ChatState, context: &GateContext<'_>) -> Result<(), Rejection> {
    if context.session.is_some_and(|session| session.lifecycle != SessionLifecycle::Ready) {
        return Err(Rejection::NotReady);
    }
    writable(chat)?;
    idle(chat)?;
    by_the_user(&a.message)?;
    if let Some(id) = &a.queued_message_id {
        pending(chat, &PendingMessageKind::Queued, id).or_else(|_| pending(chat, &PendingMessageKind::Steering, id))?;
    }
    if can_end(a) { Ok(()) } else { Err(Rejection::Timestamp) }
}

/// Asks the reducer itself: it adds a duration to the time when a turn began, and a turn whose time it cannot read, or
/// whose end it cannot write, never ends.
fn can_end(a: &ChatTurnStartedAction) -> bool {
    let end = ChatTurnCompleteAction { turn_id: a.turn_id.clone(), duration: LONGEST_TURN_MS, meta: None };
    let text = serde_json::json!({"resource": "", "title": "", "status": 0, "modifiedAt": "", "turns": [],
        "activeTurn": {"id": a.turn_id, "startedAt": a.started_at, "message": {"text": "", "origin": {"kind": "user"}},
        "responseParts": []}});
    let Ok(mut trial) = serde_json::from_value::<ChatState>(text) else { return false };
    apply_action_to_chat(&mut trial, &StateAction::ChatTurnComplete(end)) == ReduceOutcome::Applied
}

fn confirmed(a: &ChatToolCallConfirmedAction, chat: &ChatState) -> Result<(), Rejection> {
    let ToolCallState::PendingConfirmation(call) = tool_call(chat, &a.turn_id, &a.tool_call_id)? else {
        return Err(Rejection::ToolCallState);
    };
    let require_feature = |id: &String| call.options.iter().flatten().any(|option| option.id == *id);
    if a.selected_option_id.as_ref().is_some_and(|id| !require_feature(id)) {
        return Err(Rejection::NoOption);
    }
    if a.edited_tool_input.is_some() && call.editable != Some(true) {
        return Err(Rejection::NotEditable);
    }
    Ok(())
}

fn complete(client: &Client, a: &ChatToolCallCompleteAction, chat: &ChatState) -> Result<(), Rejection> {
    match tool_call(chat, &a.turn_id, &a.tool_call_id)? {
        // Whoever does not want to authenticate gives the call up.
        ToolCallState::AuthRequired(_) if !a.result.success => Ok(()),
        call => runs(client, call),
    }
}

/// The call is running, and this client runs it.
fn runs(client: &Client, call: &ToolCallState) -> Result<(), Rejection> {
    let ToolCallState::Running(call) = call else { return Err(Rejection::ToolCallState) };
    match &call.contributor {
        Some(ToolCallContributor::Client(by)) if by.client_id == client.id => Ok(()),
        _ => Err(Rejection::NotYourToolCall),
    }
}

fn tool_call<'a>(chat: &'a ChatState, turn: &str, id: &str) -> Result<&'a ToolCallState, Rejection> {
    active(chat, turn)?;
    let parts = chat.active_turn.iter().flat_map(|turn| &turn.response_parts);
    let mut calls = parts.filter_map(|part| match part {
        ResponsePart::ToolCall(part) => Some(&part.tool_call),
        _ => None,
    });
    calls.find(|call| id_of(call) == Some(id)).ok_or(Rejection::NoToolCall)
}

fn id_of(call: &ToolCallState) -> Option<&str> {
    match call {
        ToolCallState::Streaming(call) => Some(&call.tool_call_id),
        ToolCallState::PendingConfirmation(call) => Some(&call.tool_call_id),
        ToolCallState::Running(call) => Some(&call.tool_call_id),
        ToolCallState::AuthRequired(call) => Some(&call.tool_call_id),
        ToolCallState::PendingResultConfirmation(call) => Some(&call.tool_call_id),
        ToolCallState::Completed(call) => Some(&call.tool_call_id),
        ToolCallState::Cancelled(call) => Some(&call.tool_call_id),
        ToolCallState::Unknown(_) => None,
    }
}

fn input_completed(a: &ChatInputCompletedAction, request: &ChatInputRequest) -> Result<(), Rejection> {
    if a.response != ChatInputResponseKind::Accept {
        return Ok(());
    }
    let given = |answers: &Option<HashMap<String, ChatInputAnswer>>, id: &str| {
        answers
            .as_ref()
            .and_then(|answers| answers.get(id))
            .map(|answer| matches!(answer, ChatInputAnswer::Submitted(_)))
    };
    let is_answered = |id: &str| given(&a.answers, id).or_else(|| given(&request.answers, id)).unwrap_or(false);
    let mut required = request.questions.iter().flatten().map(id_and_required).filter(|(_, required)| *required);
    if required.all(|(id, _)| id.is_some_and(is_answered)) { Ok(()) } else { Err(Rejection::Unanswered) }
}

fn input_request<'a>(chat: &'a ChatState, id: &str) -> Result<&'a ChatInputRequest, Rejection> {
    let parts = chat.active_turn.iter().flat_map(|turn| &turn.response_parts);
    let mut open = parts.filter_map(|part| match part {
        ResponsePart::InputRequest(part) if part.response.is_none() => Some(&part.request),
        _ => None,
    });
    open.find(|request| request.id == id).ok_or(Rejection::NoInputRequest)
}

/// A question's id, and whether it must be answered.
fn id_and_required(question: &ChatInputQuestion) -> (Option<&str>, bool) {
    let (id, required) = match question {
        ChatInputQuestion::Text(question) => (&question.id, question.required),
        ChatInputQuestion::Number(question) | ChatInputQuestion::Integer(question) => (&question.id, question.required),
        ChatInputQuestion::Boolean(question) => (&question.id, question.required),
        ChatInputQuestion::SingleSelect(question) => (&question.id, question.required),
        ChatInputQuestion::MultiSelect(question) => (&question.id, question.required),
        ChatInputQuestion::Unknown(question) => return (question["id"].as_str(), question["required"] == true),
    };
    (Some(id), required == Some(true))
}

fn pending(chat: &ChatState, kind: &PendingMessageKind, id: &str) -> Result<(), Rejection> {
    let is_it = |message: &PendingMessage| message.id == id;
    let found = match kind {
        PendingMessageKind::Steering => chat.steering_message.as_ref().is_some_and(is_it),
        PendingMessageKind::Queued => chat.queued_messages.iter().flatten().any(is_it),
    };
    if found { Ok(()) } else { Err(Rejection::NoPendingMessage) }
}

/// Whether the messages that wait are within their limits with this one. A steering message replaces the one before it.
fn check_queue_limits(a: &ChatPendingMessageSetAction, chat: &ChatState) -> Result<(), Rejection> {
    if a.kind != PendingMessageKind::Queued {
        return Ok(());
    }
    let others = || chat.queued_messages.iter().flatten().filter(|message| message.id != a.id);
    let count = others().count();
    if count >= MAX_QUEUED_MESSAGES {
        return Err(Rejection::QueueFull);
    }
    let bytes = others().map(|message| exact::len(&message.message)).fold(0, usize::saturating_add);
    let new = exact::len(&a.message);
    if count > 0 && bytes.saturating_add(new) > MAX_QUEUED_BYTES {
        return Err(Rejection::QueueTooLong { bytes, new });
    }
    Ok(())
}

fn active(chat: &ChatState, turn: &str) -> Result<(), Rejection> {
    if chat.active_turn.as_ref().is_some_and(|active| active.id == turn) {
        Ok(())
    } else {
        Err(Rejection::NoActiveTurn)
    }
}

fn idle(chat: &ChatState) -> Result<(), Rejection> {
    if chat.active_turn.is_none() { Ok(()) } else { Err(Rejection::TurnInProgress) }
}

fn writable(chat: &ChatState) -> Result<(), Rejection> {
    match chat.interactivity {
        None | Some(ChatInteractivity::Full) => Ok(()),
        Some(ChatInteractivity::ReadOnly | ChatInteractivity::Hidden) => Err(Rejection::ReadOnly),
    }
}

fn by_the_user(message: &Message) -> Result<(), Rejection> {
    if message.origin.kind == MessageKind::User { Ok(()) } else { Err(Rejection::NotTheUser) }
}
