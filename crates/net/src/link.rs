//! What carries frames: text both ways, a cap, and a close with a code and a text.

mod exec;
mod lines;
mod memory;
mod stdio;
pub mod unix;
mod ws;

use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use thiserror::Error;

use breakbulk_proto::{Account, Capacity, Meta, Over, Receipt, Refusal, Tag, Transmit};

pub use self::exec::{Child, Exec, ExecConfig, ExecError, Exit, kill_children};
pub use self::lines::Lines;
pub use self::memory::{Memory, pair};
pub use self::stdio::{Output, Stdio, stdio};
pub use self::ws::{Keepalive, WebSocket, WebSocketConfig, tune};
pub(crate) use self::ws::{Key, accept_for};

/// A link: frames and receipts come out of it as [`Arrival`]s, frames and one close go into it as [`Transmit`]s.
///
/// As a sink it is ready when the next frame would not merely pile up in memory: whoever asks first whether it is ready,
/// and only then makes a frame, can let a small message pass a large one. Both halves keep their state in the link, so a
/// caller may stop polling at any time and lose nothing.
pub trait Link: Stream<Item = Result<Arrival, LinkError>> + Sink<Transmit, Error = LinkError> + Send + Unpin {
    /// How large a frame may be, and what the link adds to it.
    fn capacity(&self) -> Capacity;

    /// Says which frames the link takes from now on. A link that has only the limit that it was made with keeps that.
    fn set_intake(&mut self, _intake: Intake) {}

    /// Says whether the peer has yet to finish what was begun on this link: to answer, to send the rest of a message. If so
    /// when the link is dropped, a peer that would outlive it does not. Most peers do not anyway.
    fn set_owing(&mut self, _owing: bool) {}

    /// Whether the peer may send nothing more and still read: [`Arrival::Ended`]. Pipes do that, WebSockets do not.
    fn ends_alone(&self) -> bool {
        true
    }

    /// Whether a frame has begun to come in and is not whole, as far as the link can tell.
    fn is_amid_frame(&self) -> bool {
        false
    }

    /// Whether it has stopped reading by itself, because there is no room for what comes: that is no fault of the peer's.
    fn waits_for_room(&self) -> bool {
        false
    }

    /// Ready when what has begun to come in has to go, because others need its room more. For those who do not read now: who
    /// reads is told as well.
    fn poll_evicted(&mut self, _cx: &mut Context<'_>) -> Poll<LinkError> {
        Poll::Pending
    }

    /// Lets go of the room of the frame that came last, which is kept until the link is asked for the next one: somebody else
    /// pays for it from here on.
    fn release_room(&mut self) {}

    /// Says that we send nothing more, and go on reading: the peer sees the end of its input when all that the link has
    /// taken is written. From then on the link takes only a close. Whether it can say so: pipes can, WebSockets cannot.
    fn end_output(&mut self) -> bool {
        false
    }

    /// What has moved on this link so far. Who waits for a slow peer sees by it that it is not a dead one.
    fn moved(&self) -> Moved {
        Moved::default()
    }

    /// Asks the peer for a sign that it has taken all that was sent so far. The number of that sign; `None` where there is no
    /// such thing.
    fn probe(&mut self) -> Option<u64> {
        None
    }

    /// The number of the last sign that has come.
    fn probed(&self) -> u64 {
        0
    }
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
    /// long it will be. Without room nothing is read; when others need the room more, the link fails. None: `max_frame_bytes`
    /// is all that bounds it.
    pub account: Option<Account>,
}

/// A link of any sort.
pub type BoxLink = Box<dyn Link>;

impl Link for BoxLink {
    fn capacity(&self) -> Capacity {
        (**self).capacity()
    }

    fn set_intake(&mut self, intake: Intake) {
        (**self).set_intake(intake);
    }

    fn set_owing(&mut self, owing: bool) {
        (**self).set_owing(owing);
    }

    fn ends_alone(&self) -> bool {
        (**self).ends_alone()
    }

    fn is_amid_frame(&self) -> bool {
        (**self).is_amid_frame()
    }

    fn waits_for_room(&self) -> bool {
        (**self).waits_for_room()
    }

    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        (**self).poll_evicted(cx)
    }

    fn release_room(&mut self) {
        (**self).release_room();
    }

    fn end_output(&mut self) -> bool {
        (**self).end_output()
    }

    fn moved(&self) -> Moved {
        (**self).moved()
    }

    fn probe(&mut self) -> Option<u64> {
        (**self).probe()
    }

    fn probed(&self) -> u64 {
        (**self).probed()
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
        /// The text that came with it.
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
    #[error("no room for a frame of {0} bytes")]
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
