//! What the model host is given for a connection.

use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// A host's side of a connection: whole messages.
pub(crate) struct Port {
    pub(crate) tx: UnboundedSender<Bytes>,
    pub(crate) rx: UnboundedReceiver<Bytes>,
}
