//! Says whether events are well formed, and which rule they break if not.
//!
//! Shares nothing with the writer, so that each proves the other.

use std::collections::HashMap;

use crate::{Answer, BlockKind, BlockType, Ending, Event, Id};

/// Follows events and names the first rule that one breaks.
#[derive(Debug, Default)]
pub struct Checker {
    turn: Option<Id>,
    messages: HashMap<Id, CheckedMessage>,
    tools: HashMap<Id, CheckedCall>,
}

/// A rule of the grammar that an event breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Outside of a turn, only a resume token and a change of the mode are allowed.
    #[error("an event outside of a turn")]
    OutsideTurn,
    /// One turn at a time.
    #[error("a turn within a turn")]
    TurnWithinTurn,
    /// A turn ends under the name under which it began.
    #[error("the end of another turn")]
    OtherTurn,
    /// A message's name is used once.
    #[error("a message's name is used again")]
    MessageAgain,
    /// A speaker says one message at a time.
    #[error("a second message of one speaker")]
    TwoMessages,
    /// The message must be open.
    #[error("the message is not open")]
    MessageNotOpen,
    /// A block's name is used once in its message.
    #[error("a block's name is used again")]
    BlockAgain,
    /// The block must be open.
    #[error("the block is not open")]
    BlockNotOpen,
    /// A delta is of the kind of its block.
    #[error("a delta of another kind than its block")]
    KindDiffers,
    /// The end of a call's input, and only that, carries the whole input.
    #[error("a call's block ends without its input, or another block ends with one")]
    WrongInput,
    /// A message ends after its blocks.
    #[error("a message ends before its blocks")]
    BlockLeftOpen,
    /// A call's name is used once.
    #[error("a call's name is used again")]
    ToolAgain,
    /// The call must have begun.
    #[error("an unknown call")]
    UnknownTool,
    /// The call is not at the point at which this may happen.
    #[error("not at this point of a call")]
    ToolNotThere,
    /// The sub-agent must be at work.
    #[error("the sub-agent is not at work")]
    AgentNotOpen,
    /// A call has one sub-agent at most.
    #[error("a second sub-agent of one call")]
    AgentAgain,
    /// A turn or sub-agent must not end before its messages have ended.
    #[error("a turn or sub-agent ends before its messages")]
    MessageLeftOpen,
    /// A turn or sub-agent must not end before its calls have ended.
    #[error("a turn or sub-agent ends before its calls")]
    ToolLeftOpen,
    /// A call must not end before its sub-agent has ended.
    #[error("a call ends before its sub-agent")]
    AgentLeftOpen,
}

#[derive(Debug)]
struct CheckedMessage {
    agent: Option<Id>,
    is_open: bool,
    blocks: HashMap<Id, CheckedBlock>,
}

#[derive(Debug)]
struct CheckedBlock {
    kind: BlockType,
    tool: Option<Id>,
    is_open: bool,
}

