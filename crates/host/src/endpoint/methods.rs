//! The interface between connections and the host: what the host does for a client, and what it knows of the client.

use std::sync::Arc;

use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::errors::json_rpc_error_codes::{INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND};
use breakbulk_proto::Message;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::clients::ClientHandle;
use super::memory::{AnswerMemory, Reservation};
use crate::error::MethodError;
use crate::log::BoxFuture;
use crate::mismatch;

/// What the host does for its clients.
pub trait Methods: Send + Sync + 'static {
    /// Answers a request. Calls of one client run concurrently, and are dropped when its link ends.
    fn call<'a>(
        &'a self,
        client: &'a ClientInfo,
        method: &'a str,
        params: RawParams,
    ) -> BoxFuture<'a, Result<Reply, MethodError>>;

    /// Checks a client's action and appends it to the log, from where its sender gets it like everybody else. Actions of one
    /// client come one after the other, in its order, and after the writes that it requested before. A rejected action is
    /// returned.
    fn dispatch<'a>(
        &'a self,
        client: &'a ClientInfo,
        dispatched: Dispatched,
    ) -> BoxFuture<'a, Result<(), RejectedAction>>;

    /// A client has connected. This is the first call for a connection, and [`disconnected`](Self::disconnected) the last one.
    /// A client may reconnect before its old connection has ended; [`ClientInfo::connection`] tells the two apart. Like the
    /// three below, this must return at once.
    fn connected(&self, _client: &ClientInfo) {}

    /// A client is subscribed to this channel from now on.
    fn subscribed(&self, _client: &ClientInfo, _channel: &str) {}

    /// A client has unsubscribed from this channel, to which it may never have been subscribed.
    fn unsubscribed(&self, _client: &ClientInfo, _channel: &str) {}

    /// A connection has ended, and with it its subscriptions. Its client may reconnect.
    fn disconnected(&self, _client: &ClientInfo) {}
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The JSON of the `result`.
    pub result: Message,
    /// The JSON of an action on this channel that only the asking client gets, before the answer. It is not in the log, and has
    /// no place in the order.
    pub before: Option<(Arc<str>, Message)>,
    /// Whether its memory was reserved before it was made, and the reservation is attached to its bytes.
    pub(crate) is_reserved: bool,
}

impl Reply {
    /// A result with its reservation attached.
    pub(crate) fn reserved(result: &Message, reservation: Reservation) -> Self {
        Self { result: reservation.attach(result), before: None, is_reserved: true }
    }

    /// Bytes that are not reserved yet.
    pub(super) fn unreserved_bytes(&self) -> usize {
        let before = self.before.as_ref().map_or(0, |(_, action)| action.len());
        if self.is_reserved { 0 } else { before.saturating_add(self.result.len()) }
    }

    /// Attaches a reservation to them.
    pub(super) fn with_reservation(self, reservation: Reservation) -> Self {
        let reservation = Arc::new(reservation);
        let result = self.result.with_owner(&reservation);
        let before = self.before.map(|(channel, action)| (channel, action.with_owner(&reservation)));
        Self { result, before, is_reserved: true }
    }
}

impl From<Message> for Reply {
    fn from(result: Message) -> Self {
        Self { result, before: None, is_reserved: false }
    }
}

/// The answer to a method that is not offered.
#[must_use]
pub fn not_offered(method: &str) -> MethodError {
    // The client chose the name: no more of it is repeated than a method name can have.
    let name: String = method.chars().take(64).collect();
    MethodError::new(METHOD_NOT_FOUND, format!("this host has no method {name:?}"))
}

/// What is known of a client since its handshake.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// The id that it gave.
    pub id: Arc<str>,
    /// The number of its connection: no other of this endpoint has the same.
    pub connection: u64,
    /// The principal that the listener authenticated.
    pub principal: Option<Arc<str>>,
    /// The protocol version. A `reconnect` names none: then it is that of `initialize`, or the newest if that is forgotten.
    pub version: String,
    /// The longest message that it takes.
    pub message_bytes: u64,
    /// For requests and notifications to it.
    pub handle: ClientHandle,
    /// The memory for answers to it.
    pub memory: AnswerMemory,
}

/// The `params` of a request, as the client wrote them.
#[derive(Debug, Clone)]
pub struct RawParams(Bytes);

impl RawParams {
    /// Params from their text.
    pub fn new(text: impl Into<Bytes>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub const fn text(&self) -> &Bytes {
        &self.0
    }

    /// The params as the method has them.
    ///
    /// # Errors
    /// `InvalidParams`, with what is wrong.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, MethodError> {
        // Finding the field takes longer, so it is done only for a text that does not fit.
        serde_json::from_slice(&self.0).map_err(|_| {
            let why = mismatch::describe::<T>(&self.0).unwrap_or_else(|| "they do not fit the method".to_owned());
            MethodError::new(INVALID_PARAMS, format!("invalid params: {why}"))
        })
    }
}

/// An action that a client has dispatched.
#[derive(Debug, Clone)]
pub struct Dispatched {
    /// The channel that it is for.
    pub channel: String,
    /// The client's own number for it. The numbers start again with each connection, so they identify nothing.
    pub client_seq: i64,
    /// The action.
    pub action: StateAction,
    /// Its bytes, as the client wrote it.
    pub bytes: usize,
}

impl Dispatched {
    /// The `origin` of its envelope.
    #[must_use]
    pub fn origin(&self, client: &ClientInfo) -> ActionOrigin {
        ActionOrigin { client_id: client.id.to_string(), client_seq: self.client_seq }
    }
}

/// An action that was rejected, and why.
#[derive(Debug, Clone)]
pub struct RejectedAction {
    /// Why.
    pub error: DispatchError,
    /// The action, as it was dispatched.
    pub action: Box<StateAction>,
}

/// Why an action was rejected. The client gets it back with this as its `rejectionReason`; if it was dispatched by a request,
/// the request fails with the code too.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{}", .0.message)]
pub struct DispatchError(MethodError);

impl DispatchError {
    /// For this reason. The code is `InvalidRequest`: the action does not suit the state.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(MethodError::new(INVALID_REQUEST, reason))
    }

    /// What a request fails with.
    #[must_use]
    pub fn into_error(self) -> MethodError {
        self.0
    }
}

impl From<MethodError> for DispatchError {
    fn from(error: MethodError) -> Self {
        Self(error)
    }
}
