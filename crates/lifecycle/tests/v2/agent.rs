//! What an agent says, as actions: as the host's translator makes them, in as few words as possible.

use std::collections::HashMap;

use breakbulk_lifecycle::projection::{part_id, worker_chat};
use breakbulk_lifecycle::{
    Answer, Ask, BlockKind, BlockType, Call, Content, Ending, Event, Formed, Id, Outcome, Writer,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{CHAT, SESSION, World};

/// What happens to a session.
#[derive(Debug, Clone)]
pub(crate) enum Deed {
    /// The agent says something.
    Said(Event),
    /// A client stops the turn.
    Cancel,
    /// A client answers what is asked about a call.
    Answer { tool: String, approved: bool, input: Option<String> },
    /// A client queues a prompt, or takes it back.
    Queue { id: &'static str, takes_back: bool },
}

/// What may happen: anything in any order, but often enough what belongs together.
pub(crate) fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    vec(steps(), 0..40).prop_map(|steps| steps.concat())
}

fn steps() -> impl Strategy<Value = Vec<Deed>> {
    let input = option::of("[x-z]{2}");
    let within_a_turn = |event: &Event| !matches!(event, Event::TurnStarted { .. } | Event::TurnEnded { .. });
    prop_oneof![
        12 => crate::generated_events::event().prop_filter("within a turn", within_a_turn).prop_map(|event| vec![Deed::Said(event)]),
        1 => crate::generated_events::event().prop_map(|event| vec![Deed::Said(event)]),
        1 => Just(vec![Deed::Cancel]),
        4 => (tool(), any::<bool>(), input)
            .prop_map(|(tool, approved, input)| vec![Deed::Answer { tool: tool.to_owned(), approved, input }]),
        2 => (prop::sample::select(&["q", "r", "s"][..]), prop::bool::weighted(0.2))
            .prop_map(|(id, takes_back)| vec![Deed::Queue { id, takes_back }]),
        8 => spoken().prop_map(|events| events.into_iter().map(Deed::Said).collect()),
        8 => called().prop_map(|events| events.into_iter().map(Deed::Said).collect()),
    ]
}

fn tool() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["a", "b", "c", "a~2"][..])
}

fn message() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["m", "n", "o", "p"][..])
}

/// A message, of the agent or of a sub-agent, that is not whole yet.
fn spoken() -> impl Strategy<Value = Vec<Event>> {
    (message(), option::of(tool()), "[0-9]", "[a-z\"]{1,4}", any::<bool>()).prop_map(
        |(message, agent, block, text, is_text)| {
            let said =
                if is_text { Event::text(message, &*block, text) } else { Event::thinking(message, &*block, text) };
            vec![Event::MessageStarted { message: message.into(), agent: agent.map(Id::from) }, said]
        },
    )
}

/// A call in a message, with an input, which is asked about, runs, or begins a sub-agent.
fn called() -> impl Strategy<Value = Vec<Event>> {
    let input = (option::of("[a-z]{1,3}"), option::of("[a-z]{1,3}"));
    (message(), tool(), "[0-9]", input, 0..4).prop_map(|(message, tool, block, (said, whole), then)| {
        let (message, tool, block) = (Id::from(message), Id::from(tool), Id::from(block));
        let kind = BlockKind::ToolInput(Call::new(tool.clone(), "run", "Run"));
        let mut events = vec![Event::BlockStarted { message: message.clone(), block: block.clone(), kind }];
        if let Some(text) = said.clone() {
            let (message, block) = (message.clone(), block.clone());
            events.push(Event::BlockDelta { message, block, kind: BlockType::ToolInput, text });
        }
        events.push(Event::BlockEnded { message, block, input: whole.or(said) });
        match then {
            0 => {}
            1 => events.push(Event::ToolAsked { tool, ask: Ask::default() }),
            2 => events.push(Event::ToolStarted { tool }),
            _ => events.push(Event::AgentStarted { tool, name: "n".to_owned(), task: "t".to_owned() }),
        }
        events
    })
}

