//! One run of an ACP agent: JSON-RPC lines both ways, from `initialize` to the end of the process.
//!
//! ```text
//!  new ─▶ initialize ─▶ [authenticate] ─▶ session/resume | session/load | session/new ─▶ ConnectionSignal::Opened ─▶ send, cancel, …
//! ```
//!
//! The official crate has a connection too. Its queues are unbounded by contract, so an agent that floods us would take all
//! memory. So here are its types on lines that the caller reads one by one.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AgentCapabilities, AuthMethod, AuthenticateRequest, CancelNotification, ClientCapabilities,
    ClientSessionCapabilities, ContentBlock, CreateTerminalRequest, FileSystemCapabilities, Implementation,
    InitializeRequest, InitializeResponse, KillTerminalRequest, LoadSessionRequest, NewSessionRequest,
    NewSessionResponse, NoticeCapabilities, PromptRequest, PromptResponse, ReadTextFileRequest, ReleaseTerminalRequest,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse, ResourceLink, ResumeSessionRequest,
    SessionConfigKind, SessionConfigOption, SessionConfigOptionCategory, SessionConfigOptionValue, SessionId,
    SessionModeState, SessionNotification, SetSessionConfigOptionRequest, SetSessionConfigOptionResponse,
    SetSessionModeRequest, StopReason, TerminalOutputRequest, TextContent, WaitForTerminalExitRequest,
    WriteTextFileRequest,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Limits, SessionSignal, Translator};
use crate::{Answer, Event, ExitReason, Failure, Id, Received};

/// The agent wants the user to log in first.
const AUTH_REQUIRED: i64 = -32_000;
const METHOD_NOT_FOUND: i64 = -32_601;
const INVALID_PARAMS: i64 = -32_602;
const INTERNAL_ERROR: i64 = -32_603;

/// Requests of the agent that may wait for an answer of the host: terminals that run side by side, not more.
const MAX_HOST_REQUESTS: usize = 256;

/// How a session begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opening {
    /// The working directory, absolute.
    pub cwd: PathBuf,
    /// More directories, absolute.
    pub additional_directories: Vec<PathBuf>,
    /// The token of an earlier [`Event::Resumable`]: the session to go on with.
    pub resume: Option<String>,
    /// The way to log in, by the agent's own id for it, if the agent asks for that.
    pub auth_method: Option<String>,
    /// What the host does for the agent.
    pub offers: Offers,
}

/// What a host does for its agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offers {
    /// Reads and writes files.
    pub files: bool,
    /// Runs commands in terminals.
    pub terminals: bool,
}

/// Something that the host has to know or to do.
#[derive(Debug, Clone, PartialEq)]
pub enum ConnectionSignal {
    /// A session is open: prompts may be sent.
    Opened(Box<Opened>),
    /// No session could be opened. Nothing more will come.
    NotOpened(Failure),
    /// Something about the session.
    Session(SessionSignal),
    /// The agent wants the host to do something, and waits for [`respond`](Connection::respond).
    Request {
        /// The name of the request.
        request: u64,
        /// What it wants.
        wanted: Box<HostRequest>,
    },
}

/// A session that is open.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// Whether the agent remembers the session that it was asked to go on with. If not, it knows nothing.
    pub remembers: bool,
    /// Whether it can go on with this session later.
    pub can_resume: bool,
    /// What program it is.
    pub agent: Option<Implementation>,
    /// The modes, and the current one.
    pub modes: Option<SessionModeState>,
    /// The options of the session: models, and others.
    pub options: Vec<SessionConfigOption>,
    /// The models of an agent that has no option for them.
    pub models: Vec<AgentModel>,
}

/// A model as agents told it before ACP had options of sessions. Some still do, the Gemini CLI among them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentModel {
    /// The agent's own name for it.
    #[serde(rename = "modelId")]
    pub id: String,
    /// Its name, for people.
    pub name: String,
}

/// What an agent wants its host to do.
#[derive(Debug, Clone, PartialEq)]
pub enum HostRequest {
    /// Read a file.
    ReadFile(ReadTextFileRequest),
    /// Write a file.
    WriteFile(WriteTextFileRequest),
    /// Run a command in a terminal.
    CreateTerminal(CreateTerminalRequest),
    /// What has a terminal shown so far?
    TerminalOutput(TerminalOutputRequest),
    /// Wait until a terminal's command has ended.
    WaitForTerminalExit(WaitForTerminalExitRequest),
    /// Kill a terminal's command.
    KillTerminal(KillTerminalRequest),
    /// A terminal is not needed any more.
    ReleaseTerminal(ReleaseTerminalRequest),
}

