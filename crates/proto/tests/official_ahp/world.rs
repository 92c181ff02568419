//! Puts together an official client, the machines, the link and the model host.

use std::sync::Arc;
use std::time::Duration;

use ahp::hosts::{HostConfig, HostEvent, HostEventStream, HostId, HostSubscriptionStream, MultiHostClient};
use ahp::transport::BoxedTransport;
use ahp::{Client, ClientConfig, SubscriptionEvent, TransportError};
use ahp_types::actions::ActionEnvelope;
use breakbulk_proto::ahp::{Config, Connection, Delivery, Negotiated, Role};
use breakbulk_proto::{Budget, BudgetConfig, Limits, LimitsConfig};

use super::driver::{self, Port, Tape};
use super::host::Host;
use super::link::Line;

/// How the two sides are set up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// The most bytes of a frame that the link takes.
    pub(crate) cap: u64,
    /// Whether the machines are told of the cap; else it is only what each side advertises.
    pub(crate) told: bool,
    /// Whether the client's side knows segments.
    pub(crate) client: bool,
    /// Whether the host's side does.
    pub(crate) host: bool,
    pub(crate) delivery: Delivery,
}

impl Setup {
    /// Both sides know segments, and the link's cap.
    pub(crate) fn with_cap(cap: u64) -> Self {
        Self { cap, told: true, client: true, host: true, delivery: Delivery::StartOrder }
    }
}

/// One host, one client, and what is between them.
#[derive(Clone)]
pub(crate) struct World {
    setup: Setup,
    pub(crate) line: Line,
    pub(crate) host: Host,
    pub(crate) client_tape: Tape,
    pub(crate) host_tape: Tape,
    client_memory: Negotiated,
    host_memory: Negotiated,
    budget: Budget,
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        Self {
            setup,
            line: Line::new(usize::try_from(setup.cap).unwrap()),
            host: Host::default(),
            client_tape: Tape::default(),
            host_tape: Tape::default(),
            client_memory: Negotiated::default(),
            host_memory: Negotiated::default(),
            budget: Budget::default(),
        }
    }

    /// Both sides forget what they negotiated, as programs that restart do.
    pub(crate) fn forget(&mut self) {
        (self.client_memory, self.host_memory) = (Negotiated::default(), Negotiated::default());
    }

    /// A new link to the host, and what the official client is to be given for it.
    pub(crate) fn connect(&self) -> Port {
        let (near, far) = self.line.open();
        let cap = self.setup.told.then_some(self.setup.cap);
        let host = match self.setup.host {
            true => driver::drive(self.machine(Role::Server), cap, far, self.host_tape.clone()),
            false => driver::pass(far, self.host_tape.clone()),
        };
        self.host.serve(host);
        match self.setup.client {
            true => driver::drive(self.machine(Role::Client), cap, near, self.client_tape.clone()),
            false => driver::pass(near, self.client_tape.clone()),
        }
    }

    /// The official client, connected and initialized, with these subscriptions.
    pub(crate) async fn client(&self, subscriptions: &[&str]) -> Client {
        let client = Client::connect(self.connect(), ClientConfig::default()).await.unwrap();
        let (versions, uris) = (offered(), owned(subscriptions));
        client.initialize("one-client".into(), versions, uris).await.unwrap();
        client
    }

    /// The official client of many hosts, which reconnects by itself, connected to this one.
    pub(crate) async fn multi(&self, subscriptions: &[&str]) -> Multi {
        self.multi_with(subscriptions, ClientConfig::default()).await
    }

    /// The same, set up in another way.
    pub(crate) async fn multi_with(&self, subscriptions: &[&str], config: ClientConfig) -> Multi {
        let world = Arc::new(std::sync::Mutex::new(self.clone()));
        let opener = Arc::clone(&world);
        let open = move |_: HostId| {
            let port = opener.lock().unwrap().connect();
            async move { Ok::<_, TransportError>(BoxedTransport::new(port)) }
        };
        let host = HostConfig::new("h", "the host", open).with_client_config(config);
        let host = host.with_initial_subscriptions(owned(subscriptions));
        let client = MultiHostClient::new();
        let (actions, mut states) = (client.events(), client.host_events());
        client.add_host(host).await.unwrap();
        connected(&mut states).await;
        Multi { client, actions, states, world }
    }

    fn machine(&self, role: Role) -> Connection {
        let limits = LimitsConfig {
            max_frame_bytes: if self.setup.told { 4 << 20 } else { self.setup.cap },
            ..LimitsConfig::default()
        };
        let limits = Limits::prove(limits, &BudgetConfig::default()).unwrap();
        let mut seed = [role as u8; 32];
        seed[0] = u8::try_from(self.line.connections()).unwrap();
        let mut config = Config::new(role, limits, seed);
        config.delivery = self.setup.delivery;
        config.negotiated = match role {
            Role::Client => self.client_memory.clone(),
            Role::Server => self.host_memory.clone(),
        };
        Connection::new(config, self.budget.account(Some("someone")))
    }
}

/// A `MultiHostClient` with its two streams.
pub(crate) struct Multi {
    pub(crate) client: MultiHostClient,
    actions: HostSubscriptionStream,
    states: HostEventStream,
    /// What the next connection is opened in.
    pub(crate) world: Arc<std::sync::Mutex<World>>,
}

impl Multi {
    /// The next `count` actions.
    pub(crate) async fn actions(&mut self, count: usize) -> Vec<ActionEnvelope> {
        let mut actions = Vec::new();
        while actions.len() < count {
            let event = soon(self.actions.recv()).await.expect("an action").expect("the client lives");
            match event.event {
                SubscriptionEvent::Action(envelope) => actions.push(envelope),
                other => panic!("unexpected: {other:?}"),
            }
        }
        actions
    }

    /// Asserts that nothing more comes.
    pub(crate) async fn is_quiet(&mut self) {
        let more = soon(self.actions.recv()).await;
        assert!(more.is_none(), "nothing more was sent: {:?}", more.flatten().map(|event| event.channel));
    }

    /// Waits until it has connected once more; its cursor then.
    pub(crate) async fn connected(&mut self) -> i64 {
        connected(&mut self.states).await;
        self.client.host(&HostId::new("h")).await.unwrap().server_seq
    }
}

/// Waits while anything can happen: the clock is paused, so the hour passes when all tasks wait and no sooner.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(3600), future).await.ok()
}

pub(crate) fn offered() -> Vec<String> {
    owned(ahp_types::SUPPORTED_PROTOCOL_VERSIONS)
}

pub(crate) fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

async fn connected(states: &mut HostEventStream) {
    loop {
        let event = soon(states.recv()).await.expect("a connection").expect("the client lives");
        if matches!(event, HostEvent::Connected { .. }) {
            return;
        }
    }
}
