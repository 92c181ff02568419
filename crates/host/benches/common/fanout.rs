//! One large action to many clients, over the same bytes written to as many plain WebSockets.

use breakbulk::{Dialect, Driver, Setup};
use breakbulk_host::log::{Batch, Bytes, Log};
use breakbulk_host::test_support::state::{SnapshotState, entry};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Input, Limits, Message, Ticket};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{broadcast, mpsc};

use crate::client::{CAP, Client};
use crate::host::{Host, listener};
use crate::race::{Took, median, rounds, timed};
use crate::raw::Raw;
use crate::{corpus, table};

const CLIENTS: usize = 200;
const BYTES: usize = 1_000_000;
/// Each takes about a second.
const MOST_ROUNDS: usize = 9;
const SESSION: &str = "ahp-session:/1";

/// Ours begins when the action is given to the log, and ends when the last client has all of it. So it has a sync of the
/// disk in it, what the host's own state makes of the action, and a third more bytes on the wire. The plain ones get the
/// same message in one frame each, all from the same memory.
///
/// Both sides' clients are of the same kind: first such as put a message together and check it, then such as only count
/// bytes, so that the time is the host's; and, for these, also over plain ones that get as many bytes as ours do on the
/// wire. Last, for what it is worth, ours that check over plain ones that do not.
pub(crate) fn run(runtime: &Runtime) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let body = body();
    let text = Bytes::from([br#"{"jsonrpc":"2.0","method":"action","params":"#, &body[..], b"}"].concat());
    let long = Bytes::from([&text[..text.len() - 1], &b" ".repeat(text.len() / 3), b"}"].concat());
    let mut ours = runtime.block_on(Ours::new(dirs[0].path(), body.clone(), Clients::Check));
    let mut raw = runtime.block_on(Ours::new(dirs[1].path(), body, Clients::Count));
    let mut plain = runtime.block_on(Plain::new(text.clone(), Clients::Check));
    let mut loose = runtime.block_on(Plain::new(text.clone(), Clients::Front));
    let mut plain_raw = runtime.block_on(Plain::new(text, Clients::Count));
    let mut long_raw = runtime.block_on(Plain::new(long, Clients::Count));
    // The first round only warms up.
    let times: Vec<Times> = (0..=rounds().min(MOST_ROUNDS))
        .map(|_| Times {
            ours: second(|| runtime.block_on(ours.carry())),
            plain: second(|| runtime.block_on(plain.carry())),
            raw: second(|| runtime.block_on(raw.carry())),
            plain_raw: second(|| runtime.block_on(plain_raw.carry())),
            long_raw: second(|| runtime.block_on(long_raw.carry())),
            loose: second(|| runtime.block_on(loose.carry())),
        })
        .skip(1)
        .collect();
    let named = |what: &str| format!("1 MB to {CLIENTS} clients at {CAP}: {what}");
    table::row(&named("ms"), median(&times, |took| took.ours.wall * 1e3), ..);
    let ratio = median(&times, |took| took.ours.wall / took.plain.wall);
    let cpu = median(&times, |took| took.ours.cpu / took.plain.cpu);
    table::row(&named("over plain WebSockets, all clients check"), ratio, ..=1.4);
    table::row(&named("CPU over plain WebSockets, all clients check"), cpu, ..);
    table::row(&named("ms, clients only count bytes"), median(&times, |took| took.raw.wall * 1e3), ..);
    let ratio = median(&times, |took| took.raw.wall / took.plain_raw.wall);
    table::row(&named("over plain WebSockets, all clients only count bytes"), ratio, ..=2.0);
    let ratio = median(&times, |took| took.raw.wall / took.long_raw.wall);
    table::row(&named("the same, over plain ones with as many bytes on the wire"), ratio, ..);
    let ratio = median(&times, |took| took.ours.wall / took.loose.wall);
    table::row(&named("over plain WebSockets, only our clients check"), ratio, ..);
}

/// What one round took.
struct Times {
    ours: Took,
    plain: Took,
    raw: Took,
    plain_raw: Took,
    long_raw: Took,
    loose: Took,
}

/// Runs a thing once untimed, so that what the one before it left behind does not show, and then times it.
fn second(mut thing: impl FnMut()) -> Took {
    thing();
    timed(thing)
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

/// What clients do with what they get.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// They put messages together, and check all of each.
    Check,
    /// They look at the front of each.
    Front,
    /// They count bytes.
    Count,
}

/// A host with its clients.
struct Ours {
    host: Host,
    body: Bytes,
    arrived: mpsc::Receiver<usize>,
}

impl Ours {
    async fn new(dir: &std::path::Path, body: Bytes, clients: Clients) -> Self {
        let host = Host::open(dir).await;
        let session = json!({"provider": "demo", "title": "A session", "status": 1, "lifecycle": "creating",
            "activeClients": [], "chats": []});
        let session = SnapshotState::Session(serde_json::from_value(session).unwrap());
        let first = entry::initial(SESSION, &session).unwrap();
        host.log.append(Batch::new().open(SESSION, None).entry(SESSION, first)).await.unwrap();
        let (arrive, arrived) = mpsc::channel(CLIENTS);
        for n in 0..CLIENTS {
            let id = format!("client {n}");
            if clients == Clients::Count {
                let mut client = Raw::dial(host.address).await;
                client.say(&hello(&id)).await;
                client.next().await.unwrap();
                tokio::spawn(count(client, arrive.clone()));
            } else {
                let mut client = Client::dial(host.address).await;
                client.initialize(&id, &[SESSION]).await;
                tokio::spawn(report(client, arrive.clone()));
            }
        }
        Self { host, body, arrived }
    }

    async fn carry(&mut self) {
        self.host.log.append(Batch::new().entry(SESSION, self.body.clone())).await.unwrap();
        all(&mut self.arrived, self.body.len()).await;
    }
}

/// As many links with nothing on them but the message.
struct Plain {
    say: broadcast::Sender<Message>,
    message: Message,
    arrived: mpsc::Receiver<usize>,
}

impl Plain {
    async fn new(text: Bytes, clients: Clients) -> Self {
        let mut listener = listener().await;
        let address = listener.local_address();
        let (say, _) = broadcast::channel::<Message>(1);
        let (arrive, arrived) = mpsc::channel(CLIENTS);
        for _ in 0..CLIENTS {
            let arrive = arrive.clone();
            let dial = async {
                if clients == Clients::Count {
                    tokio::spawn(count(Raw::dial(address).await, arrive));
                } else {
                    let client = Client::plain(address, clients == Clients::Front).await;
                    tokio::spawn(report(client, arrive));
                }
            };
            let (accepted, ()) = tokio::join!(listener.accept(), dial);
            let setup = Setup::new(Dialect::Plain, Role::Server, Limits::default());
            let machine = setup.machine(Budget::default().account(None)).unwrap();
            let mut driver = Driver::new(accepted.link, machine);
            let mut said = say.subscribe();
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        message = said.recv() => match message {
                            Ok(message) => driver.handle(Input::send(Ticket(1), message)),
                            Err(_) => return,
                        },
                        event = driver.next() => if event.is_none() { return },
                    }
                }
            });
        }
        Self { say, message: Message::from(text), arrived }
    }

    async fn carry(&mut self) {
        self.say.send(self.message.clone()).unwrap();
        all(&mut self.arrived, self.message.len() / 2).await;
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

/// Says how many bytes each message took on the wire.
async fn count(mut client: Raw, arrive: mpsc::Sender<usize>) {
    while let Some(bytes) = client.next().await {
        if arrive.send(bytes).await.is_err() {
            return;
        }
    }
}

/// How a client introduces itself that takes segments, and follows the session.
fn hello(id: &str) -> String {
    let chunking = json!({"maxIncomingFrameBytes": CAP, "maxIncomingMessageBytes": 32 << 20, "settledCursor": true});
    let params = json!({"channel": "ahp-root://", "protocolVersions": ["1.0.0"], "clientId": id,
        "initialSubscriptions": [SESSION], "capabilities": {"chunking": chunking}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string()
}

/// Waits until every client has got a message of at least this many bytes.
async fn all(arrived: &mut mpsc::Receiver<usize>, least: usize) {
    for _ in 0..CLIENTS {
        assert!(arrived.recv().await.unwrap() >= least);
    }
}
