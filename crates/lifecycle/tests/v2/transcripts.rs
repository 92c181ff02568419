//! Transcripts that the page's model is tested with too: what a client is told in an order that no server should use, and the
//! state that it must have then. `web/tools/transcripts.mjs` writes the events, and what the page's model makes of them.

use breakbulk_lifecycle::v2::wire::Event;
use breakbulk_lifecycle::v2::{Author, Block, Message, MessageState, Model, Permission};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Transcript {
    name: String,
    events: Vec<Event>,
    applied: usize,
    last_seq: Option<u64>,
    state: Value,
}

#[test]
fn the_model_and_the_one_of_the_page_agree() {
    let transcripts: Vec<Transcript> = serde_json::from_str(include_str!("golden/transcripts.json")).unwrap();
    assert!(!transcripts.is_empty());
    for Transcript { name, events, applied, last_seq, state } in transcripts {
        let mut model = Model::new("s");
        assert_eq!(events.iter().filter(|event| model.apply(event)).count(), applied, "{name}");
        assert_eq!(model.last_seq(), last_seq, "{name}");
        assert_eq!(written(model.state()), state, "{name}");
    }
}

fn written(state: &MessageState) -> Value {
    let MessageState { messages, current, running, state: doing, permissions, queue, mode, .. } = state;
    json!({
        "messages": messages.iter().map(message).collect::<Vec<_>>(),
        "current": current.as_ref().map(message),
        "running": running,
        "state": doing,
        "permissions": permissions.iter().map(permission).collect::<Vec<_>>(),
        "queue": queue,
        "mode": mode,
        "cwd": state.cwd,
        "branch": state.branch,
        "isWorktree": state.is_worktree,
        "hasEarlier": state.has_earlier,
        "error": state.error,
        "ended": state.ended,
    })
}

fn message(message: &Message) -> Value {
    let Message { message_id, author, turn_id, blocks } = message;
    let author = match author {
        Author::User => "user",
        Author::Agent => "agent",
    };
    let blocks: Vec<_> = blocks.iter().map(block).collect();
    let mut written = json!({ "messageId": message_id, "author": author, "blocks": blocks });
    put(&mut written, "turnId", turn_id.as_ref().map(|id| json!(id)));
    written
}

fn block(of: &Block) -> Value {
    let Block { message_id, block_id, block_type, content, done, tool, blocks } = of;
    let kind = match block_type {
        breakbulk_lifecycle::BlockType::Text => "text",
        breakbulk_lifecycle::BlockType::Thinking => "thinking",
        breakbulk_lifecycle::BlockType::Redacted => "redacted_thinking",
        breakbulk_lifecycle::BlockType::ToolInput => "tool_use",
    };
    let blocks: Vec<_> = blocks.iter().map(block).collect();
    let mut written = json!({ "messageId": message_id, "blockId": block_id, "blockType": kind, "content": content,
        "done": done, "blocks": blocks });
    let tool = tool.as_ref().map(|tool| {
        let mut written = json!({ "toolName": tool.tool_name });
        put(&mut written, "toolId", tool.tool_id.as_ref().map(|id| json!(id)));
        put(&mut written, "input", tool.input.as_ref().map(|input| json!(input)));
        let outcome = tool.outcome.as_ref().map(|outcome| {
            let mut written = json!({ "result": outcome.result, "isError": outcome.is_error });
            put(&mut written, "bytes", outcome.bytes.map(|bytes| json!(bytes)));
            put(&mut written, "url", outcome.url.as_ref().map(|url| json!(url)));
            written
        });
        put(&mut written, "outcome", outcome);
        written
    });
    put(&mut written, "tool", tool);
    written
}

fn permission(of: &Permission) -> Value {
    let Permission { perm_id, tool_id, tool_name, tool_input, title, description, expires_at, options } = of;
    let mut written = json!({ "permId": perm_id, "toolId": tool_id, "toolName": tool_name, "toolInput": tool_input,
        "expiresAt": expires_at, "options": options });
    put(&mut written, "title", title.as_ref().map(|title| json!(title)));
    put(&mut written, "description", description.as_ref().map(|text| json!(text)));
    written
}

/// Adds a field, if there is one.
fn put(written: &mut Value, name: &str, value: Option<Value>) {
    if let (Some(object), Some(value)) = (written.as_object_mut(), value) {
        let _: &mut Map<String, Value> = object;
        object.insert(name.to_owned(), value);
    }
}
