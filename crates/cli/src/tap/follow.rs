//! Follows one client's connection: what each message is, what it answers, and how long that took.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use breakbulk::gateway::{FrameCounts, Passed, SideId};
use breakbulk_proto::json::{self, Found, Number, Path};
use breakbulk_proto::{Kind, Message};

use super::groups::{Groups, SEGMENT, Whole};

/// One line of output: a message that has passed.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) at: SystemTime,
    /// The number of the client, from 1 on.
    pub(super) client: u64,
    /// What the client calls itself, once it has said so.
    pub(super) client_id: Option<String>,
    /// The side that it went to.
    pub(super) to: SideId,
    pub(super) kind: Kind,
    pub(super) method: Option<String>,
    /// The type of the action that it carries.
    pub(super) action: Option<String>,
    pub(super) channel: Option<String>,
    /// Its id as it is written.
    pub(super) id: Option<String>,
    /// The method of the request that it answers.
    pub(super) answers: Option<String>,
    /// The code of the error that it answers with.
    pub(super) error: Option<i64>,
    pub(super) bytes: u64,
    /// In how many frames it came, and in how many it left.
    pub(super) segments: FrameCounts,
    /// From its first frame to its last.
    pub(super) took: Duration,
    /// From the request that it answers.
    pub(super) latency: Option<Duration>,
}

/// Follows one client.
#[derive(Debug)]
pub(super) struct Follower {
    client: u64,
    client_id: Option<String>,
    /// Requests that are not answered yet, by the direction that they went in and their id.
    asked: HashMap<(bool, String), (String, Instant)>,
    /// Segments toward the host, and toward the client.
    groups: [Groups; 2],
}

/// Requests whose answers are awaited; of more, the latency is not known.
const MAX_ASKED: usize = 4096;
/// The longest name or id that is shown.
const MAX_NAME: usize = 256;

static PATHS: [Path; 8] = [
    &["method"],
    &["id"],
    &["params", "action", "type"],
    &["params", "channel"],
    &["params", "clientId"],
    &["result"],
    &["error"],
    &["error", "code"],
];

impl Follower {
    pub(super) fn new(client: u64, max_bytes: u64) -> Self {
        let groups = [Groups::new(max_bytes), Groups::new(max_bytes)];
        Self { client, client_id: None, asked: HashMap::new(), groups }
    }

    /// Takes a message that has passed; returns its line. `None` for a segment that does not complete its message.
    pub(super) fn follow(&mut self, passed: Passed) -> Option<Line> {
        let now = Instant::now();
        let is_to_host = passed.to == SideId::Upstream;
        let [to_host, to_client] = &mut self.groups;
        let groups = if is_to_host { to_host } else { to_client };
        if passed.method.as_deref() == Some(SEGMENT)
            && let Ok(taken) = groups.take(&passed.message.to_bytes(), now)
        {
            let Whole { content, bytes, segments, took } = taken?;
            let message = content.map(Message::from);
            // The kind of a message that was not held is unknown.
            let kind = if message.is_some() { Kind::Notification } else { Kind::Other };
            let frames = FrameCounts { received: segments, sent: segments };
            let passed = Passed::new(passed.to, kind, message.unwrap_or_default(), frames, took);
            return Some(Line { bytes, ..self.line(passed, now) });
        }
        Some(self.line(passed, now))
    }

    fn line(&mut self, passed: Passed, now: Instant) -> Line {
        let Passed { to, kind, method, message, frames, took, .. } = passed;
        let found = json::find(message.slices(), &PATHS).ok();
        let at = |path: usize| found.as_ref().and_then(|paths| paths.get(path));
        let raw = |found: Found| String::from_utf8_lossy(&message.read(found.span)).chars().take(MAX_NAME).collect();
        let text = |path: usize| {
            let text = message.read(at(path)?.span);
            json::string(&text).map(|text| text.chars().take(MAX_NAME).collect::<String>())
        };
        let id: Option<String> = at(1).filter(|id| id.kind != json::ValueKind::Null).map(raw);
        let method = text(0).or(method);
        let has_answer = at(5).is_some() || at(6).is_some();
        let kind = match (&method, &id, has_answer) {
            _ if found.is_none() => kind,
            (Some(_), Some(_), _) => Kind::Request,
            (Some(_), None, _) => Kind::Notification,
            (None, _, true) => Kind::Response,
            (None, _, false) => Kind::Other,
        };
        let error = at(7).and_then(|code| match json::number(&message.read(code.span)) {
            Number::Int(code) => i64::try_from(code).ok(),
            _ => None,
        });
        if kind == Kind::Request && matches!(method.as_deref(), Some("initialize" | "reconnect")) {
            self.client_id = text(4).or_else(|| self.client_id.take());
        }
        let is_to_host = to == SideId::Upstream;
        let mut asked = None;
        match (kind, &id, &method) {
            (Kind::Request, Some(id), Some(method)) if self.asked.len() < MAX_ASKED => {
                self.asked.insert((is_to_host, id.clone()), (method.clone(), now));
            }
            (Kind::Response, Some(id), _) => asked = self.asked.remove(&(!is_to_host, id.clone())),
            _ => {}
        }
        let latency = asked.as_ref().map(|(_, at)| now.saturating_duration_since(*at));
        Line {
            at: SystemTime::now(),
            client: self.client,
            client_id: self.client_id.clone(),
            to,
            kind,
            action: text(2),
            channel: text(3),
            answers: asked.map(|(method, _)| method),
            method,
            id,
            error,
            bytes: u64::try_from(message.len()).unwrap_or(u64::MAX),
            segments: frames,
            took,
            latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(to: SideId, text: &str) -> Passed {
        Passed::new(to, Kind::Other, Message::from(text.to_owned()), FrameCounts::default(), Duration::ZERO)
    }

    #[test]
    fn an_answer_names_what_it_answers_and_how_long_that_took() {
        let mut follower = Follower::new(7, 1 << 20);
        let mut line = |to, text: &str| follower.follow(passed(to, text)).unwrap();
        let hello =
            line(SideId::Upstream, r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"clientId":"me"}}"#);
        assert_eq!(
            (hello.kind, hello.client_id.as_deref(), hello.id.as_deref()),
            (Kind::Request, Some("me"), Some("\"a\""))
        );
        // The other side has ids of its own.
        let asked = line(SideId::Downstream, r#"{"jsonrpc":"2.0","id":"a","method":"roots/list"}"#);
        assert_eq!((asked.kind, asked.latency), (Kind::Request, None));
        let answer = line(SideId::Downstream, r#"{"jsonrpc":"2.0","id":"a","result":{}}"#);
        assert_eq!((answer.answers.as_deref(), answer.latency.is_some()), (Some("initialize"), true));
        let refused = line(SideId::Upstream, r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"no"}}"#);
        assert_eq!((refused.answers.as_deref(), refused.error), (Some("roots/list"), Some(-32601)));
        assert_eq!(line(SideId::Downstream, r#"{"jsonrpc":"2.0","id":"a","result":{}}"#).latency, None);
    }

    #[test]
    fn an_action_has_its_type_and_channel() {
        let mut follower = Follower::new(1, 1 << 20);
        let text =
            r#"{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","action":{"type":"chat/delta"}}}"#;
        let line = follower.follow(passed(SideId::Downstream, text)).unwrap();
        assert_eq!((line.kind, line.method.as_deref()), (Kind::Notification, Some("action")));
        assert_eq!((line.action.as_deref(), line.channel.as_deref()), (Some("chat/delta"), Some("ahp-chat:/1")));
    }
}
