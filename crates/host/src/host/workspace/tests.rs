//! What the workspace does for sessions that begin, work and end.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::commands::CreateTerminalParams;
use ahp_types::state::{SnapshotState, TerminalClaim, TerminalSessionClaim};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Workspace;
use crate::files::uri_of;
use crate::host::HostConfig;
use crate::host::log_writer::{LogWriter, Transaction};
use crate::log::{Batch, Log, MemoryLog};
use crate::state::{State, StateConfig};

const SESSION: &str = "ahp-session:/1";
const CHANGES: &str = "ahp-session:/1/changes/uncommitted";

type TestResult = Result<(), Box<dyn std::error::Error>>;

struct TestWorkspace {
    dir: TempDir,
    log: Arc<dyn Log>,
    log_writer: Arc<LogWriter>,
    workspace: Arc<Workspace>,
}

impl TestWorkspace {
    /// A session in a repository without a commit.
    async fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        git(dir.path(), &["init", "-q"])?;
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
        let state = State::open(Arc::clone(&log), StateConfig::default()).await?;
        let log_writer = Arc::new(LogWriter::new(Arc::clone(&log), state));
        let mut config = HostConfig::new([dir.path()]);
        config.terminals.command = vec!["/bin/sh".into()];
        let workspace = Arc::new(Workspace::new(Arc::clone(&log_writer), &config)?);
        workspace.start().await?;
        let session = json!({
            "provider": "demo", "title": "t", "status": 1, "lifecycle": "ready", "activeClients": [], "chats": [],
            "workingDirectories": [uri_of(dir.path())]
        });
        let state = SnapshotState::Session(serde_json::from_value(session)?);
        log_writer.append_and_apply(Transaction::new().open(SESSION, Some(SESSION), &state)).await?;
        Ok(Self { dir, log, log_writer, workspace })
    }

    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        std::fs::write(self.dir.path().join(name), text)
    }

    /// Waits until a channel's state is so.
    async fn until(&self, channel: &str, is_so: impl Fn(&Value) -> bool) -> TestResult {
        let wait = async {
            loop {
                let state = self.log_writer.read(channel, |state, _| serde_json::to_value(state)).await;
                if state.is_ok_and(|state| state.is_ok_and(|state| is_so(&state))) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        Ok(tokio::time::timeout(Duration::from_secs(30), wait).await?)
    }

    async fn count(&self, channel: &str, text: &str) -> Result<usize, Box<dyn std::error::Error>> {
        let entries = self.log.read(channel, 1..1 << 60, 1 << 30).await?;
        Ok(entries.iter().filter(|entry| String::from_utf8_lossy(&entry.body).contains(text)).count())
    }
}

fn git(dir: &Path, arguments: &[&str]) -> TestResult {
    let mut command = Command::new("git");
    command.current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    assert!(command.args(arguments).status()?.success(), "{arguments:?}");
    Ok(())
}

fn files(state: &Value) -> usize {
    state["files"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn what_an_agent_did_is_seen_after_its_work() -> TestResult {
    let test = TestWorkspace::new().await?;
    test.write("a", "1\n")?;
    test.workspace.session_changed(SESSION);
    test.until(CHANGES, |state| files(state) == 1 && state["status"] == "ready").await?;
    test.write("AGENTS.md", "# Work\n")?;
    test.workspace.agent_worked(SESSION);
    test.until(CHANGES, |state| files(state) == 2).await?;
    test.until(SESSION, |state| state["customizations"].to_string().contains("AGENTS.md")).await?;
    Ok(())
}

#[tokio::test]
async fn a_hundred_wishes_at_once_are_a_few_looks() -> TestResult {
    let test = TestWorkspace::new().await?;
    test.write("a", "1\n")?;
    for _ in 0..50 {
        test.workspace.session_changed(SESSION);
        test.workspace.agent_worked(SESSION);
    }
    test.until(CHANGES, |state| files(state) == 1).await?;
    test.workspace.ensure_scanned(SESSION).await?;
    test.workspace.forget_scans(SESSION).await;
    assert_eq!(test.count(SESSION, "session/changesetsChanged").await?, 1);
    assert_eq!(test.count(CHANGES, "initial").await?, 1);
    assert_eq!(test.count(CHANGES, "changeset/contentChanged").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_session_that_moves_has_the_changes_of_where_it_is() -> TestResult {
    let test = TestWorkspace::new().await?;
    std::fs::create_dir_all(test.dir.path().join("sub"))?;
    test.write("a", "1\n")?;
    test.write("sub/b", "1\n")?;
    test.workspace.session_changed(SESSION);
    test.until(CHANGES, |state| files(state) == 2).await?;
    let moved = json!({
        "type": "session/workingDirectoryReplaced", "directory": uri_of(test.dir.path()),
        "replacement": uri_of(&test.dir.path().join("sub"))
    });
    let body = json!({"channel": SESSION, "action": moved}).to_string();
    let seqs = test.log.append(Batch::new().entry(SESSION, body)).await?;
    test.log_writer.state().reached(seqs[0]).await?;
    test.workspace.session_changed(SESSION);
    test.until(CHANGES, |state| files(state) == 1).await?;
    Ok(())
}

#[tokio::test]
async fn a_session_that_is_gone_has_no_terminals_and_nothing_is_logged_for_it() -> TestResult {
    let test = TestWorkspace::new().await?;
    test.workspace.session_changed(SESSION);
    test.until(CHANGES, |state| state["status"] == "ready").await?;
    let (session, chat) = (SESSION.to_owned(), "ahp-chat:/1".to_owned());
    let claim = TerminalSessionClaim { session, chat, turn_id: None, tool_call_id: None };
    let params = CreateTerminalParams {
        channel: "ahp-terminal:/1".into(),
        meta: None,
        claim: TerminalClaim::Session(claim),
        name: None,
        cwd: None,
        cols: None,
        rows: None,
    };
    let prepared = test.workspace.terminals.prepare(params).await?;
    let state = SnapshotState::Terminal(Box::new(prepared.state()));
    test.log_writer.append_and_apply(Transaction::new().open("ahp-terminal:/1", None, &state)).await?;
    prepared.start().await?;
    test.write("a", "1\n")?;
    test.workspace.agent_worked(SESSION);
    test.workspace.session_disposed(SESSION).await;
    assert!(test.workspace.terminals.infos().is_empty());
    test.until("ahp-terminal:/1", |state| state["lifecycle"]["status"] == "exited").await?;
    test.log_writer.state().forget(SESSION).await?;
    test.log.erase(SESSION).await?;
    test.workspace.agent_worked(SESSION);
    test.workspace.session_changed(SESSION);
    test.workspace.ensure_scanned(SESSION).await?;
    while !crate::lock::lock(&test.workspace.scan_queue.sessions).is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(test.log.channels(Some(SESSION)).await?.is_empty());
    Ok(())
}
