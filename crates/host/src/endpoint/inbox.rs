//! What a client says: requests, actions, and answers to what it was asked.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::ActionOrigin;
use ahp_types::commands::{SubscribeParams, UnsubscribeParams};
use ahp_types::errors::ahp_error_codes::NOT_FOUND;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST};
use ahp_types::messages::JsonRpcError;
use breakbulk_proto::ahp::may_pass;
use breakbulk_proto::json::{self, Number};
use breakbulk_proto::{Grant, Message};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::Shared;
use super::connection::Connection;
use super::end::End;
use super::feed::Subscription;
use super::greeting;
use super::jobs::{self, Done, Draft, DraftHeader, Job, Outcome, Wish, Work};
use super::methods::{ClientInfo, Dispatched, Methods, RawParams, Refusal, Refused};
use super::resume::Shown;
use super::views::{Shot, View, ViewError};
use super::wire::{self, Incoming};
use crate::error::MethodError;
use crate::exact;
use crate::long_work::long_work;
use crate::mismatch;

/// What a client is told that asks too much at once. JSON-RPC leaves the code to servers, and AHP has none for it.
pub(super) const BUSY: i32 = -32000;

/// Answers up to here are not paid for: there are no more of them than requests under way.
const SHORT_ANSWER: usize = 512;

/// How long a long action is paid for at most while the state saves and forgets what it has no room for.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// The shortest frames that a client may want. Around its data a segment has up to 170 bytes; with less than this, a
/// snapshot of some megabytes would need more segments than a group may have.
const MIN_CLIENT_FRAME: u64 = 256;

/// How deep the params of a request, and an action, may be nested. Snapshots and replays nest what they carry about a dozen
/// levels deeper, and official clients take 128: so whatever is in the state can be read by everybody.
const MAX_NESTING: u32 = 64;

impl Connection {
    /// The client said something.
    ///
    /// What pays for a long message goes with all that is cut out of it.
    pub(super) fn message(&mut self, message: &Message, grant: Option<Grant>) {
        let mut incoming = Incoming::read(message);
        if let Some(fault) = incoming.fault {
            return self.faulty(incoming.id.as_ref(), fault);
        }
        let size = Size { bytes: message.len(), grant: grant.map(Arc::new) };
        let Some(method) = incoming.method.take() else { return self.answered(incoming, &size) };
        let params = RawParams::new(size.pay_for(incoming.params));
        match incoming.id {
            Some(id) => self.request(id, &method, params, size),
            None => self.notification(&method, &params, size),
        }
    }

    /// The client said something that is no JSON-RPC. We never answer with `id: null`, because nobody could tell what to;
    /// where there is no id to answer to, the close says what is wrong.
    fn faulty(&mut self, id: Option<&Bytes>, fault: &str) {
        self.shared.counts.add("endpoint-invalid-messages", 1);
        match id {
            Some(_) => self.answer(id, Err(invalid(fault))),
            None => self.end(End::Invalid(fault.to_owned())),
        }
    }

    fn request(&mut self, id: Bytes, method: &str, params: RawParams, size: Size) {
        let depth = Message::from(params.text().clone()).check_depth(MAX_NESTING);
        let result = match method {
            "ping" => Ok(Some(null())),
            // Of an action this is said where it is dispatched: what its client has of it has to be taken back.
            _ if depth.is_err() && method != "dispatchAction" => {
                let depth = depth.err().unwrap_or_default();
                let why = format!("invalid params: nested {depth} levels deep, the limit is {MAX_NESTING}");
                Err(MethodError::new(INVALID_PARAMS, why))
            }
            "initialize" | "reconnect" if self.present.is_some() => {
                Err(invalid("the handshake is done already on this connection"))
            }
            "initialize" | "reconnect" => {
                self.greet(id.clone(), method, params, size);
                Ok(None)
            }
            _ if self.present.is_none() => Err(invalid("no handshake yet: send initialize or reconnect first")),
            "subscribe" => self.subscribe(id.clone(), &params, size).map(|()| None),
            "unsubscribe" => self.unsubscribe(&params).map(|()| Some(null())),
            "dispatchAction" => self.dispatch(Some(id.clone()), &params, size).map(|()| None),
            _ => self.call(id.clone(), method, params, size).map(|()| None),
        };
        match result {
            Ok(Some(result)) => self.answer(Some(&id), Ok(result)),
            Ok(None) => {}
            Err(error) => self.answer(Some(&id), Err(error)),
        }
    }