/// A session in which all of this has happened.
pub(crate) fn world(deeds: &[Deed]) -> World {
    let mut host = Host { world: World::new(), writer: Writer::new(), turns: 0, turn: Talk::default() };
    for deed in deeds {
        match deed {
            Deed::Said(event) => host.writer.write(event.clone()),
            Deed::Cancel => host.cancel(),
            Deed::Answer { tool, approved, input } => host.answer(tool, *approved, input.as_deref()),
            Deed::Queue { id, takes_back: false } => host.put(
                CHAT,
                json!({"type": "chat/pendingMessageSet", "kind": "queued", "id": id,
                    "message": {"text": format!("{id} later"), "origin": {"kind": "user"}}}),
            ),
            // The host refuses to take back what does not wait.
            Deed::Queue { id, takes_back: true } => {
                let waiting = host.world.now.chats[CHAT].queued_messages.iter().flatten();
                if !waiting.map(|prompt| prompt.id.as_str()).any(|known| known == *id) {
                    continue;
                }
                host.put(CHAT, json!({"type": "chat/pendingMessageRemoved", "kind": "queued", "id": id}));
            }
        }
        host.take();
    }
    host.world
}

struct Host {
    world: World,
    writer: Writer,
    turns: u32,
    turn: Talk,
}

/// What is known of a turn.
#[derive(Default)]
struct Talk {
    lanes: HashMap<Option<Id>, Lane>,
    messages: HashMap<Id, (Option<Id>, Option<Part>)>,
    parts: HashMap<(Id, Id), Part>,
    tools: HashMap<Id, Tool>,
    count: u64,
}

#[derive(Clone)]
struct Lane {
    channel: String,
    turn: String,
}

#[derive(Clone)]
struct Part {
    kind: BlockType,
    id: String,
}

struct Tool {
    call: Call,
    agent: Option<Id>,
    message: String,
    stage: Stage,
    input: Option<String>,
    worker: Option<Value>,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Streaming,
    Pending,
    Running,
    Over,
}

impl Host {
    fn take(&mut self) {
        while let Some(event) = self.writer.poll() {
            self.event(event);
        }
    }

    /// Names are the agent's own within a turn; across turns, adapters make them unique.
    fn unique(&self, id: &Id) -> Id {
        Id::from(format!("{id}.{}", self.turns))
    }

    fn put(&mut self, channel: &str, action: Value) {
        self.world.json(channel, action);
    }

    fn cancel(&mut self) {
        let Some(lane) = self.turn.lanes.remove(&None) else { return };
        self.put(CHAT, crate::world::actions::cancelled(&lane.turn));
        let asked: Vec<Id> = self.asked(|tool| tool.agent.is_none());
        for id in asked {
            self.turn.tools.get_mut(&id).unwrap().stage = Stage::Over;
            self.put(SESSION, crate::world::actions::not_needed(&lane.channel, &lane.turn, &id));
        }
    }

    fn asked(&self, of: impl Fn(&Tool) -> bool) -> Vec<Id> {
        let asked = self.turn.tools.iter().filter(|(_, tool)| tool.stage == Stage::Pending && of(tool));
        let mut asked: Vec<Id> = asked.map(|(id, _)| id.clone()).collect();
        asked.sort();
        asked
    }

    fn answer(&mut self, tool: &str, approved: bool, input: Option<&str>) {
        let id = self.unique(&Id::from(tool));
        let Some(tool) = self.turn.tools.get_mut(&id).filter(|tool| tool.stage == Stage::Pending) else { return };
        let Some(lane) = self.turn.lanes.get(&tool.agent).cloned() else { return };
        tool.stage = if approved { Stage::Running } else { Stage::Over };
        let input = input.filter(|_| approved);
        if let Some(input) = input {
            tool.input = Some(input.to_owned());
        }
        let mut action = crate::world::actions::confirmed(&lane.turn, &id, approved);
        action["editedToolInput"] = json!(input);
        self.put(&lane.channel, action);
        self.put(SESSION, crate::world::actions::not_needed(&lane.channel, &lane.turn, &id));
        let answer = if approved { Answer::yes() } else { Answer::no() };
        let tool = Id::from(id.rsplit_once('.').unwrap().0);
        self.writer.write(Event::ToolAnswered { tool, answer });
    }

