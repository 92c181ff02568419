//! What the relay costs, as ratios: a large message through it against a direct link, its processor time against a plain echo, and the
//! memory of clients that do nothing.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]
// The parts that are shared with other benches have more than is used here.
#![expect(dead_code, reason = "shared with other benches")]

#[path = "../../proto/benches/common/corpus.rs"]
mod corpus;
#[path = "../../proto/benches/common/dice.rs"]
mod dice;
#[path = "../../net/benches/common/race.rs"]
mod race;
#[path = "../../proto/benches/common/table.rs"]
mod table;
#[path = "../../net/benches/common/wire.rs"]
mod wire;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use breakbulk::external::Acceptor;
use breakbulk::listen::ListenConfig;
use breakbulk::{AccessPolicy, Address, Arrival, BoxLink, Dialect, Dialer, Listener};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Message, Meta, Tag, Transmit};
use breakbulk_webpubsub::link::{WebPubSubAcceptor, WebPubSubAddress, WebPubSubConnector};
use breakbulk_webpubsub::relay::{Relay, RelayConfig};
use breakbulk_webpubsub::{AccessKey, Claims, ConnectionString, Endpoint, unix_time};
use futures_util::{SinkExt, StreamExt};
use http::HeaderValue;
use race::{in_runtimes, median, race, timed};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use wire::{Peer, Wire, machine, straight};

/// The cap of the service.
const CAP: u64 = 1_000_000;
/// The message that passes.
const BULK: usize = 32_000_000;
/// The payload of a frame that is echoed.
const FRAME: usize = 900_000;
/// How many frames are echoed at a time.
const ECHOES: usize = 40;
/// How many clients do nothing.
const IDLE: usize = 10_000;

/// The argument that starts the process of the clients.
const HOLD: &str = "hold-clients";

fn main() {
    if hold() {
        return;
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let parts: [(&str, &str, fn()); 3] = [
        ("bulk", "Through a Web PubSub relay", bulk),
        ("echo", "The relay beside a plain echo", echo),
        ("idle", "Clients that do nothing", idle),
    ];
    for (name, title, run) in parts {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            table::head(title);
            run();
        }
    }
}

/// A large message in segments, through the relay and directly.
fn bulk() {
    let text = corpus::agent(BULK);
    let times = in_runtimes(2, |runtime| {
        let service = runtime.block_on(Service::start());
        let (mut relayed, _host) = runtime.block_on(service.wire());
        let mut direct = runtime.block_on(Wire::new(Dialect::Ahp, Role::Client, 900_000, straight));
        race([&mut || carry(runtime, &mut relayed, &text), &mut || carry(runtime, &mut direct, &text)])
    });
    let ratio = median(&times, |[relayed, direct]| relayed.wall / direct.wall);
    table::row("32 MB through the relay: wall time over a direct link in segments", ratio, ..=1.5);
    let ratio = median(&times, |[relayed, direct]| relayed.cpu / direct.cpu);
    table::row("32 MB through the relay: CPU of all, over a direct link in segments", ratio, ..);
}

fn carry(runtime: &Runtime, wire: &mut Wire, text: &str) -> race::Took {
    let message = Message::from(text.to_owned());
    timed(|| runtime.block_on(wire.carry(message)))
}

