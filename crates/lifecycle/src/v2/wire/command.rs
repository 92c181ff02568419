//! Commands of a client.

use ahp_types::state::{ConfirmationOption, ConfirmationOptionKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::VERSION;

/// What a client wants done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Command {
    /// The first command of a connection.
    Hello {
        /// The version of the protocol that the client speaks.
        protocol_version: u64,
    },
    /// Which sessions are there? They come in pages.
    List {
        /// The `nextCursor` of the page before; the first page without it.
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<String>,
        /// How many sessions the page may have, at most.
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
    },
    /// Makes a session.
    Open {
        /// The agent's provider id.
        agent: String,
        /// The working directory.
        cwd: String,
        /// The model; the agent's own choice without it.
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// The permission mode; the agent's own choice without it.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
        /// Makes the command safe to repeat.
        #[serde(skip_serializing_if = "Option::is_none")]
        client_msg_id: Option<String>,
    },
    /// Tells the connection what happens in a session.
    Watch {
        /// The session.
        session_id: String,
        /// What the client has; nothing without it.
        #[serde(skip_serializing_if = "Option::is_none")]
        last_seq: Option<u64>,
    },
    /// Tells the connection no more of a session.
    Unwatch {
        /// The session.
        session_id: String,
    },
    /// Begins a turn, or queues the prompt while one runs.
    Send(PromptCommand),
    /// Queues a prompt while a turn runs; else begins one.
    Queue(PromptCommand),
    /// Cancels the running turn, empties the queue, and then begins a turn with the prompt, if there is one.
    Interrupt {
        /// The session.
        session_id: String,
        /// What to say next.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
        /// Makes the command safe to repeat.
        client_msg_id: String,
    },
    /// Ends a session.
    Stop {
        /// The session.
        session_id: String,
    },
    /// Changes the permission mode.
    SetMode {
        /// The session.
        session_id: String,
        /// The mode.
        mode: String,
    },
    /// Answers a permission request.
    PermissionResponse {
        /// The permission.
        perm_id: String,
        /// The answer.
        decision: Decision,
        /// Answers to questions that the call asks, by question.
        #[serde(skip_serializing_if = "Option::is_none")]
        answers: Option<Map<String, Value>>,
    },
    /// Comes back.
    Reattach {
        /// The id that the client was given.
        client_id: String,
        /// What it watched.
        sessions: Vec<Resume>,
    },
    /// Asks for a sign of life, for clients that cannot send WebSocket pings.
    Ping {},
}

/// Something to say to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptCommand {
    /// The session.
    pub session_id: String,
    /// What to say.
    pub prompt: String,
    /// Makes the command safe to repeat.
    pub client_msg_id: String,
    /// Images that come with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// The model for this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The permission mode from this turn on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Its MIME type.
    pub media_type: String,
    /// Its bytes, as base64.
    pub data: String,
}

/// A session that a client comes back to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    /// The session.
    pub session_id: String,
    /// What the client has; nothing without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
}

/// An answer to a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The call may run.
    Once,
    /// The call may run, and others like it without being asked about.
    Always,
    /// The call must not run.
    Deny,
}

impl Decision {
    /// What an option means. AHP's options say only whether they allow; an option that allows for longer than once says
    /// "always" in its id.
    #[must_use]
    pub fn of(allows: bool, option: Option<&str>) -> Self {
        let is_always = option.is_some_and(|id| id.to_ascii_lowercase().contains("always"));
        match (allows, is_always) {
            (false, _) => Self::Deny,
            (true, true) => Self::Always,
            (true, false) => Self::Once,
        }
    }

    /// Whether the call may run.
    #[must_use]
    pub const fn allows(self) -> bool {
        !matches!(self, Self::Deny)
    }

    /// The first of these options that means just this; none where the answer is plainly yes or no, or where "always" is
    /// not offered.
    #[must_use]
    pub fn choose(self, options: &[ConfirmationOption]) -> Option<&str> {
        let means_it = |option: &&ConfirmationOption| {
            Self::of(option.kind == ConfirmationOptionKind::Approve, Some(&option.id)) == self
        };
        options.iter().find(means_it).map(|option| option.id.as_str())
    }
}

/// How much a command may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandLimits {
    /// The whole command. 32 MiB: a prompt with a few photographs.
    pub max_bytes: usize,
    /// Objects and arrays inside of each other. 32: `answers` needs three.
    pub max_depth: usize,
    /// An id, a name, a path. 4,096 bytes: the longest path of Linux.
    pub max_name_bytes: usize,
    /// Images of one prompt. 32.
    pub max_images: usize,
    /// Sessions of one `reattach`. 1,024.
    pub max_sessions: usize,
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self { max_bytes: 32 << 20, max_depth: 32, max_name_bytes: 4_096, max_images: 32, max_sessions: 1_024 }
    }
}

