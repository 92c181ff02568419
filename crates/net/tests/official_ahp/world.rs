//! Puts together an official client, our transport for it, a link and the model host.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp::hosts::{HostConfig, HostEvent, HostEventStream, HostId, HostSubscriptionStream, MultiHostClient};
use ahp::transport::BoxedTransport;
use ahp::{Client, ClientConfig, SubscriptionEvent, TransportError};
use ahp_types::actions::ActionEnvelope;
use breakbulk::ahp::{Ended, Negotiated, Segmented};
use breakbulk::link::{self, Link};
use breakbulk::{AccessPolicy, Dialect, ListenConfig, Listener, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Capacity, Limits};

use super::driver::{self, Line};
use super::host::Host;
use super::recorded_link::Tape;

/// One host, one client, and what is between them. Cloning shares it.
#[derive(Clone)]
pub(crate) struct World {
    cap: u64,
    /// What the host's side remembers, if it knows segments at all.
    host_memory: Option<Negotiated>,
    client_memory: Negotiated,
    pub(crate) host: Host,
    pub(crate) tape: Tape,
    pub(crate) budget: Budget,
    /// The newest connection, from the host's side.
    line: Arc<Mutex<Option<Line>>>,
    /// How each connection of the client ended.
    pub(crate) ended: Arc<Mutex<Vec<Ended>>>,
}

impl World {
    pub(crate) fn new(cap: u64) -> Self {
        Self {
            cap,
            host_memory: Some(Negotiated::default()),
            client_memory: Negotiated::default(),
            host: Host::default(),
            tape: Tape::default(),
            budget: Budget::default(),
            line: Arc::default(),
            ended: Arc::default(),
        }
    }

    /// A host that has never heard of segments, with nothing in front of it that has.
    pub(crate) fn with_old_host(cap: u64) -> Self {
        Self { host_memory: None, ..Self::new(cap) }
    }

    /// A new link to the host inside the process, and what the official client is to be given for it.
    pub(crate) fn connect(&self) -> Segmented {
        let (near, far) = link::pair(&Capacity::of(self.cap), 2);
        self.serve(far);
        let account = self.budget.account(Some("the host"));
        let near = self.tape.watch(near);
        let transport = Segmented::charged_to(account, near, Limits::default(), self.client_memory.clone());
        self.ended.lock().unwrap().push(transport.ended());
        transport
    }

    /// Serves one end of a link as the host.
    pub(crate) fn serve<L: Link + 'static>(&self, link: L) {
        let dialect = if self.host_memory.is_some() { Dialect::Ahp } else { Dialect::Plain };
        let mut setup = Setup::new(dialect, Role::Server, Limits::default());
        setup.negotiated = self.host_memory.clone().unwrap_or_default();
        let machine = setup.machine(Budget::default().account(Some("someone"))).unwrap();
        let (port, line) = driver::drive(link, machine);
        self.host.serve(port);
        *self.line.lock().unwrap() = Some(line);
    }

    /// Listens on loopback, and serves whoever comes, one after the other. The URL to connect to.
    pub(crate) async fn listen(&self) -> String {
        let mut config = ListenConfig::new(([127, 0, 0, 1], 0).into(), AccessPolicy::open());
        config.link.cap = self.cap;
        let mut listener = Listener::bind(config).await.unwrap();
        let url = format!("ws://{}/", listener.local_address());
        let world = self.clone();
        tokio::spawn(async move {
            loop {
                world.serve(listener.accept().await.link);
            }
        });
        url
    }

    /// Does something to the newest connection, from the host's side.
    pub(crate) fn line(&self, act: impl FnOnce(&Line)) {
        act(self.line.lock().unwrap().as_ref().expect("a connection"));
    }

    /// The official client, connected and initialized.
    pub(crate) async fn client(&self) -> Client {
        client_on(self.connect()).await
    }

    /// The official client of many hosts, which reconnects by itself, connected to this one.
    pub(crate) async fn multi(&self, subscriptions: &[&str]) -> Multi {
        self.multi_with(subscriptions, ClientConfig::default()).await
    }

    /// The same, set up in another way.
    pub(crate) async fn multi_with(&self, subscriptions: &[&str], config: ClientConfig) -> Multi {
        let world = self.clone();
        let open = move |_: HostId| {
            let transport = world.connect();
            async move { Ok::<_, TransportError>(BoxedTransport::new(transport)) }
        };
        let host = HostConfig::new("h", "the host", open).with_client_config(config);
        let host = host.with_initial_subscriptions(owned(subscriptions));
        let client = MultiHostClient::new();
        let (actions, mut states) = (client.events(), client.host_events());
        client.add_host(host).await.unwrap();
        connected(&mut states).await;
        Multi { client, actions, states }
    }
}

/// A `MultiHostClient` with its two streams.
pub(crate) struct Multi {
    pub(crate) client: MultiHostClient,
    actions: HostSubscriptionStream,
    states: HostEventStream,
}

impl Multi {
    /// The next `count` actions.
    pub(crate) async fn actions(&mut self, count: usize) -> Vec<ActionEnvelope> {
        let mut actions = Vec::new();
        while actions.len() < count {
            let event = soon(self.actions.recv()).await.expect("the client lives");
            match event.event {
                SubscriptionEvent::Action(envelope) => actions.push(envelope),
                other => panic!("unexpected: {other:?}"),
            }
        }
        actions
    }

    /// Waits until it has connected once more.
    pub(crate) async fn connected(&mut self) {
        connected(&mut self.states).await;
    }
}

/// The official client on a transport, initialized.
pub(crate) async fn client_on(transport: impl ahp::Transport) -> Client {
    let client = Client::connect(transport, ClientConfig::default()).await.unwrap();
    client.initialize("one-client".into(), offered(), vec![]).await.unwrap();
    client
}

/// What happens within a minute.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it happens within a minute")
}

pub(crate) fn offered() -> Vec<String> {
    owned(ahp_types::SUPPORTED_PROTOCOL_VERSIONS)
}

pub(crate) fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

async fn connected(states: &mut HostEventStream) {
    while !matches!(soon(states.recv()).await.expect("the client lives"), HostEvent::Connected { .. }) {}
}
