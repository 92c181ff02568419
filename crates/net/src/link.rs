//! Links: what carries frames. Text in both directions, a cap, and a close with a code and a text.

mod exec;
mod in_process;
mod lines;
mod stdio;
pub mod unix;
mod ws;

use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use thiserror::Error;

use breakbulk_proto::{Account, Capacity, Grant, Meta, Over, Receipt, Refusal, Tag, Transmit};

pub use self::exec::{Child, Exec, ExecConfig, ExecError, Exit, Lease, kill_children};
pub use self::in_process::{InProcessLink, pair};
pub use self::lines::Lines;
pub use self::stdio::{Output, Stdio, stdio};
pub use self::ws::{Keepalive, WebSocket, WebSocketConfig, tune};
pub(crate) use self::ws::{Key, accept_for};

/// A link: frames and receipts come out of it as [`Arrival`]s, frames and one close go into it as [`Transmit`]s.
///
/// As a sink, it is ready when the next frame would not merely wait in a buffer. So a caller that makes a frame only when the link is
/// ready can let a small message overtake a large one. All state is in the link, so a caller may stop polling at any time and lose
/// nothing.
///
/// No method has a default, so that a link around another one cannot forget to forward one.
pub trait Link: Stream<Item = Result<Arrival, LinkError>> + Sink<Transmit, Error = LinkError> + Send + Unpin {
    /// How large a frame may be, and what the link adds to it.
    fn capacity(&self) -> Capacity;

    /// The state of the link now.
    fn status(&self) -> LinkStatus;

    /// The memory in which frames arrive, to be limited, charged and released. `None` if the link only passes on frames that were made
    /// elsewhere in the process.
    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory>;

    /// The next report of whether the link took a frame of ours, for callers that read no frames now; those that read get it as
    /// [`Arrival::Acked`]. Pending for ever on links that do not report that. If reports came only with frames, two sides that each
    /// wait for the other to read would wait for ever.
    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked>;

    /// Ends our direction, and goes on reading. The peer sees the end of its input when everything that the link has taken is written.
    /// After that the link takes only a close. Returns false if the link cannot do that: pipes can, WebSockets cannot.
    fn end_output(&mut self) -> bool;
}

/// Whether a link took a frame of ours: taken, with a receipt; or refused.
pub type Acked = (Tag, Result<Receipt, Refusal>);

/// The state of a link. The default is that of a link on which nothing has moved, and whose directions can end separately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// Whether the peer can end its direction and still read.
    pub half_close: HalfClose,
    /// Whether a part of a frame has arrived, as far as the link can tell.
    pub is_amid_frame: bool,
    /// Whether the link does not read because the budget has no memory for the next frame. That is not the fault of the peer.
    pub waits_for_memory: bool,
    /// How many bytes have moved so far. If it grows, a slow peer is not dead.
    pub moved: Moved,
    /// What a frame may be.
    pub content: FrameContent,
}

/// What the frames of a link may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FrameContent {
    /// Only text.
    #[default]
    Text,
    /// Text, or bytes ([`Meta::is_binary`](breakbulk_proto::Meta::is_binary)).
    Bytes,
}

/// Whether the peer can end its direction and still read ([`Arrival::Ended`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HalfClose {
    /// It can, as on pipes.
    #[default]
    Supported,
    /// It can only close both directions at once, with a code, as on WebSockets.
    Unsupported,
}

/// The memory in which a link's frames arrive.
pub trait ReceiveMemory {
    /// Sets the longest frame that the link takes from now on, and the account to which frames are charged.
    fn set_intake(&mut self, intake: Intake);

    /// Resolves when the budget evicts a frame that is arriving, or one that has arrived and was not released. For callers that do not
    /// read now; those that read get the same error.
    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError>;

    /// Gives back the memory of the last frame. Otherwise that happens when the link is polled for the next frame. From here on, the
    /// bytes are charged elsewhere, or not at all.
    fn release_last(&mut self);

    /// Sets what the next frame is expected to be. A frame that begins a message gets memory only if enough for the longest frame
    /// remains for links whose next frame goes on with a message. At first it is [`NextFrame::GoesOn`].
    fn set_next_frame(&mut self, next: NextFrame);

    /// Hands over the memory of the last frame, to a caller that keeps its bytes. `None` if the frame was short, or is not charged to an
    /// account.
    fn take_last(&mut self) -> Option<Grant>;
}

/// What the next frame of a link is expected to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NextFrame {
    /// A segment of a message of which others have come, or a whole message.
    #[default]
    GoesOn,
    /// The first segment of a message, as far as is known.
    Begins,
}

/// Bytes that have moved on a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// From the peer to us.
    pub inward: u64,
    /// From us to the peer, as far as the link knows how much of it the peer has taken.
    pub outward: u64,
}

/// Which frames a link takes, and to which account they are charged.
#[derive(Debug)]
pub struct Intake {
    /// The longest frame.
    pub max_frame_bytes: u64,
    /// A long frame is charged to this account while it arrives; if its length is not known, as if it were the longest. While the
    /// account has no memory, nothing is read. When the budget evicts a frame, the link fails. `None` if frames are bounded only by
    /// `max_frame_bytes`.
    pub account: Option<Account>,
}

/// A link of any type.
pub type BoxLink = Box<dyn Link>;

impl Link for BoxLink {
    fn capacity(&self) -> Capacity {
        (**self).capacity()
    }

    fn status(&self) -> LinkStatus {
        (**self).status()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        (**self).receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        (**self).poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        (**self).end_output()
    }
}

/// What a link brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// A frame.
    Frame {
        /// Its text, without any delimiter of the link.
        bytes: Bytes,
        /// What the link knows about it.
        meta: Meta,
    },
    /// Whether the link took a frame of ours. Only some links report that.
    Acked {
        /// Which frame.
        tag: Tag,
        /// Taken, with a receipt; or refused.
        result: Result<Receipt, Refusal>,
    },
    /// The peer sends nothing more, but still reads: the end of a pipe's input. Nothing follows.
    Ended,
    /// The peer closed the link. Nothing follows.
    Closed {
        /// The close code; 1005 if the peer gave none.
        code: u16,
        /// The text that came with it: the peer's own words.
        text: String,
    },
    /// The child process at the other end has exited, or has closed its output. Nothing follows.
    Exited {
        /// The close code that stands for how it ended: 1000 if all went well, else 1011.
        code: u16,
        /// How it ended, in words for a person.
        text: String,
    },
}

/// Why a link failed without a close: the peer may be gone, or the connection to it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The operating system reported an error.
    #[error("the link failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer broke a rule of the link itself, such as one of the WebSocket protocol.
    #[error("the peer broke the rules of the link: {0}")]
    Protocol(String),
    /// A frame is longer than we accept. It was refused before it was buffered whole.
    #[error("frame of {} bytes is over the limit of {}", .0.size, .0.limit)]
    FrameTooLarge(Over),
    /// The budget evicted a frame of this many bytes.
    #[error("no memory for a frame of {0} bytes")]
    OverBudget(u64),
    /// A text frame is not UTF-8. The peer is told 1007.
    #[error("a text frame is not UTF-8")]
    NotUtf8,
    /// A frame of a private link was altered, lost, repeated or moved on its way, or was not sealed with the keys of this link.
    #[error("a frame of a private link is not what the peer sent")]
    NotAuthentic,
    /// Nothing came from the peer for this long, not even an answer to a ping.
    #[error("the peer has been silent for {} s", .0.as_secs())]
    Silent(std::time::Duration),
    /// The link is closed already.
    #[error("the link is closed")]
    Closed,
}
