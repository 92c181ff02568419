//! What comes of what a client wanted: a handshake, a snapshot, an answer, an action.

use std::collections::HashMap;
use std::sync::Arc;

use ahp_types::errors::ahp_error_codes::UNSUPPORTED_PROTOCOL_VERSION;
use ahp_types::errors::json_rpc_error_codes::INTERNAL_ERROR;
use bytes::Bytes;
use tracing::info;

use super::clients::{AskTime, ClientHandle};
use super::connection::{Connection, Presence, Present};
use super::end::End;
use super::greeting::Greeted;
use super::jobs::{Done, Job, Work};
use super::memory::NoMemory;
use super::methods::{ClientInfo, Reply};
use super::wire;
use crate::error::MethodError;

impl Connection {
    /// A job is done; or broke, without an outcome.
    pub(super) fn done(&mut self, job: Job, done: Option<Done>) {
        let broke = || MethodError::new(INTERNAL_ERROR, "an internal error of the host: its log has more");
        match (job.work, done) {
            (_, Some(Done::Greeted(Ok(greeted)))) => self.greeted(job.id, *greeted),
            (_, Some(Done::Greeted(Err(error)))) => self.not_greeted(job.id, error),
            (Work::Greet, _) => self.end(End::Internal),
            (Work::Subscribe(wish), done) => {
                self.shots = self.shots.saturating_sub(1);
                let shown = if let Some(Done::Shown(shown)) = done { shown } else { Err(broke().into()) };
                self.shown(job.id.as_ref(), &wish, shown);
            }
            (Work::Dispatch(header), Some(Done::Dispatched(outcome))) => {
                self.dispatched(job.id.as_ref(), &header, outcome);
            }
            (Work::Dispatch(_), _) => self.end(End::Internal),
            (Work::Call { .. }, Some(Done::Called(reply, leave))) => {
                self.replied(job.id.as_ref(), reply);
                // It counts among the answers that wait now, and another may be read.
                drop(leave);
            }
            (Work::Call { .. }, _) => self.answer(job.id.as_ref(), Err(broke())),
        }
    }

    fn replied(&mut self, id: Option<&Bytes>, reply: Result<Reply, MethodError>) {
        let result = reply.and_then(|Reply { result, before, .. }| {
            if let Some((channel, action)) = before {
                let action = self.aside(&channel, &action)?;
                self.flush();
                self.send(action);
            }
            Ok(result)
        });
        self.answer(id, result);
    }

    fn greeted(&mut self, id: Option<Bytes>, greeted: Greeted) {
        self.is_greeting = false;
        let Greeted { result, notices, feed, moved, introduced, arrived, is_new } = greeted;
        let takes = self.takes();
        self.by_reference(moved, takes.most);
        let introduced = self.shared.clients.acquaint(self.principal.clone(), introduced, is_new);
        let (silent, max_asks) = (self.shared.config.ask_time, self.shared.config.max_asks);
        let most = silent.saturating_add(self.shared.config.limits.group_timeout().saturating_mul(2));
        let (handle, orders) = ClientHandle::new(max_asks, AskTime { silent, most }, self.activity.clone());
        let registration = self.shared.clients.register(arrived, handle.clone());
        let info = ClientInfo {
            id: introduced.id,
            connection: registration.generation(),
            principal: self.principal.clone(),
            version: introduced.version,
            implementation: introduced.implementation,
            locale: introduced.locale,
            capabilities: introduced.capabilities,
            message_bytes: takes.most,
            handle,
            memory: self.memory.clone(),
        };
        info!(
            bytes = result.len(),
            channels = feed.subscriptions().len(),
            seq = feed.position(),
            "a client has come in"
        );
        let hello = self.send(wire::response(&id.unwrap_or_default(), &result));
        let intake = self.intake();
        self.driver.link_mut().open(intake);
        let (info, asked) = (Arc::new(info), HashMap::new());
        let presence = Presence::begin(Arc::clone(&self.shared.methods), &info);
        feed.subscriptions().keys().for_each(|channel| self.shared.methods.follows(&info, channel));
        self.present = Some(Present { info, feed, orders, asked, registration, hello, _presence: presence });
        for notice in notices {
            self.send(notice);
        }
    }

    fn not_greeted(&mut self, id: Option<Bytes>, error: MethodError) {
        self.is_greeting = false;
        let end = match &error {
            MethodError { code: UNSUPPORTED_PROTOCOL_VERSION, .. } => Some(End::Version),
            MethodError { data: Some(data), .. } => NoMemory::of(data).map(End::NoMemory),
            _ => None,
        };
        let ticket = self.send(wire::failure(&id.unwrap_or_default(), &error));
        self.sending.last = end.map(|end| (ticket, end));
    }
}
