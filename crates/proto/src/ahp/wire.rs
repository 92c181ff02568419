//! The wire form of `ahp/messageSegment`: written from a fixed template, recognised by it, or parsed in any spelling.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as STRICT;
use base64_turbo::STANDARD as FAST;
use bytes::{BufMut, Bytes, BytesMut};
use strum::EnumString;

use crate::assembly::Assembly;
use crate::envelope::{AhpMembers, ENVELOPE, Envelope, is_version_2};
use crate::error::{Over, SendError, Violation};
use crate::json::{self, Found, Number, Path, Paths, ValueKind};
use crate::machine::Capacity;
use crate::mcp_order::CANCELLED;
use crate::message::{Message, MessageReader, len_usize, len64};
use crate::outgoing::largest;
use crate::rpc;

/// A message has fewer segments than this.
pub(crate) const TOTAL_LIMIT: u64 = 1 << 16;
const INDEX_LIMIT: u64 = 1 << 31;
const MAX_GROUP_ID: usize = 128;

/// Methods that belong to the framing layer. Unknown `ahp/…` methods are passed to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString)]
pub(crate) enum Control {
    /// One piece of a message.
    #[strum(serialize = "ahp/messageSegment")]
    Segment,
}

impl Control {
    /// The method of a message, if it belongs to the framing layer.
    pub(crate) fn of(envelope: &Envelope, message: &Message) -> Option<Self> {
        envelope.method(message)?.parse().ok()
    }
}

const HEAD: &str = r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":""#;
const INDEX: &str = r#"","index":"#;
const TOTAL: &str = r#","total":"#;
const DATA: &str = r#","data":""#;
const TAIL: &str = r#""}}"#;
/// Hex digits of a group id of ours.
const GROUP_ID_LEN: usize = 32;
/// The length of a segment frame without its numbers and its data.
const FIXED: usize = HEAD.len() + GROUP_ID_LEN + INDEX.len() + TOTAL.len() + DATA.len() + TAIL.len();
/// How many quotes a segment frame has. Inside a JSON string, it is longer by that many bytes.
const QUOTES: u64 = 22;

/// How a message is cut. Fixed when its group starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentPlan {
    /// Bytes of the message in each segment but the last: a multiple of 3, so that only the last has padding.
    pub(crate) size: u64,
    pub(crate) total: u64,
}

impl SegmentPlan {
    /// Cuts `len` bytes into segments whose frames are at most `frame` bytes.
    pub(crate) fn new(len: u64, frame: u64) -> Result<Self, SendError> {
        let refused = SendError::TooManySegments(Over { size: len, limit: TOTAL_LIMIT.saturating_sub(1) });
        // Longer numbers leave less space for data, so the smallest number of digits that suffices is used.
        let mut plans = (1..=5_u64).filter_map(|digits| {
            let text = frame.checked_sub(len64(FIXED).saturating_add(digits.saturating_mul(2)))?;
            let size = text.checked_div(4)?.checked_mul(3).filter(|size| *size > 0)?;
            let total = len.div_ceil(size).max(1);
            (total < TOTAL_LIMIT && digits_of(total) <= digits).then_some(Self { size, total })
        });
        plans.next().ok_or(refused)
    }

    /// The length of the longest frame.
    pub(crate) fn longest_frame(&self) -> u64 {
        let digits = digits_of(self.total).saturating_mul(2);
        len64(FIXED).saturating_add(digits).saturating_add(len64(encoded_len(len_usize(self.size))))
    }
}

/// The longest segment frame that fits both the peer's cap and the link's.
pub(crate) fn largest_frame(peer: u64, link: &Capacity) -> u64 {
    largest(link, peer, |bytes| bytes.saturating_add(QUOTES))
}

/// Bytes encoded or decoded at once: a multiple of 3, about a third of a first-level cache, where they stay meanwhile.
const PIECE: usize = 12 << 10;
const CODED_PIECE: usize = 16 << 10;

/// Writes segment frames.
#[derive(Default)]
pub(crate) struct SegmentWriter {
    frame: BytesMut,
}

