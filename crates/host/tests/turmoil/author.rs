//! A client that dispatches and follows, made with our own `Client`: it reconnects by itself.

use std::sync::Arc;
use std::time::Duration;

use breakbulk::client::{Client, Config, ConnectError, Event, Events, LossReason, RequestError, State};
use breakbulk_proto::Budget;
use serde_json::json;
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;

use crate::sim::actions;
use crate::sim::client_run::{Dispatched, Fate};
use crate::sim::host::{HOST, PORT};
use crate::sim::ledger::digest;
use crate::sim::shared::{ClientLink, Shared};

/// How long a connection may take to come up.
pub(crate) const DIAL_TIME: Duration = Duration::from_secs(2);
/// There is a session, or a chat, with this name.
const EXISTS: [i64; 2] = [-32003, -32010];

/// Lives until it crashes.
pub(crate) async fn live(shared: Arc<Shared>, at: usize) -> turmoil::Result {
    let mut wanted = shared.plan.channels();
    wanted.push("ahp-root://".into());
    let life = shared.born(at, wanted, false);
    let config = config(&shared, life);
    let dialing = Arc::clone(&shared);
    let dial = move || {
        let shared = Arc::clone(&dialing);
        async move { dial(&shared).await }
    };
    let (client, events) = Client::start(dial, config);
    let author = Author { shared, at, life };
    tokio::task::spawn_local(begin(Arc::clone(&author.shared), client.clone(), at));
    author.work(client, events).await
}

pub(crate) async fn dial(shared: &Shared) -> Result<ClientLink, ConnectError> {
    let dialed = timeout(DIAL_TIME, TcpStream::connect((HOST, PORT))).await;
    let io = dialed.map_err(ConnectError::again)??;
    Ok(shared.link("author", io))
}

fn config(shared: &Shared, life: usize) -> Config {
    let facts = &mut *shared.facts();
    let mut config = Config::new(facts.runs[life].id.clone());
    config.limits = shared.plan.limits();
    config.budget = Budget::new(shared.plan.budget());
    config.seed = Some(facts.rng.next());
    (config.retry_base, config.retry_cap) = (Duration::from_millis(50), Duration::from_secs(1));
    config.connect_timeout = Duration::from_secs(5);
    config.max_events = facts.rng.pick(&[1, 16, 256]);
    config
}

/// Makes what is not there yet, and follows all of it. Nothing of that is given up.
async fn begin(shared: Arc<Shared>, client: Client, at: usize) {
    for n in 0..shared.plan.sessions {
        let session = format!("ahp-session:/{n}");
        insist(|| client.request("createSession", json!({"channel": session}).to_string())).await;
        let chat = json!({"channel": session, "chat": format!("ahp-chat:/{n}")}).to_string();
        insist(|| client.request("createChat", chat.clone())).await;
    }
    shared.facts().is_founded = true;
    insist(|| client.subscribe("ahp-root://")).await;
    for channel in shared.plan.channels() {
        insist(|| client.subscribe(&channel)).await;
    }
    shared.facts().clients[at].is_ready = true;
    shared.changed.notify_waiters();
}

async fn insist<T, F: Future<Output = Result<T, RequestError>>>(ask: impl Fn() -> F) {
    loop {
        match ask().await {
            Ok(_) => return,
            Err(RequestError::Remote { code, .. }) if EXISTS.contains(&code) => return,
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

struct Author {
    shared: Arc<Shared>,
    at: usize,
    life: usize,
}

impl Author {
    async fn work(self, client: Client, mut events: Events) -> turmoil::Result {
        loop {
            self.dispatch(&client).await;
            let stall = self.shared.facts().clients[self.at].stall.take();
            sleep(stall.unwrap_or_default()).await;
            tokio::select! {
                event = events.next() => self.hear(event.ok_or_else(|| self.ended(&client))?),
                () = self.shared.changed.notified() => {}
            }
        }
    }

    /// Dispatches what is to be dispatched, once it follows everything: elsewhere nobody would show it what became of it.
    async fn dispatch(&self, client: &Client) {
        loop {
            let (channel, action, text) = {
                let facts = &mut *self.shared.facts();
                let client = &mut facts.clients[self.at];
                let next = if client.is_ready { client.todo.pop_front() } else { None };
                let Some((channel, len)) = next else { return };
                let name = format!("#{}", facts.number());
                let text = format!("{name} {}", facts.rng.text(len));
                let action = actions::with_text(&channel, &name, &text).to_string();
                facts.tally.one("actions dispatched");
                (channel, action, digest(text.as_bytes()))
            };
            let number = client.dispatch(&channel, action).await.unwrap();
            let dispatched = Dispatched { text, fate: Fate::Open };
            self.shared.facts().runs[self.life].dispatched.insert(number, dispatched);
        }
    }

    fn hear(&self, event: Event) {
        let facts = &mut *self.shared.facts();
        let told = &mut facts.runs[self.life];
        match event {
            Event::Started { .. } => told.follower.channels.values_mut().for_each(|followed| followed.is_void = true),
            Event::Snapshot { snapshot, .. } => drop(told.follower.snapshot(&snapshot.to_bytes())),
            Event::Action { own, envelope, .. } => {
                let envelope = envelope.to_bytes();
                let is_refused = envelope.ends_with(b"\"}") && is_refusal(&envelope);
                if let Some(own) = own.and_then(|own| told.dispatched.get_mut(&own)) {
                    own.fate = if is_refused { Fate::Refused } else { Fate::Shown };
                    facts.tally.one(if is_refused { "actions refused" } else { "actions shown to their sender" });
                }
                if !is_refused {
                    facts.heard(self.life, &envelope);
                }
            }
            Event::Lost(lost) => {
                facts.tally.one("actions of unknown fate");
                if let Some(own) = told.dispatched.get_mut(&lost.client_seq) {
                    own.fate = Fate::Unknown;
                }
                if lost.why != LossReason::Unknown {
                    facts.ledger.lost(format!("{} gives up {}: {:?}", told.id, lost.client_seq, lost.why));
                }
            }
            Event::Missing { channels } => {
                facts.ledger.lost(format!("{}: the host no longer offers {channels:?}", told.id));
            }
            Event::Resumed | Event::Notification { .. } | Event::Request { .. } => {}
            _ => unreachable!("an event that nobody knows"),
        }
    }

    fn ended(&self, client: &Client) -> String {
        let state = client.state().borrow().clone();
        assert!(matches!(state, State::Closed(_)));
        format!("client {} has ended: {state:?}", self.at)
    }
}

/// Whether an envelope is of an action that was refused.
pub(crate) fn is_refusal(envelope: &[u8]) -> bool {
    const REASON: &[u8] = br#""rejectionReason":"#;
    let end = envelope.len().saturating_sub(400);
    envelope[end..].windows(REASON.len()).any(|part| part == REASON)
}
