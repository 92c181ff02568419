//! The working directories of sessions and chats.

use std::path::PathBuf;

use ahp_types::commands::CompletionsParams;
use ahp_types::state::{SessionState, SnapshotState};
use breakbulk_proto::Message;

use super::{Workspace, json};
use crate::customize::complete;
use crate::endpoint::RawParams;
use crate::error::MethodError;
use crate::files::path_of;
use crate::state::StateError;
use crate::terminal::inside;

impl Workspace {
    /// `completions`: files in the working directories of the session or chat; without any, in the roots.
    pub(super) async fn complete(&self, params: &RawParams) -> Result<Message, MethodError> {
        let params: CompletionsParams = params.parse()?;
        let dirs = self.directories(self.directories_named(&params.channel).await?).await;
        let dirs = if dirs.is_empty() { self.roots.clone() } else { dirs };
        json(&complete(dirs, params, self.complete.clone()).await?)
    }

    /// How many completions an answer may have.
    pub(in crate::host) const fn max_completions(&self) -> usize {
        self.complete.max_items
    }

    /// The session that a channel is, or belongs to.
    pub(super) async fn session_of(&self, channel: &str) -> Result<Option<String>, StateError> {
        let is_session = self.log_writer.read(channel, |state, _| match state {
            SnapshotState::Session(_) => Some(true),
            SnapshotState::Chat(_) => Some(false),
            _ => None,
        });
        match is_session.await {
            Ok(Some(true)) => return Ok(Some(channel.to_owned())),
            Ok(Some(false)) => {}
            Ok(None) | Err(StateError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        }
        Ok(self.log_writer.session_of(channel).await?.map(|session| session.to_string()))
    }

    /// Reads a session's state; `None` if there is no such session.
    pub(super) async fn session<T>(
        &self,
        session: &str,
        read: impl FnOnce(&SessionState) -> T,
    ) -> Result<Option<T>, StateError> {
        self.log_writer.session(session, |session, _| read(session)).await
    }

    /// The paths of those URIs that are existing directories inside of the roots, in this order.
    pub(in crate::host) async fn directories(&self, uris: Vec<String>) -> Vec<PathBuf> {
        let roots = self.roots.clone();
        let find = move || {
            let found = uris.iter().filter_map(|uri| inside(&path_of(uri).ok()?, &roots).ok());
            found.collect()
        };
        // The closure does not panic; if it ever does, there are no directories.
        tokio::task::spawn_blocking(find).await.unwrap_or_default()
    }

    /// The working directories that a session or chat names. A chat that names none works in those of its session.
    pub(in crate::host) async fn directories_named(&self, channel: &str) -> Result<Vec<String>, StateError> {
        let own = self.log_writer.read(channel, |state, _| match state {
            SnapshotState::Chat(chat) => chat.working_directories.clone(),
            _ => None,
        });
        match own.await {
            Ok(Some(own)) => return Ok(own),
            Ok(None) => {}
            Err(StateError::NotFound) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        let Some(session) = self.session_of(channel).await? else { return Ok(Vec::new()) };
        let named = self.session(&session, |session| session.working_directories.clone()).await?;
        Ok(named.flatten().unwrap_or_default())
    }
}
