//! The `git` program, in repositories that may be hostile.
//!
//! A repository's configuration can name programs: hooks, a file system monitor, filters, diffs, a transport for missing
//! objects; and a client that may write files may change it while git runs. So git never reads it. Each [`Git`] is a new
//! repository of the host, in a directory outside of the roots, with a configuration that the host has written:
//!
//! - The index and the patterns (`info/exclude`, `info/attributes`) are copies. The commit that is checked out is found by
//!   [`Repository`], not by git. Objects are read where they are, through links to the directories that hold them:
//!   git sees no `info/alternates` of the repository, which could name any other repository.
//! - A few values of the repository's and the user's configuration are passed on, which say how files are compared
//!   ([`Settings`]). Filters that attributes name are not defined, so they do not run; Git LFS is one.
//! - Git writes only into that directory. Changes for the repository and the work tree are installed from there by
//!   [`OpenDirectory`](super::directory::OpenDirectory), which follows no link.
//! - Git finds no program by name, not even itself, so it cannot start git in a submodule, which would read the submodule's
//!   configuration. It fetches nothing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use breakbulk::environment;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::repository::{Repository, Settings, Whose};
use super::{ChangesConfig, ChangesError};

/// Git for one repository, as it is now.
#[derive(Debug, Clone)]
pub(super) struct Git {
    config: ChangesConfig,
    program: PathBuf,
    /// The repository whose data it is.
    repository: Arc<Repository>,
    /// The host's own repository, removed with its last user.
    scratch: Arc<TempDir>,
    settings: Arc<Settings>,
    work: WorkTreeSource,
}

/// Which files git sees as its work tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkTreeSource {
    /// The real ones. Git only reads them.
    WorkTree,
    /// Copies of some, in the host's own directory.
    Copies,
}

/// Which settings git reads, beside those on its command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    Nothing,
    /// The user's and the system's: only to list them.
    User,
}

