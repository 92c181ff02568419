//! Recordings of real agents: we write the lines that were written then, and every prefix, cut by an exit, is well formed.

use std::collections::HashMap;

use agent_client_protocol_schema::v1::ContentBlock;
use breakbulk_lifecycle::acp::{Connection, Limits, Offers, Opening};
use breakbulk_lifecycle::{Answer, Checker, Event, ExitReason, Failure, Id, Outcome, Received, Writer};
use serde_json::Value;

/// The recordings, by name. Several runs of a program follow each other, each after a line `!!! run`.
const RECORDINGS: [(&str, &str); 9] = [
    ("echo", include_str!("../../fixtures/acp/echo-0.12.1.ndjson")),
    ("opencode, interrupt", include_str!("../../fixtures/acp/opencode-interrupt-1.18.33.ndjson")),
    ("opencode, tools", include_str!("../../fixtures/acp/opencode-tools-1.18.33.ndjson")),
    ("claude-agent-acp, interrupt", include_str!("../../fixtures/acp/claude-agent-acp-interrupt-0.49.0.ndjson")),
    ("claude-agent-acp, tools", include_str!("../../fixtures/acp/claude-agent-acp-tools-0.49.0.ndjson")),
    ("codex-acp, interrupt", include_str!("../../fixtures/acp/codex-acp-interrupt-0.16.0.ndjson")),
    ("codex-acp, tools", include_str!("../../fixtures/acp/codex-acp-tools-0.16.0.ndjson")),
    ("gemini, interrupt", include_str!("../../fixtures/acp/gemini-interrupt-0.61.0.ndjson")),
    ("gemini, tools", include_str!("../../fixtures/acp/gemini-tools-0.61.0.ndjson")),
];

/// The runs of a recording, without what our own version changes.
fn runs(recording: &str) -> impl Iterator<Item = Vec<&str>> {
    recording.split("!!! run\n").filter(|run| !run.is_empty()).map(|run| run.lines().collect())
}

/// A run of the agent that is played again.
struct Replay {
    connection: Connection,
    writer: Writer,
    turns: usize,
    /// The calls that the agent's own requests ask about, and the options that they offer.
    asked: HashMap<String, (Id, Value)>,
}

impl Replay {
    /// The session is resumed if it was in the recording.
    fn new(lines: &[&str]) -> Self {
        let told = lines.iter().filter_map(|line| line.strip_prefix(">>> ")).map(json);
        let is_resumed = |line: &Value| matches!(line["method"].as_str(), Some("session/resume" | "session/load"));
        let resume = told.filter(is_resumed).find_map(|line| line["params"]["sessionId"].as_str().map(str::to_owned));
        let offers = Offers { files: true, terminals: true };
        let opening = Opening { cwd: "/project".into(), offers, resume, ..Opening::default() };
        let connection = Connection::new(opening, Limits::default());
        Self { connection, writer: Writer::new(), turns: 0, asked: HashMap::new() }
    }

    fn play(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("<<<", line)) => {
                let said = json(line);
                if said["method"] == "session/request_permission" {
                    let call = said["params"]["toolCall"]["toolCallId"].as_str().expect("a call");
                    let options = said["params"]["options"].clone();
                    self.asked.insert(said["id"].to_string(), (Id::from(call), options));
                }
                assert!(!matches!(self.connection.receive(line.as_bytes()), Received::Malformed { .. }), "{line}");
                self.drain();
            }
            Some((">>>", line)) => self.told(json(line)),
            _ => panic!("no line of a recording: {line}"),
        }
    }

    /// Does what made the host write this line, and compares what is written now.
    fn told(&mut self, wanted: Value) {
        match wanted["method"].as_str() {
            Some("session/prompt") => {
                self.turns += 1;
                let blocks: Vec<ContentBlock> = read(&wanted["params"]["prompt"]);
                self.connection.send(format!("t{}", self.turns).into(), blocks).expect("it takes a prompt");
            }
            Some("session/cancel") => self.connection.cancel(),
            None => {
                let call = self.asked.remove(&wanted["id"].to_string()).expect("the agent has asked");
                let (call, options) = call;
                let option = &wanted["result"]["outcome"]["optionId"];
                let options = options.as_array().expect("options");
                let chosen = options.iter().find(|known| known["optionId"] == *option).expect("one of them");
                let rejects = chosen["kind"].as_str().is_some_and(|kind| kind.starts_with("reject"));
                let answer = if rejects { Answer::no() } else { Answer::yes() };
                assert!(self.connection.answer(&call, &answer));
            }
            Some(_) => {}
        }
        self.drain();
        let line = self.connection.poll_line().unwrap_or_else(|| panic!("nothing is written, but {wanted}"));
        let mut line: Value = serde_json::from_slice(&line).expect("JSON");
        if line["method"] == "initialize" {
            // Our own version changes.
            line["params"]["clientInfo"] = wanted["params"]["clientInfo"].clone();
        }
        assert_eq!(line, wanted);
    }

    fn drain(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            self.writer.write(event);
        }
    }

    /// The program has exited: what the writer has made of all that it said.
    fn exit(mut self) -> Vec<Event> {
        self.connection.end(ExitReason::Failed(Failure::new("agentExited", "gone")));
        self.drain();
        self.writer.end(Outcome::Cancelled);
        std::iter::from_fn(|| self.writer.poll()).map(|formed| formed.into_event()).collect()
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("it has the expected form")
}

