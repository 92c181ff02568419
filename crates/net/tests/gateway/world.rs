//! A client and a host that know nothing of segments, and two gateways between them, all in memory.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk::gateway::{Endpoint, Gateway, Outcome};
use breakbulk::link::{self, InProcessLink};
use breakbulk::{Acked, AnyMachine, Arrival, Dialect, Driver, Link, LinkError, LinkStatus, ReceiveMemory, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{
    Budget, BudgetConfig, Capacity, CloseReason, Event, Input, Limits, LimitsConfig, Message, Meta, Tag, Ticket,
    Transmit,
};
use futures_core::Stream;
use futures_sink::Sink;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::task::JoinHandle;

/// The cap between the two gateways.
pub(crate) const CAP: u64 = 65_536;

/// Whoever waits this long waits for nothing. On a busy machine, several hundred megabytes take minutes.
pub(crate) const HANGS: Duration = Duration::from_secs(600);

pub(crate) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","protocolVersions":["1.0.0"],"clientId":"me"}}"#;
pub(crate) const WELCOME: &str =
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":0,"snapshots":[]}}"#;

pub(crate) fn limits(cap: u64) -> Limits {
    let config = LimitsConfig { max_frame_bytes: cap, ..LimitsConfig::default() };
    Limits::prove(config, &BudgetConfig::default()).unwrap()
}

/// The gateway beside the client, and the one beside the host.
pub(crate) fn gateways(cap: u64) -> (Arc<Gateway>, Arc<Gateway>) {
    gateways_of(limits(cap))
}

/// Gateways that take segments up to these limits.
pub(crate) fn gateways_of(limits: Limits) -> (Arc<Gateway>, Arc<Gateway>) {
    let plain = |role| Setup::new(Dialect::Plain, role, Limits::default());
    let ahp = |role| Setup::new(Dialect::Ahp, role, limits);
    let client = Gateway::new(plain(Role::Server), ahp(Role::Client), BudgetConfig::default()).unwrap();
    let host = Gateway::new(ahp(Role::Server), plain(Role::Client), BudgetConfig::default()).unwrap();
    (Arc::new(client), Arc::new(host))
}

/// A gateway that has segments on neither side.
pub(crate) fn plain_gateway(limits: Limits, budget: BudgetConfig) -> Arc<Gateway> {
    let plain = |role| Setup::new(Dialect::Plain, role, limits);
    Arc::new(Gateway::new(plain(Role::Server), plain(Role::Client), budget).unwrap())
}

/// An application on a plain link.
pub(crate) struct App<L = InProcessLink> {
    pub(crate) driver: Driver<L, AnyMachine>,
    tickets: u64,
}

impl<L: Link> App<L> {
    pub(crate) fn new(link: L, role: Role) -> Self {
        let setup = Setup::new(Dialect::Plain, role, Limits::default());
        let machine = setup.machine(Budget::default().account(Some("app"))).unwrap();
        Self { driver: Driver::new(link, machine), tickets: 0 }
    }

    pub(crate) fn send(&mut self, message: impl Into<Message>) {
        self.tickets += 1;
        self.driver.handle(Input::send(Ticket(self.tickets), message));
    }

    /// Puts a text on the link of which its own machine would think nothing.
    pub(crate) async fn send_as_it_is(&mut self, text: &str) {
        let bytes = Message::from(text.to_owned());
        let frame = Transmit::Frame { tag: Tag::default(), bytes, meta: Meta::default() };
        self.driver.link_mut().send(frame).await.unwrap();
    }

    /// The next message, or how it ended.
    pub(crate) async fn next(&mut self) -> Result<Message, CloseReason> {
        let next = async {
            loop {
                match self.driver.next().await.expect("asked again after the end") {
                    Event::Message { message, .. } => return Ok(message),
                    Event::Closed(reason) => return Err(reason),
                    Event::Sent { .. } | Event::Progress(_) | Event::SendFailed { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::time::timeout(HANGS, next).await.expect("an event")
    }

    /// Keeps the link going until it has ended.
    pub(crate) async fn end(&mut self) -> CloseReason {
        loop {
            if let Err(reason) = self.next().await {
                return reason;
            }
        }
    }
}

/// Client, gateway, gateway, host; and how long the frames between the gateways were.
pub(crate) struct World {
    pub(crate) client: App,
    pub(crate) host: App,
    pub(crate) longest: Arc<AtomicU64>,
}

impl World {
    pub(crate) fn new(cap: u64) -> Self {
        let (beside_client, beside_host) = gateways(cap);
        Self::with(&beside_client, &beside_host, cap)
    }

    pub(crate) fn with(beside_client: &Arc<Gateway>, beside_host: &Arc<Gateway>, cap: u64) -> Self {
        let any = Capacity::of(u64::MAX);
        let (client, downstream) = link::pair(&any, 4);
        let (left, right) = link::pair(&Capacity::of(cap), 4);
        let (upstream, host) = link::pair(&any, 4);
        let longest = Arc::new(AtomicU64::new(0));
        let spy = |link| Spy { link, longest: longest.clone() };
        join(beside_client, downstream, spy(left));
        join(beside_host, spy(right), upstream);
        Self { client: App::new(client, Role::Client), host: App::new(host, Role::Server), longest }
    }

    /// The same, with a way between the gateways that takes so many bytes a second.
    pub(crate) fn slow(beside_client: &Arc<Gateway>, beside_host: &Arc<Gateway>, cap: u64, rate: u32) -> Self {
        let (any, capped) = (Capacity::of(u64::MAX), Capacity::of(cap));
        let (client, downstream) = link::pair(&any, 4);
        let ((left, before), (after, right)) = (link::pair(&capped, 1), link::pair(&capped, 1));
        let (upstream, host) = link::pair(&any, 4);
        join(beside_client, downstream, left);
        join(beside_host, right, upstream);
        tokio::spawn(async move {
            let ((to_left, from_left), (to_right, from_right)) = (before.split(), after.split());
            tokio::join!(pass(from_left, to_right, rate), pass(from_right, to_left, rate));
        });
        let (client, host) = (App::new(client, Role::Client), App::new(host, Role::Server));
        Self { client, host, longest: Arc::default() }
    }

    /// Client and host greet each other, so that the gateways know what each other takes.
    pub(crate) async fn greet(&mut self) {
        self.client.send(INITIALIZE);
        let asked = self.host_hears().await;
        assert_eq!(asked, Message::from(INITIALIZE), "the host sees what the client wrote");
        self.host.send(WELCOME);
        assert_eq!(self.client_hears().await, Message::from(WELCOME));
    }

    pub(crate) async fn host_hears(&mut self) -> Message {
        tokio::select! {
            message = self.host.next() => message.unwrap(),
            end = self.client.next() => panic!("{end:?}"),
        }
    }

    pub(crate) async fn client_hears(&mut self) -> Message {
        tokio::select! {
            message = self.client.next() => message.unwrap(),
            end = self.host.next() => panic!("{end:?}"),
        }
    }
}

/// Carries frames one way, so many bytes a second.
async fn pass(mut from: SplitStream<InProcessLink>, mut to: SplitSink<InProcessLink, Transmit>, rate: u32) {
    while let Some(Ok(arrival)) = from.next().await {
        if let Arrival::Frame { bytes, meta } = arrival {
            tokio::time::sleep(Duration::from_secs(bytes.len() as u64) / rate).await;
            if to.send(Transmit::Frame { tag: Tag(0), bytes: bytes.into(), meta }).await.is_err() {
                return;
            }
        }
    }
}

pub(crate) fn join(
    gateway: &Arc<Gateway>,
    downstream: impl Link + 'static,
    upstream: impl Link + 'static,
) -> JoinHandle<Outcome> {
    join_until(gateway, downstream, upstream, std::future::pending())
}

pub(crate) fn join_until(
    gateway: &Arc<Gateway>,
    downstream: impl Link + 'static,
    upstream: impl Link + 'static,
    stop: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<Outcome> {
    join_as("someone", gateway, downstream, upstream, stop)
}

pub(crate) fn join_as(
    principal: &'static str,
    gateway: &Arc<Gateway>,
    downstream: impl Link + 'static,
    upstream: impl Link + 'static,
    stop: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<Outcome> {
    let (gateway, downstream, upstream) = (
        gateway.clone(),
        Endpoint::new(downstream, "downstream").proven(principal),
        Endpoint::new(upstream, "upstream"),
    );
    tokio::spawn(async move { gateway.join(downstream, upstream, Some(principal), stop, None).await.unwrap() })
}

/// A request of about `len` bytes, with spelling that a gateway must not touch.
pub(crate) fn request(id: &str, len: usize) -> Message {
    let text = "pack 梱包 \\u00e9 ".repeat(len / 21);
    format!(
        "{{ \"params\" : {{\"text\":\"{text}\",\"n\":1.50e+0}},\"method\":\"m\",\n\"id\":{id}, \"jsonrpc\":\"2.0\"}}"
    )
    .into()
}

/// A link that notes the longest frame.
pub(crate) struct Spy<L> {
    pub(crate) link: L,
    pub(crate) longest: Arc<AtomicU64>,
}

impl<L: Link> Link for Spy<L> {
    fn capacity(&self) -> Capacity {
        self.link.capacity()
    }

    fn status(&self) -> LinkStatus {
        self.link.status()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.link.receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.link.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        self.link.end_output()
    }
}

impl<L: Link> Stream for Spy<L> {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.link).poll_next(cx)
    }
}

impl<L: Link> Sink<Transmit> for Spy<L> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if let Transmit::Frame { bytes, .. } = &item {
            self.longest.fetch_max(bytes.len() as u64, Ordering::Relaxed);
        }
        Pin::new(&mut self.link).start_send(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_close(cx)
    }
}
