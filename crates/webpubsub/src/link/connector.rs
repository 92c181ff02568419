//! Opens links to a host in a hub, each with a connection to the hub of its own.

use std::sync::Arc;
use std::time::Duration;

use breakbulk::external::{Connecting, Connector, LinkRequest};
use breakbulk::{DialError, Dialer};
use breakbulk_proto::Capacity;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::address::{WebPubSubAddress, WebPubSubAddressError};
use super::credit::PeerId;
use super::hub_connection::{About, Act, HubConfig, HubConnection, HubError, HubEvent};
use super::peer::{Peer, PeerEnd};
use super::peer_link::{PeerLink, capacity};
use super::peers::{Peers, TICK, inside};
use super::presence::{Control, VERSION, down_group, host_group, random_id, up_group};
use crate::wire;

/// How long to wait for a welcome before the hello is repeated: the host may come later than its client.
const HELLO_AGAIN: Duration = Duration::from_secs(1);
/// How long to wait for a welcome in all.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(8);

/// Opens links to one host in a hub.
#[derive(Debug, Clone)]
pub struct WebPubSubConnector {
    address: WebPubSubAddress,
    dialer: Dialer,
    user: String,
}

impl WebPubSubConnector {
    /// For this address. `dialer` opens the WebSockets: its TLS, its proxy and its keepalive are used.
    ///
    /// # Errors
    /// The system gave no random bytes for the name of a user.
    pub fn new(address: WebPubSubAddress, dialer: Dialer) -> Result<Self, getrandom::Error> {
        // All links of this connector are one principal to the host.
        let user = match address.user() {
            Some(user) => user.to_owned(),
            None => format!("client-{}", random_id()?.chars().take(12).collect::<String>()),
        };
        Ok(Self { address, dialer, user })
    }

    async fn open(&self, request: LinkRequest) -> Result<PeerLink, HubError> {
        let (link, host) = (random_id()?, self.address.host());
        let groups = LinkGroups { host: host_group(host), up: up_group(host, &link), down: down_group(host, &link) };
        let roles = vec![
            format!("webpubsub.joinLeaveGroup.{}", groups.down),
            format!("webpubsub.sendToGroup.{}", groups.up),
            format!("webpubsub.sendToGroup.{}", groups.host),
        ];
        let dialer = web_socket_dialer(&self.dialer, request.cap);
        let config = HubConfig { address: self.address.clone(), dialer, user: self.user.clone(), roles };
        let hub = HubConnection::connect(Arc::new(config)).await?;
        let capacity = capacity(request.cap, &groups.up, hub.user());
        let (opened, open) = oneshot::channel();
        let task = ClientTask::new(hub, self.address.clone(), link, groups, opened, capacity);
        tokio::spawn(task.run());
        open.await.unwrap_or(Err(HubError::NotRecovered))
    }
}

/// A dialer for the WebSockets of a hub. What the service sends may be longer than what it takes, by what it writes around a message and
/// by its own way to escape texts.
pub(super) fn web_socket_dialer(dialer: &Dialer, cap: u64) -> Dialer {
    let mut dialer = dialer.clone();
    dialer.link.cap = u64::MAX;
    dialer.link.max_frame_bytes = cap.saturating_mul(4);
    dialer.connector = None;
    dialer
}

impl Connector for WebPubSubConnector {
    fn connect(&self, request: LinkRequest) -> Connecting<'_> {
        Box::pin(async move {
            match self.open(request).await {
                Ok(link) => Ok(Box::new(link) as _),
                Err(HubError::Dial(error)) => Err(error),
                Err(error) => Err(DialError::External { scheme: "webpubsub", cause: Box::new(error) }),
            }
        })
    }
}

impl From<WebPubSubAddressError> for DialError {
    fn from(error: WebPubSubAddressError) -> Self {
        Self::External { scheme: "webpubsub", cause: Box::new(error) }
    }
}

/// The groups of a link.
struct LinkGroups {
    host: String,
    up: String,
    down: String,
}

/// The task of a client's hub connection.
struct ClientTask {
    hub: HubConnection,
    address: WebPubSubAddress,
    link: String,
    groups: LinkGroups,
    peers: Peers,
    id: PeerId,
    /// What we take at first.
    grant: u64,
    phase: LinkPhase,
    stop: CancellationToken,
}

/// How far the link has come.
enum LinkPhase {
    /// The host was not heard of.
    Greeting {
        opened: oneshot::Sender<Result<PeerLink, HubError>>,
        link: PeerLink,
        joined: bool,
        since: Instant,
        said: Option<Instant>,
    },
    /// The host has the link; its instance.
    Open { instance: String },
    /// It has ended.
    Ended,
}

/// What the task has to do.
enum ConnectorEvent {
    Hub(HubEvent),
    Tick,
    Stop,
}

impl ClientTask {
    fn new(
        hub: HubConnection,
        address: WebPubSubAddress,
        link: String,
        groups: LinkGroups,
        opened: oneshot::Sender<Result<PeerLink, HubError>>,
        capacity: Capacity,
    ) -> Self {
        let (mut peers, stop) = (Peers::default(), CancellationToken::new());
        let (peer, grant): (Arc<Peer>, u64) = peers.add(&groups.up, 0, true);
        let id = peer.id;
        let peer_link = PeerLink::new(peer, capacity, Some(stop.clone().drop_guard()));
        let phase = LinkPhase::Greeting { opened, link: peer_link, joined: false, since: Instant::now(), said: None };
        Self { hub, address, link, groups, peers, id, grant, phase, stop }
    }

