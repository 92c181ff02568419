//! Two ends on loopback WebSockets, each in a task of its own.

use std::net::SocketAddr;

use breakbulk::gateway::{Endpoint, Gateway};
use breakbulk::link::{WebSocket, WebSocketConfig, tune};
use breakbulk::private::{self, HostKey, longest_within};
use breakbulk::{AnyMachine, Dialect, Driver, Link, Setup};
use breakbulk_proto::ahp::{Chunking, Role};
use breakbulk_proto::plain::Check;
use breakbulk_proto::{Budget, BudgetConfig, Event, Input, Lane, Limits, LimitsConfig, Message, Meta, Ticket, ahp};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// One end, in a task of its own.
pub(crate) struct Peer {
    orders: UnboundedSender<(Message, Lane)>,
    arrived: UnboundedReceiver<Message>,
}

impl Peer {
    pub(crate) fn new(link: impl Link + 'static, machine: AnyMachine) -> Self {
        let (orders, ordered) = unbounded_channel();
        let (arrive, arrived) = unbounded_channel();
        tokio::spawn(run(Driver::new(link, machine), ordered, arrive));
        Self { orders, arrived }
    }

    pub(crate) fn send(&self, message: Message, lane: Lane) {
        self.orders.send((message, lane)).expect("the task lives");
    }

    /// The next message that has arrived.
    pub(crate) async fn next(&mut self) -> Message {
        self.arrived.recv().await.expect("the task lives")
    }
}

async fn run<L: Link>(
    mut driver: Driver<L, AnyMachine>,
    mut ordered: UnboundedReceiver<(Message, Lane)>,
    arrive: UnboundedSender<Message>,
) {
    let mut tickets = 0;
    loop {
        tokio::select! {
            order = ordered.recv() => {
                let Some((message, lane)) = order else { break };
                tickets += 1;
                driver.handle(Input::Send { ticket: Ticket(tickets), message, lane, meta: Meta::default() });
            }
            event = driver.next() => match event {
                Some(Event::Message { message, .. }) => drop(arrive.send(message)),
                Some(Event::Progress(_) | Event::Sent { .. }) => {}
                Some(Event::Closed(_)) | None => break,
                Some(other) => panic!("{other:?}"),
            },
        }
    }
}

/// A way from one end to the other.
pub(crate) struct Wire {
    pub(crate) from: Peer,
    pub(crate) to: Peer,
}

impl Wire {
    /// A wire in one dialect, with frames of at most `cap`. `role` sends; `by` may stand between the two sockets.
    pub(crate) async fn new(
        dialect: Dialect,
        role: Role,
        cap: u64,
        by: impl AsyncFnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let (sending, receiving) = sockets(cap, by).await;
        let other = if role == Role::Client { Role::Server } else { Role::Client };
        Self {
            from: Peer::new(sending, machine(dialect, role, cap)),
            to: Peer::new(receiving, machine(dialect, other, cap)),
        }
    }

    /// A wire in segments on a private link, with sealed frames of at most `cap`. `role` sends.
    pub(crate) async fn private(role: Role, cap: u64) -> Self {
        let (sending, receiving) = sockets(cap, straight).await;
        let (key, longest) = (HostKey::generate().expect("random bytes"), longest_within(cap));
        let code = key.pairing_code();
        let (sending, receiving) = tokio::join!(
            private::connect(Box::new(sending), &code, longest),
            private::accept(Box::new(receiving), &key, longest)
        );
        let other = if role == Role::Client { Role::Server } else { Role::Client };
        Self {
            from: Peer::new(sending.expect("a private link"), machine(Dialect::Ahp, role, longest)),
            to: Peer::new(receiving.expect("a private link"), machine(Dialect::Ahp, other, longest)),
        }
    }

