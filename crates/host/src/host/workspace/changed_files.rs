//! Files that were changed in a work tree: followed changesets of that work tree are scanned again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::scan_queue::{ScanScope, SessionScans};
use super::{Workspace, session_scan};
use crate::endpoint::ClientInfo;
use crate::files::path_of;
use crate::lock::lock;

/// Which connections follow changesets: by session, the connection and the changeset.
#[derive(Default)]
pub(super) struct ChangesetFollowers(Mutex<HashMap<String, HashSet<(u64, String)>>>);

impl ChangesetFollowers {
    /// A client has subscribed to a changeset.
    pub(super) fn add(&self, client: &ClientInfo, session: &str, changeset: &str) {
        let who = (client.connection, changeset.to_owned());
        lock(&self.0).entry(session.to_owned()).or_default().insert(who);
    }

    /// A client has unsubscribed from a channel.
    pub(super) fn remove(&self, client: &ClientInfo, channel: &str) {
        if session_scan::of_changeset(channel).is_some() {
            self.retain(|(connection, changeset_followers)| {
                *connection != client.connection || changeset_followers != channel
            });
        }
    }

    /// A connection has ended.
    pub(super) fn remove_connection(&self, client: &ClientInfo) {
        self.retain(|(connection, _)| *connection != client.connection);
    }

    fn retain(&self, is_kept: impl Fn(&(u64, String)) -> bool) {
        lock(&self.0).retain(|_, who| {
            who.retain(&is_kept);
            !who.is_empty()
        });
    }

    fn sessions(&self) -> Vec<String> {
        lock(&self.0).keys().cloned().collect()
    }
}

impl Workspace {
    /// These files were changed: scans the sessions whose followed changesets contain them.
    pub(super) async fn files_changed(self: &Arc<Self>, uris: Vec<String>) {
        let sessions = self.changeset_followers.sessions();
        if sessions.is_empty() {
            return;
        }
        let find = move || uris.iter().filter_map(|uri| Some(real_path(&path_of(uri).ok()?))).collect();
        // The closure has no reason to panic; if it does, nothing was found.
        let paths: BTreeSet<PathBuf> = tokio::task::spawn_blocking(find).await.unwrap_or_default();
        for session in sessions {
            let scans = lock(&self.scan_queue.sessions).get(&session).cloned();
            if scans.is_some_and(|scans| scans.contains(&paths)) {
                self.request_scan(&session, ScanScope::ChangesAndEffects);
            }
        }
    }
}

impl SessionScans {
    /// Whether one of these paths is in a directory of the session, or contains one. During a scan that is not known, and the
    /// answer is yes.
    fn contains(&self, paths: &BTreeSet<PathBuf>) -> bool {
        let Ok(result) = self.result.try_lock() else { return !paths.is_empty() };
        let overlaps = |dir: &PathBuf| paths.iter().any(|path| path.starts_with(dir) || dir.starts_with(path));
        result.dirs.iter().flatten().any(overlaps)
    }
}

/// The path of a file, which may not exist any more, with the symbolic links in its directory resolved.
fn real_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or(OsStr::new(""));
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    parent.map_or_else(|| path.to_owned(), |parent| parent.join(name))
}
