//! Which sessions a client is active in, so that it is not for longer than it is here.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use ahp_types::actions::{SessionActiveClientRemovedAction, StateAction};
use ahp_types::state::SnapshotState;
use tracing::warn;

use super::desk::{Sheet, not_kept};
use super::front::Rooms;
use crate::endpoint::ClientInfo;
use crate::error::MethodError;
use crate::state::StateError;

/// A client among those of its principal.
type Key = (Option<Arc<str>>, Arc<str>);

/// Who is active where.
#[derive(Debug, Default)]
pub(super) struct Attendance(Mutex<HashMap<Key, HashSet<Arc<str>>>>);

impl Attendance {
    /// A client is active in a session from now on.
    pub(super) fn note(&self, client: &ClientInfo, session: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key(client)).or_default().insert(session.into());
    }

    /// A client is not active in this session any more; says whether it was.
    fn strike(&self, client: &ClientInfo, session: &str) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sessions) = all.get_mut(&key(client)) else { return false };
        let was = sessions.remove(session);
        if sessions.is_empty() {
            all.remove(&key(client));
        }
        was
    }

    fn of(&self, client: &ClientInfo) -> Vec<Arc<str>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&key(client)).into_iter().flatten().cloned().collect()
    }
}

/// A client follows a session no more.
pub(super) fn left(rooms: &Arc<Rooms>, client: &ClientInfo, session: &str) {
    if rooms.attendance.strike(client, session) {
        let (rooms, client, session) = (Arc::clone(rooms), client.clone(), session.to_owned());
        tokio::spawn(async move { remove(&rooms, &client, &session).await });
    }
}

/// A client has lost its link. It has a while to come back.
pub(super) fn gone(rooms: &Arc<Rooms>, client: &ClientInfo) {
    if rooms.attendance.of(client).is_empty() {
        return;
    }
    let (rooms, client) = (Arc::downgrade(rooms), client.clone());
    tokio::spawn(async move {
        let Some(grace) = rooms.upgrade().map(|rooms| rooms.grace) else { return };
        tokio::time::sleep(grace).await;
        let Some(rooms) = rooms.upgrade() else { return };
        if rooms.workshop.is_here(&client) {
            return;
        }
        for session in rooms.attendance.of(&client) {
            if rooms.attendance.strike(&client, &session) {
                remove(&rooms, &client, &session).await;
            }
        }
    });
}

async fn remove(rooms: &Rooms, client: &ClientInfo, session: &str) {
    let client_id = client.id.to_string();
    let removed = StateAction::SessionActiveClientRemoved(SessionActiveClientRemovedAction { client_id });
    let make = || async {
        let look = |state: &SnapshotState, seq| match state {
            SnapshotState::Session(there) => {
                let is_active = there.active_clients.iter().any(|active| *active.client_id == *client.id);
                let sheet = Sheet::new().expect(session, seq);
                if is_active { sheet.action(session, &removed) } else { sheet }
            }
            _ => Sheet::new(),
        };
        match rooms.desk.look(session, look).await {
            Err(StateError::NotFound) => Ok(Sheet::new()),
            other => other.map_err(MethodError::from),
        }
    };
    if let Err(error) = rooms.desk.decide(make, not_kept).await {
        warn!("a client that is gone is still active in a session: {error}");
    }
}

fn key(client: &ClientInfo) -> Key {
    (client.principal.clone(), Arc::clone(&client.id))
}
