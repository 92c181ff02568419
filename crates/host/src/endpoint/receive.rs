//! What a client sends: requests, notifications, actions, and answers to requests of the host.

use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::ActionOrigin;
use ahp_types::commands::{SubscribeParams, UnsubscribeParams};
use ahp_types::errors::ahp_error_codes::NOT_FOUND;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST};
use ahp_types::messages::JsonRpcError;
use breakbulk_proto::ahp::may_pass;
use breakbulk_proto::json::{self, Number};
use breakbulk_proto::{Envelope, Grant, Message};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::EndpointInner;
use super::connection::Connection;
use super::end_reason::EndReason;
use super::handshake::{self, HandshakeMethod};
use super::handshake_link::InvalidChunking;
use super::jobs::{self, ActionHeader, DispatchOutcome, Job, JobKind, JobOutput, PendingAction, SubscribeRequest};
use super::log_reader::Subscription;
use super::methods::{ClientInfo, DispatchError, Dispatched, Methods, RawParams, RejectedAction};
use super::resume::SubscribeSnapshot;
use super::snapshot_source::{ChannelSnapshot, SnapshotError, View};
use super::wire::{self, Incoming};
use crate::error::MethodError;
use crate::exact;
use crate::long_work::long_work;
use crate::mismatch;

/// The error code for a client that asks too much at once. JSON-RPC leaves it to servers, and AHP has none for it.
pub(super) const BUSY: i32 = -32000;

/// Answers up to this length need no reservation: there are no more of them than requests under way.
const SHORT_ANSWER: usize = 512;

/// How long the memory of a long action stays reserved at most while the state saves and evicts channels.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// The smallest frame limit that a client may name. A segment has up to 170 bytes around its data; with a smaller limit, a
/// snapshot of some megabytes would need more segments than a group may have.
const MIN_CLIENT_FRAME: u64 = 256;

/// How much of the name of a channel that does not exist is repeated to the client.
const MAX_CHANNEL_CHARS: usize = 256;

/// How deep the params of a request, and an action, may be nested. Snapshots and replays add about a dozen levels, and
/// official clients parse 128: so every client can read everything that is in the state.
const MAX_NESTING: u32 = 64;

impl Connection {
    /// Handles a message of the client. The grant of a long message is attached to everything that is sliced out of it.
    pub(super) fn message(&mut self, message: &Message, envelope: &Envelope, grant: Option<Grant>) {
        let mut incoming = Incoming::new(message, envelope);
        if let Some(invalid_because) = incoming.invalid_because {
            return self.reject_invalid(incoming.id.as_ref(), invalid_because);
        }
        let action_type = incoming.action_type.take();
        let info = RequestInfo { bytes: message.len(), action_type, grant: grant.map(Arc::new) };
        let Some(method) = incoming.method.take() else { return self.answered(incoming, &info) };
        let params = RawParams::new(info.with_grant(incoming.params));
        match incoming.id {
            Some(id) => self.request(id, &method, params, info),
            None => self.notification(&method, &params, info),
        }
    }

    /// Handles a message that is no JSON-RPC. We never answer with `id: null`, because the client could not tell what was
    /// answered. Without an id, the close reason says what is wrong.
    fn reject_invalid(&mut self, id: Option<&Bytes>, invalid_because: &str) {
        self.shared.counts.add("endpoint-invalid-messages", 1);
        match id {
            Some(_) => self.answer(id, Err(invalid(invalid_because))),
            None => self.end(EndReason::Invalid(invalid_because.to_owned())),
        }
    }

