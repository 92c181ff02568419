//! Finds in a text what may be sent by reference, and where that is in the state.
//!
//! One pass over what is long, one more over each thing that is found.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::place::{Reference, Step, Version};
use super::shapes::{
    Asked, Changed, Completed, Confirmed, Drafted, Entry, Loaded, Message, Part, Parted, Pending, Ready, Request,
    Snapshot, Started, State, Tool, Turn, Type,
};
use super::table::{Has, has};

/// What is shorter gains nothing: a reference has about this length.
const SHORT: usize = 256;

/// Something that may be sent by reference.
#[derive(Debug)]
pub(super) struct Site<'a> {
    pub(super) what: What,
    /// The value that the reference takes the place of, inside of the text.
    pub(super) raw: &'a str,
    channel: Cow<'a, str>,
    steps: Vec<Step>,
}

/// What something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// A block of a tool's result.
    Block,
    /// The input of a tool call.
    Input,
    /// An attachment of a message.
    Attachment,
    /// A part of an answer.
    Part,
}

impl Site<'_> {
    /// The URI under which it can be read.
    pub(super) fn uri(&self, version: Option<Version>) -> String {
        Reference { channel: self.channel.to_string(), steps: self.steps.clone(), version }.to_string()
    }
}

/// What was found so far, on this way.
pub(super) struct Sites<'a> {
    channel: Cow<'a, str>,
    found: Vec<Site<'a>>,
}

