//! Prints what there is to see: lines for people, objects for programs.

use std::io::{self, Write};

use console::Style;
use serde_json::{Value, json};

use super::input::Input;
use super::screen::{Ending, Piece};
use crate::args::Format;
use crate::failure::Error;
use crate::units;

/// Where a conversation is printed.
pub(super) struct ChatOutput {
    format: Format,
    /// Whether the output is a terminal, at which a person also types.
    is_terminal: bool,
    dim: Style,
    bold: Style,
    /// The kind of the last line, if it has no line end yet.
    open: Option<Open>,
    /// An unfinished line of text. It is printed when it is complete, because a person may be typing below it.
    waiting: String,
    turn: String,
}

/// The kind of a line that has no line end yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Reasoning,
}

impl ChatOutput {
    pub(super) fn new(format: Format, is_terminal: bool) -> Self {
        let (dim, bold) = (Style::new().dim(), Style::new().bold());
        Self { format, is_terminal, dim, bold, open: None, waiting: String::new(), turn: String::new() }
    }

    /// We are in a session.
    pub(super) fn session(&mut self, session: &str, chat: &str, state: &Value, is_new: bool) -> Result<(), Error> {
        let (title, agent) = (state["title"].as_str().unwrap_or_default(), state["provider"].as_str());
        if self.format == Format::Json {
            return self.object(&json!({
                "type": "session", "session": session, "chat": chat, "title": title, "agent": agent, "new": is_new,
            }));
        }
        let word = if is_new { "New session" } else { "Session" };
        let agent = agent.map(|agent| format!(" with {}", on_one_line(agent))).unwrap_or_default();
        let line = format!("{word} {}{agent}: {}", on_one_line(session), on_one_line(title));
        self.aside(line.trim_end_matches([':', ' ']))
    }

    /// Our own turn begins. A person has seen what they typed.
    pub(super) fn turn(&mut self, turn: &str, text: &str) -> Result<(), Error> {
        self.turn = turn.to_owned();
        if self.format == Format::Json {
            return self.object(&json!({"type": "turn", "turn": turn, "text": text}));
        }
        Ok(())
    }

    pub(super) fn show(&mut self, piece: &Piece, input: &mut Input) -> Result<(), Error> {
        if self.format == Format::Json {
            return self.as_json(piece).map_or(Ok(()), |object| self.object(&object));
        }
        match piece {
            Piece::Text(text) => self.stream(Open::Text, text, input),
            // Reasoning is for people who watch; a program that reads a pipe wants the answer.
            Piece::Reasoning(text) if self.is_terminal => self.stream(Open::Reasoning, text, input),
            Piece::Reasoning(_) => Ok(()),
            Piece::Prompt(text) => self.line(&self.bold.apply_to(format!("> {}", plain(text))).to_string(), input),
            Piece::Tool { text, status, .. } => {
                let mark = match *status {
                    "completed" => "✓",
                    "failed" | "denied" | "cancelled" => "✗",
                    _ => "·",
                };
                self.line(&format!("{mark} {}", plain(text)), input)
            }
            Piece::Confirm { text, .. } if self.is_terminal => {
                self.line(&format!("? {}\nAllow it? [y/n]", plain(text)), input)
            }
            Piece::Confirm { text, .. } => self.line(&format!("? {}", plain(text)), input),
            Piece::Break | Piece::End(Ending::Complete) => self.end_line(input),
            Piece::End(Ending::Cancelled) => self.line("(interrupted)", input),
            Piece::End(Ending::Failed(why)) => self.line(&format!("(failed: {})", plain(why)), input),
            Piece::Note(text) if self.is_terminal => self.line(&self.dim.apply_to(plain(text)).to_string(), input),
            Piece::Note(text) => self.aside(&plain(text)),
        }
    }

    /// Ends a line that has not ended.
    pub(super) fn end_line(&mut self, input: &mut Input) -> Result<(), Error> {
        match self.open.take() {
            Some(_) => self.write("\n", input),
            None => Ok(()),
        }
    }

    fn stream(&mut self, kind: Open, text: &str, input: &mut Input) -> Result<(), Error> {
        if text.is_empty() {
            return Ok(());
        }
        if self.open != Some(kind) {
            self.end_line(input)?;
        }
        let text = plain(text);
        let ends = text.ends_with('\n');
        match kind {
            Open::Text => self.write(&text, input)?,
            Open::Reasoning => self.write(&self.dim.apply_to(text).to_string(), input)?,
        }
        self.open = Some(kind).filter(|_| !ends);
        Ok(())
    }

    fn line(&mut self, text: &str, input: &mut Input) -> Result<(), Error> {
        self.end_line(input)?;
        self.write(&format!("{text}\n"), input)
    }

    /// Prints a remark that is no part of the conversation: to standard error, unless the output is a terminal.
    fn aside(&mut self, text: &str) -> Result<(), Error> {
        if self.is_terminal {
            println(&self.dim.apply_to(text).to_string())
        } else {
            let _ = writeln!(io::stderr(), "breakbulk: {text}");
            Ok(())
        }
    }

    fn write(&mut self, text: &str, input: &mut Input) -> Result<(), Error> {
        if !(self.is_terminal && input.is_asked()) {
            let text = std::mem::take(&mut self.waiting) + text;
            return print(&text);
        }
        // Only whole lines can be printed above the line that a person types.
        self.waiting.push_str(text);
        if let Some(end) = self.waiting.rfind('\n') {
            let rest = self.waiting.split_off(end.saturating_add(1));
            let lines = std::mem::replace(&mut self.waiting, rest);
            input.print_above(&lines).map_err(Error::Output)?;
        }
        Ok(())
    }

    fn object(&self, object: &Value) -> Result<(), Error> {
        println(&object.to_string())
    }

    /// The JSON object for programs; `None` if they do not get this piece.
    fn as_json(&self, piece: &Piece) -> Option<Value> {
        let turn = &self.turn;
        let object = match piece {
            Piece::Break => return None,
            Piece::Prompt(text) => json!({"type": "prompt", "text": text}),
            Piece::Text(content) => json!({"type": "text", "turn": turn, "content": content}),
            Piece::Reasoning(content) => json!({"type": "reasoning", "turn": turn, "content": content}),
            Piece::Tool { call, status, text } => {
                json!({"type": "tool", "turn": turn, "call": call, "status": status, "text": text})
            }
            Piece::Confirm { call, text } => json!({"type": "confirm", "turn": turn, "call": call, "text": text}),
            Piece::End(Ending::Complete) => json!({"type": "end", "turn": turn, "state": "complete"}),
            Piece::End(Ending::Cancelled) => json!({"type": "end", "turn": turn, "state": "cancelled"}),
            Piece::End(Ending::Failed(why)) => json!({"type": "end", "turn": turn, "state": "error", "error": why}),
            Piece::Note(text) => json!({"type": "note", "text": text}),
        };
        Some(object)
    }
}

/// A host's or an agent's text, without what a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !units::is_terminal_control(*c)).collect()
}

/// The same, on one line.
pub(super) fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if units::is_terminal_control(c) { ' ' } else { c }).collect()
}

fn println(text: &str) -> Result<(), Error> {
    print(&format!("{text}\n"))
}

fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_moves_no_cursor() {
        assert_eq!(plain("a\u{1b}[31mb\n\tc\u{9b}2J\r"), "a[31mb\n\tc2J");
        assert_eq!(on_one_line("a\nb\u{7}"), "a b ");
        assert_eq!(plain("rm \u{202e}txt.\u{2066}x\u{200f}"), "rm txt.x");
        assert_eq!(on_one_line("a\u{202e}b"), "a b");
    }
}
