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
/// Closes in a row after the same message that show a limit, when shorter frames went before. On a way that breaks anyway it
/// takes more: as many more as there were other breaks, up to so many.
const CLOSES: u32 = 2;
const MOST_BREAKS: u32 = 3;
/// Room for an error, and for nothing that anyone would call too long.
const NEXT_TO_NOTHING: u64 = 512;
/// The close code of a frame that is too long.
pub(super) const TOO_BIG: u16 = 1009;

/// Close codes that say that something else is the matter: done, going away, restarting, try again later, bad gateway.
const OTHERWISE: [u16; 5] = [1000, 1001, 1012, 1013, 1014];

/// What was learned about peers, by name.
#[derive(Debug, Default)]
pub(super) struct Caps(Mutex<HashMap<Name, Peer>>);

#[derive(Debug)]
struct Peer {
    /// The cap that was learned, and the length that it began from.
    learned: Option<(u64, u64)>,
    /// The frame and message after which the last link closed, with the shortest frame that any of those took which closed
    /// so in a row, and how many did.
    suspect: Option<(Suspect, u32)>,
    /// The longest frame that surely passed.
    passed: u64,
    /// Links that broke lately, and not after a frame that may have been too long.
    breaks: u32,
    /// Messages this long fail even in the smallest frames.
    hopeless: Option<u64>,
    changed: Instant,
}

