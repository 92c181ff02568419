//! Keeping house: channels are saved, so that what they stand for may go; and sessions are erased.

use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS};
use ahp_types::notifications::SessionRemovedParams;

use super::desk::{Desk, Sheet};
use super::sessions;
use crate::error::MethodError;
use crate::log::{Log, ReadError, WriteError};
use crate::state::entry::CatalogueNotification;
use crate::state::{State, StateConfig, StateError};

/// A channel that could not be saved, and why.
pub type Unsaved = (Arc<str>, StateError);

/// Removes a session for good, from the list of sessions too; or a channel that belongs to none, such as a terminal's. Of the
/// root, which a host cannot do without, the past goes. How many entries went, or `None` if there is neither a session nor
/// a channel of this name. No host may have the log.
///
/// # Errors
/// The log cannot be read, or does not take it; or the channel belongs to a session, and goes with that one only.
pub async fn erase(log: &Arc<dyn Log>, session: &str) -> Result<Option<u64>, MethodError> {
    let state = State::open(Arc::clone(log), StateConfig::default()).await?;
    let channels = log.channels(Some(session)).await.map_err(unreadable)?;
    let listed = state.session(session).await?.is_some();
    if channels.is_empty() && !listed {
        return erase_channel(log, &state, session).await;
    }
    if listed {
        let removed = SessionRemovedParams { channel: ROOT_RESOURCE_URI.to_owned(), session: session.to_owned() };
        let desk = Desk::new(Arc::clone(log), Arc::clone(&state));
        let sheet = Sheet::new().notice(session, &CatalogueNotification::Removed(removed));
        let (_, count) = sessions::count(&desk).await?;
        let counted = sessions::active_sessions(count.saturating_sub(1));
        desk.put_seen(sheet.action(ROOT_RESOURCE_URI, &counted)).await?;
    }
    state.forget(session).await?;
    let gone = log.erase(session).await.map_err(|error| MethodError::new(INTERNAL_ERROR, error.to_string()))?;
    Ok(Some(gone))
}

async fn erase_channel(log: &Arc<dyn Log>, state: &State, channel: &str) -> Result<Option<u64>, MethodError> {
    let failed = |error: WriteError| MethodError::new(INTERNAL_ERROR, error.to_string());
    let all = log.channels(None).await.map_err(unreadable)?;
    let Some(info) = all.into_iter().find(|info| *info.channel == *channel) else { return Ok(None) };
    if let Some(session) = info.session {
        return Err(MethodError::new(INVALID_PARAMS, format!("{channel} belongs to {session}: erase that")));
    }
    if channel == ROOT_RESOURCE_URI {
        state.save(channel).await?;
        return log.trim(channel, info.last.saturating_add(1)).await.map(Some).map_err(failed);
    }
    state.forget_channel(channel).await;
    log.erase(channel).await.map(Some).map_err(failed)
}

/// Saves a snapshot of each channel that has changed since its last one, so that what it stands for may be trimmed;
/// returns those that could not be saved. No host may have the log.
///
/// # Errors
/// The log cannot be read.
pub async fn save_all(log: &Arc<dyn Log>) -> Result<Vec<Unsaved>, MethodError> {
    let state = State::open(Arc::clone(log), StateConfig::default()).await?;
    save_changed(log, &state).await.map_err(unreadable)
}

/// The same where a host has the log.
pub(super) async fn save_changed(log: &Arc<dyn Log>, state: &State) -> Result<Vec<Unsaved>, ReadError> {
    let mut unsaved = Vec::new();
    for info in log.channels(None).await? {
        if info.last > info.snapshot.unwrap_or(0)
            && let Err(error) = state.save(&info.channel).await
        {
            unsaved.push((info.channel, error));
        }
    }
    Ok(unsaved)
}

fn unreadable(error: ReadError) -> MethodError {
    MethodError::new(INTERNAL_ERROR, error.to_string())
}
