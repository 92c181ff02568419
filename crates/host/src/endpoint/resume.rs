//! What a client can be given: a replay of what it missed, or snapshots that fit what it takes.

use std::sync::Arc;

use breakbulk_proto::Message;
use tracing::{info, warn};

use super::Shared;
use super::list::Envelopes;
use super::memory::{AnswerMemory, NoMemory, Payment};
use super::room::{Takes, narrow, room, too_large, wide};
use super::snapshots::Snapshots;
use super::views::{Moved, Shot, Tight, View, ViewError};
use super::wire::{self, Said};
use crate::log::{Channels, Entry, Seq, Tail};
use crate::state::slim::{self, Slim};

/// Bytes around snapshots and between them that nobody counts.
const SLACK: u64 = 4096;
/// How much of the log is read in one step. Each is a way to another thread and back.
const PAGE: usize = 1 << 20;
/// How much is read before there is memory for it.
const FIRST_PAGE: usize = 48 << 10;
/// What an action in a replay has around it.
const ITEM: u64 = 32;

/// Snapshots that together fit what a client takes.
#[derive(Debug, Default)]
pub(super) struct Shots {
    pub(super) taken: Vec<Taken>,
    /// Channels that are not there, or for which there is no room even in part.
    pub(super) missing: Vec<Arc<str>>,
    /// What is in them by reference.
    pub(super) moved: Moved,
}

/// A snapshot that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) channel: Arc<str>,
    pub(super) shot: Shot,
    /// It is cut to the last turns.
    pub(super) is_windowed: bool,
}

/// A channel that is wanted, in the view that is chosen for it.
struct Wanted {
    channel: Arc<str>,
    view: View,
    bytes: u64,
    /// It was made to fit already.
    tight: Option<Tight>,
}

impl Shots {
    /// Takes snapshots of these channels. If all of them are more than `limit`, the largest are cut to their last turns; if
    /// they still are, what is large in the largest goes by reference; and if they still are, the largest are left out.
    ///
    /// # Errors
    /// There was no memory for them in time.
    pub(super) async fn take(
        shared: &Shared,
        memory: &AnswerMemory,
        channels: &[Arc<str>],
        at_least: Seq,
        limit: u64,
    ) -> Result<Self, NoMemory> {
        let (mut shots, mut own) = (Self::default(), 0);
        let mut wanted = shots.measure(shared, channels).await;
        let room = limit.saturating_sub(SLACK);
        shots.cut(shared, &mut wanted, room).await;
        shots.tighten(shared, memory, &mut wanted, at_least, room, &mut own).await?;
        // In the order in which they were asked for.
        wanted.sort_by_key(|wanted| channels.iter().position(|channel| *channel == wanted.channel));
        for Wanted { channel, view, tight, .. } in wanted {
            if let Some(Tight { shot, moved, is_windowed }) = tight {
                shots.moved = shots.moved.and(moved);
                shots.taken.push(Taken { channel, shot, is_windowed });
                continue;
            }
            match Snapshots::take(shared, memory, &channel, view, at_least, &mut own).await {
                Ok(shot) => shots.taken.push(Taken { channel, shot, is_windowed: view != View::FULL }),
                Err(ViewError::NoMemory(error)) => return Err(error),
                Err(error) => shots.miss(channel, &error),
            }
        }
        Ok(shots)
    }

    async fn measure(&mut self, shared: &Shared, channels: &[Arc<str>]) -> Vec<Wanted> {
        let mut wanted: Vec<Wanted> = Vec::new();
        for (n, channel) in channels.iter().enumerate() {
            if channels.iter().take(n).any(|before| before == channel) {
                continue;
            }
            if wanted.len() >= shared.config.max_subscriptions {
                self.missing.push(channel.clone());
                continue;
            }
            match shared.views.size_of(channel, View::FULL).await {
                Ok(bytes) => {
                    wanted.push(Wanted { channel: channel.clone(), view: View::FULL, bytes, tight: None });
                }
                Err(error) => self.miss(channel.clone(), &error),
            }
        }
        wanted.sort_by_key(|wanted| std::cmp::Reverse(wanted.bytes));
        wanted
    }

