//! Frames of the JSON subprotocols: what a client sends to the service, and what the service sends to a client.
//!
//! The payload of a message (`data`) stays as it is written, as JSON: the relay passes it on without reading it, and only the end
//! that wants its text takes the escapes out.

use std::fmt::Write as _;

use breakbulk_proto::Message;
use breakbulk_proto::json::{self, Found, Path, Paths, ValueKind};
use bytes::Bytes;

/// The subprotocol with acknowledgements of messages and recovery.
pub const RELIABLE: &str = "json.reliable.webpubsub.azure.v1";
/// The subprotocol without.
pub const SIMPLE: &str = "json.webpubsub.azure.v1";
/// The parameter of a reconnection's URL that names the connection.
pub(crate) const CONNECTION_ID: &str = "awps_connection_id";
/// The parameter of a reconnection's URL that proves that it is ours.
pub(crate) const RECONNECTION_TOKEN: &str = "awps_reconnection_token";

/// What the payload of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataType {
    /// Any JSON value.
    Json,
    /// A text, as a JSON string.
    Text,
    /// Bytes, as a JSON string of base64.
    Binary,
}

impl DataType {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Text => "text",
            Self::Binary => "binary",
        }
    }

    fn find(name: &str) -> Option<Self> {
        Some(match name {
            "json" => Self::Json,
            "text" => Self::Text,
            "binary" | "protobuf" => Self::Binary,
            _ => return None,
        })
    }
}

/// What a client asks of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// Join a group.
    Join { group: String, ack: Option<u64> },
    /// Leave a group.
    Leave { group: String, ack: Option<u64> },
    /// Send a payload to all in a group.
    Publish { group: String, ack: Option<u64>, no_echo: bool, data_type: DataType, data: Bytes },
    /// Send an event to the handler of the hub.
    Event { ack: Option<u64> },
    /// All messages up to this one have arrived.
    SequenceAck { sequence: u64 },
    /// Ask for a pong.
    Ping,
    /// Call the handler of the hub.
    Invoke { id: String },
    /// Begin or continue a stream in a group.
    Stream { id: String, ack: Option<u64> },
    /// A request of a kind that has an `ackId`, but is not known here.
    Unknown { ack: Option<u64> },
}

/// Why a frame is no request. The service disconnects who sends one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadRequest {
    /// It is not one JSON object.
    NotJson,
    /// A field is there twice.
    Repeated(&'static str),
    /// A field is missing, or has a value of another kind.
    Field(&'static str),
}

impl std::fmt::Display for BadRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotJson => f.write_str("The frame is not a JSON object."),
            Self::Repeated(name) => write!(f, "The field \"{name}\" is there twice."),
            Self::Field(name) => write!(f, "The field \"{name}\" is missing or has a value that is not allowed."),
        }
    }
}

/// The fields that mean something in a frame of either direction.
const FIELDS: [Path; 13] = [
    &["type"],
    &["group"],
    &["ackId"],
    &["noEcho"],
    &["dataType"],
    &["data"],
    &["sequenceId"],
    &["invocationId"],
    &["stream"],
    &["streamId"],
    &["stream", "streamId"],
    &["success"],
    &["fromUserId"],
];
const NAMES: [&str; 13] = [
    "type",
    "group",
    "ackId",
    "noEcho",
    "dataType",
    "data",
    "sequenceId",
    "invocationId",
    "stream",
    "streamId",
    "streamId",
    "success",
    "fromUserId",
];
const TYPE: usize = 0;
const GROUP: usize = 1;
const ACK_ID: usize = 2;
const NO_ECHO: usize = 3;
const DATA_TYPE: usize = 4;
const DATA: usize = 5;
const SEQUENCE_ID: usize = 6;
const INVOCATION_ID: usize = 7;
const STREAM: usize = 8;
const STREAM_ID: usize = 9;
const ID_OF_STREAM: usize = 10;
const SUCCESS: usize = 11;
const FROM_USER_ID: usize = 12;

