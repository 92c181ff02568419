//! Makes actions that carry a text, for each kind of channel, and reads that text again.

use serde_json::{Value, json};

/// An action that carries this text on this channel. `name` is unique.
pub(crate) fn with_text(channel: &str, name: &str, text: &str) -> Value {
    if let Some(session) = channel.strip_suffix("/annotations") {
        let chat = session.replace("session", "chat");
        let entry = json!({"id": "e", "text": text, "author": {"kind": "user"}, "createdAt": "2026-01-01T00:00:00Z"});
        let origin = json!({"session": session, "chat": chat, "turnId": "t"});
        let annotation = json!({"id": name, "origin": origin, "turnId": "t", "resource": "file:///f", "resolved": false,
            "entries": [entry]});
        json!({"type": "annotations/set", "annotation": annotation})
    } else if channel.starts_with("ahp-chat") {
        json!({"type": "chat/draftChanged", "draft": message(text)})
    } else {
        json!({"type": "session/titleChanged", "title": text})
    }
}

/// The text that an action carries.
pub(crate) fn text_of(action: &Value) -> Option<&str> {
    let at = match action["type"].as_str()? {
        "annotations/set" => &action["annotation"]["entries"][0]["text"],
        "chat/draftChanged" => &action["draft"]["text"],
        _ => &action["title"],
    };
    at.as_str()
}

pub(crate) fn message(text: &str) -> Value {
    json!({"text": text, "origin": {"kind": "user"}})
}

/// What an agent says in one turn: its beginning, some words, its end.
pub(crate) fn turn(id: &str, words: &[String]) -> Vec<Value> {
    let started = json!({"type": "chat/turnStarted", "turnId": id, "startedAt": "2026-01-01T00:00:00.000Z",
        "message": message("say something")});
    let part = json!({"kind": "markdown", "id": "p", "content": ""});
    let part = json!({"type": "chat/responsePart", "turnId": id, "part": part});
    let delta = |text: &String| json!({"type": "chat/delta", "turnId": id, "partId": "p", "content": text});
    let complete = json!({"type": "chat/turnComplete", "turnId": id, "duration": 1});
    [started, part].into_iter().chain(words.iter().map(delta)).chain([complete]).collect()
}
