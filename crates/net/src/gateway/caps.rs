//! Caps that peers did not declare: learned from how their links close, remembered across connections.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::name::Name;
use super::watch::Suspect;
use crate::driver::now;

/// The smallest cap that is tried. A way that takes less than this takes no agent's messages.
const FLOOR: u64 = 16 << 10;
/// How long a learned cap holds before twice as much is tried.
const RESTORE: Duration = Duration::from_secs(600);
/// Peers that are remembered; past them, the one that was quiet the longest is forgotten.
const MOST: usize = 4096;
/// How much longer the same message may be another time: its id has more digits.
const SAME: u64 = 16;
/// Closes in a row after the same message that show a limit, when shorter frames went before.
const CLOSES: u32 = 2;
/// The same, when no shorter frame was ever sent: then nothing shows that those would fare better, and it may be the way
/// that fails. But what comes first on every connection must not close it for ever.
const CLOSES_ALONE: u32 = 4;
/// The close code of a frame that is too long.
const TOO_BIG: u16 = 1009;

/// What was learned about peers, by name.
#[derive(Debug, Default)]
pub(super) struct Caps(Mutex<HashMap<Name, Peer>>);

#[derive(Debug)]
struct Peer {
    /// The cap that was learned, and the length that it began from.
    learned: Option<(u64, u64)>,
    /// The frame and message after which the last link closed, and how many in a row closed so.
    suspect: Option<(Suspect, u32)>,
    /// The shortest frame that a link took and lived to take another.
    shortest: Option<u64>,
    /// The longest frame that surely passed.
    passed: u64,
    /// Messages this long fail even in the smallest frames.
    hopeless: Option<u64>,
    changed: Instant,
}

/// What a close means for a peer's cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: an ordinary close.
    Ordinary,
    /// Frames of this length did not pass; from now on they are at most so long.
    Shrunk {
        /// The frame that did not pass.
        from: u64,
        /// The new cap.
        to: u64,
    },
    /// Even the smallest frames did not pass: such a message is refused.
    Hopeless(u64),
}

impl Caps {
    /// The longest frame for a peer, as far as is known.
    pub(super) fn cap(&self, name: &Name) -> u64 {
        let mut peers = self.lock();
        let Some(peer) = peers.get_mut(name) else { return u64::MAX };
        if let Some((cap, from)) = peer.learned
            && now().saturating_duration_since(peer.changed) >= RESTORE
        {
            let twice = cap.saturating_mul(2);
            peer.learned = (twice < from).then_some((twice, from));
            (peer.changed, peer.hopeless) = (now(), None);
        }
        peer.learned.map_or(u64::MAX, |(cap, _)| cap)
    }

    /// Whether a message of this length is known to fail whatever is done.
    pub(super) fn is_hopeless(&self, name: &Name, len: u64) -> bool {
        self.lock().get(name).and_then(|peer| peer.hopeless).is_some_and(|hopeless| len >= hopeless)
    }

