//! Work that occupies a thread for long, such as parsing 30 MB of JSON, kept away from the other tasks of the runtime.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinError, block_in_place, spawn_blocking};

/// Work on fewer bytes than this takes less than a millisecond.
const LONG_WORK_BYTES: usize = 256 << 10;

/// From this size on, [`run_blocking`] uses a blocking thread: handing the work over costs less than the delay of others.
pub(crate) const BLOCKING_BYTES: usize = 128 << 10;

/// Runs `work`, which handles this many bytes, on this thread. If they are many, the runtime first moves the thread's
/// other tasks to another thread, if it has more than one.
pub(crate) fn long_work<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let has_others =
        || Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes >= LONG_WORK_BYTES && has_others() { block_in_place(work) } else { work() }
}

/// Runs `work` on a blocking thread if it handles at least [`BLOCKING_BYTES`], else on this one.
///
/// # Errors
/// The work panicked, or the runtime is shutting down.
pub(crate) async fn run_blocking<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if bytes < BLOCKING_BYTES { Ok(work()) } else { spawn_blocking(work).await }
}
