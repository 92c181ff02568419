//! One large action to many clients, over the same bytes written to as many plain WebSockets.

use std::time::Instant;

use breakbulk::{Dialect, Driver, Setup};
use breakbulk_host::log::{Batch, Bytes, Log};
use breakbulk_host::state::{SnapshotState, entry};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Input, Limits, Message};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{broadcast, mpsc};

use crate::client::{CAP, Client};
use crate::host::{Host, listener};
use crate::race::{median, rounds};
use crate::{corpus, table};

const CLIENTS: usize = 200;
const BYTES: usize = 1_000_000;
/// Each takes about a second.
const MOST_ROUNDS: usize = 9;
const SESSION: &str = "ahp-session:/1";

/// Ours begins when the action is given to the log, and ends when the last client has all of it, checked. So it has a
/// sync of the disk in it, what the host's own state makes of the action, and a third more bytes on the wire.
///
/// The plain ones get the same message in one frame each, all from the same memory, and check it in the same way. How
/// long they take without that is shown too.
pub(crate) fn run(runtime: &Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let body = body();
    let mut ours = runtime.block_on(Ours::new(dir.path(), body.clone()));
    let text = Bytes::from([br#"{"jsonrpc":"2.0","method":"action","params":"#, &body[..], b"}"].concat());
    let mut bare = runtime.block_on(Plain::new(text.clone(), true));
    let mut checked = runtime.block_on(Plain::new(text, false));
    // The first round only warms up.
    let times: Vec<[f64; 3]> = (0..=rounds().min(MOST_ROUNDS))
        .map(|_| {
            let ours = runtime.block_on(ours.carry());
            let bare = runtime.block_on(bare.carry());
            [ours, bare, runtime.block_on(checked.carry())]
        })
        .skip(1)
        .collect();
    let named = |what: &str| format!("1 MB to {CLIENTS} clients at {CAP}: {what}");
    table::row(&named("ms"), median(&times, |[ours, ..]| ours * 1e3), ..);
    let ratio = median(&times, |[ours, _, checked]| ours / checked);
    table::row(&named("over plain WebSockets"), ratio, ..=2.0);
    let ratio = median(&times, |[ours, bare, _]| ours / bare);
    table::row(&named("over plain WebSockets that check nothing"), ratio, ..);
}

/// What a host found in a workspace: long texts, one after the other.
fn body() -> Bytes {
    let texts: Value = serde_json::from_str(&corpus::agent(BYTES - 30_000)).unwrap();
    let skills: Vec<Value> = texts["result"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(n, part)| {
            json!({"type": "skill", "id": n.to_string(), "uri": part["path"], "name": "a skill",
                "description": part["text"]})
        })
        .collect();
    let directory = json!({"type": "directory", "id": "d", "uri": "file:///skills", "name": "skills", "enabled": true,
        "contents": "skill", "writable": false, "children": skills});
    let action = json!({"type": "session/customizationsChanged", "customizations": [directory]});
    entry::action(SESSION, &serde_json::from_value(action).unwrap(), None).unwrap()
}

/// A host with its clients.
struct Ours {
    host: Host,
    body: Bytes,
    arrived: mpsc::Receiver<usize>,
}

impl Ours {
    async fn new(dir: &std::path::Path, body: Bytes) -> Self {
        let host = Host::open(dir).await;
        let session = json!({"provider": "demo", "title": "A session", "status": 1, "lifecycle": "creating",
            "activeClients": [], "chats": []});
        let session = SnapshotState::Session(serde_json::from_value(session).unwrap());
        let first = entry::initial(SESSION, &session).unwrap();
        host.log.append(Batch::new().open(SESSION, None).entry(SESSION, first)).await.unwrap();
        let (arrive, arrived) = mpsc::channel(CLIENTS);
        for n in 0..CLIENTS {
            let mut client = Client::dial(host.address).await;
            client.initialize(&format!("client {n}"), &[SESSION]).await;
            tokio::spawn(report(client, arrive.clone()));
        }
        Self { host, body, arrived }
    }

    async fn carry(&mut self) -> f64 {
        let begin = Instant::now();
        self.host.log.append(Batch::new().entry(SESSION, self.body.clone())).await.unwrap();
        all(&mut self.arrived, self.body.len()).await;
        begin.elapsed().as_secs_f64()
    }
}

/// As many links with nothing on them but the message.
struct Plain {
    say: broadcast::Sender<Message>,
    message: Message,
    arrived: mpsc::Receiver<usize>,
}

impl Plain {
    async fn new(text: Bytes, front_only: bool) -> Self {
        let mut listener = listener().await;
        let address = listener.local_address();
        let (say, _) = broadcast::channel::<Message>(1);
        let (arrive, arrived) = mpsc::channel(CLIENTS);
        for _ in 0..CLIENTS {
            let (accepted, client) = tokio::join!(listener.accept(), Client::plain(address, front_only));
            let setup = Setup::new(Dialect::Plain, Role::Server, Limits::default());
            let machine = setup.machine(Budget::default().account(None)).unwrap();
            let mut driver = Driver::new(accepted.link, machine);
            let mut said = say.subscribe();
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        message = said.recv() => match message {
                            Ok(message) => driver.handle(Input::send(1, message)),
                            Err(_) => return,
                        },
                        event = driver.next() => if event.is_none() { return },
                    }
                }
            });
            tokio::spawn(report(client, arrive.clone()));
        }
        Self { say, message: Message::from(text), arrived }
    }

    async fn carry(&mut self) -> f64 {
        let begin = Instant::now();
        self.say.send(self.message.clone()).unwrap();
        all(&mut self.arrived, self.message.len() / 2).await;
        begin.elapsed().as_secs_f64()
    }
}

/// Says how long each message was that a client has got.
async fn report(mut client: Client, arrive: mpsc::Sender<usize>) {
    while let Some(message) = client.next().await {
        if arrive.send(message.len()).await.is_err() {
            return;
        }
    }
}

/// Waits until every client has got a message of at least this many bytes.
async fn all(arrived: &mut mpsc::Receiver<usize>, least: usize) {
    for _ in 0..CLIENTS {
        assert!(arrived.recv().await.unwrap() >= least);
    }
}
