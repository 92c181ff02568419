//! A host with one agent, and two clients of one session: one of AHP and one of v2, both through a cap of 64 KiB. And what people do.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ahp_types::state::SnapshotState;
use breakbulk::ahp::Negotiated;
use serde_json::{Value, json};

use super::v2_client::{Outline, V2Client, outline};
use crate::relay::Relay;
use crate::serve::guest::{Guest, calls, chat_of, session_of, words};
use crate::serve::place::Place;
use crate::serve::way::{CAP, Way};

const SESSION: &str = "ahp-session:/agents";

/// An agent as the configuration file describes it.
pub(super) struct AgentTable<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) command: Vec<String>,
    pub(super) env: Vec<(&'a str, String)>,
}

impl AgentTable<'_> {
    /// Writes the file. The agent's home is a directory of its own, so that it sees no settings of whoever runs the test.
    fn write(&self, directory: &Path) {
        let home = directory.join("home");
        std::fs::create_dir(&home).unwrap();
        let mut env: serde_json::Map<String, Value> =
            self.env.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        env.insert("HOME".to_owned(), json!(home));
        let env: Vec<String> = env.iter().map(|(name, value)| format!("{name} = {}", toml(value))).collect();
        let command: Vec<String> = self.command.iter().map(|word| toml(&json!(word))).collect();
        let table = format!(
            "[[agent]]\nname = {:?}\nkind = {:?}\ncommand = [{}]\nenv = {{ {} }}\n",
            self.name,
            self.kind,
            command.join(", "),
            env.join(", ")
        );
        std::fs::write(directory.join("agents.toml"), table).unwrap();
    }
}

/// A string of JSON is one of TOML too.
fn toml(value: &Value) -> String {
    value.to_string()
}

pub(super) struct Scene {
    program: String,
    place: Place,
    relay: Relay,
    pub(super) guest: Guest,
    pub(super) v2: V2Client,
    chat: String,
    turns: usize,
}

impl Scene {
    /// Starts a host, and makes a session that both clients follow.
    pub(super) async fn begin(agent: &AgentTable<'_>) -> Self {
        let prepare = |directory: &Path| agent.write(directory);
        let place = Place::prepared(Way::Capped.query(), &["--config", "agents.toml"], prepare);
        let relay = Way::Capped.relay(&place, []).await;
        let guest = Guest::arrive(Self::transport(&relay).await, "one").await;
        guest.ask("createSession", json!({"channel": SESSION, "provider": agent.name})).await;
        guest.follow(SESSION).await;
        let chat = |state: &SnapshotState| session_of(state)["defaultChat"].as_str().map(str::to_owned);
        let chat = guest.memory.until(SESSION, chat).await;
        guest.follow(&chat).await;
        let v2 = V2Client::watch(&relay.url, SESSION).await;
        let program = agent.command.first().unwrap().clone();
        Self { program, place, relay, guest, v2, chat, turns: 0 }
    }

    async fn transport(relay: &Relay) -> ahp::BoxedTransport {
        Way::Capped.transport(&relay.url, &Negotiated::default()).await.unwrap()
    }

    /// Sends a prompt from the AHP client; gives the name of its turn.
    pub(super) async fn prompt(&mut self, text: &str) -> String {
        self.turns += 1;
        let turn = format!("t{}", self.turns);
        self.guest.prompt(&self.chat, &turn, text).await;
        turn
    }

    /// Sends a prompt, and waits for the end of its turn.
    pub(super) async fn turn(&mut self, text: &str) -> Value {
        let turn = self.prompt(text).await;
        self.guest.memory.turn(&self.chat, &turn).await
    }

    /// The turn of a prompt that another client has sent.
    pub(super) async fn last_turn(&self, prompt: &str) -> Value {
        let find =
            |state: &SnapshotState| chat_of(state).turns.iter().rfind(|turn| turn.message.text == prompt).cloned();
        serde_json::to_value(self.guest.memory.until(&self.chat, find).await).unwrap()
    }

    /// What completes a text in the chat.
    pub(super) async fn completions(&self, text: &str) -> Vec<String> {
        let params = json!({"channel": self.chat, "kind": "userMessage", "text": text, "offset": text.len()});
        let found = self.guest.ask("completions", params).await;
        let texts =
            found["items"].as_array().unwrap().iter().map(|item| item["insertText"].as_str().unwrap().to_owned());
        texts.collect()
    }