impl SegmentWriter {
    /// The segment frame with the next bytes of `reader`; its group id is `id` in hex.
    pub(crate) fn write(&mut self, id: u128, index: u64, plan: SegmentPlan, reader: &mut MessageReader) -> Message {
        let (len, total) = (len_usize(plan.size).min(reader.left()), plan.total);
        let front = format_args!("{HEAD}{id:032x}{INDEX}{index}{TOTAL}{total}{DATA}");
        if let Some(text) = reader.message().coded(|message| self.encode_whole(message)).cloned() {
            let range = encoded_len(reader.done())..encoded_len(reader.done().saturating_add(len));
            let data = text.slice_ref(text.get(range).unwrap_or_default());
            reader.skip(len);
            return [front.to_string().into(), data, Bytes::from_static(TAIL.as_bytes())].into_iter().collect();
        }
        // If the link has dropped the last frame, this uses its memory again.
        self.frame.reserve(len_usize(plan.longest_frame()));
        // Writing to memory that grows does not fail.
        let _ = self.frame.write_fmt(front);
        self.encode(len, reader);
        self.frame.put_slice(TAIL.as_bytes());
        // After the last frame the memory is given up, or ten thousand idle connections would each keep a frame.
        let is_last = reader.left() == 0;
        if is_last { std::mem::take(&mut self.frame) } else { self.frame.split() }.freeze().into()
    }

    /// Adds the next bytes of `reader` to the frame, as base64.
    fn encode(&mut self, len: usize, reader: &mut MessageReader) {
        let frame = &mut self.frame;
        reader.take::<PIECE>(len, 3, |run| {
            let at = frame.len();
            frame.resize(at.saturating_add(encoded_len(run.len())), 0);
            let written = FAST.encode_slice(run, frame.get_mut(at..).unwrap_or_default());
            frame.truncate(at.saturating_add(written.unwrap_or(0)));
        });
    }

    /// The base64 text of a whole message. That of each segment is a part of it, because all segments but the last are a multiple
    /// of 3 bytes long.
    fn encode_whole(&mut self, message: &Message) -> Bytes {
        self.frame = BytesMut::with_capacity(encoded_len(message.len()));
        self.encode(message.len(), &mut MessageReader::new(message.clone()));
        std::mem::take(&mut self.frame).freeze()
    }
}

/// Decodes canonical base64 into a message. If a piece is not canonical, returns how many characters were decoded before it.
pub(crate) fn decode<const N: usize>(data: &[u8], into: &mut Assembly<N>) -> Result<Result<(), usize>, Violation> {
    let mut done = 0_usize;
    let mut pieces = data.chunks(CODED_PIECE).peekable();
    while let Some(piece) = pieces.next() {
        // Only the last piece may have padding, which makes it stand for fewer bytes.
        let len = if pieces.peek().is_some() { PIECE } else { len_usize(decoded_len(piece)) };
        if !into.write::<PIECE>(len, |place| decode_piece(piece, place) == Some(place.len()))? {
            return Ok(Err(done));
        }
        done = done.saturating_add(piece.len());
    }
    Ok(Ok(()))
}

/// Decodes one piece. If it has padding, the strict decoder does it, because that also refuses stray bits before the padding.
fn decode_piece(piece: &[u8], place: &mut [u8]) -> Option<usize> {
    if piece.ends_with(b"=") { STRICT.decode_slice(piece, place).ok() } else { FAST.decode_slice(piece, place).ok() }
}

impl std::fmt::Debug for SegmentWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SegmentWriter")
    }
}

/// A segment as it arrived. Its group id was checked; its numbers and data were not yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) group_id: Cow<'a, [u8]>,
    index: Number,
    total: Number,
    data: Option<Cow<'a, [u8]>>,
}

impl<'a> Segment<'a> {
    /// Recognises a segment that is written exactly as [`SegmentWriter::write`] writes it, without reading its data. If the data turns out
    /// to be base64, the frame is what it seems. If not, only [`parse`](Self::parse) can tell.
    pub(crate) fn recognise(frame: &'a [u8]) -> Option<Self> {
        let rest = frame.strip_prefix(HEAD.as_bytes())?;
        let window = rest.get(..MAX_GROUP_ID.saturating_add(1)).unwrap_or(rest);
        // Printable ASCII that needs no escape.
        let id_len = window.iter().position(|byte| !matches!(byte, b' ' | b'!' | b'#'..=b'[' | b']'..=b'~'))?;
        let (group_id, rest) = rest.split_at_checked(id_len).filter(|(id, _)| !id.is_empty())?;
        let (index, rest) = take_integer(rest.strip_prefix(INDEX.as_bytes())?)?;
        let (total, rest) = take_integer(rest.strip_prefix(TOTAL.as_bytes())?)?;
        let data = rest.strip_prefix(DATA.as_bytes())?.strip_suffix(TAIL.as_bytes())?;
        Some(Self { group_id: Cow::Borrowed(group_id), index, total, data: Some(Cow::Borrowed(data)) })
    }

