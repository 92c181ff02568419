//! What can go wrong, with one named variant per rule: what the peer did wrong, what we cannot send, and why a link closes.

use std::time::Duration;

use strum::IntoStaticStr;
use thiserror::Error;

use crate::json::{Fault, JsonError};
use crate::message::Message;
use crate::outgoing::describe;

/// A size, and the limit that it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Over {
    /// The size, as far as it is known.
    pub size: u64,
    /// The limit.
    pub limit: u64,
}

impl Over {
    pub(crate) const fn check(size: u64, limit: u64) -> Result<(), Self> {
        if size > limit { Err(Self { size, limit }) } else { Ok(()) }
    }
}

/// A number that differs from the one that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Differs {
    /// What came.
    pub got: u64,
    /// What was expected, or declared.
    pub want: u64,
}

/// The peer broke a rule. In `ahp` it closes the link; in `cep22` and `stdio` it fails one transfer.
///
/// Carries sizes and limits, never the peer's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error, IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Violation {
    // Any frame.
    /// A frame is longer than we accept. Closes with 1009. A segment whose data is longer than a frame may be is always this, because
    /// base64 is longer than what it encodes.
    #[error("frame of {} bytes is over the limit of {}", .0.size, .0.limit)]
    FrameTooLarge(Over),
    /// A frame is not UTF-8.
    #[error("frame is not UTF-8")]
    FrameNotUtf8,
    /// A frame is not one JSON value.
    #[error("frame is not JSON: {0}")]
    FrameNotJson(JsonError),
    /// A frame or a message is JSON, but nested deeper than we accept, which is this deep.
    #[error("nested deeper than {0} levels (max_nesting)")]
    TooDeep(u32),
    /// A frame is JSON, but not an object.
    #[error("a message is one JSON object; batches are not accepted")]
    FrameNotObject,
    /// A key of the envelope or of a segment's params comes twice.
    #[error("key {0:?} comes twice")]
    DuplicateKey(&'static str),
    /// More requests of the peer wait for an answer than we allow, which is this many.
    #[error("more than {0} requests wait for an answer")]
    TooManyRequests(u32),
    /// A frame of a private link is not what the peer sent next.
    #[error("a frame was altered, lost, repeated or moved on its way, or was not sealed with the keys of this link")]
    FrameNotAuthentic,

    // `ahp`: one segment.
    /// A segment came although we never advertised chunking.
    #[error("a segment came, but chunking was never advertised")]
    UninvitedSegment,
    /// A segment has an `id`, so it is not a notification.
    #[error("segment with an id")]
    SegmentWithId,
    /// A segment has no `jsonrpc: "2.0"`.
    #[error("segment without jsonrpc \"2.0\"")]
    SegmentNotJsonRpc,
    /// A segment's `params` is missing or no object.
    #[error("segment params are not an object")]
    SegmentParamsNotObject,
    /// `groupId` is missing or no string.
    #[error("groupId is missing")]
    GroupIdMissing,
    /// `groupId` is empty.
    #[error("groupId is empty")]
    GroupIdEmpty,
    /// `groupId` is over 128 bytes: it has this many, as UTF-8.
    #[error("groupId of {0} bytes is over 128")]
    GroupIdTooLong(u64),
    /// `index` is missing or not a non-negative integer below 2^31.
    #[error("index is not a non-negative integer below 2^31")]
    IndexInvalid,
    /// `index` is not below `total`.
    #[error("index {index} is not below total {total}")]
    IndexBeyondTotal {
        /// The index.
        index: u32,
        /// The total beside it.
        total: u32,
    },
    /// `index` is not the next one of its group.
    #[error("index {} where {} was due", .0.got, .0.want)]
    IndexOutOfOrder(Differs),
    /// A segment with this index, not the first, names a group that is not open: swept, finished or never begun.
    #[error("segment {0} of a group that is not open")]
    GroupUnknown(u32),
    /// Index 0 names a group that is open already.
    #[error("a group begins twice")]
    GroupInFlight,
    /// `total` is missing or not an integer.
    #[error("total is not an integer")]
    TotalInvalid,
    /// `total` is below 1 or not below 65,536.
    #[error("total is not from 1 to 65,535")]
    TotalOutOfRange,
    /// `total` differs from the first segment's.
    #[error("total {} where the group has {}", .0.got, .0.want)]
    TotalChanged(Differs),
    /// `data` is missing or no string.
    #[error("data is missing")]
    DataMissing,
    /// `data` is not canonical base64.
    #[error("data is not canonical base64")]
    DataNotBase64,

    // `ahp`: a group, and any reassembled message.
    /// More groups are open than we allow, which is this many.
    #[error("more than {0} groups are open")]
    TooManyGroups(u32),
    /// A message is longer than we accept.
    #[error("message of at least {} bytes is over the limit of {}", .0.size, .0.limit)]
    MessageTooLarge(Over),
    /// A reassembled message is not UTF-8.
    #[error("reassembled message is not UTF-8")]
    MessageNotUtf8,
    /// A reassembled message is not one JSON value.
    #[error("reassembled message is not JSON: {0}")]
    MessageNotJson(JsonError),
    /// A message, reassembled or in a single frame, is no JSON-RPC request, response or notification.
    #[error("not a JSON-RPC 2.0 request, response or notification")]
    MessageNotJsonRpc,
    /// A reassembled message is itself a segment.
    #[error("reassembled message is a segment")]
    NestedSegment,

    // `cep22`: one transfer.
    /// `completionMode` is one that we do not know.
    #[error("completion mode is not render")]
    CompletionModeUnknown,
    /// A transfer frame has no usable `progress`.
    #[error("progress is not a non-negative integer")]
    ProgressInvalid,
    /// A frame's `progress` does not follow the transfer's order.
    #[error("progress {got} does not come after {after}")]
    ProgressNotIncreasing {
        /// What came.
        got: u64,
        /// The `progress` that it had to exceed.
        after: u64,
    },
    /// `start` lacks a well-formed digest.
    #[error("digest is not sha256 and 64 hex digits")]
    DigestInvalid,
    /// `start` lacks a well-formed `totalBytes` or `totalChunks`.
    #[error("declared totals are not positive integers")]
    TotalsInvalid,
    /// A transfer has more chunks than we accept, or than it declared.
    #[error("transfer of {} chunks is over the limit of {}", .0.size, .0.limit)]
    TooManyChunks(Over),
    /// More transfers are open than we allow, which is this many.
    #[error("more than {0} transfers are open")]
    TooManyTransfers(u32),
    /// A second, different `start` came for a token whose transfer is open.
    #[error("a transfer starts twice")]
    TransferInFlight,
    /// Two different chunks have the same place: this `progress` or index.
    #[error("two different chunks at place {0}")]
    ChunkConflict(u64),
    /// A chunk came after the window had passed its place, or never came while the window filled up.
    #[error("chunk at {at} is outside the window of {window}")]
    OutsideWindow {
        /// Its `progress`.
        at: u64,
        /// How many later chunks we hold.
        window: u64,
    },
    /// The end came with chunks missing.
    #[error("{} of {} chunks arrived before the end", .0.got, .0.want)]
    ChunksMissing(Differs),
    /// The bytes are not as many as declared.
    #[error("{} bytes where {} were declared", .0.got, .0.want)]
    SizeMismatch(Differs),
    /// The digest is not the declared one.
    #[error("digest does not match")]
    DigestMismatch,
    /// The peer aborted the transfer.
    #[error("the peer aborted the transfer")]
    Aborted,
    /// The transfer took too long. This many bytes had come.
    #[error("transfer timed out with {0} bytes received")]
    TimedOut(u64),
    /// The input ended before the rest of the transfer. This many bytes had come.
    #[error("the input ended with {0} bytes of the transfer received")]
    InputEnded(u64),
    /// The budget has no memory for a message of this many bytes.
    #[error("no memory for {0} bytes")]
    OverBudget(u64),

    // `stdio`: one line.
    /// A line is longer than we accept.
    #[error("line of {} bytes is over the limit of {}", .0.size, .0.limit)]
    LineTooLong(Over),
    /// A line was meant as a message, and is not valid.
    #[error("line {line}, of {bytes} bytes, is no message: {why}{}", left_words(*left))]
    BadLine {
        /// The number of the line. The first is 1, and blank lines are not counted.
        line: u64,
        /// Its length.
        bytes: u64,
        /// What is wrong with it.
        why: LineFault,
        /// Whether everyone who waits for an answer gets an error: the peer, or the caller here by the reply in the event. If not, the
        /// message is lost without anyone knowing.
        answered: bool,
        /// How many messages of a long batch were left without an answer, because too many came before them.
        left: u64,
    },
    /// A frame's index is not below its total, or its total is zero or too large.
    #[error("frame {index} of {total}")]
    FrameNumbersInvalid {
        /// The index.
        index: u64,
        /// The total.
        total: u64,
    },
}

