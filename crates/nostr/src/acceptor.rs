//! The server's side: each client that speaks to our key gets a link of its own, up to a bound.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk::Dialer;
use breakbulk::external::{Acceptor, ExternalPeer};
use breakbulk_proto::{Envelope, Kind, Message};
use nostr::PublicKey;
use nostr::nips::nip19::ToBech32;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, interval};
use tracing::{info, warn};

use crate::address::NostrAddress;
use crate::announcement::Announcer;
use crate::connector::NostrError;
use crate::event::{Incoming, Outgoing, Seal};
use crate::inbox::{InboxSender, inbox};
use crate::key_file::{self, KeyFile};
use crate::link::{NostrLink, Side};
use crate::pool::{Pool, PoolState, Router};
use crate::publication::Publication;

/// How often silent clients are looked for.
const SWEEP: Duration = Duration::from_secs(5);
/// When the table is full, the client that has been silent longest has to go, if it has been so for this long.
const MAY_GO: Duration = Duration::from_secs(60);

/// Accepts clients over relays.
pub struct NostrAcceptor {
    pool: Arc<Pool>,
    clients: Arc<Clients>,
    newcomers: mpsc::UnboundedReceiver<Newcomer>,
    announcer: Option<Announcer>,
    sweep: Interval,
}

/// A client whose link is to be made.
struct Newcomer {
    key: PublicKey,
    seal: Seal,
    parts: (InboxSender, crate::inbox::Inbox),
}

impl NostrAcceptor {
    /// Connects to the relays. Returns also what a person has to know to connect.
    ///
    /// # Errors
    /// The address has no key file, or it cannot be used. That a relay cannot be reached is no error: it is tried again.
    pub async fn new(address: NostrAddress, dialer: Dialer, cap: u64) -> Result<(Self, Vec<String>), NostrError> {
        let path = address.listening_key()?;
        let (keys, how) = key_file::load(path)?;
        let mut notes = Vec::new();
        if how == KeyFile::Created {
            let path = path.display();
            notes.push(format!("made a new key in {path}: keep it secret, it is the server's identity"));
        }
        let public = keys.public_key();
        let relays: Vec<_> = address.relays.iter().map(|relay| relay.address.to_string()).collect();
        let relays = relays.join(",");
        notes.push(format!("listening on nostr:{relays}?server={}", public.to_hex()));
        if address.allow.is_none() {
            notes.push("every client that knows the public key can connect: allow=PUBKEY lets only some in".into());
        }
        let (arrived, newcomers) = mpsc::unbounded_channel();
        let clients = Arc::new(Clients {
            allow: address.allow.clone(),
            is_announced: address.announce.is_some(),
            max: address.max_clients,
            idle: address.idle,
            table: Mutex::default(),
            arrived,
        });
        let pool = Pool::start(&address, &dialer, keys, cap, Box::new(Arc::clone(&clients)));
        if let Err(error) = pool.ready().await {
            warn!("no relay can be reached yet: {error}");
        }
        let urls: Vec<_> = address.relays.iter().map(|relay| relay.url.to_string()).collect();
        let announcer = address.announce.clone().map(|profile| Announcer::new(Arc::clone(&pool), profile, urls));
        let npub = public.to_bech32().unwrap_or_default();
        info!(public_key = public.to_hex(), npub, "offering a server");
        Ok((Self { pool, clients, newcomers, announcer, sweep: interval(SWEEP) }, notes))
    }
}

impl Acceptor for NostrAcceptor {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<ExternalPeer>> {
        while self.sweep.poll_tick(cx).is_ready() {
            self.clients.sweep();
        }
        // Events do not wait long for a relay. The next sweep looks again.
        let announcer = self.announcer.as_mut().filter(|_| self.pool.shared.is_connected());
        if let Some(link) = announcer.and_then(Announcer::take_link) {
            let name = "announcement".to_owned();
            return Poll::Ready(Some(ExternalPeer { link, name, principal: None }));
        }
        self.newcomers.poll_recv(cx).map(|newcomer| {
            let Newcomer { key, seal, parts } = newcomer?;
            let link = NostrLink::new(Arc::clone(&self.pool), key, Side::Server, parts, seal);
            let name = key.to_hex();
            Some(ExternalPeer { link: Box::new(link), principal: Some(name.as_str().into()), name })
        })
    }
}

