//! The durable log: one order over all channels, durable before it is visible.
//!
//! Everything that a host tells its clients is first an entry here. An entry is raw JSON on a channel; the log gives it a
//! [`Seq`], which is not part of the JSON. The log has three kinds of users:
//!
//! - **Writers** [`append`](Log::append) a [`Batch`] and wait for its seqs. They see their own entries only where everybody
//!   does: in a tail.
//! - **Followers** (the host's state, each connection) have a position and pull from a [`Tail`]. A slow follower costs
//!   nothing: the log keeps no queue for it.
//! - **Maintenance** saves [`Snapshot`]s, [trims](Log::trim) entries that snapshots cover, and [erases](Log::erase) sessions.
//!
//! ```
//! # use breakbulk_host::log::{Batch, Channels, Log, MemoryLog};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let log = MemoryLog::new(); // or SqliteLog::open(dir, options).await?
//! let seqs = log
//!     .append(Batch::new().open("ahp-chat:/1", Some("ahp-session:/1")).entry("ahp-chat:/1", r#"{"type":"x"}"#))
//!     .await?;
//! let mut tail = log.tail(0, Channels::All);
//! let entries = tail.next(64 << 10).await?;
//! assert_eq!(entries[0].seq, seqs[0]);
//! # Ok(()) }
//! ```
//!
//! # What an implementation owes its users
//!
//! [`SqliteLog`](sqlite::SqliteLog) is the embedded log, [`JetStreamLog`](jetstream::JetStreamLog) the replicated one, and [`MemoryLog`] the
//! one for tests. Each keeps these laws; `tests/log/model.rs` compares two logs step by step.
//!
//! 1. **Acknowledged means kept.** [`append`](Log::append) returns `Ok` only when the batch would survive a power cut.
//! 2. **Durable before visible.** A [`Tail`], a [`read`](Log::read) and [`bounds`](Log::bounds) never show an entry that
//!    could still be lost.
//! 3. **One order.** Seqs ascend in the order of visibility, over all channels. They may have gaps. None is ever used
//!    twice, not even after its entry was trimmed or erased, nor by a log that was restored from a backup or has lost its
//!    end: each opening for writing begins above every seq that an earlier run of the log can have assigned. They stay below
//!    2^53, as JSON numbers must.
//! 4. **A batch is whole**: all of its entries are in the log or none, and one without effect leaves no trace.
//! 5. **A batch is appended once.** Appending a batch whose id is in the log returns the seqs that it has, whatever else the
//!    batch contains now, for as long as ids are kept ([`RetentionPolicy::ids_for`]).
//! 6. **The unknown is named.** When an outcome is not certain the result is [`AppendError::Unknown`], and the caller repeats
//!    the batch with the same id. A log in that state acknowledges nothing until it has checked what is stored, and says so
//!    in [`health`](Log::health).
//! 7. **What is gone is named.** A reader that asks for trimmed entries gets [`ReadError::Trimmed`]; nothing is skipped
//!    silently. Only entries before a saved snapshot are trimmed, so the reader can take that instead. A position that was
//!    never the end of this log, because it comes from another log or from lost entries, has no [`lag`](Log::lag): a client
//!    with such a position needs a snapshot.
//! 8. **Damage is named.** A record whose bytes are not those that were written is [`ReadError::Damaged`] with its seq, and
//!    everything before it is served.
//! 9. **One writer.** A writer that opens the log fences the one before: [`AppendError::Fenced`].
//! 10. **Bounded and fair.** Appends that wait are bounded in bytes (`append` waits its turn); pages are bounded by the
//!     caller. [Sources](Batch::source) take turns by bytes, and so do the channels of one source: a small batch waits for
//!     the transaction under way and a bounded share of the next, whatever others have waiting. Batches of one source and
//!     [channel](Batch::channel) keep their order.

mod admission;
mod batch;
mod channel;
mod copy;
mod entry;
mod error;
mod export;
mod gaps;
pub mod jetstream;
mod maintenance;
mod memory;
mod metrics;
mod plan;
mod queue;
mod round_robin;
mod snapshot;
pub mod sqlite;
mod tail;
mod usage;
mod window;

use std::ops::Range;
use std::pin::Pin;

pub use batch::{Batch, BatchId, Merge, NewEntry};
pub use channel::{ChannelInfo, Channels};
pub use copy::{Copied, CopyError};
pub use entry::{Entry, EntryKind};
pub use error::{AppendError, DamagedRecord, OpenError, ReadError, WriteError};
pub use export::ExportError;
pub use gaps::Gap;
pub use maintenance::{LogHealth, Report, RetentionPolicy};
pub use memory::MemoryLog;
pub use metrics::{Histogram, Metrics};
pub(crate) use snapshot::ROW_HEADER;
pub use snapshot::{Rows, Save, Snapshot};
use tokio::sync::watch;
pub use usage::Usage;

/// Bytes that are shared instead of copied.
pub use bytes::Bytes;

/// The order number of an entry. 0 is before all entries. Seqs ascend; gaps mean nothing.
pub type Seq = u64;