impl Violation {
    /// A short name for counters and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::BadLine { why, .. } => why.into(),
            other => other.into(),
        }
    }

    /// The violation of a frame that is not JSON, or is nested deeper than `max_depth`.
    pub(crate) const fn of_frame(error: JsonError, max_depth: u32) -> Self {
        match error.fault {
            Fault::TooDeep => Self::TooDeep(max_depth),
            _ => Self::FrameNotJson(error),
        }
    }

    /// The same for a reassembled message.
    pub(crate) const fn of_message(error: JsonError, max_depth: u32) -> Self {
        match error.fault {
            Fault::TooDeep => Self::TooDeep(max_depth),
            _ => Self::MessageNotJson(error),
        }
    }

    /// Whether this is a rule for every message, and not only for segments.
    const fn is_of_frame(&self) -> bool {
        matches!(
            self,
            Self::FrameTooLarge(_)
                | Self::FrameNotUtf8
                | Self::FrameNotJson(_)
                | Self::FrameNotObject
                | Self::TooDeep(_)
                | Self::DuplicateKey(_)
                | Self::MessageNotJsonRpc
                | Self::TooManyRequests(_)
                | Self::FrameNotAuthentic
                | Self::LineTooLong(_)
                | Self::BadLine { .. }
        )
    }
}

