//! Frames as sealed text, and back.
//!
//! A frame is cut into pieces of [`PIECE`] bytes. To each a [`Mark`] is added, which says whether it is the last, and each becomes one Noise
//! message with the next number of its direction. The frame on the link is the base64 text of these messages, one after the other, without
//! padding. A whole piece is a multiple of 3 bytes long, so each piece has a text of its own. On a link that carries bytes, the frame is the
//! messages themselves.
//!
//! Whatever is changed about the texts is noticed: a piece that was altered, or that comes in another place, cannot be opened; a frame
//! from whose end pieces were cut off has no last piece, and one that was joined to another has its last piece too early.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as STRICT;
use base64_turbo::STANDARD_NO_PAD as FAST;
use breakbulk_proto::Message;
use bytes::Bytes;
use snow::TransportState;

/// The longest Noise message.
const NOISE: usize = 65_535;
/// What Noise adds to each: the tag that authenticates it.
const TAG: usize = 16;
/// What is added to each piece of a frame: its mark and the tag.
const ADDED: usize = TAG + 1;
/// The bytes of a frame in one Noise message.
const PIECE: usize = NOISE - ADDED;
/// The text of a whole Noise message.
const CODED: usize = NOISE / 3 * 4;

/// How many Noise messages one key seals, for each direction: at most 4 GiB. AES-GCM is proven for far more, and a new key costs as much as
/// a small frame.
const REKEY_AFTER: u64 = 1 << 16;

/// How long the sealed text of a frame is.
#[must_use]
pub const fn sealed_len(bytes: u64) -> u64 {
    let (piece, added, coded) = (PIECE as u64, ADDED as u64, CODED as u64);
    let whole = bytes.saturating_sub(1) / piece;
    let rest = bytes.saturating_sub(whole.saturating_mul(piece)).saturating_add(added);
    whole.saturating_mul(coded).saturating_add(coded_len(rest))
}

/// The longest frame whose sealed text is at most this long; none is 0.
#[must_use]
pub const fn longest_within(sealed: u64) -> u64 {
    if sealed == u64::MAX {
        return u64::MAX;
    }
    let (piece, added, coded) = (PIECE as u64, ADDED as u64, CODED as u64);
    let rest = sealed % coded;
    let bytes = rest / 4 * 3 + (rest % 4).saturating_sub(1);
    (sealed / coded).saturating_mul(piece).saturating_add(bytes.saturating_sub(added))
}

/// The length of base64 without padding.
const fn coded_len(bytes: u64) -> u64 {
    let (threes, rest) = (bytes / 3, bytes % 3);
    threes.saturating_mul(4).saturating_add(if rest == 0 { 0 } else { rest.saturating_add(1) })
}

/// What a Noise message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// A piece of a frame, of which more follow.
    More,
    /// The last piece of a frame.
    Last,
    /// A close.
    Close,
}

impl Mark {
    const fn byte(self) -> u8 {
        match self {
            Self::More => 0,
            Self::Last => 1,
            Self::Close => 2,
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::More),
            1 => Some(Self::Last),
            2 => Some(Self::Close),
            _ => None,
        }
    }
}

/// What was in a sealed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Opened {
    /// A frame.
    Frame(Bytes),
    /// The peer's close.
    Close {
        /// Its code.
        code: u16,
        /// The text with it.
        text: String,
    },
}

/// How the Noise messages of a frame are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    /// As base64.
    Text,
    /// As they are.
    Bytes,
}

/// The keys of both directions.
pub(super) struct Session {
    noise: TransportState,
    coding: Coding,
}

impl Session {
    pub(super) const fn new(noise: TransportState, coding: Coding) -> Self {
        Self { noise, coding }
    }

    pub(super) const fn coding(&self) -> Coding {
        self.coding
    }

    /// A sealed frame. In pieces, so that no large memory is needed for it.
    pub(super) fn seal(&mut self, frame: &Message) -> Result<Message, snow::Error> {
        self.seal_as(frame, Mark::Last)
    }

    /// A sealed close.
    pub(super) fn seal_close(&mut self, code: u16, text: &str) -> Result<Message, snow::Error> {
        let close: Vec<u8> = code.to_be_bytes().iter().chain(text.as_bytes()).copied().collect();
        self.seal_as(&close.into(), Mark::Close)
    }

