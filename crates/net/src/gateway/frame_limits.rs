//! Frame limits that peers did not declare: learned from how their links close, and remembered across connections.
//!
//! Evidence is a close with 1009, or three closes in a row, each within two seconds of the same message. Then the peer's frame
//! limit becomes half of the frame at which it closed, 16 KiB at least.
//! It is forgotten after 16 MiB have passed, or after ten minutes. If that was too early, the next evidence brings the same limit
//! back at once, and it then takes twice as many bytes, so a peer with a real limit is not closed again and again. A wrong guess
//! costs smaller frames for a while and nothing else, so no more proof is asked for.
//!
//! Where smaller frames are no help, a message is refused instead, for ten minutes: where the peer cannot reassemble, and
//! where a frame of 16 KiB was too long. There a wrong guess would cost a message, so only a 1009 counts.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::observed_link::LongFrame;
use super::peer_name::PeerName;
use super::sides::SideId;
use crate::driver::now;

/// The smallest frame limit that is tried. A relay that takes less than this takes no agent's messages.
const FLOOR: u64 = 16 << 10;
/// How long a limit holds, and how long messages are refused.
const RESTORE_TIME: Duration = Duration::from_secs(600);
/// How many bytes pass before a limit is forgotten.
const RESTORE_BYTES: u64 = 16 << 20;
/// The restore distance doubles each time that a limit was forgotten too early, up to this.
const MAX_RESTORE_BYTES: u64 = 256 << 20;
/// Peers that are remembered; past them, the one that was quiet the longest is forgotten.
const MAX_PEERS: usize = 4096;
/// How much longer the same message may be another time: its id has more digits.
const SAME_MESSAGE: u64 = 16;
/// Closes in a row after the same message that are evidence.
const EVIDENCE_CLOSES: u32 = 3;
/// A message up to here is not what a peer means that says "too long": it is an error, or a greeting.
const SHORT_MESSAGE: u64 = 512;
/// The close code of a frame that is too long.
pub(super) const TOO_BIG: u16 = 1009;
/// Close codes that name another cause: done, going away, restarting, try again later, bad gateway.
const OTHER_CAUSES: [u16; 5] = [1000, 1001, 1012, 1013, 1014];

/// What was learned about peers, by name.
#[derive(Debug, Default)]
pub(super) struct FrameLimits(Mutex<HashMap<PeerName, PeerRecord>>);

/// What was learned about one peer.
#[derive(Debug)]
struct PeerRecord {
    /// The frame limit that was learned.
    limit: Option<u64>,
    /// The closes in a row that followed the same message.
    row: Option<Row>,
    /// Messages that are refused.
    refused: Option<RefusedMessages>,
    /// Bytes that have passed since the limit last changed, and how many have to before it is forgotten.
    passed_bytes: u64,
    restore_bytes: u64,
    last_change: LimitChange,
    report: Report,
    /// When the limit last changed.
    changed: Instant,
}

/// How the limit last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitChange {
    Halved,
    /// This limit was forgotten because enough bytes had passed. If there is evidence again, that was too early.
    Forgotten(u64),
}

#[derive(Debug, Clone, Copy)]
struct Row {
    /// The length of the message.
    message: u64,
    closes: u32,
}

/// Which messages are refused.
#[derive(Debug, Clone, Copy)]
struct RefusedMessages {
    /// Those of this length, and longer ones.
    from: u64,
    /// The longest that would have been sent.
    limit: u64,
    since: Instant,
}

/// Whether a person was told of this peer's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    Due,
    Made,
}

/// How a link was closed by its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeerClose {
    /// The code.
    pub(super) code: u16,
    /// Whether the peer can reassemble what goes out in several frames.
    pub(super) reassembles: bool,
    /// The frame that the close may be because of.
    pub(super) frame: Option<LongFrame>,
}

/// What a close means for a peer's frame limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: an ordinary close.
    Ordinary,
    /// Another link has shown this already.
    Known,
    /// Frames of this length did not pass; from now on they are at most so long.
    Halved {
        /// The frame that did not pass.
        from: u64,
        /// The new limit.
        to: u64,
        /// Whether this is the first time for this peer.
        is_first: bool,
    },
    /// Messages of this length, and longer ones, are refused for a while.
    Refused(u64),
}

