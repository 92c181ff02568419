//! The recordings, end to end through a real host: each gives the AHP and the v2 transcript that are kept beside its test, and each
//! prefix of it that an exit cuts leaves nothing open. `RENEW_TRANSCRIPTS=1` writes the transcripts anew; read the difference before
//! you commit it.
//!
//! A fake program plays the lines that the agent wrote, and waits where the agent was told something. Here is who tells it: the
//! prompts, answers and interrupts of the recording, whenever the program waits for them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use breakbulk_host::agent::Agent;
use breakbulk_host::agent::acp::Acp;
use breakbulk_host::agent::claude::Claude;
use breakbulk_lifecycle::v2::wire::{Body, Event};
use serde_json::{Value, json};

use crate::acp::fake::Fake as AcpFake;
use crate::claude::fake::Fake as ClaudeFake;
use crate::test_host::{CHAT, SESSION, TestHost};

/// What a fake shows in the chat when it waits for somebody: whoever sees it has seen all that came before.
const MARKS: [&str; 2] = ["The agent has summarized the conversation so far to save space.", crate::acp::fake::MARK];

/// How many prefixes of a recording are played, spread over its lines. `BREAKBULK_ALL_PREFIXES=1` plays all.
const PREFIXES: usize = 12;

/// How long a recording may take: far longer than any does.
const PATIENCE: Duration = Duration::from_secs(60);

/// A recording of an agent.
#[derive(Debug, Clone, Copy)]
enum Recording {
    Claude(&'static str),
    Acp(&'static str),
}

const RECORDINGS: [Recording; 18] = [
    Recording::Claude("background-2.1.326"),
    Recording::Claude("errors-2.1.326"),
    Recording::Claude("folded-2.1.326"),
    Recording::Claude("interrupt-2.0.30"),
    Recording::Claude("queue-and-interrupt-2.1.325"),
    Recording::Claude("subagent-2.1.326"),
    Recording::Claude("tools-2.0.30"),
    Recording::Claude("tools-2.1.325"),
    Recording::Claude("withdrawn-2.1.326"),
    Recording::Acp("claude-agent-acp-interrupt-0.49.0"),
    Recording::Acp("claude-agent-acp-tools-0.49.0"),
    Recording::Acp("codex-acp-interrupt-0.16.0"),
    Recording::Acp("codex-acp-tools-0.16.0"),
    Recording::Acp("echo-0.12.1"),
    Recording::Acp("gemini-interrupt-0.61.0"),
    Recording::Acp("gemini-tools-0.61.0"),
    Recording::Acp("opencode-interrupt-1.18.33"),
    Recording::Acp("opencode-tools-1.18.33"),
];

/// A fake program that plays a script.
enum Player {
    Claude(ClaudeFake),
    Acp(AcpFake),
}

impl Recording {
    const fn name(self) -> &'static str {
        match self {
            Self::Claude(name) | Self::Acp(name) => name,
        }
    }

    /// What the programs were told and said, a script for each start.
    fn scripts(self) -> Vec<String> {
        let folder = match self {
            Self::Claude(_) => "",
            Self::Acp(_) => "acp/",
        };
        let path = format!("{}/../lifecycle/fixtures/{folder}{}.ndjson", env!("CARGO_MANIFEST_DIR"), self.name());
        let text = std::fs::read_to_string(path).unwrap();
        let runs = text.split("!!! run\n").filter(|run| !run.is_empty()).map(str::to_owned);
        runs.collect()
    }

    /// How many turns there are: prompts, and what the program begins by itself.
    fn turns(self) -> usize {
        let is_end = |line: &&str| match self {
            Self::Claude(_) => line.starts_with("<<<") && line.contains("\"type\":\"result\""),
            Self::Acp(_) => line.starts_with(">>>") && line.contains("\"session/prompt\""),
        };
        self.scripts().iter().map(|script| script.lines().filter(is_end).count()).sum()
    }

    fn player(self, scripts: &[String]) -> Player {
        let scripts = &scripts.iter().map(String::as_str).collect::<Vec<_>>();
        match self {
            Self::Claude(_) => Player::Claude(ClaudeFake::new(scripts)),
            Self::Acp(_) => Player::Acp(AcpFake::playing(scripts)),
        }
    }

    fn golden(self, ending: &str) -> PathBuf {
        let folder = match self {
            Self::Claude(_) => "claude",
            Self::Acp(_) => "acp",
        };
        let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/agent_runner");
        tests.join(folder).join("golden").join(format!("{}.{ending}", self.name()))
    }
}

impl Player {
    fn agent(&self) -> Arc<dyn Agent> {
        match self {
            Self::Claude(fake) => Arc::new(Claude::new(fake.config())),
            Self::Acp(fake) => Arc::new(Acp::new(fake.config())),
        }
    }

