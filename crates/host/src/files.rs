//! Files for clients: the `resource*` methods inside of the configured roots, and watches on what changes there.
//!
//! A client names files by `file:` URIs. Whatever such a URI contains (`..`, escapes, symbolic links that change meanwhile),
//! nothing outside of the [roots](FilesConfig::roots) is read, written or listed, and no answer reveals whether it exists.
//! Links inside of the roots work, also from one root to another, absolute or relative.
//!
//! - **No check before use.** A path is resolved name by name from an open root directory, and this module follows each link
//!   itself. What is opened in the end is a name in an open directory.
//! - **Writes are atomic.** Content is written to a temporary file, synced, and renamed; owner and permissions stay. Appending
//!   writes to the file itself, so that other programs that append lose nothing. If the owner cannot be kept, the content is
//!   replaced in place. Other hard links of a replaced file keep the old content.
//! - **Devices, pipes and sockets are refused** before they are opened, and never waited for.
//! - **Deleting and moving do not follow links**: they affect the link itself.
//! - **Everything is bounded** by [`FilesConfig`], and file systems are only touched on threads that may block.
//!
//! ```
//! # use ahp_types::commands::ResourceReadParams;
//! # use breakbulk_host::test_support::files::{Files, FilesConfig, uri_of};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! std::fs::write(dir.path().join("a.txt"), "hello")?;
//! let files = Files::new(FilesConfig::new([dir.path()]))?;
//! let uri = uri_of(&dir.path().join("a.txt"));
//! let read = files.read(ResourceReadParams { channel: "ahp-root://".into(), meta: None, uri, encoding: None }).await?;
//! assert_eq!(read.data, "hello");
//! # Ok(()) }
//! ```

mod error;
mod inspect;
mod locks;
mod mime;
mod read;
mod relocate;
mod roots;
mod staging;
pub(crate) mod time;
mod tree;
mod uri;
mod walk;
mod watch;
mod write;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::commands::{
    CreateResourceWatchParams, ResourceCopyParams, ResourceCopyResult, ResourceDeleteParams, ResourceDeleteResult,
    ResourceListParams, ResourceListResult, ResourceMkdirParams, ResourceMkdirResult, ResourceMoveParams,
    ResourceMoveResult, ResourceReadParams, ResourceReadResult, ResourceResolveParams, ResourceResolveResult,
    ResourceWriteParams, ResourceWriteResult,
};
pub use error::{FileError, RootError};
use locks::Locks;
pub(crate) use read::{OpenFile, encoded};
use roots::Roots;
pub(crate) use roots::{FILE, HOLD, hold_in};
pub(crate) use staging::staging_name;
pub use time::iso_8601;
use tokio::sync::Semaphore;
use tree::CopyLimits;
pub use uri::{UriError, path_of, uri_of};
pub use watch::Watch;

/// What clients may do with files, and how much of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FilesConfig {
    /// The directories that clients may use. Each must exist, and is opened once: renaming it has no effect.
    pub roots: Vec<PathBuf>,
    /// The largest file that is read. 64 MiB: twice the 30 MB that a client must be able to have, and a bit.
    pub max_read_bytes: u64,
    /// The most that one write carries. 64 MiB.
    pub max_write_bytes: u64,
    /// The most entries of one directory that are listed. 50,000.
    pub max_list_entries: usize,
    /// The most bytes of one copy, or of the old content that a write keeps. 4 GiB.
    pub max_copy_bytes: u64,
    /// The most files and directories of one copy. 100,000.
    pub max_copy_entries: usize,
    /// The deepest tree that is copied, deleted or watched. Each level keeps two files open. 100.
    pub max_depth: usize,
    /// Operations at the same time; others wait. They take about this many times the largest read or write in memory. 8.
    pub max_at_once: usize,
    /// Watches at the same time. They share one inotify instance (Linux has 128 for each user). 128.
    pub max_watches: usize,
    /// The most files and directories that one watch looks at. 100,000.
    pub max_watch_entries: usize,
    /// The most changes in one action. 1,000.
    pub max_watch_changes: usize,
    /// Changes are reported after this long without a further one. 100 ms.
    pub watch_quiet: Duration,
    /// The longest delay of a report. 1 s.
    pub watch_longest: Duration,
}

impl FilesConfig {
    /// The defaults, with these roots.
    pub fn new(roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            roots: roots.into_iter().map(Into::into).collect(),
            max_read_bytes: 64 << 20,
            max_write_bytes: 64 << 20,
            max_list_entries: 50_000,
            max_copy_bytes: 4 << 30,
            max_copy_entries: 100_000,
            max_depth: 100,
            max_at_once: 8,
            max_watches: 128,
            max_watch_entries: 100_000,
            max_watch_changes: 1_000,
            watch_quiet: Duration::from_millis(100),
            watch_longest: Duration::from_secs(1),
        }
    }

    fn copy_limits(&self) -> CopyLimits {
        CopyLimits { entries: self.max_copy_entries, bytes: self.max_copy_bytes, depth: self.max_depth }
    }
}

/// The files of the roots. Clones share everything.
///
/// Each method must be called on a tokio runtime. Dropping its future does not cancel the operation.
#[derive(Debug, Clone)]
pub struct Files(Arc<FilesInner>);

#[derive(Debug)]
pub(crate) struct FilesInner {
    config: FilesConfig,
    roots: Roots,
    locks: Locks,
    running: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    system_watcher: Arc<watch::SystemWatcher>,
}

