//! The connection to one relay: subscribed, paced by its confirmations, and made again when it breaks.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk::{Arrival, BoxLink, Dialer};
use breakbulk_proto::{Message, Meta, Refusal, Tag, Transmit};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use nostr::{EventBuilder, EventId, JsonUtil, Timestamp};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, info, warn};

use crate::address::RelayAddress;
use crate::event::{CLOCK_SKEW, EPHEMERAL_WRAP, MESSAGE, WRAP};
use crate::pool::PoolState;
use crate::publication::{Outcome, Publication};
use crate::relay_info;
use crate::relay_message::{Rejection, RelayMessage, refusal};

/// The name of our subscription.
const SUBSCRIPTION: &str = "breakbulk";
/// The longest message of a relay that we accept. Events near 64 KiB are usual, and some relays take a few times that.
const MAX_RELAY_MESSAGE: u64 = 1 << 20;
/// The waits between attempts to connect.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LAST_WAIT: Duration = Duration::from_secs(30);
/// How long a relay that has never confirmed an event has to confirm the first. Then it counts as one that confirms nothing.
const FIRST_CONFIRMATION: Duration = Duration::from_secs(3);
/// How long a relay that has confirmed others has to confirm an event.
const CONFIRMATION: Duration = Duration::from_secs(10);
/// How often an event is sent to a relay at most.
const MAX_TRIES: u32 = 3;
/// How long an event waits while no relay is connected.
const MAX_UNREACHED: Duration = Duration::from_secs(20);
/// How long we wait to hear that the subscription has begun. Some relays do not say it.
const SUBSCRIBED: Duration = Duration::from_secs(2);
/// How long a relay has to tell of its limits.
const INFO: Duration = Duration::from_secs(3);
/// How many events wait to be written, beyond those in the queue.
const MAX_WAITING: usize = 4;
/// How often timeouts are checked.
const TICK: Duration = Duration::from_millis(250);
/// How often a subscription that the relay ends is made again on one connection.
const MAX_RESUBSCRIBES: u32 = 5;
/// The close code for "your message is too big".
const TOO_BIG: u16 = 1009;

/// The task that looks after one relay.
pub(crate) struct RelayTask {
    index: usize,
    relay: RelayAddress,
    dialer: Dialer,
    shared: Arc<PoolState>,
    queue: mpsc::UnboundedReceiver<Arc<Publication>>,
    /// Events that wait for a connection, how often each was sent, and since when it waits.
    unsent: VecDeque<(Arc<Publication>, u32, Instant)>,
    /// Whether the relay confirms events that it stores, and those that it does not.
    stored: Confirming,
    passing: Confirming,
    /// From when on stored events are asked for.
    stored_since: Timestamp,
    has_info: bool,
    wait: Duration,
}

/// Whether a relay confirms events of one sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confirming {
    /// Nothing has been sent that it could have confirmed.
    Unknown,
    Yes {
        last: Instant,
    },
    /// It does not, so an event counts as taken when it is written.
    No,
}

/// A connection to the relay.
struct Connection {
    link: BoxLink,
    waiting: VecDeque<QueuedFrame>,
    is_flushed: bool,
    /// Events that the relay has not confirmed.
    outstanding: HashMap<EventId, Outstanding>,
    /// The number of the next event.
    next: u64,
    resubscribe: Option<Instant>,
    resubscribes: u32,
    challenge: Option<String>,
    is_ready: bool,
    begun: Instant,
}

/// What waits to be written.
enum QueuedFrame {
    Text(Bytes),
    Event(Arc<Publication>, u32),
}

/// An event that the relay has not confirmed.
struct Outstanding {
    publication: Arc<Publication>,
    tries: u32,
    sent: Instant,
    number: u64,
}

/// What happened on a connection.
enum Step {
    Written(Arc<Publication>, u32),
    Arrived(Bytes),
    Ended { code: u16, why: String },
}

impl RelayTask {
    pub(crate) fn new(
        index: usize,
        relay: RelayAddress,
        mut dialer: Dialer,
        shared: Arc<PoolState>,
        queue: mpsc::UnboundedReceiver<Arc<Publication>>,
    ) -> Self {
        dialer.link.max_frame_bytes = MAX_RELAY_MESSAGE;
        Self {
            index,
            relay,
            dialer,
            shared,
            queue,
            unsent: VecDeque::new(),
            stored: Confirming::Unknown,
            passing: Confirming::Unknown,
            stored_since: Timestamp::now(),
            has_info: false,
            wait: Duration::ZERO,
        }
    }

