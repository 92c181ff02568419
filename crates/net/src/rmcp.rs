//! The official `rmcp` crate with messages of any size: a transport for its clients and servers over any link.
//!
//! ```no_run
//! use breakbulk::rmcp::Segmented;
//! use breakbulk_proto::Limits;
//! use rmcp::{RoleClient, ServiceExt};
//!
//! # async fn run(link: impl breakbulk::Link + 'static) -> Result<(), Box<dyn std::error::Error>> {
//! let client = ().serve(Segmented::<RoleClient>::stdio(link, Limits::default())).await?;
//! println!("{} tools", client.list_all_tools().await?.len());
//! # Ok(()) }
//! ```

use std::marker::PhantomData;

use ::rmcp::service::{RxJsonRpcMessage, ServiceRole, TxJsonRpcMessage};
use ::rmcp::transport::Transport;
use serde::Serialize;
use thiserror::Error;
use tokio::sync::mpsc;
use tracing::warn;

use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Account, Budget, Limits, Message};

use crate::dialect::{Dialect, Setup};
use crate::link::Link;
use crate::pump::Port;

pub use crate::pump::Ended;

/// A transport for a client (`R` is `RoleClient`) or a server (`RoleServer`). What is under it runs in a task of its
/// own, which ends when this is dropped.
///
/// A request that cannot be sent comes back to its caller as an error response; an answer that cannot be sent becomes
/// one for the peer.
#[derive(Debug)]
pub struct Segmented<R> {
    port: Port,
    role: PhantomData<fn() -> R>,
}

impl<R: ServiceRole> Segmented<R> {
    /// With chunked stdio, for links that are pipes.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn stdio<L: Link + 'static>(link: L, limits: Limits) -> Self {
        Self::open(Dialect::Stdio, link, limits, own_account())
    }

    /// With CEP-22. Requests without a progress token get one, so that their answers may be large.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn cep22<L: Link + 'static>(link: L, limits: Limits) -> Self {
        Self::open(Dialect::Cep22, link, limits, own_account())
    }

    /// [`stdio`](Self::stdio), charged to an account.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn stdio_charged_to<L: Link + 'static>(account: Account, link: L, limits: Limits) -> Self {
        Self::open(Dialect::Stdio, link, limits, account)
    }

    /// [`cep22`](Self::cep22), charged to an account.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn cep22_charged_to<L: Link + 'static>(account: Account, link: L, limits: Limits) -> Self {
        Self::open(Dialect::Cep22, link, limits, account)
    }

    /// How the connection ends. Take it before the service takes the transport.
    #[must_use]
    pub fn ended(&self) -> Ended {
        self.port.ended().clone()
    }

    fn open<L: Link + 'static>(dialect: Dialect, link: L, limits: Limits, account: Account) -> Self {
        let role = if R::IS_CLIENT { Role::Client } else { Role::Server };
        let port = Port::open(link, &Setup::new(dialect, role, limits), account);
        Self { port, role: PhantomData }
    }
}

/// Why a message was not taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// It cannot be written as JSON.
    #[error("not written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
}

impl<R: ServiceRole> Transport<R> for Segmented<R> {
    type Error = TransportError;

    /// Waits only while more bytes are unsent than the limits allow.
    fn send(
        &mut self,
        message: TxJsonRpcMessage<R>,
    ) -> impl Future<Output = Result<(), TransportError>> + Send + 'static {
        send(self.port.sender().clone(), message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<R>> {
        loop {
            let message = self.port.recv().await?;
            if let Some(message) = read::<R>(&message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), TransportError> {
        self.port.close().await;
        Ok(())
    }
}

/// Serializes a message, and passes it to the task.
async fn send(to: mpsc::Sender<Message>, message: impl Serialize) -> Result<(), TransportError> {
    let bytes = serde_json::to_vec(&message)?;
    // The typed message may be as large. It is dropped before we wait.
    drop(message);
    to.send(bytes.into()).await.map_err(|_| TransportError::Closed)
}

/// Parses a message. The machine has checked that it is JSON-RPC. If `rmcp` cannot read it all the same, for example because its id is
/// 1.5, nobody waits for it, and it is dropped.
fn read<R: ServiceRole>(message: &Message) -> Option<RxJsonRpcMessage<R>> {
    serde_json::from_slice(&message.to_bytes())
        .inspect_err(|error| warn!(bytes = message.len(), "not a message of MCP: {:?} error", error.classify()))
        .ok()
}

/// An account of a new budget.
fn own_account() -> Account {
    Budget::default().account(Some("peer"))
}
