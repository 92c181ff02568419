//! What carries frames: text both ways, a cap, and a close with a code and a text.

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
/// As a sink it is ready when the next frame would not merely pile up in memory: whoever asks first whether it is ready,
/// and only then makes a frame, can let a small message pass a large one. Both halves keep their state in the link, so a
/// caller may stop polling at any time and lose nothing.
///
/// No method has a default, so a link around another one cannot forget to forward one. What a method returns covers
/// everything of its sort: such a wrapper hands on the whole, and changes in it what it wants to change.
pub trait Link: Stream<Item = Result<Arrival, LinkError>> + Sink<Transmit, Error = LinkError> + Send + Unpin {
    /// How large a frame may be, and what the link adds to it.
    fn capacity(&self) -> Capacity;

    /// What the link knows of itself now.
    fn status(&self) -> LinkStatus;

    /// The memory in which frames arrive, to be limited, charged and released. `None` if the link only ever hands over
    /// frames that others have made.
    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory>;

    /// Ends our direction, and goes on reading: the peer sees the end of its input when all that the link has taken is
    /// written. From then on the link takes only a close. False if the link cannot: pipes can, WebSockets cannot.
    fn end_output(&mut self) -> bool;
}

/// What a link knows of itself. The default is that of a link on which nothing has moved, and each direction ends by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// Whether the peer can end its direction alone.
    pub half_close: HalfClose,
    /// Whether a frame has begun to arrive and is not whole, as far as the link can tell.
    pub is_amid_frame: bool,
    /// Whether the link has stopped reading because there is no memory for what comes. The peer is not to blame for that.
    pub waits_for_memory: bool,
    /// What has moved so far. Who waits for a slow peer sees by it that the peer is not dead.
    pub moved: Moved,
}

/// Whether the peer can send nothing more and still read, and say so: [`Arrival::Ended`].
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
    /// Limits the frames that the link takes from now on, and says who pays for them.
    fn set_intake(&mut self, intake: Intake);

    /// Resolves when the budget evicts a frame that is arriving, or one that has arrived and was not released. For those who
    /// do not read now: whoever reads gets the same error.
    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError>;

    /// Gives back the memory of the frame that came last, which is kept until the link is asked for the next one: somebody
    /// else pays for its bytes from here on.
    fn release_last(&mut self);

    /// Says what the next frame is to the messages that are under way on the link. If it begins one, its memory is granted
    /// only if as much as the longest frame is left for others that go on with theirs. At first it is [`NextFrame::GoesOn`].
    fn set_next_frame(&mut self, next: NextFrame);

    /// Hands over the memory of the frame that came last, to whoever keeps its bytes. `None` if the frame was short, or
    /// nobody pays for it.
    fn take_last(&mut self) -> Option<Grant>;
}

/// What the next frame of a link is to the messages that are under way on it.
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

/// Which frames a link takes, and who pays for one that is not whole yet.
#[derive(Debug)]
pub struct Intake {
    /// The longest frame.
    pub max_frame_bytes: u64,
    /// What a long frame takes up until it is whole is charged to this, and as much as the longest where nobody knows how
    /// long it will be. Without memory nothing is read; when others need the memory more, the link fails. None:
    /// `max_frame_bytes` is all that bounds it.
    pub account: Option<Account>,
}

/// A link of any sort.
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
    /// What became of a frame of ours. Only some links say.
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
    /// The child process at the other end has exited, or writes no more. Nothing follows.
    Exited {
        /// The close code that stands for how it ended: 1000 if all went well, else 1011.
        code: u16,
        /// How it ended, in our words.
        text: String,
    },
}

/// Why a link failed. Without a close: the peer may be gone, or the way to it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The operating system says so.
    #[error("the link failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer broke the rules of the link itself, below those of any dialect.
    #[error("the peer broke the rules of the link: {0}")]
    Protocol(String),
    /// A frame is longer than we take. It was refused before it was buffered whole.
    #[error("frame of {} bytes is over the limit of {}", .0.size, .0.limit)]
    FrameTooLarge(Over),
    /// The budget has no room for the rest of a frame of so many bytes.
    #[error("no memory for a frame of {0} bytes")]
    NoRoom(u64),
    /// A text frame is not UTF-8. The peer is told 1007.
    #[error("a text frame is not UTF-8")]
    NotUtf8,
    /// Nothing came from the peer for so long, not even an answer to a ping.
    #[error("the peer has been silent for {} s", .0.as_secs())]
    Silent(std::time::Duration),
    /// The link is closed already.
    #[error("the link is closed")]
    Closed,
}