    fn event(&mut self, event: Formed) {
        match event.into_event() {
            Event::TurnStarted { turn } => {
                self.turns += 1;
                let turn = format!("{turn}{}", self.turns);
                self.turn = Talk::default();
                let mut begun = crate::world::actions::turn(&turn, "a prompt");
                let waiting = self.world.now.chats[CHAT].queued_messages.as_ref().map(|waiting| waiting[0].clone());
                if let Some(first) = waiting {
                    begun["queuedMessageId"] = json!(first.id);
                    begun["message"] = serde_json::to_value(first.message).unwrap();
                }
                self.put(CHAT, begun);
                self.turn.lanes.insert(None, Lane { channel: CHAT.to_owned(), turn });
            }
            Event::MessageStarted { message, agent } => {
                let agent = agent.map(|agent| self.unique(&agent));
                self.turn.messages.insert(self.unique(&message), (agent, None));
            }
            Event::BlockStarted { message, block, kind } => self.block_started(message, block, kind),
            Event::BlockDelta { message, block, text, .. } => {
                let message = self.unique(&message);
                let Some(lane) = self.lane_of(&message) else { return };
                let Some(part) = self.turn.parts.get(&(message, block)).cloned() else { return };
                if part.kind != BlockType::Redacted && !text.is_empty() {
                    self.put(&lane.channel, part.delta(&lane, &text, None));
                }
            }
            Event::BlockEnded { message, block, input } => {
                let message = self.unique(&message);
                let lane = self.lane_of(&message);
                let Some(part) = self.turn.parts.remove(&(message.clone(), block)) else { return };
                if let (Some(tool), Some(input)) = (self.turn.tools.get_mut(part.id.as_str()), input) {
                    tool.input = Some(input);
                }
                if let Some(lane) = lane {
                    self.put(&lane.channel, part.delta(&lane, "", Some((&message, "block"))));
                }
            }
            Event::MessageEnded { message } => {
                let message = self.unique(&message);
                let Some((agent, Some(part))) = self.turn.messages.remove(&message) else { return };
                if let Some(lane) = self.turn.lanes.get(&agent).cloned() {
                    self.put(&lane.channel, part.delta(&lane, "", Some((&message, "message"))));
                }
            }
            Event::ToolAsked { tool, .. } => {
                let tool = self.unique(&tool);
                let Some((tool, lane)) = self.heard(&tool) else { return };
                if tool.stage == Stage::Over {
                    return;
                }
                tool.stage = Stage::Pending;
                let mut ready = tool.ready(&lane);
                ready["editable"] = json!(true);
                let input = tool.input.clone().unwrap_or_default();
                let needed = crate::world::actions::needed(&lane.channel, &lane.turn, &tool.call.tool, &input);
                self.put(&lane.channel, ready);
                self.put(SESSION, needed);
            }
            Event::ToolAnswered { tool, answer } => {
                let tool = self.unique(&tool);
                let Some((tool, lane)) = self.heard(&tool) else { return };
                if tool.stage != Stage::Pending {
                    return;
                }
                tool.stage = if answer.allows() { Stage::Running } else { Stage::Over };
                let mut confirmed = crate::world::actions::confirmed(&lane.turn, &tool.call.tool, answer.allows());
                if answer == Answer::Withdrawn {
                    confirmed["reason"] = json!("skipped");
                }
                let no_need = crate::world::actions::not_needed(&lane.channel, &lane.turn, &tool.call.tool);
                self.put(&lane.channel, confirmed);
                self.put(SESSION, no_need);
            }
            Event::ToolStarted { tool } => {
                let tool = self.unique(&tool);
                let Some((tool, lane)) = self.heard(&tool) else { return };
                if tool.stage == Stage::Streaming {
                    tool.stage = Stage::Running;
                    let mut ready = tool.ready(&lane);
                    ready["confirmed"] = json!("not-needed");
                    self.put(&lane.channel, ready);
                }
            }
            Event::ToolOutput { tool, content } => {
                let tool = self.unique(&tool);
                let Some((tool, lane)) = self.heard(&tool) else { return };
                if let Some(show) = tool.show(&lane, &content) {
                    self.put(&lane.channel, show);
                }
            }
            Event::ToolEnded { tool, ending } => self.tool_ended(&tool, ending),
            Event::AgentStarted { tool, .. } => {
                let id = self.unique(&tool);
                let Some((tool, lane)) = self.heard(&id) else { return };
                let chat = worker_chat(&lane.channel, &lane.turn, &id);
                tool.worker = Some(json!({"type": "subagent", "resource": chat, "title": "A worker"}));
                let show = tool.show(&lane, &[]);
                self.world.worker(&chat, &lane.channel, &id);
                self.put(&chat, crate::world::actions::turn(&id, "a task"));
                if let Some(show) = show {
                    self.put(&lane.channel, show);
                }
                let turn = id.to_string();
                self.turn.lanes.insert(Some(id), Lane { channel: chat, turn });
            }
            Event::AgentEnded { tool, outcome } => {
                if let Some(lane) = self.turn.lanes.remove(&Some(self.unique(&tool))) {
                    self.end(&lane, outcome);
                }
            }
            Event::TurnEnded { outcome, .. } => {
                if let Some(lane) = self.turn.lanes.get(&None).cloned() {
                    self.end(&lane, outcome);
                }
                self.turn = Talk::default();
            }
            Event::Usage(_) | Event::Resumable { .. } | Event::ModeChanged { .. } | Event::Notice { .. } => {}
        }
    }