/// The clients that have a session.
struct Clients {
    allow: Option<HashSet<PublicKey>>,
    is_announced: bool,
    max: usize,
    idle: Duration,
    table: Mutex<HashMap<PublicKey, Client>>,
    arrived: mpsc::UnboundedSender<Newcomer>,
}

struct Client {
    inbox: InboxSender,
    heard: Instant,
    /// How many messages of its session have come.
    messages: u64,
}

impl Router for Arc<Clients> {
    fn route(&self, message: Incoming, pool: &PoolState) {
        let key = message.from;
        if self.allow.as_ref().is_some_and(|allow| !allow.contains(&key)) {
            if let Some(permit) = pool.log.permit("not-allowed") {
                let left_out = permit.left_out();
                warn!(client = key.to_hex(), left_out, "a client that is not allowed was refused");
            }
            // A server that does not announce itself does not tell strangers that it is there.
            if self.is_announced {
                answer(&message, pool, "this server does not take requests of your key");
            }
            return;
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, client| !client.inbox.is_abandoned());
        // A client that begins anew gets a new session: its server may not take a second `initialize`.
        if table.get(&key).is_some_and(|client| client.messages > 0)
            && is_initialize(&message)
            && let Some(client) = table.remove(&key)
        {
            client.inbox.end("the client has begun a new session");
        }
        if !table.contains_key(&key) && !evict_idle_client(&mut table, self.max) {
            drop(table);
            if let Some(permit) = pool.log.permit("too-many-clients") {
                let (limit, left_out) = (self.max, permit.left_out());
                warn!(limit, left_out, "a client was refused: too many have a session (max_clients)");
            }
            return answer(&message, pool, "too many clients have a session: try again later");
        }
        let seal = message.seal;
        let client = table.entry(key).or_insert_with(|| {
            let parts = inbox();
            let client = Client { inbox: parts.0.clone(), heard: Instant::now(), messages: 0 };
            // Fails only if nobody accepts any more.
            let _ = self.arrived.send(Newcomer { key, seal, parts });
            client
        });
        client.heard = Instant::now();
        client.messages = client.messages.saturating_add(1);
        if client.inbox.message(message).is_err()
            && let Some(permit) = pool.log.permit("inbox-full")
        {
            let left_out = permit.left_out();
            warn!(client = key.to_hex(), left_out, "a message was dropped: too many of its client wait to be read");
        }
    }
}

impl Clients {
    /// Ends the sessions of clients that have been silent for too long.
    fn sweep(&self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, client| {
            let is_idle = client.heard.elapsed() >= self.idle;
            if is_idle {
                client.inbox.end("the client has been silent for too long");
            }
            !is_idle && !client.inbox.is_abandoned()
        });
    }
}

/// Makes room for a client. Returns whether there is any.
fn evict_idle_client(table: &mut HashMap<PublicKey, Client>, max: usize) -> bool {
    if table.len() < max {
        return true;
    }
    let longest = table.iter().min_by_key(|(_, client)| client.heard);
    let Some(key) = longest.filter(|(_, client)| client.heard.elapsed() >= MAY_GO).map(|(key, _)| *key) else {
        return false;
    };
    if let Some(client) = table.remove(&key) {
        client.inbox.end("another client needs the place of one that was silent");
    }
    true
}

fn is_initialize(message: &Incoming) -> bool {
    let text = Message::from(message.text.clone());
    Envelope::of(&text).is_ok_and(|envelope| {
        envelope.kind() == Kind::Request && envelope.method(&text).is_some_and(|method| method == "initialize")
    })
}

/// Answers a request of a client that gets no session.
fn answer(message: &Incoming, pool: &PoolState, why: &str) {
    let text = Message::from(message.text.clone());
    let Ok(envelope) = Envelope::of(&text) else { return };
    let (Kind::Request, Some(id)) = (envelope.kind(), envelope.id(&text)) else { return };
    let Ok(id) = std::str::from_utf8(&id) else { return };
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"{why}"}}}}"#);
    let event = Outgoing::message(&pool.keys, message.from, &answer, Some(&message.name), &[], message.seal);
    if let Ok(event) = event {
        pool.publish(&Publication::new(event, false, None, pool.relay_count()));
    }
}
