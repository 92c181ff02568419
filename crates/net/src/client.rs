//! An AHP client that reconnects by itself, and goes on exactly where it was.
//!
//! A background task owns one connection after the other. It waits between attempts with full jitter, resumes from the settled
//! cursor, delivers each action exactly once, and keeps dispatched actions until the host has echoed them. Messages of any size pass in
//! both directions as raw JSON; none is parsed into a tree.
//!
//! ```
//! use breakbulk::client::{Client, Config, ConnectError, Event};
//! # use breakbulk::link::InProcessLink;
//! # async fn dial() -> Result<InProcessLink, ConnectError> { Err(ConnectError::never("no host in this example")) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut config = Config::new("a fresh id");
//! config.subscriptions = vec!["ahp-root://".into(), "ahp-chat:/1".into()];
//! let (client, mut events) = Client::start(dial, config);
//! let turn = r#"{"type":"chat/turnStarted","turnId":"t1","startedAt":"2026-01-01T00:00:00Z","message":{"text":"hi"}}"#;
//! let _number = client.dispatch("ahp-chat:/1", turn).await;
//! while let Some(event) = events.next().await {
//!     match event {
//!         Event::Snapshot { channel, from_seq, .. } => println!("{channel} is as of {from_seq}"),
//!         Event::Action { channel, seq, .. } => println!("{channel} has an action {seq}"),
//!         other => println!("{other:?}"),
//!     }
//! }
//! # }
//! ```

mod byte_limit;
mod command;
mod config;
mod connect;
mod connection;
mod error;
mod event;
mod event_feed;
mod resource;
mod responder;
mod run;
mod session;
mod state;
mod text;
mod unconfirmed;
mod wire;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use breakbulk_proto::Message;
use breakbulk_proto::ahp::Negotiated;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::byte_limit::ByteLimit;
use self::command::{Command, Request, SHORT, SendOrder};
use self::connection::{MAX_REQUESTS, MAX_UNANSWERED};
use self::event_feed::EventFeed;
use self::run::{Core, Task};
use self::session::Session;
use self::unconfirmed::Dispatched;
use crate::activity::Activity;

pub use self::config::Config;
pub use self::connect::{Connect, ConnectError};
pub use self::error::{DispatchError, RequestError};
pub use self::event::{Event, Events, LossReason, LostAction};
pub use self::resource::{ReadResourceError, ResourceReader};
pub use self::responder::Responder;
pub use self::state::{Reason, State};

/// How many commands of callers may wait for the task. When there are more, callers wait.
const MAX_COMMANDS: usize = 1024;
/// How many bytes of short messages that need not wait for others may be queued: more than a thousand cancels.
const AHEAD_BYTES: u32 = 1 << 20;

/// An AHP client that reconnects by itself. Cloning is cheap, and all clones are one client; when the last is dropped it
/// closes.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    commands: mpsc::Sender<Command>,
    /// The last number that was given to an action.
    last_number: Mutex<u64>,
    /// Bytes of requests, until they are on the link.
    requests: ByteLimit,
    /// Bytes of actions, until the host has echoed them.
    actions: ByteLimit,
    /// Bytes of requests and actions that need not wait for others, so that they do not wait for these limits either.
    ahead: ByteLimit,
    in_flight: Semaphore,
    state: watch::Receiver<State>,
    stop: CancellationToken,
    /// Notes when parts of long messages pass.
    activity: Activity,
    request_timeout: Duration,
    /// How long a request may take in all, whatever moves.
    longest_wait: Duration,
}

