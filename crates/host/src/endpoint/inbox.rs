//! What a client says: requests, actions, and answers to what it was asked.

use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::ActionOrigin;
use ahp_types::commands::{SubscribeParams, UnsubscribeParams};
use ahp_types::errors::ahp_error_codes::NOT_FOUND;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST};
use ahp_types::messages::JsonRpcError;
use breakbulk_proto::Message;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::{debug, warn};

use super::connection::Connection;
use super::feed::Subscription;
use super::greeting;
use super::jobs::{self, Done, Draft, Job, Wish, Work};
use super::methods::{Dispatched, RawParams, Refusal};
use super::resume::Shown;
use super::views::{Shot, View, ViewError};
use super::wire::{self, Incoming};
use crate::error::MethodError;

/// What a client is told that asks too much at once. JSON-RPC leaves the code to servers, and AHP has none for it.
const BUSY: i32 = -32000;

impl Connection {
    /// The client said something.
    pub(super) fn message(&mut self, message: &Message) {
        let mut incoming = Incoming::read(message);
        let Some(method) = incoming.method.take() else { return self.answered(incoming) };
        let params = RawParams::new(incoming.params);
        match incoming.id {
            Some(id) => self.request(id, &method, params, message.len()),
            None => self.notification(&method, &params, message.len()),
        }
    }

    fn request(&mut self, id: Bytes, method: &str, params: RawParams, bytes: usize) {
        let result = match method {
            "ping" => Ok(Some(null())),
            "initialize" | "reconnect" if self.present.is_some() => Err(invalid("the handshake is done")),
            "initialize" | "reconnect" => {
                self.greet(id.clone(), method, params, bytes);
                Ok(None)
            }
            _ if self.present.is_none() => Err(invalid("initialize or reconnect first")),
            "subscribe" => self.subscribe(id.clone(), &params, bytes).map(|()| None),
            "unsubscribe" => self.unsubscribe(&params).map(|()| Some(null())),
            "dispatchAction" => self.dispatch(Some(id.clone()), &params, bytes).map(|()| None),
            _ => self.call(id.clone(), method, params, bytes).map(|()| None),
        };
        match result {
            Ok(Some(result)) => self.answer(Some(&id), Ok(result)),
            Ok(None) => {}
            Err(error) => self.answer(Some(&id), Err(error)),
        }
    }

    fn notification(&mut self, method: &str, params: &RawParams, bytes: usize) {
        let taken = match method {
            _ if self.present.is_none() => Err(invalid("initialize or reconnect first")),
            "dispatchAction" => self.dispatch(None, params, bytes),
            "unsubscribe" => self.unsubscribe(params),
            _ => Err(super::not_offered(method)),
        };
        if let Err(error) = taken {
            self.shared.counts.add("endpoint-notifications-dropped", 1);
            if std::mem::replace(&mut self.has_dropped, true) {
                debug!(bytes, code = error.code, "a notification was dropped: {error}");
            } else {
                warn!(bytes, code = error.code, "a notification was dropped, later ones are only counted: {error}");
            }
        }
    }

    /// The client answers a request of ours.
    fn answered(&mut self, incoming: Incoming) {
        let asked = incoming.number().and_then(|id| self.present.as_mut()?.asked.remove(&id));
        let Some(asked) = asked else {
            self.shared.counts.add("endpoint-answers-dropped", 1);
            return debug!("an answer to nothing was dropped");
        };
        let answer = match (incoming.result, incoming.error) {
            (Some(result), None) => Ok(result),
            (_, error) => Err(failure(error.as_deref().unwrap_or_default())),
        };
        // Nobody may wait any more.
        drop(asked.send(answer));
    }

    fn greet(&mut self, id: Bytes, method: &str, params: RawParams, bytes: usize) {
        self.is_greeting = true;
        let (shared, takes) = (Arc::clone(&self.shared), self.takes());
        let (principal, is_new) = (self.principal.clone(), method == "initialize");
        self.jobs.start(Job { id: Some(id), work: Work::Greet, bytes }, async move {
            let greeted = if is_new {
                greeting::initialize(&shared, principal, params, takes).await
            } else {
                greeting::reconnect(&shared, principal, params, takes).await
            };
            Done::Greeted(greeted.map(Box::new))
        });
    }

    fn subscribe(&mut self, id: Bytes, params: &RawParams, bytes: usize) -> Result<(), MethodError> {
        let SubscribeParams { channel, delivery, view, .. } = params.parse()?;
        let channel: Arc<str> = channel.into();
        let followed = self.present.as_ref().map(|present| present.feed.subscriptions());
        let is_new = followed.is_none_or(|followed| !followed.contains_key(&channel));
        let count = followed.map_or(0, |followed| followed.len()).saturating_add(self.wishes.len());
        if is_new && count >= self.shared.config.max_subscriptions {
            return Err(MethodError::new(BUSY, format!("a client may follow {count} channels, and does")));
        }
        self.check_room()?;
        let millis = delivery.and_then(|delivery| delivery.max_latency_ms).unwrap_or(0);
        let latency = Duration::from_millis(u64::try_from(millis).unwrap_or(0)).min(self.shared.config.max_latency);
        let turns = view.and_then(|view| view.turns).map(|turns| u64::try_from(turns).unwrap_or(0));
        let wish = Wish { channel, turns, latency };
        self.left.retain(|left| *left != wish.channel);
        self.wishes.push((Job { id: Some(id), work: Work::Subscribe(wish.clone()), bytes }, wish));
        Ok(())
    }