/// Why a line that was meant as a message is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error, IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "kebab-case", prefix = "line-")]
#[non_exhaustive]
pub enum LineFault {
    /// It is not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// It is not one JSON value.
    #[error("{0}")]
    NotJson(JsonError),
    /// It is nested deeper than we accept, which is this deep.
    #[error("nested deeper than {0} levels (max_nesting)")]
    TooDeep(u32),
    /// It is a batch, which MCP and AHP do not have.
    #[error("a batch; messages have to come one by one")]
    Batch,
    /// It is not exactly one JSON-RPC 2.0 request, response or notification.
    #[error("not a JSON-RPC 2.0 request, response or notification")]
    NotJsonRpc,
    /// It began a message in frames, and the input ended before the last of them.
    #[error("the input ended before the rest of its message")]
    Unfinished,
}

/// The words for messages of a batch that got no answer.
fn left_words(left: u64) -> String {
    if left == 0 { String::new() } else { format!("; {left} of its messages are not answered") }
}

/// Why a message of ours was not sent.
///
/// Most reasons are found before the first frame, and then nothing of the message was sent. A part of it may have been sent with
/// [`Disconnected`](Self::Disconnected) and, in `cep22`, with [`NotAccepted`](Self::NotAccepted), [`Aborted`](Self::Aborted),
/// [`Refused`](Self::Refused), or when the cap shrank. All of it was sent only if the link lost its last frame.
#[derive(Debug, Clone, PartialEq, Eq, Error, IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "kebab-case", prefix = "send-")]
#[non_exhaustive]
pub enum SendError {
    /// The text is not a JSON-RPC message.
    #[error("not a JSON-RPC message")]
    NotJsonRpc,
    /// It is nested deeper than a receiver with our limits accepts.
    #[error("message is nested {depth} levels deep, the limit is {limit}")]
    TooDeep {
        /// How deep it is nested.
        depth: u64,
        /// What a receiver accepts.
        limit: u32,
    },
    /// It does not fit a frame, and the peer cannot reassemble.
    #[error("message of {} bytes does not fit a frame of {}, and the peer takes no segments", .0.size, .0.limit)]
    NoSegments(Over),
    /// It is longer than the peer accepts.
    #[error("message of {} bytes is over the peer's limit of {}", .0.size, .0.limit)]
    TooLarge(Over),
    /// The frame cap is so small that a segment does not fit, or that there would be too many segments.
    #[error("message of {} bytes would need more than {} segments at this frame cap", .0.size, .0.limit)]
    TooManySegments(Over),
    /// At the measured rate of the link, it would take longer than the receiver's group timeout. The same message may pass later: when
    /// the rate is no longer used, or as soon as a smaller message shows that the link is faster.
    #[error(
        "message of {size} bytes needs {needed_ms} ms at the measured {rate} bytes/s, and the peer allows {limit_ms} ms (its groupTimeoutMs)"
    )]
    TooSlow {
        /// Bytes of the message.
        size: u64,
        /// How long it would take.
        needed_ms: u64,
        /// The receiver's group timeout.
        limit_ms: u64,
        /// Measured bytes a second.
        rate: u64,
        /// How long the rate is used, unless a faster one is measured before.
        retry_after_ms: u64,
    },
    /// The queue is full.
    #[error("message of {} bytes does not fit the send queue of {}", .0.size, .0.limit)]
    QueueFull(Over),
    /// `cep22`: the request that this belongs to has no `progressToken`, so it may not be transferred in parts.
    #[error("message of {} bytes needs params._meta.progressToken on its request to be sent in parts", .0.size)]
    NoToken(Over),
    /// The peer did not accept the transfer in time.
    #[error("the peer did not accept the transfer in time")]
    NotAccepted,
    /// The peer gave the transfer up.
    #[error("the peer aborted the transfer")]
    Aborted,
    /// The link refused the frame.
    #[error("the link refused a frame")]
    Refused,
    /// The link closed first.
    #[error("disconnected")]
    Disconnected,
}