/// Why a host did not do it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// A JSON-RPC code.
    pub code: i64,
    /// For people.
    pub message: String,
}

impl RpcError {
    /// The host failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: INTERNAL_ERROR, message: message.into() }
    }

    /// What the agent wants makes no sense to the host, or is not allowed.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: INVALID_PARAMS, message: message.into() }
    }
}

/// A prompt cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// No session is open.
    #[error("no session is open")]
    NotOpen,
    /// The agent works on a prompt.
    #[error("the agent works on a prompt")]
    Busy,
}

/// A connection to an agent.
#[derive(Debug)]
pub struct Connection {
    opening: Opening,
    phase: ConnectionPhase,
    capabilities: AgentCapabilities,
    agent: Option<Implementation>,
    auth_methods: Vec<AuthMethod>,
    options: Vec<SessionConfigOption>,
    modes: Option<SessionModeState>,
    /// The mode that the agent works in, as far as it has said so.
    mode: Option<String>,
    /// The models of an agent that has no option for them.
    models: Vec<AgentModel>,
    /// The turn that the agent was asked to stop.
    cancelled: Option<Id>,
    next_id: u64,
    pending: HashMap<u64, PendingRequest>,
    /// Permission requests by their calls: the id that the agent gave to the request, as it wrote it.
    permissions: HashMap<Id, Box<RawValue>>,
    /// Other requests of the agent, by our own number: its own id, as it wrote it.
    host_requests: HashMap<u64, Box<RawValue>>,
    translator: Translator,
    lines: VecDeque<Vec<u8>>,
    signals: VecDeque<ConnectionSignal>,
}

/// How far a connection has come.
#[derive(Debug, Clone, PartialEq)]
enum ConnectionPhase {
    Initializing,
    Opening { login: Login },
    Open { session: SessionId, prompt: Option<Id> },
    Ended,
}

/// Whether we have tried to log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Login {
    NotTried,
    Tried,
}

/// A request of ours that waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PendingRequest {
    Initialize,
    Authenticate,
    Open(OpenMethod),
    Prompt { turn: Id },
    Setting { kind: SettingKind, what: String },
}

/// What was asked for about the session.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SettingKind {
    Mode(String),
    Model,
}

/// How a session is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenMethod {
    Resume,
    Load,
    New,
}

/// A line of the agent.
#[derive(Deserialize)]
struct IncomingLine<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<RpcError>,
}

#[derive(Serialize)]
struct OutgoingLine<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct ReplyLine<'a, R> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RpcError>,
}