    fn seal_as(&mut self, frame: &Message, last: Mark) -> Result<Message, snow::Error> {
        let longest = frame.len().min(PIECE);
        let (mut piece, mut sealed) = (Vec::with_capacity(longest + 1), vec![0; longest + ADDED]);
        let (mut left, mut texts) = (frame.len(), Vec::new());
        let mut runs = frame.slices();
        let mut run: &[u8] = &[];
        loop {
            piece.clear();
            while piece.len() < left.min(PIECE) {
                if run.is_empty() {
                    // There are as many bytes as the message says.
                    run = runs.next().ok_or(snow::Error::Input)?;
                }
                let (now, later) = run.split_at(run.len().min(left.min(PIECE) - piece.len()));
                piece.extend_from_slice(now);
                run = later;
            }
            left -= piece.len();
            let mark = if left == 0 { last } else { Mark::More };
            piece.push(mark.byte());
            let len = self.noise.write_message(&piece, &mut sealed)?;
            if self.noise.sending_nonce().is_multiple_of(REKEY_AFTER) {
                self.noise.rekey_outgoing();
            }
            texts.push(match self.coding {
                Coding::Bytes => Bytes::copy_from_slice(&sealed[..len]),
                Coding::Text => {
                    let mut text = vec![0; FAST.encoded_len(len)];
                    FAST.encode_slice(&sealed[..len], &mut text).map_err(|_too_short| snow::Error::Input)?;
                    text.into()
                }
            });
            if mark != Mark::More {
                return Ok(texts.into_iter().collect());
            }
        }
    }

    /// What is in a sealed frame; `None` if it is not what the peer sent next. After that, nothing more can be opened.
    pub(super) fn open(&mut self, sealed: &[u8]) -> Option<Opened> {
        let mut decoded = match self.coding {
            Coding::Text => vec![0; sealed.len().min(NOISE)],
            Coding::Bytes => Vec::new(),
        };
        let mut opened = Vec::with_capacity(sealed.len());
        let mut pieces = sealed.chunks(self.coding.whole()).peekable();
        loop {
            let piece = pieces.next()?;
            let noise = match self.coding {
                Coding::Text => {
                    let len = decode(piece, &mut decoded)?;
                    &decoded[..len]
                }
                Coding::Bytes => piece,
            };
            let done = opened.len();
            // The tag has a place there, too, until it was checked.
            opened.resize(done + noise.len(), 0);
            let len = self.noise.read_message(noise, &mut opened[done..]).ok()?;
            opened.truncate(done + len);
            if self.noise.receiving_nonce().is_multiple_of(REKEY_AFTER) {
                self.noise.rekey_incoming();
            }
            match (Mark::of(opened.pop()?), pieces.peek()) {
                (Some(Mark::More), Some(_)) => {}
                (Some(Mark::Last), None) => return Some(Opened::Frame(opened.into())),
                (Some(Mark::Close), None) => return close(&opened),
                _ => return None,
            }
        }
    }
}

impl Coding {
    /// How long a sealed frame is.
    pub(super) const fn sealed_len(self, bytes: u64) -> u64 {
        match self {
            Self::Text => sealed_len(bytes),
            Self::Bytes => {
                let whole = bytes.saturating_sub(1) / PIECE as u64;
                bytes.saturating_add(whole.saturating_add(1).saturating_mul(ADDED as u64))
            }
        }
    }

    /// How long a whole Noise message is in a frame.
    const fn whole(self) -> usize {
        match self {
            Self::Text => CODED,
            Self::Bytes => NOISE,
        }
    }
}

/// The code and the text of a close.
fn close(bytes: &[u8]) -> Option<Opened> {
    let (code, text) = bytes.split_first_chunk()?;
    Some(Opened::Close { code: u16::from_be_bytes(*code), text: String::from_utf8_lossy(text).into_owned() })
}

