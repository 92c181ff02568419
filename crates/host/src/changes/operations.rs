//! The operations on changes: stage, unstage, discard.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ahp_types::commands::ChangesetOperationTarget;
use ahp_types::common::Uri;
use ahp_types::state::{ChangesetOperation, ChangesetOperationScope, ChangesetOperationStatus};

use super::directory::{FileOrLink, GitLock, OpenDirectory};
use super::git::{Git, blocking, os};
use super::status::{Change, ChangeKind, Staged};
use super::work_tree::{ChangedFile, WorkTree};
use super::{ChangesConfig, ChangesError};

/// An operation on the whole changeset or on one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operation {
    kind: OperationKind,
    resource: Option<Uri>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationKind {
    Stage,
    Unstage,
    Discard,
}

impl Operation {
    pub(super) const fn operation(&self) -> &'static str {
        self.kind.id()
    }
}

impl OperationKind {
    const ALL: [Self; 3] = [Self::Stage, Self::Unstage, Self::Discard];

    const fn id(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Unstage => "unstage",
            Self::Discard => "discard",
        }
    }

    fn operation(self) -> ChangesetOperation {
        use ChangesetOperationScope::{Changeset, Resource};
        let (label, icon, scopes, confirmation) = match self {
            Self::Stage => ("Stage", "add", vec![Changeset, Resource], None),
            Self::Unstage => ("Unstage", "remove", vec![Changeset, Resource], None),
            // Discarded changes cannot be recovered: one file at a time, and only after a confirmation.
            Self::Discard => ("Discard", "discard", vec![Resource], Some("Discard all changes in this file?".into())),
        };
        ChangesetOperation {
            id: self.id().into(),
            label: label.into(),
            description: None,
            scopes,
            confirmation,
            icon: Some(icon.into()),
            group: None,
            status: ChangesetOperationStatus::Idle,
            error: None,
        }
    }
}

/// The operations that every changeset has.
pub(super) fn operations() -> Vec<ChangesetOperation> {
    OperationKind::ALL.into_iter().map(OperationKind::operation).collect()
}

/// The operation that a request names, if it exists.
pub(super) fn target(id: &str, target: Option<ChangesetOperationTarget>) -> Result<Operation, ChangesError> {
    let kind = OperationKind::ALL.into_iter().find(|kind| kind.id() == id);
    let kind = kind.ok_or_else(|| ChangesError::NoOperation(id.to_owned()))?;
    let wrong = |target: &str| ChangesError::WrongTarget { operation: id.to_owned(), target: target.to_owned() };
    let resource = match target {
        None if kind == OperationKind::Discard => return Err(wrong("a whole changeset")),
        None => None,
        Some(ChangesetOperationTarget::Resource { resource, .. }) => Some(resource),
        Some(ChangesetOperationTarget::Range { .. }) => return Err(wrong("a range")),
        Some(ChangesetOperationTarget::Unknown(_)) => return Err(wrong("a target of unknown kind")),
    };
    Ok(Operation { kind, resource })
}

/// The changes that it acts on. A file may be named by its URI before or after.
pub(super) fn choose(target: &Operation, files: &[ChangedFile]) -> Result<Vec<Change>, ChangesError> {
    let Some(uri) = &target.resource else { return Ok(files.iter().map(|found| found.change.clone()).collect()) };
    let named = |found: &&ChangedFile| {
        let edit = &found.file.edit;
        [&edit.after, &edit.before].into_iter().flatten().any(|side| side.uri == *uri)
    };
    let found = files.iter().find(named).ok_or_else(|| ChangesError::NotFound(format!("change of {uri}")))?;
    Ok(vec![found.change.clone()])
}

pub(super) async fn run(
    target: &Operation,
    tree: &WorkTree,
    config: &ChangesConfig,
    changes: &[Change],
) -> Result<(), ChangesError> {
    let work = OperationRun { git: tree.git(config).await?, max_bytes: config.max_staged_bytes };
    match target.kind {
        OperationKind::Stage => work.stage(changes).await,
        OperationKind::Unstage => work.unstage(changes).await,
        OperationKind::Discard => work.discard(changes).await,
    }
}