    /// Learns from a close with `code`, shortly after `suspect`, on a link that frames of `passed` bytes passed.
    pub(super) fn learn(&self, name: &Name, code: u16, suspect: Option<Suspect>, passed: u64) -> Verdict {
        let mut peers = self.lock();
        if !peers.contains_key(name) && peers.len() >= MOST {
            let oldest = peers.iter().min_by_key(|(_, peer)| peer.changed).map(|(name, _)| name.clone());
            oldest.and_then(|name| peers.remove(&name));
        }
        peers.entry(name.clone()).or_insert_with(Peer::new).learn(code, suspect, passed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Peer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn new() -> Self {
        Self { learned: None, suspect: None, shortest: None, passed: 0, hopeless: None, changed: now() }
    }

    fn learn(&mut self, code: u16, suspect: Option<Suspect>, passed: u64) -> Verdict {
        self.passed = self.passed.max(passed);
        let before = self.suspect.take();
        let Some(suspect) = suspect else { return Verdict::Ordinary };
        let shortest = [self.shortest, suspect.shortest, Some(self.passed).filter(|passed| *passed > 0)];
        self.shortest = shortest.into_iter().flatten().min();
        let is_again = |(before, _): &(Suspect, u32)| {
            before.frame.abs_diff(suspect.frame) <= SAME && before.message.abs_diff(suspect.message) <= SAME
        };
        let closes = before.filter(is_again).map_or(1, |(_, closes)| closes.saturating_add(1));
        self.suspect = Some((suspect, closes));
        let is_shorter = |shortest: u64| shortest.saturating_add(SAME) < suspect.frame;
        let enough = if self.shortest.is_some_and(is_shorter) { CLOSES } else { CLOSES_ALONE };
        // What passed once is not too long, unless the peer says so.
        let is_new = suspect.frame > self.passed.saturating_add(SAME);
        let is_evidence = code == TOO_BIG || is_new && closes >= enough;
        if !is_evidence || suspect.message <= FLOOR {
            return Verdict::Ordinary;
        }
        self.changed = now();
        self.suspect = None;
        self.passed = self.passed.min(suspect.frame.saturating_sub(1));
        if suspect.frame <= FLOOR {
            self.hopeless = Some(suspect.message);
            return Verdict::Hopeless(suspect.message);
        }
        let to = (suspect.frame / 2).max(FLOOR);
        let from = self.learned.map_or(suspect.frame, |(_, from)| from);
        self.learned = Some((to, from));
        Verdict::Shrunk { from: suspect.frame, to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIG: u64 = 900_000;

    fn name(text: &str) -> Name {
        Name::new(text.to_owned(), None)
    }

    fn suspect(frame: u64, message: u64) -> Option<Suspect> {
        Some(Suspect::new(frame, message, Some(100)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_too_big_is_believed_at_once() {
        let caps = Caps::default();
        assert_eq!(caps.cap(&name("p")), u64::MAX);
        assert_eq!(
            caps.learn(&name("p"), 1009, suspect(BIG, 3_000_000), 0),
            Verdict::Shrunk { from: BIG, to: BIG / 2 }
        );
        assert_eq!((caps.cap(&name("p")), caps.cap(&name("q"))), (BIG / 2, u64::MAX));
        assert_eq!(caps.learn(&name("p"), 1009, None, 0), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_needs_two_closes_in_a_row_at_the_same_message() {
        let caps = Caps::default();
        assert_eq!(caps.learn(&name("p"), 1006, suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), 1006, suspect(BIG, 4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), 1006, None, 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), 1006, suspect(BIG, 4_000_000), 0), Verdict::Ordinary);
        assert_eq!(
            caps.learn(&name("p"), 1006, suspect(BIG, 4_000_001), 0),
            Verdict::Shrunk { from: BIG, to: BIG / 2 }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn two_closes_show_a_limit_only_beside_a_shorter_frame_before_or_between() {
        let caps = Caps::default();
        let alone = |message| Some(Suspect::new(BIG, message, None));
        let shrunk = Verdict::Shrunk { from: BIG, to: BIG / 2 };
        // Before, on the same connection.
        assert_eq!(caps.learn(&name("before"), 1006, suspect(BIG, 4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("before"), 1006, alone(4_000_000), 0), shrunk);
        // Between: a frame that surely passed.
        assert_eq!(caps.learn(&name("between"), 1006, alone(4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("between"), 1006, alone(4_000_000), 100), shrunk);
        // Never: it may be the way that fails, whatever is sent.
        assert_eq!(caps.learn(&name("never"), 1006, alone(4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("never"), 1006, alone(4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.cap(&name("never")), u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_first_on_every_connection_does_not_close_it_for_ever() {
        let caps = Caps::default();
        let alone = || Some(Suspect::new(BIG, 4_000_000, None));
        for _ in 1..CLOSES_ALONE {
            assert_eq!(caps.learn(&name("p"), 1006, alone(), 0), Verdict::Ordinary);
        }
        assert_eq!(caps.learn(&name("p"), 1006, alone(), 0), Verdict::Shrunk { from: BIG, to: BIG / 2 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_is_not_shorter_shows_nothing() {
        let caps = Caps::default();
        let after_its_like = || Some(Suspect::new(BIG, 4_000_000, Some(BIG - SAME)));
        assert_eq!(caps.learn(&name("p"), 1006, after_its_like(), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), 1006, after_its_like(), 0), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn what_passed_once_is_no_evidence() {
        let caps = Caps::default();
        assert_eq!(caps.learn(&name("p"), 1006, None, BIG), Verdict::Ordinary);
        for _ in 0..50 {
            assert_eq!(caps.learn(&name("p"), 1006, suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
        }
        assert_eq!(caps.cap(&name("p")), u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_floor_a_message_is_hopeless() {
        let caps = Caps::default();
        let mut frame = BIG;
        while let Verdict::Shrunk { to, .. } = caps.learn(&name("p"), 1009, suspect(frame, 3_000_000), 0) {
            assert!((FLOOR..frame).contains(&to));
            frame = to;
        }
        assert_eq!(frame, FLOOR);
        assert!(caps.is_hopeless(&name("p"), 3_000_000) && !caps.is_hopeless(&name("p"), 2_999_999));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cap_is_restored_slowly() {
        let caps = Caps::default();
        caps.learn(&name("p"), 1009, suspect(BIG, 3_000_000), 0);
        caps.learn(&name("p"), 1009, suspect(BIG / 2, 3_000_000), 0);
        assert_eq!(caps.cap(&name("p")), BIG / 4);
        tokio::time::advance(RESTORE).await;
        assert_eq!((caps.cap(&name("p")), caps.cap(&name("p"))), (BIG / 2, BIG / 2));
        tokio::time::advance(RESTORE).await;
        assert_eq!(caps.cap(&name("p")), u64::MAX);
    }
}