impl Files {
    /// Opens the roots.
    pub fn new(config: FilesConfig) -> Result<Self, RootError> {
        let roots = Roots::open(&config.roots)?;
        let running = Arc::new(Semaphore::new(config.max_at_once.clamp(1, Semaphore::MAX_PERMITS)));
        let watches = Arc::new(Semaphore::new(config.max_watches.min(Semaphore::MAX_PERMITS)));
        Ok(Self(Arc::new(FilesInner {
            config,
            roots,
            locks: Locks::new(),
            running,
            watches,
            system_watcher: Arc::default(),
        })))
    }

    /// The URI of the first root; empty if there is none.
    #[must_use]
    pub fn first_root(&self) -> String {
        self.0.config.roots.first().map(|root| uri_of(root)).unwrap_or_default()
    }

    /// `resourceRead`. Without a requested encoding, text is returned as UTF-8 and everything else as base64. What is not UTF-8
    /// is always returned as base64, as the protocol demands.
    pub async fn read(&self, params: ResourceReadParams) -> Result<ResourceReadResult, FileError> {
        self.read_within(params, u64::MAX).await
    }

    /// As [`read`](Self::read), with a limit for the length of the file.
    pub(crate) async fn read_within(
        &self,
        params: ResourceReadParams,
        max_bytes: u64,
    ) -> Result<ResourceReadResult, FileError> {
        self.run(move |shared| read::read(&shared.roots, shared.config.max_read_bytes.min(max_bytes), &params)).await
    }

    /// Opens a file for reading in pieces, however long it is.
    pub(crate) async fn open(&self, uri: String) -> Result<OpenFile, FileError> {
        self.run(move |shared| read::open_uri(&shared.roots, &uri)).await
    }

    /// The most bytes of a file that are read at once.
    pub(crate) fn max_read_bytes(&self) -> u64 {
        self.0.config.max_read_bytes
    }

    /// The present length of a file.
    pub(crate) async fn size_of(&self, uri: String) -> Result<u64, FileError> {
        self.run(move |shared| read::size_of(&shared.roots, shared.config.max_read_bytes, &uri)).await
    }

    /// `resourceWrite`.
    pub async fn write(&self, params: ResourceWriteParams) -> Result<ResourceWriteResult, FileError> {
        self.run(move |shared| {
            let FilesInner { config, roots, locks, .. } = shared;
            let means = write::WriteContext {
                roots,
                locks,
                max_bytes: config.max_write_bytes,
                copy_limits: config.copy_limits(),
            };
            write::write(&means, params)
        })
        .await
    }

    /// `resourceList`: by name. A link counts as what it leads to; devices and links that lead nowhere count as files.
    pub async fn list(&self, params: ResourceListParams) -> Result<ResourceListResult, FileError> {
        self.run(move |shared| inspect::list(&shared.roots, shared.config.max_list_entries, &params)).await
    }

    /// `resourceCopy`. A directory is copied with all that is in it, links as they are written; it replaces a directory at
    /// the destination as a whole.
    pub async fn copy(&self, params: ResourceCopyParams) -> Result<ResourceCopyResult, FileError> {
        self.run(move |shared| relocate::copy(&shared.relocation(), &params)).await
    }

    /// `resourceDelete`.
    pub async fn delete(&self, params: ResourceDeleteParams) -> Result<ResourceDeleteResult, FileError> {
        self.run(move |shared| relocate::delete(&shared.relocation(), &params)).await
    }

    /// `resourceMove`. From one file system to another it is a copy and then a delete.
    pub async fn rename(&self, params: ResourceMoveParams) -> Result<ResourceMoveResult, FileError> {
        self.run(move |shared| relocate::rename(&shared.relocation(), &params)).await
    }

    /// `resourceResolve`. Waits until the last change of the file is one tick of the clock ago, so that its etag is unique.
    pub async fn resolve(&self, params: ResourceResolveParams) -> Result<ResourceResolveResult, FileError> {
        self.run(move |shared| inspect::resolve(&shared.roots, &params)).await
    }

    /// `resourceMkdir`.
    pub async fn mkdir(&self, params: ResourceMkdirParams) -> Result<ResourceMkdirResult, FileError> {
        self.run(move |shared| {
            shared.roots.make_dirs(&path_of(&params.uri)?)?;
            Ok(ResourceMkdirResult {})
        })
        .await
    }

    /// `createResourceWatch`: begins to watch. [`Watch::next`] returns the changes. Dropping the watch ends it.
    pub async fn watch(&self, params: CreateResourceWatchParams) -> Result<Watch, FileError> {
        let limit = self.0.config.max_watches;
        let permit =
            Arc::clone(&self.0.watches).try_acquire_owned().map_err(|_| FileError::TooManyWatches { limit })?;
        let shared = Arc::clone(&self.0);
        self.run(move |_| Watch::begin(shared, permit, params)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FilesInner) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        run(&self.0, work).await
    }
}

impl FilesInner {
    fn relocation(&self) -> relocate::RelocateContext<'_> {
        relocate::RelocateContext { roots: &self.roots, locks: &self.locks, copy_limits: self.config.copy_limits() }
    }
}

/// Runs blocking work when one of the operations at the same time is free.
async fn run<T: Send + 'static>(
    shared: &Arc<FilesInner>,
    work: impl FnOnce(&FilesInner) -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    let closed = |error: &dyn std::fmt::Display| FileError::System(error.to_string());
    let permit = Arc::clone(&shared.running).acquire_owned().await.map_err(|error| closed(&error))?;
    let shared = Arc::clone(shared);
    let work = move || {
        let _permit = permit;
        work(&shared)
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| closed(&error))?
}