/// What the answer that opens a session says about models, beside what the protocol has today.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionModels {
    models: AvailableModels,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AvailableModels {
    available_models: Vec<AgentModel>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SetModelRequest {
    session_id: SessionId,
    model_id: String,
}

impl Connection {
    /// A connection to an agent that has just been started. Its first line is ready.
    #[must_use]
    pub fn new(opening: Opening, limits: Limits) -> Self {
        let mut connection = Self {
            phase: ConnectionPhase::Initializing,
            capabilities: AgentCapabilities::default(),
            agent: None,
            auth_methods: Vec::new(),
            options: Vec::new(),
            modes: None,
            mode: None,
            models: Vec::new(),
            cancelled: None,
            next_id: 0,
            pending: HashMap::new(),
            permissions: HashMap::new(),
            host_requests: HashMap::new(),
            translator: Translator::new(limits),
            lines: VecDeque::new(),
            signals: VecDeque::new(),
            opening,
        };
        let offers = connection.opening.offers;
        let files = FileSystemCapabilities::new().read_text_file(offers.files).write_text_file(offers.files);
        let session = ClientSessionCapabilities::new().notices(NoticeCapabilities::new());
        let capabilities = ClientCapabilities::new().fs(files).terminal(offers.terminals).session(session);
        let client = Implementation::new("breakbulk", env!("CARGO_PKG_VERSION"));
        let initialize =
            InitializeRequest::new(ProtocolVersion::V1).client_capabilities(capabilities).client_info(client);
        connection.request("initialize", &initialize, PendingRequest::Initialize);
        connection
    }

    /// The next line for the agent, with its line end.
    pub fn poll_line(&mut self) -> Option<Vec<u8>> {
        self.lines.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.translator.poll_event()
    }

    /// The next signal.
    pub fn poll_signal(&mut self) -> Option<ConnectionSignal> {
        while let Some(signal) = self.translator.poll_signal() {
            match signal {
                SessionSignal::ModeChanged { mode } => self.mode_is(mode),
                SessionSignal::Options(options) => self.options_are(options),
                other => self.signals.push_back(ConnectionSignal::Session(other)),
            }
        }
        self.signals.pop_front()
    }

    /// Takes a line of the agent, without its line end.
    pub fn receive(&mut self, line: &[u8]) -> Received {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Received::Ignored;
        }
        let Ok(parsed) = serde_json::from_slice::<IncomingLine<'_>>(line) else {
            return Received::Malformed { bytes: line.len() };
        };
        match (parsed.method.as_deref(), parsed.id) {
            (Some(method), Some(id)) => self.asked(method, id, parsed.params),
            (Some(method), None) => self.told(method, parsed.params),
            (None, Some(id)) => self.answered(id, parsed.result, parsed.error),
            (None, None) => Received::Malformed { bytes: line.len() },
        }
    }

    /// Hands a prompt to the agent. What the agent cannot take is replaced by a text or a link.
    ///
    /// # Errors
    /// No session is open, or the agent works on a prompt.
    pub fn send(&mut self, turn: Id, blocks: Vec<ContentBlock>) -> Result<(), PromptError> {
        let ConnectionPhase::Open { session, prompt } = &mut self.phase else { return Err(PromptError::NotOpen) };
        if prompt.is_some() {
            return Err(PromptError::Busy);
        }
        *prompt = Some(turn.clone());
        let session = session.clone();
        let blocks = blocks.into_iter().map(|block| self.acceptable(block)).collect();
        self.translator.begin(turn.clone());
        if self.can_resume() {
            self.translator.push(Event::Resumable { token: session.0.to_string() });
        }
        self.request("session/prompt", &PromptRequest::new(session, blocks), PendingRequest::Prompt { turn });
        Ok(())
    }

    /// Asks the agent to stop. It still answers the prompt. Questions that are open are withdrawn, as the protocol wants.
    pub fn cancel(&mut self) {
        let ConnectionPhase::Open { session, prompt: prompt @ Some(_) } = &self.phase else { return };
        let cancel = CancelNotification::new(session.clone());
        self.cancelled.clone_from(prompt);
        self.write(&OutgoingLine { jsonrpc: "2.0", id: None, method: "session/cancel", params: cancel });
        for tool in self.permissions.keys().cloned().collect::<Vec<_>>() {
            self.answer(&tool, &Answer::Withdrawn);
        }
    }

    /// Answers a question about a call. Returns whether there was one.
    pub fn answer(&mut self, tool: &Id, answer: &Answer) -> bool {
        let Some(id) = self.permissions.remove(tool) else { return false };
        let outcome = self.translator.answer(tool, answer).unwrap_or(RequestPermissionOutcome::Cancelled);
        self.reply(&id, Ok(RequestPermissionResponse::new(outcome)));
        true
    }

    /// Answers a [`ConnectionSignal::Request`]. Without such a request nothing happens.
    pub fn respond(&mut self, request: u64, response: Result<Value, RpcError>) {
        if let Some(id) = self.host_requests.remove(&request) {
            self.reply(&id, response);
        }
    }

    /// Changes the mode, if the agent has it, as a mode or as an option of that category. Returns whether it has.
    pub fn set_mode(&mut self, mode: &str) -> bool {
        let ConnectionPhase::Open { session, .. } = &self.phase else { return false };
        let session = session.clone();
        let has_mode =
            self.modes.as_ref().is_some_and(|modes| modes.available_modes.iter().any(|known| &*known.id.0 == mode));
        if !has_mode {
            return self.set_category(&SessionConfigOptionCategory::Mode, mode);
        }
        let set = SetSessionModeRequest::new(session, mode.to_owned());
        let kind = SettingKind::Mode(mode.to_owned());
        self.request("session/set_mode", &set, PendingRequest::Setting { kind, what: format!("mode {mode}") });
        true
    }

    /// Changes the model, if the agent has an option for it or lists it. Returns whether it does.
    pub fn set_model(&mut self, model: &str) -> bool {
        let ConnectionPhase::Open { session, .. } = &self.phase else { return false };
        if !self.models.iter().any(|known| known.id == model) {
            return self.set_category(&SessionConfigOptionCategory::Model, model);
        }
        let set = SetModelRequest { session_id: session.clone(), model_id: model.to_owned() };
        let pending = PendingRequest::Setting { kind: SettingKind::Model, what: format!("model {model}") };
        self.request("session/set_model", &set, pending);
        true
    }

    /// The process has ended, or was ended: a turn that is open ends with it.
    pub fn end(&mut self, reason: ExitReason) {
        match (std::mem::replace(&mut self.phase, ConnectionPhase::Ended), reason) {
            (ConnectionPhase::Initializing | ConnectionPhase::Opening { .. }, ExitReason::Failed(failure)) => {
                self.signals.push_back(ConnectionSignal::NotOpened(failure));
            }
            (ConnectionPhase::Initializing | ConnectionPhase::Opening { .. }, ExitReason::Stopped) => {
                let failure = Failure::new("stopped", "The conversation was ended.");
                self.signals.push_back(ConnectionSignal::NotOpened(failure));
            }
            (ConnectionPhase::Open { .. }, reason) => self.translator.finish(reason.outcome()),
            (ConnectionPhase::Ended, _) => {}
        }
        self.permissions.clear();
        self.host_requests.clear();
        self.pending.clear();
    }

    fn set_category(&mut self, category: &SessionConfigOptionCategory, value: &str) -> bool {
        let ConnectionPhase::Open { session, .. } = &self.phase else { return false };
        let Some(option) = self.options.iter().find(|option| option.category.as_ref() == Some(category)) else {
            return false;
        };
        let what = format!("{} {value}", option.name);
        let kind = match category {
            SessionConfigOptionCategory::Mode => SettingKind::Mode(value.to_owned()),
            _ => SettingKind::Model,
        };
        let value = SessionConfigOptionValue::value_id(value.to_owned());
        let set = SetSessionConfigOptionRequest::new(session.clone(), option.id.clone(), value);
        self.request("session/set_config_option", &set, PendingRequest::Setting { kind, what });
        true
    }

    fn can_resume(&self) -> bool {
        self.capabilities.load_session || self.capabilities.session_capabilities.resume.is_some()
    }

    fn acceptable(&self, block: ContentBlock) -> ContentBlock {
        let can = &self.capabilities.prompt_capabilities;
        match block {
            ContentBlock::Image(_) if !can.image => text("[An image was left out: the agent takes none.]"),
            ContentBlock::Audio(_) if !can.audio => text("[A sound was left out: the agent takes none.]"),
            ContentBlock::Resource(resource) if !can.embedded_context => match resource.resource {
                agent_client_protocol_schema::v1::EmbeddedResourceResource::TextResourceContents(contents) => {
                    text(&format!("{}:\n{}", contents.uri, contents.text))
                }
                agent_client_protocol_schema::v1::EmbeddedResourceResource::BlobResourceContents(contents) => {
                    ContentBlock::ResourceLink(ResourceLink::new(contents.uri.clone(), contents.uri))
                }
                _ => text("[A resource was left out.]"),
            },
            block => block,
        }
    }

    /// The agent has sent a request.
    fn asked(&mut self, method: &str, id: &RawValue, params: Option<&RawValue>) -> Received {
        let wanted = match method {
            "session/request_permission" => return self.permission(id, params),
            "fs/read_text_file" if self.opening.offers.files => parse(params).map(HostRequest::ReadFile),
            "fs/write_text_file" if self.opening.offers.files => parse(params).map(HostRequest::WriteFile),
            "terminal/create" if self.opening.offers.terminals => parse(params).map(HostRequest::CreateTerminal),
            "terminal/output" if self.opening.offers.terminals => parse(params).map(HostRequest::TerminalOutput),
            "terminal/wait_for_exit" if self.opening.offers.terminals => {
                parse(params).map(HostRequest::WaitForTerminalExit)
            }
            "terminal/kill" if self.opening.offers.terminals => parse(params).map(HostRequest::KillTerminal),
            "terminal/release" if self.opening.offers.terminals => parse(params).map(HostRequest::ReleaseTerminal),
            _ => {
                let message = format!("this host does not offer {method}");
                self.refuse(id, RpcError { code: METHOD_NOT_FOUND, message });
                return Received::Ignored;
            }
        };
        match wanted {
            Ok(_) if self.host_requests.len() >= MAX_HOST_REQUESTS => {
                self.refuse(id, RpcError::internal("too many requests wait for an answer"));
            }
            Ok(wanted) => {
                let request = self.number();
                self.host_requests.insert(request, id.to_owned());
                self.signals.push_back(ConnectionSignal::Request { request, wanted: Box::new(wanted) });
            }
            Err(error) => self.refuse(id, error),
        }
        Received::Taken
    }

    fn permission(&mut self, id: &RawValue, params: Option<&RawValue>) -> Received {
        let request: RequestPermissionRequest = match parse(params) {
            Ok(request) => request,
            Err(error) => {
                self.refuse(id, error);
                return Received::Taken;
            }
        };
        let tool = Id::from(request.tool_call.tool_call_id.0.as_ref());
        // A second question about a call takes the place of the first.
        self.answer(&tool, &Answer::Withdrawn);
        if self.translator.ask(request) {
            self.permissions.insert(tool, id.to_owned());
        } else {
            self.reply(id, Ok(RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled)));
        }
        Received::Taken
    }

    /// The agent has sent a notification.
    fn told(&mut self, method: &str, params: Option<&RawValue>) -> Received {
        if method != "session/update" {
            return Received::Ignored;
        }
        match parse::<SessionNotification>(params) {
            Ok(notification) => self.translator.update(notification.update),
            // A kind of update that came after this version of the protocol.
            Err(_) => return Received::Ignored,
        }
        Received::Taken
    }

    /// The agent has answered a request of ours.
    fn answered(&mut self, id: &RawValue, result: Option<&RawValue>, error: Option<RpcError>) -> Received {
        let Some(pending) = id.get().parse().ok().and_then(|id: u64| self.pending.remove(&id)) else {
            return Received::Ignored;
        };
        let result = match error {
            Some(error) => Err(error),
            None => Ok(result.unwrap_or(RawValue::NULL)),
        };
        match pending {
            PendingRequest::Initialize => self.initialized(result),
            PendingRequest::Authenticate => self.authenticated(result),
            PendingRequest::Open(method) => self.opened(method, result),
            PendingRequest::Prompt { turn } => self.prompted(&turn, result),
            PendingRequest::Setting { kind, what } => self.set(kind, &what, result),
        }
        Received::Taken
    }

    /// The agent has answered a wish about the session.
    fn set(&mut self, kind: SettingKind, what: &str, result: Result<&RawValue, RpcError>) {
        match result {
            Ok(result) => {
                if let SettingKind::Mode(mode) = kind {
                    self.mode = Some(mode);
                }
                let answer = read::<SetSessionConfigOptionResponse>(result);
                if let Some(answer) = answer.ok().filter(|answer| !answer.config_options.is_empty()) {
                    self.options_are(answer.config_options);
                }
            }
            Err(error) => {
                self.translator.notice(format!("The agent did not change to {what}: {}", error.message));
                if let (SettingKind::Mode(_), Some(mode)) = (kind, self.mode.clone()) {
                    self.signals.push_back(ConnectionSignal::Session(SessionSignal::ModeChanged { mode }));
                }
            }
        }
    }

    /// The agent has said in which mode it works. That is news unless it follows from a wish that is not answered yet.
    fn mode_is(&mut self, mode: String) {
        let before = self.mode.replace(mode.clone());
        let is_mode =
            |pending: &PendingRequest| matches!(pending, PendingRequest::Setting { kind: SettingKind::Mode(_), .. });
        if before.as_ref() != Some(&mode) && !self.pending.values().any(is_mode) {
            self.signals.push_back(ConnectionSignal::Session(SessionSignal::ModeChanged { mode }));
        }
    }

    fn options_are(&mut self, options: Vec<SessionConfigOption>) {
        if let Some(mode) = current_mode(&options) {
            self.mode_is(mode);
        }
        self.options.clone_from(&options);
        self.signals.push_back(ConnectionSignal::Session(SessionSignal::Options(options)));
    }

    fn initialized(&mut self, result: Result<&RawValue, RpcError>) {
        match result.and_then(read::<InitializeResponse>) {
            Ok(response) if response.protocol_version != ProtocolVersion::V1 => {
                let message = format!("the agent speaks version {} of ACP; we speak 1", response.protocol_version);
                self.give_up(Failure::new("wrongVersion", message));
            }
            Ok(response) => {
                self.capabilities = response.agent_capabilities;
                self.agent = response.agent_info;
                self.auth_methods = response.auth_methods;
                self.phase = ConnectionPhase::Opening { login: Login::NotTried };
                self.open(self.first_method());
            }
            Err(error) => self.give_up(not_opened("initialize", &error)),
        }
    }

    fn authenticated(&mut self, result: Result<&RawValue, RpcError>) {
        match result {
            Ok(_) => self.open(self.first_method()),
            Err(error) => self.give_up(not_opened("authenticate", &error)),
        }
    }

    const fn first_method(&self) -> OpenMethod {
        match &self.opening.resume {
            Some(_) if self.capabilities.session_capabilities.resume.is_some() => OpenMethod::Resume,
            Some(_) if self.capabilities.load_session => OpenMethod::Load,
            _ => OpenMethod::New,
        }
    }

    fn open(&mut self, method: OpenMethod) {
        let cwd = self.opening.cwd.clone();
        let takes_more = self.capabilities.session_capabilities.additional_directories.is_some();
        let more = if takes_more { self.opening.additional_directories.clone() } else { Vec::new() };
        let token = self.opening.resume.clone().unwrap_or_default();
        match method {
            OpenMethod::Resume => {
                let resume = ResumeSessionRequest::new(token, cwd).additional_directories(more);
                self.request("session/resume", &resume, PendingRequest::Open(method));
            }
            OpenMethod::Load => {
                let load = LoadSessionRequest::new(token, cwd).additional_directories(more);
                self.request("session/load", &load, PendingRequest::Open(method));
            }
            OpenMethod::New => {
                let new = NewSessionRequest::new(cwd).additional_directories(more);
                self.request("session/new", &new, PendingRequest::Open(method));
            }
        }
    }

    fn opened(&mut self, method: OpenMethod, result: Result<&RawValue, RpcError>) {
        let ConnectionPhase::Opening { login } = self.phase else { return };
        let result = match (result, method) {
            (Err(error), _) if error.code == AUTH_REQUIRED => return self.log_in(login, &error),
            // The agent has forgotten the session: nothing was handed over yet, so a new one is safe.
            (Err(_), OpenMethod::Resume | OpenMethod::Load) => return self.open(OpenMethod::New),
            (Err(error), OpenMethod::New) => return self.give_up(not_opened("session/new", &error)),
            (Ok(result), _) => result,
        };
        // What `session/load` and `session/resume` answer has the same fields, without the id.
        let opened = match (&self.opening.resume, method) {
            (_, OpenMethod::New) | (None, _) => read::<NewSessionResponse>(result),
            (Some(token), _) => with_session(result, token),
        };
        match opened {
            Ok(response) => {
                self.modes = response.modes.clone();
                self.options = response.config_options.clone().unwrap_or_default();
                let has_option = self.options.iter().any(is_model);
                let models = read::<SessionModels>(result).ok().filter(|_| !has_option);
                self.models = models.map(|told| told.models.available_models).unwrap_or_default();
                let mode = self.modes.as_ref().map(|modes| modes.current_mode_id.0.to_string());
                self.mode = mode.or_else(|| current_mode(&self.options));
                self.phase = ConnectionPhase::Open { session: response.session_id, prompt: None };
                self.signals.push_back(ConnectionSignal::Opened(Box::new(Opened {
                    remembers: method != OpenMethod::New,
                    can_resume: self.can_resume(),
                    agent: self.agent.clone(),
                    modes: response.modes,
                    options: response.config_options.unwrap_or_default(),
                    models: self.models.clone(),
                })));
            }
            Err(error) => self.give_up(not_opened("the answer that should open a session", &error)),
        }
    }

    fn log_in(&mut self, login: Login, error: &RpcError) {
        if let (Some(method), Login::NotTried) = (&self.opening.auth_method, login) {
            let authenticate = AuthenticateRequest::new(method.clone());
            self.phase = ConnectionPhase::Opening { login: Login::Tried };
            self.request("authenticate", &authenticate, PendingRequest::Authenticate);
            return;
        }
        let methods = self.auth_methods.iter().map(|method| match method {
            AuthMethod::Agent(method) => format!("{} ({})", method.id.0, method.name),
            AuthMethod::Terminal(method) => format!("{} ({}, in a terminal)", method.id.0, method.name),
            _ => "another way".to_owned(),
        });
        let methods = methods.collect::<Vec<_>>().join(", ");
        let message = format!(
            "the agent wants you to log in first: {}. Log in with the agent's own program, or name a way in the \
             configuration (auth_method); it knows: {methods}",
            error.message
        );
        self.give_up(Failure::new("authRequired", message));
    }

    fn prompted(&mut self, turn: &Id, result: Result<&RawValue, RpcError>) {
        let ConnectionPhase::Open { prompt, .. } = &mut self.phase else { return };
        if prompt.as_ref() == Some(turn) {
            *prompt = None;
        }
        let is_cancelled = self.cancelled.take().as_ref() == Some(turn);
        for (_, id) in std::mem::take(&mut self.permissions) {
            self.reply(&id, Ok(RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled)));
        }
        match result.and_then(read::<PromptResponse>) {
            Ok(response) => {
                if let Some(usage) = &response.usage {
                    self.translator.tokens(usage);
                }
                self.translator.end(response.stop_reason);
            }
            // An agent should not answer a prompt that it stops with an error, but some do.
            Err(_) if is_cancelled => self.translator.end(StopReason::Cancelled),
            Err(error) => self.translator.fail(Failure::new("agentError", error.message)),
        }
    }

    fn give_up(&mut self, failure: Failure) {
        self.phase = ConnectionPhase::Ended;
        self.signals.push_back(ConnectionSignal::NotOpened(failure));
    }

    const fn number(&mut self) -> u64 {
        self.next_id = self.next_id.saturating_add(1);
        self.next_id
    }

    fn request(&mut self, method: &str, params: &impl Serialize, pending: PendingRequest) {
        let id = self.number();
        self.pending.insert(id, pending);
        self.write(&OutgoingLine { jsonrpc: "2.0", id: Some(id), method, params });
    }

    fn refuse(&mut self, id: &RawValue, error: RpcError) {
        self.reply::<Value>(id, Err(error));
    }

    fn reply<R: Serialize>(&mut self, id: &RawValue, response: Result<R, RpcError>) {
        let (result, error) = match response {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        self.write(&ReplyLine { jsonrpc: "2.0", id, result, error });
    }

    fn write(&mut self, line: &impl Serialize) {
        // These types have no map with keys that are no strings, and nothing else can fail.
        if let Ok(mut line) = serde_json::to_vec(line) {
            line.push(b'\n');
            self.lines.push_back(line);
        }
    }
}