/// The longest name of a group.
pub(crate) const MAX_GROUP_CHARS: usize = 1024;

/// From this length on, it is worth while to look for the text of a frame at its usual place.
const LONG: usize = 4 << 10;
/// What stands before the text in a frame as we and the SDKs write it. It holds quotes that are not escaped, so it cannot be a part of a
/// JSON string.
const BEFORE_TEXT: &[u8] = br#""dataType":"text","data":""#;

/// A long frame whose text comes last, as usual: the frame without the text, and the text with its quotes. Whether the text is the inside
/// of a JSON string is checked as far as `is_trusted` leaves open. `None` if the frame is of another form; it may be valid all the same.
fn without_text(frame: &Bytes, is_trusted: bool) -> Option<(Bytes, Bytes)> {
    if frame.len() < LONG {
        return None;
    }
    let begin = memchr::memmem::find(frame.get(..LONG)?, BEFORE_TEXT)? + BEFORE_TEXT.len();
    let end = frame.len().checked_sub(2)?;
    let (inside, tail) = (frame.get(begin..end)?, frame.get(end..)?);
    if tail != br#""}"# || !is_inside_of_string(inside, is_trusted) {
        return None;
    }
    let rest = [frame.get(..begin)?, tail].concat();
    Some((rest.into(), frame.slice(begin - 1..end + 1)))
}

/// Whether bytes are the inside of a JSON string. A trusted writer's escapes and characters are not looked at.
fn is_inside_of_string(inside: &[u8], is_trusted: bool) -> bool {
    let mut rest = inside;
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let taken = match rest.get(at..) {
            Some([b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..]) => 2,
            Some([b'\\', b'u', a, b, c, d, ..]) if [a, b, c, d].iter().all(|digit| digit.is_ascii_hexdigit()) => 6,
            _ => return false,
        };
        rest = rest.get(at + taken..).unwrap_or_default();
    }
    // Without a branch for each byte, the compiler makes vector operations of this.
    let has_control = |bytes: &[u8]| bytes.iter().fold(false, |found, byte| found | (*byte < 0x20));
    is_trusted || !has_control(inside) && simdutf8::basic::from_utf8(inside).is_ok()
}

/// The fields of a frame, in one pass over it that checks that it is JSON.
struct Fields<'a> {
    frame: &'a Bytes,
    paths: Paths<13>,
    /// The text, if it was found and taken out before.
    text: Option<Bytes>,
}

impl<'a> Fields<'a> {
    fn of(frame: &'a Bytes) -> Result<Self, BadRequest> {
        let paths = json::find(std::iter::once(&frame[..]), &FIELDS).map_err(|_| BadRequest::NotJson)?;
        if paths.root() != Some(ValueKind::Object) {
            return Err(BadRequest::NotJson);
        }
        match NAMES.iter().enumerate().find(|(at, _)| paths.repeated(*at)) {
            Some((_, name)) => Err(BadRequest::Repeated(name)),
            None => Ok(Self { frame, paths, text: None }),
        }
    }

    fn has(&self, field: usize) -> bool {
        self.found(field).is_some()
    }

    /// The field, if it is there and not null.
    fn found(&self, field: usize) -> Option<Found> {
        self.paths.get(field).filter(|found| found.kind != ValueKind::Null)
    }

    /// The text of a field as it is written.
    fn raw(&self, found: Found) -> Bytes {
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(self.frame.len());
        let (start, end) = (at(found.span.start), at(found.span.end));
        self.frame.slice(start.min(end)..end)
    }

    fn text(&self, field: usize) -> Result<String, BadRequest> {
        let bad = BadRequest::Field(NAMES.get(field).copied().unwrap_or_default());
        let found = self.found(field).filter(|found| found.kind == ValueKind::String).ok_or(bad)?;
        json::string(&self.raw(found)).map(std::borrow::Cow::into_owned).ok_or(bad)
    }