/// A boxed future, so that traits such as [`Log`] can be used as `dyn`. An append waits for a disk, so the box costs nothing in
/// comparison.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is in the log now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Entries before this seq may have been trimmed on some channel. One less is the lowest position from which the whole log
    /// can be followed.
    pub first: Seq,
    /// The highest seq that was ever durable; 0 in a new log. A client with a higher one comes from another log; see also
    /// [`lag`](Log::lag).
    pub last: Seq,
}

/// A durable log. See the [module](self) for what its users may rely on.
pub trait Log: Send + Sync + 'static {
    /// Appends all of a batch or nothing. Resolves when it is durable, with one seq per entry.
    ///
    /// Dropping the future does not cancel the batch: it may be appended or not.
    fn append(&self, batch: Batch) -> BoxFuture<'_, Result<Vec<Seq>, AppendError>>;

    /// Follows the log from the first entry after `after`. Entries of other channels are skipped.
    fn tail(&self, after: Seq, channels: Channels) -> Box<dyn Tail>;

    /// Reads the entries of one channel whose seqs are in `range`, in order. Returns as many as have at most
    /// `max_bytes` of bodies, but at least one if there is any. To continue, ask again from after the last one.
    fn read<'a>(
        &'a self,
        channel: &'a str,
        range: Range<Seq>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Vec<Entry>, ReadError>>;

    /// What is in the log now.
    fn bounds(&self) -> BoxFuture<'_, Result<Bounds, ReadError>>;

    /// How many seqs were used after a position. `None` if the position was never the end of this log: it is after the end, or
    /// in a gap between two runs of the log, and comes from entries that this log does not have.
    fn lag(&self, after: Seq) -> Option<u64>;

    /// The channels of a session, or all of them, by URI.
    fn channels<'a>(&'a self, session: Option<&'a str>) -> BoxFuture<'a, Result<Vec<ChannelInfo>, ReadError>>;

    /// Saves a channel's snapshot and encoded rows, all or nothing. Saving the same again changes nothing.
    fn save(&self, save: Save) -> BoxFuture<'_, Result<(), WriteError>>;

    /// The last saved snapshot of a channel.
    fn snapshot<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Option<Snapshot>, ReadError>>;

    /// Reads the encoded rows of a channel whose indices are in `range`, in order: as many as fit `max_bytes`, but at
    /// least one if there is any.
    fn rows<'a>(
        &'a self,
        channel: &'a str,
        range: Range<u64>,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Rows, ReadError>>;

    /// Reads some bytes of one encoded row, for a reader that does not want to hold all of it: fewer than requested at
    /// its end, none after it, and `None` if there is no such row. The row's checksum is not verified, because it
    /// covers the whole row.
    fn row_bytes<'a>(
        &'a self,
        channel: &'a str,
        index: u64,
        range: Range<usize>,
    ) -> BoxFuture<'a, Result<Option<Bytes>, ReadError>>;

    /// Removes a channel's entries before the seq `before`; returns how many. Refused unless a saved snapshot covers all of
    /// them.
    fn trim<'a>(&'a self, channel: &'a str, before: Seq) -> BoxFuture<'a, Result<u64, WriteError>>;

    /// Trims what the policy no longer keeps, only before saved snapshots; returns how many entries were removed.
    fn retain(&self, policy: RetentionPolicy) -> BoxFuture<'_, Result<u64, WriteError>>;

    /// Removes a session for good: its channels with their entries, rows and snapshots, and all entries of other channels that
    /// are [about](NewEntry::about) it. A single channel is removed in the same way, by its URI. When this resolves, the bytes
    /// are gone from the store too. Appending to one of the channels is refused from the moment of the call.
    ///
    /// A snapshot of a shared channel may still mention the session: save a new one first.
    fn erase<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64, WriteError>>;

    /// Reads every record and compares it with its checksum.
    fn verify(&self) -> BoxFuture<'_, Result<Report, ReadError>>;

    /// Whether the log acknowledges, and if not, why.
    fn health(&self) -> watch::Receiver<LogHealth>;

    /// Counters and times.
    fn metrics(&self) -> &Metrics;
}

/// A position in the log that moves forward.
pub trait Tail: Send {
    /// The next entries, in order: waits until there is one, returns no more than `max_bytes` of bodies beside the first.
    ///
    /// Dropping the future loses nothing. After [`ReadError::Trimmed`] or [`ReadError::Damaged`] the position stays the same;
    /// [`seek`](Tail::seek) continues after it.
    fn next(&mut self, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, ReadError>>;

    /// The next entries that exist already; none at the end of the log, which tells the reader that it has caught up.
    fn ready(&mut self, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, ReadError>>;

    /// Everything up to here was returned or skipped.
    fn position(&self) -> Seq;

    /// Continues with the first entry after `after`.
    fn seek(&mut self, after: Seq);

    /// From now on follows these channels. Entries of a new one are returned from the present position on.
    fn follow(&mut self, channels: Channels);
}
