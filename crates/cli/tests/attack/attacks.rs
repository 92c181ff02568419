//! What attackers do.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use breakbulk::Dialect;
use breakbulk_proto::Message;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::host::Host;

/// How long those stay who do nothing but wait.
const TIME: Duration = Duration::from_secs(10);
/// The text of a large edit, and a large file.
const LARGE: usize = 30_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Attack {
    /// A repository's configuration is swapped while the host looks at its changes.
    Git,
    /// Edits of 30 MB, all at once, each by a client of its own in a session of its own.
    Edits { clients: usize },
    /// Two reads of a file of 30 MB by each client, which reads none of the answers.
    Reads { clients: usize },
    /// All subscribe at once to a chat of 15 MB, and read nothing of it.
    Subscribes { clients: usize },
    /// Terminals that print without end, and that nobody follows.
    Terminals { count: usize },
}

impl Attack {
    pub(crate) const ALL: [Self; 7] = [
        Self::Git,
        Self::Edits { clients: 20 },
        Self::Reads { clients: 80 },
        Self::Subscribes { clients: 100 },
        Self::Terminals { count: 1 },
        Self::Terminals { count: 8 },
        Self::Edits { clients: 40 },
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Git => "a repository's configuration is swapped while git looks".to_owned(),
            Self::Edits { clients } => format!("{clients} edits of 30 MB at once"),
            Self::Reads { clients } => format!("{clients} clients with two unread answers of 30 MB each"),
            Self::Subscribes { clients } => format!("{clients} unread snapshots of a chat of 15 MB at once"),
            Self::Terminals { count } => format!("{count} `yes` without a subscriber"),
        }
    }

    pub(crate) async fn run(self, host: &Arc<Host>) {
        match self {
            Self::Git => git(host).await,
            Self::Edits { clients } => edits(host, clients).await,
            Self::Reads { clients } => reads(host, clients).await,
            Self::Subscribes { clients } => subscribes(host, clients).await,
            Self::Terminals { count } => terminals(host, count).await,
        }
    }
}

async fn edits(host: &Host, clients: usize) {
    let text = Bytes::from(vec![b'x'; LARGE]);
    let mut all = JoinSet::new();
    for n in 0..clients {
        let mut client = Client::new(host, Dialect::Ahp, &format!("c{n}")).await;
        let chat = client.session(&format!("ahp-session:/{n}")).await;
        let front = json!({"channel": chat, "clientSeq": 1, "action": {"type": "chat/draftChanged",
            "draft": {"origin": {"kind": "user"}, "text": "@"}}})
        .to_string();
        let (front, end) = front.split_once('@').unwrap();
        let parts = [Bytes::from(front.to_owned()), text.clone(), Bytes::from(end.to_owned())];
        let params: Message = parts.into_iter().collect();
        all.spawn(async move {
            let id = client.ask_with("dispatchAction", params);
            // It may be refused for want of memory; that is for the host to say.
            drop(client.answer(id).await);
        });
    }
    all.join_all().await;
}

async fn reads(host: &Host, clients: usize) {
    let file = host.root().join("large");
    std::fs::write(&file, vec![b'x'; LARGE]).unwrap();
    let params = json!({"channel": "ahp-root://", "uri": format!("file://{}", file.display())});
    let mut all = JoinSet::new();
    for n in 0..clients {
        let mut client = Client::new(host, Dialect::Ahp, &format!("c{n}")).await;
        let params = params.clone();
        all.spawn(async move {
            client.ask("resourceRead", &params);
            client.ask("resourceRead", &params);
            client.do_not_read(TIME).await;
        });
    }
    all.join_all().await;
}