    fn block_started(&mut self, message: Id, block: Id, kind: BlockKind) {
        let message = self.unique(&message);
        let number = self.turn.count;
        self.turn.count += 1;
        let call = match &kind {
            BlockKind::ToolInput(call) => Some(Call { tool: self.unique(&call.tool), ..call.clone() }),
            _ => None,
        };
        let id = call.as_ref().map_or_else(|| part_id(&message, number, kind.kind()), |call| call.tool.to_string());
        let Some((agent, last)) = self.turn.messages.get_mut(&message) else { return };
        let part = Part { kind: kind.kind(), id: id.clone() };
        *last = Some(part.clone());
        let agent = agent.clone();
        self.turn.parts.insert((message.clone(), block), part);
        let lane = self.turn.lanes.get(&agent).cloned();
        if let Some(call) = call {
            if let Some(lane) = &lane {
                let mut start = crate::world::actions::call(&lane.turn, &message, &call.tool);
                start["toolName"] = json!(call.name);
                self.put(&lane.channel, start);
            }
            let tool =
                Tool { agent, message: message.to_string(), stage: Stage::Streaming, input: None, worker: None, call };
            self.turn.tools.insert(tool.call.tool.clone(), tool);
        } else if let Some(lane) = lane {
            let action = match kind {
                BlockKind::Text => crate::world::actions::text(&lane.turn, &id),
                _ => crate::world::actions::thinking(&lane.turn, &id),
            };
            self.put(&lane.channel, action);
        }
    }

