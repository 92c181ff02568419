//! Where a session or a chat works.

use std::path::PathBuf;

use ahp_types::commands::CompletionsParams;
use ahp_types::state::{SessionState, SnapshotState};
use breakbulk_proto::Message;

use super::{Workshop, json};
use crate::customize::complete;
use crate::endpoint::RawParams;
use crate::error::MethodError;
use crate::files::path_of;
use crate::state::StateError;
use crate::terminal::inside;

impl Workshop {
    /// `completions`: files of the directories that the session or chat works in, else of the roots.
    pub(super) async fn complete(&self, params: &RawParams) -> Result<Message, MethodError> {
        let params: CompletionsParams = params.parse()?;
        let dirs = self.directories(self.directories_named(&params.channel).await?).await;
        let dirs = if dirs.is_empty() { self.roots.clone() } else { dirs };
        json(&complete(dirs, params, self.complete.clone()).await?)
    }

    /// The session that a channel is, or belongs to.
    pub(super) async fn session_of(&self, channel: &str) -> Result<Option<String>, StateError> {
        let looked = self.desk.look(channel, |state, _| match state {
            SnapshotState::Session(_) => Some(true),
            SnapshotState::Chat(_) => Some(false),
            _ => None,
        });
        match looked.await {
            Ok(Some(true)) => return Ok(Some(channel.to_owned())),
            Ok(Some(false)) => {}
            Ok(None) | Err(StateError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        }
        Ok(self.desk.session_of(channel).await?.map(|session| session.to_string()))
    }

    /// Looks at a session; `None` if there is none.
    pub(super) async fn session<T>(
        &self,
        session: &str,
        look: impl FnOnce(&SessionState) -> T,
    ) -> Result<Option<T>, StateError> {
        self.desk.session(session, |session, _| look(session)).await
    }

    /// Of these URIs, the directories that are there and inside of the roots, in this order.
    pub(super) async fn directories(&self, uris: Vec<String>) -> Vec<PathBuf> {
        let roots = self.roots.clone();
        let find = move || {
            let found = uris.iter().filter_map(|uri| inside(&path_of(uri).ok()?, &roots).ok());
            found.collect()
        };
        // The closure has no reason to panic; if it does, nothing was found.
        tokio::task::spawn_blocking(find).await.unwrap_or_default()
    }

    /// What a session or chat says of where it works. A chat that says nothing works where its session does.
    async fn directories_named(&self, channel: &str) -> Result<Vec<String>, StateError> {
        let own = self.desk.look(channel, |state, _| match state {
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
