//! The router: passes each request of a client to the service that answers it, and each action to the one that takes it.

use std::sync::Arc;

use ahp_types::actions::StateAction;
use ahp_types::commands::ListSessionsParams;
use ahp_types::errors::json_rpc_error_codes::INVALID_PARAMS;
use breakbulk_proto::Message;

use super::services::Services;
use super::workspace::{self, json, run_to_end};
use super::{active_clients, chats, command_completions, dispatch, session_config, sessions};
use crate::endpoint::{ClientInfo, Dispatched, Methods, RawParams, RejectedAction, Reply, not_offered};
use crate::error::MethodError;
use crate::gate;
use crate::log::BoxFuture;

/// Answers the requests of all clients.
pub(crate) struct Router(Arc<Services>);

impl Router {
    pub(super) const fn new(services: Arc<Services>) -> Self {
        Self(services)
    }

    async fn route(&self, client: &ClientInfo, method: &str, params: RawParams) -> Result<Reply, MethodError> {
        let services = &self.0;
        match method {
            "listSessions" => {
                let params: ListSessionsParams = params.parse()?;
                json(&services.log_writer.state().sessions(&params).await?).map(Reply::from)
            }
            "createSession" => {
                let (params, client) = (params.parse()?, client.clone());
                self.run_method(|services| async move { sessions::create(&services, &client, params).await }).await
            }
            "disposeSession" => {
                let params = params.parse()?;
                self.run_method(|services| async move { sessions::dispose(&services, params).await }).await
            }
            "createChat" => {
                let params = params.parse()?;
                self.run_method(|services| async move { chats::create(&services, params).await }).await
            }
            "disposeChat" => {
                let params = params.parse()?;
                self.run_method(|services| async move { chats::dispose(&services, params).await }).await
            }
            "fetchTurns" => chats::fetch_turns(services, client, params.parse()?).await,
            "authenticate" => {
                session_config::authenticate(services, params.parse()?).await?;
                Ok(Message::from("{}").into())
            }
            "resolveSessionConfig" => json(&session_config::resolve(services, params.parse()?)?).map(Reply::from),
            "sessionConfigCompletions" => {
                json(&session_config::complete(services, params.parse()?).await?).map(Reply::from)
            }
            "completions" if let Some(found) = command_completions::complete(services, &params.parse()?).await? => {
                json(&found).map(Reply::from)
            }
            _ => match services.workspace.call(client, method, &params).await {
                Some(answered) => answered,
                None => Err(not_offered(method)),
            },
        }
    }

    /// Runs a method to its end, also when the client disconnects. Its result is `null`.
    async fn run_method<F>(&self, work: impl FnOnce(Arc<Services>) -> F) -> Result<Reply, MethodError>
    where
        F: Future<Output = Result<(), MethodError>> + Send + 'static,
    {
        run_to_end(work(Arc::clone(&self.0))).await?;
        Ok(Message::from("null").into())
    }
}

impl Methods for Router {
    fn call<'a>(
        &'a self,
        client: &'a ClientInfo,
        method: &'a str,
        params: RawParams,
    ) -> BoxFuture<'a, Result<Reply, MethodError>> {
        Box::pin(self.route(client, method, params))
    }

    fn dispatch<'a>(
        &'a self,
        client: &'a ClientInfo,
        dispatched: Dispatched,
    ) -> BoxFuture<'a, Result<(), RejectedAction>> {
        Box::pin(async move {
            let done = if let StateAction::Unknown(unknown) = &dispatched.action {
                Err(MethodError::new(INVALID_PARAMS, gate::explain(unknown)).into())
            } else if workspace::takes(&dispatched.action) {
                self.0.workspace.dispatch(client, &dispatched).await
            } else {
                match dispatch::dispatch(&self.0, client, &dispatched).await {
                    Ok(logged) => {
                        // The action may be large, and the log has it: its memory is freed before the wait.
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
        self.0.workspace.client_connected(client);
    }

    fn subscribed(&self, client: &ClientInfo, channel: &str) {
        self.0.workspace.client_subscribed(client, channel);
        active_clients::subscribed(&self.0, client, channel);
    }

    fn unsubscribed(&self, client: &ClientInfo, channel: &str) {
        self.0.workspace.client_unsubscribed(client, channel);
        active_clients::unsubscribed(&self.0, client, channel);
    }

    fn disconnected(&self, client: &ClientInfo) {
        self.0.workspace.client_disconnected(client);
        active_clients::disconnected(&self.0, client);
    }
}
