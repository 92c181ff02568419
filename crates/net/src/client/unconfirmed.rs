//! Dispatched actions that the host has not echoed yet. Decides which are sent again after a reconnect, and which are lost.

use std::collections::VecDeque;

use breakbulk_proto::Message;
use breakbulk_proto::json::Path;
use tokio::sync::OwnedSemaphorePermit;

use super::command::SendOrder;
use super::event::{LossReason, LostAction};
use super::text;
use super::wire::{self, Snapshot};

/// How many times in a row the host may close with 1009 over one action before it is given up.
const MAX_STRIKES: u8 = 3;
/// The close code for "too big".
const TOO_BIG: u16 = 1009;

/// Actions in the order in which they were dispatched. On each connection, those up to some point were given to the machine, and
/// those after it wait.
#[derive(Debug, Default)]
pub(super) struct UnconfirmedActions {
    in_order: VecDeque<Entry>,
    /// Actions that overtook others on this connection. When it ends, they go back to their places.
    ahead: VecDeque<Entry>,
}

/// An action of ours.
#[derive(Debug)]
pub(super) struct Dispatched {
    pub(super) client_seq: u64,
    pub(super) channel: String,
    pub(super) action: Message,
    pub(super) order: SendOrder,
    /// Its part of the limit for actions, until it is dropped.
    pub(super) _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Entry {
    dispatched: Dispatched,
    state: SendState,
    /// Whether it was sent whole on an earlier connection, so that it may have arrived.
    doubtful: bool,
    strikes: u8,
}

/// How far an action has come on this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    Waiting,
    InFlight,
    /// Its last frame is on the link.
    Sent,
}

/// What a snapshot says about an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Applied,
    NotApplied,
    Unknown,
}

impl UnconfirmedActions {
    /// Adds an action, which waits for its turn.
    pub(super) fn push(&mut self, dispatched: Dispatched) {
        self.in_order.push_back(Entry { dispatched, state: SendState::Waiting, doubtful: false, strikes: 0 });
    }

    /// Adds an action that overtakes those that wait, and was given to the machine.
    pub(super) fn hand_ahead(&mut self, dispatched: Dispatched) {
        self.ahead.push_back(Entry { dispatched, state: SendState::InFlight, doubtful: false, strikes: 0 });
    }

    /// Whether an action for this channel waits.
    pub(super) fn has_waiting(&self, channel: &str) -> bool {
        self.in_order.range(self.handed()..).any(|entry| entry.dispatched.channel == channel)
    }

    /// Whether the host has echoed all actions.
    pub(super) fn is_empty(&self) -> bool {
        self.in_order.is_empty() && self.ahead.is_empty()
    }

    /// The next action that waits. From now on it counts as given to the machine.
    pub(super) fn hand(&mut self) -> Option<&Dispatched> {
        let first = self.handed();
        let entry = self.in_order.get_mut(first)?;
        entry.state = SendState::InFlight;
        Some(&entry.dispatched)
    }

    /// The last frame of an action is on the link. If its channel is not followed, the host will not echo it, and it is dropped.
    pub(super) fn sent(&mut self, client_seq: u64, is_wanted: impl Fn(&str) -> bool) {
        let Some((entries, at)) = self.find(client_seq) else { return };
        match entries.get_mut(at) {
            Some(entry) if is_wanted(&entry.dispatched.channel) => entry.state = SendState::Sent,
            _ => drop(entries.remove(at)),
        }
    }

    /// An action cannot be sent.
    pub(super) fn unsendable(&mut self, client_seq: u64, why: LossReason) -> Option<LostAction> {
        let (entries, at) = self.find(client_seq)?;
        entries.remove(at).map(|entry| entry.lose(why))
    }

    /// The host has echoed an action of ours. Returns whether it was one of these.
    pub(super) fn shown(&mut self, client_seq: u64, channel: &str) -> bool {
        let Some((entries, at)) = self.find(client_seq) else { return false };
        let is_it = entries.get(at).is_some_and(|entry| entry.dispatched.channel == channel);
        is_it && entries.remove(at).is_some()
    }

