//! The reliable connection to a hub.
//!
//! Every request has a number, and is kept until the service acknowledges it. When the WebSocket is lost, a new one recovers the
//! connection, and all requests that were not acknowledged are sent again, under the same numbers and in the same order: the service
//! does none of them twice. Messages have sequence numbers; one that has come before is dropped.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk::{Address, Arrival, BoxLink, DialError, Dialer, LinkError};
use breakbulk_proto::{CloseReason, Message, Meta, Tag, Transmit};
use bytes::Bytes;
use futures_core::Stream as _;
use futures_sink::Sink as _;
use http::{HeaderValue, header};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use super::address::{WebPubSubAddress, recovery_query};
use super::credit::PeerId;
use crate::wire::{self, DataType, RELIABLE, Response};

/// How many bytes of requests may wait for an acknowledgement of the service: a quarter of its queue.
const MAX_UNACKED_BYTES: usize = 4_000_000;
/// How many requests.
const MAX_UNACKED: usize = 250;
/// How many messages may come before their acknowledgement is sent, if more are there to be read.
const MAX_UNACKNOWLEDGED_MESSAGES: u32 = 16;
/// How many bytes of messages.
const MAX_UNACKNOWLEDGED_BYTES: usize = 512 << 10;
/// How long we try to recover a connection. The service keeps it for at least half a minute.
const RECOVER_FOR: Duration = Duration::from_secs(60);
/// How long to wait between two attempts.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How long the service may take for its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// The close code that says that the connection cannot be recovered.
const NOT_RECOVERABLE: u16 = 1008;

/// How a hub is reached.
#[derive(Debug)]
pub(super) struct HubConfig {
    pub(super) address: WebPubSubAddress,
    pub(super) dialer: Dialer,
    pub(super) user: String,
    pub(super) roles: Vec<String>,
}

/// A connection to a hub.
pub(super) struct HubConnection {
    config: Arc<HubConfig>,
    link: BoxLink,
    id: String,
    /// The user that the service has found in our token.
    user: Option<String>,
    reconnection_token: Option<String>,
    /// The highest sequence number that has come.
    last_sequence: u64,
    /// Messages that were not acknowledged, and their bytes.
    unacknowledged: (u32, usize),
    /// Requests that the service has not acknowledged, oldest first.
    unacked: VecDeque<Unacked>,
    unacked_bytes: usize,
    /// How many of them were sent on this WebSocket.
    sent: usize,
    /// Requests that wait, and go before frames.
    waiting: VecDeque<Outgoing>,
    next_ack: u64,
}

struct Unacked {
    id: u64,
    about: About,
    frame: Message,
}

/// What a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// Joining the group of this peer, or the one of the host.
    Join(Option<PeerId>),
    /// Something said to this peer.
    Peer(PeerId),
    /// The close of this peer's link.
    Closing(PeerId),
    /// Something else that may fail.
    Other,
}

/// A request that waits.
pub(super) struct Outgoing {
    pub(super) about: About,
    pub(super) act: Act,
}

pub(super) enum Act {
    Join(Arc<str>),
    Leave(Arc<str>),
    /// Send a text, which is the inside of a JSON string, to a group, whose name is quoted.
    Send(Arc<str>, Vec<Bytes>),
}

/// What happens on a connection.
pub(super) enum HubEvent {
    /// A text came through a group. It is a JSON string, with its quotes.
    Text { group: String, user: Option<String>, data: Bytes },
    /// The service has done a request, or not.
    Acked { about: About, result: Result<(), String> },
    /// The WebSocket is lost.
    Lost,
    /// The connection is lost for good.
    Ended(HubError),
}

