//! Reads a repository without running git: its location, its settings, and the commit that is checked out.
//!
//! Clients may write inside the roots, and so they may write the files by which git finds the rest of a repository: `.git`,
//! `commondir`, `objects/info/alternates`. Such a file is followed to a directory outside of all roots only if that directory
//! names this work tree in turn, as git does for linked work trees and submodules. No client can write there. Otherwise a
//! client could read and change every repository that the host's user can.

use std::ffi::{OsStr, OsString};
use std::fs::FileTimes;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use tracing::warn;

use super::directory::{FileOrLink, OpenDirectory};

/// A work tree and its repository, kept open.
#[derive(Debug)]
pub(super) struct Repository {
    /// The top of the work tree.
    pub(super) top: OpenDirectory,
    /// The directory with the index and `HEAD` of this work tree.
    pub(super) own: OpenDirectory,
    /// The directory that all work trees of the repository share; mostly the same as `own`.
    pub(super) common: OpenDirectory,
    /// Where its objects are: its own, and those of other repositories that it uses.
    pub(super) objects: Vec<PathBuf>,
}

/// The largest file that is read for its settings or patterns.
const MAX_TEXT: u64 = 1 << 20;
/// The largest list of refs.
const MAX_REFS: u64 = 64 << 20;
/// The largest index; one of a million files is about a hundred megabytes.
const MAX_INDEX: u64 = 512 << 20;
/// How many shared parts of a split index are looked at. Git removes old ones.
const MAX_SHARED: usize = 16;
/// How many symbolic refs are followed, one after the other.
const MAX_HOPS: usize = 5;
/// How many alternates are followed: repositories whose objects this one uses, and their own alternates.
const MAX_ALTERNATES: usize = 32;

impl Repository {
    /// The work tree that a directory is in, if it is in one: its top and the directory, without symbolic links.
    pub(super) fn find(dir: &Path, roots: &[PathBuf]) -> Option<(PathBuf, PathBuf)> {
        let dir = dir.canonicalize().ok()?;
        let is_inside = |root: &PathBuf| root.canonicalize().is_ok_and(|root| dir.starts_with(root));
        if !roots.is_empty() && !roots.iter().any(is_inside) {
            return None;
        }
        for above in dir.ancestors() {
            match Self::open(above, roots) {
                Ok(_) => return Some((above.to_owned(), dir.clone())),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    warn!(top = %above.display(), "no changesets are made for this repository, because it cannot be opened: {error}");
                    return None;
                }
                Err(_) => {}
            }
        }
        None
    }

    /// Opens the repository of the work tree whose top is here. Clients may write to `roots`.
    pub(super) fn open(top: &Path, roots: &[PathBuf]) -> io::Result<Self> {
        let roots = WritableRoots::new(roots);
        let top = OpenDirectory::at(top)?;
        let own = match top.below(Path::new(".git")) {
            Ok(own) => own,
            // A file that names the place, or a link to it.
            Err(_) => {
                let own = match top.look(Path::new(".git"))? {
                    Some(FileOrLink::Link(target)) => resolved(top.path(), &target)?,
                    Some(FileOrLink::File(_)) => {
                        let text = top.read(".git", MAX_TEXT)?.unwrap_or_default();
                        let named = text.strip_prefix(b"gitdir: ").ok_or_else(|| none("no gitdir in .git"))?;
                        resolved(top.path(), line(named))?
                    }
                    None => return Err(none("no .git")),
                };
                if roots.leads_out(top.path(), own.path()) && !names_work_tree(&own, top.path())? {
                    return Err(outside(own.path()));
                }
                own
            }
        };
        let common = match own.read("commondir", MAX_TEXT)? {
            Some(named) => resolved(own.path(), line(&named))?,
            None => own.below(Path::new(""))?,
        };
        if roots.leads_out(own.path(), common.path()) {
            return Err(outside(common.path()));
        }
        let is_repository = own.look(Path::new("HEAD"))?.is_some() && common.path().join("objects").is_dir();
        if !is_repository {
            return Err(none("no repository"));
        }
        let objects = object_directories(&common, &roots)?;
        Ok(Self { top, own, common, objects })
    }

    /// Whether this is a work tree beside the repository's first one.
    pub(super) fn is_linked(&self) -> bool {
        self.own.path() != self.common.path()
    }

    /// The texts of the repository's configuration, its own and what is only for this work tree.
    pub(super) fn settings(&self) -> io::Result<[Vec<u8>; 2]> {
        let shared = self.common.read("config", MAX_TEXT)?.unwrap_or_default();
        let own = self.own.read("config.worktree", MAX_TEXT)?.unwrap_or_default();
        Ok([shared, own])
    }

    /// The branch that is checked out; `None` if a commit is, and not a branch.
    pub(super) fn branch(&self) -> io::Result<Option<String>> {
        let text = self.own.read("HEAD", MAX_TEXT)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let name = text.strip_prefix("ref:").and_then(|name| name.trim().strip_prefix("refs/heads/"));
        Ok(name.map(str::to_owned))
    }

    /// The name of the commit that is checked out; `None` before the first one.
    pub(super) fn head(&self) -> io::Result<Option<String>> {
        let mut name = "HEAD".to_owned();
        for _ in 0..MAX_HOPS {
            let from = if name == "HEAD" { &self.own } else { &self.common };
            let Some(text) = from.read(&name, MAX_TEXT)? else { return self.packed(&name) };
            let text = String::from_utf8_lossy(&text);
            match text.strip_prefix("ref:") {
                Some(next) => name = next.trim().to_owned(),
                None => return Ok(Some(text.trim().to_owned()).filter(|name| is_object(name))),
            }
            if !name.starts_with("refs/") {
                return Err(none("HEAD names no ref"));
            }
        }
        Err(none("HEAD names no commit"))
    }

    fn packed(&self, name: &str) -> io::Result<Option<String>> {
        let refs = self.common.read("packed-refs", MAX_REFS)?.unwrap_or_default();
        let refs = String::from_utf8_lossy(&refs);
        let found = refs.lines().filter_map(|line| line.split_once(' ')).find(|(_, packed)| *packed == name);
        Ok(found.map(|(object, _)| object.to_owned()).filter(|object| is_object(object)))
    }

    /// Copies the index and its parts into this directory, with their modification times, which git uses to find changed files.
    pub(super) fn copy_index(&self, to: &Path) -> io::Result<()> {
        let shared = self.own.names_with("sharedindex.", MAX_SHARED)?;
        for name in shared.iter().map(OsString::as_os_str).chain([OsStr::new("index")]) {
            let Some(FileOrLink::File(mut from)) = self.own.look(Path::new(name))? else { continue };
            let metadata = from.metadata()?;
            if metadata.len() > MAX_INDEX {
                return Err(io::Error::other(format!("an index of more than {MAX_INDEX} bytes")));
            }
            let mut copy = std::fs::File::create(to.join(name))?;
            io::copy(&mut io::Read::take(&mut from, MAX_INDEX), &mut copy)?;
            copy.set_times(FileTimes::new().set_modified(metadata.modified()?))?;
        }
        Ok(())
    }

    /// Copies the files `info/exclude` and `info/attributes` into this directory. They cannot make git run a program:
    /// which program an attribute stands for is in the configuration only.
    pub(super) fn copy_patterns(&self, to: &Path) -> io::Result<()> {
        for name in ["exclude", "attributes"] {
            if let Some(patterns) = self.common.read(Path::new("info").join(name), MAX_TEXT)? {
                std::fs::write(to.join(name), patterns)?;
            }
        }
        Ok(())
    }
}

