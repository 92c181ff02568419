//! Whatever an agent says and clients do, the reducers never find an action out of place.

use std::time::Duration;

use ahp_types::actions::{ChatTurnCancelledAction, StateAction};
use ahp_types::state::{
    ChatState, ResponsePart, ToolCallConfirmationReason, ToolCallState, ToolResultContent, TurnState,
};
use breakbulk_host::test_support::agent::{Command, Step, Translator};
use breakbulk_lifecycle::{Answer, Ask, BlockKind, Call, Ending, Event, Failure, Formed, Outcome, ToolResult, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::generated_events;
use crate::test_agent::{CHAT, Reply, SESSION, Screen, calls, confirmed, text, turn_started};

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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_action_is_applied_whatever_the_agent_says(said in vec((generated_events::event(), act()), 0..80)) {
        let mut play = Play::new();
        for (event, act) in said {
            play.say(event);
            play.act(act);
        }
        play.end();
        for chat in play.screen.chats.values() {
            prop_assert!(chat.active_turn.is_none());
        }
        prop_assert!(play.screen.asked().is_empty());
    }
}

/// A translator between an agent that says anything and the official reducers.
struct Play {
    screen: Screen,
    translator: Translator,
    writer: Writer,
    answers: Vec<Answer>,
}

impl Play {
    fn new() -> Self {
        let (screen, translator) = (Screen::new(), Translator::new(SESSION, CHAT));
        Self { screen, translator, writer: Writer::new(), answers: Vec::new() }
    }

    fn say(&mut self, event: Event) {
        // A turn begins in the chat before the agent hears of it.
        if let Event::TurnStarted { turn } = &event
            && self.writer.turn() != Some(turn)
        {
            self.writer.end(Outcome::Cancelled);
            self.drain();
            self.client(CHAT, turn_started(turn, "go"));
        }
        self.writer.write(event);
        self.drain();
    }

    fn end(&mut self) {
        self.writer.end(Outcome::Complete);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(event) = self.writer.poll() {
            self.event(event);
        }
    }

    fn event(&mut self, event: Formed) {
        for step in self.translator.event(event, Duration::from_millis(7)) {
            self.screen.step(&step);
        }
    }

    fn act(&mut self, act: Act) {
        let reply = match act {
            Act::Nothing => return,
            Act::Allow => Reply::Allow,
            Act::Deny => Reply::Deny,
            Act::Cancel => return self.cancel(),
        };
        if let Some((chat, turn, tool)) = self.screen.asked().pop() {
            self.client(&chat, confirmed(&turn, &tool, &reply).unwrap());
        }
    }

    fn cancel(&mut self) {
        if let Some(active) = &self.screen.chat().active_turn {
            let action = ChatTurnCancelledAction { turn_id: active.id.clone(), duration: 1, meta: None };
            self.client(CHAT, StateAction::ChatTurnCancelled(action));
        }
    }

    fn client(&mut self, channel: &str, action: StateAction) {
        self.screen.apply(channel, &action);
        let heard = self.translator.client(channel, action, Duration::ZERO);
        heard.steps.iter().for_each(|step: &Step| self.screen.step(step));
        if let Some(Command::Answer { answer, .. }) = heard.command {
            self.answers.push(answer);
        }
    }

    fn chat(&self) -> &ChatState {
        self.screen.chat()
    }
}

fn begun() -> Play {
    let mut play = Play::new();
    play.say(Event::TurnStarted { turn: "t".into() });
    play
}

fn call(play: &mut Play, message: &str, tool: &str) {
    let kind = BlockKind::ToolInput(Call::new(tool, "run", "Run"));
    play.say(Event::BlockStarted { message: message.into(), block: tool.into(), kind });
    play.say(Event::BlockEnded { message: message.into(), block: tool.into(), input: Some("{}".into()) });
}

fn done(tool: &str) -> Event {
    Event::ToolEnded { tool: tool.into(), ending: Ending::Done(ToolResult::text("Ran it", "out")) }
}

#[test]
fn text_around_calls_stays_in_the_order_in_which_it_was_said() {
    let mut play = begun();
    play.say(Event::text("m", "0", "before"));
    call(&mut play, "m", "a");
    play.say(Event::text("m", "1", "between"));
    play.say(done("a"));
    play.say(Event::text("n", "0", "after"));
    play.end();
    let parts = &play.chat().turns[0].response_parts;
    assert!(matches!(
        &parts[..],
        [ResponsePart::Markdown(_), ResponsePart::ToolCall(_), ResponsePart::Markdown(_), ResponsePart::Markdown(_)]
    ));
    assert_eq!(text(parts), "beforebetweenafter");
}

#[test]
fn a_call_that_needs_no_answer_runs_as_not_needed() {
    let mut play = begun();
    call(&mut play, "m", "a");
    play.say(done("a"));
    play.end();
    let [ToolCallState::Completed(call)] = calls(&play.chat().turns[0].response_parts)[..] else { panic!() };
    assert_eq!(call.confirmed, ToolCallConfirmationReason::NotNeeded);
}

#[test]
fn an_agent_that_answers_itself_is_seen_to_have_a_setting() {
    let mut play = begun();
    call(&mut play, "m", "a");
    play.say(Event::ToolAsked { tool: "a".into(), ask: Ask::default() });
    play.say(Event::ToolStarted { tool: "a".into() });
    play.say(done("a"));
    play.end();
    let [ToolCallState::Completed(call)] = calls(&play.chat().turns[0].response_parts)[..] else { panic!() };
    assert_eq!(call.confirmed, ToolCallConfirmationReason::Setting);
}

