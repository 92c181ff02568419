//! How many bytes of frames the peers of a hub connection may have under way to us.
//!
//! The service forgets a connection for which too much waits. All peers of a host together fill one queue, so the receiver hands out
//! credit: each peer may always have a little under way, and who needs more asks. What is granted beyond the little comes out of one
//! pool, first come, first served. A peer whose frames are not taken gets no more; one that has nothing to send gives back what it does
//! not use, and one that keeps it while others wait is closed. Bytes are counted from the beginning of a link, as the
//! text of frames with [`FRAME_COST`] for each.

use std::collections::{BTreeMap, VecDeque};

/// What each frame counts beside its text, so that a limit of bytes is also one of messages.
pub(super) const FRAME_COST: u64 = 8 << 10;
/// What each peer may have under way without asking.
pub(super) const FLOOR: u64 = 16 << 10;
/// What all peers together may have under way beyond that: a quarter of the service's limit. Escapes at most double it.
const POOL: u64 = 4_000_000;
/// What one peer gets at once, so that it does not have to ask for each frame.
const CHUNK: u64 = 2_000_000;
/// What may wait until we take it, for one peer.
const MAX_UNTAKEN: u64 = 4_000_000;

/// For how many ticks a peer may keep what others wait for, without using it.
const MAX_IDLE_TICKS: u32 = 3;

/// The number of a peer.
pub(super) type PeerId = u64;

/// What the peers of a hub connection were granted.
#[derive(Debug, Default)]
pub(super) struct Credit {
    accounts: BTreeMap<PeerId, CreditAccount>,
    /// Peers that have asked for more, in the order in which they did.
    waiting: VecDeque<PeerId>,
}

/// All counts are since the beginning of the link.
#[derive(Debug, Default)]
struct CreditAccount {
    granted: u64,
    received: u64,
    taken: u64,
    /// What it has asked for; 0 if nothing.
    needed: u64,
    /// Whether it has asked for more than the floor, and has not given it back since.
    is_busy: bool,
    /// What had arrived at the last tick.
    received_before: u64,
    /// For how many ticks it has used nothing of what it has beyond the floor.
    idle_ticks: u32,
}

/// A peer sent more than it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overdrawn;

impl Credit {
    /// Adds a peer. Returns what it is granted at first.
    pub(super) fn add(&mut self, peer: PeerId) -> u64 {
        self.accounts.insert(peer, CreditAccount { granted: FLOOR, ..CreditAccount::default() });
        FLOOR
    }

    /// Forgets a peer.
    pub(super) fn remove(&mut self, peer: PeerId) {
        self.accounts.remove(&peer);
        self.waiting.retain(|waiting| *waiting != peer);
    }

    /// A frame of so many bytes has arrived.
    pub(super) fn receive(&mut self, peer: PeerId, bytes: u64) -> Result<(), Overdrawn> {
        let Some(account) = self.accounts.get_mut(&peer) else { return Ok(()) };
        account.received = account.received.saturating_add(cost(bytes));
        if account.received > account.granted { Err(Overdrawn) } else { Ok(()) }
    }

    /// Frames that count so much were taken.
    pub(super) fn take_cost(&mut self, peer: PeerId, cost: u64) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.taken = account.taken.saturating_add(cost);
        }
    }

    /// A peer needs a grant of so many bytes in all.
    pub(super) fn ask(&mut self, peer: PeerId, needed: u64) {
        let Some(account) = self.accounts.get_mut(&peer) else { return };
        account.needed = needed.min(account.received.saturating_add(CHUNK));
        account.is_busy = true;
        if account.needed > account.granted && !self.waiting.contains(&peer) {
            self.waiting.push_back(peer);
        }
    }

    /// A peer gives back what it has beyond so many bytes in all.
    pub(super) fn give_back(&mut self, peer: PeerId, granted: u64) {
        if let Some(account) = self.accounts.get_mut(&peer)
            && (account.received..=account.granted).contains(&granted)
        {
            (account.granted, account.is_busy) = (granted, false);
        }
    }

    /// To be called every few seconds. Returns the peers that keep what others wait for, and do not use it.
    pub(super) fn tick(&mut self) -> Vec<PeerId> {
        let is_crowded = !self.waiting.is_empty();
        let mut idle = Vec::new();
        for (peer, account) in &mut self.accounts {
            let is_used = account.received != account.received_before || account.under_way() <= FLOOR;
            account.received_before = account.received;
            account.idle_ticks = if is_used { 0 } else { account.idle_ticks.saturating_add(1) };
            if is_crowded && account.idle_ticks > MAX_IDLE_TICKS {
                idle.push(*peer);
            }
        }
        idle
    }

    /// New grants that peers have to be told.
    pub(super) fn poll(&mut self) -> Vec<(PeerId, u64)> {
        let mut grants = Vec::new();
        let beyond_floor = |account: &CreditAccount| account.under_way().saturating_sub(FLOOR);
        let mut used: u64 = self.accounts.values().map(beyond_floor).sum();
        // Nothing is granted that would not be enough.
        let mut extend = |account: &mut CreditAccount, least: u64, wanted: u64| {
            let before = beyond_floor(account);
            let spare = POOL.saturating_sub(used).saturating_add(before).saturating_add(FLOOR);
            let most = account.received.saturating_add(spare);
            if most < least {
                return false;
            }
            let granted = wanted.min(most).max(account.granted);
            let is_more = granted > account.granted;
            account.granted = granted;
            used = used.saturating_sub(before).saturating_add(beyond_floor(account));
            is_more
        };
        // Those who wait come first; who cannot get enough now keeps its place, and nobody behind it gets anything of the pool.
        while let Some(peer) = self.waiting.front().copied() {
            let Some(account) = self.accounts.get_mut(&peer) else {
                self.waiting.pop_front();
                continue;
            };
            if account.untaken() < MAX_UNTAKEN
                && extend(account, account.needed, account.received.saturating_add(CHUNK))
            {
                grants.push((peer, account.granted));
            }
            if account.granted < account.needed {
                if account.untaken() < MAX_UNTAKEN {
                    break;
                }
                // It waits for its own reader, and asks again by being polled.
                self.waiting.rotate_left(1);
                if self.waiting.front() == Some(&peer) || self.all_untaken() {
                    break;
                }
                continue;
            }
            self.waiting.pop_front();
        }
        let is_crowded = !self.waiting.is_empty();
        for (peer, account) in &mut self.accounts {
            let left = account.under_way();
            if account.untaken() >= MAX_UNTAKEN {
                continue;
            }
            let wanted = if account.is_busy && !is_crowded { CHUNK } else { FLOOR };
            if left.saturating_mul(2) <= wanted && extend(account, 0, account.received.saturating_add(wanted)) {
                grants.push((*peer, account.granted));
            }
        }
        grants
    }

    fn all_untaken(&self) -> bool {
        let stalled = |peer: &PeerId| self.accounts.get(peer).is_none_or(|account| account.untaken() >= MAX_UNTAKEN);
        self.waiting.iter().all(stalled)
    }
}

