//! Finds the contents of a text that may be sent by reference, and their paths in the state.
//!
//! The text is parsed once, and each long content that is found once more.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::fields::{ContentField, content_field};
use super::reference::{PathStep, Reference, Version};
use super::shapes::{
    AskedShape, ChangedShape, CompletedShape, ConfirmedShape, DraftedShape, EntryShape, LoadedShape, MessageShape,
    PartShape, PartedShape, PendingShape, ReadyShape, RequestShape, SnapshotShape, StartedShape, StateShape, ToolShape,
    TurnShape, TypeShape,
};

/// Shorter contents are not replaced: a reference has about this length.
const SHORT: usize = 256;

/// A content that may be sent by reference.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) kind: CandidateKind,
    /// The value in the text that the reference replaces.
    pub(super) raw: &'a str,
    channel: Cow<'a, str>,
    steps: Vec<PathStep>,
}

/// The kind of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CandidateKind {
    /// A block of a tool's result.
    Block,
    /// The input of a tool call.
    Input,
    /// An attachment of a message.
    Attachment,
    /// A part of an answer.
    Part,
}

impl Candidate<'_> {
    /// The URI by which it can be read.
    pub(super) fn uri(&self, version: Option<Version>) -> String {
        Reference { channel: self.channel.to_string(), steps: self.steps.clone(), version }.to_string()
    }
}

/// The contents found so far.
pub(super) struct Candidates<'a> {
    channel: Cow<'a, str>,
    found: Vec<Candidate<'a>>,
}

