//! Earlier turns as a text, for a program that does not remember them.

use ahp_types::state::{ResponsePart, ToolCallState, Turn, TurnState};

use crate::agent::{History, Start};
use crate::state::StateError;

/// How much of one turn is read at once.
const PAGE: usize = 64 << 10;

/// The most turns that are told, however short.
const MAX_TURNS: u64 = 200;

/// How much of one text is told.
const MAX_TEXT: usize = 16 << 10;

/// What a new conversation is told before its first prompt; `None` if there is nothing to tell. The newest turns that fit
/// `max_bytes` are in it.
pub(super) async fn preamble(start: &Start, max_bytes: usize) -> Result<Option<String>, StateError> {
    let mut text = String::new();
    if let Some(about) = &start.side_chat {
        let turns = newest(&about.history, max_bytes / 2).await?;
        text.push_str(
            "This conversation is about another one. The turns of that one are given here for reference. They are over: do not \
             answer them, and do not do again what was done in them.\n\n",
        );
        push(&mut text, "other-conversation", &turns, about.history.len());
        if let Some(selection) = &about.selection {
            text.push_str(&format!("The user has selected this there:\n\n{}\n\n", shortened(&selection.text)));
        }
    }
    let turns = newest(&start.history, max_bytes.saturating_sub(text.len())).await?;
    if !turns.is_empty() {
        text.push_str(
            "These are the earlier turns of this conversation, which you do not remember. They are over: do not answer them again, \
             and do not do again what was done in them.\n\n",
        );
        push(&mut text, "earlier-turns", &turns, start.history.len());
    }
    if text.is_empty() {
        return Ok(None);
    }
    text.push_str("Now follows the new message.\n\n");
    Ok(Some(text))
}

fn push(text: &mut String, name: &str, turns: &[String], all: u64) {
    text.push_str(&format!("<{name}>\n"));
    let left_out = all.saturating_sub(u64::try_from(turns.len()).unwrap_or(u64::MAX));
    if left_out > 0 {
        text.push_str(&format!("({left_out} older turns are left out.)\n\n"));
    }
    text.extend(turns.iter().map(String::as_str));
    text.push_str(&format!("</{name}>\n\n"));
}

/// The newest turns that fit, the oldest of them first.
async fn newest(history: &History, max_bytes: usize) -> Result<Vec<String>, StateError> {
    let (mut turns, mut bytes) = (Vec::new(), 0_usize);
    for number in (history.len().saturating_sub(MAX_TURNS)..history.len()).rev() {
        let Some(turn) = history.page(number, PAGE).await?.into_iter().next() else { break };
        let text = told(&turn);
        bytes = bytes.saturating_add(text.len());
        if bytes > max_bytes {
            break;
        }
        turns.push(text);
    }
    turns.reverse();
    Ok(turns)
}

fn told(turn: &Turn) -> String {
    let mut text = format!("User: {}\n\n", shortened(&turn.message.text));
    for part in &turn.response_parts {
        match part {
            ResponsePart::Markdown(part) if !part.content.is_empty() => {
                text.push_str(&format!("You: {}\n\n", shortened(&part.content)));
            }
            ResponsePart::ToolCall(part) => {
                if let Some(call) = called(&part.tool_call) {
                    text.push_str(&format!("({call})\n\n"));
                }
            }
            ResponsePart::ContentRef(_) => text.push_str("(Something long is left out.)\n\n"),
            _ => {}
        }
    }
    match turn.state {
        TurnState::Cancelled => text.push_str("(The user stopped this turn.)\n\n"),
        TurnState::Error => text.push_str("(This turn failed. What it had begun may have had effects.)\n\n"),
        _ => {}
    }
    text
}

fn called(call: &ToolCallState) -> Option<String> {
    match call {
        ToolCallState::Completed(call) => {
            let how = if call.success { "done" } else { "failed" };
            Some(format!("You called {}: {how}. {}", call.tool_name, shortened(call.past_tense_message.as_text())))
        }
        ToolCallState::Cancelled(call) => Some(format!("You wanted to call {}, which did not run.", call.tool_name)),
        _ => None,
    }
}

/// The beginning of a text, cut at a character.
fn shortened(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MAX_TEXT);
    format!("{} … (cut)", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_turn_is_told_with_its_calls_and_its_end() {
        let turn = json!({"id": "t", "message": {"text": "Do it", "origin": {"kind": "user"}}, "state": "error",
            "startedAt": "2026-01-01T00:00:00Z", "responseParts": [
                {"kind": "markdown", "id": "m/0", "content": "I try."},
                {"kind": "reasoning", "id": "m/1", "content": "hm"},
                {"kind": "toolCall", "toolCall": {"status": "completed", "toolCallId": "a", "toolName": "Bash",
                    "displayName": "Run", "invocationMessage": "runs", "confirmed": "not-needed", "success": true,
                    "pastTenseMessage": "Ran it"}}]});
        let turn: Turn = serde_json::from_value(turn).unwrap();
        let want = "User: Do it\n\nYou: I try.\n\n(You called Bash: done. Ran it)\n\n(This turn failed. What it had begun may \
                    have had effects.)\n\n";
        assert_eq!(told(&turn), want);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let text = shortened(&"é".repeat(MAX_TEXT));
        assert!(text.len() < MAX_TEXT + 20 && text.ends_with("é … (cut)"));
    }
}