#[test]
fn a_running_call_may_be_asked_about_again_with_the_input_that_was_edited() {
    let mut play = begun();
    call(&mut play, "m", "a");
    play.say(Event::ToolAsked { tool: "a".into(), ask: Ask::default() });
    let (chat, turn, tool) = play.screen.asked().pop().unwrap();
    play.client(&chat, confirmed(&turn, &tool, &Reply::Edit("[1]".into())).unwrap());
    play.say(Event::ToolAnswered { tool: "a".into(), answer: Answer::yes() });
    play.say(Event::ToolStarted { tool: "a".into() });
    play.say(Event::ToolAsked { tool: "a".into(), ask: Ask::default() });
    play.act(Act::Deny);
    play.say(done("a"));
    play.end();
    assert_eq!(play.answers, [Answer::Allowed { input: Some("[1]".into()), choice: None }, Answer::no()]);
    let [ToolCallState::Cancelled(call)] = calls(&play.chat().turns[0].response_parts)[..] else { panic!() };
    assert_eq!(serde_json::to_value(&call.tool_input).unwrap(), "[1]");
}

#[test]
fn a_late_answer_is_told_to_nobody() {
    let mut play = begun();
    call(&mut play, "m", "a");
    play.say(Event::ToolAsked { tool: "a".into(), ask: Ask::default() });
    let (_, turn, tool) = play.screen.asked().pop().unwrap();
    play.say(Event::ToolAnswered { tool: "a".into(), answer: Answer::Withdrawn });
    let heard = play.translator.client(CHAT, confirmed(&turn, &tool, &Reply::Allow).unwrap(), Duration::ZERO);
    assert_eq!(heard, breakbulk_host::test_support::agent::Reaction::default());
}

#[test]
fn a_sub_agent_is_heard_in_a_chat_of_its_own_to_which_its_call_points() {
    let mut play = begun();
    call(&mut play, "m", "a");
    play.say(Event::AgentStarted { tool: "a".into(), name: "scout".into(), task: "look".into() });
    play.say(Event::MessageStarted { message: "n".into(), agent: Some("a".into()) });
    play.say(Event::text("n", "0", "found it"));
    play.say(done("a"));
    play.end();
    let [ToolCallState::Completed(call)] = calls(&play.chat().turns[0].response_parts)[..] else { panic!() };
    let Some([ToolResultContent::Subagent(worker), ToolResultContent::Text(_)]) = call.content.as_deref() else {
        panic!("{call:?}");
    };
    assert_eq!(worker.title, "scout");
    let chat = &play.screen.chats[&worker.resource];
    assert_eq!(chat.turns[0].state, TurnState::Complete);
    assert_eq!(chat.turns[0].message.text, "look");
    assert_eq!(text(&chat.turns[0].response_parts), "found it");
    assert_eq!(text(&play.chat().turns[0].response_parts), "");
}

#[test]
fn a_turn_that_the_agent_does_not_take_ends_with_an_error() {
    let mut play = Play::new();
    play.client(CHAT, turn_started("t", "go"));
    let failure = || Failure::new("gone", "The agent is gone.");
    assert!(play.translator.refused(&"other".into(), failure(), Duration::ZERO).is_empty());
    for step in play.translator.refused(&"t".into(), failure(), Duration::ZERO) {
        play.screen.step(&step);
    }
    assert_eq!(play.chat().turns[0].state, TurnState::Error);
}

#[test]
fn a_turn_that_the_agent_begins_by_itself_is_a_turn_of_the_chat() {
    let mut play = Play::new();
    play.writer.write(Event::TurnStarted { turn: "own".into() });
    play.writer.write(Event::text("m", "0", "hm"));
    play.end();
    let turns = &play.chat().turns;
    assert_eq!((turns[0].id.as_str(), text(&turns[0].response_parts).as_str()), ("own", "hm"));
}

#[test]
fn a_turn_that_the_agent_begins_while_a_prompt_waits_is_not_shown_and_the_prompt_is_answered() {
    let mut play = Play::new();
    play.client(CHAT, turn_started("asked", "go"));
    for (turn, said) in [("own", "hm"), ("asked", "yes")] {
        play.writer.write(Event::TurnStarted { turn: turn.into() });
        play.writer.write(Event::text(said, "0", said));
        play.writer.write(Event::TurnEnded { turn: turn.into(), outcome: Outcome::Complete });
    }
    play.drain();
    let turns = &play.chat().turns;
    assert_eq!(turns.len(), 1);
    assert_eq!((turns[0].id.as_str(), text(&turns[0].response_parts).as_str()), ("asked", "yes"));
    assert_eq!(turns[0].state, TurnState::Complete);
}

#[test]
fn a_turn_that_could_not_begin_in_the_chat_is_not_shown() {
    let mut play = Play::new();
    play.writer.write(Event::TurnStarted { turn: "own".into() });
    let steps = play.translator.event(play.writer.poll().unwrap(), Duration::ZERO);
    assert!(matches!(&steps[..], [Step::Begin { .. }]));
    play.translator.not_begun(&"own".into());
    // A client was faster: its turn waits for the end of the agent's.
    play.client(CHAT, turn_started("asked", "go"));
    play.say(Event::text("m", "0", "hm"));
    play.say(Event::TurnEnded { turn: "own".into(), outcome: Outcome::Complete });
    play.writer.write(Event::TurnStarted { turn: "asked".into() });
    play.say(Event::text("n", "0", "yes"));
    play.end();
    let turns = &play.chat().turns;
    assert_eq!((turns.len(), text(&turns[0].response_parts).as_str()), (1, "yes"));
}
