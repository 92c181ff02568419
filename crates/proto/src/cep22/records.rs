//! What is remembered of peers and of requests, to match answers with them. Everything is bounded, and the oldest is forgotten.

use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;

use crate::envelope::Kind;
use crate::error::Violation;
use crate::machine::Meta;
use crate::message::Message;
use crate::recent::hash_of;
use crate::rpc::error_response;

use super::wire::{OWN_TOKEN, ParsedMessage};

/// The last entries by key: a thousand at least.
type RecentByKey<V> = crate::recent::Recent<Key, V, 1024>;

/// Who a frame is from, or for.
pub(super) type Peer = Option<Arc<str>>;
/// The id that the link gave a frame, if it gives frames ids.
pub(super) type Name = Option<Arc<str>>;

/// Whether two ids may be of the same frame: they are equal, or one is not known.
pub(super) fn may_be(name: &Name, other: &Name) -> bool {
    name.is_none() || other.is_none() || name == other
}

/// A token or an id of one peer, as a hash.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn of(peer: &Peer, what: impl Hash) -> Self {
        Self(hash_of((peer, what)))
    }
}

/// A request of a peer's that we may answer.
#[derive(Debug, Clone, Default)]
pub(super) struct ReceivedRequest {
    /// The token that allows the answer to be a transfer.
    pub(super) token: Option<Arc<str>>,
    /// The id of its frame, to which the answer has to refer.
    pub(super) frame: Option<Arc<str>>,
}

/// A request of ours that allows a transfer of its answer.
#[derive(Debug, Default)]
pub(super) struct SentRequest {
    /// The key of its id.
    pub(super) key: Key,
    /// As the application wrote it.
    pub(super) id: Bytes,
    /// As the application wrote it.
    pub(super) token: Bytes,
    /// Whether we added the token, and not the application.
    pub(super) injected: bool,
    /// The id of its first frame, once the link has given it one.
    pub(super) began: Name,
}

/// Everything remembered.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) supporting_peers: RecentByKey<()>,
    /// By id.
    pub(super) received_requests: RecentByKey<ReceivedRequest>,
    /// By token.
    pub(super) sent_requests: RecentByKey<SentRequest>,
    /// By id: whether the caller of our request has got its response, or an error in its place.
    pub(super) answered: RecentByKey<bool>,
    /// Frames that have come, by their ids.
    seen_frames: RecentByKey<()>,
}

impl Records {
    /// Notes a frame. Returns false if it has come before.
    pub(super) fn note_frame(&mut self, meta: &Meta) -> bool {
        meta.id.is_none() || self.seen_frames.insert(Key::of(&meta.peer, &meta.id), ()).is_none()
    }

    /// Notes a message for the application. Returns false if it answers a request that is answered already.
    pub(super) fn note_received(&mut self, text: &ParsedMessage, meta: &Meta) -> bool {
        let Some(id) = text.envelope.id_key(&text.message) else { return true };
        let key = Key::of(&meta.peer, id);
        if text.envelope.kind() == Kind::Request {
            let token = text.token(OWN_TOKEN).map(|(_, token)| token.into());
            self.received_requests.insert(key, ReceivedRequest { token, frame: meta.id.clone() });
            return true;
        }
        self.answer(key) != Some(false)
    }

    /// Notes that the caller of a request gets an answer. `Some(false)` if it already has one, and must not get another.
    pub(super) fn answer(&mut self, id: Key) -> Option<bool> {
        self.answered.get(id).map(|answered| !std::mem::replace(answered, true))
    }

    /// Notes the id of the first frame of a request, if that is the last one that used its token.
    pub(super) fn note_began(&mut self, token: Key, request: Option<Key>, began: &Name) {
        if let Some(asked) = self.sent_requests.get(token).filter(|asked| Some(asked.key) == request) {
            asked.began.clone_from(began);
        }
    }

    /// The error response for the caller of our request, when its real response cannot come any more.
    pub(super) fn fail_asked(&mut self, token: Key, violation: &Violation) -> Option<Message> {
        let asked = self.sent_requests.get(token)?;
        let (key, id) = (asked.key, asked.id.clone());
        (self.answer(key) == Some(true)).then(|| error_response(&id, &violation.to_string(), violation.name()))
    }
}