#[derive(Debug)]
struct CheckedCall {
    agent: Option<Id>,
    phase: CheckedPhase,
    sub_agent: CheckedSubAgent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckedPhase {
    Input,
    Ready,
    Asked { running: bool },
    Refused,
    Running,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckedSubAgent {
    None,
    Open,
    Ended,
}

impl Checker {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether everything that began has ended.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.turn.is_none()
    }

    /// Takes the next event.
    ///
    /// # Errors
    /// The rule that it breaks. Nothing is known of what follows then.
    pub fn check(&mut self, event: &Event) -> Result<(), Violation> {
        match event {
            Event::Resumable { .. } | Event::ModeChanged { .. } => return Ok(()),
            Event::TurnStarted { turn } => return self.turn_started(turn),
            _ if self.turn.is_none() => return Err(Violation::OutsideTurn),
            _ => {}
        }
        match event {
            Event::MessageStarted { message, agent } => self.message_started(message, agent.as_ref()),
            Event::BlockStarted { message, block, kind } => self.block_started(message, block, kind),
            Event::BlockDelta { message, block, kind, .. } => self.block_delta(message, block, *kind),
            Event::BlockEnded { message, block, input } => self.block_ended(message, block, input.is_some()),
            Event::MessageEnded { message } => self.message_ended(message),
            Event::ToolAsked { tool, .. } => self.step(tool, |phase| match phase {
                CheckedPhase::Ready | CheckedPhase::Asked { running: false } => {
                    Some(CheckedPhase::Asked { running: false })
                }
                CheckedPhase::Running | CheckedPhase::Asked { running: true } => {
                    Some(CheckedPhase::Asked { running: true })
                }
                _ => None,
            }),
            Event::ToolAnswered { tool, answer } => self.step(tool, |phase| match (phase, answer) {
                (CheckedPhase::Asked { running: true }, Answer::Allowed { .. }) => Some(CheckedPhase::Running),
                (CheckedPhase::Asked { running: false }, Answer::Allowed { .. }) => Some(CheckedPhase::Ready),
                (CheckedPhase::Asked { .. }, _) => Some(CheckedPhase::Refused),
                _ => None,
            }),
            Event::ToolStarted { tool } => {
                self.step(tool, |phase| (phase == CheckedPhase::Ready).then_some(CheckedPhase::Running))
            }
            Event::ToolOutput { tool, .. } => {
                self.step(tool, |phase| (phase == CheckedPhase::Running).then_some(CheckedPhase::Running))
            }
            Event::ToolEnded { tool, ending } => self.tool_ended(tool, ending),
            Event::AgentStarted { tool, .. } => self.agent_started(tool),
            Event::AgentEnded { tool, .. } => self.agent_ended(tool),
            Event::TurnEnded { turn, .. } => self.turn_ended(turn),
            Event::Usage(_)
            | Event::Notice { .. }
            | Event::Resumable { .. }
            | Event::ModeChanged { .. }
            | Event::TurnStarted { .. } => Ok(()),
        }
    }

    fn turn_started(&mut self, turn: &Id) -> Result<(), Violation> {
        if self.turn.is_some() {
            return Err(Violation::TurnWithinTurn);
        }
        *self = Self { turn: Some(turn.clone()), ..Self::default() };
        Ok(())
    }

    fn turn_ended(&mut self, turn: &Id) -> Result<(), Violation> {
        if self.turn.as_ref() != Some(turn) {
            return Err(Violation::OtherTurn);
        }
        if self.messages.values().any(|message| message.is_open) {
            return Err(Violation::MessageLeftOpen);
        }
        if self.tools.values().any(|tool| tool.phase != CheckedPhase::Ended) {
            return Err(Violation::ToolLeftOpen);
        }
        self.turn = None;
        Ok(())
    }

    fn message_started(&mut self, message: &Id, agent: Option<&Id>) -> Result<(), Violation> {
        if self.messages.contains_key(message) {
            return Err(Violation::MessageAgain);
        }
        if let Some(agent) = agent
            && self.tool(agent)?.sub_agent != CheckedSubAgent::Open
        {
            return Err(Violation::AgentNotOpen);
        }
        if self.messages.values().any(|message| message.is_open && message.agent.as_ref() == agent) {
            return Err(Violation::TwoMessages);
        }
        let begun = CheckedMessage { agent: agent.cloned(), is_open: true, blocks: HashMap::new() };
        self.messages.insert(message.clone(), begun);
        Ok(())
    }

    fn message_ended(&mut self, message: &Id) -> Result<(), Violation> {
        let message = self.message(message)?;
        if message.blocks.values().any(|block| block.is_open) {
            return Err(Violation::BlockLeftOpen);
        }
        message.is_open = false;
        Ok(())
    }

    fn block_started(&mut self, message: &Id, block: &Id, kind: &BlockKind) -> Result<(), Violation> {
        let holder = self.message(message)?;
        if holder.blocks.contains_key(block) {
            return Err(Violation::BlockAgain);
        }
        let tool = match kind {
            BlockKind::ToolInput(call) => Some(call.tool.clone()),
            _ => None,
        };
        let agent = holder.agent.clone();
        holder.blocks.insert(block.clone(), CheckedBlock { kind: kind.kind(), tool: tool.clone(), is_open: true });
        if let Some(tool) = tool
            && self
                .tools
                .insert(tool, CheckedCall { agent, phase: CheckedPhase::Input, sub_agent: CheckedSubAgent::None })
                .is_some()
        {
            return Err(Violation::ToolAgain);
        }
        Ok(())
    }

    fn block_delta(&mut self, message: &Id, block: &Id, kind: BlockType) -> Result<(), Violation> {
        if self.block(message, block)?.kind != kind {
            return Err(Violation::KindDiffers);
        }
        Ok(())
    }

    fn block_ended(&mut self, message: &Id, block: &Id, has_input: bool) -> Result<(), Violation> {
        let block = self.block(message, block)?;
        block.is_open = false;
        if has_input != block.tool.is_some() {
            return Err(Violation::WrongInput);
        }
        let Some(tool) = block.tool.clone() else { return Ok(()) };
        self.step(&tool, |phase| (phase == CheckedPhase::Input).then_some(CheckedPhase::Ready))
    }

    fn tool_ended(&mut self, tool: &Id, ending: &Ending) -> Result<(), Violation> {
        if self.tool(tool)?.sub_agent == CheckedSubAgent::Open {
            return Err(Violation::AgentLeftOpen);
        }
        self.step(tool, |phase| match (phase, ending) {
            (CheckedPhase::Running, _) | (CheckedPhase::Ready | CheckedPhase::Refused, Ending::Cancelled { .. }) => {
                Some(CheckedPhase::Ended)
            }
            _ => None,
        })
    }

    fn agent_started(&mut self, tool: &Id) -> Result<(), Violation> {
        self.step(tool, |phase| (phase == CheckedPhase::Running).then_some(CheckedPhase::Running))?;
        let tool = self.tool(tool)?;
        if tool.sub_agent != CheckedSubAgent::None {
            return Err(Violation::AgentAgain);
        }
        tool.sub_agent = CheckedSubAgent::Open;
        Ok(())
    }

    fn agent_ended(&mut self, tool: &Id) -> Result<(), Violation> {
        if self.tool(tool)?.sub_agent != CheckedSubAgent::Open {
            return Err(Violation::AgentNotOpen);
        }
        if self.messages.values().any(|message| message.is_open && message.agent.as_ref() == Some(tool)) {
            return Err(Violation::MessageLeftOpen);
        }
        if self.tools.values().any(|other| other.phase != CheckedPhase::Ended && other.agent.as_ref() == Some(tool)) {
            return Err(Violation::ToolLeftOpen);
        }
        self.tool(tool)?.sub_agent = CheckedSubAgent::Ended;
        Ok(())
    }

    fn step(&mut self, tool: &Id, next: impl FnOnce(CheckedPhase) -> Option<CheckedPhase>) -> Result<(), Violation> {
        let tool = self.tool(tool)?;
        tool.phase = next(tool.phase).ok_or(Violation::ToolNotThere)?;
        Ok(())
    }

    fn tool(&mut self, tool: &Id) -> Result<&mut CheckedCall, Violation> {
        self.tools.get_mut(tool).ok_or(Violation::UnknownTool)
    }

    fn message(&mut self, message: &Id) -> Result<&mut CheckedMessage, Violation> {
        self.messages.get_mut(message).filter(|message| message.is_open).ok_or(Violation::MessageNotOpen)
    }

    fn block(&mut self, message: &Id, block: &Id) -> Result<&mut CheckedBlock, Violation> {
        let message = self.message(message)?;
        message.blocks.get_mut(block).filter(|block| block.is_open).ok_or(Violation::BlockNotOpen)
    }
}
