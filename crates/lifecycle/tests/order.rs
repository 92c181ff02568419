//! Orders in which real agents speak, and what is made of them.

use breakbulk_lifecycle::{
    Answer, Ask, BlockKind, Call, Checker, Content, Ending, Event, Failure, Id, Outcome, ToolResult, Violation, Writer,
};

#[test]
fn a_result_that_comes_before_its_message_ends_stays_where_it_came() {
    let out = written(&[begun(), call("m", "0", "a"), done("a"), Event::MessageEnded { message: "m".into() }, ended()]);
    let at = |wanted: fn(&Event) -> bool| out.iter().position(wanted);
    assert!(
        at(|event| matches!(event, Event::BlockEnded { .. })) < at(|event| matches!(event, Event::ToolStarted { .. }))
    );
    assert!(
        at(|event| matches!(event, Event::ToolEnded { .. })) < at(|event| matches!(event, Event::MessageEnded { .. }))
    );
}

#[test]
fn the_next_message_of_a_speaker_ends_the_one_before() {
    let out = written(&[begun(), Event::text("m", "0", "a"), Event::text("n", "0", "b"), ended()]);
    let ends: Vec<&Id> = out.iter().filter_map(ended_message).collect();
    assert_eq!(ends, [&Id::from("m"), &Id::from("n")]);
    assert!(matches!(&out[6], Event::MessageStarted { message, .. } if **message == *"n"));
}

#[test]
fn words_after_the_end_of_their_message_are_a_message_of_another_name() {
    let late = [
        begun(),
        Event::text("m", "0", "a"),
        Event::MessageEnded { message: "m".into() },
        Event::text("m", "0", "late"),
        ended(),
    ];
    let out = written(&late);
    assert_eq!(out.iter().filter_map(ended_message).map(|id| &**id).collect::<Vec<_>>(), ["m", "m~2"]);
}