/// One run of an operation. Git works on copies in the host's own repository; the results are installed from there.
struct OperationRun {
    git: Git,
    max_bytes: u64,
}

/// The locked index.
struct Index {
    lock: GitLock,
    /// The old modification time: with a newer one, git would not notice recent changes of files.
    modified: Option<SystemTime>,
}

impl OperationRun {
    async fn stage(&self, changes: &[Change]) -> Result<(), ChangesError> {
        let changes = changes.iter().filter(|change| change.staged != Staged::All);
        // The old path of a renamed file is no longer in the index.
        let before = |change: &'_ Change| change.before.as_ref().map(|(path, _)| path.clone());
        let paths: Vec<_> =
            changes.filter_map(|change| change.after.clone().or_else(|| before(change))).map(path).collect();
        self.unfiltered(&paths).await?;
        let index = self.lock().await?;
        let (git, files, most) = (self.git.clone(), paths.clone(), self.max_bytes);
        blocking(move || copy_files(&git, &files, most)).await?;
        self.on(&self.git.on_copies(), &["add", "-A"], &paths).await?;
        self.finish(index).await
    }

    async fn unstage(&self, changes: &[Change]) -> Result<(), ChangesError> {
        let changes = changes.iter().filter(|change| change.staged != Staged::None);
        let paths: Vec<_> = changes.flat_map(Change::paths).map(|bytes| path(bytes.to_vec())).collect();
        let index = self.lock().await?;
        self.on(&self.git, &["reset", "-q"], &paths).await?;
        self.finish(index).await
    }

    async fn discard(&self, changes: &[Change]) -> Result<(), ChangesError> {
        for change in changes {
            let paths: Vec<_> = change.paths().into_iter().map(|bytes| path(bytes.to_vec())).collect();
            self.unfiltered(&paths).await?;
            if change.kind == ChangeKind::Untracked {
                let git = self.git.clone();
                let remove = move || paths.iter().try_for_each(|path| git.repository().top.remove(path));
                blocking(move || remove().map_err(ChangesError::unreadable)).await?;
                continue;
            }
            let index = self.lock().await?;
            let (git, files) = (self.git.clone(), paths.clone());
            blocking(move || copy_attributes(&git, &files)).await?;
            let restore = ["restore", "--source=HEAD", "--staged", "--worktree"];
            self.on(&self.git.on_copies(), &restore, &paths).await?;
            let git = self.git.clone();
            blocking(move || install_files(&git, &paths)).await?;
            self.finish(index).await?;
        }
        Ok(())
    }

    /// Runs git on these paths.
    async fn on(&self, git: &Git, command: &[&str], paths: &[PathBuf]) -> Result<(), ChangesError> {
        // Without a path git would use all of them.
        if paths.is_empty() {
            return Ok(());
        }
        let arguments = command.iter().copied().chain(["--pathspec-from-file=-", "--pathspec-file-nul"]);
        git.run_with(arguments, listed(paths), MAX_ANSWER).await.map(drop)
    }

    /// Refuses files that need a filter: no filter runs, so they would be stored or restored with wrong contents.
    async fn unfiltered(&self, paths: &[PathBuf]) -> Result<(), ChangesError> {
        let most = paths.iter().map(|path| path.as_os_str().len() + MAX_ATTRIBUTE).sum();
        let reported = self.git.run_with(["check-attr", "-z", "--stdin", "filter"], listed(paths), most).await?;
        let fields: Vec<_> = reported.split(|&byte| byte == 0).collect();
        let filtered = fields.chunks_exact(3).find(|fields| fields[2] != b"unspecified" && fields[2] != b"unset");
        match filtered {
            Some(fields) => Err(ChangesError::Filtered(String::from_utf8_lossy(fields[0]).into_owned())),
            None => Ok(()),
        }
    }