/// The directories that clients may write to, without symbolic links.
struct WritableRoots(Vec<PathBuf>);

impl WritableRoots {
    fn new(roots: &[PathBuf]) -> Self {
        Self(roots.iter().filter_map(|root| root.canonicalize().ok()).collect())
    }

    fn contain(&self, path: &Path) -> bool {
        self.0.iter().any(|root| path.starts_with(root))
    }

    /// Whether a path that a file in `from` names lies outside, though a client may have written that file.
    fn leads_out(&self, from: &Path, to: &Path) -> bool {
        self.contain(from) && !self.contain(to)
    }
}

/// Whether a repository's own data names this work tree: as that of a linked work tree does, or of a submodule.
fn names_work_tree(own: &OpenDirectory, top: &Path) -> io::Result<bool> {
    if let Some(linked) = own.read("gitdir", MAX_TEXT)? {
        let named = own.path().join(line(&linked));
        return Ok(named.parent().and_then(|named| named.canonicalize().ok()).is_some_and(|named| named == top));
    }
    let config = own.read("config", MAX_TEXT)?.unwrap_or_default();
    let config = String::from_utf8_lossy(&config);
    let values = config.lines().filter_map(|line| line.trim().strip_prefix("worktree"));
    let mut values =
        values.filter_map(|rest| rest.trim_start().strip_prefix('=')).map(|value| value.trim().trim_matches('"'));
    Ok(values.any(|value| own.path().join(value).canonicalize().is_ok_and(|named| named == top)))
}

/// Where a repository's objects are. What `info/alternates` names is followed here and not by git, which would follow it
/// anywhere.
fn object_directories(common: &OpenDirectory, roots: &WritableRoots) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![common.path().join("objects").canonicalize()?];
    if roots.leads_out(common.path(), &found[0]) {
        return Err(outside(&found[0]));
    }
    let mut next = 0;
    while let Some(objects) = found.get(next).cloned() {
        next += 1;
        let text = match OpenDirectory::at(&objects).and_then(|dir| dir.read("info/alternates", MAX_TEXT)) {
            Ok(text) => text.unwrap_or_default(),
            // Of a repository that is gone, others find nothing, as git does.
            Err(_) => continue,
        };
        let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        for named in lines.filter_map(|named| objects.join(OsStr::from_bytes(named)).canonicalize().ok()) {
            let is_new = !found.contains(&named) && found.len() < MAX_ALTERNATES;
            if is_new && named.is_dir() && !roots.leads_out(&objects, &named) {
                found.push(named);
            }
        }
    }
    Ok(found)
}