impl Client {
    /// Starts a client, which begins to connect at once. `connect` gives it a fresh link for each attempt.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn start(connect: impl Connect, config: Config) -> (Self, Events) {
        let (commands, command_queue) = mpsc::channel(MAX_COMMANDS);
        let (events, event_queue) = mpsc::channel(config.max_events.max(1));
        let (reply_to, replies) = mpsc::channel(MAX_UNANSWERED);
        let (state_sender, state) =
            watch::channel(State::Connecting { attempt: 1, after: Duration::ZERO, failure: None });
        let stop = CancellationToken::new();
        let activity = Activity::default();
        let inner = Inner {
            commands,
            last_number: Mutex::new(0),
            requests: ByteLimit::new(config.max_waiting_bytes),
            actions: ByteLimit::new(config.max_waiting_bytes),
            ahead: ByteLimit::new(AHEAD_BYTES),
            in_flight: Semaphore::new(MAX_REQUESTS),
            state,
            stop: stop.clone(),
            activity: activity.clone(),
            request_timeout: config.request_timeout,
            // The request and its answer may each be as slow as a message may be.
            longest_wait: config.request_timeout.saturating_add(config.limits.group_timeout().saturating_mul(2)),
        };
        let feed = EventFeed::new(events);
        let core = Core {
            session: Session::new(config.client_id.clone(), config.resend, &config.subscriptions, feed),
            negotiated: Negotiated::default(),
            commands: command_queue,
            pending: VecDeque::new(),
            replies,
            reply_to,
            unanswered: 0,
            reply_limit: ByteLimit::new(config.max_waiting_bytes),
            request_limits: [inner.requests.clone(), inner.ahead.clone()],
            config,
            state: state_sender,
            stop,
            activity,
            connections: 0,
            last_id: 0,
        };
        tokio::spawn(Task { connect, core }.run());
        (Self(Arc::new(inner)), Events(event_queue))
    }

    /// Asks the host something; the result is raw JSON. `params` is raw JSON too.
    ///
    /// Without a connection, it waits for one. The configured timeout counts from the call, and begins anew with each part of a long
    /// message that passes on the connection, in either direction. A request is never sent twice: if the connection ends before the
    /// answer comes, the result is an error. Requests and actions are sent in the order of the calls. Dropping the future withdraws
    /// a request that was not sent yet.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn request(&self, method: &str, params: impl Into<Message>) -> Result<Message, RequestError> {
        self.request_in(SendOrder::of_request(method), method, params.into()).await
    }

    /// As [`request`](Self::request), for a request that does not depend on earlier ones. It may overtake them, and may be sent between
    /// the parts of a long message.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn request_free(&self, method: &str, params: impl Into<Message>) -> Result<Message, RequestError> {
        self.request_in(SendOrder::Free, method, params.into()).await
    }

    async fn request_in(&self, order: SendOrder, method: &str, params: Message) -> Result<Message, RequestError> {
        if !text::is_json(&params) {
            return Err(RequestError::NotJson);
        }
        let asked = async {
            let _place = self.0.in_flight.acquire().await.map_err(|_| RequestError::Closed)?;
            let permit = self.permit(order, &self.0.requests, params.len()).await.ok_or(RequestError::Closed)?;
            let (answer, answered) = oneshot::channel();
            let request = Request { method: method.to_owned(), params, answer, order, permit };
            self.ask(Command::Request(request)).await?;
            answered.await.unwrap_or(Err(RequestError::Closed))
        };
        self.in_time(asked).await
    }

    /// Dispatches an action, and returns its number. The client keeps the action until the host echoes it: [`Event::Action`] with this
    /// number as `own`. If the action may be lost, there is an [`Event::Lost`].
    ///
    /// Waits while too many bytes of actions are kept. On a channel that is not followed the host does not echo actions, so there an
    /// action is sent at most once, and there is no event for it.
    ///
    /// Actions are sent in the order in which they were dispatched. An action that answers a question of the host, or cancels
    /// something (see [`may_pass`](breakbulk_proto::ahp::may_pass)), overtakes actions for other channels, and is sent between the
    /// parts of a long message.
    ///
    /// # Errors
    /// See [`DispatchError`].
    pub async fn dispatch(&self, channel: &str, action: impl Into<Message>) -> Result<u64, DispatchError> {
        let action = action.into();
        self.dispatch_in(SendOrder::of_action(&action), channel, action).await
    }

    /// As [`dispatch`](Self::dispatch), for an action that does not depend on earlier requests or actions. It may overtake them, and may
    /// be sent between the parts of a long message. If it is sent again after a reconnect, it is in its place again.
    ///
    /// # Errors
    /// See [`DispatchError`].
    pub async fn dispatch_free(&self, channel: &str, action: impl Into<Message>) -> Result<u64, DispatchError> {
        self.dispatch_in(SendOrder::Free, channel, action.into()).await
    }

    async fn dispatch_in(&self, order: SendOrder, channel: &str, action: Message) -> Result<u64, DispatchError> {
        if !text::is_json(&action) {
            return Err(DispatchError::NotJson);
        }
        let permit = self.permit(order, &self.0.actions, action.len()).await.ok_or(DispatchError::Closed)?;
        let place = self.0.commands.reserve().await.map_err(|_| DispatchError::Closed)?;
        // Numbered and queued under one lock, so that the numbers rise in the order of the queue.
        let mut last = self.0.last_number.lock().unwrap_or_else(PoisonError::into_inner);
        *last = last.saturating_add(1);
        let dispatched = Dispatched { client_seq: *last, channel: channel.to_owned(), action, order, _permit: permit };
        place.send(Command::Dispatch(dispatched));
        Ok(*last)
    }

    /// Follows a channel from now on, across connections, until [`unsubscribe`](Self::unsubscribe). Its state comes as
    /// [`Event::Snapshot`]. Unlike other requests, this one is sent again on the next connection, because that does no harm.
    ///
    /// # Errors
    /// See [`RequestError`]. After a timeout, the client still tries to follow the channel.
    pub async fn subscribe(&self, channel: &str) -> Result<(), RequestError> {
        let asked = async {
            let (waiter, followed) = oneshot::channel();
            self.ask(Command::Subscribe { channel: channel.to_owned(), waiter }).await?;
            followed.await.unwrap_or(Err(RequestError::Closed))
        };
        self.in_time(asked).await
    }

    /// Stops following a channel.
    ///
    /// # Errors
    /// The client is closed.
    pub async fn unsubscribe(&self, channel: &str) -> Result<(), RequestError> {
        self.ask(Command::Unsubscribe { channel: channel.to_owned() }).await
    }

    /// The state of the client, to read or to watch. A state that lasts only briefly may not be seen.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.0.state.clone()
    }

    /// Closes the client. On a live connection, earlier requests and actions have a few seconds to be sent, and actions to be echoed.
    /// Returns when the link is closed. Events that wait can still be taken.
    pub async fn close(&self) {
        self.0.stop.cancel();
        let mut state = self.0.state.clone();
        // The task sets this state before it ends, so waiting cannot fail.
        let _ = state.wait_for(|state| matches!(state, State::Closed(_))).await;
    }

    /// Waits until a message may be queued. Short messages that need not wait for others have a limit of their own.
    async fn permit(&self, order: SendOrder, usual: &ByteLimit, len: usize) -> Option<OwnedSemaphorePermit> {
        let is_ahead = order != SendOrder::InOrder && len <= SHORT;
        if is_ahead { self.0.ahead.acquire(len).await } else { usual.acquire(len).await }
    }

    /// Waits for a request, with the timeouts of requests.
    async fn in_time<T>(&self, asked: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
        let Inner { activity, request_timeout, longest_wait, .. } = &*self.0;
        activity.timeout(*request_timeout, *longest_wait, asked).await.unwrap_or(Err(RequestError::Timeout))
    }

    async fn ask(&self, command: Command) -> Result<(), RequestError> {
        self.0.commands.send(command).await.map_err(|_| RequestError::Closed)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