    /// What it has waited for so far, in order.
    fn waits(&self) -> Vec<String> {
        match self {
            Self::Claude(fake) => fake.waits(),
            Self::Acp(fake) => fake.waits(),
        }
    }
}

/// Does what was done in the recording, whenever the program waits for it, until the program is done and the chat has so many turns
/// or more.
async fn drive(host: &TestHost, player: &Player, turns: usize) {
    // The program starts with the first prompt.
    host.prompt(CHAT, "turn-1", "prompt 1").await;
    let (mut seen, mut prompts, mut answered) = (0, 0, Vec::new());
    let begin = tokio::time::Instant::now();
    loop {
        let waits = player.waits();
        let Some(wait) = waits.get(seen) else {
            assert!(begin.elapsed() < PATIENCE, "nothing more after {waits:?}");
            tokio::time::sleep(Duration::from_millis(3)).await;
            continue;
        };
        seen += 1;
        match wait.as_str() {
            "user" => {
                prompts += 1;
                if prompts > 1 {
                    host.until(CHAT, |chat| chat["activeTurn"].is_null()).await;
                    host.prompt(CHAT, &format!("turn-{prompts}"), &format!("prompt {prompts}")).await;
                }
            }
            "allow" | "deny" => {
                marked(host).await;
                answered.push(answer_next(host, &answered, wait == "allow").await);
            }
            "interrupt" => {
                marked(host).await;
                host.cancel(CHAT, &format!("turn-{prompts}")).await;
            }
            "end" => break,
            // It waits for what the host does by itself.
            _ => {}
        }
    }
    let is_done = |chat: &Value| chat["activeTurn"].is_null() && chat["turns"].as_array().unwrap().len() >= turns;
    host.until(CHAT, is_done).await;
}

/// Answers the first question that is not answered yet; returns its name. An answered one may still be listed for a moment.
async fn answer_next(host: &TestHost, answered: &[String], approved: bool) -> String {
    let open = |session: &Value| {
        let mut needs = session["inputNeeded"].as_array().into_iter().flatten();
        needs.find(|need| !answered.iter().any(|id| need["id"] == *id)).cloned()
    };
    let session = host.until(SESSION, |session| open(session).is_some()).await;
    let need = open(&session).unwrap();
    let mut action = json!({"type": "chat/toolCallConfirmed", "turnId": need["turnId"], "approved": approved,
        "toolCallId": need["toolCall"]["toolCallId"]});
    match approved {
        true => action["confirmed"] = json!("user-action"),
        false => action["reason"] = json!("denied"),
    }
    host.act(need["chat"].as_str().unwrap(), action).await;
    need["id"].as_str().unwrap().to_owned()
}

/// Waits until the chat shows all that the program has written before it waits.
async fn marked(host: &TestHost) {
    let is_marked = |chat: &Value| {
        let parts = chat["activeTurn"]["responseParts"].as_array();
        parts.and_then(|parts| parts.last()).is_some_and(is_mark)
    };
    host.until(CHAT, is_marked).await;
}

fn is_mark(part: &Value) -> bool {
    part["content"].as_str().is_some_and(|content| MARKS.contains(&content))
}

/// What a client of the session's chats is told, without times.
async fn ahp_transcript(host: &TestHost) -> Vec<String> {
    let mut lines = Vec::new();
    let session = host.see(SESSION).await;
    let chats = session["chats"].as_array().unwrap().iter().map(|chat| chat["resource"].as_str().unwrap().to_owned());
    for chat in chats.collect::<Vec<_>>() {
        let state = host.see(&chat).await;
        if state["turns"].as_array().unwrap().is_empty() {
            continue;
        }
        for entry in host.entries(&chat).await {
            let Some(mut action) = entry.get("action").cloned() else { continue };
            if is_mark(&action["part"]) {
                continue;
            }
            for name in ["startedAt", "duration"] {
                if action.get(name).is_some() {
                    action[name] = json!("…");
                }
            }
            lines.push(format!("{chat} {}", sorted(action)));
        }
    }
    lines
}

/// What a v2 client is told that had the session when it was empty, without times and places in the log.
fn v2_transcript(events: &[Event]) -> Vec<String> {
    let shown =
        events.iter().filter(|event| !matches!(&event.body, Body::Notice { text, .. } if MARKS.contains(&&**text)));
    let line = |event: &Event| {
        let mut value = serde_json::to_value(event).unwrap();
        let object = value.as_object_mut().unwrap();
        for name in ["v", "ts", "seq", "sub", "more", "sessionId"] {
            object.remove(name);
        }
        for name in ["expiresAt", "cwd"] {
            if object.contains_key(name) {
                object.insert(name.to_owned(), json!("…"));
            }
        }
        sorted(value).to_string()
    };
    shown.map(line).collect()
}

/// The same with the keys of objects in order: whether they keep their own depends on features of other crates.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut members: Vec<(String, Value)> =
                object.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            members.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(members.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// Replaces names that are made anew in each run: 32 hexadecimal digits, and directories for a test.
fn unnamed(text: &str, host: &TestHost) -> String {
    let text = text.replace(host.path().to_str().unwrap(), "/project");
    let mut out = String::with_capacity(text.len());
    let mut word = String::new();
    for char in text.chars().chain(['\n']) {
        if char.is_ascii_hexdigit() {
            word.push(char);
            continue;
        }
        out.push_str(if word.len() == 32 { "RANDOM" } else { &word });
        word.clear();
        out.push(char);
    }
    out.pop();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn each_recording_gives_the_transcripts_beside_it() {
    for recording in RECORDINGS {
        let player = recording.player(&recording.scripts());
        let host = TestHost::new(player.agent()).await;
        let start = host.log.bounds().await.unwrap().last;
        drive(&host, &player, recording.turns()).await;
        let events = host.v2_events(start).await;
        assert_v2_whole(recording.name(), &events);
        for (ending, lines) in [("txt", ahp_transcript(&host).await), ("v2.txt", v2_transcript(&events))] {
            let shown = unnamed(&format!("{}\n", lines.join("\n")), &host);
            let path = recording.golden(ending);
            if std::env::var_os("RENEW_TRANSCRIPTS").is_some() {
                std::fs::write(&path, &shown).unwrap();
            }
            let golden = std::fs::read_to_string(&path).unwrap_or_default();
            let differs = shown.lines().zip(golden.lines()).position(|(shown, golden)| shown != golden);
            assert!(
                shown == golden,
                "{} differs from line {:?} on:\n{shown}",
                path.display(),
                differs.map(|at| at + 1)
            );
        }
        host.inner.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_prefix_that_an_exit_cuts_leaves_nothing_open() {
    // Side by side: each waits for processes most of the time.
    let local = tokio::task::LocalSet::new();
    let all = RECORDINGS.map(|recording| local.spawn_local(every_prefix(recording)));
    local.await;
    for done in all {
        done.await.unwrap();
    }
}

async fn every_prefix(recording: Recording) {
    // The first two lines come before any turn.
    let last = recording.scripts().iter().map(|script| script.lines().count()).sum::<usize>();
    let cuts: BTreeSet<usize> = match std::env::var_os("BREAKBULK_ALL_PREFIXES") {
        Some(_) => (2..=last).collect(),
        None => (0..PREFIXES).map(|part| 2 + part * (last - 2) / (PREFIXES - 1)).collect(),
    };
    for cut in cuts {
        cut_at(recording, cut).await;
    }
}

/// Plays so many lines. Then the program exits, in the middle of the next one.
async fn cut_at(recording: Recording, cut: usize) {
    let name = recording.name();
    let player = recording.player(&cut_scripts(recording, cut));
    let host = TestHost::new(player.agent()).await;
    let start = host.log.bounds().await.unwrap().last;
    drive(&host, &player, 1).await;
    host.inner.stop().await;
    // A turn that the program began by itself while the host stopped is ended at the next start.
    let host = host.crash(player.agent()).await;
    let session = host.see(SESSION).await;
    for chat in session["chats"].as_array().unwrap() {
        let state = host.see(chat["resource"].as_str().unwrap()).await;
        assert!(state["activeTurn"].is_null(), "{name} cut at {cut}: {state:#}");
    }
    assert!(session["inputNeeded"].as_array().is_none_or(Vec::is_empty), "{name} cut at {cut}");
    assert_v2_whole(&format!("{name} cut at {cut}"), &host.v2_events(start).await);
}

/// The scripts of so many lines, and the exit behind them.
fn cut_scripts(recording: Recording, cut: usize) -> Vec<String> {
    let (mut left, mut cut_scripts) = (cut, Vec::new());
    for script in recording.scripts() {
        let lines: Vec<&str> = script.lines().collect();
        let played = left.min(lines.len());
        left -= played;
        let mut text: String = lines[..played].iter().map(|line| format!("{line}\n")).collect();
        if left == 0 {
            match lines.get(played) {
                Some(next) if next.starts_with("<<<") => text.push_str(&format!("!!! half\n{next}\n")),
                _ => text.push_str("!!! exit 0\n"),
            }
            cut_scripts.push(text);
            break;
        }
        cut_scripts.push(text);
    }
    cut_scripts
}

/// Asserts that what a v2 client was told is whole: each message, block, permission and turn that begins ends, once.
fn assert_v2_whole(what: &str, events: &[Event]) {
    let mut open = BTreeSet::new();
    let mut begin = |key: String| assert!(open.insert(key.clone()), "{what}: {key} begins again");
    let mut ended = Vec::new();
    for event in events {
        match &event.body {
            Body::MessageStart { message_id, .. } => begin(format!("message {message_id}")),
            Body::MessageEnd { message_id, .. } => ended.push(format!("message {message_id}")),
            Body::BlockStart { message_id, block_id, .. } => begin(format!("block {message_id} {block_id}")),
            Body::BlockEnd { message_id, block_id, .. } => ended.push(format!("block {message_id} {block_id}")),
            Body::PermissionRequest { perm_id, .. } => begin(format!("permission {perm_id}")),
            Body::PermissionResolved { perm_id, .. } | Body::PermissionTimeout { perm_id, .. } => {
                ended.push(format!("permission {perm_id}"));
            }
            Body::UserMessage { turn_id, .. } => begin(format!("turn {turn_id}")),
            Body::TurnEnd { turn_id, .. } => ended.push(format!("turn {turn_id}")),
            _ => {}
        }
    }
    for key in ended {
        assert!(open.remove(&key), "{what}: {key} ends, and did not begin or has ended");
    }
    assert!(open.is_empty(), "{what}: these do not end: {open:?}");
}