    fn tool_ended(&mut self, tool: &Id, ending: Ending) {
        let tool = self.unique(tool);
        let Some((tool, lane)) = self.heard(&tool) else { return };
        let before = std::mem::replace(&mut tool.stage, Stage::Over);
        let result = match &ending {
            Ending::Done(result) => json!({"success": result.success, "pastTenseMessage": result.summary,
                "content": contents(tool.worker.as_ref(), &result.content),
                "error": result.error.as_ref().map(|message| json!({"message": message}))}),
            Ending::Cancelled { reason } => json!({"success": false, "pastTenseMessage": "Stopped",
                "content": contents(tool.worker.as_ref(), &[]),
                "error": {"message": reason.as_deref().unwrap_or("The call was stopped.")}}),
        };
        let id = tool.call.tool.clone();
        match before {
            Stage::Over => {}
            Stage::Running => {
                let complete = json!({"type": "chat/toolCallComplete", "turnId": lane.turn, "toolCallId": *id,
                    "result": result});
                self.put(&lane.channel, complete);
            }
            Stage::Streaming | Stage::Pending => {
                let ready = tool.ready(&lane);
                if before == Stage::Streaming {
                    self.put(&lane.channel, ready);
                } else {
                    self.put(SESSION, crate::world::actions::not_needed(&lane.channel, &lane.turn, &id));
                }
                let mut confirmed = crate::world::actions::confirmed(&lane.turn, &id, false);
                confirmed["reason"] = json!("skipped");
                if let Ending::Cancelled { reason: Some(reason) } = ending {
                    confirmed["reasonMessage"] = json!(reason);
                }
                self.put(&lane.channel, confirmed);
            }
        }
    }

    fn end(&mut self, lane: &Lane, outcome: Outcome) {
        let action = match outcome {
            Outcome::Complete => crate::world::actions::complete(&lane.turn),
            Outcome::Cancelled => crate::world::actions::cancelled(&lane.turn),
            Outcome::Failed(failure) => crate::world::actions::failed(&lane.turn, &failure.kind, &failure.message),
        };
        self.put(&lane.channel, action);
    }

    fn lane_of(&self, message: &Id) -> Option<Lane> {
        self.turn.lanes.get(&self.turn.messages.get(message)?.0).cloned()
    }

    fn heard(&mut self, tool: &Id) -> Option<(&mut Tool, Lane)> {
        let tool = self.turn.tools.get_mut(tool)?;
        let lane = self.turn.lanes.get(&tool.agent)?.clone();
        Some((tool, lane))
    }
}

impl Tool {
    fn ready(&self, lane: &Lane) -> Value {
        json!({"type": "chat/toolCallReady", "turnId": lane.turn, "toolCallId": *self.call.tool,
            "invocationMessage": self.call.title, "toolInput": self.input,
            "_meta": {"breakbulk": {"message": self.message}}})
    }

    fn show(&self, lane: &Lane, content: &[Content]) -> Option<Value> {
        (self.stage == Stage::Running).then(|| {
            json!({"type": "chat/toolCallContentChanged", "turnId": lane.turn, "toolCallId": *self.call.tool,
                "content": contents(self.worker.as_ref(), content).unwrap_or_default()})
        })
    }
}

impl Part {
    fn delta(&self, lane: &Lane, content: &str, mark: Option<(&Id, &str)>) -> Value {
        let mut action = match self.kind {
            BlockType::Text => crate::world::actions::delta(&lane.turn, &self.id, content),
            BlockType::Thinking | BlockType::Redacted => crate::world::actions::thought(&lane.turn, &self.id, content),
            BlockType::ToolInput if content.is_empty() => {
                json!({"type": "chat/toolCallDelta", "turnId": lane.turn, "toolCallId": self.id})
            }
            BlockType::ToolInput => crate::world::actions::input(&lane.turn, &self.id, content),
        };
        if let Some((message, ended)) = mark {
            action["_meta"] = json!({"breakbulk": {"message": **message, "ended": ended}});
        }
        action
    }
}

fn contents(worker: Option<&Value>, content: &[Content]) -> Option<Vec<Value>> {
    let texts = content.iter().filter_map(|content| match content {
        Content::Text(text) => Some(json!({"type": "text", "text": text})),
        _ => None,
    });
    let all: Vec<Value> = worker.cloned().into_iter().chain(texts).collect();
    Some(all).filter(|all| !all.is_empty())
}