    /// Reads a segment in any legal spelling. `paths` and `envelope` are those of `frame`.
    pub(crate) fn parse(frame: &'a Message, paths: &Paths<PATH_COUNT>, envelope: &Envelope) -> Result<Self, Violation> {
        if envelope.id_value().is_some() {
            return Err(Violation::SegmentWithId);
        }
        if !is_version_2(frame, paths) {
            return Err(Violation::SegmentNotJsonRpc);
        }
        if envelope.params().is_none_or(|params| params.kind != ValueKind::Object) {
            return Err(Violation::SegmentParamsNotObject);
        }
        let keys = [(GROUP_ID_AT, "groupId"), (INDEX_AT, "index"), (TOTAL_AT, "total"), (DATA_AT, "data")];
        if let Some((_, key)) = keys.into_iter().find(|(at, _)| paths.repeated(*at)) {
            return Err(Violation::DuplicateKey(key));
        }
        let group_id = string(frame, paths.get(GROUP_ID_AT)).ok_or(Violation::GroupIdMissing)?;
        if group_id.is_empty() {
            return Err(Violation::GroupIdEmpty);
        }
        if group_id.len() > MAX_GROUP_ID {
            return Err(Violation::GroupIdTooLong(len64(group_id.len())));
        }
        let number = |at| rpc::number(frame, paths.get(at));
        let data = string(frame, paths.get(DATA_AT));
        Ok(Self { group_id, index: number(INDEX_AT), total: number(TOTAL_AT), data })
    }

    /// Whether this is the first segment of its group, by its index.
    pub(crate) fn begins(&self) -> bool {
        self.index == Number::Int(0)
    }

    /// The index and the total, after checking that both are in range, and the index is below the total.
    pub(crate) fn numbers(&self) -> Result<(u32, u32), Violation> {
        let within = |number: Number, range: Range<u64>| {
            number.to_u64().filter(|value| range.contains(value)).and_then(|value| u32::try_from(value).ok())
        };
        let index = within(self.index, 0..INDEX_LIMIT).ok_or(Violation::IndexInvalid)?;
        if matches!(self.total, Number::Fraction | Number::NotANumber) {
            return Err(Violation::TotalInvalid);
        }
        let total = within(self.total, 1..TOTAL_LIMIT).ok_or(Violation::TotalOutOfRange)?;
        if index >= total {
            return Err(Violation::IndexBeyondTotal { index, total });
        }
        Ok((index, total))
    }

    /// The data, still encoded.
    pub(crate) fn data(&self) -> Result<&[u8], Violation> {
        self.data.as_deref().ok_or(Violation::DataMissing)
    }
}

/// How many bytes canonical base64 of this text stands for.
pub(crate) fn decoded_len(data: &[u8]) -> u64 {
    let padding = data.iter().rev().take(2).filter(|byte| **byte == b'=').count();
    len64(data.len()).div_ceil(4).saturating_mul(3).saturating_sub(len64(padding))
}