impl Verdict {
    /// Logs what was learned about the peer of a side.
    pub(super) fn log(self, side: SideId, peer: &PeerName, declared_cap: Option<u64>) {
        let address = match side {
            SideId::Downstream => "listen",
            SideId::Upstream => "connect",
        };
        let side = side.name();
        match self {
            Self::Ordinary | Self::Known => {}
            Self::Halved { from, to, is_first: true } => {
                let advice = declared_cap.map_or_else(
                    || format!("if you know its limit, declare it with ?cap=BYTES in the address to {address}"),
                    |cap| format!("its declared cap of {cap} seems too high"),
                );
                warn!(
                    side,
                    %peer, from, to, "this peer closes at frames of {from} bytes: they are now at most {to}; {advice}"
                );
            }
            Self::Halved { from, to, is_first: false } => {
                debug!(side, %peer, from, to, "frames to this peer are halved");
            }
            Self::Refused(size) => {
                warn!(
                    side,
                    %peer, size,
                    "this peer closes with 1009 at messages of {size} bytes, and shorter frames are no help: they are \
                     refused for ten minutes"
                );
            }
        }
    }
}

impl FrameLimits {
    /// The longest frame for a peer, as far as is known.
    pub(super) fn limit(&self, name: &PeerName) -> u64 {
        let mut peers = self.lock();
        let Some(peer) = peers.get_mut(name) else { return u64::MAX };
        peer.restore();
        peer.limit.unwrap_or(u64::MAX)
    }

    /// If a message of this length is refused: how long one may be that would be sent.
    pub(super) fn refuses(&self, name: &PeerName, len: u64) -> Option<u64> {
        let mut peers = self.lock();
        let peer = peers.get_mut(name)?;
        peer.restore();
        peer.refused.filter(|refused| len >= refused.from).map(|refused| refused.limit)
    }

    /// Notes that so many bytes have gone to a peer whose frames are limited here.
    pub(super) fn note_passed(&self, name: &PeerName, bytes: u64) {
        if let Some(peer) = self.lock().get_mut(name) {
            peer.passed_bytes = peer.passed_bytes.saturating_add(bytes);
        }
    }