    /// Stays connected until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let link = self.connect().await;
            let mut connection = Connection::new(link);
            let (code, why) = self.serve(&mut connection).await;
            self.stored_since = Timestamp::from(Timestamp::now().as_secs().saturating_sub(10));
            self.shared.disconnected(self.index, None);
            warn!(relay = %self.relay.address, code, "the connection to a relay was lost: {why}");
            if connection.begun.elapsed() > LAST_WAIT {
                self.wait = Duration::ZERO;
            }
            self.keep(connection, code == TOO_BIG);
        }
    }

    /// Connects, however often that takes. Events that come meanwhile wait, but not long.
    async fn connect(&mut self) -> BoxLink {
        loop {
            let (dialer, address, wait) = (self.dialer.clone(), self.relay.address.clone(), self.wait);
            let wants_info = !self.has_info;
            let attempt = async move {
                sleep(wait).await;
                let info = async {
                    let info = relay_info::limits(&dialer, &address);
                    if wants_info { timeout(INFO, info).await.ok().flatten() } else { None }
                };
                tokio::join!(dialer.dial(&address), info)
            };
            tokio::pin!(attempt);
            let mut tick = interval(TICK);
            let (dialed, info) = loop {
                tokio::select! {
                    attempt = &mut attempt => break attempt,
                    Some(publication) = self.queue.recv() => self.unsent.push_back((publication, 0, Instant::now())),
                    _ = tick.tick() => {}
                }
                self.give_up();
            };
            if let Some(cap) = info {
                self.has_info = true;
                info!(relay = %self.relay.address, cap, "the relay says how long an event may be");
                self.shared.lower_cap(cap);
            }
            self.wait = (self.wait.saturating_mul(2)).clamp(FIRST_WAIT, LAST_WAIT).mul_f64(jitter());
            match dialed {
                Ok(link) => return link,
                Err(error) => {
                    warn!(relay = %self.relay.address, "a relay cannot be reached: {error}");
                    self.shared.disconnected(self.index, Some(error));
                }
            }
        }
    }

    /// Gives up events that wait for this relay although another one is there, or for too long.
    fn give_up(&mut self) {
        let has_other = self.shared.has_other_than(self.index);
        self.unsent.retain(|(publication, _, since)| {
            let stays = !has_other && since.elapsed() < MAX_UNREACHED;
            if !stays {
                publication.settle(Outcome::Refused(Refusal::Other));
            }
            stays
        });
    }

    /// Keeps what a broken connection has not confirmed, to be sent again. A request is not sent again, because a server may run it
    /// twice. If the relay closed the connection because of a size, the longest event was too large, and so are those like it.
    fn keep(&mut self, connection: Connection, is_too_big: bool) {
        let mut outstanding: Vec<_> = connection.outstanding.into_values().collect();
        outstanding.sort_unstable_by_key(|sent| sent.number);
        let longest = outstanding.iter().map(|sent| sent.publication.event.frame.len()).max().filter(|_| is_too_big);
        let is_too_long = |publication: &Publication| {
            longest.is_some_and(|longest| publication.event.frame.len() >= longest.saturating_sub(longest / 8))
        };
        // What was never written may be a request, and be sent later.
        let written = outstanding.into_iter().map(|sent| (sent.publication, sent.tries, true));
        let waiting = connection.waiting.into_iter().filter_map(|waiting| match waiting {
            QueuedFrame::Event(publication, tries) => Some((publication, tries, false)),
            QueuedFrame::Text(_) => None,
        });
        let mut all: Vec<_> = written.chain(waiting).collect();
        // What else is so long would close the next connection.
        while let Ok(publication) = self.queue.try_recv() {
            all.push((publication, 0, false));
        }
        let now = Instant::now();
        for (publication, tries, is_written) in all {
            if is_too_long(&publication) {
                publication.settle(Outcome::Refused(Refusal::TooLarge));
            } else if is_written && (publication.is_request || tries >= MAX_TRIES) {
                publication.settle(Outcome::Refused(Refusal::Other));
            } else {
                self.unsent.push_back((publication, tries, now));
            }
        }
    }

    /// Serves a connection until it ends. Returns its close code, and why it ended.
    async fn serve(&mut self, connection: &mut Connection) -> (u16, String) {
        self.subscribe(connection);
        let unsent = self.unsent.drain(..).map(|(publication, tries, _)| QueuedFrame::Event(publication, tries));
        connection.waiting.extend(unsent);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let step = tokio::select! {
                step = poll_fn(|cx| connection.poll(cx)) => step,
                Some(publication) = self.queue.recv(), if connection.waiting.len() < MAX_WAITING => {
                    connection.waiting.push_back(QueuedFrame::Event(publication, 0));
                    continue;
                }
                _ = tick.tick() => {
                    if let Some(why) = self.check_time(connection) {
                        return (1006, why);
                    }
                    continue;
                }
            };
            match step {
                Step::Written(publication, tries) => self.written(connection, publication, tries),
                Step::Arrived(bytes) => match RelayMessage::read(&bytes) {
                    Some(message) => self.hear(connection, message),
                    None => debug!(relay = %self.relay.address, "the relay sent something that is no message"),
                },
                Step::Ended { code, why } => return (code, why),
            }
        }
    }

    fn hear(&mut self, connection: &mut Connection, message: RelayMessage) {
        match message {
            RelayMessage::Event(event) => self.shared.receive(*event),
            RelayMessage::Ok { id, is_taken, text } => self.confirmed(connection, id, is_taken, &text),
            RelayMessage::EndOfStored => self.ready(connection),
            RelayMessage::Closed(text) => {
                warn!(relay = %self.relay.address, "the relay ended our subscription: {text:?}");
                connection.resubscribes = connection.resubscribes.saturating_add(1);
                connection.resubscribe = Some(Instant::now() + FIRST_WAIT.saturating_mul(connection.resubscribes));
            }
            RelayMessage::Notice(text) => {
                if let Some(permit) = self.shared.log.permit("notice") {
                    info!(relay = %self.relay.address, left_out = permit.left_out(), "the relay says: {text:?}");
                }
            }
            RelayMessage::Auth(challenge) => {
                self.prove(connection, &challenge);
                connection.challenge = Some(challenge);
            }
            RelayMessage::Other => {}
        }
    }

    /// The relay delivers what is for us.
    fn ready(&mut self, connection: &mut Connection) {
        if !std::mem::replace(&mut connection.is_ready, true) {
            info!(relay = %self.relay.address, "connected to a relay");
            self.shared.connected(self.index);
        }
    }

    /// An event was written.
    fn written(&mut self, connection: &mut Connection, publication: Arc<Publication>, tries: u32) {
        if *self.confirming(&publication) == Confirming::No {
            return publication.settle(Outcome::Taken);
        }
        let number = connection.next;
        connection.next = number.saturating_add(1);
        let sent = Outstanding { tries: tries.saturating_add(1), sent: Instant::now(), number, publication };
        connection.outstanding.insert(sent.publication.event.id, sent);
    }

    fn confirmed(&mut self, connection: &mut Connection, id: EventId, is_taken: bool, text: &str) {
        let Some(Outstanding { publication, tries, .. }) = connection.outstanding.remove(&id) else {
            // A relay that was thought to confirm nothing was only slow.
            if self.passing == Confirming::No {
                self.passing = Confirming::Unknown;
            }
            return;
        };
        *self.confirming(&publication) = Confirming::Yes { last: Instant::now() };
        let outcome = match (is_taken, refusal(text)) {
            (true, _) | (false, Rejection::Duplicate) => Outcome::Taken,
            (false, Rejection::AuthRequired) if tries < MAX_TRIES && connection.challenge.is_some() => {
                return connection.waiting.push_back(QueuedFrame::Event(publication, tries));
            }
            (false, Rejection::AuthRequired) => Outcome::Refused(Refusal::Other),
            (false, Rejection::Refused(refusal)) => Outcome::Refused(refusal),
        };
        if let Outcome::Refused(refusal) = outcome
            && let Some(permit) = self.shared.log.permit("refused")
        {
            let (bytes, left_out) = (publication.event.frame.len(), permit.left_out());
            warn!(relay = %self.relay.address, bytes, ?refusal, left_out, "the relay refused an event: {text:?}");
        }
        publication.settle(outcome);
    }

    /// Looks for events that should have been confirmed by now. Returns why the connection has to end, if it has to.
    fn check_time(&mut self, connection: &mut Connection) -> Option<String> {
        if connection.begun.elapsed() > SUBSCRIBED {
            self.ready(connection);
        }
        if connection.resubscribe.is_some_and(|at| at <= Instant::now()) {
            if connection.resubscribes > MAX_RESUBSCRIBES {
                return Some("the relay ends our subscription again and again".into());
            }
            connection.resubscribe = None;
            self.subscribe(connection);
        }
        let is_late = |sent: &Outstanding, confirming: &Confirming| match confirming {
            Confirming::Unknown => sent.sent.elapsed() > FIRST_CONFIRMATION,
            Confirming::Yes { .. } => sent.sent.elapsed() > CONFIRMATION,
            Confirming::No => true,
        };
        let late =
            connection.outstanding.iter().filter(|(_, sent)| is_late(sent, self.confirming_of(&sent.publication)));
        let mut late: Vec<_> = late.map(|(id, sent)| (sent.number, *id)).collect();
        late.sort_unstable();
        for (_, id) in late {
            let Some(Outstanding { publication, tries, sent, .. }) = connection.outstanding.remove(&id) else {
                continue;
            };
            match *self.confirming(&publication) {
                // Others were confirmed meanwhile, so this one was lost, or its confirmation was.
                Confirming::Yes { last } if last > sent => {
                    if publication.is_request || tries >= MAX_TRIES {
                        publication.settle(Outcome::Refused(Refusal::Other));
                    } else {
                        connection.waiting.push_back(QueuedFrame::Event(publication, tries));
                    }
                }
                _ => {
                    if *self.confirming(&publication) != Confirming::No {
                        *self.confirming(&publication) = Confirming::No;
                        let is_stored = publication.event.is_stored;
                        info!(relay = %self.relay.address, is_stored, "the relay does not confirm events: they count as taken");
                    }
                    publication.settle(Outcome::Taken);
                }
            }
        }
        None
    }

    const fn confirming(&mut self, publication: &Publication) -> &mut Confirming {
        if publication.event.is_stored { &mut self.stored } else { &mut self.passing }
    }

    const fn confirming_of(&self, publication: &Publication) -> &Confirming {
        if publication.event.is_stored { &self.stored } else { &self.passing }
    }

    /// Asks for everything that is for us. Of what is not stored, nothing old is wanted.
    fn subscribe(&self, connection: &mut Connection) {
        let us = self.shared.keys.public_key().to_hex();
        let lately = Timestamp::now().as_secs().saturating_sub(CLOCK_SKEW);
        let passing = json!({"kinds": [MESSAGE, EPHEMERAL_WRAP], "#p": [us], "since": lately, "limit": 0});
        let stored = json!({"kinds": [WRAP], "#p": [us], "since": self.stored_since.as_secs()});
        connection.say(json!(["REQ", SUBSCRIPTION, passing, stored]).to_string());
    }

    /// Answers a relay that wants to know who we are (NIP-42).
    fn prove(&self, connection: &mut Connection, challenge: &str) {
        let proof = EventBuilder::auth(challenge, self.relay.url.clone()).sign_with_keys(&self.shared.keys);
        if let Ok(proof) = proof {
            connection.waiting.push_front(QueuedFrame::Text(Bytes::from(format!(r#"["AUTH",{}]"#, proof.as_json()))));
        }
    }
}

impl Connection {
    fn new(link: BoxLink) -> Self {
        Self {
            link,
            waiting: VecDeque::new(),
            is_flushed: true,
            outstanding: HashMap::new(),
            next: 0,
            resubscribe: None,
            resubscribes: 0,
            challenge: None,
            is_ready: false,
            begun: Instant::now(),
        }
    }

    fn say(&mut self, text: String) {
        self.waiting.push_back(QueuedFrame::Text(Bytes::from(text)));
    }

    /// Writes what waits, and reads. Nothing is lost when the caller stops polling.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        loop {
            match self.poll_write(cx) {
                Ok(Some(step)) => return Poll::Ready(step),
                Ok(None) => {}
                Err(why) => return Poll::Ready(Step::Ended { code: 1006, why }),
            }
            match Pin::new(&mut self.link).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(Arrival::Frame { bytes, .. }))) => return Poll::Ready(Step::Arrived(bytes)),
                Poll::Ready(Some(Ok(Arrival::Closed { code, text }))) => {
                    let why = format!("closed by the relay with code {code}, which says {text:?}");
                    return Poll::Ready(Step::Ended { code, why });
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Step::Ended { code: 1006, why: error.to_string() });
                }
                Poll::Ready(None) => {
                    return Poll::Ready(Step::Ended { code: 1006, why: "it ended without a close".into() });
                }
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<Option<Step>, String> {
        while !self.waiting.is_empty() {
            match Pin::new(&mut self.link).poll_ready(cx) {
                Poll::Pending => return Ok(None),
                Poll::Ready(Err(error)) => return Err(error.to_string()),
                Poll::Ready(Ok(())) => {}
            }
            let Some(waiting) = self.waiting.pop_front() else { break };
            let bytes = match &waiting {
                QueuedFrame::Text(text) => text.clone(),
                QueuedFrame::Event(publication, _) => publication.event.frame.clone(),
            };
            let frame = Transmit::Frame { tag: Tag::default(), bytes: Message::from(bytes), meta: Meta::default() };
            let sent = Pin::new(&mut self.link).start_send(frame);
            self.is_flushed = false;
            if let QueuedFrame::Event(publication, tries) = waiting {
                // If the link has failed, the next step says so, and the event counts as one that was under way.
                return Ok(Some(Step::Written(publication, tries)));
            }
            sent.map_err(|error| error.to_string())?;
        }
        if !self.is_flushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.link).poll_flush(cx)
        {
            self.is_flushed = true;
            flushed.map_err(|error| error.to_string())?;
        }
        Ok(None)
    }
}

/// A factor that keeps many clients of a relay from coming back at the same time.
fn jitter() -> f64 {
    let mut byte = [0];
    let _ = getrandom::fill(&mut byte);
    0.75 + f64::from(byte[0]) / 512.0
}