async fn subscribes(host: &Host, clients: usize) {
    let mut first = Client::new(host, Dialect::Ahp, "first").await;
    let chat = first.session("ahp-session:/1").await;
    for n in 0..5 {
        let message = json!({"text": "/big 3MB", "origin": {"kind": "user"}});
        let action = json!({"type": "chat/turnStarted", "turnId": format!("t{n}"), "message": message,
            "startedAt": "2026-01-01T00:00:00.000Z"});
        first.call("dispatchAction", json!({"channel": chat, "clientSeq": n + 1, "action": action})).await.unwrap();
        while is_busy(&mut first, &chat).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let mut all = JoinSet::new();
    for n in 0..clients {
        let mut client = Client::new(host, Dialect::Ahp, &format!("c{n}")).await;
        let params = json!({"channel": chat});
        all.spawn(async move {
            client.ask("subscribe", &params);
            client.do_not_read(TIME).await;
        });
    }
    all.join_all().await;
}

/// Whether a turn of a chat is going on.
async fn is_busy(client: &mut Client, chat: &str) -> bool {
    let shown = client.call("subscribe", json!({"channel": chat, "view": {"turns": 1}})).await.unwrap();
    client.call("unsubscribe", json!({"channel": chat})).await.unwrap();
    shown["snapshot"]["state"].get("activeTurn").is_some()
}

async fn terminals(host: &Host, count: usize) {
    let mut client = Client::new(host, Dialect::Ahp, "typist").await;
    for n in 0..count {
        let terminal = format!("ahp-terminal:/{n}");
        let claim = json!({"kind": "client", "clientId": "typist"});
        client.call("createTerminal", json!({"channel": terminal, "claim": claim})).await.unwrap();
        let action = json!({"type": "terminal/input", "data": "yes\r"});
        let params = json!({"channel": terminal, "clientSeq": n + 1, "action": action});
        client.call("dispatchAction", params).await.unwrap();
    }
    tokio::time::sleep(TIME).await;
}

/// Writes a repository's configuration as a client does, now an honest one and now one that would run a program, while other
/// clients make the host look at the changes. The program must not run.
async fn git(host: &Arc<Host>) {
    let (root, ran) = (host.root(), host.root().join("ran"));
    let git = |args: &[&str]| {
        let done = Command::new("git").current_dir(&root).args(args).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    git(&["init", "-q"]);
    std::fs::write(root.join("a"), "1\n").unwrap();
    git(&["add", "a"]);
    git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]);
    std::fs::write(root.join("a"), "2\n").unwrap();
    std::fs::write(root.join(".gitattributes"), "* filter=evil diff=evil\n").unwrap();
    let honest = std::fs::read_to_string(root.join(".git/config")).unwrap();
    let trap = format!("touch '{}'; cat", ran.display());
    let evil = format!(
        "{honest}\tfsmonitor = \"{trap}\"\n[filter \"evil\"]\n\tclean = \"{trap}\"\n\tsmudge = \"{trap}\"\n\
         [diff \"evil\"]\n\ttextconv = \"{trap}\"\n"
    );
    let is_over = Arc::new(AtomicBool::new(false));
    let mut writer = Client::new(host, Dialect::Ahp, "writer").await;
    let swap = {
        let (is_over, uri) = (Arc::clone(&is_over), uri(&root.join(".git/config")));
        tokio::spawn(async move {
            for text in [honest, evil].iter().cycle() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let params = json!({"channel": "ahp-root://", "uri": uri, "data": text, "encoding": "utf-8"});
                writer.call("resourceWrite", params).await.unwrap();
            }
        })
    };
    let mut client = Client::new(host, Dialect::Ahp, "looker").await;
    client.session("ahp-session:/git").await;
    let (begun, mut looks) = (Instant::now(), 0);
    while begun.elapsed() < TIME {
        let shown = client.call("subscribe", json!({"channel": "ahp-session:/git"})).await.unwrap();
        client.call("unsubscribe", json!({"channel": "ahp-session:/git"})).await.unwrap();
        let sets = shown["snapshot"]["state"]["changesets"].as_array().cloned().unwrap_or_default();
        for set in sets.iter().filter_map(|set| set["uriTemplate"].as_str()) {
            looks += look(&mut client, set, &root).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    swap.await.unwrap();
    assert!(looks > 0, "the host looked at changes");
    assert!(!ran.exists(), "a program of the repository's configuration was run");
}

/// Makes the host look at a changeset, and change something in it. Whether it can is not the question.
async fn look(client: &mut Client, changeset: &str, root: &Path) -> usize {
    let seen = client.call("subscribe", json!({"channel": changeset})).await.is_ok();
    for operation in ["stage", "unstage"] {
        let target: Value = json!({"kind": "resource", "resource": uri(&root.join("a"))});
        let params = json!({"channel": changeset, "operationId": operation, "target": target});
        drop(client.call("invokeChangesetOperation", params).await);
    }
    drop(client.call("unsubscribe", json!({"channel": changeset})).await);
    usize::from(seen)
}

fn uri(path: &Path) -> String {
    format!("file://{}", path.display())
}