/// Why a command cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It is longer than a command may be.
    #[error("a command of {bytes} bytes is longer than the {limit} bytes that are allowed")]
    TooLarge {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// It is no JSON object.
    #[error("a command must be a JSON object with a \"type\": {why}")]
    NotAnObject {
        /// What is wrong.
        why: String,
    },
    /// It nests too deeply.
    #[error("a command nests deeper than {limit} levels")]
    TooDeep {
        /// How deep it may nest.
        limit: usize,
    },
    /// There is no such command.
    #[error("unknown command {command:?}")]
    Unknown {
        /// Its name, or the beginning of it.
        command: String,
    },
    /// A field is missing.
    #[error("{command}: the field {field:?} is missing")]
    Missing {
        /// The command.
        command: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field is not what it should be.
    #[error("{command}: the field {field:?} must be {expected}")]
    Wrong {
        /// The command.
        command: &'static str,
        /// The field.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
}

impl CommandError {
    /// The command, if it could be read.
    #[must_use]
    pub fn command(&self) -> Option<&str> {
        match self {
            Self::TooLarge { .. } | Self::NotAnObject { .. } | Self::TooDeep { .. } => None,
            Self::Unknown { command } => Some(command),
            Self::Missing { command, .. } | Self::Wrong { command, .. } => Some(command),
        }
    }

    /// The field that is wrong.
    #[must_use]
    pub const fn field(&self) -> Option<&str> {
        match self {
            Self::Missing { field, .. } | Self::Wrong { field, .. } => Some(field),
            _ => None,
        }
    }
}

/// How much of an unknown command's name is repeated to its sender.
const NAME_SHOWN: usize = 64;

impl Command {
    /// Reads a command. Fields that it does not know are ignored.
    ///
    /// # Errors
    /// What is wrong, with the names of the command and of the field.
    pub fn read(text: &[u8], limits: &CommandLimits) -> Result<Self, CommandError> {
        if text.len() > limits.max_bytes {
            return Err(CommandError::TooLarge { bytes: text.len(), limit: limits.max_bytes });
        }
        if depth(text) > limits.max_depth {
            return Err(CommandError::TooDeep { limit: limits.max_depth });
        }
        let not_an_object = |why: &str| CommandError::NotAnObject { why: why.to_owned() };
        let value = serde_json::from_slice(text).map_err(|error| not_an_object(&error.to_string()))?;
        let Value::Object(mut object) = value else { return Err(not_an_object("it is something else")) };
        let Some(Value::String(name)) = object.remove("type") else {
            return Err(not_an_object("\"type\" is missing or not a string"));
        };
        let fields = |command| Fields { command, object, limits };
        match name.as_str() {
            "hello" => fields("hello").hello(),
            "list" => fields("list").list(),
            "open" => fields("open").open(),
            "watch" => fields("watch").watch(),
            "unwatch" => Ok(Self::Unwatch { session_id: fields("unwatch").name("sessionId")? }),
            "send" => fields("send").prompt().map(Self::Send),
            "queue" => fields("queue").prompt().map(Self::Queue),
            "interrupt" => fields("interrupt").interrupt(),
            "stop" => Ok(Self::Stop { session_id: fields("stop").name("sessionId")? }),
            "set_mode" => fields("set_mode").set_mode(),
            "permission_response" => fields("permission_response").permission_response(),
            "reattach" => fields("reattach").reattach(),
            "ping" => Ok(Self::Ping {}),
            _ => Err(CommandError::Unknown { command: name.chars().take(NAME_SHOWN).collect() }),
        }
    }

    /// The command's `type`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::List { .. } => "list",
            Self::Open { .. } => "open",
            Self::Watch { .. } => "watch",
            Self::Unwatch { .. } => "unwatch",
            Self::Send(_) => "send",
            Self::Queue(_) => "queue",
            Self::Interrupt { .. } => "interrupt",
            Self::Stop { .. } => "stop",
            Self::SetMode { .. } => "set_mode",
            Self::PermissionResponse { .. } => "permission_response",
            Self::Reattach { .. } => "reattach",
            Self::Ping {} => "ping",
        }
    }

    /// The id under which it is done once.
    #[must_use]
    pub fn client_msg_id(&self) -> Option<&str> {
        match self {
            Self::Send(prompt) | Self::Queue(prompt) => Some(&prompt.client_msg_id),
            Self::Interrupt { client_msg_id, .. } => Some(client_msg_id),
            Self::Open { client_msg_id, .. } => client_msg_id.as_deref(),
            _ => None,
        }
    }
}

/// The fields of a command, taken one by one.
struct Fields<'a> {
    command: &'static str,
    object: Map<String, Value>,
    limits: &'a CommandLimits,
}

