//! Caps that peers did not declare: learned from how their links close, remembered across connections.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::name::Name;
use super::watch::Suspect;
use crate::driver::{ABNORMAL, now};

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
/// The same, where such frames seem to pass: then it is the way that breaks, most likely. But nothing is tried for ever.
const MANY_CLOSES: u32 = 24;
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
    /// The longest frame that the peer has shown to have read, whatever it made of it.
    read: u64,
    /// Messages this long fail whatever is done, and how long one may be that should pass.
    hopeless: Option<(u64, u64)>,
    changed: Instant,
}

/// How a link was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Close {
    /// The code.
    pub(super) code: u16,
    /// Whether what does not fit one frame could go out in several.
    pub(super) splits: bool,
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
    /// Even the smallest frames did not pass, or the only one: such a message is refused.
    Hopeless(u64),
}

impl Caps {
    /// The longest frame for a peer, as far as is known.
    pub(super) fn cap(&self, name: &Name) -> u64 {
        let mut peers = self.lock();
        let Some(peer) = peers.get_mut(name) else { return u64::MAX };
        peer.restore();
        peer.learned.map_or(u64::MAX, |(cap, _)| cap)
    }

    /// If a message of this length is known to fail whatever is done: how long one may be that should pass.
    pub(super) fn limit(&self, name: &Name, len: u64) -> Option<u64> {
        let mut peers = self.lock();
        let peer = peers.get_mut(name)?;
        peer.restore();
        peer.hopeless.filter(|(hopeless, _)| len >= *hopeless).map(|(_, limit)| limit)
    }