    /// A number; some clients write it as a string.
    fn number(&self, field: usize) -> Result<Option<u64>, BadRequest> {
        let Some(found) = self.found(field) else { return Ok(None) };
        let bad = BadRequest::Field(NAMES.get(field).copied().unwrap_or_default());
        let raw = self.raw(found);
        let raw = if found.kind == ValueKind::String { self.text(field)?.into() } else { raw };
        let number = std::str::from_utf8(&raw).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or(bad)
    }

    fn flag(&self, field: usize) -> Result<bool, BadRequest> {
        match self.found(field) {
            None => Ok(false),
            Some(found) => match &self.raw(found)[..] {
                b"true" => Ok(true),
                b"false" => Ok(false),
                _ => Err(BadRequest::Field(NAMES.get(field).copied().unwrap_or_default())),
            },
        }
    }

    fn group(&self) -> Result<String, BadRequest> {
        let group = self.text(GROUP)?;
        let fits = !group.is_empty() && group.chars().nth(MAX_GROUP_CHARS).is_none();
        if fits { Ok(group) } else { Err(BadRequest::Field("group")) }
    }

    fn data_type(&self) -> Result<DataType, BadRequest> {
        match self.has(DATA_TYPE) {
            true => DataType::find(&self.text(DATA_TYPE)?).ok_or(BadRequest::Field("dataType")),
            false => Ok(DataType::Json),
        }
    }

    /// The payload, which is UTF-8 and of the kind that its type says.
    fn data(&self, data_type: DataType) -> Result<Bytes, BadRequest> {
        if let (Some(text), DataType::Text) = (&self.text, data_type) {
            return Ok(text.clone());
        }
        let found = self.paths.get(DATA).ok_or(BadRequest::Field("data"))?;
        let is_text = found.kind == ValueKind::String;
        let data = self.raw(found);
        if (data_type != DataType::Json && !is_text) || simdutf8::basic::from_utf8(&data).is_err() {
            return Err(BadRequest::Field("data"));
        }
        Ok(data)
    }
}

impl Request {
    /// Reads a frame of a client.
    pub(crate) fn parse(frame: &Bytes) -> Result<Self, BadRequest> {
        if let Some((rest, text)) = without_text(frame, false)
            && let Ok(fields) = Fields::of(&rest)
        {
            return Self::of(&Fields { text: Some(text), ..fields });
        }
        Self::of(&Fields::of(frame)?)
    }

    fn of(fields: &Fields<'_>) -> Result<Self, BadRequest> {
        let ack = fields.number(ACK_ID)?;
        Ok(match fields.text(TYPE)?.as_str() {
            "joinGroup" => Self::Join { group: fields.group()?, ack },
            "leaveGroup" => Self::Leave { group: fields.group()?, ack },
            "sendToGroup" if fields.has(STREAM) => Self::Stream { id: fields.text(ID_OF_STREAM)?, ack },
            "sendToGroup" => {
                let (group, data_type) = (fields.group()?, fields.data_type()?);
                Self::Publish { group, ack, no_echo: fields.flag(NO_ECHO)?, data_type, data: fields.data(data_type)? }
            }
            "event" => Self::Event { ack },
            "sequenceAck" => {
                let sequence = fields.number(SEQUENCE_ID)?.ok_or(BadRequest::Field("sequenceId"))?;
                Self::SequenceAck { sequence }
            }
            "ping" => Self::Ping,
            "invoke" => Self::Invoke { id: fields.text(INVOCATION_ID)? },
            "streamData" | "streamEnd" => Self::Stream { id: fields.text(STREAM_ID)?, ack },
            _ => Self::Unknown { ack },
        })
    }
}

/// Why the service did not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The client has no role for it.
    Forbidden,
    /// It was done before.
    Duplicate,
    /// The service cannot do it now.
    Internal,
    /// The service does not do such things.
    NotSupported,
}

