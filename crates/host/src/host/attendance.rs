//! Which sessions a client is active in, so that it is not for longer than it is here.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use ahp_types::actions::{SessionActiveClientRemovedAction, StateAction};
use ahp_types::state::SessionState;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::desk::{Sheet, not_kept};
use super::front::Rooms;
use super::workshop::SCHEME;
use crate::endpoint::ClientInfo;
use crate::error::MethodError;
use crate::lock::lock;

/// A client among those of its principal.
type Key = (Option<Arc<str>>, Arc<str>);

/// Who is active where, as far as they have been here in this life of the host.
#[derive(Debug)]
pub(super) struct Attendance {
    all: Mutex<HashMap<Key, HashSet<Arc<str>>>>,
    /// Sessions that are rid of clients of the host's last life, or soon will be.
    tidied: Mutex<HashSet<Arc<str>>>,
    /// When this life began.
    born: Instant,
}

impl Attendance {
    pub(super) fn new() -> Self {
        Self { all: Mutex::default(), tidied: Mutex::default(), born: Instant::now() }
    }

    /// A client is active in a session from now on.
    pub(super) fn note(&self, client: &ClientInfo, session: &str) {
        lock(&self.all).entry(key(client)).or_default().insert(session.into());
    }

    /// A session is no more.
    pub(super) fn forget(&self, session: &str) {
        lock(&self.tidied).remove(session);
    }

    /// Whether a client with this id is active in a session, or has a while to come back.
    fn has(&self, id: &str, session: &str) -> bool {
        lock(&self.all).iter().any(|((_, of), sessions)| **of == *id && sessions.contains(session))
    }

    /// A client is not active in this session any more; says whether it was.
    fn strike(&self, client: &ClientInfo, session: &str) -> bool {
        let mut all = lock(&self.all);
        let Some(sessions) = all.get_mut(&key(client)) else { return false };
        let was = sessions.remove(session);
        if sessions.is_empty() {
            all.remove(&key(client));
        }
        was
    }

    fn of(&self, client: &ClientInfo) -> Vec<Arc<str>> {
        lock(&self.all).get(&key(client)).into_iter().flatten().cloned().collect()
    }
}

/// A client follows a session. If it was active there in the host's last life, it is again; others that were have a while
/// to come back, and then are active no more.
pub(super) fn follows(rooms: &Arc<Rooms>, client: &ClientInfo, session: &str) {
    if !session.starts_with(SCHEME) {
        return;
    }
    let is_first = lock(&rooms.attendance.tidied).insert(session.into());
    let (rooms, client, session) = (Arc::downgrade(rooms), client.clone(), session.to_owned());
    tokio::spawn(async move {
        let Some(here) = rooms.upgrade() else { return };
        let is_active =
            |there: &SessionState, _| there.active_clients.iter().any(|active| active.client_id == *client.id);
        if here.desk.session(&session, is_active).await.ok().flatten().unwrap_or(false) {
            here.attendance.note(&client, &session);
        }
        let back_by = here.attendance.born + here.grace;
        drop(here);
        if is_first {
            sleep_until(back_by).await;
            let Some(rooms) = rooms.upgrade() else { return };
            remove(&rooms, &session, |id| !rooms.attendance.has(id, &session)).await;
        }
    });
}

/// A client follows a session no more.
pub(super) fn left(rooms: &Arc<Rooms>, client: &ClientInfo, session: &str) {
    if rooms.attendance.strike(client, session) {
        let (rooms, client, session) = (Arc::clone(rooms), client.clone(), session.to_owned());
        tokio::spawn(async move { remove(&rooms, &session, |id| *id == *client.id).await });
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
                remove(&rooms, &session, |id| *id == *client.id).await;
            }
        }
    });
}

/// Logs that clients like this are not active in a session any more.
async fn remove(rooms: &Rooms, session: &str, is_gone: impl Fn(&str) -> bool) {
    let make = || async {
        let look = |there: &SessionState, seq| {
            let gone = there.active_clients.iter().filter(|active| is_gone(&active.client_id));
            let gone = gone.map(|active| SessionActiveClientRemovedAction { client_id: active.client_id.clone() });
            let removed = gone.map(StateAction::SessionActiveClientRemoved);
            removed.fold(Sheet::new().expect(session, seq), |sheet, removed| sheet.action(session, &removed))
        };
        Ok::<_, MethodError>(rooms.desk.session(session, look).await?.unwrap_or_default())
    };
    if let Err(error) = rooms.desk.decide(make, not_kept).await {
        warn!("clients that are gone stay listed as active in a session: {error}");
    }
}

fn key(client: &ClientInfo) -> Key {
    (client.principal.clone(), Arc::clone(&client.id))
}
