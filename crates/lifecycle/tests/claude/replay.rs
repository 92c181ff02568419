//! The recordings: what was written to the program is done again through the translator, what it wrote is fed to it.

use std::collections::HashMap;

use breakbulk_lifecycle::Answer;
use breakbulk_lifecycle::Received;
use breakbulk_lifecycle::claude::{Control, Part, Priority, Prompt, Signal};
use serde_json::{Value, json};

use crate::host::Host;

/// A recording, line by line.
pub(crate) struct Recording {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
    pub(crate) golden: &'static str,
}

/// One line of a recording.
pub(crate) enum Step {
    /// What was written to the program.
    Written(Value),
    /// What the program wrote.
    Said(&'static str),
}

macro_rules! recording {
    ($name:literal) => {
        read(
            $name,
            include_str!(concat!("../../fixtures/", $name, ".ndjson")),
            include_str!(concat!("../../fixtures/", $name, ".events.txt")),
        )
    };
}

pub(crate) fn recordings() -> Vec<Recording> {
    let mut all = plain();
    all.extend([
        recording!("subagent-2.1.326"),
        recording!("background-2.1.326"),
        recording!("withdrawn-2.1.326"),
        recording!("folded-2.1.326"),
        recording!("errors-2.1.326"),
        recording!("tools-2.0.30"),
        // This version does not tell an interrupted message again.
        recording!("interrupt-2.0.30"),
    ]);
    all
}

/// The recordings in which everything is both streamed and told whole.
pub(crate) fn plain() -> Vec<Recording> {
    vec![recording!("tools-2.1.325"), recording!("queue-and-interrupt-2.1.325")]
}

fn read(name: &'static str, text: &'static str, golden: &'static str) -> Recording {
    let step = |line: &'static str| match line.split_once(' ').expect("a mark and a line") {
        (">>>", line) => Step::Written(serde_json::from_str(line).expect("JSON")),
        ("<<<", line) => Step::Said(line),
        (mark, _) => panic!("unknown mark {mark}"),
    };
    Recording { name, steps: text.lines().map(step).collect(), golden }
}

/// Plays a recording.
pub(crate) struct Player {
    pub(crate) host: Host,
    /// Our names for requests of the recording.
    names: HashMap<String, String>,
    prompts: usize,
}

impl Player {
    pub(crate) fn new() -> Self {
        Self { host: Host::new(), names: HashMap::new(), prompts: 0 }
    }

    pub(crate) fn play(steps: &[Step]) -> Self {
        let mut player = Self::new();
        steps.iter().for_each(|step| {
            player.step(step);
        });
        player
    }

    pub(crate) fn turns(&self) -> impl Iterator<Item = String> {
        (1..=self.prompts).map(|number| format!("turn-{number}"))
    }

    pub(crate) fn step(&mut self, step: &Step) -> Received {
        match step {
            Step::Said(line) => {
                let line = self.names.iter().fold((*line).to_owned(), |line, (theirs, ours)| {
                    line.replace(&format!("\"request_id\":\"{theirs}\""), &format!("\"request_id\":\"{ours}\""))
                });
                self.host.hear_text(&line)
            }
            Step::Written(line) => {
                self.write(line);
                Received::Taken
            }
        }
    }

    /// Does what was done in the recording. The translator must write the same line, but for names that we give.
    fn write(&mut self, line: &Value) {
        let mut expected = line.clone();
        match line["type"].as_str() {
            Some("user") => {
                self.prompts += 1;
                let uuid = line["uuid"].as_str().map_or_else(|| format!("uuid-{}", self.prompts), str::to_owned);
                expected["uuid"] = json!(uuid);
                let priority = line["priority"].as_str().map(|priority| match priority {
                    "now" => Priority::Now,
                    "next" => Priority::Next,
                    _ => Priority::Later,
                });
                let text = line["message"]["content"].as_str().expect("a text").to_owned();
                let turn = format!("turn-{}", self.prompts).into();
                self.host.claude.send(Prompt { turn, uuid, priority, content: vec![Part::Text(text)] });
            }
            Some("control_request") => {
                let control = match line["request"]["subtype"].as_str() {
                    Some("initialize") => Control::Initialize,
                    Some("interrupt") => Control::Interrupt,
                    other => panic!("{other:?}"),
                };
                let ours = self.host.claude.request(control);
                expected["request_id"] = json!(ours.as_str());
                self.names.insert(line["request_id"].as_str().expect("a name").to_owned(), ours.to_string());
            }
            Some("control_response") => {
                let response = &line["response"];
                let wanted = response["request_id"].as_str().expect("a name");
                let tool = self.host.signals.iter().find_map(|signal| match signal {
                    Signal::Permission(permission) if *permission.request == *wanted => Some(permission.tool.clone()),
                    _ => None,
                });
                let answer = match response["response"]["behavior"].as_str() {
                    Some("allow") => Answer::yes(),
                    _ => {
                        let reason = response["response"]["message"].as_str().map(str::to_owned);
                        Answer::Denied { reason, choice: None }
                    }
                };
                self.host.claude.answer(&tool.expect("it was asked"), answer).expect("it is asked");
            }
            other => panic!("{other:?}"),
        }
        self.host.drain();
        assert_eq!(self.host.written.last(), Some(&expected));
    }
}
