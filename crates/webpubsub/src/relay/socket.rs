//! The task of one WebSocket: reads requests, sends answers and messages, and ends with the WebSocket or with the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk::{Arrival, BoxLink, LinkError};
use breakbulk_proto::{CloseReason, Meta, Tag, Transmit};
use bytes::Bytes;
use futures_core::Stream as _;
use futures_sink::Sink as _;
use tokio::time::{sleep, timeout};

use super::client::{Client, Closed, Published, SocketEnd, Subprotocol};
use super::hub::{Hub, NoMemory, Target};
use super::permissions::{Permission, Permissions};
use super::{Admission, Relay, RelayState};
use crate::token::Claims;
use crate::wire::{self, Failure, Request};

/// How long a close may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The close code for a client that cannot come back.
const POLICY: u16 = 1008;
/// The close code when there are too many clients.
const TRY_AGAIN: u16 = 1013;

/// A client on the WebSocket of this task.
struct Session {
    relay: Relay,
    hub_name: String,
    hub: Arc<Hub>,
    client: Arc<Client>,
    generation: u64,
}

/// Why a WebSocket has ended.
enum DisconnectCause {
    /// By the client's state.
    Told(SocketEnd),
    /// The peer closed it, or the network did.
    Gone,
    /// The peer sent a frame that is too long, and the stack has said so.
    Oversized,
    /// The same, and the peer has to be told.
    OversizedUntold,
}

/// Serves a WebSocket until it ends, and keeps its client for a while if it may come back.
pub(super) async fn serve(relay: Relay, mut link: BoxLink, admission: Admission) {
    let open = relay.0.sockets.fetch_add(1, Ordering::Relaxed);
    let begun = match open < relay.0.config.max_connections {
        true => Session::begin(relay.clone(), admission),
        false => Err(too_many_connections()),
    };
    let session = match begun {
        Ok(session) => {
            session.run(&mut link).await;
            Some(session)
        }
        Err(closed) => {
            relay.0.counters.close(closed.reason);
            say_closed(&mut link, &closed).await;
            None
        }
    };
    drop(link);
    relay.0.sockets.fetch_sub(1, Ordering::Relaxed);
    if let Some(session) = session {
        session.end().await;
    }
}

fn too_many_connections() -> Closed {
    Closed { reason: "too-many-clients", code: TRY_AGAIN, message: "There are too many clients.".into() }
}

impl Session {
    /// Finds the client that comes back, or adds a new one.
    fn begin(relay: Relay, admission: Admission) -> Result<Self, Closed> {
        match admission {
            Admission::Recovery { hub: hub_name, connection, token } => {
                let hub = relay.0.hubs.get(&hub_name);
                // With no time to come back in, also not to whoever is faster than the end of the lost WebSocket.
                let client = hub.client(&connection).filter(|_| !relay.0.config.keep.is_zero());
                let recovered = client.and_then(|client| Some((client.recover(&token)?, client)));
                let Some((generation, client)) = recovered else {
                    let message = "The connection to recover does not exist.".to_owned();
                    return Err(Closed { reason: "not-recoverable", code: POLICY, message });
                };
                relay.0.counters.recover();
                Ok(Self { relay, hub_name, hub, client, generation })
            }
            Admission::New { hub: hub_name, subprotocol, claims } => {
                let client = new_client(subprotocol, &claims)?;
                let config = &relay.0.config;
                let hub = relay.0.hubs.add(&hub_name, &client, config.max_clients).ok_or_else(too_many_connections)?;
                for group in claims.groups.iter().filter(|group| group.chars().nth(wire::MAX_GROUP_CHARS).is_none()) {
                    hub.join(&client, group, config.max_groups);
                }
                Ok(Self { relay, hub_name, hub, client, generation: 0 })
            }
        }
    }

    fn shared(&self) -> &RelayState {
        &self.relay.0
    }

    async fn run(&self, link: &mut BoxLink) {
        let end = std::future::poll_fn(|cx| self.poll(link, cx)).await;
        match end {
            DisconnectCause::Told(SocketEnd::Close(closed)) => say_closed(link, &closed).await,
            DisconnectCause::Told(SocketEnd::Drop) | DisconnectCause::Gone => {}
            DisconnectCause::Oversized => {
                self.shared().counters.refuse("frame-too-large");
                drop(timeout(CLOSE_TIMEOUT, close(link)).await);
            }
            DisconnectCause::OversizedUntold => {
                self.shared().counters.refuse("frame-too-large");
                let text = format!("max length: {}", self.shared().config.cap);
                say_close(link, CloseReason::Program(self.shared().config.oversize_code, text)).await;
            }
        }
    }

