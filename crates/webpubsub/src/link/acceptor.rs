//! The host's end of a hub: one connection to the hub, and a link for each client that says hello.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk::external::{Acceptor, ExternalPeer};
use breakbulk::{DialError, Dialer};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::address::WebPubSubAddress;
use super::connector::web_socket_dialer;
use super::credit::PeerId;
use super::hub_connection::{About, Act, HubConfig, HubConnection, HubError, HubEvent};
use super::peer::{Peer, PeerEnd};
use super::peer_link::{PeerLink, capacity};
use super::peers::{ABNORMAL, Peers, TICK, inside};
use super::presence::{Control, VERSION, down_group, host_group, is_link_id, random_id, up_group};
use crate::wire;

/// Clients at once. The little that each may have under way without asking, and the pool for all, fit the queue of the service.
const MAX_PEERS: usize = 128;
/// Clients of one user at once, so that one user cannot take the places of all.
const MAX_PEERS_OF_USER: usize = 32;
/// Clients that wait to be accepted.
const MAX_WAITING: usize = 16;
/// The close code when there are too many clients.
const TRY_AGAIN: u16 = 1013;
/// The close code for a client that speaks another version.
const OTHER_VERSION: u16 = 1002;
/// How long to wait before connecting again; doubled each time.
const BACKOFF: Duration = Duration::from_millis(500);
/// The longest time to wait.
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Accepts the clients of a host in a hub.
#[derive(Debug)]
pub struct WebPubSubAcceptor {
    accepted: mpsc::Receiver<ExternalPeer>,
}

impl WebPubSubAcceptor {
    /// Connects to the hub, and waits for clients there. Frames of at most `cap` bytes are sent, with all that is around them. `dialer`
    /// opens the WebSocket: its TLS, its proxy and its keepalive are used. When the connection is lost later, it is made again.
    ///
    /// # Errors
    /// The hub cannot be reached, or refuses us.
    pub async fn start(address: WebPubSubAddress, dialer: &Dialer, cap: u64) -> Result<Self, DialError> {
        Self::begin(address, dialer, cap).await.map_err(|error| match error {
            HubError::Dial(error) => error,
            error => DialError::External { scheme: "webpubsub", cause: Box::new(error) },
        })
    }

    async fn begin(address: WebPubSubAddress, dialer: &Dialer, cap: u64) -> Result<Self, HubError> {
        let user = address.user().unwrap_or("host").to_owned();
        let roles = vec!["webpubsub.joinLeaveGroup".to_owned(), "webpubsub.sendToGroup".to_owned()];
        let dialer = web_socket_dialer(dialer, cap);
        let config = Arc::new(HubConfig { address: address.clone(), dialer, user, roles });
        let mut hub = HubConnection::connect(Arc::clone(&config)).await?;
        let group = host_group(address.host());
        hub.request(About::Join(None), Act::Join(group.as_str().into()));
        loop {
            match std::future::poll_fn(|cx| hub.poll(cx, || None)).await {
                HubEvent::Acked { about: About::Join(None), result: Ok(()) } => break,
                HubEvent::Acked { result: Err(name), .. } => {
                    return Err(HubError::Refused { what: "to join the group of the host", name });
                }
                HubEvent::Ended(error) => return Err(error),
                HubEvent::Lost => return Err(HubError::NotRecovered),
                HubEvent::Text { .. } | HubEvent::Acked { .. } => {}
            }
        }
        let (sender, accepted) = mpsc::channel(MAX_WAITING);
        let instance = random_id()?;
        let task = HostTask {
            hub,
            config,
            host: address.host().to_owned(),
            group,
            instance,
            cap,
            peers: Peers::default(),
            clients: HashMap::new(),
            by_group: HashMap::new(),
            accepted: Some(sender),
        };
        tokio::spawn(task.run());
        Ok(Self { accepted })
    }
}

impl Acceptor for WebPubSubAcceptor {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<ExternalPeer>> {
        self.accepted.poll_recv(cx)
    }
}