impl Failure {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate",
            Self::Internal => "InternalServerError",
            Self::NotSupported => "NotSupported",
        }
    }
}

/// A text as a JSON string, with its quotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = Vec::with_capacity(text.len() + 2);
    quoted.push(b'"');
    json::escape_into(&mut quoted, text.as_bytes());
    quoted.push(b'"');
    // Escaping keeps UTF-8.
    String::from_utf8(quoted).unwrap_or_default()
}

/// The acknowledgement of a request.
pub(crate) fn ack(id: u64, failure: Option<(Failure, &str)>) -> Bytes {
    match failure {
        None => format!(r#"{{"type":"ack","ackId":{id},"success":true}}"#),
        Some((failure, message)) => format!(
            r#"{{"type":"ack","ackId":{id},"success":false,"error":{{"name":"{}","message":{}}}}}"#,
            failure.name(),
            quoted(message)
        ),
    }
    .into()
}

/// The answer to an invocation, which nobody here can do.
pub(crate) fn invoke_failed(id: &str, message: &str) -> Bytes {
    let (id, name, message) = (quoted(id), Failure::NotSupported.name(), quoted(message));
    format!(
        r#"{{"type":"invokeResponse","invocationId":{id},"success":false,"error":{{"name":"{name}","message":{message}}}}}"#
    )
    .into()
}

/// The refusal of a stream.
pub(crate) fn stream_refused(id: &str, message: &str) -> Bytes {
    let (id, name, message) = (quoted(id), Failure::NotSupported.name(), quoted(message));
    format!(r#"{{"type":"streamNack","streamId":{id},"name":"{name}","message":{message},"expectedSequenceId":0}}"#)
        .into()
}

/// The first frame on a connection. Without a reconnection token it cannot be recovered.
pub(crate) fn connected(connection: &str, user: Option<&str>, reconnection_token: Option<&str>) -> Bytes {
    let mut frame = String::from(r#"{"type":"system","event":"connected""#);
    for (name, value) in
        [("userId", user), ("connectionId", Some(connection)), ("reconnectionToken", reconnection_token)]
    {
        if let Some(value) = value {
            let _ = write!(frame, r#","{name}":{}"#, quoted(value));
        }
    }
    frame.push('}');
    frame.into()
}

/// The last frame on a connection.
pub(crate) fn disconnected(message: &str) -> Bytes {
    format!(r#"{{"type":"system","event":"disconnected","message":{}}}"#, quoted(message)).into()
}

/// The answer to a ping.
pub(crate) const PONG: &str = r#"{"type":"pong"}"#;

/// What stands between the sequence number of a message and its payload.
pub(crate) fn message_head(group: Option<&str>, user: Option<&str>, data_type: DataType) -> String {
    let mut head = String::from(r#""type":"message","from":"#);
    match group {
        Some(group) => {
            let _ = write!(head, r#""group","group":{}"#, quoted(group));
        }
        None => head.push_str(r#""server""#),
    }
    if let Some(user) = user.filter(|_| group.is_some()) {
        let _ = write!(head, r#","fromUserId":{}"#, quoted(user));
    }
    let _ = write!(head, r#","dataType":"{}","data":"#, data_type.name());
    head
}

/// A message for one client. All but the sequence number is shared with other receivers.
pub(crate) fn message(sequence: Option<u64>, head: &Bytes, data: &Bytes) -> Message {
    let front = sequence.map_or_else(|| "{".to_owned(), |sequence| format!(r#"{{"sequenceId":{sequence},"#));
    [Bytes::from(front), head.clone(), data.clone(), Bytes::from_static(b"}")].into_iter().collect()
}

/// What the service tells a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Response {
    /// The connection begins, or goes on.
    Connected { connection: String, user: Option<String>, reconnection_token: Option<String> },
    /// The connection ends, and why.
    Disconnected { message: String },
    /// A request was done, or why not: the service's own name for it.
    Ack { id: u64, result: Result<(), String> },
    /// A message.
    Message { sequence: Option<u64>, group: Option<String>, user: Option<String>, data_type: DataType, data: Bytes },
    /// The answer to a ping.
    Pong,
    /// Something that a later version of the service says.
    Other,
}

impl Response {
    /// Reads a frame of the service. Large ones are messages, and are passed over once.
    pub(crate) fn parse(frame: &Bytes) -> Result<Self, BadRequest> {
        if let Some((rest, text)) = without_text(frame, true)
            && let Ok(fields) = Fields::of(&rest)
        {
            return Self::of(frame, &Fields { text: Some(text), ..fields });
        }
        Self::of(frame, &Fields::of(frame)?)
    }

    fn of(frame: &Bytes, fields: &Fields<'_>) -> Result<Self, BadRequest> {
        Ok(match fields.text(TYPE)?.as_str() {
            "message" => {
                let (data_type, text) = (fields.data_type()?, |field| fields.text(field).ok());
                Self::Message {
                    sequence: fields.number(SEQUENCE_ID)?,
                    group: text(GROUP),
                    user: text(FROM_USER_ID),
                    data_type,
                    data: fields.data(data_type)?,
                }
            }
            "ack" => {
                let id = fields.number(ACK_ID)?.ok_or(BadRequest::Field("ackId"))?;
                let result = if fields.flag(SUCCESS)? { Ok(()) } else { Err(error_name(frame)) };
                Self::Ack { id, result }
            }
            "system" => system(frame)?,
            "pong" => Self::Pong,
            _ => Self::Other,
        })
    }
}

/// The name of the error in an acknowledgement.
fn error_name(frame: &Bytes) -> String {
    const PATHS: [Path; 1] = [&["error", "name"]];
    let name = json::find(std::iter::once(&frame[..]), &PATHS).ok().and_then(|paths| paths.get(0));
    let name = name.and_then(|found| {
        let span = usize::try_from(found.span.start).ok()?..usize::try_from(found.span.end).ok()?;
        json::string(frame.get(span)?).map(std::borrow::Cow::into_owned)
    });
    name.unwrap_or_default()
}

fn system(frame: &Bytes) -> Result<Response, BadRequest> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct System {
        event: String,
        connection_id: Option<String>,
        user_id: Option<String>,
        reconnection_token: Option<String>,
        #[serde(default)]
        message: String,
    }
    let system: System = serde_json::from_slice(frame).map_err(|_| BadRequest::Field("event"))?;
    let System { event, connection_id, user_id: user, reconnection_token, message } = system;
    Ok(match event.as_str() {
        "connected" => {
            let connection = connection_id.ok_or(BadRequest::Field("connectionId"))?;
            Response::Connected { connection, user, reconnection_token }
        }
        "disconnected" => Response::Disconnected { message },
        _ => Response::Other,
    })
}

/// A request without a payload: to join a group, or to leave it.
pub(crate) fn group_request(kind: &str, group: &str, ack: u64) -> Message {
    Message::from(format!(r#"{{"type":"{kind}","group":{},"ackId":{ack}}}"#, quoted(group)))
}

/// The acknowledgement of all messages up to this one.
pub(crate) fn sequence_ack(sequence: u64) -> Message {
    Message::from(format!(r#"{{"type":"sequenceAck","sequenceId":{sequence}}}"#))
}

/// Sends a text to a group. `escaped` is the inside of a JSON string; `group` is quoted.
pub(crate) fn publish(group: &str, ack: u64, escaped: impl IntoIterator<Item = Bytes>) -> Message {
    let front =
        format!(r#"{{"type":"sendToGroup","group":{group},"ackId":{ack},"noEcho":true,"dataType":"text","data":""#);
    [Bytes::from(front)].into_iter().chain(escaped).chain([Bytes::from_static(br#""}"#)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Request, BadRequest> {
        Request::parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    fn publish(group: &str, data_type: DataType, data: &str) -> Request {
        let data = Bytes::copy_from_slice(data.as_bytes());
        Request::Publish { group: group.into(), ack: Some(1), no_echo: true, data_type, data }
    }

    #[test]
    fn requests_are_read_in_any_order_of_their_fields() {
        for (text, request) in [
            (r#"{"type":"joinGroup","group":"g","ackId":1}"#, Request::Join { group: "g".into(), ack: Some(1) }),
            (
                r#"{ "ackId" : 7, "group":"\u0067\"", "type":"leaveGroup" }"#,
                Request::Leave { group: "g\"".into(), ack: Some(7) },
            ),
            (
                r#"{"data":"a\nb","dataType":"text","type":"sendToGroup","noEcho":true,"group":"g","ackId":1}"#,
                publish("g", DataType::Text, r#""a\nb""#),
            ),
            (
                r#"{"type":"sendToGroup","group":"g","ackId":1,"noEcho":true,"data":{"type":"ping"}}"#,
                publish("g", DataType::Json, r#"{"type":"ping"}"#),
            ),
            (
                r#"{"type":"sendToGroup","group":"g","ackId":1,"noEcho":true,"dataType":"json","data":null}"#,
                publish("g", DataType::Json, "null"),
            ),
            (
                r#"{"type":"sequenceAck","sequenceId":18446744073709551615}"#,
                Request::SequenceAck { sequence: u64::MAX },
            ),
            (r#"{"type":"sequenceAck","sequenceId":"5"}"#, Request::SequenceAck { sequence: 5 }),
            (r#"{"type":"ping"}"#, Request::Ping),
            (r#"{"type":"event","event":"e","ackId":null}"#, Request::Event { ack: None }),
            (r#"{"type":"invoke","invocationId":"1","target":"event"}"#, Request::Invoke { id: "1".into() }),
            (
                r#"{"type":"sendToGroup","group":"g","stream":{"streamId":"s"}}"#,
                Request::Stream { id: "s".into(), ack: None },
            ),
            (r#"{"type":"later","ackId":3}"#, Request::Unknown { ack: Some(3) }),
        ] {
            assert_eq!(parse(text).as_ref(), Ok(&request), "{text}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_by_name() {
        use BadRequest as E;
        let long = format!(r#"{{"type":"joinGroup","group":"{}"}}"#, "g".repeat(1025));
        for (text, error) in [
            ("", E::NotJson),
            ("[]", E::NotJson),
            (r#"{"type":"ping"}{}"#, E::NotJson),
            (r#"{"type":"ping","type":"ping"}"#, E::Repeated("type")),
            (r#"{"group":"g"}"#, E::Field("type")),
            (r#"{"type":"joinGroup"}"#, E::Field("group")),
            (r#"{"type":"joinGroup","group":""}"#, E::Field("group")),
            (&long, E::Field("group")),
            (r#"{"type":"joinGroup","group":"g","ackId":-1}"#, E::Field("ackId")),
            (r#"{"type":"sendToGroup","group":"g","dataType":"text","data":1}"#, E::Field("data")),
            (r#"{"type":"sendToGroup","group":"g","dataType":"xml","data":""}"#, E::Field("dataType")),
            (r#"{"type":"sendToGroup","group":"g"}"#, E::Field("data")),
            ("{\"type\":\"sendToGroup\",\"group\":\"g\",\"data\":\"a\nb\"}", E::NotJson),
            (r#"{"type":"sequenceAck"}"#, E::Field("sequenceId")),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        let not_utf8 = Bytes::from_static(b"{\"type\":\"sendToGroup\",\"group\":\"g\",\"data\":\"\xff\"}");
        assert_eq!(Request::parse(&not_utf8), Err(E::Field("data")));
    }

    #[test]
    fn long_frames_are_read_like_short_ones_wherever_their_text_stands() {
        let text = format!("{}\\u00e9\\\"\\n{}é", "a".repeat(5_000), "b".repeat(5_000));
        let want = publish("g", DataType::Text, &format!("\"{text}\""));
        for (before, after) in [
            (r#"{"type":"sendToGroup","group":"g","ackId":1,"noEcho":true,"dataType":"text","data":"#, "}"),
            (r#"{"type":"sendToGroup","group":"g","ackId":1,"noEcho":true,"dataType":"text","data": "#, " }"),
            (r#"{"type":"sendToGroup","dataType":"text","data":"#, r#","group":"g","ackId":1,"noEcho":true}"#),
        ] {
            assert!(parse(&format!("{before}\"{text}\"{after}")).as_ref() == Ok(&want), "{before}");
        }
        let front = r#"{"type":"sendToGroup","group":"g","dataType":"text","data":""#;
        let long = "x".repeat(5_000);
        for (inside, end) in [
            ("\u{1}", "\"}"),
            ("\\x", "\"}"),
            ("\\u12", "\"}"),
            ("\\", "\"}"),
            ("\"", "\"}"),
            ("", "\"}}"),
            ("\",\"data\":\"", "\"}"),
        ] {
            assert!(parse(&format!("{front}{long}{inside}{end}")).is_err(), "{inside:?} {end}");
        }
        let nested = format!(r#"{{"type":"sendToGroup","group":"g","x":{{"dataType":"text","data":"{long}"}}}}"#);
        assert_eq!(parse(&nested), Err(BadRequest::Field("data")));
        let not_utf8 = [front.as_bytes(), long.as_bytes(), b"\xff\"}"].concat();
        assert!(Request::parse(&not_utf8.into()).is_err());
    }

    #[test]
    fn what_the_service_writes_its_client_reads() {
        let read = |frame: Bytes| Response::parse(&frame).unwrap();
        let connected = self::connected("c", Some("a\"b"), Some("t"));
        let (user, reconnection_token) = (Some("a\"b".to_owned()), Some("t".to_owned()));
        assert_eq!(read(connected), Response::Connected { connection: "c".into(), user, reconnection_token });
        assert_eq!(read(disconnected("why")), Response::Disconnected { message: "why".into() });
        assert_eq!(read(ack(5, None)), Response::Ack { id: 5, result: Ok(()) });
        let failed = ack(6, Some((Failure::Duplicate, "again")));
        assert_eq!(read(failed), Response::Ack { id: 6, result: Err("Duplicate".into()) });
        assert_eq!(read(Bytes::from_static(PONG.as_bytes())), Response::Pong);
        let head = Bytes::from(message_head(Some("g"), Some("ann"), DataType::Text));
        let sent = message(Some(9), &head, &Bytes::from_static(br#""x""#)).to_bytes();
        let (group, user, data) = (Some("g".to_owned()), Some("ann".to_owned()), Bytes::from_static(br#""x""#));
        let data_type = DataType::Text;
        assert_eq!(read(sent), Response::Message { sequence: Some(9), group, user, data_type, data });
    }

    #[test]
    fn what_the_client_writes_the_service_reads() {
        let escaped = [Bytes::from_static(br#"{\"a\":"#), Bytes::from_static(b"1}")];
        let frame = super::publish(&quoted("g"), 1, escaped).to_bytes();
        assert_eq!(Request::parse(&frame), Ok(publish("g", DataType::Text, r#""{\"a\":1}""#)));
        let join = group_request("joinGroup", "g", 2).to_bytes();
        assert_eq!(Request::parse(&join), Ok(Request::Join { group: "g".into(), ack: Some(2) }));
        let acked = sequence_ack(3).to_bytes();
        assert_eq!(Request::parse(&acked), Ok(Request::SequenceAck { sequence: 3 }));
    }
}
