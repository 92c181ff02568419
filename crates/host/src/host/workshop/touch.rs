//! What somebody touches in a work tree makes followed changesets look again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::looks::{Look, Wish};
use super::{Workshop, session};
use crate::endpoint::ClientInfo;
use crate::files::path_of;
use crate::lock::lock;

/// Who follows the changesets of which session: connections, and what they follow.
#[derive(Default)]
pub(super) struct Followed(Mutex<HashMap<String, HashSet<(u64, String)>>>);

impl Followed {
    /// A client follows this changeset from now on.
    pub(super) fn follows(&self, client: &ClientInfo, session: &str, changeset: &str) {
        let who = (client.connection, changeset.to_owned());
        lock(&self.0).entry(session.to_owned()).or_default().insert(who);
    }

    /// A client does not follow this channel any more.
    pub(super) fn left(&self, client: &ClientInfo, channel: &str) {
        if session::of_changeset(channel).is_some() {
            self.keep(|(connection, followed)| *connection != client.connection || followed != channel);
        }
    }

    /// A connection has ended.
    pub(super) fn gone(&self, client: &ClientInfo) {
        self.keep(|(connection, _)| *connection != client.connection);
    }

    fn keep(&self, is_kept: impl Fn(&(u64, String)) -> bool) {
        lock(&self.0).retain(|_, who| {
            who.retain(&is_kept);
            !who.is_empty()
        });
    }

    fn sessions(&self) -> Vec<String> {
        lock(&self.0).keys().cloned().collect()
    }
}

impl Workshop {
    /// Something was done to these files: followed changesets of work trees that they are in are looked at again.
    pub(super) async fn touched(self: &Arc<Self>, uris: Vec<String>) {
        let sessions = self.followed.sessions();
        if sessions.is_empty() {
            return;
        }
        let find = move || uris.iter().filter_map(|uri| Some(real(&path_of(uri).ok()?))).collect();
        // The closure has no reason to panic; if it does, nothing was found.
        let places: BTreeSet<PathBuf> = tokio::task::spawn_blocking(find).await.unwrap_or_default();
        for session in sessions {
            let look = lock(&self.looks.all).get(&session).cloned();
            if look.is_some_and(|look| look.is_about(&places)) {
                self.want(&session, Wish::Work);
            }
        }
    }
}

impl Look {
    /// Whether one of these is in a directory of the session, or has one in it. While it is being looked at nobody knows.
    fn is_about(&self, places: &BTreeSet<PathBuf>) -> bool {
        let Ok(known) = self.known.try_lock() else { return !places.is_empty() };
        let is_about = |dir: &PathBuf| places.iter().any(|place| place.starts_with(dir) || dir.starts_with(place));
        known.dirs.iter().flatten().any(is_about)
    }
}

/// Where a file is, or was: links on the way there are resolved.
fn real(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or(OsStr::new(""));
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    parent.map_or_else(|| path.to_owned(), |parent| parent.join(name))
}