/// The task of a host's hub connection.
struct HostTask {
    hub: HubConnection,
    config: Arc<HubConfig>,
    host: String,
    /// The group of the host.
    group: String,
    instance: String,
    cap: u64,
    peers: Peers,
    clients: HashMap<PeerId, ClientEntry>,
    /// Peers by the group in which we listen for them.
    by_group: HashMap<String, PeerId>,
    /// `None` when no more clients are accepted.
    accepted: Option<mpsc::Sender<ExternalPeer>>,
}

/// What is known about a client.
struct ClientEntry {
    link: String,
    user: Option<String>,
    /// What it may send at first.
    grant: u64,
    /// The link to it, until somebody has accepted it.
    waiting: Option<Arc<Peer>>,
}

/// What the task has to do.
enum AcceptorEvent {
    Hub(HubEvent),
    Tick,
    /// Nobody accepts clients any more.
    Unwanted,
}

impl HostTask {
    async fn run(mut self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.accepted.is_some() || !self.clients.is_empty() {
            let accepted = self.accepted.clone();
            let unwanted = async {
                match accepted {
                    Some(accepted) => accepted.closed().await,
                    None => std::future::pending().await,
                }
            };
            let (hub, peers) = (&mut self.hub, &mut self.peers);
            let work = std::future::poll_fn(|cx| {
                peers.work(hub, cx);
                hub.poll(cx, || peers.next_frame()).map(AcceptorEvent::Hub)
            });
            let task = tokio::select! {
                biased;
                task = work => task,
                _ = ticks.tick() => AcceptorEvent::Tick,
                () = unwanted => AcceptorEvent::Unwanted,
            };
            match task {
                AcceptorEvent::Hub(HubEvent::Text { group, user, data }) => self.receive(&group, user, &data),
                AcceptorEvent::Hub(HubEvent::Acked { about, result }) => self.note_acked(about, result),
                AcceptorEvent::Hub(HubEvent::Lost) => {
                    tracing::debug!("the WebSocket to the hub is lost");
                    match self.hub.recover().await {
                        Ok(()) => self.peers.forgive_silence(),
                        Err(error) => self.begin_again(&error).await,
                    }
                }
                AcceptorEvent::Hub(HubEvent::Ended(error)) => self.begin_again(&error).await,
                AcceptorEvent::Tick => self.peers.tick(&mut self.hub),
                AcceptorEvent::Unwanted => {
                    self.accepted = None;
                    self.hub.request(About::Other, Act::Leave(self.group.as_str().into()));
                }
            }
            self.forget_ended();
        }
        let peers = &mut self.peers;
        self.hub.close(|id| peers.note_closed(id)).await;
        self.peers.lose_all();
    }

    fn receive(&mut self, group: &str, user: Option<String>, data: &bytes::Bytes) {
        if group == self.group {
            let inside = data.get(1..data.len().saturating_sub(1)).unwrap_or_default();
            if let Some(super::presence::Payload::Control(Control::Hello { version, link, grant })) =
                super::presence::Payload::parse(inside)
            {
                self.hello(version, link, grant, user);
            }
            return;
        }
        let Some(id) = self.by_group.get(group).copied() else { return };
        // Nobody else may speak for a client.
        if self.clients.get(&id).is_some_and(|client| client.user == user) {
            drop(self.peers.receive(&mut self.hub, id, data));
        }
    }

    /// A client wants a link.
    fn hello(&mut self, version: u32, link: String, grant: u64, user: Option<String>) {
        if !is_link_id(&link) {
            return;
        }
        let up = up_group(&self.host, &link);
        if let Some(id) = self.by_group.get(&up).copied() {
            // It has not heard our welcome yet. The first one may be on its way.
            if self.clients.get(&id).is_some_and(|client| client.waiting.is_none()) {
                self.welcome(id);
            }
            return;
        }
        let of_user = self.clients.values().filter(|client| client.user == user).count();
        let refusal = match version {
            VERSION if self.accepted.is_none() => Some((1001, "the host is stopping")),
            VERSION if self.peers.len() >= MAX_PEERS => Some((TRY_AGAIN, "too many clients")),
            VERSION if of_user >= MAX_PEERS_OF_USER => Some((TRY_AGAIN, "too many clients of one user")),
            VERSION => None,
            _ => Some((OTHER_VERSION, "the host speaks another version")),
        };
        let down = down_group(&self.host, &link);
        if let Some((code, text)) = refusal {
            tracing::debug!(code, text, "a client was refused");
            return self.say_to_group(&down, &Control::Close { code, text: text.to_owned() });
        }
        let (peer, ours) = self.peers.add(&down, grant, false);
        let id = peer.id;
        self.hub.request(About::Join(Some(id)), Act::Join(up.as_str().into()));
        self.by_group.insert(up, id);
        self.clients.insert(id, ClientEntry { link, user, grant: ours, waiting: Some(peer) });
    }