    fn notification(&mut self, method: &str, params: &RawParams, size: Size) {
        let bytes = size.bytes;
        let taken = match method {
            _ if self.present.is_none() => Err(invalid("no handshake yet: send initialize or reconnect first")),
            "dispatchAction" => self.dispatch(None, params, size),
            "unsubscribe" => self.unsubscribe(params),
            _ => Err(super::not_offered(method)),
        };
        if let Err(error) = taken {
            self.shared.counts.add("endpoint-notifications-dropped", 1);
            // The client may have applied the action already, and would have a state that nobody else has.
            if method == "dispatchAction" && self.present.is_some() {
                return self.end(End::Invalid(format!("dispatchAction: {}", error.message)));
            }
            if std::mem::replace(&mut self.has_dropped, true) {
                debug!(bytes, code = error.code, "a notification of a client was dropped");
            } else {
                // Not its words: they may be the client's own.
                let code = error.code;
                warn!(
                    bytes,
                    code, "a notification of a client was dropped: later ones of this connection are counted only"
                );
            }
        }
    }

    /// The client answers a request of ours.
    fn answered(&mut self, incoming: Incoming, size: &Size) {
        let asked = incoming.number().and_then(|id| self.present.as_mut()?.asked.remove(&id));
        let Some(asked) = asked else {
            self.shared.counts.add("endpoint-answers-dropped", 1);
            return debug!("an answer to nothing was dropped");
        };
        let answer = match (incoming.result, incoming.error) {
            (Some(result), None) => Ok(size.pay_for(result)),
            (_, error) => Err(failure(error.as_deref().unwrap_or_default())),
        };
        // Nobody may wait any more.
        drop(asked.send(answer));
    }

    fn greet(&mut self, id: Bytes, method: &str, params: RawParams, size: Size) {
        if let Some(limit) = self.driver.link().frame_limit().filter(|limit| *limit < MIN_CLIENT_FRAME) {
            let why = format!("maxIncomingFrameBytes is {limit}, and must be {MIN_CLIENT_FRAME} at least");
            // A refused initialize goes out whole; what answers a reconnect would have to keep to the limit.
            return match method {
                "initialize" => self.answer(Some(&id), Err(MethodError::new(INVALID_PARAMS, why))),
                _ => self.end(End::Invalid(why)),
            };
        }
        self.is_greeting = true;
        let (shared, takes) = (Arc::clone(&self.shared), self.takes());
        let (principal, is_new) = (self.principal.clone(), method == "initialize");
        let memory = self.memory.clone();
        self.jobs.start(size.job(Some(id), Work::Greet), async move {
            let greeted = if is_new {
                greeting::initialize(&shared, principal, params, takes, &memory).await
            } else {
                greeting::reconnect(&shared, principal, params, takes, &memory).await
            };
            Done::Greeted(greeted.map(Box::new))
        });
    }

    fn subscribe(&mut self, id: Bytes, params: &RawParams, size: Size) -> Result<(), MethodError> {
        let SubscribeParams { channel, delivery, view, .. } = params.parse()?;
        let channel: Arc<str> = channel.into();
        let followed = self.present.as_ref().map(|present| present.feed.subscriptions());
        let is_new = followed.is_none_or(|followed| !followed.contains_key(&channel));
        let count = followed.map_or(0, |followed| followed.len()).saturating_add(self.wishes.len());
        if is_new && count >= self.shared.config.max_subscriptions {
            let limit = self.shared.config.max_subscriptions;
            let why = format!("a client may follow {limit} channels at most: unsubscribe from some first");
            return Err(MethodError::new(BUSY, why));
        }
        self.check_room()?;
        let millis = delivery.and_then(|delivery| delivery.max_latency_ms).unwrap_or(0);
        let latency = Duration::from_millis(u64::try_from(millis).unwrap_or(0)).min(self.shared.config.max_latency);
        let turns = view.and_then(|view| view.turns).map(|turns| u64::try_from(turns).unwrap_or(0));
        let wish = Wish { channel, turns, latency };
        self.left.retain(|left| *left != wish.channel);
        self.wishes.push((size.job(Some(id), Work::Subscribe(wish.clone())), wish));
        Ok(())
    }

