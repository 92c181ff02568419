//! What AHP's state and v2's model hold, in one form, so that they can be compared.

use std::collections::BTreeMap;

use ahp_types::state::{ChatState, ResponsePart, ToolCallState, ToolInput};
use breakbulk_lifecycle::BlockType;
use breakbulk_lifecycle::projection::worker_chat;
use breakbulk_lifecycle::v2::{Block, MessageState};

/// The chats of a session, by URI.
pub(crate) type Chats = BTreeMap<String, ChatState>;

/// A message: by whom, and what it holds.
#[derive(Debug, PartialEq)]
pub(crate) struct Said {
    id: String,
    blocks: Vec<Piece>,
}

/// A block.
#[derive(Debug, PartialEq)]
struct Piece {
    is_text: bool,
    is_call: bool,
    text: String,
    call: Option<Called>,
    blocks: Vec<Piece>,
}

#[derive(Debug, PartialEq)]
struct Called {
    name: String,
    id: String,
    /// None where AHP has no input, or not a whole one.
    input: Option<String>,
    result: Option<(String, bool)>,
}

/// What a client of AHP sees of a session with these chats, of which this is the main one.
pub(crate) fn of_ahp(chats: &Chats, main: &str) -> Vec<Said> {
    let Some(chat) = chats.get(main) else { return Vec::new() };
    let over = chat.turns.iter().map(|turn| (&turn.id, &turn.message, &turn.response_parts));
    let active = chat.active_turn.iter().map(|turn| (&turn.id, &turn.message, &turn.response_parts));
    let mut said = Vec::new();
    for (turn, message, parts) in over.chain(active) {
        said.push(Said { id: turn.clone(), blocks: vec![words(true, &message.text)] });
        for (message, piece) in pieces(chats, main, turn, parts) {
            match said.iter_mut().rev().find(|said| said.id == message) {
                Some(said) => said.blocks.push(piece),
                None => said.push(Said { id: message, blocks: vec![piece] }),
            }
        }
    }
    said
}

fn words(is_text: bool, text: &str) -> Piece {
    Piece { is_text, is_call: false, text: text.to_owned(), call: None, blocks: Vec::new() }
}

fn pieces(chats: &Chats, chat: &str, turn: &str, parts: &[ResponsePart]) -> Vec<(String, Piece)> {
    let of_id = |id: &str| id.rsplit_once('/').unwrap().0.to_owned();
    let pieces = parts.iter().filter_map(|part| match part {
        ResponsePart::Markdown(part) => Some((of_id(&part.id), words(true, &part.content))),
        ResponsePart::Reasoning(part) => Some((of_id(&part.id), words(false, &part.content))),
        ResponsePart::ToolCall(part) => Some(called(chats, chat, turn, &part.tool_call)),
        _ => None,
    });
    pieces.collect()
}

fn called(chats: &Chats, chat: &str, turn: &str, call: &ToolCallState) -> (String, Piece) {
    let json = serde_json::to_value(call).unwrap();
    let text = |name: &str| json[name].as_str().unwrap().to_owned();
    let whole = |input: &Option<ToolInput>| match input {
        Some(ToolInput::Inline(text)) => Some(text.clone()).filter(|text| !text.is_empty()),
        _ => None,
    };
    let (input, result) = match call {
        ToolCallState::PendingConfirmation(call) => (whole(&call.tool_input), None),
        ToolCallState::Running(call) => (whole(&call.tool_input), None),
        ToolCallState::Completed(call) => {
            let content = json["content"].as_array().into_iter().flatten();
            let content: Vec<&str> = content.filter_map(|content| content["text"].as_str()).collect();
            // A result without content says at least what was done.
            let other = json["error"]["message"].as_str().or_else(|| json["pastTenseMessage"].as_str());
            let said = if content.is_empty() { other.unwrap_or_default().to_owned() } else { content.join("\n") };
            (whole(&call.tool_input), Some((said, !call.success)))
        }
        ToolCallState::Cancelled(call) => {
            let reason = call.reason_message.as_ref().map(|reason| reason.as_text().to_owned());
            let usual = if json["reason"] == "denied" { "The call was denied." } else { "The call was stopped." };
            (whole(&call.tool_input), Some((reason.unwrap_or_else(|| usual.to_owned()), true)))
        }
        _ => (None, None),
    };
    let id = text("toolCallId");
    let blocks = chats.get(&worker_chat(chat, turn, &id)).map(|child| nested(chats, child)).unwrap_or_default();
    let call = Called { name: text("toolName"), id, input, result };
    let message = json["_meta"]["breakbulk"]["message"].as_str().unwrap().to_owned();
    (message, Piece { is_text: false, is_call: true, text: String::new(), call: Some(call), blocks })
}

fn nested(chats: &Chats, child: &ChatState) -> Vec<Piece> {
    let over = child.turns.iter().map(|turn| (&turn.id, &turn.response_parts));
    let active = child.active_turn.iter().map(|turn| (&turn.id, &turn.response_parts));
    over.chain(active)
        .flat_map(|(turn, parts)| pieces(chats, &child.resource, turn, parts))
        .map(|(_, piece)| piece)
        .collect()
}

/// What a client of v2 sees. Inputs that AHP does not have (of a call that never was ready) are left out.
pub(crate) fn of_model(state: &MessageState, ahp: &[Said]) -> Vec<Said> {
    let messages = state.messages.iter().chain(&state.current);
    let mut said: Vec<Said> = messages
        .map(|message| Said { id: message.message_id.to_string(), blocks: message.blocks.iter().map(piece).collect() })
        .collect();
    for (said, ahp) in said.iter_mut().zip(ahp) {
        leave_out(&mut said.blocks, &ahp.blocks);
    }
    said
}

fn piece(block: &Block) -> Piece {
    let call = block.tool.as_ref().map(|tool| Called {
        name: tool.tool_name.clone(),
        id: tool.tool_id.as_ref().unwrap().to_string(),
        input: tool.input.clone(),
        result: tool.outcome.as_ref().map(|outcome| (outcome.result.clone(), outcome.is_error)),
    });
    Piece {
        is_text: block.block_type == BlockType::Text,
        is_call: block.block_type == BlockType::ToolInput,
        text: block.content.clone(),
        call,
        blocks: block.blocks.iter().map(piece).collect(),
    }
}

fn leave_out(pieces: &mut [Piece], ahp: &[Piece]) {
    for (piece, ahp) in pieces.iter_mut().zip(ahp) {
        if let (Some(call), Some(known)) = (&mut piece.call, &ahp.call)
            && known.input.is_none()
        {
            call.input = None;
        }
        leave_out(&mut piece.blocks, &ahp.blocks);
    }
}