/// Why there is no connection to a hub, or no link through it.
#[derive(Debug, Error)]
pub(super) enum HubError {
    /// The service cannot be reached, or refuses us.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The service did not greet us.
    #[error("the service did not say that we are connected")]
    NoGreeting,
    /// The service ended the connection.
    #[error("the service ended the connection: {0}")]
    Disconnected(String),
    /// The connection was not recovered.
    #[error("the connection could not be recovered")]
    NotRecovered,
    /// The service does not do what has to be done.
    #[error("the service refused {what}: {name}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The service's name for the reason.
        name: String,
    },
    /// No host answered.
    #[error("no host {host:?} has answered in the hub {hub:?}")]
    NoHost {
        /// The host.
        host: String,
        /// The hub.
        hub: String,
    },
    /// The host does not take the link.
    #[error("the host refused the link ({code}): {text:?}")]
    HostRefused {
        /// The close code.
        code: u16,
        /// The words of the host.
        text: String,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

impl HubConnection {
    /// Connects anew.
    pub(super) async fn connect(config: Arc<HubConfig>) -> Result<Self, HubError> {
        let token = config.address.token(&config.user, config.roles.clone());
        let mut link = dial(&config, "", Some(&token)).await?;
        let Greeting { id, user, reconnection_token } = greeting(&mut link).await?;
        Ok(Self {
            config,
            link,
            id,
            user,
            reconnection_token,
            last_sequence: 0,
            unacknowledged: (0, 0),
            unacked: VecDeque::new(),
            unacked_bytes: 0,
            sent: 0,
            waiting: VecDeque::new(),
            next_ack: 1,
        })
    }

    /// Connects again after the WebSocket was lost, so that nothing is lost.
    pub(super) async fn recover(&mut self) -> Result<(), HubError> {
        let token = self.reconnection_token.clone().ok_or(HubError::NotRecovered)?;
        let query = recovery_query(&self.id, &token);
        let until = Instant::now() + RECOVER_FOR;
        while Instant::now() < until {
            let attempt = async {
                let mut link = dial(&self.config, &query, None).await?;
                let greeted = greeting(&mut link).await?;
                Ok::<_, HubError>((link, greeted))
            };
            match attempt.await {
                Ok((link, Greeting { id, reconnection_token, .. })) => {
                    (self.link, self.id, self.sent) = (link, id, 0);
                    self.reconnection_token = reconnection_token.or(self.reconnection_token.take());
                    // The service may not know of the last acknowledgement.
                    if self.last_sequence > 0 {
                        self.unacknowledged = (u32::MAX, 0);
                    }
                    return Ok(());
                }
                Err(HubError::NotRecovered) => return Err(HubError::NotRecovered),
                Err(error) => tracing::debug!(%error, "the connection to the hub is not recovered yet"),
            }
            sleep(RETRY_AFTER).await;
        }
        Err(HubError::NotRecovered)
    }

    /// The user that the service has found in our token, which receivers of our messages are told.
    pub(super) fn user(&self) -> &str {
        self.user.as_deref().unwrap_or_default()
    }

    /// Queues a request, before all frames.
    pub(super) fn request(&mut self, about: About, act: Act) {
        self.waiting.push_back(Outgoing { about, act });
    }

    /// Whether the service has acknowledged everything.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.unacked.is_empty()
    }

    /// What happens next. `next_frame` is asked for a frame when the service can take one.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut next_frame: impl FnMut() -> Option<Outgoing>,
    ) -> Poll<HubEvent> {
        loop {
            let (messages, bytes) = self.unacknowledged;
            if (messages >= MAX_UNACKNOWLEDGED_MESSAGES || bytes >= MAX_UNACKNOWLEDGED_BYTES)
                && self.write(cx, &mut next_frame).is_err()
            {
                return Poll::Ready(HubEvent::Lost);
            }
            let arrival = match Pin::new(&mut self.link).poll_next(cx) {
                Poll::Ready(arrival) => arrival,
                Poll::Pending => {
                    return match self.write(cx, &mut next_frame) {
                        Ok(()) => Poll::Pending,
                        Err(_) => Poll::Ready(HubEvent::Lost),
                    };
                }
            };
            match arrival {
                Some(Ok(Arrival::Frame { bytes, .. })) => {
                    if let Some(event) = self.read(&bytes) {
                        return Poll::Ready(event);
                    }
                }
                Some(Ok(Arrival::Closed { code: NOT_RECOVERABLE, text })) => {
                    return Poll::Ready(HubEvent::Ended(HubError::Disconnected(text)));
                }
                _ => return Poll::Ready(HubEvent::Lost),
            }
        }
    }

    /// Ends the connection: waits a moment until the service has everything.
    pub(super) async fn close(mut self, mut note_closed: impl FnMut(PeerId)) {
        let closed = async {
            while !self.is_idle() {
                match std::future::poll_fn(|cx| self.poll(cx, || None)).await {
                    HubEvent::Lost | HubEvent::Ended(_) => return,
                    HubEvent::Acked { about: About::Closing(id), .. } => note_closed(id),
                    HubEvent::Acked { .. } | HubEvent::Text { .. } => {}
                }
            }
            let ready = std::future::poll_fn(|cx| Pin::new(&mut self.link).poll_ready(cx)).await;
            if ready.is_ok() && Pin::new(&mut self.link).start_send(Transmit::Close(CloseReason::Normal)).is_ok() {
                drop(std::future::poll_fn(|cx| Pin::new(&mut self.link).poll_close(cx)).await);
            }
        };
        drop(timeout(CLOSE_TIMEOUT, closed).await);
    }

    fn read(&mut self, frame: &Bytes) -> Option<HubEvent> {
        match Response::parse(frame) {
            Ok(Response::Message { sequence, group, user, data_type, data }) => {
                if let Some(sequence) = sequence {
                    let (messages, bytes) = self.unacknowledged;
                    self.unacknowledged = (messages.saturating_add(1), bytes.saturating_add(frame.len()));
                    if sequence <= self.last_sequence {
                        return None;
                    }
                    self.last_sequence = sequence;
                }
                let group = group.filter(|_| data_type == DataType::Text)?;
                Some(HubEvent::Text { group, user, data })
            }
            Ok(Response::Ack { id, result }) => {
                let at = self.unacked.iter().take(self.sent).position(|unacked| unacked.id == id)?;
                let done = self.unacked.remove(at)?;
                self.unacked_bytes = self.unacked_bytes.saturating_sub(done.frame.len());
                self.sent = self.sent.saturating_sub(1);
                // What was done before is done.
                let result = result.or_else(|name| if name == "Duplicate" { Ok(()) } else { Err(name) });
                Some(HubEvent::Acked { about: done.about, result })
            }
            Ok(Response::Disconnected { message }) => Some(HubEvent::Ended(HubError::Disconnected(message))),
            Ok(Response::Connected { .. } | Response::Pong | Response::Other) => None,
            Err(bad) => {
                tracing::warn!("the service sent a frame that cannot be read: {bad}");
                Some(HubEvent::Lost)
            }
        }
    }

    /// Sends as much as the service takes.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        next_frame: &mut impl FnMut() -> Option<Outgoing>,
    ) -> Result<(), LinkError> {
        while let Poll::Ready(ready) = Pin::new(&mut self.link).poll_ready(cx) {
            ready?;
            let Some(bytes) = self.next(next_frame) else { break };
            Pin::new(&mut self.link).start_send(Transmit::Frame {
                tag: Tag::default(),
                bytes,
                meta: Meta::default(),
            })?;
        }
        match Pin::new(&mut self.link).poll_flush(cx) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => Ok(()),
        }
    }

    fn next(&mut self, next_frame: &mut impl FnMut() -> Option<Outgoing>) -> Option<Message> {
        if self.unacknowledged.0 > 0 {
            self.unacknowledged = (0, 0);
            return Some(wire::sequence_ack(self.last_sequence));
        }
        if let Some(again) = self.unacked.get(self.sent) {
            self.sent += 1;
            return Some(again.frame.clone());
        }
        let may_send = self.unacked.len() < MAX_UNACKED && self.unacked_bytes < MAX_UNACKED_BYTES;
        let Outgoing { about, act } = self.waiting.pop_front().or_else(|| may_send.then(next_frame)?)?;
        let id = self.next_ack;
        self.next_ack += 1;
        let frame = match act {
            Act::Join(group) => wire::group_request("joinGroup", &group, id),
            Act::Leave(group) => wire::group_request("leaveGroup", &group, id),
            Act::Send(group, text) => wire::publish(&group, id, text),
        };
        self.unacked_bytes += frame.len();
        self.unacked.push_back(Unacked { id, about, frame: frame.clone() });
        self.sent += 1;
        Some(frame)
    }
}

