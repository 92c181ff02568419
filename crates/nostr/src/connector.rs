//! The client's side: links to one server.

use std::sync::Arc;

use breakbulk::external::{Connecting, Connector, LinkRequest};
use breakbulk::{DialError, Dialer};
use nostr::{Keys, PublicKey};

use crate::address::{Encryption, NostrAddress, NostrAddressError};
use crate::event::{Incoming, Seal};
use crate::inbox::{InboxSender, inbox};
use crate::key_file::{self, KeyFileError};
use crate::link::{NostrLink, Side};
use crate::pool::{Pool, PoolState, Router};

/// Opens links to one server over relays. Each link has connections of its own; without a key file each also has a key of its own, so
/// that nobody can tell that they belong together.
#[derive(Debug)]
pub struct NostrConnector {
    address: NostrAddress,
    server: PublicKey,
    dialer: Dialer,
    keys: Option<Keys>,
}

/// Why a connector or an acceptor could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NostrError {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] NostrAddressError),
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
}

impl NostrConnector {
    /// A connector to the server that the address names. Relays are dialed with `dialer`.
    ///
    /// # Errors
    /// The address names no server, or its key file cannot be used.
    pub fn new(address: NostrAddress, dialer: Dialer) -> Result<Self, NostrError> {
        let server = address.server()?;
        let keys = address.key.as_deref().map(key_file::load).transpose()?.map(|(keys, _)| keys);
        Ok(Self { address, server, dialer, keys })
    }
}

impl Connector for NostrConnector {
    fn connect(&self, request: LinkRequest) -> Connecting<'_> {
        Box::pin(async move {
            let (sender, inbox) = inbox();
            let keys = self.keys.clone().unwrap_or_else(Keys::generate);
            let router = Box::new(OneServer { server: self.server, inbox: sender.clone() });
            let pool = Pool::start(&self.address, &self.dialer, keys, request.cap, router);
            pool.ready().await.map_err(|error| DialError::External { scheme: "nostr", cause: Box::new(error) })?;
            // Servers that know no wraps without storage still read those with it.
            let seal = if self.address.encryption == Encryption::Off { Seal::Plain } else { Seal::Wrap };
            let link: breakbulk::BoxLink =
                Box::new(NostrLink::new(Arc::clone(&pool), self.server, Side::Client, (sender, inbox), seal));
            Ok(link)
        })
    }
}

/// Takes what the server says, and nothing from anybody else.
struct OneServer {
    server: PublicKey,
    inbox: InboxSender,
}

impl Router for OneServer {
    fn route(&self, message: Incoming, pool: &PoolState) {
        if message.from != self.server {
            if let Some(permit) = pool.log.permit("stranger") {
                tracing::info!(left_out = permit.left_out(), "a message of somebody who is not the server was dropped");
            }
        } else if self.inbox.message(message).is_err()
            && let Some(permit) = pool.log.permit("inbox-full")
        {
            tracing::warn!(left_out = permit.left_out(), "a message was dropped: too many wait to be read");
        }
    }
}
