//! The handshake: resumes where the client was, or begins anew, and reads the host's answer.

use breakbulk_proto::{CloseReason, Lane, Message};
use tracing::{info, warn};

use super::{ConnectionPhase, Handshake, LiveConnection, PROTOCOL_ERROR, PendingRequest};
use crate::client::error::RequestError;
use crate::client::run::NextAttempt;
use crate::client::state::Reason;
use crate::client::wire::{self, InitializeResult, ReconnectResult};
use crate::link::Link;

/// AHP's `UnsupportedProtocolVersion`.
const UNSUPPORTED_VERSION: i64 = -32005;

impl<L: Link> LiveConnection<'_, L> {
    /// Begins the handshake: with `reconnect` if there is a cursor to resume from, otherwise with `initialize`.
    pub(super) fn greet(&mut self) {
        let Some(cursor) = self.core.session.cursor else {
            return self.initialize();
        };
        let params = wire::reconnect(&self.core.config.client_id, cursor, &self.core.session.followed());
        self.ask(PendingRequest::Reconnect, "reconnect", &params, None, Lane::Auto);
    }

    fn initialize(&mut self) {
        let config = &self.core.config;
        let wanted = self.core.session.wanted();
        let params = wire::initialize(&config.introduction, &config.versions, &config.client_id, &wanted);
        self.ask(PendingRequest::Initialize, "initialize", &params, None, Lane::Auto);
    }

    pub(super) fn initialized(&mut self, outcome: Result<Message, RequestError>, ordinal: u64) {
        match outcome {
            Ok(result) => match InitializeResult::read(&result) {
                Some(initialized) => {
                    let seq = self.core.session.started(result, initialized);
                    self.begin(ordinal, seq);
                }
                None => self.nonsense("initialize"),
            },
            Err(RequestError::Remote { code, message, .. }) => {
                warn!(code, "the host refused to begin");
                let rejected = Reason::Rejected { code, message };
                let why = rejected.to_string();
                self.next = (code == UNSUPPORTED_VERSION).then_some(NextAttempt::Never(rejected));
                self.fail(why, CloseReason::Normal);
            }
            Err(_) => self.close(CloseReason::Normal),
        }
    }

    pub(super) fn reconnected(&mut self, outcome: Result<Message, RequestError>, ordinal: u64) {
        match outcome {
            Ok(result) => match ReconnectResult::read(&result) {
                Some(resumption) => {
                    let seq = self.core.session.resumed(resumption);
                    self.begin(ordinal, seq);
                }
                None => self.nonsense("reconnect"),
            },
            Err(error) => {
                info!("the host does not resume: {error}");
                // Most hosts take one handshake a link, so a new conversation begins on another one.
                self.core.session.cursor = None;
                self.next = Some(NextAttempt::AtOnce);
                self.close(CloseReason::Normal);
            }
        }
    }

    /// The handshake is done, and everything up to `seq` is known. What came before the answer is handled now.
    fn begin(&mut self, ordinal: u64, seq: u64) {
        self.driver.machine_mut().note_seq(ordinal, seq);
        self.phase = ConnectionPhase::Live;
        if let Handshake::Unanswered { early, .. } = std::mem::replace(&mut self.handshake, Handshake::Done) {
            early.into_iter().for_each(|incoming| self.heard(incoming));
        }
        for channel in self.core.session.unfollowed() {
            self.subscribe(channel);
        }
    }

    fn nonsense(&mut self, method: &'static str) {
        warn!(method, "the host's answer does not have the expected form; the connection is closed");
        let text = format!("the answer to {method} does not have the expected form");
        self.fail(text.clone(), CloseReason::Program(PROTOCOL_ERROR, text));
    }
}