    /// The connection has ended. All actions wait again, and those that were sent whole are in doubt. If the host closed because
    /// something was too big, returns the action that is given up for it.
    pub(super) fn disconnected(&mut self, code: u16) -> Option<LostAction> {
        let last = self.handed();
        for entry in self.in_order.range_mut(..last).chain(&mut self.ahead) {
            entry.doubtful |= entry.state == SendState::Sent;
            entry.state = SendState::Waiting;
        }
        let lost = if code == TOO_BIG { self.accuse(last) } else { None };
        self.in_order.append(&mut self.ahead);
        self.in_order.make_contiguous().sort_by_key(|entry| entry.dispatched.client_seq);
        lost
    }

    /// The host closed because something was too big. That was probably the largest of the first `last` actions, which it may have
    /// seen. Actions that overtook others are short.
    fn accuse(&mut self, last: usize) -> Option<LostAction> {
        let seen = self.in_order.range_mut(..last).enumerate();
        let (at, accused) = seen.max_by_key(|(_, entry)| entry.dispatched.action.len())?;
        accused.strikes = accused.strikes.saturating_add(1);
        if accused.strikes < MAX_STRIKES {
            return None;
        }
        self.in_order.remove(at).map(|entry| entry.lose(LossReason::TooBigForHost))
    }

    /// The replay of the followed channels is over. Actions in doubt that were not in it did not arrive. Returns those that are lost.
    pub(super) fn replayed(&mut self, resend: bool, is_followed: impl Fn(&str) -> bool) -> Vec<LostAction> {
        self.judge(resend, |dispatched| if is_followed(&dispatched.channel) { Fate::NotApplied } else { Fate::Unknown })
    }

    /// Channels have new states, which may contain actions that are in doubt. Returns those that are lost.
    pub(super) fn replaced(&mut self, snapshots: &[Snapshot], resend: bool) -> Vec<LostAction> {
        self.judge(resend, |dispatched| {
            let snapshot = snapshots.iter().find(|snapshot| snapshot.channel == dispatched.channel);
            snapshot.map_or(Fate::Unknown, |snapshot| fate(&dispatched.action, snapshot))
        })
    }

    /// Gives up all actions for these channels.
    pub(super) fn missing(&mut self, channels: &[String]) -> Vec<LostAction> {
        self.take(|entry| channels.contains(&entry.dispatched.channel).then_some(Some(LossReason::ChannelMissing)))
    }

    /// Gives up all actions.
    pub(super) fn close(&mut self) -> Vec<LostAction> {
        self.take(|_| Some(Some(LossReason::Closed)))
    }

    fn judge(&mut self, resend: bool, fate: impl Fn(&Dispatched) -> Fate) -> Vec<LostAction> {
        let lost = self.take(|entry| match entry.doubtful.then(|| fate(&entry.dispatched)) {
            Some(Fate::Applied) => Some(None),
            Some(Fate::NotApplied) if !resend => Some(Some(LossReason::Unknown)),
            Some(Fate::Unknown) => Some(Some(LossReason::Unknown)),
            Some(Fate::NotApplied) | None => None,
        });
        self.in_order.iter_mut().chain(&mut self.ahead).for_each(|entry| entry.doubtful = false);
        lost
    }

    /// Removes the actions for which `verdict` is not `None`. Those for which it has a reason are returned as lost.
    fn take(&mut self, verdict: impl Fn(&Entry) -> Option<Option<LossReason>>) -> Vec<LostAction> {
        let mut lost = Vec::new();
        for entries in [&mut self.in_order, &mut self.ahead] {
            for entry in std::mem::take(entries) {
                match verdict(&entry) {
                    None => entries.push_back(entry),
                    Some(None) => {}
                    Some(Some(why)) => lost.push(entry.lose(why)),
                }
            }
        }
        lost
    }

    /// How many of the actions in order were given to the machine.
    fn handed(&self) -> usize {
        self.in_order.partition_point(|entry| entry.state != SendState::Waiting)
    }