/// How long the end of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens a WebSocket to the hub.
async fn dial(config: &HubConfig, query: &str, token: Option<&str>) -> Result<BoxLink, HubError> {
    let mut url = config.address.web_socket_url();
    if !query.is_empty() {
        url.push('?');
        url.push_str(query);
    }
    let address: Address = url.parse().map_err(|_| DialError::Target)?;
    let mut dialer = config.dialer.clone();
    dialer.headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(RELIABLE));
    if let Some(token) = token {
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| DialError::Target)?;
        value.set_sensitive(true);
        dialer.headers.insert(header::AUTHORIZATION, value);
    }
    Ok(dialer.dial(&address).await?)
}

/// What the service says first.
struct Greeting {
    id: String,
    user: Option<String>,
    /// What proves later that the connection is ours.
    reconnection_token: Option<String>,
}

async fn greeting(link: &mut BoxLink) -> Result<Greeting, HubError> {
    let first = async {
        loop {
            match std::future::poll_fn(|cx| Pin::new(&mut *link).poll_next(cx)).await {
                Some(Ok(Arrival::Frame { bytes, .. })) => match Response::parse(&bytes) {
                    Ok(Response::Connected { connection, user, reconnection_token }) => {
                        return Ok(Greeting { id: connection, user, reconnection_token });
                    }
                    Ok(Response::Disconnected { message }) => {
                        tracing::debug!(message, "the service ends the connection");
                    }
                    _ => return Err(HubError::NoGreeting),
                },
                Some(Ok(Arrival::Closed { code: NOT_RECOVERABLE, .. })) => return Err(HubError::NotRecovered),
                _ => return Err(HubError::NoGreeting),
            }
        }
    };
    timeout(GREETING_TIMEOUT, first).await.unwrap_or(Err(HubError::NoGreeting))
}