    fn request(&mut self, id: Bytes, method: &str, params: RawParams, info: RequestInfo) {
        let depth = Message::from(params.text().clone()).check_depth(MAX_NESTING);
        let result = match method {
            "ping" => Ok(Some(null())),
            // For an action, `dispatch` checks this: the client has to get the action back.
            _ if depth.is_err() && method != "dispatchAction" => {
                let depth = depth.err().unwrap_or_default();
                let why = format!("invalid params: nested {depth} levels deep, the limit is {MAX_NESTING}");
                Err(MethodError::new(INVALID_PARAMS, why))
            }
            "initialize" | "reconnect" if self.client.is_some() => {
                Err(invalid("the handshake is done already on this connection"))
            }
            "initialize" => {
                self.begin_handshake(id.clone(), HandshakeMethod::Initialize, params, info);
                Ok(None)
            }
            "reconnect" => {
                self.begin_handshake(id.clone(), HandshakeMethod::Reconnect, params, info);
                Ok(None)
            }
            _ if self.client.is_none() => Err(invalid("no handshake yet: send initialize or reconnect first")),
            "subscribe" => self.subscribe(id.clone(), &params, info).map(|()| None),
            "unsubscribe" => self.unsubscribe(&params).map(|()| Some(null())),
            "dispatchAction" => self.dispatch(Some(id.clone()), &params, info).map(|()| None),
            _ => self.call(id.clone(), method, params, info).map(|()| None),
        };
        match result {
            Ok(Some(result)) => self.answer(Some(&id), Ok(result)),
            Ok(None) => {}
            Err(error) => self.answer(Some(&id), Err(error)),
        }
    }

    fn notification(&mut self, method: &str, params: &RawParams, info: RequestInfo) {
        let bytes = info.bytes;
        let taken = match method {
            _ if self.client.is_none() => Err(invalid("no handshake yet: send initialize or reconnect first")),
            "dispatchAction" => self.dispatch(None, params, info),
            "unsubscribe" => self.unsubscribe(params),
            _ => Err(super::not_offered(method)),
        };
        if let Err(error) = taken {
            self.shared.counts.add("endpoint-notifications-dropped", 1);
            // The client may have applied the action already, and would keep a state that nobody else has.
            if method == "dispatchAction" && self.client.is_some() {
                return self.end(EndReason::Invalid(format!("dispatchAction: {}", error.message)));
            }
            if std::mem::replace(&mut self.has_dropped, true) {
                debug!(bytes, code = error.code, "a notification of a client was dropped");
            } else {
                // The message of the error is left out, and an unknown method too: they may contain the client's own words.
                let (code, known) = (error.code, jobs::is_request(method));
                let (method, method_bytes) = (known.then_some(method), (!known).then_some(method.len()));
                let cause = if known { " because this method is a request and needs an id" } else { "" };
                warn!(
                    bytes,
                    code,
                    method,
                    method_bytes,
                    "a notification of a client was dropped{cause}: later ones of this connection are counted only"
                );
            }
        }
    }

    /// Handles the client's answer to a request of the host.
    fn answered(&mut self, incoming: Incoming, info: &RequestInfo) {
        let asked = incoming.number().and_then(|id| self.client.as_mut()?.asked.remove(&id));
        let Some(asked) = asked else {
            self.shared.counts.add("endpoint-answers-dropped", 1);
            return debug!("an answer to nothing was dropped");
        };
        let answer = match (incoming.result, incoming.error) {
            (Some(result), None) => Ok(info.with_grant(result)),
            (_, error) => Err(failure(error.as_deref().unwrap_or_default())),
        };
        // Whoever asked may have stopped waiting.
        drop(asked.send(answer));
    }

