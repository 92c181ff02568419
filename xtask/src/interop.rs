//! `cargo xtask interop`: the program between peers that nobody here wrote, which are installed first.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::args::Args;
use crate::run::{Failure, cargo, must, root};
use crate::tools;

/// Installs the peers, and runs their tests alone. With `--long`, also with the messages that take some peers long.
pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let is_long = args.flag("--long");
    args.end()?;
    install()?;
    let mut tests = cargo("test --workspace --test peers");
    if is_long {
        tests.env("BREAKBULK_INTEROP_LONG", "1");
    }
    must(&mut tests)
}

/// Installs the peers: npm packages beside their scripts, PyPI packages in an environment of their own.
pub(crate) fn install() -> Result<(), Failure> {
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
        must(Command::new(pip).args(["install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&wanted))
    })
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
