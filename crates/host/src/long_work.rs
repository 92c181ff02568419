//! Work that takes a thread for long, such as reading 30 MB of JSON.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// What is made of fewer bytes than this takes less than a millisecond.
const LONG: usize = 256 << 10;

/// Does something with so many bytes, here and now. If they are many, the other tasks of this thread move to another one
/// first, where the runtime has more than one.
pub(crate) fn long_work<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let has_others =
        || Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes >= LONG && has_others() { block_in_place(work) } else { work() }
}
