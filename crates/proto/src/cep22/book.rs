//! What is remembered of peers and of requests, so that answers can be matched. All of it is bounded and may be lost.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use crate::machine::Meta;
use crate::message::Message;
use crate::rpc::{IdKey, Kind, error_response};

use super::wire::{MAX_TOKEN, OWN_TOKEN, Text};

/// How many entries of each sort are remembered at least; twice as many at most.
const RECENT: usize = 1024;

/// Who a frame is from or for.
pub(super) type Peer = Option<Arc<str>>;

/// Something of one peer's, by the hash of its token or id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn of(peer: &Peer, what: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        (peer, what).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A request of a peer's that we may answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Incoming {
    /// What allows a transfer of the answer.
    pub(super) token: Option<Arc<str>>,
    /// The frame that the answer is about.
    pub(super) frame: Option<Arc<str>>,
}

/// A request of ours that allows a transfer of its answer.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// As the application wrote it.
    pub(super) id: Bytes,
    /// As the application wrote it.
    pub(super) token: Bytes,
    /// The application did not write the token: we did.
    pub(super) injected: bool,
}

/// Everything remembered.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) supports: Recent<()>,
    /// By id.
    pub(super) incoming: Recent<Incoming>,
    /// By token.
    pub(super) asked: Recent<Asked>,
    /// Ids of requests of ours that have no answer yet.
    open: Recent<()>,
    /// Ids of requests of ours whose callers were told that no answer will come.
    told: Recent<()>,
    /// The first frames of transfers that are over, by token.
    pub(super) ended: Recent<Peer>,
}

impl Book {
    /// Notes a message that goes up to the application. `false`: it answers a request whose caller was told already.
    pub(super) fn note_received(&mut self, text: &Text, meta: &Meta) -> bool {
        let Some(id) = text.envelope.id_key(&text.message) else {
            return true;
        };
        let key = Key::of(&meta.peer, id);
        if text.envelope.kind == Kind::Request {
            let token = text.token(OWN_TOKEN).map(|(_, token)| token.into());
            self.incoming.insert(key, Incoming { token, frame: meta.id.clone() });
            return true;
        }
        self.open.remove(key);
        self.told.remove(key).is_none()
    }

    /// Notes a request of ours before it goes out.
    pub(super) fn note_asked(&mut self, peer: &Peer, token: &str, asked: Asked) {
        if asked.id.len() <= MAX_TOKEN {
            let id = Key::of(peer, IdKey::of(&asked.id));
            self.told.remove(id);
            self.open.insert(id, ());
            self.asked.insert(Key::of(peer, Some(token)), asked);
        }
    }

    /// The error response that the caller of a request of ours should see, when its answer cannot come any more.
    pub(super) fn fail_asked(&mut self, peer: &Peer, key: Key, why: &str, reason: &str) -> Option<Message> {
        let asked = self.asked.get(key)?;
        let id = Key::of(peer, IdKey::of(&asked.id));
        self.open.remove(id)?;
        self.told.insert(id, ());
        Some(error_response(&asked.id, why, reason))
    }
}

/// A map that forgets: it keeps the last [`RECENT`] entries for sure, and never more than twice that.
#[derive(Debug, Default)]
pub(super) struct Recent<V> {
    fresh: HashMap<Key, V>,
    old: HashMap<Key, V>,
}

impl<V> Recent<V> {
    /// Returns what was there before.
    pub(super) fn insert(&mut self, key: Key, value: V) -> Option<V> {
        let before = self.remove(key);
        if self.fresh.len() >= RECENT {
            self.old = std::mem::take(&mut self.fresh);
        }
        self.fresh.insert(key, value);
        before
    }

    pub(super) fn get(&self, key: Key) -> Option<&V> {
        self.fresh.get(&key).or_else(|| self.old.get(&key))
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<V> {
        self.fresh.remove(&key).or_else(|| self.old.remove(&key))
    }
}