    fn begin_handshake(&mut self, id: Bytes, method: HandshakeMethod, params: RawParams, info: RequestInfo) {
        if let Some(limit) = self.driver.link().frame_limit().filter(|limit| *limit < MIN_CLIENT_FRAME) {
            let why = format!("maxIncomingFrameBytes is {limit}, and must be {MIN_CLIENT_FRAME} at least");
            // A refused `initialize` is answered in one frame; the answer to a `reconnect` would have to keep to the limit.
            return match method {
                HandshakeMethod::Initialize => self.answer(Some(&id), Err(MethodError::new(INVALID_PARAMS, why))),
                HandshakeMethod::Reconnect => self.end(EndReason::Invalid(why)),
            };
        }
        if let Some(InvalidChunking { client, field }) = self.driver.link_mut().take_invalid_chunking()
            && let Some(permit) = self.shared.log_limit.permit("invalid-chunking")
        {
            warn!(
                client,
                field,
                left_out = permit.left_out(),
                "the chunking capability of a client is not valid and counts as none: messages are not segmented for it"
            );
        }
        self.handshake = self.handshake.started();
        let (shared, message_limits) = (Arc::clone(&self.shared), self.message_limits());
        let (principal, memory) = (self.principal.clone(), self.memory.clone());
        self.jobs.start(info.job(Some(id), JobKind::Handshake), async move {
            let result = match method {
                HandshakeMethod::Initialize => {
                    handshake::initialize(&shared, principal, params, message_limits, &memory).await
                }
                HandshakeMethod::Reconnect => {
                    handshake::reconnect(&shared, principal, params, message_limits, &memory).await
                }
            };
            JobOutput::Handshake(result.map(Box::new))
        });
    }

    fn subscribe(&mut self, id: Bytes, params: &RawParams, info: RequestInfo) -> Result<(), MethodError> {
        let SubscribeParams { channel, delivery, view, .. } = params.parse()?;
        let channel: Arc<str> = channel.into();
        let followed = self.client.as_ref().map(|client| client.reader.subscriptions());
        let is_new = followed.is_none_or(|followed| !followed.contains_key(&channel));
        let count = followed.map_or(0, |followed| followed.len()).saturating_add(self.pending_subscribes.len());
        if is_new && count >= self.shared.config.max_subscriptions {
            let limit = self.shared.config.max_subscriptions;
            let why = format!("a client may follow {limit} channels at most: unsubscribe from some first");
            return Err(MethodError::new(BUSY, why));
        }
        self.check_capacity()?;
        let millis = delivery.and_then(|delivery| delivery.max_latency_ms).unwrap_or(0);
        let latency = Duration::from_millis(u64::try_from(millis).unwrap_or(0)).min(self.shared.config.max_latency);
        let turns = view.and_then(|view| view.turns).map(|turns| u64::try_from(turns).unwrap_or(0));
        let request = SubscribeRequest { channel, turns, latency };
        self.unsubscribed.retain(|unsubscribed| *unsubscribed != request.channel);
        self.pending_subscribes.push((info.job(Some(id), JobKind::Subscribe(request.clone())), request));
        Ok(())
    }

    /// Begins to make a snapshot. The log reader is idle, so its position does not change meanwhile.
    pub(super) fn begin_snapshot(&mut self, job: Job, request: SubscribeRequest) {
        let Some(client) = &self.client else { return };
        let (shared, at_least, most) = (Arc::clone(&self.shared), client.reader.position(), self.message_limits().max);
        let view = View { turns: request.turns };
        self.snapshots_in_progress = self.snapshots_in_progress.saturating_add(1);
        let memory = self.memory.clone();
        self.jobs.start(job, async move {
            JobOutput::Snapshot(SubscribeSnapshot::take(&shared, &memory, &request.channel, view, at_least, most).await)
        });
    }

    /// Subscribes the client from its snapshot on, and answers its request.
    pub(super) fn finish_subscribe(
        &mut self,
        id: Option<&Bytes>,
        request: &SubscribeRequest,
        taken: Result<SubscribeSnapshot, SnapshotError>,
    ) {
        self.flush();
        let result = taken.map_err(|error| match error {
            SnapshotError::NotFound => {
                // The client chose the name: no more of it is repeated than the name of a channel can have.
                let channel: String = request.channel.chars().take(MAX_CHANNEL_CHARS).collect();
                MethodError::new(NOT_FOUND, format!("there is no channel {channel:?}"))
            }
            SnapshotError::Failed(error) => error,
            SnapshotError::NoMemory(error) => error.into(),
        });
        let was_unsubscribed = self.unsubscribed.contains(&request.channel);
        if let (Ok(taken), Some(client), false) = (&result, &mut self.client, was_unsubscribed) {
            let known = taken.snapshot.from_seq.max(client.reader.position());
            let is_windowed = taken.is_windowed;
            let subscription = Subscription { known, latency: request.latency, is_windowed };
            client.reader.follow(request.channel.clone(), subscription);
            self.shared.methods.subscribed(&client.info, &request.channel);
        }
        if let Ok(taken) = &result {
            self.note_references(taken.references, self.message_limits().max);
        }
        self.answer(id, result.map(|taken| enclosed(&taken.snapshot)));
    }

