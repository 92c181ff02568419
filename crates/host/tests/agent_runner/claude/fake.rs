//! A fake of the Claude Code program: this test's own executable, started once more. It plays a script.
//!
//! A script is a recording (`<<<` is written, `>>>` is waited for), with lines of its own:
//!
//! | Line | What the fake does |
//! |---|---|
//! | `!!! exit N` | exits |
//! | `!!! kill` | kills itself |
//! | `!!! hang` | does nothing any more, and does not react to SIGTERM |
//! | `!!! stderr TEXT` | writes to its standard error |
//! | `!!! raw TEXT` | writes this line |
//! | `!!! half` | writes the first half of the next line of the recording, without a line break, and exits |
//! | `!!! flood` | writes noise for ever |
//! | `!!! long N` | writes a line of N bytes |
//! | `!!! children` | starts processes, some of which leave its group, and tells their ids in the file `children` |

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use breakbulk_host::agent::claude::ClaudeConfig;
use serde_json::{Value, json};

/// Where the fake finds its script, and tells what it does.
const FOLDER: &str = "FAKE_CLAUDE_FOLDER";

/// A directory with a script for each start of the program.
pub(crate) struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    /// Each start of the program plays the next of these scripts; the last one again and again.
    pub(crate) fn new(scripts: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (number, script) in scripts.iter().enumerate() {
            std::fs::write(folder.path().join(format!("script-{number}")), script).unwrap();
        }
        std::fs::write(folder.path().join("scripts"), scripts.len().to_string()).unwrap();
        Self { folder }
    }

    pub(crate) fn config(&self) -> ClaudeConfig {
        // A shell keeps the arguments that only the real program understands, and starts the fake without them.
        let script = "printf '%s\\n' \"$*\" >> \"$FAKE_CLAUDE_FOLDER/arguments\"; \
                      exec \"$FAKE_CLAUDE_PROGRAM\" --ignored --exact --nocapture claude::fake::the_program 3>&1 >/dev/null";
        let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
        let folder = self.folder.path().to_str().unwrap().to_owned();
        let mut config = ClaudeConfig::default();
        config.program.command = ["sh", "-c", script, "sh"].map(Into::into).to_vec();
        config.program.env = vec![(FOLDER.to_owned(), folder), ("FAKE_CLAUDE_PROGRAM".to_owned(), program)];
        config.program.process.memory_interval = Duration::from_millis(100);
        config
    }

    /// The arguments of each start.
    pub(crate) fn arguments(&self) -> Vec<String> {
        self.read("arguments").lines().map(str::to_owned).collect()
    }

    /// Every line that the program was told, by all its runs.
    pub(crate) fn told(&self) -> Vec<Value> {
        self.read("told").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The prompts among them.
    pub(crate) fn prompts(&self) -> Vec<Value> {
        self.told().into_iter().filter(|line| line["type"] == "user").collect()
    }

    /// All that the program has waited for, in order.
    pub(crate) fn waits(&self) -> Vec<String> {
        self.read("waits").lines().map(str::to_owned).collect()
    }

    pub(crate) fn children(&self) -> Vec<String> {
        self.read("children").split_whitespace().map(str::to_owned).collect()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }
}

/// A turn of the program, as short as can be. Names come from `name`.
pub(crate) fn turn(name: &str, text: &str) -> String {
    format!("{}{}{}", opened(name, text), closed(name), result("success"))
}

/// The first half of a turn: a message that says this, and is not whole.
pub(crate) fn opened(name: &str, text: &str) -> String {
    let message = json!({"id": format!("msg_{name}"), "role": "assistant", "content": []});
    let events = [
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
    ];
    let init =
        json!({"type": "system", "subtype": "init", "session_id": "s-1", "model": "m", "permissionMode": "default"});
    let events = events.map(|event| json!({"type": "stream_event", "event": event, "parent_tool_use_id": null}));
    [init].iter().chain(&events).map(|line| format!("<<< {line}\n")).collect()
}

pub(crate) fn closed(_name: &str) -> String {
    let events = [json!({"type": "content_block_stop", "index": 0}), json!({"type": "message_stop"})];
    let events = events.map(|event| json!({"type": "stream_event", "event": event, "parent_tool_use_id": null}));
    events.iter().map(|line| format!("<<< {line}\n")).collect()
}

pub(crate) fn result(subtype: &str) -> String {
    let is_error = subtype != "success";
    let line = json!({"type": "result", "subtype": subtype, "is_error": is_error, "num_turns": 1, "session_id": "s-1",
        "total_cost_usd": 0.25, "usage": {"input_tokens": 3, "output_tokens": 4}});
    format!("<<< {line}\n")
}