impl<'a> Candidates<'a> {
    pub(super) fn of_entry(channel: &'a str, body: &'a [u8]) -> Option<Vec<Candidate<'a>>> {
        let EntryShape { action } = read(body)?;
        Self::of_action(channel, action.get().as_bytes())
    }

    pub(super) fn of_action(channel: &'a str, text: &'a [u8]) -> Option<Vec<Candidate<'a>>> {
        let mut candidates = Self::on(channel);
        candidates.action(text)?;
        Some(candidates.found)
    }

    pub(super) fn of_snapshot(channel: &'a str, text: &'a [u8]) -> Option<Vec<Candidate<'a>>> {
        let SnapshotShape { state } = read(text)?;
        Self::of_state(channel, state.get().as_bytes())
    }

    pub(super) fn of_state(channel: &'a str, text: &'a [u8]) -> Option<Vec<Candidate<'a>>> {
        let mut candidates = Self::on(channel);
        candidates.state(read(text)?);
        Some(candidates.found)
    }

    pub(super) fn of_turn(channel: &'a str, text: &'a [u8]) -> Option<Vec<Candidate<'a>>> {
        let mut candidates = Self::on(channel);
        candidates.turn(read(text)?);
        Some(candidates.found)
    }

    const fn on(channel: &'a str) -> Self {
        Self { channel: Cow::Borrowed(channel), found: Vec::new() }
    }

    fn action(&mut self, text: &'a [u8]) -> Option<()> {
        let TypeShape { name } = read(text)?;
        match content_field(&name) {
            ContentField::Nothing => {}
            ContentField::Result => {
                let CompletedShape { turn_id, tool_call_id, result } = read(text)?;
                self.blocks(&call(turn_id, tool_call_id), result.content);
            }
            ContentField::Content => {
                let ChangedShape { turn_id, tool_call_id, content } = read(text)?;
                self.blocks(&call(turn_id, tool_call_id), Some(content));
            }
            ContentField::Input => {
                let ReadyShape { turn_id, tool_call_id, tool_input } = read(text)?;
                self.input(&call(turn_id, tool_call_id), tool_input);
            }
            ContentField::Message => {
                let StartedShape { turn_id, message } = read(text)?;
                self.message(&[("turn", turn_id.into())], "attachment", message);
            }
            ContentField::Pending => {
                let PendingShape { id, message } = read(text)?;
                self.message(&[("pending", id.into())], "attachment", message);
            }
            ContentField::Draft => {
                let DraftedShape { draft } = read(text)?;
                self.message(&[], "draft", draft.unwrap_or_default());
            }
            ContentField::Suggestion => {
                let ConfirmedShape { turn_id, tool_call_id, user_suggestion } = read(text)?;
                self.message(&call(turn_id, tool_call_id), "suggestion", user_suggestion.unwrap_or_default());
            }
            ContentField::Part => {
                let PartedShape { turn_id, part } = read(text)?;
                self.part(&[("turn", turn_id.into())], part, false);
            }
            ContentField::Turns => {
                let LoadedShape { turns } = read(text)?;
                turns.into_iter().for_each(|turn| self.turn(turn));
            }
            ContentField::Needed => {
                let AskedShape { request } = read(text)?;
                self.needed(request);
            }
        }
        Some(())
    }

    /// Looks at the members of chats and sessions; other kinds of channels have none of them.
    fn state(&mut self, state: StateShape<'a>) {
        state.turns.into_iter().flatten().chain(state.active_turn).for_each(|turn| self.turn(turn));
        for PendingShape { id, message } in state.queued_messages.into_iter().flatten().chain(state.steering_message) {
            self.message(&[("pending", id.into())], "attachment", message);
        }
        self.message(&[], "draft", state.draft.unwrap_or_default());
        state.input_needed.into_iter().flatten().for_each(|request| self.needed(request));
    }

    fn turn(&mut self, turn: TurnShape<'a>) {
        let path = [("turn", turn.id.into())];
        self.message(&path, "attachment", turn.message);
        turn.response_parts.into_iter().for_each(|part| self.part(&path, part, true));
    }

    fn part(&mut self, path: &[PathStep], raw: &'a RawValue, may_be_two: bool) {
        if raw.get().len() < SHORT {
            return;
        }
        let Some(part) = read::<PartShape<'_>>(raw.get().as_bytes()) else { return };
        match (&*part.kind, part.id, part.tool_call) {
            ("markdown", Some(id), _) if may_be_two => {
                self.candidate(CandidateKind::Part, path, ("text", id.into()), raw);
            }
            ("toolCall", _, Some(tool)) => self.tool(path, tool),
            _ => {}
        }
    }

    fn tool(&mut self, path: &[PathStep], tool: ToolShape<'a>) {
        let path = [path, &[("call", tool.tool_call_id.into())]].concat();
        self.blocks(&path, tool.content);
        self.input(&path, tool.tool_input);
        self.message(&path, "suggestion", tool.user_suggestion.unwrap_or_default());
    }

    /// A tool call that a session shows is found in the state of its chat.
    fn needed(&mut self, request: RequestShape<'a>) {
        let (Some(chat), Some(turn), Some(tool)) = (request.chat, request.turn_id, request.tool_call) else { return };
        let own = std::mem::replace(&mut self.channel, chat);
        self.tool(&[("turn", turn.into())], tool);
        self.channel = own;
    }

    fn blocks(&mut self, path: &[PathStep], blocks: Option<Vec<&'a RawValue>>) {
        for (n, block) in blocks.into_iter().flatten().enumerate() {
            self.candidate(CandidateKind::Block, path, ("content", n.to_string()), block);
        }
    }

    fn input(&mut self, path: &[PathStep], input: Option<&'a RawValue>) {
        if let Some(input) = input {
            self.candidate(CandidateKind::Input, path, ("input", String::new()), input);
        }
    }

    fn message(&mut self, path: &[PathStep], kind: &'static str, message: MessageShape<'a>) {
        for (n, attachment) in message.attachments.into_iter().flatten().enumerate() {
            self.candidate(CandidateKind::Attachment, path, (kind, n.to_string()), attachment);
        }
    }

    fn candidate(&mut self, kind: CandidateKind, path: &[PathStep], last: PathStep, raw: &'a RawValue) {
        if raw.get().len() >= SHORT {
            let steps = [path, &[last]].concat();
            self.found.push(Candidate { kind, raw: raw.get(), channel: self.channel.clone(), steps });
        }
    }
}

fn call(turn: Cow<'_, str>, call: Cow<'_, str>) -> [PathStep; 2] {
    [("turn", turn.into()), ("call", call.into())]
}

fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Option<T> {
    serde_json::from_slice(text).ok()
}