impl SendError {
    /// A short name for counters and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// The size and the limit, if the message is too large. `None` if the queue is full, because the same message may be sent later.
    #[must_use]
    pub const fn over(&self) -> Option<Over> {
        match *self {
            Self::NoSegments(by) | Self::TooLarge(by) | Self::TooManySegments(by) | Self::NoToken(by) => Some(by),
            Self::TooSlow { size, limit_ms, rate, .. } => {
                Some(Over { size, limit: rate.saturating_mul(limit_ms) / 1000 })
            }
            _ => None,
        }
    }
}

/// Why a link closes, on either side.
#[derive(Debug, Clone, PartialEq, Eq, Error, IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "kebab-case", prefix = "close-")]
#[non_exhaustive]
pub enum CloseReason {
    /// The connection is no longer needed.
    #[error("normal")]
    Normal,
    /// This side is stopping or restarting.
    #[error("restarting")]
    Restart,
    /// The peer broke a rule.
    #[error("{0}")]
    Violation(#[from] Violation),
    /// The budget has no memory for a message of this many bytes that the peer began.
    #[error("no memory for a message of {0} bytes")]
    OverBudget(u64),
    /// Too many frames came while the machine wanted none, because the budget had no memory for a message that had begun.
    #[error("{} bytes of frames came while there was no memory for them, the limit is {}", .0.size, .0.limit)]
    Unwanted(Over),
    /// The budget evicted a group of this connection, because others needed the memory.
    #[error("a group was given up under memory pressure")]
    Evicted,
    /// Start-order delivery holds back as much as it may.
    #[error("{} bytes wait for an unfinished group, the limit is {}", .0.size, .0.limit)]
    HeldTooMuch(Over),
    /// A group expired, and with start-order delivery nothing can be delivered after it.
    #[error("{}", expired_words(*received, *limit))]
    GroupExpired {
        /// How many bytes of its message had come.
        received: u64,
        /// How long a group may take, if that is known.
        limit: Option<Duration>,
    },
    /// An ordered message cannot be sent. If it were skipped, the state of the peer would diverge.
    #[error("{message} cannot be sent: {error}")]
    Unsendable {
        /// What it is: the type of an action, or a method.
        message: Box<str>,
        /// Why it cannot be sent.
        error: SendError,
    },
    /// The link's cap shrank below the segments of a group in flight.
    #[error("the frame cap shrank below a started group's segments")]
    CapShrank,
    /// The other side, or the link itself, closed.
    #[error("{}", peer_close(*code))]
    Peer {
        /// Its close code; 1006 when there was none.
        code: u16,
    },
    /// The peer has sent nothing for so long that the link was given up.
    #[error("the peer has been silent for {} s", .0.as_secs())]
    Idle(Duration),
    /// A reason of the program: the close code that the peer gets, and the text with it.
    #[error("{1}")]
    Program(u16, String),
}

impl CloseReason {
    /// This message, which is ordered, cannot be sent.
    #[must_use]
    pub fn unsendable(message: &Message, error: SendError) -> Self {
        Self::Unsendable { message: describe(message).into(), error }
    }