/// Waits for the first prompt.
pub(crate) const FIRST: &str = ">>> {\"type\":\"control_request\",\"request_id\":\"i\",\"request\":{\"subtype\":\"initialize\"}}\n\
    <<< {\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"i\",\"response\":{\"commands\":[{\"name\":\"compact\",\"description\":\"Forget\",\"argumentHint\":\"<what>\"}],\"models\":[{\"value\":\"best\",\"displayName\":\"Best\"}]}}}\n\
    >>> {\"type\":\"user\"}\n";

/// Waits for another prompt.
pub(crate) const NEXT: &str = ">>> {\"type\":\"user\"}\n";

/// Waits for an interrupt, and ends the turn as the program does.
pub(crate) fn interrupted() -> String {
    let wanted = json!({"type": "control_request", "request_id": "int", "request": {"subtype": "interrupt"}});
    let reply =
        json!({"type": "control_response", "response": {"subtype": "success", "request_id": "int", "response": {}}});
    format!(">>> {wanted}\n<<< {reply}\n{}", result("error_during_execution"))
}

/// A call in a message, about which the program asks, with a rule to allow from now on.
pub(crate) fn asks(tool: &str) -> String {
    let asked = json!({"type": "control_request", "request_id": format!("ask-{tool}"), "request": {"subtype": "can_use_tool",
            "tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": tool,
            "permission_suggestions": [{"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "allow"}]}});
    let wanted = json!({"type": "control_response", "response": {"request_id": format!("ask-{tool}")}});
    format!("{}<<< {}\n>>> {wanted}\n", calls(tool), asked)
}

/// A call in a message.
pub(crate) fn calls(tool: &str) -> String {
    let events = [
        json!({"type": "content_block_start", "index": 1,
            "content_block": {"type": "tool_use", "id": tool, "name": "Bash", "input": {}}}),
        json!({"type": "content_block_delta", "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": "{\"command\":\"ls\"}"}}),
        json!({"type": "content_block_stop", "index": 1}),
    ];
    let lines = events.map(|event| json!({"type": "stream_event", "event": event, "parent_tool_use_id": null}));
    lines.iter().map(|line| format!("<<< {line}\n")).collect()
}

pub(crate) fn tool_result(tool: &str, text: &str, is_error: bool) -> String {
    let content = json!([{"type": "tool_result", "tool_use_id": tool, "content": text, "is_error": is_error}]);
    let line = json!({"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": null});
    format!("<<< {line}\n")
}

/// The program itself. It is no test, and does nothing unless it was started as the program.
#[test]
#[ignore = "it is the program that other tests start"]
fn the_program() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    Program::new(folder.into()).play();
    // Before the test harness says anything.
    std::process::exit(0);
}

struct Program {
    folder: PathBuf,
    /// Names of the recording, and what was written in their place.
    names: HashMap<String, String>,
    /// Lines that were read and are still to be waited for.
    read: Vec<Value>,
    /// Prompts of the recording that come later here, because the host keeps its own queue.
    owed: Vec<String>,
    is_in_turn: bool,
    marks: usize,
}

impl Program {
    fn new(folder: PathBuf) -> Self {
        Self { folder, names: HashMap::new(), read: Vec::new(), owed: Vec::new(), is_in_turn: false, marks: 0 }
    }

    fn play(&mut self) {
        let started = std::fs::read_to_string(self.folder.join("arguments")).unwrap().lines().count() - 1;
        let scripts: usize = std::fs::read_to_string(self.folder.join("scripts")).unwrap().parse().unwrap();
        let script = self.folder.join(format!("script-{}", started.min(scripts - 1)));
        let script = std::fs::read_to_string(script).unwrap();
        let mut lines = script.lines().peekable();
        while let Some(line) = lines.next() {
            match line.split_once(' ').unwrap() {
                ("<<<", line) => {
                    self.write(line);
                    if !self.is_in_turn && lines.clone().any(|line| line.contains("\"stream_event\"")) {
                        self.wait_for_owed();
                    }
                }
                (">>>", line) => self.wait(&serde_json::from_str(line).unwrap()),
                (_, "half") => {
                    let (_, next) = lines.peek().unwrap().split_once(' ').unwrap();
                    put(&next.as_bytes()[..next.len() / 2]);
                    self.tell("waits", "end");
                    std::process::exit(0);
                }
                (_, order) => self.obey(order),
            }
        }
        // Like the program, it ends when there is nothing more to read.
        self.tell("waits", "end");
        while self.hear().is_some() {}
    }

    fn write(&mut self, line: &str) {
        let is_about_owed = self.owed.iter().any(|uuid| line.contains(uuid.as_str()));
        if is_about_owed && line.contains("\"command_lifecycle\"") {
            return;
        }
        let line = self.names.iter().fold(line.to_owned(), |line, (theirs, ours)| line.replace(theirs, ours));
        put(format!("{line}\n").as_bytes());
        let value: Value = serde_json::from_str(&line).unwrap();
        match value["type"].as_str() {
            Some("result") => self.is_in_turn = false,
            Some("stream_event" | "assistant") => self.is_in_turn = true,
            _ => {}
        }
    }

    /// Waits for a prompt that came earlier in the recording.
    fn wait_for_owed(&mut self) {
        if !self.owed.is_empty() {
            let owed = self.owed.remove(0);
            self.wait(&json!({"type": "user", "uuid": owed}));
        }
    }

    /// Waits for a line of this sort.
    fn wait(&mut self, wanted: &Value) {
        let kind = wanted["type"].as_str().unwrap();
        let subtype = wanted["request"]["subtype"].as_str();
        if kind == "user" && self.is_in_turn {
            // The lines of the recording about this prompt are left out until it comes.
            self.owed.extend(wanted["uuid"].as_str().map(str::to_owned));
            return;
        }
        let behavior = wanted["response"]["response"]["behavior"].as_str();
        if self.is_in_turn {
            // Shows in the chat when all that was written before is there.
            self.marks += 1;
            put(b"{\"type\":\"system\",\"subtype\":\"compact_boundary\"}\n");
        }
        self.tell("waits", behavior.or(subtype).unwrap_or(kind));
        let heard = loop {
            let is_it = |line: &Value| {
                line["type"] == wanted["type"]
                    && (subtype.is_none() || line["request"]["subtype"] == wanted["request"]["subtype"])
            };
            if let Some(at) = self.read.iter().position(is_it) {
                break self.read.remove(at);
            }
            let Some(line) = self.hear() else { std::process::exit(0) };
            self.read.push(line);
        };
        for name in ["uuid", "request_id"] {
            if let (Some(theirs), Some(ours)) = (wanted[name].as_str(), heard[name].as_str()) {
                self.names.insert(format!("\"{theirs}\""), format!("\"{ours}\""));
            }
        }
    }

    fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        self.tell("told", line.trim_end());
        let line: Value = serde_json::from_str(&line).unwrap();
        // Whatever else it is asked, it does.
        let subtype = line["request"]["subtype"].as_str();
        if matches!(subtype, Some("set_permission_mode" | "set_model")) {
            let response = json!({"subtype": "success", "request_id": line["request_id"], "response": line["request"]});
            put(format!("{}\n", json!({"type": "control_response", "response": response})).as_bytes());
        }
        Some(line)
    }

    fn obey(&self, order: &str) {
        match order.split_once(' ').unwrap_or((order, "")) {
            ("exit", code) => {
                self.tell("waits", "end");
                std::process::exit(code.parse().unwrap());
            }
            ("kill", _) => {
                let _ = std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
            }
            ("hang", _) => {
                self.tell("waits", "hang");
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
            ("stderr", text) => eprintln!("{text}"),
            ("raw", text) => put(format!("{text}\n").as_bytes()),
            ("long", bytes) => put(format!("{}\n", "x".repeat(bytes.parse().unwrap())).as_bytes()),
            ("flood", _) => loop {
                put(&[b'x'; 1 << 16]);
            },
            ("children", _) => {
                let script = "sleep 1000 & a=$!; setsid sleep 1001 & b=$!; echo $a $b > \"$0\"";
                let file = self.folder.join("children");
                let started = std::process::Command::new("sh").args(["-c", script]).arg(file).status().unwrap();
                assert!(started.success());
            }
            other => panic!("{other:?}"),
        }
    }

    fn tell(&self, name: &str, line: &str) {
        append(&self.folder.join(name), line);
    }
}

fn append(file: &Path, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Writes to what was the standard output: what stands there now is for the test harness, which has something to say too. If nobody
/// reads any more, the program is to end.
fn put(bytes: &[u8]) {
    static OUTPUT: OnceLock<File> = OnceLock::new();
    let mut out = OUTPUT.get_or_init(|| OpenOptions::new().write(true).open("/dev/fd/3").unwrap());
    if out.write_all(bytes).is_err() {
        std::process::exit(1);
    }
}