    /// A file of the work tree.
    pub(super) fn file(&self, name: &str) -> std::path::PathBuf {
        self.place.file(name)
    }

    pub(super) async fn words_stream(&mut self) {
        let turn = self.turn("say Hello from here, with ünïcödé").await;
        assert_eq!(turn["state"], "complete", "{turn}");
        assert_eq!(words(&turn), "Hello from here, with ünïcödé", "{turn}");
        let deltas = self.guest.memory.heard(&self.chat).iter().filter(|heard| heard.1 == "chat/delta").count();
        assert!(deltas > 1, "it streamed");
        self.assert_same().await;
    }

    /// Asks for a command twice: the AHP client allows the first, the v2 client denies the second.
    pub(super) async fn a_call_is_allowed_and_another_denied(&mut self, tool: &str) {
        let turn = self.prompt("run echo allowed > made.txt; cat made.txt").await;
        let asked = self.v2.seen.until(|state| state.permissions.first().cloned()).await;
        assert_eq!(asked.tool_name, tool);
        assert!(asked.tool_input.to_string().contains("made.txt"), "who is asked sees the command: {asked:?}");
        self.guest.answer(SESSION, &self.chat, true).await;
        let turn = self.guest.memory.turn(&self.chat, &turn).await;
        let call = calls(&turn)[0];
        assert_eq!((&call["status"], &call["success"]), (&json!("completed"), &json!(true)), "{call}");
        assert!(call["toolInput"].to_string().contains("made.txt"), "{call}");
        assert!(call["content"].to_string().contains("allowed"), "{call}");
        assert!(words(&turn).contains("The call gave: allowed"), "{turn}");
        assert_eq!(std::fs::read_to_string(self.file("made.txt")).unwrap().trim(), "allowed");
        self.assert_same().await;

        let turn = self.prompt("run echo denied > denied.txt").await;
        self.v2.decide("deny").await;
        let turn = self.guest.memory.turn(&self.chat, &turn).await;
        let call = calls(&turn)[0];
        assert_eq!(call["status"], "cancelled", "{call}");
        assert!(!self.file("denied.txt").exists());
        self.assert_same().await;
    }

    /// Stops an answer in the middle; the same program then answers the next prompt.
    pub(super) async fn an_answer_is_interrupted(&mut self) {
        let before = self.agent();
        let turn = self.prompt("tick").await;
        self.ticks(&turn).await;
        self.v2.command(json!({"type": "interrupt", "clientMsgId": "interrupt-1"})).await;
        let turn = self.guest.memory.turn(&self.chat, &turn).await;
        assert_eq!(turn["state"], "cancelled", "{turn}");
        let turn = self.turn("say after the interrupt").await;
        assert_eq!(words(&turn), "after the interrupt", "{turn}");
        assert_eq!(self.agent(), before, "the program lives on");
        self.assert_same().await;
    }

    /// Kills the agent in the middle of an answer: the turn says so, and the next one remembers.
    pub(super) async fn the_agent_is_killed(&mut self) {
        let turn = self.prompt("tick").await;
        self.ticks(&turn).await;
        kill(self.agent().expect("an agent runs"));
        let turn = self.guest.memory.turn(&self.chat, &turn).await;
        assert_eq!(turn["state"], "error", "{turn}");
        assert!(turn.to_string().contains("agentKilled"), "{turn}");
        self.it_remembers().await;
    }

    /// Kills the host in the middle of an answer: both clients come back, the turn says so, and the next one remembers.
    pub(super) async fn the_host_is_killed(mut self) -> Self {
        let turn = self.prompt("tick").await;
        self.ticks(&turn).await;
        let agent = self.agent().expect("an agent runs");
        let mut scene = self.with_another_host().await;
        let turn = scene.guest.memory.turn(&scene.chat, &turn).await;
        assert_eq!(turn["state"], "error", "{turn}");
        gone(agent).await;
        scene.it_remembers().await;
        scene
    }

    /// Kills the host and starts it again. Both clients come back.
    async fn with_another_host(mut self) -> Self {
        self.place.kill();
        self.place.again(Way::Capped.query());
        let Self { program, place, relay, guest, v2, chat, turns } = self;
        let seen = Arc::clone(&v2.seen);
        drop(v2);
        let memory = guest.leave().await;
        let (guest, _) = Guest::come_back(Self::transport(&relay).await, "one", memory).await.unwrap();
        let v2 = V2Client::come_back(&relay.url, seen).await;
        Self { program, place, relay, guest, v2, chat, turns }
    }

