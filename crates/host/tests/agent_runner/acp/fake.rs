//! A fake ACP agent: this test's own executable, started once more. It does what its prompts say, or plays a recording.

use std::collections::HashMap;
use std::io::{BufRead, Lines, StdinLock, Write};
use std::path::{Path, PathBuf};

use breakbulk_host::agent::acp::AcpConfig;
use serde_json::{Value, json};

/// Where the fake tells what it does.
const FOLDER: &str = "FAKE_ACP_FOLDER";

/// Whether the fake can load sessions.
const CAN_LOAD: &str = "FAKE_ACP_CAN_LOAD";

/// Whether the fake never opens a session.
const HANGS: &str = "FAKE_ACP_HANGS";

/// What a fake that plays a recording shows in the chat when it waits for somebody.
pub(crate) const MARK: &str = "The recording waits.";

/// What the fake has done, in a directory.
pub(crate) struct Fake {
    folder: tempfile::TempDir,
    can_load: bool,
    hangs: bool,
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), can_load: true, hangs: false }
    }

    /// One that cannot load sessions.
    pub(crate) fn forgetful() -> Self {
        Self { can_load: false, ..Self::new() }
    }

    /// The same, but it says a word now and then and never opens a session.
    pub(crate) fn hanging(self) -> Self {
        Self { hangs: true, ..self }
    }

    /// One that plays these scripts, one at each start: lines as in the recordings, and the orders `!!! exit CODE` and `!!! half`,
    /// which writes the first half of the next line and exits.
    pub(crate) fn playing(scripts: &[&str]) -> Self {
        let fake = Self::new();
        for (number, script) in scripts.iter().enumerate() {
            std::fs::write(fake.folder.path().join(format!("script-{number}")), script).unwrap();
        }
        std::fs::write(fake.folder.path().join("scripts"), scripts.len().to_string()).unwrap();
        fake
    }

    /// What a fake that plays a recording has waited for, in order.
    pub(crate) fn waits(&self) -> Vec<String> {
        let waits = std::fs::read_to_string(self.folder.path().join("waits")).unwrap_or_default();
        waits.lines().map(str::to_owned).collect()
    }

    /// The process that was started last.
    pub(crate) fn pid(&self) -> String {
        let pids = std::fs::read_to_string(self.folder.path().join("pids")).unwrap();
        pids.lines().last().unwrap().to_owned()
    }

    pub(crate) fn config(&self) -> AcpConfig {
        let program = std::env::current_exe().unwrap();
        let arguments = ["--ignored", "--exact", "--nocapture", "acp::fake::the_program"].map(Into::into);
        let mut config = AcpConfig::new("fake", [program.into()].into_iter().chain(arguments).collect());
        let folder = self.folder.path().to_str().unwrap().to_owned();
        let flags = [(CAN_LOAD, self.can_load), (HANGS, self.hangs)];
        let flags = flags.map(|(name, value)| (name.to_owned(), value.to_string()));
        config.program.env = [(FOLDER.to_owned(), folder)].into_iter().chain(flags).collect();
        config
    }

    pub(crate) fn starts(&self) -> usize {
        self.told("initialize").len()
    }

    /// The text of each prompt.
    pub(crate) fn prompts(&self) -> Vec<String> {
        self.told("session/prompt").iter().map(prompt_text).collect()
    }

    /// The sessions that were loaded.
    pub(crate) fn loaded(&self) -> Vec<String> {
        self.told("session/load").iter().map(|params| params["sessionId"].as_str().unwrap().to_owned()).collect()
    }

    /// The options that were chosen.
    pub(crate) fn answers(&self) -> Vec<String> {
        let chosen = |line: &Value| line["result"]["outcome"]["optionId"].as_str().map(str::to_owned);
        self.lines().iter().filter_map(chosen).collect()
    }

    /// The params of each request or notification of this method.
    pub(crate) fn told(&self, method: &str) -> Vec<Value> {
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
    let is_set = |name| std::env::var(name).is_ok_and(|can| can == "true");
    let (can_load, hangs) = (is_set(CAN_LOAD), is_set(HANGS));
    let folder = PathBuf::from(folder);
    append(&folder.join("pids"), &std::process::id().to_string());
    if folder.join("scripts").exists() {
        Playing { folder, ids: HashMap::new(), options: HashMap::new(), read: Vec::new(), is_in_turn: false }.play();
        std::process::exit(0);
    }
    Program { folder, can_load, hangs, cwd: PathBuf::new(), next: 100, lines: std::io::stdin().lines() }.run();
    // Before the test harness says anything.
    std::process::exit(0);
}

struct Program {
    folder: PathBuf,
    can_load: bool,
    hangs: bool,
    cwd: PathBuf,
    next: u64,
    lines: Lines<StdinLock<'static>>,
}