    /// Learns from a close, shortly after `suspect`, of a link that frames of `passed` bytes passed.
    pub(super) fn learn(&self, name: &Name, close: Close, suspect: Option<Suspect>, passed: u64) -> Verdict {
        let mut peers = self.lock();
        if !peers.contains_key(name) && peers.len() >= MOST {
            let oldest = peers.iter().min_by_key(|(_, peer)| peer.changed).map(|(name, _)| name.clone());
            oldest.and_then(|name| peers.remove(&name));
        }
        peers.entry(name.clone()).or_insert_with(Peer::new).learn(close, suspect, passed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Peer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn new() -> Self {
        Self { learned: None, suspect: None, passed: 0, read: 0, hopeless: None, changed: now() }
    }

    /// What was learned long ago holds less.
    fn restore(&mut self) {
        if now().saturating_duration_since(self.changed) >= RESTORE {
            let twice = |(cap, from): (u64, u64)| (cap.saturating_mul(2), from);
            self.learned = self.learned.map(twice).filter(|(cap, from)| cap < from);
            (self.changed, self.hopeless) = (now(), None);
        }
    }

    fn learn(&mut self, Close { code, splits }: Close, suspect: Option<Suspect>, passed: u64) -> Verdict {
        self.passed = self.passed.max(passed);
        let before = self.suspect.take();
        if code == TOO_BIG {
            let suspect = suspect.filter(|suspect| suspect.message > NEXT_TO_NOTHING);
            return suspect.map_or(Verdict::Ordinary, |suspect| self.shrink(suspect, splits));
        }
        if OTHERWISE.contains(&code) {
            return Verdict::Ordinary;
        }
        // What the smallest frames carry is not what a limit would be about.
        let Some(suspect) = suspect.filter(|suspect| suspect.message > FLOOR) else { return Verdict::Ordinary };
        if suspect.is_read {
            self.read = self.read.max(suspect.frame);
        }
        // A peer that says why it closes, in whatever words, does not do so by chance.
        let known = if code == ABNORMAL { self.passed.max(self.read) } else { self.passed };
        // And a message is given up only when there is no doubt.
        let is_likely = suspect.frame > known.saturating_add(SAME).max(FLOOR);
        let needed = if is_likely { CLOSES } else { MANY_CLOSES };
        let (closes, is_beside_shorter) = self.closed_again(before, suspect, passed);
        if closes >= needed && is_beside_shorter { self.shrink(suspect, splits) } else { Verdict::Ordinary }
    }

    /// How many links have closed in a row after this frame, and whether shorter ones passed. Where nothing shorter went, it
    /// may be the way that fails, whatever is sent.
    fn closed_again(&mut self, before: Option<(Suspect, u32)>, suspect: Suspect, passed: u64) -> (u32, bool) {
        let is_again = |(before, _): &(Suspect, u32)| {
            before.frame.abs_diff(suspect.frame) <= SAME && before.message.abs_diff(suspect.message) <= SAME
        };
        let (earlier, closes) = before.filter(is_again).map_or((None, 0), |(before, closes)| (before.shortest, closes));
        let shorter = [earlier, suspect.shortest, Some(passed).filter(|passed| *passed > 0)];
        let (shortest, closes) = (shorter.into_iter().flatten().min(), closes.saturating_add(1));
        let mut last = suspect;
        last.shortest = shortest;
        self.suspect = Some((last, closes));
        (closes, shortest.is_some_and(|shortest| shortest.saturating_add(SAME) < suspect.frame))
    }

    /// Frames of this length do not pass: from now on they are shorter, or such a message is refused.
    fn shrink(&mut self, Suspect { frame, message, .. }: Suspect, splits: bool) -> Verdict {
        self.suspect = None;
        // Where nothing is split, a frame is a message, and longer ones have not gone out.
        let message = if splits { message } else { frame };
        let shorter = frame.saturating_sub(1);
        (self.passed, self.read) = (self.passed.min(shorter), self.read.min(shorter));
        let is_hopeless = !splits || frame <= FLOOR;
        let to = (frame / 2).max(FLOOR);
        let is_known = if is_hopeless {
            self.hopeless.is_some_and(|(hopeless, _)| hopeless <= message)
        } else {
            self.learned.is_some_and(|(cap, _)| cap <= to)
        };
        if is_known {
            return Verdict::Known;
        }
        self.changed = now();
        if is_hopeless {
            let limit = message.saturating_sub(1);
            self.hopeless = Some((message, if splits { limit.min(FLOOR) } else { limit }));
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

    const fn by(code: u16) -> Close {
        Close { code, splits: true }
    }

    fn suspect(frame: u64, message: u64) -> Option<Suspect> {
        Some(Suspect::new(frame, message, Some(100)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_too_big_is_believed_at_once() {
        let caps = Caps::default();
        assert_eq!(caps.cap(&name("p")), u64::MAX);
        assert_eq!(
            caps.learn(&name("p"), by(1009), suspect(BIG, 3_000_000), 0),
            Verdict::Shrunk { from: BIG, to: BIG / 2 }
        );
        assert_eq!((caps.cap(&name("p")), caps.cap(&name("q"))), (BIG / 2, u64::MAX));
        assert_eq!(caps.learn(&name("p"), by(1009), None, 0), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_needs_two_closes_in_a_row_at_the_same_message() {
        let caps = Caps::default();
        assert_eq!(caps.learn(&name("p"), by(1006), suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), by(1006), suspect(BIG, 4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), by(1006), None, 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), by(1006), suspect(BIG, 4_000_000), 0), Verdict::Ordinary);
        assert_eq!(
            caps.learn(&name("p"), by(1006), suspect(BIG, 4_000_001), 0),
            Verdict::Shrunk { from: BIG, to: BIG / 2 }
        );
    }

    /// How many closes it takes to show a limit, and that one less does not.
    fn closes_needed(caps: &Caps, code: u16, is_read: bool) -> u32 {
        let close = || {
            let mut suspect = Suspect::new(BIG, 3_000_000, Some(100));
            suspect.is_read = is_read;
            caps.learn(&name("p"), by(code), Some(suspect), 0)
        };
        let closes = (1..100).find(|_| close() != Verdict::Ordinary);
        assert_eq!(caps.cap(&name("p")), BIG / 2);
        closes.unwrap_or(0)
    }

    #[tokio::test(start_paused = true)]
    async fn where_such_frames_were_read_a_break_is_most_likely_one_of_the_way() {
        for (code, is_read, needed) in
            [(1006, false, CLOSES), (1006, true, MANY_CLOSES), (1011, false, CLOSES), (1011, true, CLOSES)]
        {
            assert_eq!(closes_needed(&Caps::default(), code, is_read), needed, "{code} {is_read}");
        }
        // Once is enough.
        let caps = Caps::default();
        let mut read = suspect(BIG, 4_000_000);
        read.iter_mut().for_each(|read| read.is_read = true);
        assert_eq!(caps.learn(&name("p"), by(1006), read, 0), Verdict::Ordinary);
        assert_eq!(closes_needed(&caps, 1006, false), MANY_CLOSES);
    }

    #[tokio::test(start_paused = true)]
    async fn two_closes_show_a_limit_only_beside_a_shorter_frame_before_or_between() {
        let caps = Caps::default();
        let alone = |message| Some(Suspect::new(BIG, message, None));
        let shrunk = Verdict::Shrunk { from: BIG, to: BIG / 2 };
        // Before, on the same connection.
        assert_eq!(caps.learn(&name("before"), by(1006), suspect(BIG, 4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("before"), by(1006), alone(4_000_000), 0), shrunk);
        // Between: a frame that surely passed.
        assert_eq!(caps.learn(&name("between"), by(1006), alone(4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("between"), by(1006), alone(4_000_000), 100), shrunk);
        // Never: it may be the way that fails, whatever is sent.
        assert_eq!(caps.learn(&name("never"), by(1006), alone(4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("never"), by(1006), alone(4_000_000), 0), Verdict::Ordinary);
        assert_eq!(caps.cap(&name("never")), u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_shorter_went_no_number_of_closes_shows_a_limit() {
        let caps = Caps::default();
        let alone = || Some(Suspect::new(BIG, 4_000_000, None));
        // What passed another day shows nothing either.
        assert_eq!(caps.learn(&name("p"), by(1000), None, 100), Verdict::Ordinary);
        for _ in 0..50 {
            assert_eq!(caps.learn(&name("p"), by(1006), alone(), 0), Verdict::Ordinary);
        }
        assert_eq!(caps.cap(&name("p")), u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_that_says_that_something_else_is_the_matter_shows_no_limit() {
        let caps = Caps::default();
        for code in OTHERWISE.into_iter().cycle().take(50) {
            assert_eq!(caps.learn(&name("p"), by(code), suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
        }
        assert_eq!(caps.learn(&name("p"), by(1006), suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
        assert_ne!(caps.learn(&name("p"), by(1011), suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn what_many_links_show_at_once_is_learned_and_said_once() {
        let caps = Caps::default();
        let learn = |frame, message| caps.learn(&name("p"), by(1009), suspect(frame, message), 0);
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
            assert_eq!(caps.learn(&name("p"), by(1006), short(), 0), Verdict::Ordinary);
        }
        assert_eq!(caps.learn(&name("p"), by(1009), short(), 0), Verdict::Hopeless(12_000));
        assert_eq!((caps.limit(&name("p"), 12_000), caps.limit(&name("p"), 11_999)), (Some(11_999), None));
        assert_eq!(caps.cap(&name("p")), u64::MAX);
        tokio::time::advance(RESTORE).await;
        assert_eq!(caps.cap(&name("p")), u64::MAX);
        assert_eq!(caps.limit(&name("p"), 12_000), None);
        // Nobody's greeting is too long.
        assert_eq!(caps.learn(&name("p"), by(1009), suspect(400, 400), 0), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_is_not_shorter_shows_nothing() {
        let caps = Caps::default();
        let after_its_like = || Some(Suspect::new(BIG, 4_000_000, Some(BIG - SAME)));
        assert_eq!(caps.learn(&name("p"), by(1006), after_its_like(), 0), Verdict::Ordinary);
        assert_eq!(caps.learn(&name("p"), by(1006), after_its_like(), 0), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn where_such_frames_passed_once_it_takes_many_closes_in_a_row() {
        let caps = Caps::default();
        for _ in 0..50 {
            assert_eq!(caps.learn(&name("p"), by(1006), suspect(BIG, 3_000_000), 0), Verdict::Ordinary);
            assert_eq!(caps.learn(&name("p"), by(1006), None, BIG), Verdict::Ordinary);
        }
        assert_eq!(caps.cap(&name("p")), u64::MAX);
        assert_eq!(closes_needed(&caps, 1006, false), MANY_CLOSES);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_floor_a_message_is_hopeless() {
        let caps = Caps::default();
        let mut frame = BIG;
        while let Verdict::Shrunk { to, .. } = caps.learn(&name("p"), by(1009), suspect(frame, 3_000_000), 0) {
            assert!((FLOOR..frame).contains(&to));
            frame = to;
        }
        assert_eq!(frame, FLOOR);
        assert_eq!((caps.limit(&name("p"), 3_000_000), caps.limit(&name("p"), 2_999_999)), (Some(FLOOR), None));
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_has_to_close_many_times_before_a_message_is_given_up() {
        let caps = Caps::default();
        let close = || caps.learn(&name("p"), by(1006), suspect(FLOOR, 3_000_000), 0);
        assert!((1..MANY_CLOSES).all(|_| close() == Verdict::Ordinary));
        assert_eq!(close(), Verdict::Hopeless(3_000_000));
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_can_be_split_only_such_a_message_is_refused_and_no_shorter_one() {
        let caps = Caps::default();
        let whole = Close { code: 1009, splits: false };
        assert_eq!(caps.learn(&name("p"), whole, suspect(BIG, BIG), 0), Verdict::Hopeless(BIG));
        assert_eq!((caps.limit(&name("p"), BIG), caps.limit(&name("p"), BIG - 1)), (Some(BIG - 1), None));
        assert_eq!(caps.learn(&name("p"), whole, suspect(BIG - 9, BIG - 9), 0), Verdict::Hopeless(BIG - 9));
        assert_eq!(caps.cap(&name("p")), u64::MAX);
        tokio::time::advance(RESTORE).await;
        assert_eq!((caps.cap(&name("p")), caps.limit(&name("p"), BIG)), (u64::MAX, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cap_is_restored_slowly() {
        let caps = Caps::default();
        caps.learn(&name("p"), by(1009), suspect(BIG, 3_000_000), 0);
        caps.learn(&name("p"), by(1009), suspect(BIG / 2, 3_000_000), 0);
        assert_eq!(caps.cap(&name("p")), BIG / 4);
        tokio::time::advance(RESTORE).await;
        assert_eq!((caps.cap(&name("p")), caps.cap(&name("p"))), (BIG / 2, BIG / 2));
        tokio::time::advance(RESTORE).await;
        assert_eq!(caps.cap(&name("p")), u64::MAX);
    }
}
