//! The handshake as it passes: our capability goes in, the peer's is learned, and what nobody asked for comes out.

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

/// In which form the peer may send what is long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invitation {
    /// In one frame: we have not told it that we take segments.
    None,
    /// In segments, since we have told it so, and that no frame may be longer than our limit.
    Segments,
    /// In either. A server does not know who is there until it answers the handshake: a client that was told of segments
    /// earlier, perhaps by a process before this one, may send its `reconnect` in segments; another has never heard of
    /// them.
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
    /// How the peer may send what is long.
    pub(super) invitation: Invitation,
    pending: Option<PendingHandshake>,
    /// Under which name the rate of this link is remembered.
    client: Option<ClientKey>,
    /// Whether a client's application is not told that the server takes segments, even if it asked.
    pub(super) hides_chunking: bool,
}

/// A handshake request that has passed, and whose answer has not.
#[derive(Debug)]
struct PendingHandshake {
    id: IdKey,
    method: Method,
    /// None, if the client does not say who it is: then nothing is remembered.
    client: Option<ClientKey>,
    /// Server: what the client takes, by its request or by what is remembered.
    offered: Option<Chunking>,
    /// The client's own application wrote a capability.
    wanted: bool,
    /// A version with chunking was offered.
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

    /// Whether an answer is on its way that tells what the peer takes: a server may come back with other limits. It knows
    /// those of its client from the request, if that is a `reconnect`.
    pub(super) fn is_waiting(&self) -> bool {
        let tells = |pending: &PendingHandshake| self.role == Role::Client || pending.method == Method::Initialize;
        self.pending.as_ref().is_some_and(tells)
    }

    /// How fast earlier links of the peer's were, once it is known who that is.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.client.and_then(|client| self.negotiated.rate(client))
    }

    /// Remembers how fast this link is, for the peer's next one.
    pub(super) fn note_rate(&self, rate: Rate) {
        if let Some(client) = self.client {
            self.negotiated.note_rate(client, rate);
        }
    }

    /// A message passes that `from` wrote. If the handshake has a part in it, returns the change with which it goes on.
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

    /// Client: the request was refused, so no answer will come.
    pub(super) fn withdraw(&mut self) {
        self.pending = None;
    }

    /// The client asks: our capability goes in when we are the client, theirs comes out when we are the server.
    fn request(&mut self, message: &Message, method: Method, id: IdKey, events: &mut EventQueue) -> Option<Edit> {
        let handshake = Handshake::read(message);
        let client = handshake.client.as_ref().map(|client| self.negotiated.key(client));
        let (version, known) = match (method, client.and_then(|client| self.negotiated.recall(client))) {
            (Method::Initialize, _) => (handshake.offers_chunking_version, None),
            (Method::Reconnect, Some(remembered)) => (remembered.version, remembered.theirs),
            // A reconnect names no version, and without a memory the newest is assumed.
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
                // The result of a reconnect may be segmented at once; that of an initialize when its version is known.
                self.theirs = pending.offered.filter(|_| method == Method::Reconnect);
                handshake.without(message)
            }
        };
        self.pending = Some(pending);
        Some(passed)
    }

    /// The server answers: what both take is settled, and remembered.
    fn response(&mut self, message: &Message, id: IdKey, is_error: bool, events: &mut EventQueue) -> Option<Edit> {
        let pending = self.pending.take_if(|pending| pending.id == id).filter(|_| !is_error)?;
        let handshake = Handshake::read(message);
        let is_current = pending.method == Method::Reconnect || handshake.version_allows == Some(true);
        let version = pending.version && is_current;
        let passed = match self.role {
            Role::Client => {
                count_invalid(&handshake, events);
                self.invitation = Invitation::of(version);
                // A server that does not repeat its limits keeps the remembered ones.
                self.theirs = handshake.theirs.or(self.theirs).filter(|_| version);
                (!pending.wanted).then(|| handshake.without(message))
            }
            Role::Server => {
                self.theirs = pending.offered.filter(|_| version);
                // Only those who advertised are answered.
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
