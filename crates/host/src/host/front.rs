//! The front: what a client asks for goes to the room that does it.

use std::sync::Arc;
use std::time::Duration;

use ahp_types::actions::StateAction;
use ahp_types::commands::{ListSessionsParams, ResourceResolveParams, ResourceType};
use ahp_types::errors::ahp_error_codes::{NOT_FOUND, PROVIDER_NOT_FOUND};
use ahp_types::errors::json_rpc_error_codes::INVALID_PARAMS;
use ahp_types::state::{AgentInfo, SessionState, SessionSummary};
use breakbulk_proto::Message;

use super::attendance::{self, Attendance};
use super::conduct::Conduct;
use super::desk::Desk;
use super::workshop::{self, Workshop, json, to_the_end};
use super::{chats, dispatch, sessions, settings};
use crate::agent::Agent;
use crate::endpoint::{ClientInfo, Dispatched, Methods, RawParams, RejectedAction, Reply, not_offered};
use crate::error::MethodError;
use crate::gate;
use crate::log::BoxFuture;

/// The rooms behind the front.
pub(crate) struct Rooms {
    pub(super) desk: Arc<Desk>,
    pub(super) agents: Agents,
    pub(super) conduct: Arc<Conduct>,
    pub(super) workshop: Arc<Workshop>,
    pub(super) attendance: Attendance,
    /// How long a client that lost its link has to come back.
    pub(super) grace: Duration,
}

impl Rooms {
    pub(super) fn new(
        desk: Arc<Desk>,
        agents: Agents,
        conduct: Arc<Conduct>,
        workshop: Arc<Workshop>,
        grace: Duration,
    ) -> Self {
        Self { desk, agents, conduct, workshop, attendance: Attendance::new(), grace }
    }

    /// The chats of a session, also if it is no longer in the catalogue.
    pub(super) async fn chats_of(&self, session: &str, summary: Option<&SessionSummary>) -> Vec<String> {
        let look =
            |session: &SessionState, _| session.chats.iter().map(|chat| chat.resource.clone()).collect::<Vec<_>>();
        let listed = || {
            let chats = summary.and_then(|summary| summary.chats.as_ref()).into_iter().flatten();
            chats.map(|chat| chat.resource.clone()).collect()
        };
        self.desk.session(session, look).await.ok().flatten().unwrap_or_else(listed)
    }

    /// The directories that a session works in: those that a client asks for, if the agent can and they are inside of the
    /// roots; else the first root.
    pub(super) async fn directories(
        &self,
        agent: &AgentInfo,
        wanted: Option<Vec<String>>,
    ) -> Result<Vec<String>, MethodError> {
        let mut wanted =
            wanted.filter(|wanted| !wanted.is_empty()).unwrap_or_else(|| vec![self.workshop.files().first_root()]);
        let many = agent.capabilities.as_ref().is_some_and(|can| can.multiple_working_directories.is_some());
        if !many {
            wanted.truncate(1);
        }
        for directory in &wanted {
            self.is_directory(directory).await?;
        }
        Ok(wanted)
    }

    /// Whether this is a directory inside of the roots.
    pub(super) async fn is_directory(&self, uri: &str) -> Result<(), MethodError> {
        let params = ResourceResolveParams {
            channel: ahp_types::ROOT_RESOURCE_URI.to_owned(),
            meta: None,
            uri: uri.to_owned(),
            follow_symlinks: Some(true),
        };
        match self.workshop.files().resolve(params).await?.r#type {
            ResourceType::Directory => Ok(()),
            _ => Err(MethodError::new(NOT_FOUND, "the working directory is a file, not a directory")),
        }
    }
}

/// The agents of a host.
pub(crate) struct Agents(Vec<Arc<dyn Agent>>);

impl Agents {
    pub(super) const fn new(agents: Vec<Arc<dyn Agent>>) -> Self {
        Self(agents)
    }