impl<'a> Sites<'a> {
    pub(super) fn of_entry(channel: &'a str, body: &'a [u8]) -> Option<Vec<Site<'a>>> {
        let Entry { action } = read(body)?;
        Self::of_action(channel, action.get().as_bytes())
    }

    pub(super) fn of_action(channel: &'a str, text: &'a [u8]) -> Option<Vec<Site<'a>>> {
        let mut sites = Self::on(channel);
        sites.action(text)?;
        Some(sites.found)
    }

    pub(super) fn of_snapshot(channel: &'a str, text: &'a [u8]) -> Option<Vec<Site<'a>>> {
        let Snapshot { state } = read(text)?;
        Self::of_state(channel, state.get().as_bytes())
    }

    pub(super) fn of_state(channel: &'a str, text: &'a [u8]) -> Option<Vec<Site<'a>>> {
        let mut sites = Self::on(channel);
        sites.state(read(text)?);
        Some(sites.found)
    }

    pub(super) fn of_turn(channel: &'a str, text: &'a [u8]) -> Option<Vec<Site<'a>>> {
        let mut sites = Self::on(channel);
        sites.turn(read(text)?);
        Some(sites.found)
    }

    const fn on(channel: &'a str) -> Self {
        Self { channel: Cow::Borrowed(channel), found: Vec::new() }
    }

    fn action(&mut self, text: &'a [u8]) -> Option<()> {
        let Type { name } = read(text)?;
        match has(&name) {
            Has::Nothing => {}
            Has::Result => {
                let Completed { turn_id, tool_call_id, result } = read(text)?;
                self.blocks(&call(turn_id, tool_call_id), result.content);
            }
            Has::Content => {
                let Changed { turn_id, tool_call_id, content } = read(text)?;
                self.blocks(&call(turn_id, tool_call_id), Some(content));
            }
            Has::Input => {
                let Ready { turn_id, tool_call_id, tool_input } = read(text)?;
                self.input(&call(turn_id, tool_call_id), tool_input);
            }
            Has::Message => {
                let Started { turn_id, message } = read(text)?;
                self.message(&[("turn", turn_id.into())], "attachment", message);
            }
            Has::Pending => {
                let Pending { id, message } = read(text)?;
                self.message(&[("pending", id.into())], "attachment", message);
            }
            Has::Draft => {
                let Drafted { draft } = read(text)?;
                self.message(&[], "draft", draft.unwrap_or_default());
            }
            Has::Suggestion => {
                let Confirmed { turn_id, tool_call_id, user_suggestion } = read(text)?;
                self.message(&call(turn_id, tool_call_id), "suggestion", user_suggestion.unwrap_or_default());
            }
            Has::Part => {
                let Parted { turn_id, part } = read(text)?;
                self.part(&[("turn", turn_id.into())], part, false);
            }
            Has::Turns => {
                let Loaded { turns } = read(text)?;
                turns.into_iter().for_each(|turn| self.turn(turn));
            }
            Has::Needed => {
                let Asked { request } = read(text)?;
                self.needed(request);
            }
        }
        Some(())
    }

    /// Fields of chats and sessions; other kinds of channels have none of these.
    fn state(&mut self, state: State<'a>) {
        state.turns.into_iter().flatten().chain(state.active_turn).for_each(|turn| self.turn(turn));
        for Pending { id, message } in state.queued_messages.into_iter().flatten().chain(state.steering_message) {
            self.message(&[("pending", id.into())], "attachment", message);
        }
        self.message(&[], "draft", state.draft.unwrap_or_default());
        state.input_needed.into_iter().flatten().for_each(|request| self.needed(request));
    }

    fn turn(&mut self, turn: Turn<'a>) {
        let way = [("turn", turn.id.into())];
        self.message(&way, "attachment", turn.message);
        turn.response_parts.into_iter().for_each(|part| self.part(&way, part, true));
    }

    fn part(&mut self, way: &[Step], raw: &'a RawValue, may_be_two: bool) {
        if raw.get().len() < SHORT {
            return;
        }
        let Some(part) = read::<Part<'_>>(raw.get().as_bytes()) else { return };
        match (&*part.kind, part.id, part.tool_call) {
            ("markdown", Some(id), _) if may_be_two => {
                self.site(What::Part, way, ("text", id.into()), raw);
            }
            ("toolCall", _, Some(tool)) => self.tool(way, tool),
            _ => {}
        }
    }

    fn tool(&mut self, way: &[Step], tool: Tool<'a>) {
        let way = [way, &[("call", tool.tool_call_id.into())]].concat();
        self.blocks(&way, tool.content);
        self.input(&way, tool.tool_input);
        self.message(&way, "suggestion", tool.user_suggestion.unwrap_or_default());
    }

    /// What a session shows of a chat is where the chat has it.
    fn needed(&mut self, request: Request<'a>) {
        let (Some(chat), Some(turn), Some(tool)) = (request.chat, request.turn_id, request.tool_call) else { return };
        let own = std::mem::replace(&mut self.channel, chat);
        self.tool(&[("turn", turn.into())], tool);
        self.channel = own;
    }

    fn blocks(&mut self, way: &[Step], blocks: Option<Vec<&'a RawValue>>) {
        for (n, block) in blocks.into_iter().flatten().enumerate() {
            self.site(What::Block, way, ("content", n.to_string()), block);
        }
    }

    fn input(&mut self, way: &[Step], input: Option<&'a RawValue>) {
        if let Some(input) = input {
            self.site(What::Input, way, ("input", String::new()), input);
        }
    }

    fn message(&mut self, way: &[Step], kind: &'static str, message: Message<'a>) {
        for (n, attachment) in message.attachments.into_iter().flatten().enumerate() {
            self.site(What::Attachment, way, (kind, n.to_string()), attachment);
        }
    }

    fn site(&mut self, what: What, way: &[Step], last: Step, raw: &'a RawValue) {
        if raw.get().len() >= SHORT {
            let steps = [way, &[last]].concat();
            self.found.push(Site { what, raw: raw.get(), channel: self.channel.clone(), steps });
        }
    }
}

fn call(turn: Cow<'_, str>, call: Cow<'_, str>) -> [Step; 2] {
    [("turn", turn.into()), ("call", call.into())]
}

fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Option<T> {
    serde_json::from_slice(text).ok()
}