fn outside(path: &Path) -> io::Error {
    let path = path.display();
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("its data is at {path}, outside of all roots, and does not name this work tree"),
    )
}

/// The directory that a file in another one names.
fn resolved(from: &Path, named: &OsStr) -> io::Result<OpenDirectory> {
    OpenDirectory::at(&from.join(named).canonicalize()?)
}

fn line(text: &[u8]) -> &OsStr {
    OsStr::from_bytes(text.split(|&byte| byte == b'\n' || byte == b'\r').next().unwrap_or_default())
}

fn is_object(name: &str) -> bool {
    matches!(name.len(), 40 | 64) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn none(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, reason)
}

/// The settings of a repository and its user that say how files are compared. None of them names a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Handed to git.
    pub(super) core: Vec<(String, OsString)>,
    /// Where the repository says that its work tree is, from where its own data is.
    pub(super) worktree: Option<OsString>,
    /// Whether it says that it has none.
    pub(super) is_bare: bool,
    /// How objects are named.
    pub(super) is_sha256: bool,
    /// How refs are kept, if not in files.
    pub(super) refs: Option<String>,
    /// Whether each work tree has settings of its own, too.
    pub(super) is_per_tree: bool,
}

/// Whose configuration it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    User,
    Repository,
}

/// How files are compared and written.
const PLAIN: [(&str, &[&str]); 9] = [
    ("core.autocrlf", &["true", "false", "input"]),
    ("core.checkstat", &["default", "minimal"]),
    ("core.eol", &["lf", "crlf", "native"]),
    ("core.filemode", &["true", "false"]),
    ("core.ignorecase", &["true", "false"]),
    ("core.precomposeunicode", &["true", "false"]),
    ("core.safecrlf", &["true", "false", "warn"]),
    ("core.symlinks", &["true", "false"]),
    ("core.trustctime", &["true", "false"]),
];

impl Settings {
    /// Takes what matters from a list as `git config --list -z` has it. Of a key that comes twice, the later counts.
    pub(super) fn take(&mut self, list: &[u8], whose: Whose) {
        for record in list.split(|&byte| byte == 0).filter(|record| !record.is_empty()) {
            let mut parts = record.splitn(2, |&byte| byte == b'\n');
            let key = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
            // A key without a value is true.
            let value = parts.next().unwrap_or(b"true");
            self.set(key, value, whose);
        }
    }

    fn set(&mut self, key: String, value: &[u8], whose: Whose) {
        let plain = String::from_utf8_lossy(value).to_ascii_lowercase();
        let plain = match plain.as_str() {
            "yes" | "on" | "1" => "true",
            "no" | "off" | "0" | "" => "false",
            other => other,
        };
        let allowed = PLAIN.iter().find(|(name, _)| *name == key);
        if allowed.is_some_and(|(_, values)| values.contains(&plain)) {
            self.core.push((key, plain.into()));
            return;
        }
        let path = || OsString::from_vec(value.to_vec());
        match (whose, key.as_str()) {
            // Patterns of the user's own.
            (Whose::User, "core.excludesfile") => self.core.push((key, path())),
            (Whose::Repository, "core.worktree") => self.worktree = Some(path()),
            (Whose::Repository, "core.bare") => self.is_bare = plain == "true",
            (Whose::Repository, "extensions.objectformat") => self.is_sha256 = plain == "sha256",
            (Whose::Repository, "extensions.worktreeconfig") => self.is_per_tree = plain == "true",
            (Whose::Repository, "extensions.refstorage") => {
                self.refs = Some(plain.to_owned()).filter(|refs| refs != "files");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_configuration_only_what_names_no_program_is_taken() {
        let mut settings = Settings::default();
        let list = b"core.autocrlf\ninput\0core.fsmonitor\n/evil\0filter.x.clean\n/evil\0core.filemode\0\
            core.excludesfile\n/x\0core.hookspath\n/evil\0core.eol\n/evil\0extensions.objectformat\nsha256\0core.bare\nno\0";
        settings.take(list, Whose::Repository);
        let core = vec![("core.autocrlf".to_owned(), "input".into()), ("core.filemode".to_owned(), "true".into())];
        assert_eq!(settings, Settings { core, is_sha256: true, ..Settings::default() });
        let mut settings = Settings::default();
        settings.take(list, Whose::User);
        assert_eq!(settings.core.last(), Some(&("core.excludesfile".to_owned(), "/x".into())));
        assert!(!settings.is_sha256);
    }
}