    fn find(&mut self, client_seq: u64) -> Option<(&mut VecDeque<Entry>, usize)> {
        let at =
            |entries: &VecDeque<Entry>| entries.binary_search_by_key(&client_seq, |e| e.dispatched.client_seq).ok();
        let (in_order, ahead) = (at(&self.in_order), at(&self.ahead));
        in_order.map(|at| (&mut self.in_order, at)).or(ahead.map(|at| (&mut self.ahead, at)))
    }
}

impl Dispatched {
    /// The message that takes it to the host.
    pub(super) fn text(&self) -> Message {
        wire::dispatch(&self.channel, self.client_seq, &self.action)
    }
}

impl Entry {
    fn lose(self, why: LossReason) -> LostAction {
        let Dispatched { client_seq, channel, action, .. } = self.dispatched;
        LostAction { client_seq, channel, action, why }
    }
}

/// Searches a snapshot for the id that an action creates in the state of its channel.
///
/// Only an id that the action itself creates shows whether it was applied. An id that it merely refers to, such as the turn of a
/// confirmation, is in the state in any case. The id of a queued message disappears when the message becomes a turn: if it is not
/// there, the action may still have been applied.
fn fate(action: &Message, snapshot: &Snapshot) -> Fate {
    static PATHS: [Path; 5] = [&["type"], &["turnId"], &["resource"], &["annotation", "id"], &["id"]];
    let [kind, turn, resource, annotation, message] = text::string_at(action, &PATHS);
    let (own, absent) = match kind.as_deref() {
        Some("chat/turnStarted") => (turn, Fate::NotApplied),
        Some("automation/createRequested") => (resource, Fate::NotApplied),
        Some("annotations/set") => (annotation, Fate::NotApplied),
        Some("chat/pendingMessageSet") => (message, Fate::Unknown),
        _ => (None, Fate::Unknown),
    };
    let Some(own) = own else {
        return Fate::Unknown;
    };
    if snapshot.has(serde_json::Value::from(own).to_string().as_bytes()) { Fate::Applied } else { absent }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    fn turn(id: &str) -> Message {
        Message::from(format!(r#"{{"type":"chat/turnStarted","turnId":"{id}","message":{{}}}}"#))
    }

    fn unconfirmed(actions: &[Message]) -> UnconfirmedActions {
        let mut unconfirmed = UnconfirmedActions::default();
        for (n, action) in actions.iter().enumerate() {
            let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
            let (client_seq, channel) = (n as u64 + 1, "c".to_owned());
            unconfirmed.push(Dispatched {
                client_seq,
                channel,
                action: action.clone(),
                order: SendOrder::InOrder,
                _permit: permit,
            });
        }
        unconfirmed
    }

    fn numbers(actions: &mut UnconfirmedActions) -> Vec<u64> {
        std::iter::from_fn(|| actions.hand().map(|dispatched| dispatched.client_seq)).collect()
    }

    fn snapshot(state: &str) -> Snapshot {
        let text = Message::from(format!(r#"{{"resource":"c","fromSeq":9,"state":{state}}}"#));
        Snapshot { channel: "c".into(), from_seq: 9, text }
    }

    #[test]
    fn what_went_ahead_takes_its_place_again_when_the_connection_ends() {
        let mut actions = unconfirmed(&["1", "2", "3"].map(turn));
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
        let action = Message::from(r#"{"type":"chat/turnCancelled","turnId":"0"}"#);
        assert_eq!(SendOrder::of_action(&action), SendOrder::Ahead);
        assert_eq!(SendOrder::of_action(&turn("4")), SendOrder::InOrder);
        let ahead = Dispatched { client_seq: 4, channel: "c".into(), action, order: SendOrder::Ahead, _permit: permit };
        assert!(actions.has_waiting("c") && !actions.has_waiting("d"));
        actions.hand_ahead(ahead);
        actions.sent(4, |_| true);
        assert!(actions.hand().is_some_and(|first| first.client_seq == 1));
        assert!(actions.disconnected(1006).is_none());
        assert!(actions.replayed(true, |_| true).is_empty());
        assert_eq!(numbers(&mut actions), [1, 2, 3, 4]);
        assert!(!actions.has_waiting("c") && actions.shown(4, "c") && !actions.shown(4, "c"));
    }

    #[test]
    fn what_the_replay_does_not_show_is_sent_again_in_order() {
        let mut actions = unconfirmed(&["1", "2", "3", "4"].map(turn));
        assert_eq!(numbers(&mut actions), [1, 2, 3, 4]);
        (1..=3).for_each(|n| actions.sent(n, |_| true));
        assert!(actions.hand().is_none() && actions.disconnected(1006).is_none() && !actions.is_empty());
        assert!(actions.shown(2, "c") && !actions.shown(2, "c") && !actions.shown(1, "other"));
        assert!(actions.replayed(true, |_| true).is_empty());
        assert_eq!(numbers(&mut actions), [1, 3, 4]);
    }

    #[test]
    fn without_resending_only_what_had_left_is_lost() {
        let mut actions = unconfirmed(&["1", "2", "3"].map(turn));
        actions.hand();
        actions.hand();
        actions.sent(1, |_| true);
        actions.disconnected(1006);
        let lost = actions.replayed(false, |_| true);
        assert_eq!(
            lost.iter().map(|lost| (lost.client_seq, &lost.why)).collect::<Vec<_>>(),
            [(1, &LossReason::Unknown)]
        );
        assert_eq!(numbers(&mut actions), [2, 3]);
    }

    #[test]
    fn a_snapshot_tells_by_the_id_that_an_action_makes() {
        let confirmed = r#"{"type":"chat/toolCallConfirmed","turnId":"t1","toolCallId":"x"}"#;
        let queued = |id| Message::from(format!(r#"{{"type":"chat/pendingMessageSet","id":"{id}"}}"#));
        let actions = [turn("t1"), turn("t2"), Message::from(confirmed), queued("t1"), queued("q")];
        let mut actions = unconfirmed(&actions);
        assert_eq!(numbers(&mut actions), [1, 2, 3, 4, 5]);
        (1..=5).for_each(|n| actions.sent(n, |_| true));
        actions.disconnected(1006);
        let lost = actions.replaced(&[snapshot(r#"{"turns":[{"id":"t1","text":"\"t2\""}]}"#)], true);
        assert_eq!(lost.iter().map(|lost| lost.client_seq).collect::<Vec<_>>(), [3, 5]);
        assert_eq!(numbers(&mut actions), [2]);
    }

    #[test]
    fn a_channel_without_a_snapshot_tells_nothing() {
        let mut actions = unconfirmed(&["1", "2"].map(turn));
        actions.hand();
        actions.sent(1, |_| true);
        actions.disconnected(1006);
        assert_eq!(actions.replaced(&[], true).len(), 1);
        assert_eq!(numbers(&mut actions), [2]);
    }

    #[test]
    fn an_action_that_nobody_will_show_is_not_kept_once_sent() {
        let mut actions = unconfirmed(&["1", "2"].map(turn));
        actions.hand();
        actions.sent(1, |_| false);
        actions.disconnected(1006);
        assert_eq!(numbers(&mut actions), [2]);
    }

    #[test]
    fn an_action_over_which_the_host_closes_three_times_is_given_up() {
        let mut actions = unconfirmed(&["a long one", "2"].map(turn));
        assert!(actions.disconnected(TOO_BIG).is_none(), "nothing had been handed over");
        for strike in 1..=3 {
            assert_eq!(numbers(&mut actions), [1, 2]);
            let lost = actions.disconnected(TOO_BIG);
            assert_eq!(lost.map(|lost| lost.why), (strike == 3).then_some(LossReason::TooBigForHost));
        }
        assert_eq!(numbers(&mut actions), [2]);
        assert_eq!(actions.missing(&["c".into()]).len(), 1);
        assert!(actions.close().is_empty());
    }
}
