//! The changes of a work tree, as files of a changeset.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ahp_types::state::{ChangesetFile, ContentRef, FileEdit, FileEditDiffStats, FileEditSide};
use rustix::fs::OFlags;
use serde_json::json;

use super::git::{Git, blocking, os};
use super::repository::Repository;
use super::status::{self, Change, ChangeKind, LineCounts, Lines};
use super::{ChangesConfig, ChangesError};
use crate::files::uri_of;

/// The work tree that a directory is in.
#[derive(Debug, Clone)]
pub(super) struct WorkTree {
    /// Where paths begin.
    top: PathBuf,
    /// The directory of the changeset: the top itself, or one below it.
    dir: PathBuf,
}

/// A changed file with where it came from.
#[derive(Debug, Clone)]
pub(super) struct ChangedFile {
    pub(super) change: Change,
    pub(super) file: ChangesetFile,
}

impl WorkTree {
    /// The work tree of this directory; `None` if there is none.
    pub(super) async fn find(config: &ChangesConfig, dir: &Path) -> Result<Option<Self>, ChangesError> {
        let (asked, roots) = (dir.to_owned(), config.roots.clone());
        let Some((top, dir)) = blocking(move || Ok(Repository::find(&asked, &roots))).await? else { return Ok(None) };
        let git = Git::open(config, &top).await?;
        // A repository may say that its work tree is elsewhere, or that it has none.
        let (repository, settings) = (git.repository(), git.settings());
        let is_bare = settings.is_bare && !repository.is_linked();
        let said = settings.worktree.as_ref().filter(|_| !repository.is_linked());
        let said = said.map(|said| repository.own.path().join(said));
        let here = top.clone();
        let is_here = blocking(move || Ok(said.is_none_or(|said| said.canonicalize().is_ok_and(|said| said == here))));
        Ok((is_here.await? && !is_bare).then_some(Self { top, dir }))
    }

    pub(super) async fn git(&self, config: &ChangesConfig) -> Result<Git, ChangesError> {
        Git::open(config, &self.top).await
    }

    /// The session's directory as a path that git understands, relative to the top of the work tree.
    fn below(&self) -> &Path {
        match self.dir.strip_prefix(&self.top) {
            Ok(below) if !below.as_os_str().is_empty() => below,
            _ => Path::new("."),
        }
    }

    pub(super) fn path(&self, path: &[u8]) -> PathBuf {
        self.top.join(os(path.to_vec()))
    }

    /// Everything that differs from the last commit, below the directory. `blob` names the contents before a change.
    pub(super) async fn changes(
        &self,
        config: &ChangesConfig,
        blob: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Result<Vec<ChangedFile>, ChangesError> {
        let git = self.git(config).await?;
        let status = ["status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=all", "--"];
        let status = status.iter().map(OsStr::new).chain([self.below().as_os_str()]);
        let mut changes = status::changes(&git.run(status).await?);
        changes.retain(|change| change.paths().iter().all(|path| self.path(path).starts_with(&self.dir)));
        if changes.len() > config.max_files {
            return Err(ChangesError::TooMany { files: changes.len(), limit: config.max_files });
        }
        let counts =
            counts(&git, self.below(), changes.iter().any(|change| change.kind == ChangeKind::Renamed)).await?;
        let sizes = sizes(&git, &changes).await?;
        let (tree, config) = (self.clone(), config.clone());
        let files = move || {
            let mut uncounted = config.max_counted_bytes;
            let facts = ChangeFacts { tree: &tree, counts: &counts, sizes: &sizes, blob: &blob };
            changes
                .into_iter()
                .map(|change| ChangedFile { file: facts.file(&change, &mut uncounted), change })
                .collect()
        };
        blocking(move || Ok(files())).await
    }
}

/// The empty tree, which git knows without being told: what there is before the first commit.
const EMPTY: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
const EMPTY_SHA256: &str = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321";

/// A diff may detect other renames than a status. So lines are counted without renames, and if there are some, once more with
/// them.
async fn counts(git: &Git, below: &Path, renamed: bool) -> Result<LineCounts, ChangesError> {
    let commit = git.run(["rev-parse", "--quiet", "--verify", "HEAD^{commit}"]).await;
    let base = match commit {
        Ok(_) => "HEAD",
        Err(ChangesError::Failed(_)) if git.settings().is_sha256 => EMPTY_SHA256,
        Err(ChangesError::Failed(_)) => EMPTY,
        Err(error) => return Err(error),
    };
    let diff = ["diff", "--numstat", "-z", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all"];
    let count = async |option| {
        let arguments = diff.into_iter().chain([option, base, "--"]).map(OsStr::new);
        git.run(arguments.chain([below.as_os_str()])).await
    };
    let plain = status::counts(&count("--no-renames").await?).plain;
    let renamed = if renamed { status::counts(&count("-M").await?).renamed } else { HashMap::new() };
    Ok(LineCounts { plain, renamed })
}

/// The sizes of the contents before the changes.
async fn sizes(git: &Git, changes: &[Change]) -> Result<HashMap<String, i64>, ChangesError> {
    let oids: HashSet<&str> = changes.iter().filter_map(|change| Some(change.before.as_ref()?.1.as_str())).collect();
    if oids.is_empty() {
        return Ok(HashMap::new());
    }
    let asked = oids.into_iter().fold(Vec::new(), |mut asked, oid| {
        asked.extend_from_slice(oid.as_bytes());
        asked.push(b'\n');
        asked
    });
    let most = asked.len().saturating_mul(2);
    let reported = git.run_with(["cat-file", "--batch-check=%(objectname) %(objectsize)"], asked, most).await?;
    let reported = String::from_utf8_lossy(&reported);
    let pairs = reported.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs.filter_map(|(oid, size)| Some((oid.to_owned(), size.parse().ok()?))).collect())
}

/// What is needed to describe the changes of all files.
struct ChangeFacts<'a, B> {
    tree: &'a WorkTree,
    counts: &'a LineCounts,
    sizes: &'a HashMap<String, i64>,
    blob: &'a B,
}

