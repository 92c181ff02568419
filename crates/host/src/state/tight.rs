//! A snapshot for somebody who takes little: large content by reference, and of the last turns as many as fit.

use super::rows::rows;
use super::shot::{Cut, Shot, TRIES, View};
use super::slim::{self, Moved};
use super::slot::Slots;
use super::{StateError, heavy};

/// Bytes around the state beside the channel's name: they are counted, not measured.
const AROUND: usize = 256;

/// When so much was read, no older turns are looked for: references are cheap to send, and not to make.
const MOST_READ: usize = 64 << 20;

/// A snapshot that was made to fit.
#[derive(Debug, Clone)]
pub struct Tight {
    /// The snapshot.
    pub shot: Shot,
    /// What is in it by reference.
    pub moved: Moved,
    /// Older turns are left out.
    pub is_windowed: bool,
}

pub(super) async fn tight(slots: &Slots, channel: &str, view: View, room: usize) -> Result<Option<Tight>, StateError> {
    for attempt in 0..=TRIES {
        let (held, cut) = Cut::take(slots, channel, view).await?;
        let (epoch, first) = (cut.epoch, held.turns.range().start);
        // Whoever truncates that often waits.
        let held = (attempt == TRIES).then_some(held);
        let made = make(slots, channel, cut, first, room).await;
        if held.is_some() || slots.hold(channel).await?.turns.epoch() == epoch {
            return made;
        }
    }
    Err(StateError::Gone)
}

/// The state takes up to half of the room if it can be made that short, and each turn, from the newest on, up to a quarter of
/// what is left: a little of the past is worth more than all of the present.
async fn make(slots: &Slots, channel: &str, cut: Cut, first: u64, room: usize) -> Result<Option<Tight>, StateError> {
    let Some(mut left) = room.checked_sub(AROUND + 2 * channel.len()) else { return Ok(None) };
    let (name, text) = (channel.to_owned(), cut.text.clone());
    let make = move || slim::state(&name, &text, left / 2).or_else(|| slim::state(&name, &text, left));
    let Some(head) = heavy(cut.text.len(), make).await? else { return Ok(None) };
    left = left.saturating_sub(head.text.len());
    let (mut turns, mut moved, mut read) = (Vec::new(), head.moved, 0);
    for number in cut.rows.clone().rev() {
        if read > MOST_READ {
            break;
        }
        let mut found = rows(&*slots.log, channel, number..number + 1, cut.fresh.clone()).await?;
        let Some(row) = found.pop() else { return Err(StateError::Gone) };
        read += row.text.len();
        // And a comma.
        left = left.saturating_sub(1);
        let (name, text) = (channel.to_owned(), row.text.clone());
        let make = move || slim::turn(&name, &text, left / 4).or_else(|| slim::turn(&name, &text, left));
        let Some(turn) = heavy(row.text.len(), make).await? else { break };
        left = left.saturating_sub(turn.text.len());
        moved = moved.and(turn.moved);
        turns.push(row.with_text(turn.text.to_bytes()));
    }
    // Without any turn, a client could not follow one that is resumed.
    if turns.is_empty() && !cut.rows.is_empty() {
        return Ok(None);
    }
    let begins = turns.last().map_or(cut.rows.end, |row| row.number);
    turns.reverse();
    let is_windowed = !turns.is_empty() && begins > first;
    let shot = cut.with(head.text.to_bytes(), begins)?.join(channel, turns);
    Ok(Some(Tight { shot, moved, is_windowed }))
}
