//! What a person sees of a chat: each part of an answer once, as it comes, also after a drop.
//!
//! Actions say what is new, snapshots say how everything is. Both end here, and what was shown already is not shown again:
//! of each text it is known how much of it was shown, and of each tool call how far it had come.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Something to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// A prompt that somebody else has sent.
    Prompt(String),
    /// Part of an answer. It may end anywhere.
    Text(String),
    /// What the agent thinks. It may end anywhere.
    Reasoning(String),
    /// The text that follows does not continue the text before: it is another part of the answer.
    Break,
    /// A whole line about a tool call.
    Tool { call: String, status: &'static str, text: String },
    /// A tool call waits for an answer.
    Confirm { call: String, text: String },
    /// A turn is over.
    End(Ending),
    /// A line about the conversation itself.
    Note(String),
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    Complete,
    Cancelled,
    Failed(String),
}

/// How much of the running turn was shown.
#[derive(Debug, Default)]
pub(super) struct Screen {
    turn: Option<String>,
    /// Bytes of each text that were shown.
    shown: HashMap<String, usize>,
    /// The part whose text was shown last.
    last_part: Option<String>,
    calls: HashMap<String, Call>,
}

#[derive(Debug, Default)]
struct Call {
    /// The tool's name for people.
    name: String,
    /// What the call will do. Only some actions repeat it.
    message: String,
    stage: Stage,
}

/// How far a call was shown.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Begun,
    Asked,
    Running,
    Done,
}

/// Lines of a tool's result that are shown, and characters of each.
const RESULT_LINES: usize = 12;
const RESULT_WIDTH: usize = 200;

impl Screen {
    /// The turn that is going on.
    pub(super) fn turn(&self) -> Option<&str> {
        self.turn.as_deref()
    }

    /// Whether a call waits for an answer.
    pub(super) fn is_asked(&self, call: &str) -> bool {
        self.calls.get(call).is_some_and(|call| call.stage == Stage::Asked)
    }

    /// We have answered for a call, and the host will say so.
    pub(super) fn answer(&mut self, call: &str) {
        if let Some(call) = self.calls.get_mut(call) {
            call.stage = call.stage.max(Stage::Running);
        }
    }

    /// A turn begins that we have asked for.
    pub(super) fn begin(&mut self, turn: &str) {
        *self = Self { turn: Some(turn.to_owned()), ..Self::default() };
    }

    /// The turn that we have asked for does not come about.
    pub(super) fn give_up(&mut self) {
        *self = Self::default();
    }

    /// An action on the chat.
    pub(super) fn action(&mut self, action: &Value) -> Vec<Piece> {
        let mut out = Vec::new();
        let turn = action["turnId"].as_str().unwrap_or_default();
        match action["type"].as_str().unwrap_or_default() {
            "chat/turnStarted" if self.turn.as_deref() != Some(turn) => {
                self.begin(turn);
                out.push(Piece::Prompt(text_of(&action["message"]["text"])));
            }
            _ if self.turn.as_deref() != Some(turn) => {}
            "chat/delta" => self.text(action, false, &mut out),
            "chat/reasoning" => self.text(action, true, &mut out),
            "chat/responsePart" => self.part(&action["part"], &mut out),
            "chat/toolCallStart" | "chat/toolCallReady" | "chat/toolCallConfirmed" | "chat/toolCallComplete" => {
                self.call(&call_state(action), &mut out);
            }
            "chat/turnComplete" => self.end(Ending::Complete, &mut out),
            "chat/turnCancelled" => self.end(Ending::Cancelled, &mut out),
            "chat/error" => self.end(Ending::Failed(error_of(&action["part"])), &mut out),
            _ => {}
        }
        out
    }

