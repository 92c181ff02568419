//! The runtime that links run on.

use std::future::Future;

use tokio::runtime::Builder;

use crate::failure::Error;

/// Runs `work` to its end. A thread that still waits for standard input does not delay the exit, and child processes are
/// killed.
pub(crate) fn run(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(Error::Runtime)?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    breakbulk::link::kill_children();
    result
}
