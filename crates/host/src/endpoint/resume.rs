//! What a client can be given: a replay of what it missed, or snapshots that fit what it takes.

use std::sync::Arc;

use breakbulk_proto::Message;
use tracing::{info, warn};

use super::Shared;
use super::list::Envelopes;
use super::views::{Shot, View, ViewError};
use super::wire::{self, Said};
use crate::log::{Channels, Seq, Tail};

/// Bytes around snapshots and between them that nobody counts.
const SLACK: u64 = 4096;
/// How much of the log is read in one step. Each is a way to another thread and back.
const PAGE: usize = 1 << 20;

/// Snapshots that together fit what a client takes.
#[derive(Debug, Default)]
pub(super) struct Shots {
    pub(super) taken: Vec<Taken>,
    /// Channels that are not there, or for which there is no room even in part.
    pub(super) missing: Vec<Arc<str>>,
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
}

impl Shots {
    /// Takes snapshots of these channels. If all of them are more than `limit`, the largest are cut to their last turns; if
    /// they still are, the largest are left out.
    pub(super) async fn take(shared: &Shared, channels: &[Arc<str>], at_least: Seq, limit: u64) -> Self {
        let mut shots = Self::default();
        let mut wanted = shots.measure(shared, channels).await;
        let room = limit.saturating_sub(SLACK);
        shots.cut(shared, &mut wanted, room).await;
        shots.leave_out(shared, &mut wanted, room);
        // In the order in which they were asked for.
        wanted.sort_by_key(|wanted| channels.iter().position(|channel| *channel == wanted.channel));
        for Wanted { channel, view, .. } in wanted {
            match shared.views.snapshot(&channel, view, at_least).await {
                Ok(shot) => shots.taken.push(Taken { channel, shot, is_windowed: view != View::FULL }),
                Err(error) => shots.miss(channel, &error),
            }
        }
        shots
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
                Ok(bytes) => wanted.push(Wanted { channel: channel.clone(), view: View::FULL, bytes }),
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

    /// Leaves the largest out, until the rest fit.
    fn leave_out(&mut self, shared: &Shared, wanted: &mut Vec<Wanted>, room: u64) {
        while total(wanted) > room {
            let largest = wanted.iter().enumerate().max_by_key(|(_, wanted)| wanted.bytes).map(|(at, _)| at);
            let Some(at) = largest else { return };
            let left = wanted.swap_remove(at);
            shared.counts.add("endpoint-left-out", 1);
            warn!(bytes = left.bytes, limit = room, "a channel is more than the client takes, and is left out");
            self.missing.push(left.channel);
        }
    }

    fn miss(&mut self, channel: Arc<str>, error: &ViewError) {
        if let ViewError::Failed(error) = error {
            warn!(code = error.code, "a channel cannot be shown: {error}");
        }
        self.missing.push(channel);
    }
}

/// What a client missed.
pub(super) struct Replay {
    /// Envelopes.
    pub(super) actions: Envelopes,
    /// Notifications that are no actions: they have no place in the answer, and follow it.
    pub(super) notices: Vec<Message>,
    /// Goes on where the replay ends.
    pub(super) tail: Box<dyn Tail>,
}

impl Replay {
    /// Reads what was missed since `after`; `None` if that is more than `limit` bytes, more than the configured count, not all
    /// there, or no longer all that there is to say.
    pub(super) async fn read(shared: &Shared, after: Seq, channels: &[Arc<str>], limit: u64) -> Option<Self> {
        let tail = shared.log.tail(after, Channels::only(channels.iter().cloned()));
        let mut replay = Self { actions: Envelopes::default(), notices: Vec::new(), tail };
        let mut bytes = SLACK;
        loop {
            let page = replay.tail.ready(PAGE).await;
            let page = page.inspect_err(|error| info!("no replay: {error}")).ok()?;
            if page.is_empty() {
                return Some(replay);
            }
            for entry in page {
                bytes = bytes.saturating_add(wide(entry.body.len())).saturating_add(32);
                match Said::of(&entry.body) {
                    Said::Action if wire::truncates(&entry.body) => return None,
                    Said::Action => replay.actions.push(entry.seq, &entry.body),
                    Said::Notice => replay.notices.push(wire::notice(&entry.body)),
                    Said::Initial => return None,
                    Said::Closed | Said::Nothing => {}
                }
                let count = replay.actions.len().saturating_add(replay.notices.len());
                if bytes > limit || count > shared.config.max_replay {
                    return None;
                }
            }
        }
    }
}

fn total(wanted: &[Wanted]) -> u64 {
    wanted.iter().fold(0_u64, |sum, wanted| sum.saturating_add(wanted.bytes))
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
