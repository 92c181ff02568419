//! A whole host on loopback, as the program makes it: a log on the disk, an agent that is a program, and v2 clients.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use breakbulk::{AccessPolicy, ListenConfig, Listener};
use breakbulk_host::agent::claude::{Claude, ClaudeConfig};
use breakbulk_host::agent::merge_actions;
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::{Host as AgentHost, HostConfig};
use breakbulk_proto::Budget;

use crate::scripted_agent::WORD;

/// A host that takes clients.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    pub(crate) log: Arc<SqliteLog>,
    host: AgentHost,
}

impl Host {
    /// A host on the log in this directory.
    pub(crate) async fn open(dir: &Path) -> Self {
        let mut options = Options::default();
        options.merge = Some(Arc::new(merge_actions));
        let log = Arc::new(SqliteLog::open(&dir.join("log"), options).await.unwrap());
        let root = dir.join("root");
        std::fs::create_dir_all(&root).unwrap();
        let program = std::env::current_exe().unwrap().into_os_string();
        let mut config = ClaudeConfig::default();
        config.program.command = vec![program, WORD.into()];
        let claude = Claude::new(config);
        let config = HostConfig::new([&root]);
        let host = AgentHost::start(log.clone(), vec![Arc::new(claude)], config, Budget::default()).await.unwrap();
        let config = ListenConfig::new(([127, 0, 0, 1], 0).into(), AccessPolicy::open());
        let mut listener = Listener::bind(config).await.unwrap();
        let (address, v2) = (listener.local_address(), host.v2().clone());
        tokio::spawn(async move {
            loop {
                let (link, v2) = (listener.accept().await.link, v2.clone());
                tokio::spawn(async move { v2.serve(link, Some("bench".into())).await });
            }
        });
        Self { address, log, host }
    }

    /// Saves what is not, and ends.
    pub(crate) async fn close(self) {
        self.host.stop().await;
        self.log.close().await;
    }
}
