//! Loads a channel from the log: its saved snapshot, and the entries after that.

use std::sync::Arc;

use tracing::warn;

use super::StateError;
use super::channel::{Channel, VERSION};
use super::kind::empty_root;
use super::turns::TurnRows;
use crate::log::{DamagedRecord, Log, ReadError, Seq, Snapshot};

/// How many bytes are read at once.
const PAGE: usize = 1 << 20;

/// Larger than every seq, and representable as a signed number.
const END: Seq = 1 << 62;

/// A channel as the log has it now.
///
/// A snapshot of another version of the reducers is not used: the channel is replayed from its first entry. If that was
/// trimmed, the snapshot is used anyway, with a warning. A damaged snapshot counts as none.
///
/// A damaged entry is skipped, and a notice takes its place; see [`Channel::skip_damaged`]. If the store itself is broken, the
/// channel keeps the state before that, and takes no more actions.
pub(super) async fn load(log: &dyn Log, uri: &Arc<str>) -> Result<Channel, StateError> {
    let (usable, other) = match log.snapshot(uri).await {
        Ok(Some(snapshot)) if snapshot.version == VERSION => (Some(snapshot), None),
        Ok(other) => (None, other),
        Err(ReadError::Damaged(record)) => {
            warn!(channel = %uri, %record, "a snapshot is damaged; the state is computed from the entries that the log still has");
            (None, None)
        }
        Err(error) => return Err(error.into()),
    };
    let mut channel = match usable {
        Some(snapshot) => restored(uri, &snapshot)?,
        None => first(log, uri, other).await?,
    };
    replay(log, &mut channel).await?;
    Ok(channel)
}

/// A channel without a usable snapshot.
async fn first(log: &dyn Log, uri: &Arc<str>, other: Option<Snapshot>) -> Result<Channel, StateError> {
    match (log.read(uri, 1..END, 1).await, other) {
        (Err(ReadError::Trimmed { .. }), Some(snapshot)) => {
            warn!(channel = %uri, version = snapshot.version, "a snapshot of another version of the reducers is used: the entries before it are trimmed");
            restored(uri, &snapshot)
        }
        (Err(ReadError::Trimmed { .. }), None) => {
            Err(StateError::Damaged(DamagedRecord::Snapshot { channel: uri.clone() }))
        }
        (_, other) => {
            if let Some(snapshot) = other {
                warn!(channel = %uri, version = snapshot.version, "a snapshot of another version of the reducers is skipped");
            }
            let mut channel = Channel::new(uri.clone(), TurnRows::from_scratch());
            channel.state = (**uri == *ahp_types::ROOT_RESOURCE_URI).then(empty_root);
            Ok(channel)
        }
    }
}

fn restored(uri: &Arc<str>, snapshot: &Snapshot) -> Result<Channel, StateError> {
    let mut channel = Channel::new(uri.clone(), TurnRows::new());
    channel.restore(snapshot.seq, &snapshot.body)?;
    Ok(channel)
}

/// Applies all later entries that the log has now.
pub(super) async fn replay(log: &dyn Log, channel: &mut Channel) -> Result<(), StateError> {
    let uri = channel.uri.clone();
    loop {
        let page = match log.read(&uri, channel.seq + 1..END, PAGE).await {
            Ok(page) if page.is_empty() => return Ok(()),
            Ok(page) => page,
            Err(ReadError::Damaged(DamagedRecord::Entry { seq })) if channel.state.is_some() && seq > channel.seq => {
                warn!(channel = %uri, seq, "a damaged entry is skipped");
                channel.skip_damaged(seq)?;
                continue;
            }
            Err(ReadError::Damaged(record)) => {
                warn!(channel = %uri, %record, "a channel ends at a damaged record");
                channel.damaged = Some(record);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        for entry in page {
            channel.apply(log, entry).await?;
        }
    }
}