    /// The WebSocket is gone: the client is kept for a while, or forgotten.
    async fn end(self) {
        if self.client.lose(self.generation) {
            sleep(self.shared().config.keep).await;
            if !self.client.is_lost_since(self.generation) {
                return;
            }
            self.close("lost", POLICY, "The connection was not recovered in time.");
        } else if self.client.is_lost_since(self.generation) {
            self.close("left", POLICY, "The connection has ended.");
        }
    }

    fn close(&self, reason: &'static str, code: u16, message: &str) {
        let closed = Closed { reason, code, message: message.to_owned() };
        self.shared().hubs.close(self.shared(), &self.hub_name, &self.hub, &self.client, closed);
    }

    fn poll(&self, link: &mut BoxLink, cx: &mut Context<'_>) -> Poll<DisconnectCause> {
        loop {
            if let Some(end) = self.client.end_of(self.generation, cx.waker()) {
                return Poll::Ready(DisconnectCause::Told(end));
            }
            if self.write(link, cx).is_err() {
                return Poll::Ready(DisconnectCause::Gone);
            }
            if !self.client.may_read(&self.shared().config) {
                return Poll::Pending;
            }
            match Pin::new(&mut *link).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(Arrival::Frame { bytes, .. }))) => {
                    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    if size > self.shared().config.cap {
                        return Poll::Ready(DisconnectCause::OversizedUntold);
                    }
                    self.shared().counters.receive(size);
                    self.handle(&bytes);
                }
                Poll::Ready(Some(Err(LinkError::FrameTooLarge(_)))) => return Poll::Ready(DisconnectCause::Oversized),
                Poll::Ready(_) => return Poll::Ready(DisconnectCause::Gone),
            }
        }
    }

    /// Sends as much as the WebSocket takes.
    fn write(&self, link: &mut BoxLink, cx: &mut Context<'_>) -> Result<(), LinkError> {
        while let Poll::Ready(ready) = Pin::new(&mut *link).poll_ready(cx) {
            ready?;
            let (next, freed) = self.client.next(self.generation);
            self.shared().hubs.free(freed);
            let Some(bytes) = next else { break };
            self.shared().counters.send(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            Pin::new(&mut *link).start_send(Transmit::Frame { tag: Tag::default(), bytes, meta: Meta::default() })?;
        }
        match Pin::new(link).poll_flush(cx) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Does what a frame asks for.
    fn handle(&self, frame: &Bytes) {
        let request = match Request::parse(frame) {
            Ok(request) => request,
            Err(bad) => {
                self.shared().counters.refuse("bad-request");
                return self.close("bad-request", POLICY, &bad.to_string());
            }
        };
        match request {
            Request::Join { group, ack } => self.acknowledged(ack, || {
                self.check(Permission::JoinLeaveGroup, &group)?;
                let joined = self.hub.join(&self.client, &group, self.shared().config.max_groups);
                joined.then_some(()).ok_or((Failure::Forbidden, "The client is in too many groups."))
            }),
            Request::Leave { group, ack } => self.acknowledged(ack, || {
                self.check(Permission::JoinLeaveGroup, &group)?;
                self.hub.leave(&self.client, &group);
                Ok(())
            }),
            Request::Publish { group, ack, no_echo, data_type, data } => self.acknowledged(ack, || {
                self.check(Permission::SendToGroup, &group)?;
                let head = wire::message_head(Some(&group), self.client.user.as_deref(), data_type);
                let (message, own) = (Published::new(head, data), &self.client.id);
                let (shared, target) = (self.shared(), Target::Group(&group));
                let is_excluded = |client: &Client| no_echo && client.id == *own;
                let delivered = shared.hubs.deliver(shared, &self.hub_name, &self.hub, target, &message, is_excluded);
                delivered.map_err(|NoMemory| (Failure::Internal, "The service has no memory for the message now."))
            }),
            // There is no handler; as with the service, nobody is told.
            Request::Event { ack } => self.acknowledged(ack, || Ok(())),
            Request::SequenceAck { sequence } => {
                let freed = self.client.acknowledge(sequence);
                self.shared().hubs.free(freed);
            }
            Request::Ping => self.answer(Bytes::from_static(wire::PONG.as_bytes())),
            Request::Invoke { id } => {
                self.shared().counters.refuse("not-supported");
                self.answer(wire::invoke_failed(&id, "The hub has no event handler that could be invoked."));
            }
            Request::Stream { id, ack } => {
                self.shared().counters.refuse("not-supported");
                let message = "Streams are not supported.";
                self.answer(match ack {
                    Some(ack) => wire::ack(ack, Some((Failure::NotSupported, message))),
                    None => wire::stream_refused(&id, message),
                });
            }
            Request::Unknown { ack } => {
                self.shared().counters.refuse("not-supported");
                if let Some(ack) = ack {
                    self.answer(wire::ack(ack, Some((Failure::NotSupported, "The request is not supported."))));
                }
            }
        }
    }

    /// Does something unless a request with the same number was done before, and says how it went.
    fn acknowledged(&self, ack: Option<u64>, act: impl FnOnce() -> Result<(), (Failure, &'static str)>) {
        let Some(id) = ack else {
            if let Err((failure, _)) = act() {
                self.shared().counters.refuse(counted(failure));
            }
            return;
        };
        if self.client.lock().ack_ids.contains(id) {
            let message = format!("Message with ack-id: {id} has been processed");
            return self.answer(wire::ack(id, Some((Failure::Duplicate, &message))));
        }
        match act() {
            Ok(()) => {
                self.client.lock().ack_ids.insert(id);
                self.answer(wire::ack(id, None));
            }
            Err((failure, message)) => {
                self.shared().counters.refuse(counted(failure));
                self.answer(wire::ack(id, Some((failure, message))));
            }
        }
    }

    fn check(&self, permission: Permission, group: &str) -> Result<(), (Failure, &'static str)> {
        let is_permitted = self.client.lock().permissions.has(permission, Some(group));
        is_permitted.then_some(()).ok_or((Failure::Forbidden, "The client has no role for this group."))
    }

    fn answer(&self, frame: Bytes) {
        self.client.answer(frame);
    }
}

/// The name of a failure in metrics.
const fn counted(failure: Failure) -> &'static str {
    match failure {
        Failure::Forbidden => "forbidden",
        Failure::Duplicate => "duplicate",
        Failure::Internal => "no-memory",
        Failure::NotSupported => "not-supported",
    }
}

fn new_client(subprotocol: Subprotocol, claims: &Claims) -> Result<Arc<Client>, Closed> {
    let random = || {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let (Some(id), Some(token)) = (random(), random()) else {
        let message = "The system gave no random bytes.".to_owned();
        return Err(Closed { reason: "no-random", code: 1011, message });
    };
    let permissions = Permissions::of_roles(claims.roles.iter().map(String::as_str));
    let user = claims.sub.as_deref().filter(|user| !user.is_empty()).map(Arc::from);
    Ok(Arc::new(Client::new(id.into(), user, subprotocol, token, permissions)))
}

/// Tells a client that it is over, and closes.
async fn say_closed(link: &mut BoxLink, closed: &Closed) {
    let frame = wire::disconnected(&closed.message);
    let said = async {
        std::future::poll_fn(|cx| Pin::new(&mut *link).poll_ready(cx)).await?;
        let bytes = breakbulk_proto::Message::from(frame);
        Pin::new(&mut *link).start_send(Transmit::Frame { tag: Tag::default(), bytes, meta: Meta::default() })
    };
    if let Ok(Ok(())) = timeout(CLOSE_TIMEOUT, said).await {
        // A close reason has at most 123 bytes.
        let text = closed.message.get(..closed.message.floor_char_boundary(120)).unwrap_or_default().to_owned();
        say_close(link, CloseReason::Program(closed.code, text)).await;
    }
}

async fn say_close(link: &mut BoxLink, reason: CloseReason) {
    let said = async {
        std::future::poll_fn(|cx| Pin::new(&mut *link).poll_ready(cx)).await?;
        Pin::new(&mut *link).start_send(Transmit::Close(reason))?;
        close(link).await
    };
    drop(timeout(CLOSE_TIMEOUT, said).await);
}

async fn close(link: &mut BoxLink) -> Result<(), LinkError> {
    std::future::poll_fn(|cx| Pin::new(&mut *link).poll_close(cx)).await
}