    /// Takes the chat's state; returns what was not shown of it yet. With `history`, also the last so many turns
    /// before.
    pub(super) fn snapshot(&mut self, state: &Value, history: usize) -> Vec<Piece> {
        let mut out = Vec::new();
        let turns = state["turns"].as_array().map(Vec::as_slice).unwrap_or_default();
        for turn in turns.iter().skip(turns.len().saturating_sub(history)) {
            self.begin(turn["id"].as_str().unwrap_or_default());
            out.push(Piece::Prompt(text_of(&turn["message"]["text"])));
            self.ended(turn, &mut out);
        }
        let active = &state["activeTurn"];
        if let Some(turn) = self.turn.clone()
            && active["id"].as_str() != Some(&turn)
        {
            match turns.iter().find(|ended| ended["id"].as_str() == Some(&turn)) {
                Some(ended) => self.ended(ended, &mut out),
                // A prompt that has not arrived yet comes after this snapshot.
                None if self.shown.is_empty() && self.calls.is_empty() => {}
                None => self.end(Ending::Failed("the turn is gone".to_owned()), &mut out),
            }
        }
        if let Some(id) = active["id"].as_str() {
            if self.turn.as_deref() != Some(id) {
                self.begin(id);
                out.push(Piece::Prompt(text_of(&active["message"]["text"])));
            }
            self.parts(&active["responseParts"], &mut out);
        }
        out
    }

    /// Takes a completed turn, and shows the rest of it.
    fn ended(&mut self, turn: &Value, out: &mut Vec<Piece>) {
        self.parts(&turn["responseParts"], out);
        let failure = || {
            let parts = turn["responseParts"].as_array().and_then(|parts| parts.last());
            parts.map(error_of).unwrap_or_default()
        };
        self.end(
            match turn["state"].as_str() {
                Some("cancelled") => Ending::Cancelled,
                Some("error") => Ending::Failed(failure()),
                _ => Ending::Complete,
            },
            out,
        );
    }

    fn parts(&mut self, parts: &Value, out: &mut Vec<Piece>) {
        for part in parts.as_array().map(Vec::as_slice).unwrap_or_default() {
            self.part(part, out);
        }
    }

    fn part(&mut self, part: &Value, out: &mut Vec<Piece>) {
        match part["kind"].as_str().unwrap_or_default() {
            kind @ ("markdown" | "reasoning") => {
                let (id, content) = (text_of(&part["id"]), text_of(&part["content"]));
                let shown = self.shown.entry(id.clone()).or_default();
                let rest = content.get(*shown..).unwrap_or_default().to_owned();
                *shown = content.len().max(*shown);
                self.stream(id, if kind == "reasoning" { Piece::Reasoning(rest) } else { Piece::Text(rest) }, out);
            }
            "toolCall" => self.call(&part["toolCall"], out),
            "systemNotification" => out.push(Piece::Note(text_of(&part["content"]))),
            _ => {}
        }
    }

    fn text(&mut self, action: &Value, is_reasoning: bool, out: &mut Vec<Piece>) {
        let (id, content) = (text_of(&action["partId"]), text_of(&action["content"]));
        let shown = self.shown.entry(id.clone()).or_default();
        *shown = shown.saturating_add(content.len());
        self.stream(id, if is_reasoning { Piece::Reasoning(content) } else { Piece::Text(content) }, out);
    }

    /// Shows new text of a part, if there is any.
    fn stream(&mut self, part: String, piece: Piece, out: &mut Vec<Piece>) {
        if matches!(&piece, Piece::Text(text) | Piece::Reasoning(text) if text.is_empty()) {
            return;
        }
        if self.last_part.as_ref().is_some_and(|last| *last != part) {
            out.push(Piece::Break);
        }
        self.last_part = Some(part);
        out.push(piece);
    }

    /// A tool call in some state, shown if it has come further.
    fn call(&mut self, state: &Value, out: &mut Vec<Piece>) {
        let id = text_of(&state["toolCallId"]);
        let call = self.calls.entry(id.clone()).or_default();
        if let Some(name) = state["displayName"].as_str() {
            call.name = name.to_owned();
        }
        if !state["invocationMessage"].is_null() {
            call.message = text_of(&state["invocationMessage"]);
        }
        let stage = match state["status"].as_str().unwrap_or_default() {
            "pending-confirmation" => Stage::Asked,
            "running" => Stage::Running,
            "completed" | "cancelled" => Stage::Done,
            _ => Stage::Begun,
        };
        let before = call.stage;
        call.stage = stage.max(before);
        if stage <= before {
            return;
        }
        let (name, message) = (call.name.clone(), call.message.clone());
        match state["status"].as_str().unwrap_or_default() {
            "pending-confirmation" => out.push(Piece::Confirm { call: id, text: format!("{name}: {message}") }),
            // A call that this client allowed was shown as running then.
            "running" => {
                out.push(Piece::Tool { call: id, status: "running", text: format!("{name}: {message}") });
            }
            "completed" => out.push(completed(id, state)),
            "cancelled" => {
                let why = if state["reason"] == "denied" { "denied" } else { "cancelled" };
                out.push(Piece::Tool { call: id, status: why, text: format!("{name}: {why}") });
            }
            _ => {}
        }
    }

