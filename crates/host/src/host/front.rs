//! The front: what a client asks for goes to the room that does it.

use std::sync::Arc;

use breakbulk_proto::Message;

use super::conduct::Conduct;
use super::desk::Desk;
use super::workshop::Workshop;
use crate::agent::Agent;
use crate::endpoint::{ClientInfo, Dispatched, Methods, RawParams, Refusal, not_offered};
use crate::error::MethodError;
use crate::log::Answer;

pub(crate) struct Front {
    _desk: Arc<Desk>,
    _agents: Vec<Arc<dyn Agent>>,
    _conduct: Arc<Conduct>,
    workshop: Arc<Workshop>,
}

impl Front {
    pub(crate) fn new(
        desk: Arc<Desk>,
        agents: Vec<Arc<dyn Agent>>,
        conduct: Arc<Conduct>,
        workshop: Arc<Workshop>,
    ) -> Self {
        Self { _desk: desk, _agents: agents, _conduct: conduct, workshop }
    }
}

impl Methods for Front {
    fn call<'a>(
        &'a self,
        client: &'a ClientInfo,
        method: &'a str,
        params: RawParams,
    ) -> Answer<'a, Result<Message, MethodError>> {
        Box::pin(async move {
            self.workshop.call(client, method, &params).await.unwrap_or_else(|| Err(not_offered(method)))
        })
    }

    fn dispatch<'a>(&'a self, client: &'a ClientInfo, dispatched: Dispatched) -> Answer<'a, Result<(), Refusal>> {
        Box::pin(async move { self.workshop.dispatch(client, &dispatched).await })
    }
}
