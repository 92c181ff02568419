//! The results of jobs: a handshake, a snapshot, an answer, a dispatched action.

use std::collections::HashMap;
use std::sync::Arc;

use ahp_types::errors::ahp_error_codes::UNSUPPORTED_PROTOCOL_VERSION;
use ahp_types::errors::json_rpc_error_codes::INTERNAL_ERROR;
use bytes::Bytes;
use tracing::info;

use super::clients::{AnswerTimeouts, ClientHandle};
use super::connection::{Connection, HandshakePhase, IdentifiedClient, PresenceGuard};
use super::end_reason::EndReason;
use super::handshake::HandshakeResult;
use super::jobs::{Job, JobKind, JobOutput};
use super::memory::NoMemory;
use super::methods::{ClientInfo, Reply};
use super::wire;
use crate::error::MethodError;

impl Connection {
    /// Handles the output of a job; `None` if the job panicked.
    pub(super) fn finish_job(&mut self, job: Job, done: Option<JobOutput>) {
        let broke = || MethodError::new(INTERNAL_ERROR, "an internal error of the host: its log has more");
        match (job.kind, done) {
            (_, Some(JobOutput::Handshake(Ok(handshake)))) => self.finish_handshake(job.id, *handshake),
            (_, Some(JobOutput::Handshake(Err(error)))) => self.fail_handshake(job.id, error),
            (JobKind::Handshake, _) => self.end(EndReason::Internal),
            (JobKind::Subscribe(request), done) => {
                self.snapshots_in_progress = self.snapshots_in_progress.saturating_sub(1);
                let snapshot =
                    if let Some(JobOutput::Snapshot(snapshot)) = done { snapshot } else { Err(broke().into()) };
                self.finish_subscribe(job.id.as_ref(), &request, snapshot);
            }
            (JobKind::Dispatch(header), Some(JobOutput::Dispatch(outcome))) => {
                self.dispatched(job.id.as_ref(), &header, outcome);
            }
            (JobKind::Dispatch(_), _) => self.end(EndReason::Internal),
            (JobKind::Call { .. }, Some(JobOutput::Call(reply, leave))) => {
                self.replied(job.id.as_ref(), reply);
                // The answer counts as unsent from now on, so another large result may be made.
                drop(leave);
            }
            (JobKind::Call { .. }, _) => self.answer(job.id.as_ref(), Err(broke())),
        }
    }

    fn replied(&mut self, id: Option<&Bytes>, reply: Result<Reply, MethodError>) {
        let result = reply.and_then(|Reply { result, before, .. }| {
            if let Some((channel, action)) = before {
                let action = self.private_action(&channel, &action)?;
                self.flush();
                self.send(action);
            }
            Ok(result)
        });
        self.answer(id, result);
    }

    fn finish_handshake(&mut self, id: Option<Bytes>, handshake: HandshakeResult) {
        self.handshake = HandshakePhase::Done;
        let HandshakeResult { result, notices, reader, references, identity, lease, method } = handshake;
        let message_limits = self.message_limits();
        self.note_references(references, message_limits.max);
        let identity = self.shared.clients.remember(self.principal.clone(), identity, method);
        let (silent, max_asks) = (self.shared.config.ask_time, self.shared.config.max_asks);
        let most = silent.saturating_add(self.shared.config.limits.group_timeout().saturating_mul(2));
        let (handle, host_messages) =
            ClientHandle::new(max_asks, AnswerTimeouts { silent, most }, self.activity.clone());
        let registration = self.shared.clients.register(lease, handle.clone());
        let info = ClientInfo {
            id: identity.id,
            connection: registration.generation(),
            principal: self.principal.clone(),
            version: identity.version,
            message_bytes: message_limits.max,
            handle,
            memory: self.memory.clone(),
        };
        info!(
            bytes = result.len(),
            channels = reader.subscriptions().len(),
            seq = reader.position(),
            version = %info.version,
            "a client has come in"
        );
        let handshake_answer = self.send(wire::response(&id.unwrap_or_default(), &result));
        let intake = self.intake();
        self.driver.link_mut().open(intake);
        let (info, asked) = (Arc::new(info), HashMap::new());
        let presence = PresenceGuard::begin(Arc::clone(&self.shared.methods), &info);
        reader.subscriptions().keys().for_each(|channel| self.shared.methods.subscribed(&info, channel));
        self.client = Some(IdentifiedClient {
            info,
            reader,
            host_messages,
            asked,
            registration,
            handshake_answer,
            _presence: presence,
        });
        for notice in notices {
            self.send(notice);
        }
    }

    fn fail_handshake(&mut self, id: Option<Bytes>, error: MethodError) {
        self.handshake = self.handshake.failed();
        let end = match &error {
            MethodError { code: UNSUPPORTED_PROTOCOL_VERSION, .. } => Some(EndReason::Version),
            MethodError { data: Some(data), .. } => NoMemory::of(data).map(EndReason::NoMemory),
            _ => None,
        };
        let ticket = self.send(wire::failure(&id.unwrap_or_default(), &error));
        self.unsent.last = end.map(|end| (ticket, end));
    }
}