    fn end(&mut self, ending: Ending, out: &mut Vec<Piece>) {
        out.push(Piece::End(ending));
        *self = Self::default();
    }
}

/// The state of a tool call that an action leads to, as far as it matters here.
fn call_state(action: &Value) -> Value {
    let mut state = action.clone();
    let status = match action["type"].as_str().unwrap_or_default() {
        "chat/toolCallReady" if action["confirmed"].is_null() => "pending-confirmation",
        "chat/toolCallReady" => "running",
        "chat/toolCallConfirmed" if action["approved"] == true => "running",
        "chat/toolCallConfirmed" => "cancelled",
        "chat/toolCallComplete" => {
            for field in ["success", "pastTenseMessage", "content", "error"] {
                state[field] = action["result"][field].clone();
            }
            "completed"
        }
        _ => "streaming",
    };
    state["status"] = json!(status);
    state
}

/// What a call has done: its summary, and the beginning of its result.
fn completed(call: String, state: &Value) -> Piece {
    let is_good = state["success"] != false;
    let mut text = text_of(&state["pastTenseMessage"]);
    let contents = state["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    for content in contents {
        let body = match content["type"].as_str() {
            Some("text") => text_of(&content["text"]),
            Some("resource") => format!("(content at {})", text_of(&content["uri"])),
            _ => continue,
        };
        let mut lines = body.lines();
        for line in lines.by_ref().take(RESULT_LINES) {
            text.push_str("\n    ");
            text.extend(line.chars().take(RESULT_WIDTH));
            if line.chars().nth(RESULT_WIDTH).is_some() {
                text.push('…');
            }
        }
        match lines.count() {
            0 => {}
            more => text.push_str(&format!("\n    … {more} more lines")),
        }
    }
    let error = text_of(&state["error"]["message"]);
    if !is_good && !error.is_empty() {
        text.push_str(&format!("\n    {error}"));
    }
    Piece::Tool { call, status: if is_good { "completed" } else { "failed" }, text }
}

/// A text, which may be an object with markdown.
fn text_of(value: &Value) -> String {
    value.as_str().or_else(|| value["markdown"].as_str()).unwrap_or_default().to_owned()
}