    /// The position stands still now: a snapshot from there on is asked for.
    pub(super) fn begin_snapshot(&mut self, job: Job, wish: Wish) {
        let Some(present) = &self.present else { return };
        let (shared, at_least, most) = (Arc::clone(&self.shared), present.feed.position(), self.takes().most);
        let view = View { turns: wish.turns };
        self.shots = self.shots.saturating_add(1);
        self.jobs
            .start(job, async move { Done::Shown(Shown::take(&shared, &wish.channel, view, at_least, most).await) });
    }

    /// A snapshot is there: from it on the channel is followed.
    pub(super) fn shown(&mut self, id: Option<&Bytes>, wish: &Wish, shown: Result<Shown, ViewError>) {
        self.flush();
        let result = shown.map_err(|error| match error {
            ViewError::NotFound => MethodError::new(NOT_FOUND, "there is no such channel"),
            ViewError::Failed(error) => error,
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

    fn call(&mut self, id: Bytes, method: &str, params: RawParams, bytes: usize) -> Result<(), MethodError> {
        self.check_room()?;
        let Some(present) = &self.present else { return Err(invalid("initialize or reconnect first")) };
        let (methods, client) = (Arc::clone(&self.shared.methods), Arc::clone(&present.info));
        let (job, method) =
            (Job { id: Some(id), work: Work::Call { writes: jobs::writes(method) }, bytes }, method.to_owned());
        let reads = jobs::reads(&method).then(|| Arc::clone(&self.reads));
        self.jobs.start(job, async move {
            let leave = match reads {
                Some(reads) => reads.acquire_owned().await.ok(),
                None => None,
            };
            Done::Called(methods.call(&client, &method, params).await, leave)
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
        Err(MethodError::new(BUSY, format!("{under_way} requests are under way: wait for their answers")))
    }

    fn dispatch(&mut self, id: Option<Bytes>, params: &RawParams, bytes: usize) -> Result<(), MethodError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            channel: String,
            client_seq: i64,
            #[serde(borrow)]
            action: &'a RawValue,
        }
        let text = params.text();
        let read: Result<Params<'_>, _> = serde_json::from_slice(text);
        let read = read.map_err(|_| MethodError::new(INVALID_PARAMS, "the params are no action for a channel"))?;
        let action = text.slice_ref(read.action.get().as_bytes());
        let draft = Draft { channel: read.channel, client_seq: read.client_seq, action };
        if self.jobs.waiting() >= self.shared.config.max_dispatches {
            let refusal = Refusal::new("too many actions wait for those before them");
            self.dispatched(id, &draft, Err(refusal));
        } else {
            self.jobs.wait(Job { id, work: Work::Dispatch(draft.clone()), bytes }, draft);
        }
        Ok(())
    }

    /// Begins the next action, if it is its turn.
    pub(super) fn begin_dispatch(&mut self) {
        let Some(present) = self.present.as_ref().filter(|_| self.jobs.waiting() > 0) else { return };
        let (methods, client) = (Arc::clone(&self.shared.methods), Arc::clone(&present.info));
        let arrived = present.registration.arrived.clone();
        self.jobs.next_dispatch(|draft| {
            Box::pin(async move {
                let Ok(action) = serde_json::from_slice(&draft.action) else {
                    return Done::Dispatched(Err(Refusal::new("the action does not fit its type")));
                };
                let Draft { channel, client_seq, .. } = draft;
                let dispatched = Dispatched { channel, client_seq, action };
                let passed = arrived.pass(async move { methods.dispatch(&client, dispatched).await }).await;
                Done::Dispatched(passed.unwrap_or_else(|| Err(Refusal::new("an internal error"))))
            })
        });
    }

    /// An action was taken, and comes with the log; or not, and goes back to its sender alone.
    pub(super) fn dispatched(&mut self, id: Option<Bytes>, draft: &Draft, outcome: Result<(), Refusal>) {
        let Err(Refusal(reason)) = outcome else { return self.answer(id.as_ref(), Ok(null())) };
        let Some(present) = &self.present else { return };
        self.shared.counts.add("endpoint-actions-refused", 1);
        debug!(bytes = draft.action.len(), number = draft.client_seq, "an action was refused: {reason}");
        let origin = ActionOrigin { client_id: present.info.id.to_string(), client_seq: draft.client_seq };
        let seq = present.feed.position();
        self.flush();
        self.send(wire::rejection(seq, &draft.channel, &draft.action, &origin, &reason));
        self.answer(id.as_ref(), Err(invalid(&reason)));
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
        Err(_) => MethodError::new(INTERNAL_ERROR, "the client answered with an error that is none"),
    }
}
