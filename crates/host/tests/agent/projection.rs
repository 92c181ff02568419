//! What the translator logs is enough for other protocols: v2's model, made from the log alone, holds what AHP's state holds.

use std::collections::HashMap;
use std::time::Duration;

use ahp_types::actions::{ChatTurnCancelledAction, StateAction};
use ahp_types::state::SessionInputRequest;
use breakbulk_host::test_support::agent::{Command, Step, Translator};
use breakbulk_lifecycle::claude::{self, Control, Limits, Part, Prompt, Signal};
use breakbulk_lifecycle::v2::{Model, Projector};
use breakbulk_lifecycle::{Answer, BlockKind, Call, Event, Formed, Id, Outcome, Writer};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use crate::generated_events;
use crate::oracle::{of_ahp, of_model};
use crate::test_agent::{Reply, confirmed, turn_started};
use crate::world::{CHAT, SESSION, World, apply, config};

/// What a client does after an event.
#[derive(Debug, Clone, Copy)]
enum Act {
    Nothing,
    Allow,
    Deny,
    Cancel,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![20 => Just(Act::Nothing), 4 => Just(Act::Allow), 2 => Just(Act::Deny), 1 => Just(Act::Cancel)]
}

/// Some turns, each with what the agent says in it.
fn turns() -> impl Strategy<Value = Vec<Vec<(Event, Act)>>> {
    let within_a_turn = |event: &Event| !matches!(event, Event::TurnStarted { .. } | Event::TurnEnded { .. });
    vec(vec((generated_events::event().prop_filter("within a turn", within_a_turn), act()), 0..40), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_every_entry_v2_holds_what_ahp_holds_whatever_the_agent_says(turns in turns()) {
        let mut host = Host::new();
        for (number, said) in turns.into_iter().enumerate() {
            let turn = Id::from(format!("t{number}"));
            host.begin(&turn);
            for (event, act) in said {
                host.say(renamed(event, number));
                host.act(act);
            }
            host.say(Event::TurnEnded { turn, outcome: Outcome::Complete });
        }
        host.compare();
    }
}

#[test]
fn after_every_entry_of_each_recording_v2_holds_what_ahp_holds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../lifecycle/fixtures");
    let mut recordings = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "ndjson") {
            recorded(&std::fs::read_to_string(&path).unwrap()).compare();
            recordings += 1;
        }
    }
    assert_eq!(recordings, 9);
}

#[test]
fn an_input_that_comes_in_one_piece_is_told_when_its_block_ends() {
    let mut host = Host::new();
    host.begin(&"t".into());
    let kind = BlockKind::ToolInput(Call::new("a", "run", "Run"));
    host.say(Event::BlockStarted { message: "m".into(), block: "0".into(), kind });
    host.say(Event::BlockEnded { message: "m".into(), block: "0".into(), input: Some("{\"x\":1}".into()) });
    let mut model = Model::new("s1");
    for event in host.world.events().into_iter().flatten() {
        assert!(model.apply(&event));
    }
    let block = &model.state().current.as_ref().unwrap().blocks[0];
    assert_eq!(block.tool.as_ref().unwrap().input.as_deref(), Some("{\"x\":1}"));
}

/// A translator whose actions are logged.
struct Host {
    world: World,
    translator: Translator,
    writer: Writer,
}

impl Host {
    fn new() -> Self {
        Self { world: World::new(), translator: Translator::new(SESSION, CHAT), writer: Writer::new() }
    }

    fn begin(&mut self, turn: &Id) {
        self.client(CHAT, turn_started(turn, "go"));
        self.say(Event::TurnStarted { turn: turn.clone() });
    }

    fn say(&mut self, event: Event) {
        self.writer.write(event);
        while let Some(event) = self.writer.poll() {
            self.event(event);
        }
    }

    fn event(&mut self, event: Formed) {
        let steps = self.translator.event(event, Duration::from_millis(7));
        self.steps(steps);
    }

