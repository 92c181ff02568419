//! The recordings, through a real host: each gives the AHP transcript that is kept beside it, and each prefix of it that an exit cuts
//! leaves a chat without an open turn. `RENEW_TRANSCRIPTS=1` writes the transcripts anew; read the difference before you commit it.

use serde_json::{Value, json};

use super::fake::Fake;
use super::turns::host;
use crate::test_host::{CHAT, SESSION, TestHost};

const RECORDINGS: [&str; 9] = [
    "background-2.1.326",
    "errors-2.1.326",
    "folded-2.1.326",
    "interrupt-2.0.30",
    "queue-and-interrupt-2.1.325",
    "subagent-2.1.326",
    "tools-2.0.30",
    "tools-2.1.325",
    "withdrawn-2.1.326",
];

fn recording(name: &str) -> String {
    let path = format!("{}/../lifecycle/fixtures/{name}.ndjson", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// What the fake shows in the chat when it waits for somebody.
const MARK: &str = "The agent has summarized the conversation so far to save space.";

/// Does what was done in the recording, whenever the program waits for it, until the chat has so many turns.
async fn drive(host: &TestHost, fake: &Fake, turns: usize) {
    let (mut seen, mut prompts) = (0, 0);
    loop {
        if prompts == 0 {
            // The program starts with the first prompt.
            prompts = 1;
            host.prompt(CHAT, "turn-1", "prompt 1").await;
        }
        let (count, waits) = fake.waits();
        if count == seen {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            continue;
        }
        seen = count;
        match waits.as_str() {
            "initialize" => {}
            "user" if count <= 2 => {}
            "user" => {
                host.until(CHAT, |chat| chat["activeTurn"].is_null()).await;
                prompts += 1;
                host.prompt(CHAT, &format!("turn-{prompts}"), &format!("prompt {prompts}")).await;
            }
            "allow" | "deny" => {
                marked(host).await;
                host.answer(waits == "allow").await;
            }
            "interrupt" => {
                marked(host).await;
                host.cancel(CHAT, &format!("turn-{prompts}")).await;
            }
            "end" => {
                host.turns(CHAT, turns).await;
                return;
            }
            other => panic!("{other}"),
        }
    }
}

/// Waits until the chat shows all that the program has written before it waits.
async fn marked(host: &TestHost) {
    let is_marked = |chat: &Value| {
        let parts = chat["activeTurn"]["responseParts"].as_array();
        let last = parts.and_then(|parts| parts.last()).map(|part| part["content"].clone());
        last.is_some_and(|content| content == MARK)
    };
    host.until(CHAT, is_marked).await;
}

/// What a client of the chat and of the session sees, without times and random names.
async fn transcript(host: &TestHost) -> String {
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
            if action["part"]["content"] == MARK {
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
    format!("{}\n", lines.join("\n"))
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

#[tokio::test]
async fn each_recording_gives_the_transcript_beside_it() {
    for name in RECORDINGS {
        let text = recording(name);
        let fake = Fake::new(&[&text]);
        let host = host(&fake).await;
        let is_end = |line: &&str| line.starts_with("<<<") && line.contains("\"type\":\"result\"");
        drive(&host, &fake, text.lines().filter(is_end).count()).await;
        let shown = unnamed(&transcript(&host).await);
        let path = format!("{}/tests/agent_runner/claude/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("RENEW_TRANSCRIPTS").is_some() {
            std::fs::write(&path, &shown).unwrap();
        }
        assert_eq!(shown, std::fs::read_to_string(&path).unwrap_or_default(), "{name}");
        host.inner.stop().await;
    }
}

/// Replaces names that are made anew in each run: 32 hexadecimal digits.
fn unnamed(text: &str) -> String {
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

#[tokio::test]
async fn every_prefix_that_an_exit_cuts_leaves_no_turn_open() {
    // The recordings that wait for nobody after the first prompt, so that every cut is one of the program alone.
    for name in ["subagent-2.1.326", "background-2.1.326"] {
        let text = recording(name);
        let lines: Vec<&str> = text.lines().collect();
        for cut in 2..=lines.len() {
            let mut script = lines[..cut].join("\n");
            script.push('\n');
            if let Some(next) = lines.get(cut) {
                script.push_str(&format!("!!! half\n{next}\n"));
            } else {
                script.push_str("!!! exit 0\n");
            }
            let fake = Fake::new(&[&script]);
            let host = host(&fake).await;
            host.prompt(CHAT, "1", "Hi").await;
            let is_over = |chat: &Value| chat["activeTurn"].is_null() && chat["turns"][0].is_object();
            host.until(CHAT, is_over).await;
            host.inner.stop().await;
            let session = host.see(SESSION).await;
            for chat in session["chats"].as_array().unwrap() {
                let state = host.see(chat["resource"].as_str().unwrap()).await;
                assert!(state["activeTurn"].is_null(), "{name} cut at {cut}: {state:#}");
            }
            assert!(session["inputNeeded"].as_array().is_none_or(Vec::is_empty), "{name} cut at {cut}");
        }
    }
}