impl Fields<'_> {
    fn hello(mut self) -> Result<Command, CommandError> {
        let protocol_version = self.number("protocolVersion")?.ok_or(self.missing("protocolVersion"))?;
        if protocol_version != u64::from(VERSION) {
            return Err(self.wrong("protocolVersion", "2"));
        }
        Ok(Command::Hello { protocol_version })
    }

    fn list(mut self) -> Result<Command, CommandError> {
        let (cursor, limit) = (self.optional_name("cursor")?, self.number("limit")?);
        if limit == Some(0) {
            return Err(self.wrong("limit", "at least 1"));
        }
        Ok(Command::List { cursor, limit })
    }

    fn open(mut self) -> Result<Command, CommandError> {
        Ok(Command::Open {
            agent: self.name("agent")?,
            cwd: self.name("cwd")?,
            model: self.optional_name("model")?,
            mode: self.optional_name("mode")?,
            client_msg_id: self.optional_name("clientMsgId")?,
        })
    }

    fn watch(mut self) -> Result<Command, CommandError> {
        Ok(Command::Watch { session_id: self.name("sessionId")?, last_seq: self.number("lastSeq")? })
    }

    fn prompt(mut self) -> Result<PromptCommand, CommandError> {
        Ok(PromptCommand {
            session_id: self.name("sessionId")?,
            prompt: self.text("prompt")?.ok_or(self.missing("prompt"))?,
            client_msg_id: self.name("clientMsgId")?,
            images: self.images()?,
            model: self.optional_name("model")?,
            mode: self.optional_name("mode")?,
        })
    }

    fn interrupt(mut self) -> Result<Command, CommandError> {
        Ok(Command::Interrupt {
            session_id: self.name("sessionId")?,
            prompt: self.text("prompt")?,
            client_msg_id: self.name("clientMsgId")?,
        })
    }

    fn set_mode(mut self) -> Result<Command, CommandError> {
        Ok(Command::SetMode { session_id: self.name("sessionId")?, mode: self.name("mode")? })
    }

    fn permission_response(mut self) -> Result<Command, CommandError> {
        let perm_id = self.name("permId")?;
        let decision = match self.name("decision")?.as_str() {
            "once" => Decision::Once,
            "always" => Decision::Always,
            "deny" => Decision::Deny,
            _ => return Err(self.wrong("decision", "\"once\", \"always\" or \"deny\"")),
        };
        let answers = match self.take("answers") {
            None => None,
            Some(Value::Object(answers)) => Some(answers),
            Some(_) => return Err(self.wrong("answers", "an object")),
        };
        Ok(Command::PermissionResponse { perm_id, decision, answers })
    }

    fn reattach(mut self) -> Result<Command, CommandError> {
        let client_id = self.name("clientId")?;
        let sessions = match self.take("sessions") {
            None => return Err(self.missing("sessions")),
            Some(Value::Array(sessions)) if sessions.len() <= self.limits.max_sessions => sessions,
            Some(_) => return Err(self.wrong("sessions", "a list that is not too long")),
        };
        let (command, limits) = (self.command, self.limits);
        let sessions = sessions.into_iter().map(|session| {
            let Value::Object(object) = session else { return Err(self.wrong("sessions", "a list of objects")) };
            let mut fields = Fields { command, object, limits };
            Ok(Resume { session_id: fields.name("sessionId")?, last_seq: fields.number("lastSeq")? })
        });
        Ok(Command::Reattach { client_id, sessions: sessions.collect::<Result<_, _>>()? })
    }

    fn images(&mut self) -> Result<Vec<Image>, CommandError> {
        let images = match self.take("images") {
            None => return Ok(Vec::new()),
            Some(Value::Array(images)) if images.len() <= self.limits.max_images => images,
            Some(_) => return Err(self.wrong("images", "a list that is not too long")),
        };
        let (command, limits) = (self.command, self.limits);
        let images = images.into_iter().map(|image| {
            let Value::Object(object) = image else { return Err(self.wrong("images", "a list of objects")) };
            let mut fields = Fields { command, object, limits };
            let media_type = fields.name("mediaType")?;
            Ok(Image { media_type, data: fields.text("data")?.ok_or(fields.missing("data"))? })
        });
        images.collect()
    }

    /// A field that is there: null is absent.
    fn take(&mut self, field: &'static str) -> Option<Value> {
        self.object.remove(field).filter(|value| !value.is_null())
    }

    fn text(&mut self, field: &'static str) -> Result<Option<String>, CommandError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(field, "a string")),
        }
    }

    fn optional_name(&mut self, field: &'static str) -> Result<Option<String>, CommandError> {
        let text = self.text(field)?;
        let is_good = |text: &String| !text.is_empty() && text.len() <= self.limits.max_name_bytes;
        match text {
            Some(text) if !is_good(&text) => Err(self.wrong(field, "a string that is neither empty nor too long")),
            text => Ok(text),
        }
    }

    fn name(&mut self, field: &'static str) -> Result<String, CommandError> {
        self.optional_name(field)?.ok_or(self.missing(field))
    }

    fn number(&mut self, field: &'static str) -> Result<Option<u64>, CommandError> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or(self.wrong(field, "a whole number that is not negative")),
        }
    }

    const fn missing(&self, field: &'static str) -> CommandError {
        CommandError::Missing { command: self.command, field }
    }

    const fn wrong(&self, field: &'static str, expected: &'static str) -> CommandError {
        CommandError::Wrong { command: self.command, field, expected }
    }
}

/// How deeply a JSON text nests. Counted before it is read, so that a deep one costs nothing.
fn depth(text: &[u8]) -> usize {
    let (mut deepest, mut depth) = (0_usize, 0_usize);
    let (mut is_string, mut is_escaped) = (false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b'{' | b'[' if !is_string => {
                depth = depth.saturating_add(1);
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !is_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}