    /// Cuts the largest to their last turns, until all fit.
    async fn cut(&mut self, shared: &Shared, wanted: &mut [Wanted], room: u64) {
        let window = View::window(shared.config.window_turns);
        for at in 0..wanted.len() {
            if total(wanted) <= room {
                return;
            }
            let Some(large) = wanted.get_mut(at) else { return };
            if let Ok(bytes) = shared.views.size_of(&large.channel, window).await
                && bytes < large.bytes
            {
                shared.counts.add("endpoint-windowed", 1);
                (large.view, large.bytes) = (window, bytes);
            }
        }
    }

    /// Makes the largest fit what the others leave, or an equal share; those that cannot be are left out.
    async fn tighten(
        &mut self,
        shared: &Shared,
        memory: &AnswerMemory,
        wanted: &mut Vec<Wanted>,
        at_least: Seq,
        room: u64,
        own: &mut u64,
    ) -> Result<(), NoMemory> {
        while total(wanted) > room {
            let share = room / wide(wanted.len().max(1));
            let largest = wanted.iter().enumerate().max_by_key(|(_, wanted)| wanted.bytes).map(|(at, _)| at);
            let Some(at) = largest else { break };
            let mut large = wanted.swap_remove(at);
            let left = room.saturating_sub(total(wanted)).max(share);
            let tight = if large.tight.is_none() {
                fitted(shared, memory, &large.channel, large.view, at_least, left, own).await
            } else {
                Ok(None)
            };
            if let Err(ViewError::NoMemory(error)) = tight {
                return Err(error);
            }
            if let Ok(Some(tight)) = tight {
                (large.bytes, large.tight) = (wide(tight.shot.body.len()), Some(tight));
                wanted.push(large);
                continue;
            }
            shared.counts.add("endpoint-left-out", 1);
            warn!(
                bytes = large.bytes,
                limit = room,
                "a channel is left out of an answer: its snapshot is larger than what the client takes"
            );
            self.missing.push(large.channel);
        }
        Ok(())
    }

    fn miss(&mut self, channel: Arc<str>, error: &ViewError) {
        if let ViewError::Failed(error) = error {
            warn!(code = error.code, "a channel cannot be shown: {error}");
        }
        self.missing.push(channel);
    }
}

/// A snapshot for a `subscribe`.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) shot: Shot,
    /// What is in it by reference.
    pub(super) moved: Moved,
    /// It has only the last turns.
    pub(super) is_windowed: bool,
}

impl Shown {
    /// Takes a snapshot of a channel. If that is more than `limit`, it is cut to the last turns; if it still is, what is large
    /// goes by reference; and if it still is, there is none.
    pub(super) async fn take(
        shared: &Shared,
        memory: &AnswerMemory,
        channel: &Arc<str>,
        view: View,
        at_least: Seq,
        limit: u64,
    ) -> Result<Self, ViewError> {
        let (room, views) = (limit.saturating_sub(SLACK), &shared.views);
        let size = views.size_of(channel, view).await?;
        let whole = |shot, view| Self { shot, moved: Moved::default(), is_windowed: view != View::FULL };
        if size <= room {
            return Ok(whole(Snapshots::take(shared, memory, channel, view, at_least, &mut 0).await?, view));
        }
        let turns = shared.config.window_turns;
        let window = View::window(view.turns.map_or(turns, |wanted| wanted.min(turns)));
        if views.size_of(channel, window).await? <= room {
            shared.counts.add("endpoint-windowed", 1);
            return Ok(whole(Snapshots::take(shared, memory, channel, window, at_least, &mut 0).await?, window));
        }
        match fitted(shared, memory, channel, window, at_least, room, &mut 0).await? {
            Some(Tight { shot, moved, is_windowed }) => Ok(Self { shot, moved, is_windowed }),
            None => Err(too_large(size, limit).into()),
        }
    }
}

/// What a client missed.
pub(super) struct Replay {
    /// Envelopes.
    pub(super) actions: Envelopes,
    /// Notifications that are no actions: they have no place in the answer, and follow it.
    pub(super) notices: Vec<Message>,
    /// What is in them by reference.
    pub(super) moved: Moved,
    /// Goes on where the replay ends.
    pub(super) tail: Box<dyn Tail>,
    /// What pays for it, if it is long.
    pub(super) payment: Option<Payment>,
}

