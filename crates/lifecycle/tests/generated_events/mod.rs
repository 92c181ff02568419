//! Generates events of an agent, with few different ids, so that they refer to each other.

use breakbulk_lifecycle::{
    Answer, Ask, BlockKind, BlockType, Call, Content, Ending, Event, Failure, Id, Outcome, ToolResult, Usage,
};
use proptest::option;
use proptest::prelude::*;

/// One event, as likely to make sense as not.
pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => turn().prop_map(|turn| Event::TurnStarted { turn }),
        1 => (turn(), outcome()).prop_map(|(turn, outcome)| Event::TurnEnded { turn, outcome }),
        18 => spoken(),
        14 => called(),
        1 => Just(Event::Usage(Usage::default())),
        1 => Just(Event::Notice { text: "n".into() }),
        1 => Just(Event::Resumable { token: "r".into() }),
        1 => Just(Event::ModeChanged { mode: "m".into() }),
    ]
}

fn spoken() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (message(), option::of(tool())).prop_map(|(message, agent)| Event::MessageStarted { message, agent }),
        6 => (message(), block(), block_kind())
            .prop_map(|(message, block, kind)| Event::BlockStarted { message, block, kind }),
        6 => (message(), block(), kind(), "[a-z]{0,3}")
            .prop_map(|(message, block, kind, text)| Event::BlockDelta { message, block, kind, text }),
        4 => (message(), block(), option::of("[a-z]{2}"))
            .prop_map(|(message, block, input)| Event::BlockEnded { message, block, input }),
        2 => message().prop_map(|message| Event::MessageEnded { message }),
    ]
}

fn called() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => tool().prop_map(|tool| Event::ToolAsked { tool, ask: Ask::default() }),
        4 => (tool(), answer()).prop_map(|(tool, answer)| Event::ToolAnswered { tool, answer }),
        4 => tool().prop_map(|tool| Event::ToolStarted { tool }),
        2 => tool().prop_map(|tool| Event::ToolOutput { tool, content: vec![Content::Text("o".into())] }),
        2 => (tool(), ending()).prop_map(|(tool, ending)| Event::ToolEnded { tool, ending }),
        4 => tool().prop_map(|tool| Event::AgentStarted { tool, name: "n".into(), task: "t".into() }),
        2 => (tool(), outcome()).prop_map(|(tool, outcome)| Event::AgentEnded { tool, outcome }),
    ]
}

fn id(names: &'static [&'static str]) -> impl Strategy<Value = Id> {
    prop::sample::select(names).prop_map(Id::from)
}

fn turn() -> impl Strategy<Value = Id> {
    id(&["t", "u"])
}

fn message() -> impl Strategy<Value = Id> {
    id(&["m", "n", "m~2"])
}

fn block() -> impl Strategy<Value = Id> {
    id(&["0", "1", "0~2"])
}

fn tool() -> impl Strategy<Value = Id> {
    id(&["a", "b", "c", "a~2"])
}

fn kind() -> impl Strategy<Value = BlockType> {
    prop::sample::select(&[BlockType::Text, BlockType::Thinking, BlockType::Redacted, BlockType::ToolInput][..])
}

fn block_kind() -> impl Strategy<Value = BlockKind> {
    prop_oneof![
        Just(BlockKind::Text),
        Just(BlockKind::Thinking),
        Just(BlockKind::Redacted),
        tool().prop_map(|tool| BlockKind::ToolInput(Call::new(tool, "run", "Run"))),
        tool().prop_map(|tool| BlockKind::ToolInput(Call::new(tool, "task", "Task"))),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![2 => Just(Answer::yes()), 1 => Just(Answer::no()), 1 => Just(Answer::Withdrawn)]
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        Just(Ending::Done(ToolResult::text("Ran it", "out"))),
        Just(Ending::Done(ToolResult::failed("Ran it", "no"))),
        Just(Ending::Cancelled { reason: None }),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![Just(Outcome::Complete), Just(Outcome::Cancelled), Just(Outcome::Failed(Failure::new("x", "y")))]
}