/// Frames that come back to their sender: through a group of the relay, and from a server that does nothing else. Only the processor time
/// of the server's thread counts.
fn echo() {
    let relay = Thread::start(|| async {
        let service = Service::start().await;
        let string = service.string.reveal();
        // It serves for as long as the thread lives.
        std::mem::forget(service);
        string
    });
    let plain = Thread::start(plain_echo);
    let client = race::runtime(1);
    let string: ConnectionString = relay.ready.parse().unwrap();
    let text = "x".repeat(FRAME);
    let front = r#"{"type":"sendToGroup","group":"g","ackId":"#;
    let mut through = client.block_on(joined(&string));
    let mut direct = client.block_on(async { Dialer::default().dial(&plain.ready.parse().unwrap()).await.unwrap() });
    let (mut ack, mut times) = (100, Vec::new());
    let rest = format!(r#","dataType":"text","data":"{text}"}}"#);
    let length = front.len() + rest.len() + 3;
    for _ in 0..race::rounds() {
        let begin = relay.cpu();
        for _ in 0..ECHOES {
            ack += 1;
            client.block_on(send(&mut through, format!("{front}{ack}{rest}")));
            let sequence = client.block_on(large(&mut through));
            client.block_on(send(&mut through, format!(r#"{{"type":"sequenceAck","sequenceId":{sequence}}}"#)));
        }
        let relayed = (relay.cpu() - begin).as_secs_f64();
        let begin = plain.cpu();
        for _ in 0..ECHOES {
            client.block_on(send(&mut direct, "x".repeat(length)));
            client.block_on(large(&mut direct));
        }
        times.push((relayed, (plain.cpu() - begin).as_secs_f64()));
    }
    let ratio = median(&times, |(relayed, plain)| relayed / plain);
    table::row("frames of 900 KB: CPU of the relay over a plain echo", ratio, ..=1.5);
    table::row(
        "frames of 900 KB: ms of CPU of the relay for each",
        median(&times, |(relayed, _)| relayed * 1e3 / ECHOES as f64),
        ..,
    );
}

/// A server that sends each frame back.
async fn plain_echo() -> String {
    let mut config = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open());
    config.link.max_frame_bytes = CAP;
    let mut listener = Listener::bind(config).await.unwrap();
    let address = listener.local_address();
    tokio::spawn(async move {
        loop {
            let mut link = listener.accept().await.link;
            tokio::spawn(async move {
                while let Some(Ok(Arrival::Frame { bytes, .. })) = link.next().await {
                    let bytes = Message::from(bytes);
                    let frame = Transmit::Frame { tag: Tag::default(), bytes, meta: Meta::default() };
                    if link.send(frame).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    format!("ws://{address}")
}

/// Clients that have connected and do nothing, in another process.
fn idle() {
    raise_file_limit();
    let runtime = race::runtime(2);
    let service = runtime.block_on(Service::start());
    let (address, target) = (service.address(), service.target());
    let before = resident();
    let mut clients = Command::new(std::env::current_exe().unwrap())
        .args([HOLD, &address.to_string(), &target])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(clients.stdout.take().unwrap()).read_line(&mut line).unwrap();
    runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
    assert_eq!(service.relay.stats().connected, IDLE as u64);
    let each = resident().saturating_sub(before) as f64 / IDLE as f64 / 1024.0;
    table::row(&format!("{IDLE} idle clients: KiB each"), each, ..=24.0);
    drop(clients.stdin.take());
    clients.wait().unwrap();
}

/// Is the process of the clients, if that is what this one was started for.
fn hold() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, word, address, target] = arguments.as_slice() else { return false };
    if word != HOLD {
        return false;
    }
    raise_file_limit();
    let address = address.parse().unwrap();
    let clients: Vec<TcpStream> = (0..IDLE).map(|_| handshake(address, target)).collect();
    println!("{}", clients.len());
    for _ in std::io::stdin().lines() {}
    true
}

/// Connects as a client of the reliable subprotocol, and reads the greeting.
fn handshake(address: SocketAddr, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: json.reliable.webpubsub.azure.v1\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"}") {
        let mut bytes = [0; 1024];
        let len = stream.read(&mut bytes).unwrap();
        assert!(len > 0, "{}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&bytes[..len]);
    }
    stream
}

/// A relay in this runtime.
struct Service {
    relay: Relay,
    string: ConnectionString,
    stop: CancellationToken,
}

impl Service {
    async fn start() -> Self {
        let key = AccessKey::generate().unwrap();
        let relay = Relay::new(RelayConfig::new(key.clone()));
        let mut listen = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open());
        (listen.gate, listen.pages) = (Some(relay.gate()), Some(relay.pages()));
        listen.link.max_frame_bytes = CAP;
        let listener = Listener::bind(listen).await.unwrap();
        let endpoint = Endpoint { is_tls: false, host: "127.0.0.1".into(), port: listener.local_address().port() };
        let (stop, serving) = (CancellationToken::new(), relay.clone());
        let stopping = stop.clone();
        tokio::spawn(async move { serving.serve(listener, stopping).await });
        Self { relay, string: ConnectionString { endpoint, key }, stop }
    }

    /// A wire through the relay. The host has to live as long.
    async fn wire(&self) -> (Wire, WebPubSubAcceptor) {
        let text = format!("webpubsub:{}?hub=agents", self.string.reveal());
        let address: Address = text.parse().unwrap();
        let hub = WebPubSubAddress::try_from(&address).unwrap();
        let mut host = WebPubSubAcceptor::start(hub.clone(), &Dialer::default(), CAP).await.unwrap();
        let connector = WebPubSubConnector::new(hub, Dialer::default()).unwrap();
        let dialer = Dialer { connector: Some(std::sync::Arc::new(connector)), ..Dialer::default() };
        let (link, accepted) = tokio::join!(dialer.dial(&address), std::future::poll_fn(|cx| host.poll_accept(cx)));
        let from = Peer::new(link.unwrap(), machine(Dialect::Ahp, Role::Client, CAP));
        let to = Peer::new(accepted.unwrap().link, machine(Dialect::Ahp, Role::Server, CAP));
        (Wire { from, to }, host)
    }

    fn address(&self) -> SocketAddr {
        format!("127.0.0.1:{}", self.string.endpoint.port).parse().unwrap()
    }

    fn target(&self) -> String {
        format!("/client/hubs/agents?access_token={}", token(&self.string))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn token(string: &ConnectionString) -> String {
    let claims = Claims {
        aud: vec!["http://relay/client/hubs/agents".into()],
        exp: Some(unix_time() + 3600),
        sub: Some("bench".into()),
        roles: vec!["webpubsub.sendToGroup".into()],
        groups: vec!["g".into()],
        ..Claims::default()
    };
    claims.sign(&string.key)
}

/// A client of the reliable subprotocol, in the group `g`.
async fn joined(string: &ConnectionString) -> BoxLink {
    let mut dialer = Dialer::default();
    dialer.headers.insert("sec-websocket-protocol", HeaderValue::from_static("json.reliable.webpubsub.azure.v1"));
    let target = format!("/client/hubs/agents?access_token={}", token(string));
    dialer.dial(&format!("ws://127.0.0.1:{}{target}", string.endpoint.port).parse().unwrap()).await.unwrap()
}

async fn send(link: &mut BoxLink, text: String) {
    let frame = Transmit::Frame { tag: Tag::default(), bytes: Message::from(text), meta: Meta::default() };
    link.send(frame).await.unwrap();
}

/// Waits for the next long frame. Returns its sequence number, if it has one.
async fn large(link: &mut BoxLink) -> String {
    loop {
        let Some(Ok(Arrival::Frame { bytes, .. })) = link.next().await else { panic!("the link has ended") };
        if bytes.len() >= FRAME {
            let front = String::from_utf8_lossy(&bytes[..64]).into_owned();
            let number = front.strip_prefix(r#"{"sequenceId":"#).and_then(|rest| rest.split(',').next());
            return number.unwrap_or_default().to_owned();
        }
    }
}

/// A thread with a runtime of its own, whose processor time can be asked for.
struct Thread {
    ready: String,
    ask: std::sync::mpsc::Sender<()>,
    times: std::sync::mpsc::Receiver<Duration>,
}

impl Thread {
    fn start<F: Future<Output = String> + 'static>(begin: impl FnOnce() -> F + Send + 'static) -> Self {
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (tell, times) = std::sync::mpsc::channel();
        let (say, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                say.send(begin().await).unwrap();
                loop {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    match asked.try_recv() {
                        Ok(()) => tell.send(thread_time()).unwrap(),
                        Err(std::sync::mpsc::TryRecvError::Empty) => {}
                        Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                    }
                }
            });
        });
        Self { ready: ready.recv().unwrap(), ask, times }
    }

    fn cpu(&self) -> Duration {
        self.ask.send(()).unwrap();
        self.times.recv().unwrap()
    }
}

fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}