    fn unsubscribe(&mut self, params: &RawParams) -> Result<(), MethodError> {
        let UnsubscribeParams { channel } = params.parse()?;
        let channel: Arc<str> = channel.into();
        if let Some(client) = &mut self.client {
            client.reader.leave(&channel);
            self.shared.methods.unsubscribed(&client.info, &channel);
        }
        // A snapshot of the channel may be in progress: its request is answered, but does not subscribe the client.
        if !self.unsubscribed.contains(&channel) && self.unsubscribed.len() < self.shared.config.max_subscriptions {
            self.unsubscribed.push(channel);
        }
        Ok(())
    }

    fn call(&mut self, id: Bytes, method: &str, params: RawParams, info: RequestInfo) -> Result<(), MethodError> {
        self.check_capacity()?;
        let Some(client) = &self.client else {
            return Err(invalid("no handshake yet: send initialize or reconnect first"));
        };
        let (methods, client) = (Arc::clone(&self.shared.methods), Arc::clone(&client.info));
        let (shared, bytes) = (Arc::clone(&self.shared), info.bytes);
        let (job, method) = (info.job(Some(id), JobKind::Call { writes: jobs::writes(method) }), method.to_owned());
        let reads = jobs::reads(&method).then(|| Arc::clone(&self.reads));
        self.jobs.start(job, async move {
            let leave = match reads {
                Some(reads) => reads.acquire_owned().await.ok(),
                None => None,
            };
            let permit = shared.work.begin(bytes).await;
            let reply = methods.call(&client, &method, params).await;
            // Waiting for memory must not hold up other work.
            drop(permit);
            let reply = match reply {
                Ok(reply) if reply.unreserved_bytes() > SHORT_ANSWER => {
                    let reserved = client.memory.reserve(reply.unreserved_bytes()).await;
                    reserved.map(|reservation| reply.with_reservation(reservation)).map_err(MethodError::from)
                }
                reply => reply,
            };
            JobOutput::Call(reply, leave)
        });
        Ok(())
    }

    /// Whether one more request may be under way.
    fn check_capacity(&self) -> Result<(), MethodError> {
        let under_way = self.jobs.running().saturating_add(self.pending_subscribes.len());
        if under_way < self.shared.config.max_calls {
            return Ok(());
        }
        self.shared.counts.add("endpoint-busy", 1);
        Err(MethodError::new(
            BUSY,
            format!("{under_way} requests of this client are under way, which is the limit: wait for their answers"),
        ))
    }

