//! An agent's program: this bench again, which speaks as the Claude Code program does and streams text at a fixed rate. Each
//! delta is the time at which its line is written, by the clock that all processes of a machine share.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// By this word the bench knows that it is to be the agent.
pub(crate) const WORD: &str = "--as-agent";

/// Whether this process was started as the agent.
pub(crate) fn is_agent() -> bool {
    std::env::args_os().any(|argument| argument == WORD)
}

/// Answers prompts that say how many deltas to write, and how many in a second, until there are no more.
pub(crate) fn play() {
    for (turn, line) in std::io::stdin().lock().lines().enumerate() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        match line["type"].as_str() {
            Some("control_request") => {
                let response = json!({"subtype": "success", "request_id": line["request_id"], "response": {}});
                say(&json!({"type": "control_response", "response": response}));
            }
            Some("user") => answer(turn, &prompt(&line)),
            _ => {}
        }
    }
}

fn answer(turn: usize, prompt: &str) {
    let mut numbers = prompt.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
    let (deltas, rate) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(1));
    say(&json!({"type": "system", "subtype": "init", "session_id": "s", "model": "m", "permissionMode": "default"}));
    let message = json!({"id": format!("msg_{turn}"), "role": "assistant", "content": []});
    stream(&json!({"type": "message_start", "message": message}));
    let block = json!({"type": "text", "text": ""});
    stream(&json!({"type": "content_block_start", "index": 0, "content_block": block}));
    let begin = Instant::now();
    for delta in 0..deltas {
        let due = begin + Duration::from_secs(1) * delta / rate;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let text = format!("{} ", now());
        stream(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}));
    }
    stream(&json!({"type": "content_block_stop", "index": 0}));
    stream(&json!({"type": "message_stop"}));
    say(&json!({"type": "result", "subtype": "success", "is_error": false, "num_turns": 1, "session_id": "s",
        "total_cost_usd": 0.0, "usage": {"input_tokens": 1, "output_tokens": 1}}));
}

fn prompt(line: &Value) -> String {
    let content = &line["message"]["content"];
    content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or_default().to_owned()
}

fn stream(event: &Value) {
    say(&json!({"type": "stream_event", "event": event, "parent_tool_use_id": null}));
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
}

/// The time, in nanoseconds since some moment that is the same for all processes.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