    /// The WebSocket close code.
    #[must_use]
    pub const fn code(&self) -> u16 {
        match self {
            Self::Normal => 1000,
            Self::Restart => 1012,
            Self::Violation(Violation::FrameTooLarge { .. }) => 1009,
            Self::Violation(_) => 4400,
            Self::OverBudget { .. } | Self::Unwanted(_) | Self::Evicted | Self::HeldTooMuch { .. } => 1013,
            Self::GroupExpired { .. } => 4408,
            // Here the reason is not the size.
            Self::Unsendable { error: SendError::NotJsonRpc | SendError::TooDeep { .. }, .. } => 4422,
            Self::Unsendable { .. } | Self::CapShrank => 4413,
            Self::Peer { code } | Self::Program(code, _) => *code,
            // The peer gets no close: it does not read.
            Self::Idle(_) => 1006,
        }
    }

    /// The text that goes with the code: at most 123 bytes, as a WebSocket close frame demands.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = match self {
            Self::Violation(Violation::FrameTooLarge(_)) => self.to_string(),
            Self::Violation(
                violation @ (Violation::FrameNotObject | Violation::TooDeep(_) | Violation::MessageNotJsonRpc),
            ) => format!("invalid message: {violation}"),
            Self::Violation(violation) if violation.is_of_frame() => format!("invalid message: {}", violation.name()),
            Self::Violation(violation) => format!("invalid messageSegment: {}", violation.name()),
            // A gateway passes this to its other side, which is not the peer that closed.
            Self::Peer { .. } => "the other side has ended".into(),
            other => other.to_string(),
        };
        text.truncate(text.floor_char_boundary(123));
        text
    }

    /// A short name for counters and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Violation(violation) => violation.name(),
            other => other.into(),
        }
    }
}

/// How far a message had come when it was given up.
fn expired_words(received: u64, limit: Option<Duration>) -> String {
    let limit = limit.map(|limit| format!(" ({limit:?})")).unwrap_or_default();
    format!("a message was not finished within the time for a group{limit}: {} bytes had come", grouped(received))
}

