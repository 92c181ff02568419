//! Changesets: what differs from the last commit in a session's working directory.
//!
//! A directory in a git work tree has one changeset, its uncommitted changes; other directories have none. It contains no file
//! contents, only references: the file itself for the present content, and `CHANNEL/blob/NAME` for the old content, which
//! [`Changes::read`] returns. [`Changes::refresh`] computes it; only differences from the last time are logged.
//!
//! The `git` program does the work. It never reads the repository's configuration, runs no program that the repository names,
//! and writes only into a directory of the host: see `changes/git.rs`.

mod changeset;
mod directory;
mod git;
mod operations;
mod repository;
mod status;
mod work_tree;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ahp_types::commands::{InvokeChangesetOperationParams, InvokeChangesetOperationResult};
use ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use ahp_types::state::{ChangesSummary, Changeset, ChangesetCapabilities, ChangesetState, ChangesetStatus, ErrorInfo};
use bytes::Bytes;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use tempfile::TempDir;
use thiserror::Error;

use self::changeset::ChangesetTracker;
use self::repository::Repository;
use self::work_tree::WorkTree;
use crate::action_sink::ActionSink;
use crate::error::MethodError;
use crate::lock::lock;
use crate::log::AppendError;

/// What the names of directories for git's own files begin with, before the process's id.
const SCRATCH: &str = "breakbulk-git-";

/// What changesets may cost.
#[derive(Debug, Clone)]
pub struct ChangesConfig {
    /// The git program. By default `git`, found in the host's `PATH`. It runs without a `PATH`.
    pub git: OsString,
    /// The directories that clients may write to. Git's own files are kept elsewhere. By default none.
    pub roots: Vec<PathBuf>,
    /// Where git's own files are while it runs: the first of these directories that exists and is outside of all roots. By
    /// default the system's temporary directory, `/var/tmp`, `XDG_RUNTIME_DIR` and `/dev/shm`.
    pub scratch: Vec<PathBuf>,
    /// How long one run of it may take. By default 20 s.
    pub timeout: Duration,
    /// What one run may write. By default 64 MiB.
    pub max_output_bytes: usize,
    /// The most files in a changeset. With more, it has an error and no files. By default 10,000.
    pub max_files: usize,
    /// Bytes of new files that are read to count their lines. By default 32 MiB; further files have no counts.
    pub max_counted_bytes: u64,
    /// The largest contents that are read from before a change. By default 64 MiB.
    pub max_blob_bytes: usize,
    /// Bytes of files that are staged at once. By default 256 MiB.
    pub max_staged_bytes: u64,
}

impl Default for ChangesConfig {
    fn default() -> Self {
        Self {
            git: "git".into(),
            roots: Vec::new(),
            scratch: [std::env::temp_dir(), "/var/tmp".into()]
                .into_iter()
                .chain(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
                .chain([PathBuf::from("/dev/shm")])
                .collect(),
            timeout: Duration::from_secs(20),
            max_output_bytes: 64 << 20,
            max_files: 10_000,
            max_counted_bytes: 32 << 20,
            max_blob_bytes: 64 << 20,
            max_staged_bytes: 256 << 20,
        }
    }
}

impl ChangesConfig {
    /// A new directory that no client and no other user can reach, removed on drop. Its name contains the id of this process, so
    /// that a later host knows whether it is still in use. Touches the file system.
    fn scratch(&self) -> Result<TempDir, ChangesError> {
        let prefix = format!("{SCRATCH}{}-", std::process::id());
        let private = || Permissions::from_mode(0o700);
        let mut made = self
            .scratch_places()
            .into_iter()
            .filter_map(|place| tempfile::Builder::new().prefix(&prefix).permissions(private()).tempdir_in(place).ok());
        made.next().ok_or(ChangesError::NoScratch)
    }

    /// Where git's own files may be kept: outside of all roots.
    fn scratch_places(&self) -> Vec<PathBuf> {
        let roots: Vec<_> = self.roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
        let places = self.scratch.iter().filter_map(|place| place.canonicalize().ok());
        places.filter(|place| !roots.iter().any(|root| place.starts_with(root))).collect()
    }