/// What is searched for in each message: the envelope, the params of a segment, and what decides the order of a message.
pub(crate) const PATH_COUNT: usize = 16;
pub(crate) static PATHS: [Path; PATH_COUNT] = [
    ENVELOPE[0],
    ENVELOPE[1],
    ENVELOPE[2],
    ENVELOPE[3],
    ENVELOPE[4],
    ENVELOPE[5],
    &["params", "groupId"],
    &["params", "index"],
    &["params", "total"],
    &["params", "data"],
    &["params", "channel"],
    &["params", "serverSeq"],
    &["params", "action", "type"],
    &["params", "origin", "clientId"],
    &["params", "origin", "clientSeq"],
    &["params", "rejectionReason"],
];
/// What is searched for in a message to send: the same, and the request that a cancel names. A group that is arriving needs less
/// memory without it.
pub(crate) const SEND_PATH_COUNT: usize = PATH_COUNT + 2;
pub(crate) static SEND_PATHS: [Path; SEND_PATH_COUNT] = {
    let mut paths = [CANCELLED[0]; SEND_PATH_COUNT];
    paths.split_at_mut(PATH_COUNT).0.copy_from_slice(&PATHS);
    paths[PATH_COUNT + 1] = CANCELLED[1];
    paths
};
const GROUP_ID_AT: usize = 6;
const INDEX_AT: usize = 7;
const TOTAL_AT: usize = 8;
const DATA_AT: usize = 9;
pub(crate) const CHANNEL_AT: usize = 10;
const SERVER_SEQ_AT: usize = 11;
pub(crate) const ACTION_AT: usize = 12;
const ORIGIN_CLIENT_AT: usize = 13;
const ORIGIN_SEQ_AT: usize = 14;
const REJECTION_AT: usize = 15;
/// Where a cancel names its request.
pub(crate) const CANCELLED_AT: [usize; 2] = [16, 17];

/// What was found in the params of a message with this method.
pub(crate) fn members(message: &Message, paths: &Paths<PATH_COUNT>, method: &str) -> AhpMembers {
    let channel = paths.get(CHANNEL_AT);
    let action_type = paths.get(ACTION_AT);
    if method != "action" {
        return AhpMembers { channel, action_type, ..AhpMembers::default() };
    }
    AhpMembers {
        channel,
        seq: rpc::number(message, paths.get(SERVER_SEQ_AT)).to_u64(),
        action_type,
        origin_client: paths.get(ORIGIN_CLIENT_AT),
        origin_seq: rpc::number(message, paths.get(ORIGIN_SEQ_AT)).to_u64(),
        is_rejected: paths.get(REJECTION_AT).is_some_and(|reason| reason.kind == ValueKind::String),
    }
}

fn string<'a>(frame: &'a Message, found: Option<Found>) -> Option<Cow<'a, [u8]>> {
    rpc::string(frame, found).map(|text| match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    })
}

/// Reads a short integer that is followed by a comma. Returns it and the rest of the text.
fn take_integer(text: &[u8]) -> Option<(Number, &[u8])> {
    let (digits, rest) = text.split_at_checked(text.iter().take(11).position(|byte| *byte == b',')?)?;
    let number = json::number(digits);
    matches!(number, Number::Int(_)).then_some((number, rest))
}

fn digits_of(value: u64) -> u64 {
    u64::from(value.checked_ilog10().unwrap_or(0)).saturating_add(1)
}

