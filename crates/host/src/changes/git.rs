//! The `git` program, in repositories that may be hostile.
//!
//! A repository's own configuration can name programs: hooks, a file system monitor, filters, external diffs, a
//! transport for missing objects. None of them is ever run: what git cannot be told to leave out is set to nothing
//! in its environment, above every configuration file. So content filters (Git LFS among them) do not run either.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::{ChangesConfig, ChangesError};

/// Git in one directory.
#[derive(Debug, Clone)]
pub(super) struct Git {
    config: ChangesConfig,
    dir: PathBuf,
    /// Configuration that goes above the repository's own.
    overrides: Vec<(OsString, OsString)>,
}

/// What each run is told: nothing from the repository is executed, and nothing is fetched.
const SAFE: [(&str, &str); 9] = [
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.bigFileThreshold", "32m"), // Larger files count as binary: no lines are counted in them.
    ("core.attributesFile", "/dev/null"),
    ("core.quotePath", "false"),
    ("protocol.allow", "never"),
    ("safe.bareRepository", "explicit"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
];

/// Of a filter, what could be run.
const FILTER_KEYS: [&str; 3] = ["clean", "smudge", "process"];

impl Git {
    /// Git in this directory, with the filters that the configuration names set to nothing.
    pub(super) async fn open(config: &ChangesConfig, dir: &Path) -> Result<Self, ChangesError> {
        let overrides = SAFE.iter().map(|&(key, value)| (key.into(), value.into())).collect();
        let mut git = Self { config: config.clone(), dir: dir.to_owned(), overrides };
        let names = git.run(["config", "--list", "--name-only", "-z"]).await?;
        for filter in filters(&names) {
            for key in FILTER_KEYS {
                git.overrides.push((os([b"filter.", filter, b".", key.as_bytes()].concat()), OsString::new()));
            }
            git.overrides.push((os([b"filter.", filter, b".required"].concat()), "false".into()));
        }
        Ok(git)
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
        let mut command = self.command();
        let child = command.args(arguments).spawn().map_err(|error| ChangesError::NoGit(error.to_string()))?;
        let running = Running { child };
        let limit = self.config.timeout;
        tokio::time::timeout(limit, running.finish(input, max_bytes)).await.map_err(|_| ChangesError::Slow(limit))?
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.config.git);
        command.current_dir(&self.dir).env_clear().process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in ["PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs([
            ("LC_ALL", "C"),
            ("GIT_ALLOW_PROTOCOL", ""),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_LITERAL_PATHSPECS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_PAGER", "cat"),
            ("GIT_TERMINAL_PROMPT", "0"),
        ]);
        // Through the environment, a name may contain what `-c name=value` would cut at.
        command.env("GIT_CONFIG_COUNT", self.overrides.len().to_string());
        for (index, (key, value)) in self.overrides.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{index}"), key).env(format!("GIT_CONFIG_VALUE_{index}"), value);
        }
        command.arg("--no-optional-locks").arg("--no-pager");
        command
    }
}

/// A git that runs. Dropped, it is killed with all that it started.
struct Running {
    child: Child,
}

/// What git says of a failure is for people; more than this is not read by any.
const MAX_COMPLAINT: u64 = 4096;

impl Running {
    async fn finish(mut self, input: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, ChangesError> {
        let (stdin, stdout, stderr) = (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(mut stderr)) = (stdin, stdout, stderr) else {
            return Err(ChangesError::NoGit("no pipes".into()));
        };
        let feed = async move {
            // A git that has heard enough closes its end.
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
            // The rest is read too, or git would wait.
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

/// The filters among these names: `filter.NAME.clean` and so on. A name may contain dots.
fn filters(names: &[u8]) -> Vec<&[u8]> {
    let keys = names.split(|&byte| byte == 0).filter_map(|name| name.strip_prefix(b"filter."));
    let mut found: Vec<&[u8]> =
        keys.filter_map(|key| Some(&key[..key.iter().rposition(|&byte| byte == b'.')?])).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Bytes as git has them, as the system takes them.
pub(super) fn os(bytes: Vec<u8>) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_may_have_any_name() {
        let names = b"core.bare\0filter.a=b.c.clean\0filter.lfs.process\0filter.lfs.clean\0filter.x\0";
        assert_eq!(filters(names), [&b"a=b.c"[..], b"lfs"]);
    }
}