/// The settings of each run: nothing is executed, and nothing is fetched.
const SAFE: [(&str, &str); 10] = [
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.bigFileThreshold", "32m"), // Larger files count as binary: no lines are counted in them.
    ("core.attributesFile", "/dev/null"),
    ("core.quotePath", "false"),
    ("core.splitIndex", "false"), // What git writes is one file.
    ("protocol.allow", "never"),
    ("safe.bareRepository", "explicit"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
];

/// Directories in the host's own repository: an empty one as `PATH`, and one for copies of files.
const EMPTY: &str = "empty";
const COPIES: &str = "work";
/// The names of links to directories of objects begin so; a number follows.
const LINKED: &str = "objects-";

impl Git {
    /// Git for the work tree whose top is here.
    pub(super) async fn open(config: &ChangesConfig, top: &Path) -> Result<Self, ChangesError> {
        let (top, own_config) = (top.to_owned(), config.clone());
        let (mut git, texts) = blocking(move || Self::prepare(&own_config, &top)).await?;
        let (mut settings, most) = (Settings::default(), config.max_output_bytes);
        settings.take(&git.start(Reads::User, ["config", "--list", "-z"], Vec::new(), most).await?, Whose::User);
        let [shared, own] = texts;
        let list = ["config", "--file", "-", "--no-includes", "--list", "-z"];
        settings.take(&git.run_with(list, shared, most).await?, Whose::Repository);
        if settings.is_per_tree {
            settings.take(&git.run_with(list, own, most).await?, Whose::Repository);
        }
        if let Some(refs) = &settings.refs {
            return Err(ChangesError::Unreadable(format!("its refs are kept as {refs}, which is not read here")));
        }
        git.settings = Arc::new(settings);
        let ready = git.clone();
        blocking(move || ready.fill().map_err(ChangesError::unreadable)).await?;
        Ok(git)
    }

    /// Makes the host's own repository, without settings; returns those that the real one has.
    fn prepare(config: &ChangesConfig, top: &Path) -> Result<(Self, [Vec<u8>; 2]), ChangesError> {
        let program = program(&config.git)?;
        let repository = Repository::open(top, &config.roots).map_err(ChangesError::unreadable)?;
        let texts = repository.settings().map_err(ChangesError::unreadable)?;
        let scratch = config.scratch()?;
        for name in [EMPTY, COPIES] {
            std::fs::create_dir(scratch.path().join(name)).map_err(ChangesError::unreadable)?;
        }
        let git = Self {
            config: config.clone(),
            program,
            repository: Arc::new(repository),
            scratch: Arc::new(scratch),
            settings: Arc::default(),
            work: WorkTreeSource::WorkTree,
        };
        Ok((git, texts))
    }

    /// Fills the host's own repository with what the real one has.
    fn fill(&self) -> std::io::Result<()> {
        let own = self.scratch.path();
        for name in ["refs", "info", "objects", "objects/info"] {
            std::fs::create_dir(own.join(name))?;
        }
        let mut alternates = Vec::new();
        for (n, objects) in self.repository.objects.iter().enumerate() {
            let linked = own.join(format!("{LINKED}{n}"));
            link_objects(objects, &linked)?;
            alternates.extend(quoted(linked.as_os_str()));
        }
        std::fs::write(own.join("objects/info/alternates"), alternates)?;
        self.repository.copy_index(own)?;
        self.repository.copy_patterns(&own.join("info"))?;
        let head = self.repository.head()?;
        std::fs::write(own.join("HEAD"), head.as_deref().unwrap_or("ref: refs/heads/none"))?;
        let format = match self.settings.is_sha256 {
            true => "[core]\nrepositoryformatversion = 1\n[extensions]\nobjectformat = sha256\n",
            false => "[core]\nrepositoryformatversion = 0\n",
        };
        std::fs::write(own.join("config"), format)
    }

    /// The same, with copies for a work tree.
    pub(super) fn on_copies(&self) -> Self {
        Self { work: WorkTreeSource::Copies, ..self.clone() }
    }

    /// Where these copies are.
    pub(super) fn copies(&self) -> PathBuf {
        self.scratch.path().join(COPIES)
    }

    /// The host's own repository.
    pub(super) fn own(&self) -> &Path {
        self.scratch.path()
    }

    pub(super) const fn repository(&self) -> &Arc<Repository> {
        &self.repository
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs git and returns what it wrote.
    pub(super) async fn run<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Vec<u8>, ChangesError> {
        self.run_with(arguments, Vec::new(), self.config.max_output_bytes).await
    }

    /// Runs git with this on its standard input.
    pub(super) async fn run_with<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        input: Vec<u8>,
        max_bytes: usize,
    ) -> Result<Vec<u8>, ChangesError> {
        self.start(Reads::Nothing, arguments, input, max_bytes).await
    }

    async fn start<A: AsRef<OsStr>>(
        &self,
        reads: Reads,
        arguments: impl IntoIterator<Item = A>,
        input: Vec<u8>,
        max_bytes: usize,
    ) -> Result<Vec<u8>, ChangesError> {
        let mut command = self.command(reads);
        let child = command.args(arguments).spawn().map_err(|error| ChangesError::NoGit(error.to_string()))?;
        let running = Running { child };
        let limit = self.config.timeout;
        tokio::time::timeout(limit, running.finish(input, max_bytes)).await.map_err(|_| ChangesError::Slow(limit))?
    }

    fn command(&self, reads: Reads) -> Command {
        let own = self.scratch.path();
        let tree = match self.work {
            WorkTreeSource::WorkTree => self.repository.top.path().to_owned(),
            WorkTreeSource::Copies => self.copies(),
        };
        let mut command = Command::new(&self.program);
        command.env_clear().process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(environment::inherited_only(&["HOME", "XDG_CONFIG_HOME", "TMPDIR"]));
        command.envs([
            ("LC_ALL", "C"),
            ("GIT_ALLOW_PROTOCOL", ""),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_LITERAL_PATHSPECS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_PAGER", "cat"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_TRACE2", "0"),
            ("GIT_TRACE2_EVENT", "0"),
            ("GIT_TRACE2_PERF", "0"),
        ]);
        command.env("PATH", own.join(EMPTY)).env("GIT_EXEC_PATH", own.join(EMPTY));
        command.env("GIT_DIR", own);
        match reads {
            Reads::User => _ = command.current_dir(own),
            Reads::Nothing => {
                command.env("GIT_WORK_TREE", &tree).current_dir(&tree);
                command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
            }
        }
        let safe = SAFE.iter().map(|(key, value)| (*key, OsStr::new(value)));
        let settings = self.settings.core.iter().map(|(key, value)| (key.as_str(), value.as_os_str()));
        let mut count = 0;
        for (key, value) in settings.chain(safe) {
            command.env(format!("GIT_CONFIG_KEY_{count}"), key).env(format!("GIT_CONFIG_VALUE_{count}"), value);
            count += 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string());
        command.arg("--no-optional-locks").arg("--no-pager");
        command
    }
}