    /// Learns from how a peer closed its link.
    pub(super) fn learn(&self, name: &PeerName, close: PeerClose) -> Verdict {
        let mut peers = self.lock();
        if !peers.contains_key(name) && peers.len() >= MAX_PEERS {
            let oldest = peers.iter().min_by_key(|(_, peer)| peer.changed).map(|(name, _)| name.clone());
            oldest.and_then(|name| peers.remove(&name));
        }
        peers.entry(name.clone()).or_insert_with(PeerRecord::new).learn(close)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerName, PeerRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerRecord {
    fn new() -> Self {
        Self {
            limit: None,
            row: None,
            refused: None,
            passed_bytes: 0,
            restore_bytes: RESTORE_BYTES,
            last_change: LimitChange::Halved,
            report: Report::Due,
            changed: now(),
        }
    }

    /// Forgets the limit if its time is over, or enough has passed.
    fn restore(&mut self) {
        let is_over = |since| now().saturating_duration_since(since) >= RESTORE_TIME;
        self.refused = self.refused.filter(|refused| !is_over(refused.since));
        let is_old = is_over(self.changed);
        if is_old {
            self.restore_bytes = RESTORE_BYTES;
            self.last_change = LimitChange::Halved;
        }
        if is_old {
            self.limit = None;
            self.changed = now();
        } else if self.passed_bytes >= self.restore_bytes
            && let Some(limit) = self.limit.take()
        {
            self.last_change = LimitChange::Forgotten(limit);
            self.passed_bytes = 0;
            self.changed = now();
        }
    }

    fn learn(&mut self, PeerClose { code, reassembles, frame }: PeerClose) -> Verdict {
        let row = self.row.take();
        if code == TOO_BIG {
            let frame = frame.filter(|frame| frame.message > SHORT_MESSAGE);
            return match frame {
                None => Verdict::Ordinary,
                Some(LongFrame { frame, .. }) if !reassembles => self.refuse(frame, frame.saturating_sub(1)),
                Some(LongFrame { frame, message, .. }) if frame <= FLOOR => {
                    self.refuse(message, message.saturating_sub(1).min(FLOOR))
                }
                Some(LongFrame { frame, .. }) => self.halve(frame),
            };
        }
        // A frame of the floor has no half.
        let Some(frame) = frame.filter(|frame| reassembles && frame.frame > FLOOR) else { return Verdict::Ordinary };
        if OTHER_CAUSES.contains(&code) {
            return Verdict::Ordinary;
        }
        let before = row.filter(|row| row.message.abs_diff(frame.message) <= SAME_MESSAGE);
        let closes = before.map_or(0, |row| row.closes).saturating_add(1);
        self.row = Some(Row { message: frame.message, closes });
        if closes >= EVIDENCE_CLOSES { self.halve(frame.frame) } else { Verdict::Ordinary }
    }

    /// Frames of this length do not pass: from now on they are half as long.
    fn halve(&mut self, frame: u64) -> Verdict {
        let mut to = (frame / 2).max(FLOOR);
        if self.limit.is_some_and(|limit| limit <= to) {
            return Verdict::Known;
        }
        if let LimitChange::Forgotten(before) = std::mem::replace(&mut self.last_change, LimitChange::Halved) {
            to = to.min(before);
            self.restore_bytes = self.restore_bytes.saturating_mul(2).min(MAX_RESTORE_BYTES);
        }
        self.limit = Some(to);
        self.passed_bytes = 0;
        self.changed = now();
        let is_first = std::mem::replace(&mut self.report, Report::Made) == Report::Due;
        Verdict::Halved { from: frame, to, is_first }
    }

    /// Messages of this length, and longer ones, are refused from now on.
    fn refuse(&mut self, from: u64, limit: u64) -> Verdict {
        if self.refused.is_some_and(|refused| refused.from <= from) {
            return Verdict::Known;
        }
        self.refused = Some(RefusedMessages { from, limit, since: now() });
        Verdict::Refused(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIG: u64 = 900_000;
    const MESSAGE: u64 = 3_000_000;

    fn name(text: &str) -> PeerName {
        PeerName::new(text.to_owned(), None)
    }

    /// A peer that can reassemble closes with this code right after a frame.
    fn close(code: u16, frame: u64, message: u64) -> PeerClose {
        PeerClose { frame: Some(LongFrame::new(frame, message)), ..quiet(code) }
    }

    /// A peer closes when no long frame was sent lately.
    const fn quiet(code: u16) -> PeerClose {
        PeerClose { code, reassembles: true, frame: None }
    }

    const fn first(from: u64) -> Verdict {
        Verdict::Halved { from, to: from / 2, is_first: true }
    }

    const fn later(from: u64) -> Verdict {
        Verdict::Halved { from, to: from / 2, is_first: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_1009_halves_the_limit_at_once_for_that_peer_alone() {
        let limits = FrameLimits::default();
        assert_eq!(limits.limit(&name("p")), u64::MAX);
        assert_eq!(limits.learn(&name("p"), close(1009, BIG, MESSAGE)), first(BIG));
        assert_eq!((limits.limit(&name("p")), limits.limit(&name("q"))), (BIG / 2, u64::MAX));
        assert_eq!(limits.learn(&name("p"), quiet(1009)), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_word_it_takes_three_closes_in_a_row_after_the_same_message_and_each_further_one_halves_again() {
        let limits = FrameLimits::default();
        let learn = |close| limits.learn(&name("p"), close);
        // Another message, or a close that is about none, ends the row.
        for close in [
            close(1006, BIG, MESSAGE),
            close(1006, BIG, MESSAGE),
            close(1006, BIG, 4_000_000),
            close(1006, BIG, 4_000_000),
            quiet(1006),
            close(1006, BIG, MESSAGE),
            close(1011, BIG, MESSAGE + 1),
        ] {
            assert_eq!(learn(close), Verdict::Ordinary, "{close:?}");
        }
        assert_eq!(learn(close(1006, BIG, MESSAGE + 2)), first(BIG));
        assert_eq!(learn(close(1006, BIG / 2, MESSAGE)), later(BIG / 2));
        assert_eq!(limits.limit(&name("p")), BIG / 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_that_names_another_cause_is_no_evidence() {
        let limits = FrameLimits::default();
        for code in OTHER_CAUSES.into_iter().cycle().take(50) {
            assert_eq!(limits.learn(&name("p"), close(code, BIG, MESSAGE)), Verdict::Ordinary);
        }
        for code in [1006, 1006, 1012, 1006, 1006] {
            assert_eq!(limits.learn(&name("p"), close(code, BIG, MESSAGE)), Verdict::Ordinary);
        }
        assert_eq!(limits.learn(&name("p"), close(1011, BIG, MESSAGE)), first(BIG));
    }

    #[tokio::test(start_paused = true)]
    async fn what_many_links_show_at_once_is_learned_once() {
        let limits = FrameLimits::default();
        let learn = |frame, message| limits.learn(&name("p"), close(1009, frame, message));
        assert_eq!(learn(BIG, MESSAGE), first(BIG));
        assert_eq!((learn(BIG, MESSAGE), learn(BIG, 2_000_000)), (Verdict::Known, Verdict::Known));
        assert_eq!(limits.limit(&name("p")), BIG / 2);
        assert_eq!(learn(12_000, 12_000), Verdict::Refused(12_000));
        assert_eq!((learn(12_000, 12_000), learn(11_000, 11_000)), (Verdict::Known, Verdict::Refused(11_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_floor_a_1009_refuses_the_message_and_silence_refuses_nothing() {
        let limits = FrameLimits::default();
        for _ in 0..50 {
            limits.learn(&name("silent"), close(1006, BIG, MESSAGE));
            limits.learn(&name("silent"), close(1006, FLOOR, MESSAGE));
        }
        assert_eq!(limits.refuses(&name("silent"), u64::MAX), None);
        let mut frame = BIG;
        while let Verdict::Halved { to, .. } = limits.learn(&name("p"), close(1009, frame, MESSAGE)) {
            assert!((FLOOR..frame).contains(&to));
            frame = to;
        }
        assert_eq!(frame, FLOOR);
        assert_eq!((limits.refuses(&name("p"), MESSAGE), limits.refuses(&name("p"), MESSAGE - 1)), (Some(FLOOR), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_message_is_refused_after_a_1009_and_only_for_a_while() {
        let limits = FrameLimits::default();
        let short = |code| limits.learn(&name("p"), close(code, 12_000, 12_000));
        assert!((0..50).all(|_| short(1006) == Verdict::Ordinary));
        assert_eq!(short(1009), Verdict::Refused(12_000));
        assert_eq!((limits.refuses(&name("p"), 12_000), limits.refuses(&name("p"), 11_999)), (Some(11_999), None));
        assert_eq!(limits.limit(&name("p")), u64::MAX);
        tokio::time::advance(RESTORE_TIME).await;
        assert_eq!(limits.refuses(&name("p"), 12_000), None);
        // A message this short is no evidence of a limit.
        assert_eq!(limits.learn(&name("p"), close(1009, 400, 400)), Verdict::Ordinary);
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_peer_cannot_reassemble_only_a_1009_counts_and_refuses_such_messages() {
        let limits = FrameLimits::default();
        let whole = |code, frame| PeerClose { reassembles: false, ..close(code, frame, frame) };
        assert!((0..50).all(|_| limits.learn(&name("p"), whole(1006, BIG)) == Verdict::Ordinary));
        assert_eq!(limits.learn(&name("p"), whole(1009, BIG)), Verdict::Refused(BIG));
        assert_eq!((limits.refuses(&name("p"), BIG), limits.refuses(&name("p"), BIG - 1)), (Some(BIG - 1), None));
        assert_eq!(limits.limit(&name("p")), u64::MAX);
        tokio::time::advance(RESTORE_TIME).await;
        assert_eq!((limits.limit(&name("p")), limits.refuses(&name("p"), BIG)), (u64::MAX, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_forgotten_after_ten_minutes() {
        let limits = FrameLimits::default();
        limits.learn(&name("p"), close(1009, BIG, MESSAGE));
        limits.learn(&name("p"), close(1009, BIG / 2, MESSAGE));
        assert_eq!(limits.limit(&name("p")), BIG / 4);
        tokio::time::advance(RESTORE_TIME).await;
        assert_eq!(limits.limit(&name("p")), u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_forgotten_after_16_mib_and_if_that_was_too_early_it_is_back_at_once_for_longer() {
        let limits = FrameLimits::default();
        let needed = |limits: &FrameLimits, peer| {
            let before = limits.limit(&name(peer));
            let mib = (1..10_000).find(|_| {
                limits.note_passed(&name(peer), 1 << 20);
                limits.limit(&name(peer)) > before
            });
            mib.unwrap_or(u64::MAX)
        };
        for mib in [16, 32, 64, 128, 256, 256] {
            limits.learn(&name("p"), close(1009, BIG, MESSAGE));
            assert_eq!(limits.limit(&name("p")), BIG / 2);
            assert_eq!(needed(&limits, "p"), mib);
        }
        // Three closes have shown it, and one is enough the next time.
        for frame in [BIG, BIG / 2, BIG / 4] {
            limits.learn(&name("q"), close(1009, frame, MESSAGE));
        }
        assert_eq!((limits.limit(&name("q")), needed(&limits, "q")), (BIG / 8, 16));
        assert_eq!(limits.limit(&name("q")), u64::MAX);
        limits.learn(&name("q"), close(1009, BIG, MESSAGE));
        assert_eq!(limits.limit(&name("q")), BIG / 8);
        // After ten quiet minutes it begins anew.
        limits.learn(&name("p"), close(1009, BIG, MESSAGE));
        tokio::time::advance(RESTORE_TIME).await;
        assert_eq!(limits.limit(&name("p")), u64::MAX);
        limits.learn(&name("p"), close(1009, BIG, MESSAGE));
        assert_eq!(needed(&limits, "p"), 16);
    }
}
