//! A snapshot for somebody who takes little: large content by reference, and of the last turns as many as fit.

use super::by_reference::{self, ReferenceStats};
use super::cache::ChannelCache;
use super::rows::rows;
use super::snapshot::{ChannelSnapshot, SnapshotParts, TRIES, View};
use super::{StateError, run_blocking};

/// Bytes around the state beside the channel's name: they are counted, not measured.
const AROUND: usize = 256;

/// When so much was read, no older turns are looked for: references are cheap to send, and not to make.
const MOST_READ: usize = 64 << 20;

/// A snapshot that was made to fit.
#[derive(Debug, Clone)]
pub struct ReducedSnapshot {
    /// The snapshot.
    pub snapshot: ChannelSnapshot,
    /// What is in it by reference.
    pub references: ReferenceStats,
    /// Older turns are left out.
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
        // Whoever truncates that often waits.
        let guard = (attempt == TRIES).then_some(guard);
        let made = make(cache, channel, parts, first, max_bytes).await;
        if guard.is_some() || cache.lock(channel).await?.turns.epoch() == epoch {
            return made;
        }
    }
    Err(StateError::Gone)
}

/// The state takes up to half of the room if it can be made that short, and each turn, from the newest on, up to a quarter of
/// what is left: a little of the past is worth more than all of the present.
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
        // And a comma.
        left = left.saturating_sub(1);
        let (name, text) = (channel.to_owned(), row.text.clone());
        let make =
            move || by_reference::turn(&name, &text, left / 4).or_else(|| by_reference::turn(&name, &text, left));
        let Some(turn) = run_blocking(row.text.len(), make).await? else { break };
        left = left.saturating_sub(turn.text.len());
        references = references.and(turn.references);
        turns.push(row.with_text(turn.text.to_bytes()));
    }
    // Without any turn, a client could not follow one that is resumed.
    if turns.is_empty() && !parts.rows.is_empty() {
        return Ok(None);
    }
    let begins = turns.last().map_or(parts.rows.end, |row| row.number);
    turns.reverse();
    let is_windowed = !turns.is_empty() && begins > first;
    let snapshot = parts.with(head.text.to_bytes(), begins)?.join(channel, turns);
    Ok(Some(ReducedSnapshot { snapshot, references, is_windowed }))
}