/// What a close means for a peer's cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: an ordinary close.
    Ordinary,
    /// What was known already: another link has shown it.
    Known,
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
        if now().saturating_duration_since(peer.changed) >= RESTORE {
            let twice = |(cap, from): (u64, u64)| (cap.saturating_mul(2), from);
            peer.learned = peer.learned.map(twice).filter(|(cap, from)| cap < from);
            (peer.changed, peer.hopeless, peer.breaks) = (now(), None, 0);
        }
        peer.learned.map_or(u64::MAX, |(cap, _)| cap)
    }

    /// If a message of this length is known to fail whatever is done: how long one may be that should pass.
    pub(super) fn limit(&self, name: &Name, len: u64) -> Option<u64> {
        let hopeless = self.lock().get(name).and_then(|peer| peer.hopeless)?;
        (len >= hopeless).then_some(hopeless.saturating_sub(1).min(FLOOR))
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
        Self { learned: None, suspect: None, passed: 0, breaks: 0, hopeless: None, changed: now() }
    }

    fn learn(&mut self, code: u16, suspect: Option<Suspect>, passed: u64) -> Verdict {
        self.passed = self.passed.max(passed);
        let before = self.suspect.take();
        if code == TOO_BIG {
            let suspect = suspect.filter(|suspect| suspect.message > NEXT_TO_NOTHING);
            return suspect.map_or(Verdict::Ordinary, |suspect| self.shrink(suspect));
        }
        if OTHERWISE.contains(&code) {
            return Verdict::Ordinary;
        }
        // What passed once is not too long, and what the smallest frames carry is not what a limit would be about.
        let may_be = |suspect: &Suspect| suspect.frame > self.passed.saturating_add(SAME) && suspect.message > FLOOR;
        let Some(suspect) = suspect.filter(may_be) else {
            self.breaks = self.breaks.saturating_add(1).min(MOST_BREAKS);
            return Verdict::Ordinary;
        };
        if self.has_closed_again(before, suspect, passed) { self.shrink(suspect) } else { Verdict::Ordinary }
    }

    /// Whether links have closed in a row after this frame, while shorter ones passed. Where nothing shorter went, it may be
    /// the way that fails, whatever is sent.
    fn has_closed_again(&mut self, before: Option<(Suspect, u32)>, suspect: Suspect, passed: u64) -> bool {
        let is_again = |(before, _): &(Suspect, u32)| {
            before.frame.abs_diff(suspect.frame) <= SAME && before.message.abs_diff(suspect.message) <= SAME
        };
        let (earlier, closes) = before.filter(is_again).map_or((None, 0), |(before, closes)| (before.shortest, closes));
        let shorter = [earlier, suspect.shortest, Some(passed).filter(|passed| *passed > 0)];
        let (shortest, closes) = (shorter.into_iter().flatten().min(), closes.saturating_add(1));
        let mut last = suspect;
        last.shortest = shortest;
        self.suspect = Some((last, closes));
        closes >= CLOSES.saturating_add(self.breaks)
            && shortest.is_some_and(|shortest| shortest.saturating_add(SAME) < suspect.frame)
    }

    /// Frames of this length do not pass: from now on they are shorter, or such a message is refused.
    fn shrink(&mut self, Suspect { frame, message, .. }: Suspect) -> Verdict {
        self.suspect = None;
        self.passed = self.passed.min(frame.saturating_sub(1));
        let to = (frame / 2).max(FLOOR);
        let is_known = if frame > FLOOR {
            self.learned.is_some_and(|(cap, _)| cap <= to)
        } else {
            self.hopeless.is_some_and(|hopeless| hopeless <= message)
        };
        if is_known {
            return Verdict::Known;
        }
        self.changed = now();
        if frame <= FLOOR {
            self.hopeless = Some(message);
            return Verdict::Hopeless(message);
        }
        self.learned = Some((to, self.learned.map_or(frame, |(_, from)| from)));
        Verdict::Shrunk { from: frame, to }
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
        assert_eq!(caps.learn(&name("p"), 1000, None, 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), 1006, suspect(BIG, 4_000_000), 0), Verdict::Ordinary);
        assert_eq!(
            caps.learn(&name("p"), 1006, suspect(BIG, 4_000_001), 0),
            Verdict::Shrunk { from: BIG, to: BIG / 2 }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn on_a_way_that_breaks_anyway_it_takes_more_closes_for_a_while() {
        let caps = Caps::default();
        let close = |times| (0..times).map(|_| caps.learn(&name("p"), 1006, suspect(BIG, 3_000_000), 0)).last();
        let shrunk = Some(Verdict::Shrunk { from: BIG, to: BIG / 2 });
        for (breaks, needed) in [(1, 3), (2, 5), (9, 5)] {
            (0..breaks).for_each(|_| assert_eq!(caps.learn(&name("p"), 1006, None, 0), Verdict::Ordinary));
            assert_eq!((close(needed - 1), close(1)), (Some(Verdict::Ordinary), shrunk));
            caps.lock().values_mut().for_each(|peer| peer.learned = None);
        }
        tokio::time::advance(RESTORE).await;
        caps.cap(&name("p"));
        assert_eq!((close(1), close(1)), (Some(Verdict::Ordinary), shrunk));
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
    async fn where_nothing_shorter_went_no_number_of_closes_shows_a_limit() {
        let caps = Caps::default();
        let alone = || Some(Suspect::new(BIG, 4_000_000, None));
        // What passed another day shows nothing either.
        assert_eq!(caps.learn(&name("p"), 1000, None, 100), Verdict::Ordinary);
        for _ in 0..50 {
            assert_eq!(caps.learn(&name("p"), 1006, alone(), 0), Verdict::Ordinary);
        }
        assert_eq!(caps.cap(&name("p")), u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_that_says_that_something_else_is_the_matter_shows_no_limit() {
        let caps = Caps::default();
        for code in OTHERWISE.into_iter().cycle().take(50) {
            assert_eq!(caps.learn(&name("p"), code, suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
        }
        assert_eq!(caps.learn(&name("p"), 1006, suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
        assert_ne!(caps.learn(&name("p"), 1011, suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn what_many_links_show_at_once_is_learned_and_said_once() {
        let caps = Caps::default();
        let learn = |frame, message| caps.learn(&name("p"), 1009, suspect(frame, message), 0);
        assert_eq!(learn(BIG, 3_000_000), Verdict::Shrunk { from: BIG, to: BIG / 2 });
        assert_eq!((learn(BIG, 3_000_000), learn(BIG, 2_000_000)), (Verdict::Known, Verdict::Known));
        assert_eq!(caps.cap(&name("p")), BIG / 2);
        assert_eq!(learn(12_000, 12_000), Verdict::Hopeless(12_000));
        assert_eq!((learn(12_000, 12_000), learn(11_000, 11_000)), (Verdict::Known, Verdict::Hopeless(11_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_message_is_hopeless_only_when_the_peer_says_so_and_only_for_a_while() {
        let caps = Caps::default();
        let short = || suspect(12_000, 12_000);
        for _ in 0..50 {
            assert_eq!(caps.learn(&name("p"), 1006, short(), 0), Verdict::Ordinary);
        }
        assert_eq!(caps.learn(&name("p"), 1009, short(), 0), Verdict::Hopeless(12_000));
        assert_eq!((caps.limit(&name("p"), 12_000), caps.limit(&name("p"), 11_999)), (Some(11_999), None));
        assert_eq!(caps.cap(&name("p")), u64::MAX);
        tokio::time::advance(RESTORE).await;
        assert_eq!(caps.cap(&name("p")), u64::MAX);
        assert_eq!(caps.limit(&name("p"), 12_000), None);
        // Nobody's greeting is too long.
        assert_eq!(caps.learn(&name("p"), 1009, suspect(400, 400), 0), Verdict::Ordinary);
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
        assert_eq!((caps.limit(&name("p"), 3_000_000), caps.limit(&name("p"), 2_999_999)), (Some(FLOOR), None));
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
