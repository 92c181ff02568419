//! What the host does for a client beyond its own connection, and what it learns of the client for that.

use std::sync::Arc;

use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::commands::{ClientCapabilities, Implementation};
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

/// What the host can do for a client beyond its own connection.
pub trait Methods: Send + Sync + 'static {
    /// Answers a request. Calls of one client run at the same time, and are given up when its link ends.
    fn call<'a>(
        &'a self,
        client: &'a ClientInfo,
        method: &'a str,
        params: RawParams,
    ) -> BoxFuture<'a, Result<Reply, MethodError>>;

    /// Checks a client's action and puts it into the log, from where its sender learns of it like everybody else. Actions
    /// of one client come one after the other, in its order, and after the writes that it asked for before. What is refused
    /// is given back.
    fn dispatch<'a>(
        &'a self,
        client: &'a ClientInfo,
        dispatched: Dispatched,
    ) -> BoxFuture<'a, Result<(), RejectedAction>>;

    /// A client has come in, on a connection of its own: comes first, and [`disconnected`](Self::disconnected) last. A client that comes
    /// back may be here before its old connection is gone; [`ClientInfo::connection`] tells them apart. Like the three
    /// below, this must return at once.
    fn connected(&self, _client: &ClientInfo) {}

    /// A client follows this channel from now on.
    fn subscribed(&self, _client: &ClientInfo, _channel: &str) {}

    /// A client has said that it does not follow this channel any more; it may never have.
    fn unsubscribed(&self, _client: &ClientInfo, _channel: &str) {}

    /// A connection has ended, and with it all that it followed. Its client may come back.
    fn disconnected(&self, _client: &ClientInfo) {}
}

/// What a request is answered with.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The JSON of the `result`.
    pub result: Message,
    /// An action on this channel that is for who asked alone, and comes before the answer: the JSON of it. It is in no
    /// log, and has no place in the order.
    pub before: Option<(Arc<str>, Message)>,
    /// Whether there was memory for all of it before it was made, and its bytes carry it.
    pub(crate) is_reserved: bool,
}

impl Reply {
    /// A result that carries what pays for it.
    pub(crate) fn reserved(result: &Message, reservation: Reservation) -> Self {
        Self { result: reservation.attach(result), before: None, is_reserved: true }
    }

    /// Bytes that are still to be paid for.
    pub(super) fn unreserved_bytes(&self) -> usize {
        let before = self.before.as_ref().map_or(0, |(_, action)| action.len());
        if self.is_reserved { 0 } else { before.saturating_add(self.result.len()) }
    }

    /// Pays for them.
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
    // The name is the peer's: no more of it than a method can have.
    let name: String = method.chars().take(64).collect();
    MethodError::new(METHOD_NOT_FOUND, format!("this host has no method {name:?}"))
}

/// Who a client is, once it has introduced itself.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// The id that it gave.
    pub id: Arc<str>,
    /// The number of its connection: no other of this endpoint has the same.
    pub connection: u64,
    /// Under which name it came through the door.
    pub principal: Option<Arc<str>>,
    /// The version that is spoken. `reconnect` names none: then that of before, or the newest if that is forgotten.
    pub version: String,
    /// What program it says it is. A `reconnect` does not repeat it, and long after it may be forgotten.
    pub implementation: Option<Implementation>,
    /// The language that it wants. A `reconnect` does not repeat it, and long after it may be forgotten.
    pub locale: Option<String>,
    /// What it can do. A `reconnect` does not repeat it, and long after it may be forgotten.
    pub capabilities: Option<ClientCapabilities>,
    /// The longest message that it takes.
    pub message_bytes: u64,
    /// The way to it.
    pub handle: ClientHandle,
    /// What answers to it may take.
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
        // A look for the field takes longer, and only a text that does not fit is looked at again.
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
    /// The client's own number for it. They begin anew with each connection: nothing is known by them.
    pub client_seq: i64,
    /// The action.
    pub action: StateAction,
    /// Its bytes, as the client wrote it.
    pub bytes: usize,
}

impl Dispatched {
    /// What its envelope says of where it comes from.
    #[must_use]
    pub fn origin(&self, client: &ClientInfo) -> ActionOrigin {
        ActionOrigin { client_id: client.id.to_string(), client_seq: self.client_seq }
    }
}

/// An action that was not taken, and why.
#[derive(Debug, Clone)]
pub struct RejectedAction {
    /// Why.
    pub error: DispatchError,
    /// The action, as it was dispatched.
    pub action: Box<StateAction>,
}

/// Why an action was not taken. The client gets it back with the reason as its `rejectionReason`; where it was dispatched
/// by a request, the request fails with the code too.
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
