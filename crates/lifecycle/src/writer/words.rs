//! What is being said: open messages and their open blocks.

use super::calls::Calls;
use super::names::Names;
use super::{FormedEvents, Stray};
use crate::{BlockKind, BlockType, Event, Id};

/// The open messages: one for each speaker at most, so there are few.
#[derive(Debug, Default)]
pub(super) struct OpenMessages {
    open: Vec<OpenMessage>,
    names: Names,
}

#[derive(Debug)]
struct OpenMessage {
    /// As the agent calls it.
    given: Id,
    /// As we do.
    name: Id,
    /// The call whose sub-agent speaks.
    agent: Option<usize>,
    blocks: Vec<OpenBlock>,
    names: Names,
}

#[derive(Debug)]
struct OpenBlock {
    given: Id,
    name: Id,
    kind: BlockType,
    /// The call whose input it is, and what came of that so far.
    input: Option<(usize, String)>,
}

impl OpenMessages {
    /// Begins a message. What its speaker was saying ends.
    pub(super) fn start(
        &mut self,
        given: Id,
        agent: Option<usize>,
        calls: &mut Calls,
        out: &mut FormedEvents,
    ) -> Result<(), Stray> {
        if self.open.iter().any(|message| message.given == given) {
            return Err(Stray);
        }
        self.begin(given, agent, calls, out);
        Ok(())
    }

    /// Begins a block, in a message that begins too if it is not open.
    pub(super) fn start_block(
        &mut self,
        message: &Id,
        given: Id,
        kind: BlockKind,
        calls: &mut Calls,
        out: &mut FormedEvents,
    ) {
        let message = self.message(message, calls, out);
        if let Some(at) = message.find(&given) {
            message.end_block(at, None, calls, out);
        }
        message.start_block(given, kind, calls, out);
    }

    /// Adds to a block. One that is not open, or is of another kind, begins anew: nothing that was said is lost. Only a
    /// call cannot begin so, because nobody would know which.
    pub(super) fn delta(
        &mut self,
        message: &Id,
        block: Id,
        kind: BlockType,
        text: String,
        calls: &mut Calls,
        out: &mut FormedEvents,
    ) -> Result<(), Stray> {
        let begun = match kind {
            BlockType::Text => Some(BlockKind::Text),
            BlockType::Thinking => Some(BlockKind::Thinking),
            BlockType::Redacted => Some(BlockKind::Redacted),
            BlockType::ToolInput => None,
        };
        let is_open = |message: &OpenMessage| message.given_block(&block).is_some_and(|block| block.kind == kind);
        match begun {
            Some(begun) if !self.open.iter().any(|open| open.given == *message && is_open(open)) => {
                self.start_block(message, block.clone(), begun, calls, out);
            }
            _ => {}
        }
        let message = self.open.iter_mut().find(|open| open.given == *message).ok_or(Stray)?;
        let name = message.name.clone();
        let block = message.blocks.iter_mut().find(|open| open.given == block && open.kind == kind).ok_or(Stray)?;
        if let Some((_, input)) = &mut block.input {
            input.push_str(&text);
        }
        out.push(Event::BlockDelta { message: name, block: block.name.clone(), kind, text });
        Ok(())
    }

    /// Ends a block.
    pub(super) fn end_block(
        &mut self,
        message: &Id,
        block: &Id,
        input: Option<String>,
        calls: &mut Calls,
        out: &mut FormedEvents,
    ) -> Result<(), Stray> {
        let message = self.open.iter_mut().find(|open| open.given == *message).ok_or(Stray)?;
        let at = message.find(block).ok_or(Stray)?;
        message.end_block(at, input, calls, out);
        Ok(())
    }

    /// Ends the input of a call, if it is still being said.
    pub(super) fn end_input(&mut self, call: usize, calls: &mut Calls, out: &mut FormedEvents) {
        for message in &mut self.open {
            let is_it = |block: &OpenBlock| block.input.as_ref().is_some_and(|(of, _)| *of == call);
            if let Some(at) = message.blocks.iter().position(is_it) {
                return message.end_block(at, None, calls, out);
            }
        }
    }

    /// Ends a message, and its blocks.
    pub(super) fn end(&mut self, message: &Id, calls: &mut Calls, out: &mut FormedEvents) -> Result<(), Stray> {
        let at = self.open.iter().position(|open| open.given == *message).ok_or(Stray)?;
        self.open.remove(at).end(calls, out);
        Ok(())
    }

    /// Ends all messages of these speakers.
    pub(super) fn end_all(
        &mut self,
        speaks: impl Fn(Option<usize>) -> bool,
        calls: &mut Calls,
        out: &mut FormedEvents,
    ) {
        for message in self.open.extract_if(.., |message| speaks(message.agent)) {
            message.end(calls, out);
        }
    }

    /// The open message that the agent calls so; it begins if there is none.
    fn message(&mut self, given: &Id, calls: &mut Calls, out: &mut FormedEvents) -> &mut OpenMessage {
        let at = match self.open.iter().position(|message| message.given == *given) {
            Some(at) => at,
            None => self.begin(given.clone(), None, calls, out),
        };
        // It was just found or pushed.
        #[expect(clippy::indexing_slicing, reason = "the position is of this list")]
        &mut self.open[at]
    }

    fn begin(&mut self, given: Id, agent: Option<usize>, calls: &mut Calls, out: &mut FormedEvents) -> usize {
        self.end_all(|speaker| speaker == agent, calls, out);
        let name = self.names.fresh(&given);
        out.push(Event::MessageStarted { message: name.clone(), agent: agent.and_then(|at| calls.name(at)) });
        self.open.push(OpenMessage { given, name, agent, blocks: Vec::new(), names: Names::default() });
        self.open.len().saturating_sub(1)
    }
}

impl OpenMessage {
    fn find(&self, given: &Id) -> Option<usize> {
        self.blocks.iter().position(|block| block.given == *given)
    }

    fn given_block(&self, given: &Id) -> Option<&OpenBlock> {
        self.blocks.iter().find(|block| block.given == *given)
    }

    fn start_block(&mut self, given: Id, mut kind: BlockKind, calls: &mut Calls, out: &mut FormedEvents) {
        let name = self.names.fresh(&given);
        let input = match &mut kind {
            BlockKind::ToolInput(call) => Some((calls.begin(call, self.agent), String::new())),
            _ => None,
        };
        self.blocks.push(OpenBlock { given, name: name.clone(), kind: kind.kind(), input });
        out.push(Event::BlockStarted { message: self.name.clone(), block: name, kind });
    }

    fn end_block(&mut self, at: usize, input: Option<String>, calls: &mut Calls, out: &mut FormedEvents) {
        self.blocks.remove(at).end(&self.name, input, calls, out);
    }

    fn end(self, calls: &mut Calls, out: &mut FormedEvents) {
        for block in self.blocks {
            block.end(&self.name, None, calls, out);
        }
        out.push(Event::MessageEnded { message: self.name });
    }
}

impl OpenBlock {
    fn end(self, message: &Id, input: Option<String>, calls: &mut Calls, out: &mut FormedEvents) {
        let input = self.input.map(|(call, said)| {
            calls.ready(call);
            input.unwrap_or(said)
        });
        out.push(Event::BlockEnded { message: message.clone(), block: self.name, input });
    }
}