    /// Stops the session: its program ends at once. The next prompt goes on.
    pub(super) async fn the_session_is_stopped(&mut self) {
        let agent = self.agent().expect("an agent runs");
        self.v2.command(json!({"type": "stop"})).await;
        gone(agent).await;
        let again = json!({"type": "send", "prompt": "recall after the stop", "clientMsgId": "recall-1"});
        self.v2.command(again).await;
        let turn = self.last_turn("recall after the stop").await;
        Self::assert_remembered(&turn);
        self.assert_same().await;
    }

    /// The agent's model is told the prompts of the beginning, whoever has kept them, and each of them once.
    pub(super) async fn it_remembers(&mut self) {
        let turn = self.turn("recall").await;
        Self::assert_remembered(&turn);
        self.assert_same().await;
    }

    fn assert_remembered(turn: &Value) {
        let said = words(turn);
        assert_eq!(turn["state"], "complete", "{turn}");
        for prompt in ["say Hello from here", "run echo allowed"] {
            assert_eq!(said.matches(prompt).count(), 1, "{prompt}: {said}");
        }
    }

    /// Waits until both clients see that an answer has begun.
    async fn ticks(&self, turn: &str) {
        let begun = |state: &SnapshotState| {
            let active = serde_json::to_value(chat_of(state).active_turn.as_ref()?).unwrap();
            (active["id"] == turn && words(&active).contains("tick")).then_some(())
        };
        self.guest.memory.until(&self.chat, begun).await;
        self.v2.seen.until(|state| outline(state).last()?.1.contains("tick").then_some(())).await;
    }

    /// Both clients see the same turns, and the AHP client's state is that of a fresh snapshot.
    async fn assert_same(&self) {
        let SnapshotState::Chat(chat) = serde_json::from_value(self.guest.memory.state(&self.chat)).unwrap() else {
            panic!("no chat");
        };
        let turns: Vec<Outline> =
            chat.turns.iter().map(|turn| ahp_outline(&serde_json::to_value(turn).unwrap())).collect();
        let mut shown = Vec::new();
        for _ in 0..600 {
            let is_running;
            (shown, is_running) = self.v2.seen.look(|state| (outline(state), state.running));
            if shown == turns && !is_running {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("AHP: {turns:?}\nv2: {shown:?}");
    }

    /// What must hold at the end.
    pub(super) async fn end(self) {
        let other = Guest::arrive(Self::transport(&self.relay).await, "other").await;
        for channel in [SESSION, self.chat.as_str()] {
            self.guest.memory.assert_as_fresh(&other, channel).await;
        }
        self.guest.memory.assert_in_order();
        Way::Capped.assert_kept(&self.relay);
        let longest = self.v2.seen.longest.load(Ordering::Relaxed);
        assert!(longest as u64 <= CAP, "{longest}");
    }

    /// The process of the agent, while one runs.
    fn agent(&self) -> Option<u32> {
        agent_of(self.place.pid(), &self.program)
    }
}

/// The process of the agent of a host, while one runs.
pub(super) fn agent_of(host: u32, program: &str) -> Option<u32> {
    let mut found = processes().filter(|process| process.parent == host && process.command.contains(program));
    found.next().map(|process| process.id)
}

/// A turn of AHP's state, as a v2 client shows it.
fn ahp_outline(turn: &Value) -> Outline {
    let call = |call: &&Value| {
        let success = call["status"] == "completed" && call["success"] == true;
        (call["toolName"].as_str().unwrap().to_owned(), success)
    };
    let calls = calls(turn).iter().map(call).collect();
    (turn["message"]["text"].as_str().unwrap().to_owned(), words(turn), calls)
}

/// A process of this machine.
struct Process {
    id: u32,
    parent: u32,
    command: String,
}

/// All processes that are not dead.
fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut rest = rest.split_whitespace();
        let (state, parent) = (rest.next()?, rest.next()?.parse().ok()?);
        let command = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        (state != "Z").then_some(Process { id, parent, command })
    })
}

pub(super) fn kill(id: u32) {
    let killed = std::process::Command::new("kill").args(["-9", &id.to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Waits until a process is gone.
pub(super) async fn gone(id: u32) {
    for _ in 0..600 {
        if !processes().any(|process| process.id == id) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("process {id} still runs");
}
