//! A client that comes back: whatever happens to its links, its application sees each action once, and its host each prompt.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod actions;
mod bridge;
mod host;
mod line;
mod prompts;
mod requests;
mod states;

use breakbulk_proto::Message;
use serde_json::json;

const CHAT: &str = "ahp-chat:/1";
const TERMINAL: &str = "ahp-terminal:/1";
/// More than one frame of the official transport takes, and 350 frames here.
const LARGE_BYTES: usize = 17_000_000;

fn turn(id: &str, len: usize) -> Message {
    json!({ "type": "chat/turnStarted", "turnId": id, "message": { "text": "x".repeat(len) } }).to_string().into()
}