/// Finds the git program. Git itself runs without a `PATH`.
fn program(git: &OsStr) -> Result<PathBuf, ChangesError> {
    if git.as_bytes().contains(&b'/') {
        return Ok(git.into());
    }
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(git)).find(is_program);
    found.ok_or_else(|| ChangesError::NoGit(format!("no {} in PATH", git.display())))
}

/// Makes a directory of objects that leads to those in another, and has none of its lists. Those that are not there yet are
/// linked too, because another program may be writing objects meanwhile.
fn link_objects(objects: &Path, linked: &Path) -> std::io::Result<()> {
    std::fs::create_dir(linked)?;
    let names = (0..=u8::MAX).map(|first| format!("{first:02x}")).chain(["pack".to_owned()]);
    for name in names {
        std::os::unix::fs::symlink(objects.join(&name), linked.join(&name))?;
    }
    Ok(())
}

/// A path as git reads it in a list of alternates.
fn quoted(path: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for &byte in path.as_bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', byte]),
            b' '..=b'~' => quoted.push(byte),
            _ => quoted.extend(format!("\\{byte:03o}").bytes()),
        }
    }
    quoted.extend(b"\"\n");
    quoted
}

/// Runs file system work on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChangesError> + Send + 'static,
) -> Result<T, ChangesError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(ChangesError::Failed(error.to_string())))
}

/// A running git. When dropped, it is killed with everything that it started.
struct Running {
    child: Child,
}

/// The most bytes of git's error message that are kept.
const MAX_COMPLAINT: u64 = 4096;

impl Running {
    async fn finish(mut self, input: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, ChangesError> {
        let (stdin, stdout, stderr) = (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(mut stderr)) = (stdin, stdout, stderr) else {
            return Err(ChangesError::NoGit("no pipes".into()));
        };
        let feed = async move {
            // Git may close its standard input early.
            drop(stdin.write_all(&input).await);
        };
        let read = async {
            let mut output = Vec::new();
            let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX);
            let read = stdout.take(limit.saturating_add(1)).read_to_end(&mut output).await;
            match read {
                Ok(_) if output.len() > max_bytes => Err(ChangesError::TooLarge { limit: max_bytes }),
                Ok(_) => Ok(output),
                Err(error) => Err(ChangesError::Failed(error.to_string())),
            }
        };
        let complain = async {
            let mut complaint = Vec::new();
            drop((&mut stderr).take(MAX_COMPLAINT).read_to_end(&mut complaint).await);
            // The rest is read too, so that git does not block.
            drop(tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await);
            String::from_utf8_lossy(&complaint).trim().to_owned()
        };
        let together = async { Ok::<_, ChangesError>(tokio::join!(feed, complain)) };
        let (output, ((), complaint)) = tokio::try_join!(read, together)?;
        let status = self.child.wait().await.map_err(|error| ChangesError::Failed(error.to_string()))?;
        if status.success() { Ok(output) } else { Err(ChangesError::Failed(complaint)) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // One that is gone needs no signal.
        _ = group.map(|group| kill_process_group(group, Signal::KILL));
    }
}

/// Bytes as git has them, as the system takes them.
pub(super) fn os(bytes: Vec<u8>) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_can_be_an_alternate() {
        assert_eq!(quoted(OsStr::from_bytes(b"/a b/\"c\\\n\xff")), b"\"/a b/\\\"c\\\\\\012\\377\"\n");
    }
}