    /// The position stands still now: a snapshot from there on is asked for.
    pub(super) fn begin_snapshot(&mut self, job: Job, wish: Wish) {
        let Some(present) = &self.present else { return };
        let (shared, at_least, most) = (Arc::clone(&self.shared), present.feed.position(), self.takes().most);
        let view = View { turns: wish.turns };
        self.shots = self.shots.saturating_add(1);
        let memory = self.memory.clone();
        self.jobs.start(job, async move {
            Done::Shown(Shown::take(&shared, &memory, &wish.channel, view, at_least, most).await)
        });
    }

    /// A snapshot is there: from it on the channel is followed.
    pub(super) fn shown(&mut self, id: Option<&Bytes>, wish: &Wish, shown: Result<Shown, ViewError>) {
        self.flush();
        let result = shown.map_err(|error| match error {
            ViewError::NotFound => MethodError::new(NOT_FOUND, "there is no such channel"),
            ViewError::Failed(error) => error,
            ViewError::NoMemory(error) => error.into(),
        });
        let was_left = self.left.contains(&wish.channel);
        if let (Ok(shown), Some(present), false) = (&result, &mut self.present, was_left) {
            let known = shown.shot.from_seq.max(present.feed.position());
            let is_windowed = shown.is_windowed;
            let subscription = Subscription { known, latency: wish.latency, is_windowed };
            present.feed.follow(wish.channel.clone(), subscription);
            self.shared.methods.follows(&present.info, &wish.channel);
        }
        if let Ok(shown) = &result {
            self.by_reference(shown.moved, self.takes().most);
        }
        self.answer(id, result.map(|shown| enclosed(&shown.shot)));
    }

    fn unsubscribe(&mut self, params: &RawParams) -> Result<(), MethodError> {
        let UnsubscribeParams { channel } = params.parse()?;
        let channel: Arc<str> = channel.into();
        if let Some(present) = &mut self.present {
            present.feed.leave(&channel);
            self.shared.methods.left(&present.info, &channel);
        }
        // A snapshot of it may be on its way; those who asked are answered, and nothing follows.
        if !self.left.contains(&channel) && self.left.len() < self.shared.config.max_subscriptions {
            self.left.push(channel);
        }
        Ok(())
    }

    fn call(&mut self, id: Bytes, method: &str, params: RawParams, size: Size) -> Result<(), MethodError> {
        self.check_room()?;
        let Some(present) = &self.present else {
            return Err(invalid("no handshake yet: send initialize or reconnect first"));
        };
        let (methods, client) = (Arc::clone(&self.shared.methods), Arc::clone(&present.info));
        let (shared, bytes) = (Arc::clone(&self.shared), size.bytes);
        let (job, method) = (size.job(Some(id), Work::Call { writes: jobs::writes(method) }), method.to_owned());
        let reads = jobs::reads(&method).then(|| Arc::clone(&self.reads));
        self.jobs.start(job, async move {
            let leave = match reads {
                Some(reads) => reads.acquire_owned().await.ok(),
                None => None,
            };
            let work = shared.work.begin(bytes).await;
            let reply = methods.call(&client, &method, params).await;
            // Who waits for memory for an answer holds up no other work.
            drop(work);
            let reply = match reply {
                Ok(reply) if reply.unpaid_bytes() > SHORT_ANSWER => {
                    let paid = client.memory.reserve(reply.unpaid_bytes()).await;
                    paid.map(|payment| reply.pay(payment)).map_err(MethodError::from)
                }
                reply => reply,
            };
            Done::Called(reply, leave)
        });
        Ok(())
    }