#[test]
fn a_change_of_kind_begins_a_new_block() {
    let out = written(&[begun(), Event::thinking("m", "0", "hm"), Event::text("m", "0", "so"), ended()]);
    let kinds: Vec<&BlockKind> = out
        .iter()
        .filter_map(|event| match event {
            Event::BlockStarted { kind, .. } => Some(kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [&BlockKind::Thinking, &BlockKind::Text]);
}

#[test]
fn a_denied_call_cannot_run_whatever_the_agent_says() {
    let out = written(&[
        begun(),
        call("m", "0", "a"),
        Event::ToolAsked { tool: "a".into(), ask: Ask::default() },
        Event::ToolAnswered { tool: "a".into(), answer: Answer::no() },
        Event::ToolStarted { tool: "a".into() },
        Event::ToolOutput { tool: "a".into(), content: vec![Content::Text("x".into())] },
        Event::ToolEnded { tool: "a".into(), ending: Ending::Done(ToolResult::failed("Did not run", "denied")) },
        ended(),
    ]);
    assert!(!out.iter().any(|event| matches!(event, Event::ToolStarted { .. } | Event::ToolOutput { .. })));
    let reason = Some("denied".to_owned());
    assert!(out.contains(&Event::ToolEnded { tool: "a".into(), ending: Ending::Cancelled { reason } }));
}

#[test]
fn a_preview_does_not_answer_what_was_asked() {
    let out = written(&[
        begun(),
        call("m", "0", "a"),
        Event::ToolAsked { tool: "a".into(), ask: Ask::default() },
        Event::ToolOutput { tool: "a".into(), content: vec![Content::Text("x".into())] },
        ended(),
    ]);
    assert!(out.contains(&Event::ToolAnswered { tool: "a".into(), answer: Answer::Withdrawn }));
    assert!(!out.iter().any(|event| matches!(event, Event::ToolStarted { .. })));
}

#[test]
fn the_end_of_a_call_ends_its_sub_agents_to_any_depth_the_youngest_first() {
    let mut said = vec![begun(), call("m0", "0", "a0")];
    for depth in 1..2_000 {
        let agent = Some(format!("a{}", depth - 1).into());
        said.push(Event::MessageStarted { message: format!("m{depth}").into(), agent });
        said.push(call(&format!("m{depth}"), "0", &format!("a{depth}")));
    }
    said.push(done("a0"));
    let out = written(&said);
    let gone: Vec<String> = out
        .iter()
        .filter_map(|event| match event {
            Event::AgentEnded { tool, .. } => Some(tool.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(gone.len(), 1_999);
    assert_eq!(gone.first().map(String::as_str), Some("a1998"));
    assert_eq!(gone.last().map(String::as_str), Some("a0"));
}

#[test]
fn what_comes_outside_of_a_turn_is_counted_and_dropped() {
    let mut writer = Writer::new();
    writer.write(Event::text("m", "0", "a"));
    writer.write(ended());
    assert_eq!(writer.poll(), None);
    assert_eq!(writer.strays(), 2);
    writer.write(begun());
    assert_eq!(writer.turn(), Some(&"t".into()));
    writer.write(Event::TurnEnded { turn: "before".into(), outcome: Outcome::Complete });
    assert_eq!(writer.turn(), Some(&"t".into()));
}

#[test]
fn a_turn_that_fails_in_the_middle_of_a_word_ends_well() {
    let failed = Outcome::Failed(Failure::new("demo", "on request"));
    let out = written(&[
        begun(),
        Event::text("m", "0", "mid"),
        Event::TurnEnded { turn: "t".into(), outcome: failed.clone() },
    ]);
    assert_eq!(out.last(), Some(&Event::TurnEnded { turn: "t".into(), outcome: failed }));
}

#[test]
fn the_checker_names_the_rule_that_is_broken() {
    let refused = |events: &[Event]| {
        let mut checker = Checker::new();
        events.iter().find_map(|event| checker.check(event).err())
    };
    let message = Event::MessageStarted { message: "m".into(), agent: None };
    let block = Event::BlockStarted { message: "m".into(), block: "0".into(), kind: BlockKind::Text };
    assert_eq!(refused(std::slice::from_ref(&message)), Some(Violation::OutsideTurn));
    assert_eq!(refused(&[begun(), begun()]), Some(Violation::TurnWithinTurn));
    assert_eq!(refused(&[begun(), block.clone()]), Some(Violation::MessageNotOpen));
    assert_eq!(refused(&[begun(), message.clone(), message.clone()]), Some(Violation::MessageAgain));
    let second = Event::MessageStarted { message: "n".into(), agent: None };
    assert_eq!(refused(&[begun(), message.clone(), second]), Some(Violation::TwoMessages));
    assert_eq!(refused(&[begun(), message.clone(), Event::text("m", "0", "x")]), Some(Violation::BlockNotOpen));
    assert_eq!(refused(&[begun(), message.clone(), block.clone(), block.clone()]), Some(Violation::BlockAgain));
    let over = Event::MessageEnded { message: "m".into() };
    assert_eq!(refused(&[begun(), message.clone(), block.clone(), over]), Some(Violation::BlockLeftOpen));
    let thinking = Event::thinking("m", "0", "x");
    assert_eq!(refused(&[begun(), message.clone(), block, thinking]), Some(Violation::KindDiffers));
    assert_eq!(refused(&[begun(), message.clone(), ended()]), Some(Violation::MessageLeftOpen));
    assert_eq!(refused(&[begun(), done("a")]), Some(Violation::UnknownTool));
    assert_eq!(refused(&[begun(), message, call("m", "0", "a"), done("a")]), Some(Violation::ToolNotThere));
}

fn begun() -> Event {
    Event::TurnStarted { turn: "t".into() }
}

fn ended() -> Event {
    Event::TurnEnded { turn: "t".into(), outcome: Outcome::Complete }
}

fn call(message: &str, block: &str, tool: &str) -> Event {
    let kind = BlockKind::ToolInput(Call::new(tool, "run", "Run"));
    Event::BlockStarted { message: message.into(), block: block.into(), kind }
}

fn done(tool: &str) -> Event {
    Event::ToolEnded { tool: tool.into(), ending: Ending::Done(ToolResult::text("Ran it", "out")) }
}

fn ended_message(event: &Event) -> Option<&Id> {
    match event {
        Event::MessageEnded { message } => Some(message),
        _ => None,
    }
}

/// What a writer makes of these. Whatever it is, it is well formed.
fn written(said: &[Event]) -> Vec<Event> {
    let mut writer = Writer::new();
    said.iter().for_each(|event| writer.write(event.clone()));
    writer.end(Outcome::Cancelled);
    let out: Vec<Event> = std::iter::from_fn(|| writer.poll()).map(|formed| formed.into_event()).collect();
    let mut checker = Checker::new();
    for event in &out {
        assert_eq!(checker.check(event), Ok(()), "{event:?} in {out:#?}");
    }
    assert!(checker.is_done());
    out
}
