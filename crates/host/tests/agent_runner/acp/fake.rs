//! A fake ACP agent: this test's own executable, started once more. It does what its prompts say.

use std::io::{Lines, StdinLock, Write};
use std::path::{Path, PathBuf};

use breakbulk_host::agent::acp::AcpConfig;
use serde_json::{Value, json};

/// Where the fake tells what it does.
const FOLDER: &str = "FAKE_ACP_FOLDER";

/// Whether the fake can load sessions.
const CAN_LOAD: &str = "FAKE_ACP_CAN_LOAD";

/// What the fake has done, in a directory.
pub(super) struct Fake {
    folder: tempfile::TempDir,
    can_load: bool,
}

impl Fake {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), can_load: true }
    }

    /// One that cannot load sessions.
    pub(super) fn forgetful() -> Self {
        Self { can_load: false, ..Self::new() }
    }

    pub(super) fn config(&self) -> AcpConfig {
        let program = std::env::current_exe().unwrap();
        let arguments = ["--ignored", "--exact", "--nocapture", "acp::fake::the_program"].map(Into::into);
        let mut config = AcpConfig::new("fake", [program.into()].into_iter().chain(arguments).collect());
        let folder = self.folder.path().to_str().unwrap().to_owned();
        config.env = vec![(FOLDER.to_owned(), folder), (CAN_LOAD.to_owned(), self.can_load.to_string())];
        config
    }

    pub(super) fn starts(&self) -> usize {
        self.told("initialize").len()
    }

    /// The text of each prompt.
    pub(super) fn prompts(&self) -> Vec<String> {
        self.told("session/prompt").iter().map(prompt_text).collect()
    }

    /// The sessions that were loaded.
    pub(super) fn loaded(&self) -> Vec<String> {
        self.told("session/load").iter().map(|params| params["sessionId"].as_str().unwrap().to_owned()).collect()
    }

    /// The options that were chosen.
    pub(super) fn answers(&self) -> Vec<String> {
        let chosen = |line: &Value| line["result"]["outcome"]["optionId"].as_str().map(str::to_owned);
        self.lines().iter().filter_map(chosen).collect()
    }

    /// The params of each request or notification of this method.
    pub(super) fn told(&self, method: &str) -> Vec<Value> {
        let lines = self.lines().into_iter().filter(|line| line["method"] == method);
        lines.map(|line| line["params"].clone()).collect()
    }

    fn lines(&self) -> Vec<Value> {
        let told = std::fs::read_to_string(self.folder.path().join("told")).unwrap_or_default();
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn prompt_text(params: &Value) -> String {
    params["prompt"].as_array().unwrap().iter().map(|block| block["text"].as_str().unwrap_or_default()).collect()
}

/// The program itself. It is no test, and does nothing unless it was started as the program.
#[test]
#[ignore = "it is the program that other tests start"]
fn the_program() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let can_load = std::env::var(CAN_LOAD).is_ok_and(|can| can == "true");
    Program { folder: folder.into(), can_load, cwd: PathBuf::new(), next: 100, lines: std::io::stdin().lines() }.run();
    // Before the test harness says anything.
    std::process::exit(0);
}

struct Program {
    folder: PathBuf,
    can_load: bool,
    cwd: PathBuf,
    next: u64,
    lines: Lines<StdinLock<'static>>,
}

impl Program {
    fn run(&mut self) {
        while let Some(line) = self.read() {
            let id = &line["id"];
            let result = match line["method"].as_str().unwrap_or_default() {
                "initialize" => json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": self.can_load}}),
                "session/new" | "session/load" => self.open(&line["params"]),
                "session/prompt" => json!({"stopReason": self.prompt(&line["params"])}),
                "session/set_config_option" => json!({"configOptions": []}),
                _ => json!({}),
            };
            if !id.is_null() {
                write(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
            }
        }
    }

    fn open(&mut self, params: &Value) -> Value {
        self.cwd = Path::new(params["cwd"].as_str().unwrap()).to_owned();
        if params["sessionId"].is_string() {
            say("what was said before");
        }
        let modes = json!({"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]});
        let model = json!({"id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "small",
            "options": [{"value": "small", "name": "Small"}, {"value": "large", "name": "Large"}]});
        json!({"sessionId": "s-1", "modes": modes, "configOptions": [model]})
    }

    fn prompt(&mut self, params: &Value) -> &'static str {
        let text = prompt_text(params);
        let text = text.rsplit("\n\n").next().unwrap_or_default();
        match text.split_once(' ').unwrap_or((text, "")) {
            ("say", words) => say(words),
            ("tool", _) => self.tool(),
            ("file", _) => self.file(),
            ("run", _) => self.terminal(),
            ("garbage", _) => {
                print!("Loading model...\n\u{1}\n{{\"jsonrpc\":\n[]\n");
                say("still here");
            }
            ("die", _) => {
                eprintln!("I am dying");
                std::process::exit(3);
            }
            ("hang", _) => {
                say("waiting");
                while let Some(line) = self.read() {
                    if line["method"] == "session/cancel" {
                        return "cancelled";
                    }
                }
            }
            other => panic!("{other:?}"),
        }
        "end_turn"
    }

    fn tool(&mut self) {
        update(json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Write", "kind": "edit"}));
        let options = json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "all", "name": "Always", "kind": "allow_always"},
            {"optionId": "no", "name": "No", "kind": "reject_once"}]);
        let params = json!({"sessionId": "s-1", "toolCall": {"toolCallId": "c"}, "options": options});
        let answer = self.ask("session/request_permission", params);
        let status = if answer["result"]["outcome"]["optionId"] == "yes" { "completed" } else { "failed" };
        update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": status, "rawOutput": "done"}));
    }

    fn file(&mut self) {
        let path = self.cwd.join("made/agent.txt");
        let write = json!({"sessionId": "s-1", "path": path, "content": "written by the agent"});
        self.ask("fs/write_text_file", write);
        let read = self.ask("fs/read_text_file", json!({"sessionId": "s-1", "path": path}));
        let outside = self.ask("fs/read_text_file", json!({"sessionId": "s-1", "path": "/etc/passwd"}));
        let refused = if outside["error"].is_object() { "refused" } else { "read" };
        say(&format!("{}; outside: {refused}", read["result"]["content"].as_str().unwrap_or_default()));
    }

    fn terminal(&mut self) {
        let create = json!({"sessionId": "s-1", "command": "sh", "args": ["-c", "echo from a terminal; exit 7"]});
        let created = self.ask("terminal/create", create);
        let terminal = json!({"sessionId": "s-1", "terminalId": created["result"]["terminalId"]});
        let exit = self.ask("terminal/wait_for_exit", terminal.clone())["result"]["exitCode"].clone();
        let output = self.ask("terminal/output", terminal.clone())["result"]["output"].clone();
        self.ask("terminal/release", terminal);
        say(&format!("{}, exit {exit}", output.as_str().unwrap_or_default().trim()));
    }

    /// Asks the host something; returns its answer.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let line = self.read().expect("an answer");
            if line["id"] == id && line["method"].is_null() {
                return line;
            }
        }
    }

    fn read(&mut self) -> Option<Value> {
        let line = self.lines.next()?.ok()?;
        let told = std::fs::OpenOptions::new().create(true).append(true).open(self.folder.join("told"));
        writeln!(told.unwrap(), "{line}").unwrap();
        Some(serde_json::from_str(&line).unwrap())
    }
}

fn say(text: &str) {
    update(json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}));
}

fn update(update: Value) {
    write(&json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s-1", "update": update}}));
}

fn write(line: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
}
