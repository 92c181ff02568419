//! The handshake as it passes: our capability goes in, the peer's is learned, and what nobody asked for comes out.

use super::negotiate::{Chunking, ClientKey, Handshake, Negotiated, Remembered};
use crate::message::Message;
use crate::outbox::Outbox;
use crate::rpc::IdKey;

/// Which side of AHP this connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends `initialize` and `reconnect`.
    Client,
    /// Answers them.
    Server,
}

/// What both sides have agreed on so far.
#[derive(Debug)]
pub(super) struct Agreement {
    negotiated: Negotiated,
    ours: Chunking,
    /// What the peer takes; `None` while it takes no segments.
    pub(super) theirs: Option<Chunking>,
    /// Whether we have told the peer that we take segments.
    pub(super) invited: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// No handshake yet.
    Fresh,
    /// A handshake request has passed, its answer has not.
    Asked(Asked),
    /// There was an answer.
    Done,
}

#[derive(Debug)]
struct Asked {
    id: Option<IdKey>,
    method: Method,
    client: ClientKey,
    /// What the client's request said that it takes.
    offered: Option<Chunking>,
    /// The client's own application wrote a capability.
    wanted: bool,
    /// A version with chunking was offered.
    version: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Initialize,
    Reconnect,
}

impl Method {
    fn of(method: &str) -> Option<Self> {
        match method {
            "initialize" => Some(Self::Initialize),
            "reconnect" => Some(Self::Reconnect),
            _ => None,
        }
    }
}

impl Agreement {
    pub(super) fn new(role: Role, ours: Chunking, agreed: Option<Chunking>, negotiated: Negotiated) -> Self {
        // A client may segment its `reconnect` request to a server that ever advertised.
        let invited = agreed.is_some() || (role == Role::Server && negotiated.has_advertised());
        let stage = if agreed.is_some() { Stage::Done } else { Stage::Fresh };
        Self { negotiated, ours, theirs: agreed, invited, stage }
    }

    /// Whether an answer is on its way that will tell what the peer takes. A `reconnect` relies on what is remembered.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(&self.stage, Stage::Asked(Asked { method: Method::Initialize, .. }))
    }

    /// Client: a request goes out. Returns it as it is to be sent.
    pub(super) fn request_out(&mut self, message: &Message, method: &str, id: Option<IdKey>) -> Option<Message> {
        let method = Method::of(method)?;
        let handshake = Handshake::request(message);
        let client = self.negotiated.key(&handshake.client);
        let remembered = self.negotiated.recall(client);
        let version = match method {
            Method::Initialize => handshake.offers_chunking_version,
            // A reconnect names no version: the remembered answer tells, and without one the newest is assumed.
            Method::Reconnect => remembered.is_none_or(|remembered| remembered.version),
        };
        self.theirs = match method {
            Method::Initialize => None,
            Method::Reconnect => remembered.and_then(|remembered| remembered.theirs),
        };
        self.invited = version;
        let sent = if version { handshake.with(message, self.ours) } else { handshake.without(message) };
        let wanted = handshake.has_chunking();
        self.stage = Stage::Asked(Asked { id, method, client, offered: None, wanted, version });
        Some(sent)
    }

    /// Client: the request went out as the application wrote it, because ours does not fit the link.
    pub(super) fn go_without(&mut self) {
        self.invited = false;
        if let Stage::Asked(asked) = &mut self.stage {
            asked.version = false;
        }
    }

    /// Client: the request was refused, so no answer will come.
    pub(super) fn withdraw(&mut self) {
        self.stage = Stage::Fresh;
    }

    /// Client: a response comes in. Returns it as the application is to see it.
    pub(super) fn response_in(
        &mut self,
        message: &Message,
        id: Option<IdKey>,
        is_error: bool,
        outbox: &mut Outbox,
    ) -> Option<Message> {
        let asked = self.take_asked(id)?;
        if is_error {
            self.stage = Stage::Fresh;
            return None;
        }
        self.stage = Stage::Done;
        let handshake = Handshake::result(message);
        count_invalid(&handshake, outbox);
        let mut version = asked.version;
        if asked.method == Method::Initialize {
            version &= handshake.version_allows == Some(true);
            self.invited = version;
            self.theirs = handshake.theirs.filter(|_| version);
        } else if version && handshake.theirs.is_some() {
            self.theirs = handshake.theirs;
        }
        self.negotiated.remember(asked.client, Remembered { theirs: self.theirs, version });
        (!asked.wanted).then(|| handshake.without(message))
    }

    /// Server: a request comes in. Returns it as the application is to see it.
    pub(super) fn request_in(
        &mut self,
        message: &Message,
        method: &str,
        id: Option<IdKey>,
        outbox: &mut Outbox,
    ) -> Option<Message> {
        let method = Method::of(method)?;
        let handshake = Handshake::request(message);
        count_invalid(&handshake, outbox);
        let client = self.negotiated.key(&handshake.client);
        let remembered = self.negotiated.recall(client);
        let (version, offered) = match method {
            Method::Initialize => (handshake.offers_chunking_version, handshake.theirs),
            Method::Reconnect => (
                remembered.is_none_or(|remembered| remembered.version),
                handshake.theirs.or(remembered.and_then(|remembered| remembered.theirs)),
            ),
        };
        let offered = offered.filter(|_| version);
        // The result of a reconnect may be segmented at once; that of an initialize when its version is known.
        self.theirs = offered.filter(|_| method == Method::Reconnect);
        let seen = handshake.without(message);
        self.stage = Stage::Asked(Asked { id, method, client, offered, wanted: false, version });
        Some(seen)
    }

    /// Server: a response goes out. Returns it as it is to be sent.
    pub(super) fn response_out(&mut self, message: &Message, id: Option<IdKey>, is_error: bool) -> Option<Message> {
        let asked = self.take_asked(id)?;
        if is_error {
            self.stage = Stage::Fresh;
            return None;
        }
        self.stage = Stage::Done;
        let handshake = Handshake::result(message);
        let version = match asked.method {
            Method::Initialize => handshake.version_allows == Some(true),
            Method::Reconnect => asked.version,
        };
        self.theirs = asked.offered.filter(|_| version);
        self.negotiated.remember(asked.client, Remembered { theirs: self.theirs, version });
        // Only those who advertised are answered.
        if self.theirs.is_none() {
            self.invited = false;
            return handshake.has_chunking().then(|| handshake.without(message));
        }
        self.invited = true;
        self.negotiated.note_advertised();
        Some(handshake.with(message, self.ours))
    }

    fn take_asked(&mut self, id: Option<IdKey>) -> Option<Asked> {
        let answers = matches!(&self.stage, Stage::Asked(asked) if asked.id.is_some() && asked.id == id);
        if !answers {
            return None;
        }
        match std::mem::replace(&mut self.stage, Stage::Fresh) {
            Stage::Asked(asked) => Some(asked),
            _ => None,
        }
    }
}

fn count_invalid(handshake: &Handshake, outbox: &mut Outbox) {
    if handshake.invalid {
        outbox.count("invalid-capability");
    }
}