impl CreditAccount {
    /// What it may have under way.
    const fn under_way(&self) -> u64 {
        self.granted.saturating_sub(self.received)
    }

    /// What has arrived and was not taken.
    const fn untaken(&self) -> u64 {
        self.received.saturating_sub(self.taken)
    }
}

/// What a frame of so many bytes counts.
pub(super) const fn cost(bytes: u64) -> u64 {
    bytes.saturating_add(FRAME_COST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under_way(credit: &Credit) -> u64 {
        credit.accounts.values().map(CreditAccount::under_way).sum()
    }

    #[test]
    fn a_busy_peer_is_granted_more_before_it_has_used_up_what_it_has() {
        let mut credit = Credit::default();
        let mut granted = credit.add(1);
        let mut sent = 0;
        credit.ask(1, cost(900_000));
        for _ in 0..100 {
            for (_, more) in credit.poll() {
                granted = more;
            }
            sent += cost(900_000);
            assert!(sent <= granted, "{sent} of {granted}");
            credit.receive(1, 900_000).unwrap();
            credit.take_cost(1, cost(900_000));
        }
    }

    #[test]
    fn all_peers_together_never_have_more_under_way_than_the_pool_and_the_floors() {
        let mut credit = Credit::default();
        for peer in 0..100 {
            credit.add(peer);
            credit.ask(peer, cost(900_000));
        }
        let mut served = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let grants = credit.poll();
            assert!(under_way(&credit) <= POOL + 100 * FLOOR);
            for (peer, _) in grants {
                if credit.receive(peer, 900_000).is_ok() {
                    served.insert(peer);
                }
                credit.take_cost(peer, cost(900_000));
            }
        }
        assert_eq!(served.len(), 100, "everybody gets a turn");
    }

    #[test]
    fn a_peer_whose_frames_are_not_taken_does_not_keep_others_waiting() {
        let mut credit = Credit::default();
        let mut granted = credit.add(1);
        credit.add(2);
        credit.ask(1, cost(900_000));
        let mut sent = 0;
        loop {
            granted = credit.poll().into_iter().rfind(|(peer, _)| *peer == 1).map_or(granted, |(_, to)| to);
            if sent + cost(900_000) > granted {
                break;
            }
            sent += cost(900_000);
            credit.receive(1, 900_000).unwrap();
        }
        assert!(sent <= MAX_UNTAKEN + CHUNK);
        credit.ask(1, sent + cost(900_000));
        credit.ask(2, cost(900_000));
        let grants = credit.poll();
        assert!(grants.iter().any(|(peer, to)| *peer == 2 && *to >= cost(900_000)), "{grants:?}");
        for _ in 0..10 {
            credit.take_cost(1, cost(900_000));
        }
        assert!(credit.poll().iter().any(|(peer, to)| *peer == 1 && *to >= sent + cost(900_000)));
    }

    #[test]
    fn what_is_given_back_is_there_for_others_and_who_keeps_it_is_found_out() {
        let mut credit = Credit::default();
        for peer in 1..=3 {
            credit.add(peer);
            credit.ask(peer, cost(900_000));
        }
        let grants: Vec<_> = credit.poll().into_iter().map(|(peer, _)| peer).collect();
        assert_eq!(grants, [1, 2], "the pool is used up");
        for _ in 0..MAX_IDLE_TICKS {
            assert!(credit.tick().is_empty());
        }
        assert_eq!(credit.tick(), [1, 2]);
        credit.give_back(1, FLOOR);
        let grants = credit.poll();
        assert!(grants.iter().any(|(peer, to)| *peer == 3 && *to >= cost(900_000)), "{grants:?}");
        assert!(credit.tick().is_empty(), "nobody waits any more");
    }

    #[test]
    fn who_sends_more_than_it_was_granted_is_found_out() {
        let mut credit = Credit::default();
        credit.add(1);
        assert_eq!(credit.receive(1, FLOOR), Err(Overdrawn));
    }
}
