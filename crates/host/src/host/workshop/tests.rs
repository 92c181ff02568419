//! What the workshop does for the host itself: sessions that begin, work and end.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::commands::CreateTerminalParams;
use ahp_types::state::{SnapshotState, TerminalClaim, TerminalSessionClaim};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Workshop;
use crate::files::uri_of;
use crate::host::HostConfig;
use crate::host::desk::{Desk, Sheet};
use crate::log::{Batch, Log, MemoryLog};
use crate::state::{State, StateConfig};

const SESSION: &str = "ahp-session:/1";
const CHANGES: &str = "ahp-session:/1/changes/uncommitted";

type Outcome = Result<(), Box<dyn std::error::Error>>;

struct World {
    dir: TempDir,
    log: Arc<dyn Log>,
    desk: Arc<Desk>,
    shop: Arc<Workshop>,
}

impl World {
    /// A session in a repository without a commit.
    async fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        git(dir.path(), &["init", "-q"])?;
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
        let state = State::open(Arc::clone(&log), StateConfig::default()).await?;
        let desk = Arc::new(Desk::new(Arc::clone(&log), state));
        let mut config = HostConfig::new([dir.path()]);
        config.terminals.command = vec!["/bin/sh".into()];
        let shop = Arc::new(Workshop::new(Arc::clone(&desk), &config)?);
        shop.begin().await?;
        let session = json!({
            "provider": "demo", "title": "t", "status": 1, "lifecycle": "ready", "activeClients": [], "chats": [],
            "workingDirectories": [uri_of(dir.path())]
        });
        let state = SnapshotState::Session(serde_json::from_value(session)?);
        desk.put_seen(Sheet::new().open(SESSION, Some(SESSION), &state)).await?;
        Ok(Self { dir, log, desk, shop })
    }

    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        std::fs::write(self.dir.path().join(name), text)
    }

    /// Waits until a channel's state is so.
    async fn until(&self, channel: &str, is_so: impl Fn(&Value) -> bool) -> Outcome {
        let wait = async {
            loop {
                let state = self.desk.look(channel, |state, _| serde_json::to_value(state)).await;
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

fn git(dir: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Command::new("git");
    command.current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    assert!(command.args(arguments).status()?.success(), "{arguments:?}");
    Ok(())
}

fn files(state: &Value) -> usize {
    state["files"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn what_an_agent_did_is_seen_after_its_work() -> Outcome {
    let world = World::new().await?;
    world.write("a", "1\n")?;
    world.shop.opened(SESSION);
    world.until(CHANGES, |state| files(state) == 1 && state["status"] == "ready").await?;
    world.write("AGENTS.md", "# Work\n")?;
    world.shop.worked(SESSION);
    world.until(CHANGES, |state| files(state) == 2).await?;
    world.until(SESSION, |state| state["customizations"].to_string().contains("AGENTS.md")).await?;
    Ok(())
}

#[tokio::test]
async fn a_hundred_wishes_at_once_are_a_few_looks() -> Outcome {
    let world = World::new().await?;
    world.write("a", "1\n")?;
    for _ in 0..50 {
        world.shop.opened(SESSION);
        world.shop.worked(SESSION);
    }
    world.until(CHANGES, |state| files(state) == 1).await?;
    world.shop.looked(SESSION).await?;
    world.shop.forget(SESSION).await;
    assert_eq!(world.count(SESSION, "session/changesetsChanged").await?, 1);
    assert_eq!(world.count(CHANGES, "initial").await?, 1);
    assert_eq!(world.count(CHANGES, "changeset/contentChanged").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_session_that_moves_has_the_changes_of_where_it_is() -> Outcome {
    let world = World::new().await?;
    std::fs::create_dir_all(world.dir.path().join("sub"))?;
    world.write("a", "1\n")?;
    world.write("sub/b", "1\n")?;
    world.shop.opened(SESSION);
    world.until(CHANGES, |state| files(state) == 2).await?;
    let moved = json!({
        "type": "session/workingDirectoryReplaced", "directory": uri_of(world.dir.path()),
        "replacement": uri_of(&world.dir.path().join("sub"))
    });
    let body = json!({"channel": SESSION, "action": moved}).to_string();
    let seqs = world.log.append(Batch::new().entry(SESSION, body)).await?;
    world.desk.state().reached(seqs[0]).await?;
    world.shop.opened(SESSION);
    world.until(CHANGES, |state| files(state) == 1).await?;
    Ok(())
}

#[tokio::test]
async fn a_session_that_is_gone_has_no_terminals_and_nothing_is_logged_for_it() -> Outcome {
    let world = World::new().await?;
    world.shop.opened(SESSION);
    world.until(CHANGES, |state| state["status"] == "ready").await?;
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
    let prepared = world.shop.terminals.prepare(params).await?;
    let state = SnapshotState::Terminal(Box::new(prepared.state()));
    world.desk.put_seen(Sheet::new().open("ahp-terminal:/1", None, &state)).await?;
    prepared.start().await?;
    world.write("a", "1\n")?;
    world.shop.worked(SESSION);
    world.shop.closed(SESSION).await;
    assert!(world.shop.terminals.infos().is_empty());
    world.until("ahp-terminal:/1", |state| state["lifecycle"]["status"] == "exited").await?;
    world.desk.state().forget(SESSION).await?;
    world.log.erase(SESSION).await?;
    world.shop.worked(SESSION);
    world.shop.opened(SESSION);
    world.shop.looked(SESSION).await?;
    while !crate::lock::lock(&world.shop.looks.all).is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(world.log.channels(Some(SESSION)).await?.is_empty());
    Ok(())
}
