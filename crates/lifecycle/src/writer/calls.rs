//! The calls of a turn: where each of them is.

use std::collections::{BTreeSet, HashMap};

use super::names::Names;
use super::{FormedEvents, Stray};
use crate::{Answer, Ask, Call, Content, Ending, Event, Id, Outcome};

/// All calls of a turn, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Calls {
    all: Vec<TrackedCall>,
    /// The newest call of each name that the agent gave.
    by_name: HashMap<Id, usize>,
    names: Names,
}

#[derive(Debug)]
struct TrackedCall {
    /// As the agent calls it.
    given: Id,
    /// As we do.
    name: Id,
    /// The call whose sub-agent made this one.
    agent: Option<usize>,
    phase: CallPhase,
    sub_agent: SubAgentPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallPhase {
    /// Its input is being said.
    Input,
    /// Its input is whole.
    Ready,
    /// Somebody is asked.
    Asked {
        running: bool,
    },
    /// It must not run; all that is left for it is to end.
    Refused,
    Running,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubAgentPhase {
    None,
    Open,
    Ended,
}

impl Calls {
    /// A call begins. It gets a name of its own.
    pub(super) fn begin(&mut self, call: &mut Call, agent: Option<usize>) -> usize {
        let at = self.all.len();
        self.by_name.insert(call.tool.clone(), at);
        let given = call.tool.clone();
        call.tool = self.names.fresh(&given);
        self.all.push(TrackedCall {
            given,
            name: call.tool.clone(),
            agent,
            phase: CallPhase::Input,
            sub_agent: SubAgentPhase::None,
        });
        at
    }

    /// The call that the agent means by this name, if it is not over.
    pub(super) fn find(&self, given: &Id) -> Result<usize, Stray> {
        let at = *self.by_name.get(given).ok_or(Stray)?;
        let state = self.all.get(at).ok_or(Stray)?;
        (state.phase != CallPhase::Ended).then_some(at).ok_or(Stray)
    }

    /// What the agent calls it.
    pub(super) fn given(&self, name: &Id) -> Option<Id> {
        self.all.iter().rev().find(|state| state.name == *name).map(|state| state.given.clone())
    }

    pub(super) fn name(&self, at: usize) -> Option<Id> {
        self.all.get(at).map(|state| state.name.clone())
    }

    /// Its input is whole.
    pub(super) fn ready(&mut self, at: usize) {
        if let Some(state) = self.all.get_mut(at)
            && state.phase == CallPhase::Input
        {
            state.phase = CallPhase::Ready;
        }
    }

    pub(super) fn ask(&mut self, at: usize, ask: Ask, out: &mut FormedEvents) -> Result<(), Stray> {
        let state = self.state(at)?;
        state.phase = match state.phase {
            CallPhase::Refused => return Err(Stray),
            CallPhase::Running | CallPhase::Asked { running: true } => CallPhase::Asked { running: true },
            _ => CallPhase::Asked { running: false },
        };
        out.push(Event::ToolAsked { tool: state.name.clone(), ask });
        Ok(())
    }

    /// Answers what was asked.
    pub(super) fn answer(&mut self, at: usize, answer: Answer, out: &mut FormedEvents) -> Result<(), Stray> {
        let state = self.state(at)?;
        state.phase = match state.phase {
            CallPhase::Asked { .. } if !answer.allows() => CallPhase::Refused,
            CallPhase::Asked { running: true } => CallPhase::Running,
            CallPhase::Asked { running: false } => CallPhase::Ready,
            _ => return Err(Stray),
        };
        out.push(Event::ToolAnswered { tool: state.name.clone(), answer });
        Ok(())
    }

    /// Nobody can answer any more what was asked.
    pub(super) fn withdraw(&mut self, at: usize, out: &mut FormedEvents) {
        // Where nothing was asked there is nothing to do.
        let _ = self.answer(at, Answer::Withdrawn, out);
    }

    /// The call runs. If a question about it was still open, the agent knows the answer.
    pub(super) fn start(&mut self, at: usize, out: &mut FormedEvents) -> Result<(), Stray> {
        if self.state(at)?.phase == CallPhase::Running {
            return Err(Stray);
        }
        self.run(at, out)
    }

    /// Output means that it runs, but not that somebody has allowed it: some agents show a preview while they ask.
    pub(super) fn output(&mut self, at: usize, content: Vec<Content>, out: &mut FormedEvents) -> Result<(), Stray> {
        if is_asked(self.state(at)?.phase) {
            return Err(Stray);
        }
        self.run(at, out)?;
        out.push(Event::ToolOutput { tool: self.state(at)?.name.clone(), content });
        Ok(())
    }

    /// Brings a call to a phase in which it may end, and returns its ending. A refused call has not run, and neither
    /// has one that fails while a question about it is open.
    pub(super) fn prepare_end(&mut self, at: usize, ending: Ending, out: &mut FormedEvents) -> Result<Ending, Stray> {
        let phase = self.state(at)?.phase;
        match ending {
            Ending::Done(result) if phase == CallPhase::Refused || (is_asked(phase) && !result.success) => {
                self.withdraw(at, out);
                Ok(Ending::Cancelled { reason: Some(result.error.unwrap_or(result.summary)) })
            }
            Ending::Done(_) => self.run(at, out).map(|()| ending),
            Ending::Cancelled { .. } => {
                self.withdraw(at, out);
                Ok(ending)
            }
        }
    }

    pub(super) fn end(&mut self, at: usize, ending: Ending, out: &mut FormedEvents) {
        let Ok(state) = self.state(at) else { return };
        state.phase = CallPhase::Ended;
        out.push(Event::ToolEnded { tool: state.name.clone(), ending });
    }

    pub(super) fn start_sub_agent(
        &mut self,
        at: usize,
        name: String,
        task: String,
        out: &mut FormedEvents,
    ) -> Result<(), Stray> {
        if self.state(at)?.sub_agent != SubAgentPhase::None {
            return Err(Stray);
        }
        self.run(at, out)?;
        let state = self.state(at)?;
        state.sub_agent = SubAgentPhase::Open;
        out.push(Event::AgentStarted { tool: state.name.clone(), name, task });
        Ok(())
    }

    pub(super) fn has_sub_agent(&self, at: usize) -> bool {
        self.all.get(at).is_some_and(|state| state.sub_agent == SubAgentPhase::Open)
    }

    /// Says that a sub-agent has ended, if it was at work.
    pub(super) fn end_sub_agent(&mut self, at: usize, outcome: Outcome, out: &mut FormedEvents) {
        if let Some(state) = self.all.get_mut(at)
            && state.sub_agent == SubAgentPhase::Open
        {
            state.sub_agent = SubAgentPhase::Ended;
            out.push(Event::AgentEnded { tool: state.name.clone(), outcome });
        }
    }

    /// The calls of a speaker that are not over, and of those that it set to work.
    pub(super) fn below(&self, speaker: Option<usize>) -> BTreeSet<usize> {
        let mut below = BTreeSet::new();
        for (at, state) in self.all.iter().enumerate() {
            let is_below = state.agent == speaker || state.agent.is_some_and(|agent| below.contains(&agent));
            if is_below && state.phase != CallPhase::Ended {
                below.insert(at);
            }
        }
        below
    }

    /// Brings a call that may run to where it runs.
    fn run(&mut self, at: usize, out: &mut FormedEvents) -> Result<(), Stray> {
        if is_asked(self.state(at)?.phase) {
            self.answer(at, Answer::yes(), out)?;
        }
        let state = self.state(at)?;
        match state.phase {
            CallPhase::Refused => return Err(Stray),
            CallPhase::Running => {}
            _ => {
                state.phase = CallPhase::Running;
                out.push(Event::ToolStarted { tool: state.name.clone() });
            }
        }
        Ok(())
    }

    /// A call that is not over.
    fn state(&mut self, at: usize) -> Result<&mut TrackedCall, Stray> {
        self.all.get_mut(at).filter(|state| state.phase != CallPhase::Ended).ok_or(Stray)
    }
}

const fn is_asked(phase: CallPhase) -> bool {
    matches!(phase, CallPhase::Asked { .. })
}
