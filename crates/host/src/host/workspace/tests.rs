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
use crate::agent::{ServiceError, TerminalCommand, TerminalExit};
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

#[tokio::test]
async fn an_agent_reads_and_writes_files_inside_of_the_roots_only() -> TestResult {
    let test = TestWorkspace::new().await?;
    let services = test.workspace.services(SESSION, "ahp-chat:/1", None);
    let file = test.dir.path().join("new/a.txt");
    services.write_file(file.clone(), "one\ntwo\n".to_owned()).await?;
    assert_eq!(services.read_file(file).await?, "one\ntwo\n");
    let missing = services.read_file(test.dir.path().join("none")).await;
    assert!(matches!(missing, Err(ServiceError::NotFound(_))), "{missing:?}");
    let outside = tempfile::tempdir()?;
    for path in [outside.path().join("b"), test.dir.path().join("../b")] {
        assert!(services.write_file(path.clone(), "x".to_owned()).await.is_err());
        assert!(services.read_file(path.clone()).await.is_err());
        assert!(!path.exists());
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_runs_commands_in_terminals_that_clients_see() -> TestResult {
    let test = TestWorkspace::new().await?;
    let directory = Some(test.dir.path().to_owned());
    let services = test.workspace.services(SESSION, "ahp-chat:/1", directory.clone());
    let command = |script: &str| TerminalCommand {
        command: ["/bin/sh", "-c", script].map(Into::into).to_vec(),
        env: vec![("GREETING".into(), "hello".into())],
        directory: None,
    };
    let terminal = services.create_terminal(command("echo $GREETING; exit 3")).await?;
    let claims = test.workspace.terminals.infos();
    assert!(matches!(&claims[0].claim, TerminalClaim::Session(claim) if claim.session == SESSION), "{claims:?}");
    assert_eq!(services.wait_for_exit(&terminal).await?, TerminalExit { code: Some(3) });
    let output = services.terminal_output(&terminal).await?;
    assert_eq!((output.text.trim(), output.exit), ("hello", Some(TerminalExit { code: Some(3) })));
    services.release_terminal(&terminal).await?;
    assert!(test.workspace.terminals.infos().is_empty());

    let endless = services.create_terminal(command("trap '' TERM HUP; while true; do sleep 1; done")).await?;
    assert_eq!(services.terminal_output(&endless).await?.exit, None);
    services.kill_terminal(&endless).await?;
    assert_eq!(services.wait_for_exit(&endless).await?, TerminalExit { code: None });
    // The terminals of one chat are not those of another.
    let other = test.workspace.services(SESSION, "ahp-chat:/2", directory);
    assert!(matches!(other.terminal_output(&endless).await, Err(ServiceError::NotFound(_))));
    let outside = TerminalCommand { directory: Some("/".into()), ..command("true") };
    assert!(matches!(services.create_terminal(outside).await, Err(ServiceError::Denied(_))));
    Ok(())
}