fn error_of(part: &Value) -> String {
    text_of(&part["error"]["message"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(kind: &str, mut fields: Value) -> Value {
        fields["type"] = json!(format!("chat/{kind}"));
        fields["turnId"] = json!("t");
        fields
    }

    fn texts(pieces: &[Piece]) -> String {
        let text = |piece: &Piece| if let Piece::Text(text) = piece { text.clone() } else { String::new() };
        pieces.iter().map(text).collect()
    }

    #[test]
    fn what_was_shown_before_a_drop_is_not_shown_again_after_it() {
        let mut screen = Screen::default();
        screen.begin("t");
        let part = json!({"kind": "markdown", "id": "p", "content": "He"});
        let mut shown = screen.action(&action("responsePart", json!({ "part": part })));
        shown.extend(screen.action(&action("delta", json!({"partId": "p", "content": "llo"}))));
        assert_eq!(texts(&shown), "Hello");
        let parts = json!([{"kind": "markdown", "id": "p", "content": "Hello, world"}]);
        let state = json!({"turns": [], "activeTurn": {"id": "t", "message": {"text": "x"}, "responseParts": parts}});
        assert_eq!(screen.snapshot(&state, 0), [Piece::Text(", world".to_owned())]);
        let turn = json!({"id": "t", "state": "complete", "message": {"text": "x"}, "responseParts": parts});
        assert_eq!(screen.snapshot(&json!({ "turns": [turn] }), 0), [Piece::End(Ending::Complete)]);
        assert_eq!(screen.turn(), None);
    }

    #[test]
    fn a_prompt_that_has_not_arrived_survives_a_snapshot() {
        let mut screen = Screen::default();
        screen.begin("t");
        assert_eq!(screen.snapshot(&json!({ "turns": [] }), 0), []);
        assert_eq!(screen.action(&action("turnStarted", json!({"message": {"text": "ours"}}))), []);
        assert_eq!(screen.turn(), Some("t"));
    }

    #[test]
    fn a_call_is_asked_about_once_and_shown_as_far_as_it_has_come() {
        let mut screen = Screen::default();
        screen.begin("t");
        assert_eq!(screen.action(&action("toolCallStart", json!({"toolCallId": "c", "displayName": "Run"}))), []);
        let ready = json!({"toolCallId": "c", "invocationMessage": {"markdown": "ls"}});
        let asked = Piece::Confirm { call: "c".to_owned(), text: "Run: ls".to_owned() };
        assert_eq!(screen.action(&action("toolCallReady", ready.clone())), [asked]);
        assert!(screen.is_asked("c"));
        assert_eq!(screen.action(&action("toolCallReady", ready)), []);
        screen.answer("c");
        assert!(!screen.is_asked("c"));
        assert_eq!(screen.action(&action("toolCallConfirmed", json!({"toolCallId": "c", "approved": true}))), []);
        let content = json!([{"type": "text", "text": "a\nb\n"}]);
        let result = json!({"success": true, "pastTenseMessage": "Ran ls", "content": content});
        let done = Piece::Tool { call: "c".to_owned(), status: "completed", text: "Ran ls\n    a\n    b".to_owned() };
        assert_eq!(screen.action(&action("toolCallComplete", json!({"toolCallId": "c", "result": result}))), [done]);
    }

    #[test]
    fn a_call_that_somebody_else_allowed_is_shown_as_running() {
        let mut screen = Screen::default();
        screen.begin("t");
        let ready = json!({"toolCallId": "c", "displayName": "Run", "invocationMessage": "ls"});
        screen.action(&action("toolCallReady", ready));
        let confirmed = json!({"toolCallId": "c", "approved": true});
        let running = Piece::Tool { call: "c".to_owned(), status: "running", text: "Run: ls".to_owned() };
        assert_eq!(screen.action(&action("toolCallConfirmed", confirmed)), [running]);
        assert!(!screen.is_asked("c"));
    }

    #[test]
    fn between_two_parts_is_a_break_and_empty_texts_are_left_out() {
        let mut screen = Screen::default();
        screen.begin("t");
        let empty = json!({"kind": "markdown", "id": "p", "content": ""});
        assert_eq!(screen.action(&action("responsePart", json!({ "part": empty }))), []);
        assert_eq!(screen.action(&action("delta", json!({"partId": "p", "content": ""}))), []);
        let (one, two) = (Piece::Text("one".to_owned()), Piece::Text("two".to_owned()));
        assert_eq!(
            screen.action(&action("delta", json!({"partId": "p", "content": "one"}))),
            std::slice::from_ref(&one)
        );
        assert_eq!(screen.action(&action("delta", json!({"partId": "p", "content": "one"}))), [one]);
        assert_eq!(screen.action(&action("delta", json!({"partId": "q", "content": "two"}))), [Piece::Break, two]);
    }

    #[test]
    fn turns_of_others_come_with_their_prompt_and_failures_say_why() {
        let mut screen = Screen::default();
        let begun = screen.action(&action("turnStarted", json!({"message": {"text": "theirs"}})));
        assert_eq!(begun, [Piece::Prompt("theirs".to_owned())]);
        let part = json!({"kind": "error", "error": {"errorType": "x", "message": "broken"}});
        let end = screen.action(&action("error", json!({ "part": part })));
        assert_eq!(end, [Piece::End(Ending::Failed("broken".to_owned()))]);
        assert_eq!(screen.action(&action("delta", json!({"partId": "p", "content": "late"}))), []);
    }
}