impl Replay {
    /// Reads what was missed since `after`; `None` if that is more than half of what the client takes in one message, more than
    /// the configured count, not all there, or no longer all that there is to say. What the client could not have taken
    /// alone goes by reference, and counts as what is left of it.
    ///
    /// A little is read as it is; before more is, there is memory for all that it can become.
    ///
    /// # Errors
    /// There was no memory for it in time.
    pub(super) async fn read(
        shared: &Shared,
        memory: &AnswerMemory,
        after: Seq,
        channels: &[Arc<str>],
        takes: Takes,
    ) -> Result<Option<Self>, NoMemory> {
        let tail = shared.log.tail(after, Channels::only(channels.iter().cloned()));
        let most = (takes.likely / 2).saturating_sub(SLACK);
        let first =
            Self { actions: Envelopes::default(), notices: Vec::new(), moved: Moved::default(), tail, payment: None };
        let mut left = most;
        let Some((replay, is_all)) = first.read_some(shared, FIRST_PAGE, &mut left, takes).await else {
            return Ok(None);
        };
        if is_all {
            return Ok(Some(replay));
        }
        let payment = memory.reserve(narrow(most)).await?;
        let Some((mut replay, _)) = replay.read_some(shared, usize::MAX, &mut left, takes).await else {
            return Ok(None);
        };
        replay.payment = Some(payment);
        Ok(Some(replay))
    }

    /// Reads up to so many bytes, beside the last entry; whether that was all. `None` as above.
    async fn read_some(mut self, shared: &Shared, bytes: usize, left: &mut u64, takes: Takes) -> Option<(Self, bool)> {
        let alone = room(takes.most);
        let (replay, mut read) = (&mut self, 0_usize);
        loop {
            if read >= bytes {
                return Some((self, false));
            }
            let page = replay.tail.ready(PAGE.min(bytes)).await;
            let page = page.inspect_err(|error| info!("no replay: {error}")).ok()?;
            if page.is_empty() {
                return Some((self, true));
            }
            for mut entry in page {
                read = read.saturating_add(entry.body.len());
                *left = left.checked_sub(ITEM)?;
                if entry.body.len() > alone {
                    let slim = slimmed(&entry, *left).await?;
                    (entry.body, replay.moved) = (slim.text.to_bytes(), replay.moved.and(slim.moved));
                }
                *left = left.checked_sub(wide(entry.body.len()))?;
                match Said::of(&entry.body) {
                    Said::Action if wire::truncates(&entry.body) => return None,
                    Said::Action => replay.actions.push(entry.seq, &entry.body),
                    Said::Notice => replay.notices.push(wire::notice(&entry.body)),
                    Said::Initial => return None,
                    Said::Closed | Said::Nothing => {}
                }
                if replay.actions.len().saturating_add(replay.notices.len()) > shared.config.max_replay {
                    return None;
                }
            }
        }
    }
}

/// A snapshot in at most so many bytes, if there is one, when there is memory for it.
async fn fitted(
    shared: &Shared,
    memory: &AnswerMemory,
    channel: &str,
    view: View,
    at_least: Seq,
    most: u64,
    own: &mut u64,
) -> Result<Option<Tight>, ViewError> {
    let payment = {
        let mut turn = memory.turn();
        loop {
            if let Some(payment) = turn.try_reserve_beside(narrow(most), *own) {
                break payment;
            }
            turn.wait(narrow(most)).await?;
        }
    };
    *own = own.saturating_add(most);
    let tight = shared.views.tight(channel, view, at_least, narrow(most)).await?;
    Ok(tight.map(|Tight { shot, moved, is_windowed }| {
        let shot = Shot { body: payment.attach(&shot.body), ..shot };
        Tight { shot, moved, is_windowed }
    }))
}

/// An action in at most so many bytes. It is large, and has a thread of its own.
async fn slimmed(entry: &Entry, room: u64) -> Option<Slim> {
    let (channel, body) = (Arc::clone(&entry.channel), entry.body.clone());
    let slim = tokio::task::spawn_blocking(move || slim::entry(&channel, &body, narrow(room)));
    slim.await.ok().flatten()
}

fn total(wanted: &[Wanted]) -> u64 {
    wanted.iter().fold(0_u64, |sum, wanted| sum.saturating_add(wanted.bytes))
}
