//! Takes events in any order, gives well-formed ones.

mod calls;
mod names;
mod words;

use std::collections::VecDeque;
use std::ops::Deref;

use self::calls::Calls;
use self::words::OpenMessages;
use crate::{Ending, Event, Id, Outcome};

/// An event in its right place. Only a [`Writer`] makes one.
#[derive(Debug, Clone, PartialEq)]
pub struct Formed(Event);

impl Formed {
    /// The event.
    #[must_use]
    pub fn into_event(self) -> Event {
        self.0
    }
}

impl Deref for Formed {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.0
    }
}

/// Makes what an agent says well formed. See the [crate](crate) for what that is.
///
/// Holds the names of one turn's messages and calls, and the inputs of calls that are not whole yet.
#[derive(Debug, Default)]
pub struct Writer {
    out: FormedEvents,
    turn: Option<OpenTurn>,
    strays: u64,
}

/// What goes out.
#[derive(Debug, Default)]
struct FormedEvents(VecDeque<Formed>);

impl FormedEvents {
    fn push(&mut self, event: Event) {
        self.0.push_back(Formed(event));
    }
}

/// What is known of the open turn.
#[derive(Debug)]
struct OpenTurn {
    id: Id,
    words: OpenMessages,
    calls: Calls,
}

/// An event that makes no sense where it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stray;

impl Writer {
    /// Nothing has been said yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes whatever the agent says next.
    pub fn write(&mut self, event: Event) {
        let taken = match event {
            Event::Resumable { .. } | Event::ModeChanged { .. } => {
                self.out.push(event);
                Ok(())
            }
            Event::TurnStarted { turn } => self.start(turn),
            Event::TurnEnded { turn, outcome } => self.finish(&turn, outcome),
            event => self.turn.as_mut().ok_or(Stray).and_then(|turn| turn.write(event, &mut self.out)),
        };
        if taken.is_err() {
            self.strays = self.strays.saturating_add(1);
        }
    }

    /// The next well-formed event.
    #[must_use]
    pub fn poll(&mut self) -> Option<Formed> {
        self.out.0.pop_front()
    }

    /// The agent says nothing more: an open turn ends, and everything in it.
    pub fn end(&mut self, outcome: Outcome) {
        if let Some(mut turn) = self.turn.take() {
            turn.close(None, &mut self.out);
            self.out.push(Event::TurnEnded { turn: turn.id, outcome });
        }
    }

    /// The open turn.
    #[must_use]
    pub fn turn(&self) -> Option<&Id> {
        self.turn.as_ref().map(|turn| &turn.id)
    }

    /// What the agent itself calls a call of the open turn: another name, if it has used one twice.
    #[must_use]
    pub fn given(&self, tool: &Id) -> Option<Id> {
        self.turn.as_ref().and_then(|turn| turn.calls.given(tool))
    }

    /// How many events made no sense where they came, and were dropped.
    #[must_use]
    pub const fn strays(&self) -> u64 {
        self.strays
    }

    fn start(&mut self, turn: Id) -> Result<(), Stray> {
        if self.turn() == Some(&turn) {
            return Err(Stray);
        }
        self.end(Outcome::Cancelled);
        self.turn = Some(OpenTurn { id: turn.clone(), words: OpenMessages::default(), calls: Calls::default() });
        self.out.push(Event::TurnStarted { turn });
        Ok(())
    }

    /// The end of a turn that is over already says nothing about the open one.
    fn finish(&mut self, turn: &Id, outcome: Outcome) -> Result<(), Stray> {
        if self.turn() != Some(turn) {
            return Err(Stray);
        }
        self.end(outcome);
        Ok(())
    }
}

impl OpenTurn {
    fn write(&mut self, event: Event, out: &mut FormedEvents) -> Result<(), Stray> {
        let Self { words, calls, .. } = self;
        match event {
            Event::MessageStarted { message, agent } => {
                // A sub-agent whose call is unknown or over can only be heard as the agent itself.
                let agent = agent.and_then(|agent| self.sub_agent(&agent, out));
                self.words.start(message, agent, &mut self.calls, out)
            }
            Event::BlockStarted { message, block, kind } => {
                words.start_block(&message, block, kind, calls, out);
                Ok(())
            }
            Event::BlockDelta { message, block, kind, text } => words.delta(&message, block, kind, text, calls, out),
            Event::BlockEnded { message, block, input } => words.end_block(&message, &block, input, calls, out),
            Event::MessageEnded { message } => words.end(&message, calls, out),
            Event::ToolAsked { tool, ask } => {
                let at = calls.find(&tool)?;
                words.end_input(at, calls, out);
                calls.ask(at, ask, out)
            }
            Event::ToolAnswered { tool, answer } => {
                let at = calls.find(&tool)?;
                calls.answer(at, answer, out)
            }
            Event::ToolStarted { tool } => {
                let at = calls.find(&tool)?;
                words.end_input(at, calls, out);
                calls.start(at, out)
            }
            Event::ToolOutput { tool, content } => {
                let at = calls.find(&tool)?;
                words.end_input(at, calls, out);
                calls.output(at, content, out)
            }
            Event::ToolEnded { tool, ending } => {
                let at = calls.find(&tool)?;
                words.end_input(at, calls, out);
                let ending = calls.prepare_end(at, ending, out)?;
                let is_done = matches!(ending, Ending::Done(_));
                self.close_sub_agent(at, if is_done { Outcome::Complete } else { Outcome::Cancelled }, out);
                self.calls.end(at, ending, out);
                Ok(())
            }
            Event::AgentStarted { tool, name, task } => {
                let at = calls.find(&tool)?;
                words.end_input(at, calls, out);
                calls.start_sub_agent(at, name, task, out)
            }
            Event::AgentEnded { tool, outcome } => {
                let at = self.calls.find(&tool)?;
                self.close_sub_agent(at, outcome, out).then_some(()).ok_or(Stray)
            }
            event => {
                out.push(event);
                Ok(())
            }
        }
    }

    /// The sub-agent of a call, set to work if it is not yet.
    fn sub_agent(&mut self, tool: &Id, out: &mut FormedEvents) -> Option<usize> {
        let at = self.calls.find(tool).ok()?;
        if !self.calls.has_sub_agent(at) {
            self.words.end_input(at, &mut self.calls, out);
            self.calls.start_sub_agent(at, String::new(), String::new(), out).ok()?;
        }
        Some(at)
    }

    /// Ends a call's sub-agent, if it is at work, and everything that it began.
    fn close_sub_agent(&mut self, at: usize, outcome: Outcome, out: &mut FormedEvents) -> bool {
        if !self.calls.has_sub_agent(at) {
            return false;
        }
        self.close(Some(at), out);
        self.calls.end_sub_agent(at, outcome, out);
        true
    }

    /// Ends all messages and calls of a speaker, and of its sub-agents. The youngest calls end first, because a
    /// sub-agent's calls are younger than the call that started it.
    fn close(&mut self, speaker: Option<usize>, out: &mut FormedEvents) {
        let below = self.calls.below(speaker);
        self.words.end_all(
            |agent| agent == speaker || agent.is_some_and(|agent| below.contains(&agent)),
            &mut self.calls,
            out,
        );
        for at in below.into_iter().rev() {
            self.calls.withdraw(at, out);
            self.calls.end_sub_agent(at, Outcome::Cancelled, out);
            self.calls.end(at, Ending::Cancelled { reason: None }, out);
        }
    }
}