/// A number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// How a peer closed. The code 1006 is never in a close frame: it means that there was none.
fn peer_close(code: u16) -> String {
    match code {
        1006 => "the link ended without a close".into(),
        code => format!("closed by the peer with code {code}"),
    }
}

/// How often each named reason occurred.
#[derive(Debug, Clone, Default)]
pub struct Counters(std::collections::BTreeMap<&'static str, u64>);

impl Counters {
    /// Each reason that occurred, with its count, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, count)| (*name, *count))
    }

    /// How often `name` occurred.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, name: &'static str) {
        let count = self.0.entry(name).or_default();
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::*;

    #[test]
    fn every_name_of_a_reason_is_documented() {
        let text = include_str!("../../../docs/reasons.md");
        let all = [Violation::VARIANTS, LineFault::VARIANTS, SendError::VARIANTS, CloseReason::VARIANTS];
        // What these two contain has a name of its own.
        for name in all.iter().copied().flatten().filter(|name| !["bad-line", "close-violation"].contains(name)) {
            assert!(text.contains(&format!("| `{name}` |")), "docs/reasons.md has no {name}");
        }
    }

    #[test]
    fn a_close_text_fits_a_close_frame() {
        let error = SendError::TooSlow {
            size: u64::MAX,
            needed_ms: u64::MAX,
            limit_ms: u64::MAX,
            rate: u64::MAX,
            retry_after_ms: u64::MAX,
        };
        let reason = CloseReason::unsendable(&Message::from("?"), error);
        assert!(reason.text().len() <= 123);
        assert!(reason.text().starts_with("an action cannot be sent"));
        let violation = CloseReason::Violation(Violation::GroupIdEmpty);
        assert_eq!((violation.code(), violation.text().as_str()), (4400, "invalid messageSegment: group-id-empty"));
        // A rule that holds on links without segments, too, is not reported as one of segments.
        let plain = CloseReason::Violation(Violation::FrameNotObject);
        assert_eq!(
            (plain.code(), plain.text().as_str()),
            (4400, "invalid message: a message is one JSON object; batches are not accepted")
        );
        for (violation, text) in [
            (Violation::TooDeep(9), "invalid message: nested deeper than 9 levels (max_nesting)"),
            (Violation::MessageNotJsonRpc, "invalid message: not a JSON-RPC 2.0 request, response or notification"),
            (Violation::FrameNotUtf8, "invalid message: frame-not-utf8"),
        ] {
            assert_eq!(CloseReason::Violation(violation).text(), text);
        }
        let expired = |received, limit| CloseReason::GroupExpired { received, limit }.text();
        let words = "a message was not finished within the time for a group";
        assert_eq!(expired(931_893, Some(Duration::from_secs(5))), format!("{words} (5s): 931,893 bytes had come"));
        assert_eq!(expired(12, None), format!("{words}: 12 bytes had come"));
        // No character is cut.
        let own = CloseReason::Program(4412, "é".repeat(100));
        assert_eq!((own.code(), own.text()), (4412, "é".repeat(61)));
        assert_eq!(CloseReason::Peer { code: 1001 }.text(), "the other side has ended");
    }

    #[test]
    fn names_are_short_and_say_whose_they_are() {
        assert_eq!(Violation::FrameNotUtf8.name(), "frame-not-utf8");
        assert_eq!(Violation::FrameNotAuthentic.name(), "frame-not-authentic");
        assert_eq!(Violation::MessageNotJsonRpc.name(), "message-not-json-rpc");
        assert_eq!(SendError::TooLarge(Over { size: 1, limit: 0 }).name(), "send-too-large");
        assert_eq!(CloseReason::CapShrank.name(), "close-cap-shrank");
        assert_eq!(CloseReason::Violation(Violation::DataNotBase64).name(), "data-not-base64");
    }

    #[test]
    fn an_oversized_frame_closes_with_1009() {
        assert_eq!(CloseReason::Violation(Violation::FrameTooLarge(Over { size: 2, limit: 1 })).code(), 1009);
    }
}