impl Program {
    fn run(&mut self) {
        while let Some(line) = self.read() {
            let id = &line["id"];
            let result = match line["method"].as_str().unwrap_or_default() {
                "initialize" => {
                    let prompts = json!({"image": true, "embeddedContext": true});
                    let can = json!({"loadSession": self.can_load, "promptCapabilities": prompts});
                    json!({"protocolVersion": 1, "agentCapabilities": can})
                }
                "session/new" if self.hangs => loop {
                    // It is not silent, but it never gets ready.
                    update(json!({"sessionUpdate": "current_mode_update", "currentModeId": "ask"}));
                    std::thread::sleep(std::time::Duration::from_millis(50));
                },
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
            ("mode", mode) => update(json!({"sessionUpdate": "current_mode_update", "currentModeId": mode})),
            ("commands", _) => {
                let commands = json!([{"name": "init", "description": "Sets up."},
                    {"name": "review", "description": "Reviews.", "input": {"hint": "what to review"}}]);
                update(json!({"sessionUpdate": "available_commands_update", "availableCommands": commands}));
            }
            ("/init", _) => say("done"),
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
        append(&self.folder.join("told"), &line);
        Some(serde_json::from_str(&line).unwrap())
    }
}

/// The program while it plays a recording.
struct Playing {
    folder: PathBuf,
    /// The ids of the host's requests: as they were in the recording, and as they are now.
    ids: HashMap<String, Value>,
    /// The options of each permission request, by its id.
    options: HashMap<String, Value>,
    /// Lines that were read and are still to be waited for.
    read: Vec<Value>,
    is_in_turn: bool,
}

impl Playing {
    fn play(&mut self) {
        let count = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap();
        let (run, scripts) = (count("pids").lines().count() - 1, count("scripts").parse::<usize>().unwrap());
        let script = std::fs::read_to_string(self.folder.join(format!("script-{}", run.min(scripts - 1)))).unwrap();
        let mut is_first_prompt = run > 0;
        let mut lines = script.lines().peekable();
        while let Some(line) = lines.next() {
            match line.split_once(' ').unwrap() {
                ("<<<", line) => self.write(line),
                (">>>", line) => {
                    let wanted: Value = serde_json::from_str(line).unwrap();
                    // The prompt that has started this run was asked for at the end of the last one.
                    let is_known = wanted["method"] == "session/prompt" && std::mem::take(&mut is_first_prompt);
                    self.wait(&wanted, is_known);
                }
                (_, order) => {
                    if let Some((_, next)) =
                        lines.peek().filter(|_| order == "half").and_then(|next| next.split_once(' '))
                    {
                        print!("{}", next.get(..next.len() / 2).unwrap_or_default());
                        std::io::stdout().flush().unwrap();
                    }
                    self.tell("end");
                    std::process::exit(0);
                }
            }
        }
        if run + 1 < scripts {
            // The next prompt starts the next run.
            self.tell("user");
            return;
        }
        self.tell("end");
        while self.hear().is_some() {}
    }

    fn write(&mut self, line: &str) {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if line["method"].is_null() {
            if let Some(id) = self.ids.get(&line["id"].to_string()) {
                line["id"] = id.clone();
            }
            self.is_in_turn &= line["result"]["stopReason"].is_null();
        }
        if line["method"] == "session/request_permission" {
            self.options.insert(line["id"].to_string(), line["params"]["options"].clone());
        }
        write(&line);
    }

    /// Waits for a line of this sort.
    fn wait(&mut self, wanted: &Value, is_known: bool) {
        let method = wanted["method"].as_str();
        let what = match method {
            Some("session/prompt") => "user",
            Some("session/cancel") => "interrupt",
            Some(_) => "request",
            // Only permissions are answered by somebody.
            None => match self.kind_of_choice(wanted).as_deref() {
                Some(kind) if kind.starts_with("reject") => "deny",
                Some(_) => "allow",
                None => "answer",
            },
        };
        if self.is_in_turn && matches!(what, "interrupt" | "allow" | "deny") {
            update(json!({"sessionUpdate": "notice", "severity": "info", "title": MARK}));
        }
        if !is_known {
            self.tell(what);
        }
        let heard = loop {
            let is_it = |line: &Value| match method {
                Some(_) => line["method"] == wanted["method"],
                None => line["method"].is_null() && line["id"] == wanted["id"],
            };
            if let Some(at) = self.read.iter().position(is_it) {
                break self.read.remove(at);
            }
            let Some(line) = self.hear() else { std::process::exit(0) };
            self.read.push(line);
        };
        if method.is_some() {
            self.ids.insert(wanted["id"].to_string(), heard["id"].clone());
        }
        self.is_in_turn |= what == "user";
    }

    /// The kind of the option that an answer chooses.
    fn kind_of_choice(&self, answer: &Value) -> Option<String> {
        let chosen = &answer["result"]["outcome"]["optionId"];
        let options = self.options.get(&answer["id"].to_string())?.as_array()?;
        options.iter().find(|option| option["optionId"] == *chosen)?["kind"].as_str().map(str::to_owned)
    }

    fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        append(&self.folder.join("told"), line.trim_end());
        Some(serde_json::from_str(&line).unwrap())
    }

    fn tell(&self, what: &str) {
        append(&self.folder.join("waits"), what);
    }
}

fn append(file: &Path, line: &str) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    writeln!(file.unwrap(), "{line}").unwrap();
}

fn say(text: &str) {
    update(json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}));
}

fn update(update: Value) {
    write(&json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s-1", "update": update}}));
}

/// If nobody reads any more, the program is to end.
fn write(line: &Value) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}
