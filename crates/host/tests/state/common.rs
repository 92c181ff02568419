//! What the state's tests share.

use std::sync::Arc;

use ahp_types::actions::StateAction;
use ahp_types::commands::ListSessionsParams;
use ahp_types::state::{SessionSummary, SnapshotState};
use breakbulk_host::log::{Batch, Log, Seq};
use breakbulk_host::test_support::state::{ChannelKind, ChannelSnapshot, State, StateConfig, View, entry};
use serde_json::{Value, json};

pub(crate) const ROOT: &str = "ahp-root://";
pub(crate) const SESSION: &str = "ahp-session:/1";
pub(crate) const CHAT: &str = "ahp-chat:/1";
pub(crate) const TERMINAL: &str = "ahp-terminal:/1";

pub(crate) const ALL: View = View { turns: None };

/// A configuration that saves and forgets whenever it can.
pub(crate) fn eager() -> StateConfig {
    StateConfig { max_bytes: 1, save_after_bytes: 1, turns_per_page: 2, ..StateConfig::default() }
}

pub(crate) fn last(turns: u64) -> View {
    View { turns: Some(turns) }
}

pub(crate) fn chat() -> SnapshotState {
    let chat = json!({"resource": CHAT, "title": "A chat", "status": 1, "modifiedAt": "2026-01-01T00:00:00.000Z", "turns": [],
        "_meta": {"turns": [], "text": "\"turns\":[]"}});
    SnapshotState::Chat(serde_json::from_value(chat).unwrap())
}

pub(crate) fn session() -> SnapshotState {
    let session = json!({"provider": "demo", "title": "A session", "status": 1, "lifecycle": "creating",
        "activeClients": [], "chats": []});
    SnapshotState::Session(serde_json::from_value(session).unwrap())
}

pub(crate) fn terminal() -> SnapshotState {
    let terminal = json!({"title": "sh", "content": [], "lifecycle": {"status": "running"},
        "claim": {"kind": "client", "clientId": "c"}});
    SnapshotState::Terminal(serde_json::from_value(terminal).unwrap())
}

pub(crate) fn summary(session: &str, modified: &str) -> SessionSummary {
    let summary = json!({"provider": "demo", "title": session, "status": 1, "resource": session,
        "createdAt": "2026-01-01T00:00:00.000Z", "modifiedAt": modified});
    serde_json::from_value(summary).unwrap()
}

/// Begins a channel; returns the seq of its first entry.
pub(crate) async fn begin(log: &dyn Log, channel: &str, state: &SnapshotState) -> Seq {
    let owner = (ChannelKind::of(state) != ChannelKind::Root).then_some(SESSION);
    let batch = Batch::new().open(channel, owner).entry(channel, entry::initial(channel, state).unwrap());
    log.append(batch).await.unwrap()[0]
}

/// Appends an action.
pub(crate) async fn act(log: &dyn Log, channel: &str, action: Value) -> Seq {
    let action: StateAction = serde_json::from_value(action).unwrap();
    let batch = Batch::new().entry(channel, entry::action(channel, &action, None).unwrap());
    log.append(batch).await.unwrap()[0]
}

/// Appends a whole turn with an answer of this many bytes.
pub(crate) async fn turn(log: &dyn Log, id: &str, bytes: usize) -> Seq {
    let mut batch = Batch::new();
    for action in turn_actions(id, &"x".repeat(bytes)) {
        let action: StateAction = serde_json::from_value(action).unwrap();
        batch = batch.entry(CHAT, entry::action(CHAT, &action, None).unwrap());
    }
    *log.append(batch).await.unwrap().last().unwrap()
}

pub(crate) fn turn_actions(id: &str, text: &str) -> [Value; 3] {
    [
        started(id),
        json!({"type": "chat/responsePart", "turnId": id, "part": {"kind": "markdown", "id": "p", "content": text}}),
        json!({"type": "chat/turnComplete", "turnId": id, "duration": 5}),
    ]
}

pub(crate) fn started(id: &str) -> Value {
    json!({"type": "chat/turnStarted", "turnId": id, "startedAt": "2026-01-01T00:00:00.000Z", "message": message("do")})
}

pub(crate) fn message(text: &str) -> Value {
    json!({"text": text, "origin": {"kind": "user"}})
}

pub(crate) fn errored(id: &str, resumable: bool) -> Value {
    json!({"type": "chat/error", "turnId": id, "duration": 5,
        "part": {"kind": "error", "error": {"errorType": "e", "message": "no"}, "resumable": resumable}})
}

pub(crate) async fn open(log: &Arc<dyn Log>, config: StateConfig) -> Arc<State> {
    State::open(log.clone(), config).await.unwrap()
}

pub(crate) fn json_of(snapshot: &ChannelSnapshot) -> Value {
    let text: Value = serde_json::from_slice(&snapshot.body.to_bytes()).unwrap();
    assert_eq!(text["fromSeq"], json!(snapshot.from_seq));
    text["state"].clone()
}

/// A channel's state as a client sees it after everything that is in the log.
pub(crate) async fn seen(state: &State, log: &dyn Log, channel: &str, view: View) -> Value {
    let last = log.bounds().await.unwrap().last;
    let snapshot = state.snapshot(channel, view, last).await.unwrap();
    assert!(snapshot.from_seq >= last);
    assert_eq!(state.size_of(channel, view).await.unwrap(), snapshot.body.len() as u64);
    json_of(&snapshot)
}

pub(crate) fn ids(chat: &Value) -> Vec<&str> {
    chat["turns"].as_array().unwrap().iter().map(|turn| turn["id"].as_str().unwrap()).collect()
}

pub(crate) fn list(limit: Option<i64>, cursor: Option<String>) -> ListSessionsParams {
    ListSessionsParams { channel: ROOT.into(), meta: None, limit, cursor }
}