/// Decodes the text of one Noise message; `None` if it is not canonical. Returns how long the message is.
fn decode(text: &[u8], noise: &mut [u8]) -> Option<usize> {
    // The fast decoder ignores stray bits in the last character of a text that is no multiple of four.
    let (whole, rest) = text.split_at(text.len() / 4 * 4);
    let len = whole.len() / 4 * 3;
    let (place, end) = noise.split_at_mut_checked(len)?;
    let whole = if whole.is_empty() { 0 } else { FAST.decode_slice(whole, place).ok()? };
    let rest = if rest.is_empty() { 0 } else { STRICT.decode_slice(rest, end).ok()? };
    Some(whole + rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two sessions with the same keys.
    pub(super) fn pair(coding: Coding) -> (Session, Session) {
        let params = || "Noise_NN_25519_AESGCM_SHA256".parse().unwrap();
        let mut left = snow::Builder::new(params()).build_initiator().unwrap();
        let mut right = snow::Builder::new(params()).build_responder().unwrap();
        let (mut message, mut payload) = ([0; 128], [0; 128]);
        let len = left.write_message(&[], &mut message).unwrap();
        right.read_message(&message[..len], &mut payload).unwrap();
        let len = right.write_message(&[], &mut message).unwrap();
        left.read_message(&message[..len], &mut payload).unwrap();
        [left, right].map(|side| Session::new(side.into_transport_mode().unwrap(), coding)).into()
    }

    fn codings() -> impl Strategy<Value = Coding> {
        prop_oneof![Just(Coding::Text), Just(Coding::Bytes)]
    }

    fn text(len: usize) -> Vec<u8> {
        (0..len).map(|at| b'a' + (at % 23) as u8).collect()
    }

    /// Lengths around those at which something changes.
    fn lens() -> impl Strategy<Value = usize> {
        prop_oneof![0..200_usize, PIECE - 3..PIECE + 3, 2 * PIECE - 3..2 * PIECE + 3, 0..300_000_usize]
    }

    proptest! {
        #[test]
        fn what_was_sealed_is_opened_and_its_length_was_known(
            coding in codings(),
            lens in prop::collection::vec(lens(), 1..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let (mut from, mut to) = pair(coding);
            for len in lens {
                let frame = Bytes::from(text(len));
                let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).chain([0, len]).collect();
                ends.sort_unstable();
                let rope: Message = ends.windows(2).map(|ends| frame.slice(ends[0]..ends[1])).collect();
                let sealed = from.seal(&rope).unwrap();
                prop_assert_eq!(sealed.len() as u64, coding.sealed_len(len as u64));
                prop_assert_eq!(to.open(&sealed.to_bytes()), Some(Opened::Frame(frame)));
            }
        }

        #[test]
        fn the_longest_frame_within_a_cap_fits_and_one_byte_more_does_not(
            cap in prop_oneof![24_u64..2_000, CODED as u64 - 30..CODED as u64 + 30, 24..2_000_000_u64],
        ) {
            let longest = longest_within(cap);
            prop_assert!(sealed_len(longest) <= cap, "{longest}");
            prop_assert!(sealed_len(longest + 1) > cap, "{longest}");
        }

        #[test]
        fn the_overhead_does_not_shrink_as_the_text_grows(coding in codings(), len in prop_oneof![0..400_000_u64, any::<u32>().prop_map(u64::from)]) {
            prop_assert!(coding.sealed_len(len + 1) - (len + 1) >= coding.sealed_len(len) - len);
        }

        #[test]
        fn no_change_of_a_sealed_frame_goes_unnoticed(
            coding in codings(),
            len in prop_oneof![0..50_usize, PIECE - 2..PIECE + 2, 2 * PIECE - 2..2 * PIECE + 20],
            at in any::<prop::sample::Index>(),
            change in 0..6_u8,
            bit in 0..8_u8,
        ) {
            let (mut from, mut to) = pair(coding);
            let first = from.seal(&text(len).into()).unwrap().to_bytes();
            let second = from.seal(&text(3).into()).unwrap().to_bytes();
            let mut sealed = first.to_vec();
            let at = at.index(sealed.len());
            match change {
                0 => sealed[at] ^= 1 << bit,
                1 => sealed.truncate(at),
                2 => drop(sealed.remove(at)),
                3 => sealed.insert(at, b'A'),
                4 => sealed = second.to_vec(),
                _ => sealed.extend_from_slice(&second),
            }
            prop_assert_eq!(to.open(&sealed), None);
        }
    }

    #[test]
    fn a_frame_without_its_last_pieces_and_one_that_comes_twice_are_noticed() {
        let (mut from, mut to) = pair(Coding::Text);
        let sealed = from.seal(&text(3 * PIECE).into()).unwrap().to_bytes();
        assert_eq!(to.open(&sealed[..2 * CODED]), None);
        let (mut from, mut to) = pair(Coding::Text);
        let sealed = from.seal(&text(9).into()).unwrap().to_bytes();
        assert_eq!(to.open(&sealed), Some(Opened::Frame(text(9).into())));
        assert_eq!(to.open(&sealed), None);
        assert_eq!(to.open(&[]), None);
    }

    #[test]
    fn a_direction_cannot_be_turned_around() {
        let (mut from, _) = pair(Coding::Text);
        let sealed = from.seal(&text(9).into()).unwrap().to_bytes();
        assert_eq!(from.open(&sealed), None);
    }

    #[test]
    fn a_close_is_sealed_with_its_code_and_text() {
        let (mut from, mut to) = pair(Coding::Text);
        let sealed = from.seal_close(4411, "the client is too slow").unwrap().to_bytes();
        let close = Opened::Close { code: 4411, text: "the client is too slow".into() };
        assert_eq!(to.open(&sealed), Some(close));
    }

    #[test]
    fn both_sides_change_their_keys_at_the_same_message() {
        let (mut from, mut to) = pair(Coding::Text);
        let start = from.noise.sending_nonce();
        let keep = from.seal(&text(5).into()).unwrap().to_bytes();
        to.open(&keep).unwrap();
        for _ in 0..REKEY_AFTER + 2 {
            let sealed = from.seal(&text(5).into()).unwrap().to_bytes();
            assert_eq!(to.open(&sealed), Some(Opened::Frame(text(5).into())));
        }
        assert_eq!((start, to.noise.receiving_nonce()), (0, REKEY_AFTER + 3));
        // Without the change on one side, the next message could not be opened.
        let (mut from, mut to) = pair(Coding::Text);
        from.noise.rekey_outgoing();
        assert!(to.open(&from.seal(&text(5).into()).unwrap().to_bytes()).is_none());
    }
}
