//! What is remembered of peers and of requests, so that answers can be matched. All of it is bounded and may be lost.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::machine::Meta;
use crate::message::Message;
use crate::rpc::{IdKey, Kind, error_response};

use super::wire::{MAX_TOKEN, Text};

/// How many peers are remembered at least; twice as many at most.
const PEERS: usize = 1024;
/// How many requests in each direction, and how many ended transfers.
const REQUESTS: usize = 1024;

/// Who a frame is from or for.
pub(super) type Peer = Option<Arc<str>>;

/// A transfer or a request of one peer, as a hash of its token or id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn of_token(peer: &Peer, token: &str) -> Self {
        Self::of(peer, ("token", token))
    }

    fn of_id(peer: &Peer, id: IdKey) -> Self {
        Self::of(peer, ("id", id))
    }

    fn of(peer: &Peer, what: impl Hash) -> Self {
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
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// As the application wrote it.
    id: Box<[u8]>,
    /// As the application wrote it.
    pub(super) token: Box<[u8]>,
    /// The application did not write it: we did.
    pub(super) injected: bool,
    answered: bool,
}

/// Everything remembered.
#[derive(Debug)]
pub(super) struct Book {
    peers: Recent<Peer, Facts>,
    incoming: Recent<Key, Incoming>,
    asked: Recent<Key, Asked>,
    /// From a request's id to its token.
    ids: Recent<Key, Key>,
    /// The first frames of transfers that are over.
    ended: Recent<Key, Peer>,
}

#[derive(Debug, Default)]
struct Facts {
    supports: bool,
    told: bool,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            peers: Recent::new(PEERS),
            incoming: Recent::new(REQUESTS),
            asked: Recent::new(REQUESTS),
            ids: Recent::new(REQUESTS),
            ended: Recent::new(REQUESTS),
        }
    }
}

impl Book {
    /// Notes that a peer takes transfers; says whether that is news. A link that names no peer when it sends has one.
    pub(super) fn note_support(&mut self, peer: &Peer) -> bool {
        let news = !std::mem::replace(&mut self.peers.entry(peer).supports, true);
        self.peers.entry(&None).supports = true;
        news
    }

    pub(super) fn supports(&self, peer: &Peer) -> bool {
        self.peers.get(peer).is_some_and(|facts| facts.supports)
    }

    /// Whether the next frame to a peer is the first: it says what we support.
    pub(super) fn is_first(&mut self, peer: &Peer) -> bool {
        !std::mem::replace(&mut self.peers.entry(peer).told, true)
    }

    /// Notes a message that goes up to the application. `false`: it answers a request whose caller was told already.
    pub(super) fn note_received(&mut self, text: &Text, meta: &Meta) -> bool {
        let Some(id) = text.envelope.id_key(&text.message) else {
            return true;
        };
        let key = Key::of_id(&meta.peer, id);
        match text.envelope.kind {
            Kind::Request => {
                let token = text.own_token().map(|(_, token)| token.into());
                self.incoming.insert(key, Incoming { token, frame: meta.id.clone() });
            }
            Kind::Response => {
                let token = self.ids.remove(&key).or_else(|| self.ids.remove(&Key::of_id(&None, id)));
                // The token may have been used again since, by another request.
                let asked = token.and_then(|token| self.asked.get_mut(&token));
                if let Some(asked) = asked.filter(|asked| IdKey::of(&asked.id) == id) {
                    return !std::mem::replace(&mut asked.answered, true);
                }
            }
            _ => {}
        }
        true
    }

    /// Notes a request of ours before it goes out.
    pub(super) fn note_asked(&mut self, text: &Text, peer: &Peer, injected: bool) {
        let (Some((span, token)), Some(id)) = (text.own_token(), text.envelope.id_text(&text.message)) else {
            return;
        };
        if id.len() > MAX_TOKEN {
            return;
        }
        let key = Key::of_token(peer, &token);
        let token = text.message.read(span).into();
        self.ids.insert(Key::of_id(peer, IdKey::of(&id)), key);
        self.asked.insert(key, Asked { id: id.into(), token, injected, answered: false });
    }

    /// The request of a peer's that this message of ours answers.
    pub(super) fn answered_by(&self, text: &Text, peer: &Peer) -> Option<&Incoming> {
        self.incoming.get(&Key::of_id(peer, text.envelope.id_key(&text.message)?))
    }

    /// The request of ours with this token.
    pub(super) fn asked(&self, peer: &Peer, token: &str) -> Option<&Asked> {
        self.asked.get(&Key::of_token(peer, token)).or_else(|| self.asked.get(&Key::of_token(&None, token)))
    }

    /// The error response that the caller of a request of ours should see, when its answer cannot come any more.
    pub(super) fn fail_asked(&mut self, peer: &Peer, token: &str, why: &str, reason: &str) -> Option<Message> {
        let keys = [Key::of_token(peer, token), Key::of_token(&None, token)];
        let key = keys.into_iter().find(|key| self.asked.get(key).is_some())?;
        let asked = self.asked.get_mut(&key).filter(|asked| !asked.answered)?;
        asked.answered = true;
        Some(error_response(&asked.id, -32603, why, Some(&format!(r#"{{"reason":"{reason}"}}"#))))
    }

    /// Notes that a transfer is over, and which frame began it.
    pub(super) fn note_ended(&mut self, key: Key, first: Peer) {
        self.ended.insert(key, first);
    }

    /// Whether `first` is the very frame that began a transfer which is over: the link delivered it again.
    pub(super) fn is_ended(&self, key: Key, first: &Peer) -> bool {
        first.is_some() && self.ended.get(&key) == Some(first)
    }
}

/// A map that forgets: it keeps the last `half` entries for sure, and never more than twice that.
#[derive(Debug)]
struct Recent<K, V> {
    fresh: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    fn new(half: usize) -> Self {
        Self { fresh: HashMap::new(), old: HashMap::new(), half }
    }

    fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.fresh.len() >= self.half {
            self.old = std::mem::take(&mut self.fresh);
        }
        self.fresh.insert(key, value);
    }

    fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.fresh.get(key).or_else(|| self.old.get(key))
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.fresh.get_mut(key).or_else(|| self.old.get_mut(key))
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        self.fresh.remove(key).or_else(|| self.old.remove(key))
    }

    /// The value of `key`, which now counts as used.
    fn entry(&mut self, key: &K) -> &mut V
    where
        K: Clone,
        V: Default,
    {
        if !self.fresh.contains_key(key) {
            let value = self.old.remove(key).unwrap_or_default();
            self.insert(key.clone(), value);
        }
        self.fresh.entry(key.clone()).or_default()
    }
}
