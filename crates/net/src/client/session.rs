//! The state of a client that outlives connections: the cursor, what each channel has applied, what is followed, what was dispatched.

use std::collections::BTreeMap;

use breakbulk_proto::Message;
use breakbulk_proto::ahp::Applied;
use tokio::sync::oneshot;
use tracing::warn;

use super::error::RequestError;
use super::event::{Event, LostAction};
use super::event_feed::EventFeed;
use super::unconfirmed::UnconfirmedActions;
use super::wire::{ActionEnvelope, InitializeResult, ReconnectResult, SeqUse, Snapshot};

/// What outlives connections.
#[derive(Debug)]
pub(super) struct Session {
    client_id: String,
    resend: bool,
    /// The seq to resume from; `None` before the first `initialize`, and when the host has refused to resume.
    pub(super) cursor: Option<u64>,
    applied: Applied,
    channels: BTreeMap<String, Channel>,
    pub(super) unconfirmed: UnconfirmedActions,
    pub(super) feed: EventFeed,
}

/// A channel that is to be followed.
#[derive(Debug, Default)]
struct Channel {
    /// Whether the host has confirmed it. Then it can be resumed.
    is_followed: bool,
    waiters: Vec<Waiter>,
}

/// Tells a caller that the channel is followed, or why not.
pub(super) type Waiter = oneshot::Sender<Result<(), RequestError>>;

impl Session {
    pub(super) fn new(client_id: String, resend: bool, subscriptions: &[String], feed: EventFeed) -> Self {
        Self {
            client_id,
            resend,
            cursor: None,
            applied: Applied::default(),
            channels: subscriptions.iter().map(|name| (name.clone(), Channel::default())).collect(),
            unconfirmed: UnconfirmedActions::default(),
            feed,
        }
    }

    /// Every channel that is to be followed.
    pub(super) fn wanted(&self) -> Vec<String> {
        self.channels.keys().cloned().collect()
    }

    /// The channels that can be resumed.
    pub(super) fn followed(&self) -> Vec<String> {
        self.names(true)
    }

    /// The channels that are to be followed, and that the host has not confirmed.
    pub(super) fn unfollowed(&self) -> Vec<String> {
        self.names(false)
    }

    /// An action's last frame is on the link.
    pub(super) fn sent(&mut self, number: u64) {
        self.unconfirmed.sent(number, |channel| self.channels.contains_key(channel));
    }

    /// A channel is to be followed from now on.
    pub(super) fn want(&mut self, channel: &str, waiter: Waiter) {
        self.channels.entry(channel.to_owned()).or_default().waiters.push(waiter);
    }

    /// A channel is to be followed no more.
    pub(super) fn unwant(&mut self, channel: &str) {
        self.applied.forget(channel);
        let waiters = self.channels.remove(channel).map(|channel| channel.waiters);
        waiters.into_iter().flatten().for_each(|waiter| drop(waiter.send(Err(RequestError::Withdrawn))));
    }

    /// A conversation begins. Returns the seq up to which everything is known.
    pub(super) fn started(&mut self, result: Message, initialized: InitializeResult) -> u64 {
        self.applied = Applied::default();
        self.feed.push(Event::Started { result });
        let seq = lowest(&initialized.snapshots).map_or(initialized.seq, |lowest| lowest.min(initialized.seq));
        let names = self.wanted();
        names.iter().for_each(|name| self.follow(name));
        self.replace(initialized.snapshots);
        seq
    }

    /// The conversation goes on. Returns the seq up to which everything is known.
    pub(super) fn resumed(&mut self, resumption: ReconnectResult) -> u64 {
        self.feed.push(Event::Resumed);
        let cursor = self.cursor.unwrap_or_default();
        let seq = match resumption {
            ReconnectResult::Replay { actions, missing } => {
                let highest = actions.iter().map(|action| action.seq).max();
                actions.into_iter().for_each(|action| self.action(action));
                self.miss(missing);
                let is_followed = |name: &str| self.channels.get(name).is_some_and(|channel| channel.is_followed);
                let lost = self.unconfirmed.replayed(self.resend, is_followed);
                self.lose(lost);
                highest.map_or(cursor, |highest| highest.max(cursor))
            }
            ReconnectResult::Snapshots(snapshots) => {
                let covered = |name: &String| snapshots.iter().any(|snapshot| snapshot.channel == *name);
                // A channel without state has no snapshot. So it is subscribed to again, to see whether it still exists.
                let uncovered = self.channels.iter_mut().filter(|(name, _)| !covered(name));
                uncovered.for_each(|(_, channel)| channel.is_followed = false);
                // The snapshots of the host count, even if its seqs began anew and are lower.
                self.applied = Applied::default();
                let seq = lowest(&snapshots).unwrap_or(cursor);
                self.replace(snapshots);
                seq
            }
        };
        // Callers may have subscribed once more to a followed channel, and the answer was lost.
        self.followed().iter().for_each(|name| self.follow(name));
        seq
    }