    fn dispatch(&mut self, id: Option<Bytes>, params: &RawParams, info: RequestInfo) -> Result<(), MethodError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            channel: String,
            #[serde(borrow)]
            client_seq: &'a RawValue,
            #[serde(borrow)]
            action: &'a RawValue,
        }
        /// The same, for the error message about params that do not fit.
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Owned {
            #[serde(rename = "channel")]
            _channel: String,
            #[serde(rename = "clientSeq")]
            _client_seq: IgnoredAny,
            #[serde(rename = "action")]
            _action: IgnoredAny,
        }
        let text = params.text();
        let read: Params<'_> = serde_json::from_slice(text).map_err(|_| {
            let why =
                mismatch::describe::<Owned>(text).unwrap_or_else(|| "they are no action for a channel".to_owned());
            MethodError::new(INVALID_PARAMS, format!("invalid params: {why}"))
        })?;
        let client_seq = match json::number(read.client_seq.get().as_bytes()) {
            Number::Int(seq) => i64::try_from(seq).ok(),
            _ => None,
        };
        let client_seq = client_seq.ok_or_else(|| {
            MethodError::new(INVALID_PARAMS, "invalid params: the field \"clientSeq\" must be an integer of 64 bits")
        })?;
        let action = text.slice_ref(read.action.get().as_bytes());
        let header = ActionHeader { channel: read.channel, client_seq, is_urgent: is_urgent(&info, &action) };
        if let Err(depth) = Message::from(action.clone()).check_depth(MAX_NESTING) {
            let why = format!("the action is nested {depth} levels deep, the limit is {MAX_NESTING}");
            // The action goes back to the client, which must be able to parse it.
            let action = wire::pruned(&action, MAX_NESTING);
            self.refused(id.as_ref(), &header, &action, MethodError::new(INVALID_PARAMS, why));
            return Ok(());
        }
        let most = self.shared.config.max_dispatches;
        // An urgent action is not rejected because others wait.
        if self.jobs.waiting() >= if header.is_urgent { most.saturating_mul(2) } else { most } {
            let (waiting, limit) = (self.jobs.waiting(), self.shared.config.max_dispatches);
            let why = format!("{waiting} actions of this client wait already, the limit is {limit}: wait for answers");
            self.refused(id.as_ref(), &header, &action, MethodError::new(BUSY, why));
        } else {
            let pending = PendingAction { header: header.clone(), action, grant: info.grant.clone() };
            self.jobs.wait(info.job(id, JobKind::Dispatch(header)), pending);
        }
        Ok(())
    }

    /// Starts the actions whose turn it is.
    pub(super) fn begin_dispatches(&mut self) {
        while self.begin_dispatch() {}
    }

    fn begin_dispatch(&mut self) -> bool {
        let Some(client) = self.client.as_ref().filter(|_| self.jobs.waiting() > 0) else { return false };
        let (lease, shared) = (client.registration.lease.clone(), Arc::clone(&self.shared));
        let (methods, client) = (Arc::clone(&self.shared.methods), Arc::clone(&client.info));
        self.jobs.next_dispatch(|pending| {
            Box::pin(async move {
                match lease.run_if_current(dispatch(shared, methods, client, pending)).await {
                    Ok(Some(outcome)) => JobOutput::Dispatch(outcome),
                    Ok(None) => JobOutput::Dispatch(DispatchOutcome::Superseded),
                    Err(_) => JobOutput::Dispatch(DispatchOutcome::Broke),
                }
            })
        })
    }

    /// Answers the client when its action was logged or rejected.
    pub(super) fn dispatched(&mut self, id: Option<&Bytes>, header: &ActionHeader, outcome: DispatchOutcome) {
        match outcome {
            DispatchOutcome::Logged => self.answer(id, Ok(null())),
            DispatchOutcome::Rejected { .. } if self.shared.log_is_fenced() => {}
            DispatchOutcome::Rejected { error, action } => self.refused(id, header, &action, error.into_error()),
            DispatchOutcome::Superseded => self.end(EndReason::Fenced),
            DispatchOutcome::Broke => self.end(EndReason::Internal),
        }
    }

    /// Sends an action back to its sender alone.
    fn refused(&mut self, id: Option<&Bytes>, header: &ActionHeader, action: &Bytes, error: MethodError) {
        let Some(client) = &self.client else { return };
        self.shared.counts.add("endpoint-actions-refused", 1);
        debug!(bytes = action.len(), number = header.client_seq, code = error.code, "an action was refused");
        let origin = ActionOrigin { client_id: client.info.id.to_string(), client_seq: header.client_seq };
        let seq = client.reader.position();
        self.flush();
        self.send(wire::rejection(seq, &header.channel, action, &origin, &error.message));
        self.answer(id, Err(error));
    }
}