    /// The agent with this name; without one the first.
    pub(super) fn find(&self, provider: Option<&str>) -> Result<&Arc<dyn Agent>, MethodError> {
        let found = match provider {
            Some(name) => self.0.iter().find(|agent| agent.name() == name),
            None => self.0.first(),
        };
        found.ok_or_else(|| {
            MethodError::new(PROVIDER_NOT_FOUND, "there is no such agent here: the root channel lists those that are")
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<dyn Agent>> {
        self.0.iter()
    }
}

/// What clients ask for.
pub(crate) struct Front(Arc<Rooms>);

impl Front {
    pub(super) const fn new(rooms: Arc<Rooms>) -> Self {
        Self(rooms)
    }

    async fn answer(&self, client: &ClientInfo, method: &str, params: RawParams) -> Result<Reply, MethodError> {
        let rooms = &self.0;
        match method {
            "listSessions" => {
                let params: ListSessionsParams = params.parse()?;
                json(&rooms.desk.state().sessions(&params).await?).map(Reply::from)
            }
            "createSession" => {
                let (params, client) = (params.parse()?, client.clone());
                self.whole(|rooms| async move { sessions::create(&rooms, &client, params).await }).await
            }
            "disposeSession" => {
                let params = params.parse()?;
                self.whole(|rooms| async move { sessions::dispose(&rooms, params).await }).await
            }
            "createChat" => {
                let params = params.parse()?;
                self.whole(|rooms| async move { chats::create(&rooms, params).await }).await
            }
            "disposeChat" => {
                let params = params.parse()?;
                self.whole(|rooms| async move { chats::dispose(&rooms, params).await }).await
            }
            "fetchTurns" => chats::fetch_turns(rooms, client, params.parse()?).await,
            "authenticate" => {
                settings::authenticate(rooms, params.parse()?).await?;
                Ok(Message::from("{}").into())
            }
            "resolveSessionConfig" => json(&settings::resolve(rooms, params.parse()?)?).map(Reply::from),
            "sessionConfigCompletions" => json(&settings::complete(rooms, params.parse()?).await?).map(Reply::from),
            _ => match rooms.workshop.call(client, method, &params).await {
                Some(answered) => answered,
                None => Err(not_offered(method)),
            },
        }
    }

    /// Does something that is not left half done when the client goes away. Its result says nothing.
    async fn whole<F>(&self, work: impl FnOnce(Arc<Rooms>) -> F) -> Result<Reply, MethodError>
    where
        F: Future<Output = Result<(), MethodError>> + Send + 'static,
    {
        to_the_end(work(Arc::clone(&self.0))).await?;
        Ok(Message::from("null").into())
    }
}

impl Methods for Front {
    fn call<'a>(
        &'a self,
        client: &'a ClientInfo,
        method: &'a str,
        params: RawParams,
    ) -> BoxFuture<'a, Result<Reply, MethodError>> {
        Box::pin(self.answer(client, method, params))
    }

    fn dispatch<'a>(
        &'a self,
        client: &'a ClientInfo,
        dispatched: Dispatched,
    ) -> BoxFuture<'a, Result<(), RejectedAction>> {
        Box::pin(async move {
            let done = if let StateAction::Unknown(unknown) = &dispatched.action {
                Err(MethodError::new(INVALID_PARAMS, gate::explain(unknown)).into())
            } else if workshop::takes(&dispatched.action) {
                self.0.workshop.dispatch(client, &dispatched).await
            } else {
                match dispatch::dispatch(&self.0, client, &dispatched).await {
                    Ok(logged) => {
                        // It may be long, and is in the log.
                        drop(dispatched);
                        logged.follow_up(&self.0).await;
                        return Ok(());
                    }
                    Err(refusal) => Err(refusal),
                }
            };
            done.map_err(|error| RejectedAction { error, action: Box::new(dispatched.action) })
        })
    }

    fn connected(&self, client: &ClientInfo) {
        self.0.workshop.came(client);
    }

    fn subscribed(&self, client: &ClientInfo, channel: &str) {
        self.0.workshop.follows(client, channel);
        attendance::follows(&self.0, client, channel);
    }

    fn unsubscribed(&self, client: &ClientInfo, channel: &str) {
        self.0.workshop.left(client, channel);
        attendance::left(&self.0, client, channel);
    }

    fn disconnected(&self, client: &ClientInfo) {
        self.0.workshop.gone(client);
        attendance::gone(&self.0, client);
    }
}
