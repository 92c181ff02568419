//! Watches the handshake as it passes: adds our capability, learns the peer's, and hides both from an application that did not ask.

use strum::EnumString;

use super::negotiate::{Chunking, ClientKey, Handshake, Negotiated, Remembered};
use crate::envelope::Envelope;
use crate::event_queue::EventQueue;
use crate::message::{Edit, Message};
use crate::pace::Rate;
use crate::rpc::IdKey;

/// Which side of AHP this connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends `initialize` and `reconnect`.
    Client,
    /// Answers them.
    Server,
}

impl Role {
    /// The other side.
    pub(super) const fn peer(self) -> Self {
        if matches!(self, Self::Client) { Self::Server } else { Self::Client }
    }
}

/// In which form the peer may send long messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invitation {
    /// In one frame, because we have not told it that we take segments.
    None,
    /// In segments. We have told it so, and also that no frame may be longer than our limit.
    Segments,
    /// In either form. Until a server has answered the handshake, it does not know its client. The client may have been told of
    /// segments on an earlier connection, perhaps by an earlier process, and send its `reconnect` in segments. Or it may know
    /// nothing of segments.
    Either,
}

impl Invitation {
    const fn of(is_told: bool) -> Self {
        if is_told { Self::Segments } else { Self::None }
    }
}

/// What both sides have agreed on so far.
#[derive(Debug)]
pub(super) struct Agreement {
    role: Role,
    negotiated: Negotiated,
    ours: Chunking,
    /// What the peer takes; `None` while it takes no segments.
    pub(super) theirs: Option<Chunking>,
    /// In which form the peer may send long messages.
    pub(super) invitation: Invitation,
    pending: Option<PendingHandshake>,
    /// The client of this connection. Under its key the rate of the link is remembered.
    client: Option<ClientKey>,
    /// Whether a client's application is not told that the server takes segments, even if it asks.
    pub(super) hides_chunking: bool,
}

/// A handshake request that was not answered yet.
#[derive(Debug)]
struct PendingHandshake {
    id: IdKey,
    method: Method,
    /// `None` if the client does not say who it is. Then nothing is remembered of it.
    client: Option<ClientKey>,
    /// On the server: the limits of the client, from its request or from memory.
    offered: Option<Chunking>,
    /// Whether the client's application itself wrote a chunking capability.
    wanted: bool,
    /// Whether the client offered a protocol version that has chunking.
    version: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "camelCase")]
enum Method {
    Initialize,
    Reconnect,
}

impl Agreement {
    pub(super) fn new(role: Role, ours: Chunking, agreed: Option<Chunking>, negotiated: Negotiated) -> Self {
        let invitation = match (agreed, role) {
            (Some(_), _) => Invitation::Segments,
            (None, Role::Server) => Invitation::Either,
            (None, Role::Client) => Invitation::None,
        };
        Self { role, negotiated, ours, theirs: agreed, invitation, pending: None, client: None, hides_chunking: false }
    }

    /// Whether the peer's limits are not known until the handshake is answered. A client waits for the answer, because a server may
    /// have other limits than the last time. A server knows the limits of a client that sends `reconnect` from that request.
    pub(super) fn is_waiting(&self) -> bool {
        let tells = |pending: &PendingHandshake| self.role == Role::Client || pending.method == Method::Initialize;
        self.pending.as_ref().is_some_and(tells)
    }

    /// The rate of earlier links to this client. `None` while the client is not known.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.client.and_then(|client| self.negotiated.rate(client))
    }

    /// Remembers the rate of this link, for the next link to the same client.
    pub(super) fn note_rate(&self, rate: Rate) {
        if let Some(client) = self.client {
            self.negotiated.note_rate(client, rate);
        }
    }

    /// Looks at a message that `from` sent. If it belongs to the handshake, returns the change that has to be made to it.
    pub(super) fn pass(
        &mut self,
        from: Role,
        message: &Message,
        envelope: &Envelope,
        events: &mut EventQueue,
    ) -> Option<Edit> {
        let (method, id) = (envelope.method(message).unwrap_or_default(), envelope.id_key(message));
        match from {
            Role::Client => self.request(message, method.parse().ok()?, id?, events),
            Role::Server if method.is_empty() => self.response(message, id?, envelope.error().is_some(), events),
            Role::Server => None,
        }
    }

    /// On the client: the handshake request could not be sent, so no answer will come.
    pub(super) fn withdraw(&mut self) {
        self.pending = None;
    }

    /// A handshake request. As the client, we add our capability to it; as the server, we take the client's capability out of it.
    fn request(&mut self, message: &Message, method: Method, id: IdKey, events: &mut EventQueue) -> Option<Edit> {
        let handshake = Handshake::read(message);
        let client = handshake.client.as_ref().map(|client| self.negotiated.key(client));
        let (version, known) = match (method, client.and_then(|client| self.negotiated.recall(client))) {
            (Method::Initialize, _) => (handshake.offers_chunking_version, None),
            (Method::Reconnect, Some(remembered)) => (remembered.version, remembered.theirs),
            // A `reconnect` names no version. If nothing is remembered of the client, the newest is assumed.
            (Method::Reconnect, None) => (true, None),
        };
        self.client = client;
        let wanted = handshake.chunking.is_some() && !self.hides_chunking;
        let mut pending = PendingHandshake { id, method, client, offered: None, wanted, version };
        let passed = match self.role {
            Role::Client => {
                (self.invitation, self.theirs) = (Invitation::of(version), known);
                if version { handshake.with(message, self.ours) } else { handshake.without(message) }
            }
            Role::Server => {
                count_invalid(&handshake, events);
                pending.offered = handshake.theirs.or(known).filter(|_| version);
                // The result of a `reconnect` may be segmented at once. That of an `initialize` may not, because it tells the version.
                self.theirs = pending.offered.filter(|_| method == Method::Reconnect);
                handshake.without(message)
            }
        };
        self.pending = Some(pending);
        Some(passed)
    }

    /// The answer to a handshake request. From here on both sides know the limits of the other, and they are remembered.
    fn response(&mut self, message: &Message, id: IdKey, is_error: bool, events: &mut EventQueue) -> Option<Edit> {
        let pending = self.pending.take_if(|pending| pending.id == id).filter(|_| !is_error)?;
        let handshake = Handshake::read(message);
        let is_current = pending.method == Method::Reconnect || handshake.version_allows == Some(true);
        let version = pending.version && is_current;
        let passed = match self.role {
            Role::Client => {
                count_invalid(&handshake, events);
                self.invitation = Invitation::of(version);
                // If the server does not repeat its limits, the remembered ones still hold.
                self.theirs = handshake.theirs.or(self.theirs).filter(|_| version);
                (!pending.wanted).then(|| handshake.without(message))
            }
            Role::Server => {
                self.theirs = pending.offered.filter(|_| version);
                // Only a client that advertised chunking is told of ours.
                let is_told = self.theirs.is_some();
                self.invitation = Invitation::of(is_told);
                Some(if is_told { handshake.with(message, self.ours) } else { handshake.without(message) })
            }
        };
        let remembered = Remembered { theirs: self.theirs, version };
        pending.client.into_iter().for_each(|client| self.negotiated.remember(client, remembered));
        passed
    }
}

fn count_invalid(handshake: &Handshake, events: &mut EventQueue) {
    if handshake.invalid {
        events.count("invalid-capability");
    }
}
