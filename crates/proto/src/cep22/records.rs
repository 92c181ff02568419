//! What is remembered of peers and of requests, so that answers can be matched. All of it is bounded and may be lost.

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

/// What is remembered of one sort: at least the last thousand.
type RecentByKey<V> = crate::recent::Recent<Key, V, 1024>;

/// Who a frame is from or for.
pub(super) type Peer = Option<Arc<str>>;
/// The link's own name for a frame, where it has one.
pub(super) type Name = Option<Arc<str>>;

/// Whether two names may be of one frame: they are, as far as is known.
pub(super) fn may_be(name: &Name, other: &Name) -> bool {
    name.is_none() || other.is_none() || name == other
}

/// Something of one peer's, by the hash of its token or id.
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
    /// What allows a transfer of the answer.
    pub(super) token: Option<Arc<str>>,
    /// The frame that the answer is about.
    pub(super) frame: Option<Arc<str>>,
}

/// A request of ours that allows a transfer of its answer.
#[derive(Debug, Default)]
pub(super) struct SentRequest {
    /// Of its id.
    pub(super) key: Key,
    /// As the application wrote it.
    pub(super) id: Bytes,
    /// As the application wrote it.
    pub(super) token: Bytes,
    /// The application did not write the token: we did.
    pub(super) injected: bool,
    /// Our first frame of it, once the link has named it.
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
    /// By id: whether the caller of a request of ours has its answer, or heard that there will be none.
    pub(super) answered: RecentByKey<bool>,
    /// Frames that came, by their names.
    seen_frames: RecentByKey<()>,
}

impl Records {
    /// Notes a frame. `false`: the link has brought it before.
    pub(super) fn note_frame(&mut self, meta: &Meta) -> bool {
        meta.id.is_none() || self.seen_frames.insert(Key::of(&meta.peer, &meta.id), ()).is_none()
    }

    /// Notes a message that goes up to the application. `false`: it answers a request that is answered already.
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

    /// Notes that the caller of a request hears of it. `Some(false)`: not for the first time, so it must not.
    pub(super) fn answer(&mut self, id: Key) -> Option<bool> {
        self.answered.get(id).map(|answered| !std::mem::replace(answered, true))
    }

    /// Notes our first frame of a message, if it is the last request that used its token.
    pub(super) fn note_began(&mut self, token: Key, request: Option<Key>, began: &Name) {
        if let Some(asked) = self.sent_requests.get(token).filter(|asked| Some(asked.key) == request) {
            asked.began.clone_from(began);
        }
    }

    /// The error response that the caller of a request of ours should see, when its answer cannot come any more.
    pub(super) fn fail_asked(&mut self, token: Key, violation: &Violation) -> Option<Message> {
        let asked = self.sent_requests.get(token)?;
        let (key, id) = (asked.key, asked.id.clone());
        (self.answer(key) == Some(true)).then(|| error_response(&id, &violation.to_string(), violation.name()))
    }
}
