//! `cargo xtask interop`: the program between peers that nobody here wrote, which are installed first.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::args::Args;
use crate::run::{Failure, cargo, must, root};
use crate::tools;

/// The crate of an agent that is built from source, and its version.
const ELIZA: [&str; 2] = ["elizacp", "12.0.0"];

/// The package of the Python SDK of ACP, whose source has the echo agent among its examples.
const PYTHON_SDK: &str = "agent-client-protocol==";

/// Installs the peers, and runs their tests alone. With `--long`, also with the messages that take some
/// peers long; with `--all`, also those that take minutes to build.
pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let (is_long, all) = (args.flag("--long"), args.flag("--all"));
    args.end()?;
    if all {
        let root = root().join("target/interop-cargo");
        let [name, version] = ELIZA;
        must(cargo(&format!("install --locked {name} --version {version} --root")).arg(root))?;
    }
    install()?;
    let mut tests = cargo("test --workspace --test peers");
    if is_long {
        tests.env("BREAKBULK_INTEROP_LONG", "1");
    }
    must(&mut tests)
}

/// Installs the peers, and says which agents are not there.
pub(crate) fn install() -> Result<(), Failure> {
    install_packages()?;
    for (agent, file, how) in agents() {
        let is_there = root().join(file).exists();
        println!("{agent}: {}", if is_there { "installed".to_owned() } else { format!("SKIPPED, {how}") });
    }
    Ok(())
}

/// The agents that the tests run, where each is, and how it gets there.
fn agents() -> [(&'static str, String, &'static str); 4] {
    let system = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
    let processor = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let platform = format!("{system}-{processor}");
    let npm = "npm has none for this machine";
    let claude = format!("interop/node/node_modules/@anthropic-ai/claude-code-{platform}/claude");
    let opencode = format!("interop/node/node_modules/opencode-{platform}/bin/opencode");
    [
        ("Claude Code", claude, npm),
        ("opencode", opencode, npm),
        (
            "the echo agent of the Python SDK",
            "target/interop-venv/echo_agent.py".to_owned(),
            "PyPI has no source of it",
        ),
        (
            "elizacp",
            "target/interop-cargo/bin/elizacp".to_owned(),
            "`cargo xtask interop --all` builds it, which takes minutes",
        ),
    ]
}

/// npm packages beside their scripts, PyPI packages in an environment of their own.
fn install_packages() -> Result<(), Failure> {
    tools::system("node", "nodejs")?;
    tools::system("npm", "npm")?;
    tools::system("python3", "python3 python3-venv")?;
    let node = root().join("interop/node");
    once(&node.join("package-lock.json"), &node.join("node_modules/.installed"), || {
        must(Command::new("npm").arg("ci").current_dir(&node))
    })?;
    let wanted = root().join("interop/python/requirements.txt");
    let venv = root().join("target/interop-venv");
    once(&wanted, &venv.join(".installed"), || {
        must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let pip = venv.join("bin/pip");
        must(Command::new(pip).args(["install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&wanted))?;
        install_echo_agent(&wanted, &venv)
    })
}

/// Takes the echo agent out of the source of the Python SDK: the installed package does not have it.
fn install_echo_agent(requirements: &Path, venv: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("cannot install the echo agent: {error}"));
    let list = fs::read_to_string(requirements).map_err(failed)?;
    let Some(package) = list.lines().find(|line| line.starts_with(PYTHON_SDK)) else { return Ok(()) };
    let source = venv.join("source");
    let mut download = Command::new(venv.join("bin/pip"));
    download.args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "-d"]);
    must(download.arg(&source).arg(package))?;
    let name = format!("agent_client_protocol-{}", package.trim_start_matches(PYTHON_SDK));
    let mut unpack = Command::new(venv.join("bin/python"));
    unpack.args(["-m", "tarfile", "-e"]).arg(source.join(format!("{name}.tar.gz"))).arg(&source);
    must(&mut unpack)?;
    let agent = source.join(name).join("examples/echo_agent.py");
    fs::copy(agent, venv.join("echo_agent.py")).map(drop).map_err(failed)
}

/// Does `install` unless it was done for exactly this list, of which a copy is kept.
pub(crate) fn once(list: &Path, copy: &Path, install: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let failed = |path: &Path, error| Failure::Failed(format!("cannot use {}: {error}", path.display()));
    let wanted = fs::read(list).map_err(|error| failed(list, error))?;
    if fs::read(copy).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    install()?;
    fs::write(copy, wanted).map_err(|error| failed(copy, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_installed_once_and_again_when_it_changes_or_failed() -> std::io::Result<()> {
        let dir = std::env::temp_dir().join(format!("breakbulk-once-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let (list, copy) = (dir.join("list"), dir.join("copy"));
        let mut installs = 0;
        for (text, works) in [("a", false), ("a", true), ("a", true), ("b", true), ("b", true)] {
            fs::write(&list, text)?;
            let result = once(&list, &copy, || {
                installs += 1;
                if works { Ok(()) } else { Err(Failure::Failed("no network".into())) }
            });
            assert_eq!(result.is_ok(), works);
        }
        fs::remove_dir_all(&dir)?;
        assert_eq!(installs, 3);
        Ok(())
    }
}