    /// Removes what hosts have left behind that were killed: directories of ours whose process is gone. Touches the file system.
    fn remove_abandoned_scratch(&self) {
        let user = rustix::process::geteuid().as_raw();
        for entry in self.scratch_places().iter().filter_map(|place| place.read_dir().ok()).flatten().flatten() {
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix(SCRATCH)?.split('-').next()?.parse().ok());
            let is_ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
            let is_gone =
                process.and_then(Pid::from_raw).is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH));
            if is_ours && is_gone {
                // What cannot be removed now is found again at the next start.
                _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Why there is no changeset, or a method on one fails.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChangesError {
    /// No such changeset, or no such contents in it.
    #[error("no {0}")]
    NotFound(String),
    /// The changeset has no such operation.
    #[error("no operation {0:?}")]
    NoOperation(String),
    /// The operation is not for this target.
    #[error("{operation} is not for {target}")]
    WrongTarget {
        /// The operation.
        operation: String,
        /// What it was asked to act on.
        target: String,
    },
    /// A filter program would be needed, and none is run.
    #[error("{0} goes through a filter program, which is not run here")]
    Filtered(String),
    /// The git program cannot be run.
    #[error("cannot start git: {0}")]
    NoGit(String),
    /// There is no place for git's own files.
    #[error("git needs a writable directory for its own files, outside of all roots; set TMPDIR to one")]
    NoScratch,
    /// The repository cannot be read, or not be written to.
    #[error("the repository cannot be used: {0}")]
    Unreadable(String),
    /// Another git is at work.
    #[error("another git is at work in the repository; if none is, one was killed: remove {}", .0.display())]
    Locked(PathBuf),
    /// Git says no.
    #[error("git: {0}")]
    Failed(String),
    /// Git took too long.
    #[error("git took longer than {0:?}")]
    Slow(Duration),
    /// Git wrote too much, or contents are too large.
    #[error("the output of git or the content of a file is over the limit of {limit} bytes")]
    TooLarge {
        /// The most that is allowed.
        limit: usize,
    },
    /// Too many files differ.
    #[error("{files} files differ; no more than {limit} are listed")]
    TooMany {
        /// How many do.
        files: usize,
        /// How many may.
        limit: usize,
    },
    /// The log did not take it.
    #[error(transparent)]
    Log(#[from] AppendError),
}

impl ChangesError {
    /// Its code on the wire.
    #[must_use]
    pub const fn code(&self) -> i32 {
        match self {
            Self::NotFound(_) => ahp_error_codes::NOT_FOUND,
            Self::NoOperation(_) | Self::WrongTarget { .. } => json_rpc_error_codes::INVALID_PARAMS,
            Self::Filtered(_) => ahp_error_codes::PERMISSION_DENIED,
            _ => json_rpc_error_codes::INTERNAL_ERROR,
        }
    }

    /// Makes an error of one of the file system.
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    fn unreadable(error: std::io::Error) -> Self {
        Self::Unreadable(error.to_string())
    }

    /// As a state has it.
    #[must_use]
    pub fn info(&self) -> ErrorInfo {
        ErrorInfo { error_type: "changeset".into(), message: self.to_string(), stack: None, meta: None }
    }
}

impl From<ChangesError> for MethodError {
    fn from(error: ChangesError) -> Self {
        match error {
            ChangesError::Log(AppendError::Full) => Self::log_full(),
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

/// The changesets of a host.
pub struct Changes {
    act: Arc<dyn ActionSink>,
    config: ChangesConfig,
    changesets: Mutex<HashMap<String, Arc<ChangesetTracker>>>,
}

/// A changeset that there is now.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// Its channel.
    pub channel: String,
    /// Its entry in the session's catalogue.
    pub entry: Changeset,
    /// What its channel begins with: nothing is computed yet.
    pub state: ChangesetState,
}

/// What a directory has checked out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckedOut {
    /// The branch; `None` outside of a work tree, and where a commit is checked out instead.
    pub branch: Option<String>,
    /// Whether the work tree is one beside the repository's first.
    pub is_linked: bool,
}

impl Changes {
    /// No changesets yet. Their actions go to `act`. Removes what hosts that were killed have left of git's own files.
    #[must_use]
    pub fn new(act: Arc<dyn ActionSink>, config: ChangesConfig) -> Self {
        config.remove_abandoned_scratch();
        Self { act, config, changesets: Mutex::default() }
    }

    /// What a directory has checked out. Nothing, if that cannot be read.
    pub async fn checked_out(&self, dir: PathBuf) -> CheckedOut {
        let roots = self.config.roots.clone();
        let look = move || {
            let (top, _) = Repository::find(&dir, &roots)?;
            let repository = Repository::open(&top, &roots).ok()?;
            Some(CheckedOut { branch: repository.branch().ok()?, is_linked: repository.is_linked() })
        };
        tokio::task::spawn_blocking(look).await.ok().flatten().unwrap_or_default()
    }

    /// Opens the changeset of a session's `nth` working directory; `None` if that is in no work tree. Its channel is to be
    /// opened before the first [`refresh`](Changes::refresh).
    pub async fn open(&self, session: &str, nth: usize, dir: &Path) -> Result<Option<Opened>, ChangesError> {
        let Some(tree) = WorkTree::find(&self.config, dir).await? else { return Ok(None) };
        let channel = match nth {
            0 => format!("{session}/changes/uncommitted"),
            nth => format!("{session}/changes/uncommitted/{nth}"),
        };
        self.changesets().insert(
            channel.clone(),
            Arc::new(ChangesetTracker::new(channel.clone(), tree, self.act.clone(), &self.config)),
        );
        let entry = Changeset {
            label: "Uncommitted Changes".into(),
            uri_template: channel.clone(),
            description: Some(dir.display().to_string()),
            change_kind: "uncommitted".into(),
            capabilities: Some(ChangesetCapabilities { review: Some(serde_json::Map::new()) }),
        };
        let operations = Some(operations::operations());
        let state = ChangesetState { status: ChangesetStatus::Computing, error: None, files: Vec::new(), operations };
        Ok(Some(Opened { channel, entry, state }))
    }

    /// Compares the work tree again and logs the differences; returns the counts. If this fails, the changeset shows the error,
    /// which is returned too.
    pub async fn refresh(&self, channel: &str) -> Result<ChangesSummary, ChangesError> {
        self.changeset(channel)?.refresh().await
    }

    /// How often the changeset has changed since it was opened; 0 if it is not open.
    #[must_use]
    pub fn revision(&self, channel: &str) -> u64 {
        self.changeset(channel).map_or(0, |changeset| changeset.revision())
    }

    /// Answers `invokeChangesetOperation`: stages, unstages or discards.
    pub async fn invoke(
        &self,
        params: InvokeChangesetOperationParams,
    ) -> Result<InvokeChangesetOperationResult, ChangesError> {
        let changeset = self.changeset(&params.channel)?;
        let target = operations::target(&params.operation_id, params.target)?;
        // On a task of its own, so that it is completed even if the caller is dropped.
        let invoked = tokio::spawn(async move { changeset.invoke(target).await });
        invoked.await.unwrap_or_else(|error| Err(ChangesError::Failed(error.to_string())))?;
        Ok(InvokeChangesetOperationResult::default())
    }

    /// Whether [`read`](Changes::read) answers for this URI.
    #[must_use]
    pub fn knows(&self, uri: &str) -> bool {
        uri.rsplit_once("/blob/").is_some_and(|(channel, _)| self.changesets().contains_key(channel))
    }

    /// The old contents of a file, by the URI in the changeset.
    pub async fn read(&self, uri: &str) -> Result<Bytes, ChangesError> {
        let missing = || ChangesError::NotFound(uri.to_owned());
        let (channel, name) = uri.rsplit_once("/blob/").ok_or_else(missing)?;
        self.changeset(channel)?.read(name).await
    }

    /// Forgets a changeset whose session is gone.
    pub fn close(&self, channel: &str) {
        self.changesets().remove(channel);
    }

    fn changeset(&self, channel: &str) -> Result<Arc<ChangesetTracker>, ChangesError> {
        self.changesets().get(channel).cloned().ok_or_else(|| ChangesError::NotFound(channel.to_owned()))
    }

    fn changesets(&self) -> MutexGuard<'_, HashMap<String, Arc<ChangesetTracker>>> {
        lock(&self.changesets)
    }
}