    fn steps(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Act { channel, action } => self.world.act(&channel, *action),
                Step::Open(worker) => {
                    self.world.worker(&worker.chat, &worker.parent, &worker.tool);
                    self.world.act(&worker.chat, turn_started(&worker.turn, &worker.task));
                }
                Step::Begin { turn } => self.world.act(CHAT, turn_started(&turn, "by itself")),
                Step::Tell(_) | Step::Remember { .. } => {}
            }
        }
    }

    fn act(&mut self, act: Act) {
        let reply = match act {
            Act::Nothing => return,
            Act::Allow => Reply::Allow,
            Act::Deny => Reply::Deny,
            Act::Cancel => {
                let Some(active) = &self.world.now.chats[CHAT].active_turn else { return };
                let action = ChatTurnCancelledAction { turn_id: active.id.clone(), duration: 1, meta: None };
                return drop(self.client(CHAT, StateAction::ChatTurnCancelled(action)));
            }
        };
        let asked = self.world.now.session.input_needed.iter().flatten().next_back().cloned();
        let Some(SessionInputRequest::ToolConfirmation(request)) = asked else { return };
        let call = serde_json::to_value(&request.tool_call).unwrap();
        let action = confirmed(&request.turn_id, call["toolCallId"].as_str().unwrap(), &reply).unwrap();
        if let Some(Command::Answer { tool, answer }) = self.client(&request.chat, action)
            && let Some(tool) = self.writer.given(&tool)
        {
            self.say(Event::ToolAnswered { tool, answer });
        }
    }

    fn client(&mut self, channel: &str, action: StateAction) -> Option<Command> {
        self.world.act(channel, action.clone());
        let reaction = self.translator.client(channel, action, Duration::ZERO);
        self.steps(reaction.steps);
        reaction.command
    }

    /// Compares what both hold after each entry of the log.
    fn compare(&self) {
        let mut projector = Projector::new(config());
        let mut model = Model::new("s1");
        for (entry, state) in self.world.log.iter().zip(&self.world.then) {
            for event in apply(&mut projector, entry) {
                assert!(model.apply(&event), "{event:?}");
            }
            let ahp = of_ahp(&state.chats, CHAT);
            assert_eq!(of_model(model.state(), &ahp), ahp, "after {entry:?}");
            let runs = state.chats.get(CHAT).is_some_and(|chat| chat.active_turn.is_some());
            assert_eq!(model.state().running, runs);
        }
    }
}

/// The names of an agent do not come again in a later turn.
fn renamed(event: Event, turn: usize) -> Event {
    let new = |id: Id| Id::from(format!("{id}.{turn}"));
    match event {
        Event::MessageStarted { message, agent } => {
            Event::MessageStarted { message: new(message), agent: agent.map(new) }
        }
        Event::BlockStarted { message, block, kind } => {
            let kind = match kind {
                BlockKind::ToolInput(call) => BlockKind::ToolInput(Call { tool: new(call.tool), ..call }),
                kind => kind,
            };
            Event::BlockStarted { message: new(message), block, kind }
        }
        Event::BlockDelta { message, block, kind, text } => {
            Event::BlockDelta { message: new(message), block, kind, text }
        }
        Event::BlockEnded { message, block, input } => Event::BlockEnded { message: new(message), block, input },
        Event::MessageEnded { message } => Event::MessageEnded { message: new(message) },
        Event::ToolAsked { tool, ask } => Event::ToolAsked { tool: new(tool), ask },
        Event::ToolAnswered { tool, answer } => Event::ToolAnswered { tool: new(tool), answer },
        Event::ToolStarted { tool } => Event::ToolStarted { tool: new(tool) },
        Event::ToolOutput { tool, content } => Event::ToolOutput { tool: new(tool), content },
        Event::ToolEnded { tool, ending } => Event::ToolEnded { tool: new(tool), ending },
        Event::AgentStarted { tool, name, task } => Event::AgentStarted { tool: new(tool), name, task },
        Event::AgentEnded { tool, outcome } => Event::AgentEnded { tool: new(tool), outcome },
        other => other,
    }
}

/// Plays a recording of the Claude Code program. The turns of prompts begin in the chat when they begin in the program.
fn recorded(text: &str) -> Host {
    let mut host = Host::new();
    let mut claude = claude::Conversation::new("c", Limits::default());
    let (mut prompts, mut asked) = (0, HashMap::new());
    for line in text.lines() {
        match line.split_once(' ').unwrap() {
            ("<<<", line) => drop(claude.receive(line.as_bytes())),
            (_, line) => written(&mut claude, &serde_json::from_str(line).unwrap(), &mut prompts, &asked),
        }
        while let Some(signal) = claude.poll_signal() {
            if let Signal::Permission(permission) = signal {
                asked.insert(permission.request.to_string(), permission.tool);
            }
        }
        while let Some(event) = claude.poll_event() {
            if let Event::TurnStarted { turn } = &event
                && turn.starts_with("turn-")
            {
                host.client(CHAT, turn_started(turn, "go"));
            }
            host.say(event);
        }
    }
    host
}

fn written(claude: &mut claude::Conversation, line: &Value, prompts: &mut u32, asked: &HashMap<String, Id>) {
    match line["type"].as_str().unwrap() {
        "user" => {
            *prompts += 1;
            let uuid = line["uuid"].as_str().map_or_else(|| format!("uuid-{prompts}"), str::to_owned);
            let content = vec![Part::Text("go".to_owned())];
            claude.send(Prompt { turn: format!("turn-{prompts}").into(), uuid, priority: None, content });
        }
        "control_request" if line["request"]["subtype"] == "interrupt" => drop(claude.request(Control::Interrupt)),
        "control_response" => {
            let response = &line["response"];
            let allows = response["response"]["behavior"] == "allow";
            let answer = if allows { Answer::yes() } else { Answer::no() };
            claude.answer(&asked[response["request_id"].as_str().unwrap()], answer).unwrap();
        }
        _ => {}
    }
}