/// The value of the option that is the mode.
fn current_mode(options: &[SessionConfigOption]) -> Option<String> {
    let option = options.iter().find(|option| option.category == Some(SessionConfigOptionCategory::Mode))?;
    match &option.kind {
        SessionConfigKind::Select(select) => Some(select.current_value.0.to_string()),
        _ => None,
    }
}

fn is_model(option: &SessionConfigOption) -> bool {
    option.category == Some(SessionConfigOptionCategory::Model)
}

fn text(text: &str) -> ContentBlock {
    ContentBlock::Text(TextContent::new(text))
}

fn parse<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, RpcError> {
    let params = params.unwrap_or(RawValue::NULL);
    serde_json::from_str(params.get()).map_err(|error| RpcError::invalid(format!("the params do not fit: {error}")))
}

fn read<T: DeserializeOwned>(result: &RawValue) -> Result<T, RpcError> {
    let error = |error| RpcError::internal(format!("the answer does not have the expected form: {error}"));
    serde_json::from_str(result.get()).map_err(error)
}

fn with_session(result: &RawValue, session: &str) -> Result<NewSessionResponse, RpcError> {
    let mut value = read::<Value>(result)?;
    if value.is_null() {
        value = Value::Object(serde_json::Map::new());
    }
    if let Some(object) = value.as_object_mut() {
        object.insert("sessionId".to_owned(), Value::String(session.to_owned()));
    }
    serde_json::from_value(value).map_err(|error| RpcError::internal(error.to_string()))
}

fn not_opened(what: &str, error: &RpcError) -> Failure {
    Failure::new("notOpened", format!("{what} failed: {} (code {})", error.message, error.code))
}