    /// Whether one more request may be under way.
    fn check_room(&self) -> Result<(), MethodError> {
        let under_way = self.jobs.running().saturating_add(self.wishes.len());
        if under_way < self.shared.config.max_calls {
            return Ok(());
        }
        self.shared.counts.add("endpoint-busy", 1);
        Err(MethodError::new(
            BUSY,
            format!("{under_way} requests of this client are under way, which is the limit: wait for their answers"),
        ))
    }

    fn dispatch(&mut self, id: Option<Bytes>, params: &RawParams, size: Size) -> Result<(), MethodError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            channel: String,
            #[serde(borrow)]
            client_seq: &'a RawValue,
            #[serde(borrow)]
            action: &'a RawValue,
        }
        /// For what is said of params that do not fit.
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
        let header = DraftHeader { channel: read.channel, client_seq, goes_ahead: goes_ahead(&action) };
        if let Err(depth) = Message::from(action.clone()).check_depth(MAX_NESTING) {
            let why = format!("the action is nested {depth} levels deep, the limit is {MAX_NESTING}");
            // Its client has to be able to read what it gets back.
            let action = wire::pruned(&action, MAX_NESTING);
            self.refused(id.as_ref(), &header, &action, MethodError::new(INVALID_PARAMS, why));
            return Ok(());
        }
        let most = self.shared.config.max_dispatches;
        // What answers or cancels something is not refused because others wait.
        if self.jobs.waiting() >= if header.goes_ahead { most.saturating_mul(2) } else { most } {
            let (waiting, limit) = (self.jobs.waiting(), self.shared.config.max_dispatches);
            let why = format!("{waiting} actions of this client wait already, the limit is {limit}: wait for answers");
            self.refused(id.as_ref(), &header, &action, MethodError::new(BUSY, why));
        } else {
            let draft = Draft { header: header.clone(), action, grant: size.grant.clone() };
            self.jobs.wait(size.job(id, Work::Dispatch(header)), draft);
        }
        Ok(())
    }

    /// Begins the actions whose turn it is.
    pub(super) fn begin_dispatches(&mut self) {
        while self.begin_dispatch() {}
    }

    fn begin_dispatch(&mut self) -> bool {
        let Some(present) = self.present.as_ref().filter(|_| self.jobs.waiting() > 0) else { return false };
        let (methods, client) = (Arc::clone(&self.shared.methods), Arc::clone(&present.info));
        let (arrived, shared) = (present.registration.arrived.clone(), Arc::clone(&self.shared));
        self.jobs.next_dispatch(|draft| {
            Box::pin(async move {
                match arrived.pass(dispatch(shared, methods, client, draft)).await {
                    Ok(Some(outcome)) => Done::Dispatched(outcome),
                    Ok(None) => Done::Dispatched(Outcome::Superseded),
                    Err(_) => Done::Dispatched(Outcome::Broke),
                }
            })
        })
    }

    /// What became of an action.
    pub(super) fn dispatched(&mut self, id: Option<&Bytes>, header: &DraftHeader, outcome: Outcome) {
        match outcome {
            Outcome::Logged => self.answer(id, Ok(null())),
            Outcome::Refused { refusal, action } => self.refused(id, header, &action, refusal.into_error()),
            Outcome::Superseded => self.end(End::Fenced),
            Outcome::Broke => self.end(End::Internal),
        }
    }

    /// Gives an action back to its sender alone.
    fn refused(&mut self, id: Option<&Bytes>, header: &DraftHeader, action: &Bytes, error: MethodError) {
        let Some(present) = &self.present else { return };
        self.shared.counts.add("endpoint-actions-refused", 1);
        debug!(bytes = action.len(), number = header.client_seq, code = error.code, "an action was refused");
        let origin = ActionOrigin { client_id: present.info.id.to_string(), client_seq: header.client_seq };
        let seq = present.feed.position();
        self.flush();
        self.send(wire::rejection(seq, &header.channel, action, &origin, &error.message));
        self.answer(id, Err(error));
    }
}

