//! Lines as the program writes them, for small cases.

use serde_json::{Value, json};

pub(crate) fn init() -> Value {
    json!({
        "type": "system", "subtype": "init", "session_id": "s1", "model": "m-1", "permissionMode": "default",
        "tools": ["Bash"], "slash_commands": ["cost"], "agents": ["explorer"], "claude_code_version": "9.9",
    })
}

pub(crate) fn event(event: Value) -> Value {
    json!({ "type": "stream_event", "event": event, "session_id": "s1", "parent_tool_use_id": null, "uuid": "x" })
}

pub(crate) fn message_start(id: &str) -> Value {
    let usage = json!({ "input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 3 });
    event(json!({ "type": "message_start", "message": { "id": id, "model": "m-1", "content": [], "usage": usage } }))
}

pub(crate) fn message_stop() -> Value {
    event(json!({ "type": "message_stop" }))
}

pub(crate) fn block_start(index: u64, block: Value) -> Value {
    event(json!({ "type": "content_block_start", "index": index, "content_block": block }))
}

pub(crate) fn text_start(index: u64) -> Value {
    block_start(index, json!({ "type": "text", "text": "" }))
}

pub(crate) fn call_start(index: u64, tool: &str) -> Value {
    block_start(index, json!({ "type": "tool_use", "id": tool, "name": "Bash", "input": {} }))
}

pub(crate) fn block_stop(index: u64) -> Value {
    event(json!({ "type": "content_block_stop", "index": index }))
}

pub(crate) fn delta(index: u64, delta: Value) -> Value {
    event(json!({ "type": "content_block_delta", "index": index, "delta": delta }))
}

pub(crate) fn text_delta(index: u64, text: &str) -> Value {
    delta(index, json!({ "type": "text_delta", "text": text }))
}

pub(crate) fn input_delta(index: u64, json: &str) -> Value {
    delta(index, json!({ "type": "input_json_delta", "partial_json": json }))
}

/// A message told whole.
pub(crate) fn assistant(id: &str, uuid: &str, content: Value) -> Value {
    json!({
        "type": "assistant", "uuid": uuid, "parent_tool_use_id": null,
        "message": { "id": id, "role": "assistant", "content": content },
    })
}

pub(crate) fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

pub(crate) fn call_block(tool: &str, name: &str, input: Value) -> Value {
    json!({ "type": "tool_use", "id": tool, "name": name, "input": input })
}

pub(crate) fn of_agent(mut line: Value, tool: &str) -> Value {
    line["parent_tool_use_id"] = json!(tool);
    line
}

pub(crate) fn tool_result(tool: &str, content: Value, is_error: bool) -> Value {
    let block = json!({ "type": "tool_result", "tool_use_id": tool, "content": content, "is_error": is_error });
    json!({ "type": "user", "message": { "role": "user", "content": [block] }, "parent_tool_use_id": null })
}

pub(crate) fn can_use_tool(request: &str, tool: &str) -> Value {
    json!({
        "type": "control_request", "request_id": request,
        "request": {
            "subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": tool, "input": { "command": "ls" },
            "permission_suggestions": [
                { "type": "addRules", "rules": [{ "toolName": "Bash", "ruleContent": "ls" }], "behavior": "allow",
                  "destination": "localSettings" },
                { "type": "setMode", "mode": "acceptEdits", "destination": "session" },
            ],
        },
    })
}

pub(crate) fn lifecycle(uuid: &str, state: &str) -> Value {
    json!({ "type": "command_lifecycle", "command_uuid": uuid, "state": state })
}

pub(crate) fn result() -> Value {
    json!({
        "type": "result", "subtype": "success", "is_error": false, "result": "", "session_id": "s1",
        "total_cost_usd": 0.25, "usage": { "input_tokens": 10, "output_tokens": 20 }, "permission_denials": [],
    })
}

pub(crate) fn failed(subtype: &str) -> Value {
    json!({ "type": "result", "subtype": subtype, "is_error": true, "errors": ["it broke"], "session_id": "s1" })
}