    fn say_to_group(&mut self, group: &str, control: &Control) {
        self.hub.request(About::Other, Act::Send(wire::quoted(group).into(), inside(control)));
    }

    fn welcome(&mut self, id: PeerId) {
        if let Some(client) = self.clients.get(&id) {
            let welcome = Control::Welcome { instance: self.instance.clone(), grant: client.grant };
            self.peers.say(&mut self.hub, id, &welcome);
        }
    }

    fn note_acked(&mut self, about: About, result: Result<(), String>) {
        match (about, result) {
            (About::Join(Some(id)), Ok(())) => self.accept(id),
            (About::Closing(id), _) => self.peers.note_closed(id),
            (_, Ok(())) => {}
            (About::Join(Some(id)) | About::Peer(id), Err(name)) => {
                self.peers.end(&mut self.hub, id, PeerEnd::Broken(format!("the service refused a request: {name}")));
            }
            (About::Join(None) | About::Other, Err(name)) => tracing::warn!(name, "the service refused a request"),
        }
    }

    /// We listen for the client: from now on it has its link.
    fn accept(&mut self, id: PeerId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(peer) = client.waiting.take() else { return };
        let capacity = capacity(self.cap, &down_group(&self.host, &client.link), self.hub.user());
        let principal = client.user.as_ref().map(|user| Arc::from(format!("user:{user}")));
        let name = client.user.clone().unwrap_or_else(|| "webpubsub".to_owned());
        let link = Box::new(PeerLink::new(peer, capacity, None));
        let sent = self
            .accepted
            .as_ref()
            .is_some_and(|accepted| accepted.try_send(ExternalPeer { link, name, principal }).is_ok());
        if sent {
            self.welcome(id);
        } else {
            let (code, text) = (TRY_AGAIN, "too many clients at once".to_owned());
            self.peers.say(&mut self.hub, id, &Control::Close { code, text: text.clone() });
            self.peers.end(&mut self.hub, id, PeerEnd::Closed { code, text });
        }
    }

    /// Leaves the groups of peers that have ended.
    fn forget_ended(&mut self) {
        for id in self.peers.take_ended() {
            let Some(client) = self.clients.remove(&id) else { continue };
            let up = up_group(&self.host, &client.link);
            self.by_group.remove(&up);
            self.hub.request(About::Other, Act::Leave(up.into()));
        }
    }

    /// The connection is lost for good: all links end, and a new connection is made. Clients are told as soon as that works.
    async fn begin_again(&mut self, error: &HubError) {
        tracing::warn!(%error, "the connection to the hub is lost, with all its links");
        let lost: Vec<String> = self.clients.values().map(|client| client.link.clone()).collect();
        self.peers.lose_all();
        self.peers.take_ended();
        self.clients.clear();
        self.by_group.clear();
        let mut backoff = BACKOFF;
        while let Some(accepted) = &self.accepted {
            let attempt = tokio::select! {
                attempt = HubConnection::connect(Arc::clone(&self.config)) => attempt,
                () = accepted.closed() => return self.accepted = None,
            };
            match attempt {
                Ok(hub) => {
                    tracing::info!("connected to the hub again");
                    self.hub = hub;
                    self.hub.request(About::Join(None), Act::Join(self.group.as_str().into()));
                    for link in lost {
                        let text = "the host has lost its connection".to_owned();
                        self.say_to_group(&down_group(&self.host, &link), &Control::Close { code: ABNORMAL, text });
                    }
                    return;
                }
                Err(error) => tracing::warn!(%error, "the hub cannot be reached; trying again"),
            }
            tokio::select! {
                () = sleep(backoff) => {}
                () = accepted.closed() => return self.accepted = None,
            }
            backoff = backoff.saturating_mul(2).min(MAX_BACKOFF);
        }
    }
}
