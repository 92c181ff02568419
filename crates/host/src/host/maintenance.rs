//! Maintenance of a log that no host uses: sessions are listed and erased, and channels are saved so that their entries can
//! be trimmed.

use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS};
use ahp_types::notifications::SessionRemovedParams;
use ahp_types::state::SessionSummary;

use super::log_writer::{LogWriter, Transaction};
use super::sessions;
use crate::error::MethodError;
use crate::log::{Log, ReadError, WriteError};
use crate::state::entry::CatalogueNotification;
use crate::state::{State, StateConfig, StateError};

/// A channel of which no snapshot could be saved.
#[derive(Debug)]
pub struct UnsavedChannel {
    /// The channel's URI.
    pub channel: Arc<str>,
    /// Why it was not saved.
    pub error: StateError,
}

/// The sessions in the catalogue.
///
/// # Errors
/// The log cannot be read.
pub async fn sessions(log: &Arc<dyn Log>) -> Result<Vec<SessionSummary>, StateError> {
    State::open(Arc::clone(log), StateConfig::default()).await?.sessions_with(|_| true).await
}

/// Erases a session with all of its channels, or a channel that belongs to no session, such as a terminal's. The root
/// channel is not erased, because a host cannot do without it: only its old entries are.
///
/// Returns how many entries were erased, or `None` if there is neither a session nor a channel of this name. No host may
/// use the log meanwhile.
///
/// # Errors
/// The log cannot be read or written, or the channel belongs to a session: it can be erased only together with that.
pub async fn erase(log: &Arc<dyn Log>, name: &str) -> Result<Option<u64>, MethodError> {
    let state = State::open(Arc::clone(log), StateConfig::default()).await?;
    let channels = log.channels(Some(name)).await.map_err(unreadable)?;
    let is_listed = state.session(name).await?.is_some();
    if channels.is_empty() && !is_listed {
        return erase_channel(log, &state, name).await;
    }
    if is_listed {
        let removed = SessionRemovedParams { channel: ROOT_RESOURCE_URI.to_owned(), session: name.to_owned() };
        let log_writer = LogWriter::new(Arc::clone(log), Arc::clone(&state));
        let transaction = Transaction::new().notice(name, &CatalogueNotification::Removed(removed));
        let (_, count) = sessions::session_count(&log_writer).await?;
        let counted = sessions::active_sessions(count.saturating_sub(1));
        log_writer.append_and_apply(transaction.action(ROOT_RESOURCE_URI, &counted)).await?;
    }
    state.forget(name).await?;
    let erased = log.erase(name).await.map_err(|error| MethodError::new(INTERNAL_ERROR, error.to_string()))?;
    Ok(Some(erased))
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

/// Saves a snapshot of each channel that has changed since its last one, so that the entries before it can be trimmed;
/// returns the channels that could not be saved. No host may use the log meanwhile.
///
/// # Errors
/// The log cannot be read.
pub async fn save_all(log: &Arc<dyn Log>) -> Result<Vec<UnsavedChannel>, MethodError> {
    let state = State::open(Arc::clone(log), StateConfig::default()).await?;
    save_changed(log, &state).await.map_err(unreadable)
}

/// As [`save_all`], with the state of the host that uses the log.
pub(super) async fn save_changed(log: &Arc<dyn Log>, state: &State) -> Result<Vec<UnsavedChannel>, ReadError> {
    let mut unsaved = Vec::new();
    for info in log.channels(None).await? {
        if info.last > info.snapshot.unwrap_or(0)
            && let Err(error) = state.save(&info.channel).await
        {
            unsaved.push(UnsavedChannel { channel: info.channel, error });
        }
    }
    Ok(unsaved)
}

fn unreadable(error: ReadError) -> MethodError {
    MethodError::new(INTERNAL_ERROR, error.to_string())
}
