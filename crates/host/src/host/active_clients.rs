//! Keeps each session's list of active clients up to date: a client that is gone is removed from it.
//!
//! A session's state lists its active clients. A client that unsubscribes is removed at once; a client that loses its link
//! has some time to come back; and those that an earlier run of the host listed have the same time after the start.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use ahp_types::actions::{SessionActiveClientRemovedAction, StateAction};
use ahp_types::state::SessionState;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::log_writer::{Transaction, append_error};
use super::services::Services;
use super::workspace::{ClientKey, SESSION_SCHEME, client_key};
use crate::endpoint::ClientInfo;
use crate::error::MethodError;
use crate::lock::lock;

/// Which clients are active in which sessions, as far as they have been connected since the host started.
#[derive(Debug)]
pub(super) struct ActiveClients {
    sessions: Mutex<HashMap<ClientKey, HashSet<Arc<str>>>>,
    /// Sessions from which clients of an earlier run of the host were removed, or soon will be.
    cleaned: Mutex<HashSet<Arc<str>>>,
    started_at: Instant,
}

impl ActiveClients {
    pub(super) fn new() -> Self {
        Self { sessions: Mutex::default(), cleaned: Mutex::default(), started_at: Instant::now() }
    }

    /// A client has become active in a session.
    pub(super) fn add(&self, client: &ClientInfo, session: &str) {
        lock(&self.sessions).entry(client_key(client)).or_default().insert(session.into());
    }

    /// A session is disposed of.
    pub(super) fn forget_session(&self, session: &str) {
        lock(&self.cleaned).remove(session);
    }

    /// Whether a client with this id is active in a session, or may still come back.
    fn contains(&self, id: &str, session: &str) -> bool {
        lock(&self.sessions).iter().any(|((_, client), sessions)| **client == *id && sessions.contains(session))
    }

    /// Removes a client from a session; returns whether it was active there.
    fn remove(&self, client: &ClientInfo, session: &str) -> bool {
        let mut all = lock(&self.sessions);
        let Some(sessions) = all.get_mut(&client_key(client)) else { return false };
        let was_active = sessions.remove(session);
        if sessions.is_empty() {
            all.remove(&client_key(client));
        }
        was_active
    }

    fn sessions_of(&self, client: &ClientInfo) -> Vec<Arc<str>> {
        lock(&self.sessions).get(&client_key(client)).into_iter().flatten().cloned().collect()
    }
}

/// A client has subscribed to a session. If an earlier run of the host listed it there as active, it is active again.
/// Others that were listed are removed if they do not come back in time.
pub(super) fn subscribed(services: &Arc<Services>, client: &ClientInfo, session: &str) {
    if !session.starts_with(SESSION_SCHEME) {
        return;
    }
    let is_first = lock(&services.active_clients.cleaned).insert(session.into());
    let (services, client, session) = (Arc::downgrade(services), client.clone(), session.to_owned());
    tokio::spawn(async move {
        let Some(upgraded) = services.upgrade() else { return };
        let is_listed =
            |state: &SessionState, _| state.active_clients.iter().any(|active| active.client_id == *client.id);
        if upgraded.log_writer.session(&session, is_listed).await.ok().flatten().unwrap_or(false) {
            upgraded.active_clients.add(&client, &session);
        }
        let deadline = upgraded.active_clients.started_at + upgraded.grace;
        // The host can stop during the wait.
        drop(upgraded);
        if is_first {
            sleep_until(deadline).await;
            let Some(services) = services.upgrade() else { return };
            log_removed(&services, &session, |id| !services.active_clients.contains(id, &session)).await;
        }
    });
}

/// A client has unsubscribed from a session.
pub(super) fn unsubscribed(services: &Arc<Services>, client: &ClientInfo, session: &str) {
    if services.active_clients.remove(client, session) {
        let (services, client, session) = (Arc::clone(services), client.clone(), session.to_owned());
        tokio::spawn(async move { log_removed(&services, &session, |id| *id == *client.id).await });
    }
}

/// A client has lost its link. It is removed if it does not come back in time.
pub(super) fn disconnected(services: &Arc<Services>, client: &ClientInfo) {
    if services.active_clients.sessions_of(client).is_empty() {
        return;
    }
    let (services, client) = (Arc::downgrade(services), client.clone());
    tokio::spawn(async move {
        let Some(grace) = services.upgrade().map(|services| services.grace) else { return };
        tokio::time::sleep(grace).await;
        let Some(services) = services.upgrade() else { return };
        if services.workspace.is_connected(&client) {
            return;
        }
        for session in services.active_clients.sessions_of(&client) {
            if services.active_clients.remove(&client, &session) {
                log_removed(&services, &session, |id| *id == *client.id).await;
            }
        }
    });
}

/// Logs that those clients are not active in a session any more of which `is_gone` is true.
async fn log_removed(services: &Services, session: &str, is_gone: impl Fn(&str) -> bool) {
    let make = || async {
        let remove = |state: &SessionState, seq| {
            let gone = state.active_clients.iter().filter(|active| is_gone(&active.client_id));
            let removed = gone.map(|active| SessionActiveClientRemovedAction { client_id: active.client_id.clone() });
            let removed = removed.map(StateAction::SessionActiveClientRemoved);
            let transaction = Transaction::new().expect(session, seq);
            removed.fold(transaction, |transaction, removed| transaction.action(session, &removed))
        };
        Ok::<_, MethodError>(services.log_writer.session(session, remove).await?.unwrap_or_default())
    };
    if let Err(error) = services.log_writer.transact(make, append_error).await {
        warn!("clients that are gone stay listed as active in a session: {error}");
    }
}