impl<B: Fn(&str) -> String> ChangeFacts<'_, B> {
    fn file(&self, change: &Change, uncounted: &mut u64) -> ChangesetFile {
        let before = change.before.as_ref().map(|(path, oid)| self.before(path, oid));
        let after = change.after.as_ref().map(|path| self.after(path));
        let id = after.as_ref().or(before.as_ref()).map(|side| side.uri.clone()).unwrap_or_default();
        let lines = self.lines(change, uncounted);
        let diff = lines.map(|lines| FileEditDiffStats { added: Some(lines.added), removed: Some(lines.removed) });
        let meta = json!({ "status": change.kind.name(), "staged": change.staged.name() });
        ChangesetFile { id, edit: FileEdit { before, after, diff }, reviewed: None, meta: meta.as_object().cloned() }
    }

    fn before(&self, path: &[u8], oid: &str) -> FileEditSide {
        let content = ContentRef {
            uri: (self.blob)(oid),
            size_hint: self.sizes.get(oid).copied(),
            content_type: None,
            nonce: Some(oid.to_owned()),
        };
        FileEditSide { uri: uri_of(&self.tree.path(path)), content }
    }

    /// The nonce changes with the contents, so that clients know when to read them again.
    fn after(&self, path: &[u8]) -> FileEditSide {
        let path = self.tree.path(path);
        let uri = uri_of(&path);
        let facts = path.symlink_metadata().ok();
        let nonce =
            facts.as_ref().map(|facts| format!("{:x}.{:x}-{:x}", facts.mtime(), facts.mtime_nsec(), facts.len()));
        let size_hint = facts.and_then(|facts| i64::try_from(facts.len()).ok());
        let content = ContentRef { uri: uri.clone(), size_hint, content_type: None, nonce };
        FileEditSide { uri, content }
    }

    fn lines(&self, change: &Change, uncounted: &mut u64) -> Option<Lines> {
        if change.kind == ChangeKind::Untracked {
            let added = count_lines(&self.tree.path(change.after.as_ref()?), uncounted)?;
            return Some(Lines { added, removed: 0 });
        }
        if let (ChangeKind::Renamed, Some((old, _)), Some(new)) = (change.kind, &change.before, &change.after) {
            let counted = self.counts.renamed.get(&(old.clone(), new.clone()));
            if counted.is_some() {
                return counted.copied();
            }
        }
        // For a rename that the diff does not detect: all lines of the old and of the new file.
        let mut parts = change.paths().into_iter().filter_map(|path| self.counts.plain.get(path));
        let first = *parts.next()?;
        Some(
            parts.fold(first, |sum, part| Lines { added: sum.added + part.added, removed: sum.removed + part.removed }),
        )
    }
}

/// A NUL in the first bytes makes a file binary, as git has it.
const BINARY_LOOK: usize = 8000;

/// The lines of a text file; `None` for anything else, and when the files together have been too much to read.
fn count_lines(path: &Path, uncounted: &mut u64) -> Option<i64> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK; // No link out of here, and no waiting for a pipe.
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().try_into().ok()?).open(path).ok()?;
    let facts = file.metadata().ok().filter(|facts| facts.is_file() && facts.len() <= *uncounted)?;
    *uncounted -= facts.len();
    count(file.take(facts.len()))
}

fn count(mut file: std::io::Take<File>) -> Option<i64> {
    let (mut buffer, mut lines, mut read, mut last) = ([0; 16 << 10], 0, 0, b'\n');
    loop {
        let found = file.read(&mut buffer).ok()?;
        let Some(&end) = buffer[..found].last() else { break };
        let looked = BINARY_LOOK.saturating_sub(read).min(found);
        if buffer[..looked].contains(&0) {
            return None;
        }
        lines += i64::try_from(buffer[..found].iter().filter(|&&byte| byte == b'\n').count()).ok()?;
        (read, last) = (read.saturating_add(found), end);
    }
    // A last line without an end is one too.
    Some(lines + i64::from(last != b'\n'))
}