/// Whether an action answers or cancels something, by its type. The type of a long one is not looked for.
fn goes_ahead(action: &[u8]) -> bool {
    const SHORT: usize = 64 << 10;
    #[derive(Deserialize)]
    struct Typed<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    let typed = |action| serde_json::from_slice::<Typed<'_>>(action).ok();
    action.len() <= SHORT && typed(action).is_some_and(|typed| may_pass(&typed.kind))
}

/// Reads an action and has it carried out. Of a long one there are as few copies as can be: its text goes when it was read,
/// and is written anew if the client gets it back. What pays for it is kept until the state has room again.
async fn dispatch(shared: Arc<Shared>, methods: Arc<dyn Methods>, client: Arc<ClientInfo>, draft: Draft) -> Outcome {
    let Draft { header: DraftHeader { channel, client_seq, .. }, action: text, grant } = draft;
    let bytes = text.len();
    let Some(work) = shared.work.begin(bytes).await else {
        let Ok(action) = serde_json::from_slice(&text) else { return unreadable(text) };
        return match methods.dispatch(&client, Dispatched { channel, client_seq, action, bytes }).await {
            Ok(()) => Outcome::Logged,
            Err(Refused { refusal, .. }) => Outcome::Refused { refusal, action: text },
        };
    };
    let Ok(action) = long_work(bytes, || serde_json::from_slice(&text)) else { return unreadable(text) };
    drop(text);
    let outcome = match methods.dispatch(&client, Dispatched { channel, client_seq, action, bytes }).await {
        Ok(()) => Outcome::Logged,
        Err(Refused { refusal, action }) => match long_work(bytes, || exact::to_vec(&action)) {
            Ok(text) => {
                let text = Message::from(text);
                let action = grant.as_ref().map_or_else(|| text.to_bytes(), |grant| text.with_owner(grant).to_bytes());
                Outcome::Refused { refusal, action }
            }
            Err(_) => Outcome::Broke,
        },
    };
    tokio::spawn(async move {
        drop(timeout(SETTLE_TIME, shared.views.settled()).await);
        drop((grant, work));
    });
    outcome
}

/// An action that is JSON, and no action to our reader.
fn unreadable(action: Bytes) -> Outcome {
    let refusal = Refusal::new("the action is nested too deeply, or has a number that is out of range");
    Outcome::Refused { refusal, action }
}

/// How long a request is, and what pays for it.
#[derive(Debug)]
struct Size {
    bytes: usize,
    /// `None` for a short one.
    grant: Option<Arc<Grant>>,
}

impl Size {
    /// A part of the request, or a copy of one: it is paid for as long as it is there.
    fn pay_for(&self, part: Bytes) -> Bytes {
        match &self.grant {
            Some(grant) => Message::from(part).with_owner(grant).to_bytes(),
            None => part,
        }
    }

    fn job(self, id: Option<Bytes>, work: Work) -> Job {
        Job { id, work, bytes: self.bytes, grant: self.grant }
    }
}

fn null() -> Message {
    Message::from("null")
}

fn invalid(text: &str) -> MethodError {
    MethodError::new(INVALID_REQUEST, text)
}

/// The result of a `subscribe`.
fn enclosed(shot: &Shot) -> Message {
    let parts = [Bytes::from_static(br#"{"snapshot":"#)].into_iter().chain(shot.body.parts().iter().cloned());
    parts.chain([Bytes::from_static(b"}")]).collect()
}

/// What the client says went wrong.
fn failure(text: &[u8]) -> MethodError {
    match serde_json::from_slice::<JsonRpcError>(text) {
        Ok(JsonRpcError { code, message, data }) => MethodError { code, message, data },
        Err(_) => MethodError::new(INTERNAL_ERROR, "the client answered with an error that has no code or no message"),
    }
}
