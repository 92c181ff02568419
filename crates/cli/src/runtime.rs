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

/// Raises the limit of open files, because each connection needs one. The system's maximum is usually far above the
/// limit with which a program starts.
#[cfg(unix)]
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};

    // More than anybody needs; some programs in a terminal look at each file that they might have.
    const ENOUGH: u64 = 1 << 20;
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
    limit.current = limit.current.map(|current| current.max(most));
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
}

#[cfg(not(unix))]
pub(crate) const fn raise_file_limit() {}