const fn encoded_len(len: usize) -> usize {
    len.div_ceil(3).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::budget::{Budget, Schedule};
    use crate::message::SharedMessage;

    /// Decodes a text that is inside a JSON string.
    fn decode_string(data: &[u8]) -> (Result<(), usize>, u64) {
        let schedule = Schedule { started: Instant::now(), timeout: Duration::from_secs(1) };
        let mut into = Assembly::begin(&Budget::default().account(None), 1, 9, schedule, &PATHS).unwrap();
        into.push(b"\"").unwrap();
        let done = decode(data, &mut into).unwrap();
        (done, into.len() - 1)
    }

    fn frame_of(message: &str, frame: u64) -> Vec<Bytes> {
        frames(Message::from(message.to_owned()), frame).iter().map(Message::to_bytes).collect()
    }

    fn frames(message: Message, frame: u64) -> Vec<Message> {
        let plan = SegmentPlan::new(message.len() as u64, frame).unwrap();
        let mut reader = MessageReader::new(message);
        let mut writer = SegmentWriter::default();
        let id = u128::from_be_bytes([0xab; 16]);
        (0..plan.total).map(|index| writer.write(id, index, plan, &mut reader)).collect()
    }

    #[test]
    fn memory_of_a_frame_is_kept_for_the_next_and_let_go_of_with_the_last() {
        let message = Message::from("x".repeat(1_000));
        let plan = SegmentPlan::new(1_000, 600).unwrap();
        let (mut reader, mut writer) = (MessageReader::new(message), SegmentWriter::default());
        let alone: Vec<bool> =
            (0..plan.total).map(|index| writer.write(7, index, plan, &mut reader).parts()[0].is_unique()).collect();
        assert_eq!(alone, [false, false, true]);
    }

    #[test]
    fn a_message_for_many_is_cut_as_any_other_and_coded_once_for_all() {
        let text: String = (0..40_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
        for len in [1, 2, 3, 4_000, 39_999, 40_000] {
            let parts = [&text[..len / 3], &text[len / 3..len]];
            let rope: Message = parts.iter().map(|part| Bytes::copy_from_slice(part.as_bytes())).collect();
            let shared = Arc::new(SharedMessage::new(rope));
            let datum = |frame: &Message| frame.parts()[1].as_ptr_range();
            for cap in [600, 1_000, 20_000, 1_000_000] {
                let [ours, theirs] = [0; 2].map(|_| frames(shared.message(), cap));
                assert_eq!(ours, frames(Message::from(text[..len].to_owned()), cap), "{len} at {cap}");
                assert!(ours.iter().map(datum).eq(theirs.iter().map(datum)), "the text is the same memory");
            }
        }
    }

    fn parsed(frame: &[u8]) -> Result<(Vec<u8>, u32, u32, Vec<u8>), Violation> {
        let message = Message::from(frame.to_vec());
        let paths = json::find(message.slices(), &PATHS).map_err(Violation::FrameNotJson)?;
        let envelope = Envelope::read(&paths)?;
        assert_eq!(envelope.method(&message).unwrap().parse(), Ok(Control::Segment));
        proven(&Segment::parse(&message, &paths, &envelope)?)
    }

    fn proven(segment: &Segment<'_>) -> Result<(Vec<u8>, u32, u32, Vec<u8>), Violation> {
        let (index, total) = segment.numbers()?;
        Ok((segment.group_id.to_vec(), index, total, segment.data()?.to_vec()))
    }

    #[test]
    fn a_frame_is_exactly_as_long_as_planned_and_never_longer_than_the_cap() {
        for len in [1, 2, 3, 100, 999, 20_000, 300_000] {
            for cap in (160..400).chain([900, 65_536]) {
                let Ok(plan) = SegmentPlan::new(len, cap) else { continue };
                let frames = frame_of(&"x".repeat(len as usize), cap);
                let longest = frames.iter().map(Bytes::len).max().unwrap() as u64;
                assert!(longest <= cap, "{longest} over {cap}");
                assert_eq!(frames.len() as u64, plan.total);
                assert!(plan.size % 3 == 0);
                if plan.total > 1 && digits_of(plan.total - 2) == digits_of(plan.total) {
                    assert_eq!(longest, plan.longest_frame());
                    assert!(longest + 4 + 2 > cap, "a larger segment would fit: {longest} of {cap}");
                }
            }
        }
    }

    #[test]
    fn what_is_coded_is_not_shown() {
        assert_eq!(format!("{:?}", SegmentWriter::default()), "SegmentWriter");
    }

    #[test]
    fn the_quotes_of_a_frame_are_counted_right() {
        let frame = &frame_of("abc", 400)[0];
        assert_eq!(json::escaped_len(frame), frame.len() as u64 + QUOTES);
    }

    #[test]
    fn too_small_a_cap_or_too_many_segments_is_refused() {
        let fixed = len64(FIXED);
        let refused = |len, frame| SegmentPlan::new(len, frame).unwrap_err();
        assert!(matches!(refused(10, fixed), SendError::TooManySegments(Over { size: 10, limit: 65_535 })));
        assert!(matches!(refused(10, fixed + 5), SendError::TooManySegments { .. }));
        assert_eq!(SegmentPlan::new(10, fixed + 6), Ok(SegmentPlan { size: 3, total: 4 }));
        let most = 65_535 * 3;
        assert_eq!(SegmentPlan::new(most, fixed + 14).unwrap(), SegmentPlan { size: 3, total: 65_535 });
        assert!(SegmentPlan::new(most + 1, fixed + 14).is_err());
        assert!(SegmentPlan::new(u64::MAX, u64::MAX).is_ok_and(|plan| plan.total == 2));
    }

    #[test]
    fn the_largest_frame_leaves_room_for_the_links_overhead() {
        use crate::machine::Overhead;
        assert_eq!(largest_frame(1000, &Capacity::of(600)), 600);
        assert_eq!(largest_frame(500, &Capacity::of(600)), 500);
        assert_eq!(largest_frame(1000, &Capacity { cap: 600, overhead: Overhead::new(|_| 50) }), 550);
        let escaping = Capacity { cap: 600, overhead: Overhead::new(|m| m.escaped - m.bytes + 10) };
        assert_eq!(largest_frame(1000, &escaping), 600 - 10 - QUOTES);
        assert_eq!(largest_frame(1000, &Capacity { cap: 600, overhead: Overhead::new(|_| 700) }), 0);
    }

    #[test]
    fn other_spellings_parse_to_the_same_segment() {
        let canonical = frame_of("hello", 400)[0].to_vec();
        let want = proven(&Segment::recognise(&canonical).unwrap()).unwrap();
        for text in [
            r#" { "method":"ahp/messageSegment","params" : {"x":[{"index":9}],"data":"aGVsbG8=","total":1,"index":0,"groupId":"abababababababababababababababab"} ,"jsonrpc":"2.0"} "#,
            r#"{"jsonrpc":"2.0","method":"ahp\/messageSegm\u0065nt","params":{"groupId":"abababababababababababababababab","index":0e5,"total":10e-1,"d\u0061ta":"\u0061GVsbG8="}}"#,
            r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"abababababababababababababababab","index":-0,"total":1.0,"data":"aGVsbG8="},"extra":null}"#,
        ] {
            assert_eq!(Segment::recognise(text.as_bytes()), None);
            assert_eq!(parsed(text.as_bytes()).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn decoding_stops_at_the_first_piece_that_is_not_canonical() {
        assert_eq!(decode_string(b"QUJD"), (Ok(()), 3));
        assert_eq!(decode_string(b""), (Ok(()), 0));
        for bad in ["QUJ", "QUJDRA", "QUJDRA=", "QUJDRB==", "QUJD\n", "Q UJD", "QQ==QQ==", "QU-_", "=", "===="] {
            assert_eq!(decode_string(bad.as_bytes()).0, Err(0), "{bad}");
        }
        let mut long = b"QUJD".repeat(CODED_PIECE / 2);
        assert_eq!(decode_string(&long).1, PIECE as u64 * 2);
        long[CODED_PIECE - 1] = b'=';
        assert_eq!(decode_string(&long).0, Err(0));
        long[CODED_PIECE - 1] = b'D';
        long[CODED_PIECE + 5] = b'\\';
        assert_eq!(decode_string(&long).0, Err(CODED_PIECE));
    }

    #[test]
    fn decoded_lengths_are_known_before_decoding() {
        for (data, len) in [("", 0), ("QUJD", 3), ("QUI=", 2), ("QQ==", 1)] {
            assert_eq!(decoded_len(data.as_bytes()), len);
        }
    }

    proptest! {
        #[test]
        fn what_is_recognised_parses_to_the_same(text in ".{1,300}", cap in 200_u64..600) {
            for frame in frame_of(&text, cap) {
                let recognised = proven(&Segment::recognise(&frame).unwrap()).unwrap();
                prop_assert_eq!(parsed(&frame).unwrap(), recognised);
            }
        }

        #[test]
        fn the_fast_coder_does_as_the_strict_one(
            bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..400, byte in any::<u8>(),
        ) {
            let mut text = STRICT.encode(&bytes).into_bytes();
            prop_assert_eq!(FAST.encode(&bytes).into_bytes(), text.clone());
            text.get_mut(at).into_iter().for_each(|place| *place = byte);
            let mut places = [(); 2].map(|()| vec![0; len_usize(decoded_len(&text))]);
            let strict = STRICT.decode_slice(&text, &mut places[0]).ok();
            prop_assert_eq!(decode_piece(&text, &mut places[1]), strict);
            prop_assert!(strict.is_none() || places[0] == places[1]);
        }

        #[test]
        fn a_damaged_frame_is_never_recognised_as_something_else(
            text in "[a-z]{1,60}", at in 0_usize..400, byte in any::<u8>(),
        ) {
            let mut frame = frame_of(&text, 400)[0].to_vec();
            let at = at % frame.len();
            frame[at] = byte;
            let Some(recognised) = Segment::recognise(&frame) else { return Ok(()) };
            let data = recognised.data().unwrap();
            let mut piece = vec![0; data.len()];
            let canonical = decode_piece(data, &mut piece).is_some();
            if canonical {
                prop_assert_eq!(parsed(&frame), proven(&recognised));
            }
        }
    }
}
