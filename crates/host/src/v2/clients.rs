//! Which clients are connected, and which of two links of one client wins: the newest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::lock::lock;

/// A client id is unique only among the clients of one principal, so that nobody can end the connection of another's client.
type V2ClientKey = (Option<Arc<str>>, Arc<str>);

/// The clients that are connected.
#[derive(Debug, Default)]
pub(super) struct V2Clients(Mutex<V2ClientTable>);

#[derive(Debug, Default)]
struct V2ClientTable {
    live: HashMap<V2ClientKey, V2LiveClient>,
    generations: u64,
}

#[derive(Debug)]
struct V2LiveClient {
    generation: u64,
    /// Dropped when a newer link of the same client registers.
    _fence: oneshot::Sender<()>,
}

/// A connection as one of its client, until it is dropped.
#[derive(Debug)]
pub(super) struct V2Registration {
    clients: Arc<V2Clients>,
    key: V2ClientKey,
    generation: u64,
    /// Resolves when a newer link of the same client has registered.
    pub(super) fenced: oneshot::Receiver<()>,
}

impl V2Clients {
    /// Registers a connection. An older one of the same client ends.
    pub(super) fn register(self: &Arc<Self>, principal: Option<Arc<str>>, client: Arc<str>) -> V2Registration {
        let (fence, fenced) = oneshot::channel();
        let key = (principal, client);
        let mut table = lock(&self.0);
        table.generations = table.generations.wrapping_add(1);
        let generation = table.generations;
        table.live.insert(key.clone(), V2LiveClient { generation, _fence: fence });
        V2Registration { clients: Arc::clone(self), key, generation, fenced }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).live.len()
    }
}

impl Drop for V2Registration {
    /// Removes this connection, and not a newer one of the same client.
    fn drop(&mut self) {
        let mut table = lock(&self.clients.0);
        if table.live.get(&self.key).is_some_and(|live| live.generation == self.generation) {
            table.live.remove(&self.key);
        }
    }
}