    /// A wire through two gateways: plain to them, in segments between them. What the second puts together it checks, as
    /// the end of a direct wire does; `twice` if the host checks it once more.
    pub(crate) async fn bridged(cap: u64, twice: bool) -> Self {
        let max = 64 << 20;
        let (client, downstream) = sockets(max, straight).await;
        let (left, right) = sockets(cap, straight).await;
        let (upstream, host) = sockets(max, straight).await;
        let setup = |dialect, role, cap| Setup::new(dialect, role, limits(cap));
        let (plain, segmented) = (|role| setup(Dialect::Plain, role, max), |role| setup(Dialect::Ahp, role, cap));
        join(gateway(plain(Role::Server), segmented(Role::Client)), downstream, left);
        join(gateway(segmented(Role::Server), plain(Role::Client)), right, upstream);
        let end = |role| {
            let mut setup = plain(role);
            setup.check = if twice { Check::Whole } else { Check::Front };
            setup.machine(Budget::default().account(Some("bench"))).expect("random bytes")
        };
        let (from, to) = (Peer::new(client, end(Role::Client)), Peer::new(host, end(Role::Server)));
        let mut wire = Self { from, to };
        // From this handshake the gateways learn what each other takes.
        wire.carry(Message::from(INITIALIZE)).await;
        wire.to.send(Message::from(WELCOME), Lane::Auto);
        wire.from.next().await;
        wire
    }

    /// Sends a message, and waits until it has arrived.
    pub(crate) async fn carry(&mut self, message: Message) {
        let len = message.len();
        self.from.send(message, Lane::Auto);
        assert_eq!(self.to.next().await.len(), len, "all of it arrives");
    }
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","protocolVersions":["1.0.0"],"clientId":"me"}}"#;
pub(crate) const WELCOME: &str =
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":0,"snapshots":[]}}"#;

fn join(gateway: Gateway, downstream: impl Link + 'static, upstream: impl Link + 'static) {
    tokio::spawn(async move {
        let (downstream, upstream) = (Endpoint::new(downstream, "downstream"), Endpoint::new(upstream, "upstream"));
        gateway.join(downstream, upstream, Some("bench"), std::future::pending(), None).await
    });
}

/// A machine that learns from the handshake what its peer takes.
pub(crate) fn fresh_machine(dialect: Dialect, role: Role, cap: u64) -> AnyMachine {
    let account = Budget::default().account(Some("bench"));
    Setup::new(dialect, role, limits(cap)).machine(account).expect("random bytes")
}

/// A machine that knows beforehand what its peer takes.
pub(crate) fn machine(dialect: Dialect, role: Role, cap: u64) -> AnyMachine {
    let account = Budget::default().account(Some("bench"));
    if dialect != Dialect::Ahp {
        return fresh_machine(dialect, role, cap);
    }
    let mut config = ahp::Config::new(role, limits(cap), [7; 32]);
    config.agreed = Some(Chunking::from(&limits(cap)));
    config.delivery = ahp::Delivery::Settled;
    AnyMachine::Ahp(Box::new(ahp::Connection::new(config, account)))
}

pub(crate) fn limits(cap: u64) -> Limits {
    let config = LimitsConfig { max_frame_bytes: cap, max_message_bytes: 64 << 20, ..LimitsConfig::default() };
    Limits::prove(config, &BudgetConfig::default()).expect("limits that hold")
}

/// Nothing between the sockets.
pub(crate) async fn straight(address: SocketAddr) -> SocketAddr {
    address
}

pub(crate) async fn sockets(
    cap: u64,
    by: impl AsyncFnOnce(SocketAddr) -> SocketAddr,
) -> (WebSocket<TcpStream>, WebSocket<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = by(listener.local_addr().expect("an address")).await;
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    let config = WebSocketConfig { max_frame_bytes: cap, cap, ..WebSocketConfig::default() };
    let (client, server) = (client.expect("a link"), server.expect("a link").0);
    tune(&client, &config);
    tune(&server, &config);
    (WebSocket::client(client, &config), WebSocket::server(server, &config))
}

fn gateway(downstream: Setup, upstream: Setup) -> Gateway {
    Gateway::new(downstream, upstream, BudgetConfig::default()).expect("memory enough")
}
