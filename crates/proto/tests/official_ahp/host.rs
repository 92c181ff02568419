//! A model AHP host: one log of actions, one client at a time, a few files. It has never heard of segments.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahp_types::actions::{ActionEnvelope, StateAction, TerminalDataAction};
use ahp_types::commands::{
    ContentEncoding, InitializeParams, InitializeResult, ListSessionsResult, ReconnectParams, ReconnectReplayResult,
    ReconnectResult, ResourceReadParams, ResourceReadResult, ResourceWriteParams, ResourceWriteResult, SubscribeParams,
    SubscribeResult,
};
use ahp_types::errors::json_rpc_error_codes::METHOD_NOT_FOUND;
use ahp_types::messages::{
    JsonRpcError, JsonRpcErrorResponse, JsonRpcMessage, JsonRpcNotification, JsonRpcRequest, JsonRpcSuccessResponse,
    JsonRpcVersion,
};
use ahp_types::state::{RootState, Snapshot, SnapshotState};
use ahp_types::{ROOT_RESOURCE_URI, negotiate_protocol_version};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::driver::Port;

/// The host. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Host(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    log: Vec<ActionEnvelope>,
    files: HashMap<String, String>,
    default_directory: Option<String>,
    handshakes: Vec<Handshake>,
    subscriptions: HashSet<String>,
    live: Option<UnboundedSender<Bytes>>,
    asked: HashMap<u64, oneshot::Sender<Value>>,
}

/// How a client came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Handshake {
    Initialize(InitializeParams),
    Reconnect(ReconnectParams),
}

impl Host {
    /// Serves one connection.
    pub(crate) fn serve(&self, mut port: Port) {
        let host = self.clone();
        host.lock().live = None;
        tokio::spawn(async move {
            while let Some(text) = port.rx.recv().await {
                match serde_json::from_slice(&text).expect("the host gets JSON-RPC") {
                    JsonRpcMessage::Request(request) => host.lock().answer(request, &port.tx),
                    JsonRpcMessage::SuccessResponse(response) => {
                        if let Some(asker) = host.lock().asked.remove(&response.id) {
                            let _ = asker.send(response.result);
                        }
                    }
                    other => panic!("unexpected: {other:?}"),
                }
            }
        });
    }

    /// Logs terminal output, and sends it to whoever listens. Returns its seq.
    pub(crate) fn publish(&self, channel: &str, data: &str) -> u64 {
        let mut state = self.lock();
        let server_seq = state.log.len() as u64 + 1;
        let action = StateAction::TerminalData(TerminalDataAction { data: data.to_owned() });
        let (channel, origin, rejection_reason) = (channel.to_owned(), None, None);
        let envelope = ActionEnvelope { channel, action, server_seq, origin, rejection_reason };
        state.send_action(&envelope);
        state.log.push(envelope);
        server_seq
    }

    /// Asks the client something; the answer is its result.
    pub(crate) async fn ask(&self, id: u64, method: &str, params: impl Serialize) -> Value {
        let (asker, answer) = oneshot::channel();
        let params = Some(serde_json::to_value(params).unwrap());
        let request = JsonRpcRequest { jsonrpc: JsonRpcVersion::V2, id, method: method.into(), params };
        {
            let mut state = self.lock();
            state.asked.insert(id, asker);
            send(state.live.as_ref().unwrap(), &JsonRpcMessage::Request(request));
        }
        answer.await.unwrap()
    }

    /// A file that `resourceRead` finds.
    pub(crate) fn put_file(&self, uri: &str, text: &str) {
        self.lock().files.insert(uri.into(), text.into());
    }

    /// A file that `resourceWrite` wrote.
    pub(crate) fn file(&self, uri: &str) -> Option<String> {
        self.lock().files.get(uri).cloned()
    }

    /// What `initialize` answers as the default directory.
    pub(crate) fn set_default_directory(&self, uri: &str) {
        self.lock().default_directory = Some(uri.into());
    }

    /// How the client came, each time.
    pub(crate) fn handshakes(&self) -> Vec<Handshake> {
        self.lock().handshakes.clone()
    }

