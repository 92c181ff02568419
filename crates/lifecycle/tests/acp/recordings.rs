//! A recording of a real agent: we write the lines that were written then, and every prefix, cut by an exit, is well formed.

use agent_client_protocol_schema::v1::ContentBlock;
use breakbulk_lifecycle::acp::{Connection, Limits, Offers, Opening, Received};
use breakbulk_lifecycle::{Checker, Event, Failure, Outcome, Writer};
use serde_json::Value;

/// The echo agent of the Python SDK, version 0.12.1.
const ECHO: &str = include_str!("../../fixtures/acp/echo-0.12.1.ndjson");

/// Replays these lines, then lets the program exit; gives what the writer made of it.
fn replay(lines: &[&str]) -> Vec<Event> {
    let offers = Offers { files: true, terminals: true };
    let mut connection =
        Connection::new(Opening { cwd: "/project".into(), offers, ..Opening::default() }, Limits::default());
    let (mut writer, mut turns) = (Writer::new(), 0);
    for line in lines {
        if let Some(line) = line.strip_prefix("<<< ") {
            assert!(!matches!(connection.receive(line.as_bytes()), Received::Malformed { .. }), "{line}");
            std::iter::from_fn(|| connection.poll_event()).for_each(|event| writer.write(event));
            continue;
        }
        let wanted = line.strip_prefix(">>> ").expect("a direction");
        let wanted: Value = serde_json::from_str(wanted).expect("JSON");
        if wanted["method"] == "session/prompt" {
            turns += 1;
            let blocks: Vec<ContentBlock> = serde_json::from_value(wanted["params"]["prompt"].clone()).expect("blocks");
            connection.send(format!("t{turns}").into(), blocks).expect("it takes a prompt");
        }
        let line = connection.poll_line().expect("a line");
        let mut line: Value = serde_json::from_slice(&line).expect("JSON");
        if line["method"] == "initialize" {
            // Our own version changes.
            line["params"]["clientInfo"] = wanted["params"]["clientInfo"].clone();
        }
        assert_eq!(line, wanted);
    }
    connection.end(Failure::new("agentExited", "gone"));
    std::iter::from_fn(|| connection.poll_event()).for_each(|event| writer.write(event));
    writer.end(Outcome::Cancelled);
    std::iter::from_fn(|| writer.poll()).map(|formed| formed.into_event()).collect()
}

#[test]
fn the_echo_agent_gives_the_prompt_back() {
    let events = replay(&ECHO.lines().collect::<Vec<_>>());
    let text = events.iter().filter_map(|event| match event {
        Event::BlockDelta { text, .. } => Some(text.to_string()),
        _ => None,
    });
    assert_eq!(text.collect::<String>(), "Hello, echo");
    assert!(matches!(events.last(), Some(Event::TurnEnded { outcome: Outcome::Complete, .. })), "{events:?}");
}

#[test]
fn every_prefix_that_an_exit_cuts_is_well_formed() {
    let lines: Vec<&str> = ECHO.lines().collect();
    for cut in 0..=lines.len() {
        let events = replay(&lines[..cut]);
        let mut checker = Checker::new();
        for event in &events {
            assert_eq!(checker.check(event), Ok(()), "cut at {cut}: {events:#?}");
        }
        let is_closed = events.last().is_none_or(|event| matches!(event, Event::TurnEnded { .. }));
        assert!(is_closed, "cut at {cut}: {events:#?}");
        let is_prompted = lines[..cut].iter().any(|line| line.contains("session/prompt"));
        assert_eq!(!events.is_empty(), is_prompted, "cut at {cut}: {events:#?}");
    }
}