/// Whether an action answers or cancels something, by its type. A long one is never urgent.
fn is_urgent(info: &RequestInfo, action: &[u8]) -> bool {
    const MAX_URGENT: usize = 64 << 10;
    action.len() <= MAX_URGENT && info.action_type.as_deref().is_some_and(may_pass)
}

/// Parses an action and dispatches it. To have few copies of a long one, its text is dropped when it is parsed, and written
/// again if the client gets it back. Its memory stays reserved until the state has evicted what exceeds its limit.
async fn dispatch(
    shared: Arc<EndpointInner>,
    methods: Arc<dyn Methods>,
    client: Arc<ClientInfo>,
    pending: PendingAction,
) -> DispatchOutcome {
    let PendingAction { header: ActionHeader { channel, client_seq, .. }, action: text, grant } = pending;
    let bytes = text.len();
    let Some(permit) = shared.work.begin(bytes).await else {
        let Ok(action) = serde_json::from_slice(&text) else { return unreadable(text) };
        return match methods.dispatch(&client, Dispatched { channel, client_seq, action, bytes }).await {
            Ok(()) => DispatchOutcome::Logged,
            Err(RejectedAction { error, .. }) => DispatchOutcome::Rejected { error, action: text },
        };
    };
    let Ok(action) = long_work(bytes, || serde_json::from_slice(&text)) else { return unreadable(text) };
    drop(text);
    let outcome = match methods.dispatch(&client, Dispatched { channel, client_seq, action, bytes }).await {
        Ok(()) => DispatchOutcome::Logged,
        Err(RejectedAction { error, action }) => match long_work(bytes, || exact::to_vec(&action)) {
            Ok(text) => {
                let text = Message::from(text);
                let action = grant.as_ref().map_or_else(|| text.to_bytes(), |grant| text.with_owner(grant).to_bytes());
                DispatchOutcome::Rejected { error, action }
            }
            Err(_) => DispatchOutcome::Broke,
        },
    };
    tokio::spawn(async move {
        drop(timeout(SETTLE_TIME, shared.snapshot_source.settled()).await);
        drop((grant, permit));
    });
    outcome
}

/// Rejects an action that is valid JSON but cannot be parsed as an action.
fn unreadable(action: Bytes) -> DispatchOutcome {
    let error = DispatchError::new("the action is nested too deeply, or has a number that is out of range");
    DispatchOutcome::Rejected { error, action }
}

/// Facts about a request other than its params.
#[derive(Debug)]
struct RequestInfo {
    bytes: usize,
    /// The type of the action that it dispatches.
    action_type: Option<String>,
    /// The memory of a long request.
    grant: Option<Arc<Grant>>,
}

impl RequestInfo {
    /// Attaches the grant to a part of the request, or a copy of one, for as long as that lives.
    fn with_grant(&self, part: Bytes) -> Bytes {
        match &self.grant {
            Some(grant) => Message::from(part).with_owner(grant).to_bytes(),
            None => part,
        }
    }

    fn job(self, id: Option<Bytes>, kind: JobKind) -> Job {
        Job { id, kind, bytes: self.bytes, grant: self.grant }
    }
}

fn null() -> Message {
    Message::from("null")
}

fn invalid(text: &str) -> MethodError {
    MethodError::new(INVALID_REQUEST, text)
}

/// The result of a `subscribe`.
fn enclosed(snapshot: &ChannelSnapshot) -> Message {
    let parts = [Bytes::from_static(br#"{"snapshot":"#)].into_iter().chain(snapshot.body.parts().iter().cloned());
    parts.chain([Bytes::from_static(b"}")]).collect()
}

/// The error of a client's answer.
fn failure(text: &[u8]) -> MethodError {
    match serde_json::from_slice::<JsonRpcError>(text) {
        Ok(JsonRpcError { code, message, data }) => MethodError { code, message, data },
        Err(_) => MethodError::new(INTERNAL_ERROR, "the client answered with an error that has no code or no message"),
    }
}