/// How each turn of a recording ended, and what was said in it.
fn turns(recording: &str) -> Vec<(String, String)> {
    let mut turns = Vec::new();
    for lines in runs(recording) {
        let mut replay = Replay::new(&lines);
        lines.iter().for_each(|line| replay.play(line));
        let mut said = String::new();
        for event in replay.exit() {
            match event {
                Event::TurnStarted { .. } => said.clear(),
                Event::BlockDelta { text, .. } => said.push_str(&text),
                Event::TurnEnded { outcome: Outcome::Failed(failure), .. } => turns.push((failure.kind, said.clone())),
                Event::TurnEnded { outcome, .. } => turns.push((format!("{outcome:?}"), said.clone())),
                _ => {}
            }
        }
    }
    turns
}

#[test]
fn the_echo_agent_gives_the_prompt_back() {
    let text = turns(RECORDINGS[0].1);
    assert_eq!(
        text,
        [("Complete", "Hello, echo"), ("Complete", "and again")].map(|(end, text)| (end.into(), text.into()))
    );
}

#[test]
fn a_turn_that_was_interrupted_or_killed_says_so_and_the_session_is_resumed() {
    let turns = turns(RECORDINGS[1].1);
    let ends: Vec<&str> = turns.iter().map(|(end, _)| end.as_str()).collect();
    assert_eq!(ends, ["Cancelled", "Complete", "agentExited", "Complete"]);
    assert!(turns[0].1.starts_with("tick tick") && turns[2].1.starts_with("tick"), "{turns:?}");
    assert_eq!(turns[1].1, "after the interrupt");
    assert!(turns[3].1.contains("say after the interrupt"), "it remembers: {turns:?}");
}

#[test]
fn the_input_of_a_call_is_whole_when_somebody_is_asked_about_it() {
    for lines in runs(RECORDINGS[2].1) {
        let mut replay = Replay::new(&lines);
        lines.iter().for_each(|line| replay.play(line));
        let (mut inputs, mut asked) = (Vec::new(), 0);
        for event in replay.exit() {
            match event {
                Event::BlockEnded { input: Some(input), .. } => inputs.push(input),
                Event::ToolAsked { .. } => {
                    asked += 1;
                    let input = inputs.last().expect("the input comes first");
                    assert!(input.contains("\"command\":\"echo "), "{input}");
                }
                _ => {}
            }
        }
        assert_eq!(asked, 2);
    }
}

#[test]
fn an_answer_after_an_interrupt_has_nothing_of_the_one_before() {
    for (name, recording) in RECORDINGS.iter().filter(|(name, _)| name.ends_with("interrupt")) {
        let turns = turns(recording);
        assert_eq!(turns[0].0, "Cancelled", "{name}: {turns:?}");
        assert!(turns[1].1.ends_with("after the interrupt") && !turns[1].1.contains("tick"), "{name}: {turns:?}");
    }
}

#[test]
fn every_prefix_that_an_exit_cuts_is_well_formed() {
    for (name, recording) in RECORDINGS {
        for lines in runs(recording) {
            for cut in 0..=lines.len() {
                let mut replay = Replay::new(&lines);
                lines[..cut].iter().for_each(|line| replay.play(line));
                if let Some(line) = lines.get(cut).and_then(|line| line.strip_prefix("<<< ")) {
                    // The exit may also cut a line.
                    replay.connection.receive(line.get(..line.len() / 2).unwrap_or_default().as_bytes());
                    replay.drain();
                }
                let events = replay.exit();
                let mut checker = Checker::new();
                for event in &events {
                    assert_eq!(checker.check(event), Ok(()), "{name} cut at {cut}: {events:#?}");
                }
                assert!(checker.is_done(), "{name} cut at {cut}: {events:#?}");
                let prompts = lines[..cut].iter().filter(|line| line.contains("\"session/prompt\"")).count();
                let ends = events.iter().filter(|event| matches!(event, Event::TurnEnded { .. })).count();
                assert_eq!(ends, prompts, "{name} cut at {cut}: {events:#?}");
            }
        }
    }
}