    /// The log, as a client that lacks nothing has seen it.
    pub(crate) fn log(&self) -> Vec<ActionEnvelope> {
        self.lock().log.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Answers a request. The answer and the subscription that it brings are one step: no action falls in between.
    fn answer(&mut self, request: JsonRpcRequest, to: &UnboundedSender<Bytes>) {
        let JsonRpcRequest { jsonrpc, id, method, params } = request;
        let params = params.unwrap_or(Value::Null);
        let result = match method.as_str() {
            "initialize" => value(&self.initialize(read(params), to)),
            "reconnect" => value(&self.reconnect(read(params), to)),
            "subscribe" => value(&self.subscribe(read(params))),
            "listSessions" => value(&ListSessionsResult { next_cursor: None, items: Vec::new() }),
            "ping" => Value::Null,
            "resourceWrite" => value(&self.write(read(params))),
            "resourceRead" => value(&self.read(&read(params))),
            _ => {
                let error = JsonRpcError { code: METHOD_NOT_FOUND, message: method, data: None };
                return send(to, &JsonRpcMessage::ErrorResponse(JsonRpcErrorResponse { jsonrpc, id, error }));
            }
        };
        send(to, &JsonRpcMessage::SuccessResponse(JsonRpcSuccessResponse { jsonrpc, id, result }));
    }

    fn initialize(&mut self, params: InitializeParams, to: &UnboundedSender<Bytes>) -> InitializeResult {
        let version = negotiate_protocol_version(&params.protocol_versions).unwrap().unwrap().to_owned();
        self.subscriptions = params.initial_subscriptions.iter().flatten().cloned().collect();
        self.live = Some(to.clone());
        self.handshakes.push(Handshake::Initialize(params));
        let root = RootState { agents: vec![], active_sessions: Some(0), terminals: None, config: None, meta: None };
        let from_seq = self.log.len() as i64;
        let state = SnapshotState::Root(Box::new(root));
        InitializeResult {
            protocol_version: version,
            server_seq: from_seq,
            server_info: None,
            meta: None,
            snapshots: vec![Snapshot { resource: ROOT_RESOURCE_URI.into(), state, from_seq }],
            default_directory: self.default_directory.clone(),
            completion_trigger_characters: None,
            terminal_command_prefix: None,
            telemetry: None,
            automations: None,
        }
    }

    fn reconnect(&mut self, params: ReconnectParams, to: &UnboundedSender<Bytes>) -> ReconnectResult {
        self.subscriptions = params.subscriptions.iter().cloned().collect();
        self.live = Some(to.clone());
        let missed = |envelope: &&ActionEnvelope| {
            envelope.server_seq as i64 > params.last_seen_server_seq && self.subscriptions.contains(&envelope.channel)
        };
        let actions = self.log.iter().filter(missed).cloned().collect();
        self.handshakes.push(Handshake::Reconnect(params));
        ReconnectResult::Replay(ReconnectReplayResult { actions, missing: vec![] })
    }

    fn subscribe(&mut self, params: SubscribeParams) -> SubscribeResult {
        self.subscriptions.insert(params.channel);
        SubscribeResult { snapshot: None }
    }

    fn write(&mut self, params: ResourceWriteParams) -> ResourceWriteResult {
        self.files.insert(params.uri, params.data);
        ResourceWriteResult {}
    }

    fn read(&self, params: &ResourceReadParams) -> ResourceReadResult {
        let data = self.files[&params.uri].clone();
        ResourceReadResult { data, encoding: ContentEncoding::Utf8, content_type: None }
    }

    fn send_action(&self, envelope: &ActionEnvelope) {
        let Some(live) = self.live.as_ref().filter(|_| self.subscriptions.contains(&envelope.channel)) else {
            return;
        };
        let (jsonrpc, method, params) = (JsonRpcVersion::V2, "action".to_owned(), Some(value(envelope)));
        send(live, &JsonRpcMessage::Notification(JsonRpcNotification { jsonrpc, method, params }));
    }
}

fn send(to: &UnboundedSender<Bytes>, message: &JsonRpcMessage) {
    // A connection that is gone takes nothing; the log has it.
    let _ = to.send(serde_json::to_vec(message).unwrap().into());
}

fn read<T: DeserializeOwned>(params: Value) -> T {
    serde_json::from_value(params).unwrap()
}

fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap()
}
