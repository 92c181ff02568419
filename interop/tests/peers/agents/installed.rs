//! Where the agents are that `cargo xtask interop` has installed.

use std::path::PathBuf;

use crate::program::file;

/// The Claude Code program, as npm has it for this machine.
pub(super) fn claude() -> Option<PathBuf> {
    there(&format!("node/node_modules/@anthropic-ai/claude-code-{}/claude", platform()))
}

/// The opencode program, as npm has it for this machine.
pub(super) fn opencode() -> Option<PathBuf> {
    there(&format!("node/node_modules/opencode-{}/bin/opencode", platform()))
}

/// The echo agent among the examples of the Python SDK of ACP.
pub(super) fn echo() -> Option<PathBuf> {
    there("../target/interop-venv/echo_agent.py")
}

/// The `elizacp` program. It is built from source, which takes minutes, so only `cargo xtask interop --all` installs it.
pub(super) fn eliza() -> Option<PathBuf> {
    there("../target/interop-cargo/bin/elizacp")
}

/// Says that a test is left out. `cargo xtask interop` has said so too, where everybody sees it.
pub(super) fn skip(agent: &str) {
    eprintln!("skipped: {agent} is not installed");
}

fn there(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(file(path));
    path.exists().then_some(path)
}

/// This machine, as npm packages with programs in them name it.
fn platform() -> String {
    let system = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
    let processor = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    format!("{system}-{processor}")
}