    /// Locks the index as git does, and copies it.
    async fn lock(&self) -> Result<Index, ChangesError> {
        let git = self.git.clone();
        blocking(move || {
            let lock = git.repository().own.lock("index").map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    ChangesError::Locked(git.repository().own.path().join("index.lock"))
                }
                _ => ChangesError::unreadable(error),
            })?;
            git.repository().copy_index(git.own()).map_err(ChangesError::unreadable)?;
            let modified = git.own().join("index").metadata().and_then(|copy| copy.modified()).ok();
            Ok(Index { lock, modified })
        })
        .await
    }

    /// Installs the new objects, and then the index.
    async fn finish(&self, index: Index) -> Result<(), ChangesError> {
        let git = self.git.clone();
        let install = move || {
            install_objects(&git)?;
            match std::fs::read(git.own().join("index")) {
                Ok(contents) => index.lock.finish(&contents, index.modified),
                // There was no index before, and git made none.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            }
        };
        blocking(move || install().map_err(ChangesError::unreadable)).await
    }
}

fn path(bytes: Vec<u8>) -> PathBuf {
    os(bytes).into()
}

fn listed(paths: &[PathBuf]) -> Vec<u8> {
    paths.iter().map(|path| path.as_os_str().as_bytes()).collect::<Vec<_>>().join(&0)
}

/// Copies these files of the work tree for git, and the attributes that apply to them. A removed file is not in the copy, so
/// git sees that it is removed.
fn copy_files(git: &Git, paths: &[PathBuf], most: u64) -> Result<(), ChangesError> {
    let top = &git.repository().top;
    let copies = OpenDirectory::at(&git.copies()).map_err(ChangesError::unreadable)?;
    let mut left = most;
    for path in paths {
        let found = top.look(path).map_err(ChangesError::unreadable)?;
        if let Some(FileOrLink::File(file)) = &found
            && file.metadata().is_ok_and(|metadata| metadata.len() > left)
        {
            return Err(ChangesError::TooLarge { limit: usize::try_from(most).unwrap_or(usize::MAX) });
        }
        if let Some(thing) = found {
            left -= copies.install(path, thing, left).map_err(ChangesError::unreadable)?;
        }
    }
    copy_attributes(git, paths)
}

/// Copies the attributes that are for these paths.
fn copy_attributes(git: &Git, paths: &[PathBuf]) -> Result<(), ChangesError> {
    let copies = OpenDirectory::at(&git.copies()).map_err(ChangesError::unreadable)?;
    let dirs: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    for attributes in dirs.into_iter().map(|dir| dir.join(".gitattributes")) {
        // Git does not read those that are a link, either.
        if let Ok(Some(thing @ FileOrLink::File(_))) = git.repository().top.look(&attributes) {
            copies.install(&attributes, thing, MAX_ATTRIBUTES).map_err(ChangesError::unreadable)?;
        }
    }
    Ok(())
}

/// Installs the results of git in the work tree.
fn install_files(git: &Git, paths: &[PathBuf]) -> Result<(), ChangesError> {
    let top = &git.repository().top;
    let install = || {
        let copies = OpenDirectory::at(&git.copies())?;
        for path in paths {
            match copies.look(path)? {
                Some(thing) => _ = top.install(path, thing, u64::MAX)?,
                None => {
                    top.remove(path)?;
                    top.prune(path);
                }
            }
        }
        Ok(())
    };
    install().map_err(ChangesError::unreadable)
}

/// Installs the objects that git has made.
fn install_objects(git: &Git) -> std::io::Result<()> {
    let objects = git.repository().common.below(Path::new("objects"))?;
    let made = git.own().join("objects");
    let mut found = Vec::new();
    for dir in std::fs::read_dir(&made)? {
        let dir = dir?;
        if dir.file_name() == "info" {
            continue;
        }
        for object in std::fs::read_dir(dir.path())? {
            found.push(Path::new(&dir.file_name()).join(object?.file_name()));
        }
    }
    // Packs are installed before their indices.
    found.sort_by_key(|path| path.extension().is_some_and(|extension| extension == "idx"));
    for path in found {
        objects.install(&path, FileOrLink::File(std::fs::File::open(made.join(&path))?), u64::MAX)?;
    }
    Ok(())
}

/// The output of these commands is ignored.
const MAX_ANSWER: usize = 1 << 20;
/// How much longer than its path git's answer about one attribute may be.
const MAX_ATTRIBUTE: usize = 1024;
/// The largest file of attributes; git reads no larger one.
const MAX_ATTRIBUTES: u64 = 100 << 20;