    /// The answer to a `subscribe`.
    pub(super) fn subscribed(&mut self, name: &str, outcome: Result<Message, RequestError>) {
        match outcome {
            Ok(result) => {
                self.follow(name);
                if let Some(snapshot) = Snapshot::of_subscribe(&result) {
                    self.snapshot(snapshot);
                }
            }
            Err(error) => {
                let Some(channel) = self.channels.remove(name) else { return };
                self.applied.forget(name);
                // No caller waits for it, so the application has to be told: it was followed before.
                if channel.waiters.is_empty() {
                    self.miss(vec![name.to_owned()]);
                }
                channel.waiters.into_iter().for_each(|waiter| drop(waiter.send(Err(error.clone()))));
            }
        }
    }

    /// An action, new or not.
    pub(super) fn action(&mut self, envelope: ActionEnvelope) {
        let ActionEnvelope { channel, seq, origin, seq_use, text } = envelope;
        let own = origin.filter(|(client, _)| *client == self.client_id).map(|(_, number)| number);
        if let Some(number) = own {
            self.unconfirmed.shown(number, &channel);
        }
        // A channel that is not followed is not replayed, so nothing has to be remembered of it.
        let is_free = seq_use == SeqUse::Rejected || !self.channels.contains_key(&channel);
        if is_free || self.applied.admit(&channel, seq) || seq_use == SeqUse::OlderTurns {
            self.feed.push(Event::Action { channel, seq, own, envelope: text });
        }
    }

    /// Reports actions that are lost.
    pub(super) fn lose(&mut self, lost: impl IntoIterator<Item = LostAction>) {
        for lost in lost {
            warn!(bytes = lost.action.len(), number = lost.client_seq, why = ?lost.why, "a dispatched action is lost");
            self.feed.push(Event::Lost(lost));
        }
    }

    /// New states, which replace what was known.
    fn replace(&mut self, snapshots: Vec<Snapshot>) {
        let lost = self.unconfirmed.replaced(&snapshots, self.resend);
        snapshots.into_iter().for_each(|snapshot| self.snapshot(snapshot));
        self.lose(lost);
    }

    fn snapshot(&mut self, snapshot: Snapshot) {
        let Snapshot { channel, from_seq, text: snapshot } = snapshot;
        if !self.channels.contains_key(&channel) || self.applied.snapshot(&channel, from_seq) {
            self.feed.push(Event::Snapshot { channel, from_seq, snapshot });
        }
    }

    /// The host has confirmed that a channel is followed. Callers that wait for it are told.
    fn follow(&mut self, name: &str) {
        if let Some(channel) = self.channels.get_mut(name) {
            channel.is_followed = true;
            channel.waiters.drain(..).for_each(|waiter| drop(waiter.send(Ok(()))));
        }
    }

    /// The host can no longer offer these channels.
    fn miss(&mut self, channels: Vec<String>) {
        if channels.is_empty() {
            return;
        }
        channels.iter().for_each(|channel| self.unwant(channel));
        let lost = self.unconfirmed.missing(&channels);
        self.feed.push(Event::Missing { channels });
        self.lose(lost);
    }

    fn names(&self, followed: bool) -> Vec<String> {
        let names = self.channels.iter().filter(|(_, channel)| channel.is_followed == followed);
        names.map(|(name, _)| name.clone()).collect()
    }
}

fn lowest(snapshots: &[Snapshot]) -> Option<u64> {
    snapshots.iter().map(|snapshot| snapshot.from_seq).min()
}