    async fn run(mut self) {
        self.hub.request(About::Join(None), Act::Join(self.groups.down.as_str().into()));
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hellos = interval(HELLO_AGAIN);
        loop {
            let stop = self.stop.clone();
            let is_greeting = matches!(self.phase, LinkPhase::Greeting { .. });
            let (hub, peers) = (&mut self.hub, &mut self.peers);
            let work = std::future::poll_fn(|cx| {
                peers.work(hub, cx);
                hub.poll(cx, || peers.next_frame()).map(ConnectorEvent::Hub)
            });
            let task = tokio::select! {
                biased;
                task = work => task,
                _ = ticks.tick() => ConnectorEvent::Tick,
                _ = hellos.tick(), if is_greeting => ConnectorEvent::Tick,
                () = stop.cancelled() => ConnectorEvent::Stop,
            };
            match task {
                ConnectorEvent::Hub(event) => self.handle(event).await,
                ConnectorEvent::Tick => {
                    if is_greeting {
                        self.greet();
                    } else {
                        self.peers.tick(&mut self.hub);
                    }
                }
                ConnectorEvent::Stop => break,
            }
            if matches!(self.phase, LinkPhase::Ended) || !self.peers.take_ended().is_empty() {
                break;
            }
        }
        self.end().await;
    }

    async fn handle(&mut self, event: HubEvent) {
        match event {
            HubEvent::Text { group, data, .. } if group == self.groups.down => {
                match self.peers.receive(&mut self.hub, self.id, &data) {
                    Some(Control::Welcome { instance, grant }) => self.welcome(instance, grant),
                    Some(_) | None => self.check_refusal(),
                }
            }
            HubEvent::Text { .. } => {}
            HubEvent::Acked { about: About::Join(_), result: Ok(()) } => {
                if let LinkPhase::Greeting { joined, .. } = &mut self.phase {
                    *joined = true;
                }
                self.greet();
            }
            HubEvent::Acked { about: About::Closing(id), .. } => self.peers.note_closed(id),
            HubEvent::Acked { result: Ok(()), .. } => {}
            HubEvent::Acked { about, result: Err(name) } => {
                let what = if matches!(about, About::Join(_)) {
                    "to join the group of the link"
                } else {
                    "to send to the host"
                };
                self.fail(HubError::Refused { what, name });
            }
            HubEvent::Lost => {
                tracing::debug!("the WebSocket to the hub is lost");
                let stop = self.stop.clone();
                let recovered = tokio::select! {
                    recovered = self.hub.recover() => recovered,
                    () = stop.cancelled() => Err(HubError::NotRecovered),
                };
                match recovered {
                    Ok(()) => self.peers.forgive_silence(),
                    Err(error) => self.fail(error),
                }
            }
            HubEvent::Ended(error) => self.fail(error),
        }
    }

    /// Says hello, if it is time for that, or gives up.
    fn greet(&mut self) {
        let LinkPhase::Greeting { joined: true, since, said, .. } = &mut self.phase else { return };
        let now = Instant::now();
        if now.duration_since(*since) >= WELCOME_TIMEOUT {
            let (host, hub) = (self.address.host().to_owned(), self.address.hub().to_owned());
            return self.fail(HubError::NoHost { host, hub });
        }
        if said.is_none_or(|said| now.duration_since(said) >= HELLO_AGAIN) {
            *said = Some(now);
            let hello = Control::Hello { version: VERSION, link: self.link.clone(), grant: self.grant };
            let group = wire::quoted(&self.groups.host).into();
            self.hub.request(About::Other, Act::Send(group, inside(&hello)));
        }
    }

    fn welcome(&mut self, instance: String, grant: u64) {
        match std::mem::replace(&mut self.phase, LinkPhase::Ended) {
            LinkPhase::Greeting { opened, link, .. } => {
                self.peers.set_granted(self.id, grant);
                if opened.send(Ok(link)).is_ok() {
                    self.phase = LinkPhase::Open { instance };
                }
            }
            LinkPhase::Open { instance: first } if first == instance => self.phase = LinkPhase::Open { instance },
            LinkPhase::Open { .. } => {
                let why = format!("two hosts are called {:?} in this hub", self.address.host());
                self.peers.end(&mut self.hub, self.id, PeerEnd::Broken(why));
            }
            LinkPhase::Ended => {}
        }
    }

    /// A link that was closed before it began was refused.
    fn check_refusal(&mut self) {
        if let (LinkPhase::Greeting { .. }, Some((code, text))) = (&self.phase, self.peers.last_close.take()) {
            self.fail(HubError::HostRefused { code, text });
        }
    }

    fn fail(&mut self, error: HubError) {
        match std::mem::replace(&mut self.phase, LinkPhase::Ended) {
            LinkPhase::Greeting { opened, .. } => drop(opened.send(Err(error))),
            LinkPhase::Open { .. } => {
                tracing::debug!(%error, "the link through the hub has ended");
                self.peers.lose_all();
            }
            LinkPhase::Ended => {}
        }
    }

    /// Tells the host, if it is still to be told, and ends the connection.
    async fn end(mut self) {
        std::future::poll_fn(|cx| {
            self.peers.work(&mut self.hub, cx);
            std::task::Poll::Ready(())
        })
        .await;
        let peers = &mut self.peers;
        self.hub.close(|id| peers.note_closed(id)).await;
        self.peers.lose_all();
    }
}
