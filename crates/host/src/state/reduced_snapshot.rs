//! Snapshots for a client with a small message limit: large content by reference, and as many of the last turns as fit.

use super::by_reference::{self, ReferenceStats};
use super::cache::ChannelCache;
use super::rows::rows;
use super::snapshot::{ChannelSnapshot, SnapshotParts, TRIES, View};
use super::{StateError, run_blocking};

/// An upper bound for the bytes around the state, apart from the channel's name.
const AROUND: usize = 256;

/// After reading so much, no older turns are added: references are cheap to send, but not to make.
const MOST_READ: usize = 64 << 20;

/// A snapshot that was reduced to a limit.
#[derive(Debug, Clone)]
pub struct ReducedSnapshot {
    /// The snapshot.
    pub snapshot: ChannelSnapshot,
    /// What it contains by reference.
    pub references: ReferenceStats,
    /// Whether older turns are left out.
    pub is_windowed: bool,
}

pub(super) async fn reduced_snapshot(
    cache: &ChannelCache,
    channel: &str,
    view: View,
    max_bytes: usize,
) -> Result<Option<ReducedSnapshot>, StateError> {
    for attempt in 0..=TRIES {
        let (guard, parts) = SnapshotParts::take(cache, channel, view).await?;
        let (epoch, first) = (parts.epoch, guard.turns.range().start);
        // The chat is truncated so often that it stays locked this time.
        let guard = (attempt == TRIES).then_some(guard);
        let made = make(cache, channel, parts, first, max_bytes).await;
        if guard.is_some() || cache.lock(channel).await?.turns.epoch() == epoch {
            return made;
        }
    }
    Err(StateError::Gone)
}

/// The state without turns gets up to half of the bytes if it can be reduced that far, and each turn, from the newest on, up to
/// a quarter of what is left: so there is room for several turns.
async fn make(
    cache: &ChannelCache,
    channel: &str,
    parts: SnapshotParts,
    first: u64,
    max_bytes: usize,
) -> Result<Option<ReducedSnapshot>, StateError> {
    let Some(mut left) = max_bytes.checked_sub(AROUND + 2 * channel.len()) else { return Ok(None) };
    let (name, text) = (channel.to_owned(), parts.text.clone());
    let make = move || by_reference::state(&name, &text, left / 2).or_else(|| by_reference::state(&name, &text, left));
    let Some(head) = run_blocking(parts.text.len(), make).await? else { return Ok(None) };
    left = left.saturating_sub(head.text.len());
    let (mut turns, mut references, mut read) = (Vec::new(), head.references, 0);
    for number in parts.rows.clone().rev() {
        if read > MOST_READ {
            break;
        }
        let mut found = rows(&*cache.log, channel, number..number + 1, parts.unsaved.clone()).await?;
        let Some(row) = found.pop() else { return Err(StateError::Gone) };
        read += row.text.len();
        // For the comma.
        left = left.saturating_sub(1);
        let (name, text) = (channel.to_owned(), row.text.clone());
        let make =
            move || by_reference::turn(&name, &text, left / 4).or_else(|| by_reference::turn(&name, &text, left));
        let Some(turn) = run_blocking(row.text.len(), make).await? else { break };
        left = left.saturating_sub(turn.text.len());
        references = references.and(turn.references);
        turns.push(row.with_text(turn.text.to_bytes()));
    }
    // A client without any turn could not apply `chat/turnResume`.
    if turns.is_empty() && !parts.rows.is_empty() {
        return Ok(None);
    }
    let begins = turns.last().map_or(parts.rows.end, |row| row.number);
    turns.reverse();
    let is_windowed = !turns.is_empty() && begins > first;
    let snapshot = parts.with(head.text.to_bytes(), begins)?.join(channel, turns);
    Ok(Some(ReducedSnapshot { snapshot, references, is_windowed }))
}
