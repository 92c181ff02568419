//! One AHP connection: its state, and the loop that handles one event at a time.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use breakbulk::{Activity, BoxLink, Driver, Intake, Link as _};
use breakbulk_proto::ahp::{self, Charge, Delivery, Role};
use breakbulk_proto::{CloseReason, Envelope, Event, Grant, Input, Machine, Message, Subject, Ticket};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::EndpointInner;
use super::clients::{HostMessage, Registration};
use super::coalesce::DelayedDelta;
use super::end_reason::EndReason;
use super::handshake_link::HandshakeLink;
use super::jobs::{Job, Jobs, SubscribeRequest};
use super::log_reader::LogReader;
use super::memory::{AnswerMemory, NoMemory, Reservation};
use super::methods::{ClientInfo, Methods};
use super::send::UnsentMessages;
use super::shared_actions::SharedActions;
use super::snapshot_source::ReferenceStats;
use super::traffic::{ConnectionGauges, QueueDepths};
use crate::error::MethodError;
use crate::log::{Entry, ReadError};
use crate::long_work::long_work;
use crate::size::{to_u64, to_usize};

/// How many large results a connection makes at the same time, and how many snapshots. Further ones wait: each may be
/// as long as the largest file, and a client may ask for many at once.
const MOST_READS: usize = 4;

/// How long a connection keeps its read reservation while the log has nothing more.
const PULL_TIME: Duration = Duration::from_millis(100);

/// One AHP connection.
pub(super) struct Connection {
    pub(super) shared: Arc<EndpointInner>,
    pub(super) driver: Driver<HandshakeLink, ahp::Connection>,
    pub(super) principal: Option<Arc<str>>,
    /// The client, once its handshake is done.
    pub(super) client: Option<IdentifiedClient>,
    pub(super) handshake: HandshakePhase,
    /// Messages that arrived while the handshake was under way. Nothing more is read then, so they are few.
    early_messages: VecDeque<EarlyMessage>,
    pub(super) jobs: Jobs,
    /// Permits to make large results: see [`MOST_READS`].
    pub(super) reads: Arc<Semaphore>,
    /// Whether a dropped notification was logged. Once is enough: a client may send thousands in a second.
    pub(super) has_dropped: bool,
    /// Subscribe requests that wait for the log reader to become idle. Nothing is read from the log meanwhile.
    pub(super) pending_subscribes: Vec<(Job, SubscribeRequest)>,
    pub(super) snapshots_in_progress: usize,
    /// Channels that the client unsubscribed from while their snapshots were being made.
    pub(super) unsubscribed: Vec<Arc<str>>,
    pub(super) delayed: Option<DelayedDelta>,
    pub(super) unsent: UnsentMessages,
    /// The memory for what is sent to the client.
    pub(super) memory: AnswerMemory,
    /// The reservation for reading more than the floor at once, and when it was made.
    pull: Option<(Reservation, Instant)>,
    /// Whether the last read from the log returned entries, so that there may be more.
    pub(super) is_behind: bool,
    /// The reservation for the long action that is read next.
    pub(super) reserved: Option<Reservation>,
    /// A long action for which there is no memory yet. Nothing is read from the log meanwhile.
    pub(super) blocked: Option<BlockedAction>,
    /// Whether others wait for memory.
    under_pressure: watch::Receiver<bool>,
    pub(super) ending: Option<EndReason>,
    /// Noted whenever a part of a long message passes in either direction.
    pub(super) activity: Activity,
    /// What was sent by reference on this connection.
    pub(super) references: ReferenceStats,
    gauges: ConnectionGauges,
    stop: watch::Receiver<bool>,
}

/// How far the handshake is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakePhase {
    /// The client has to send its handshake by this time.
    Awaited {
        deadline: Instant,
    },
    /// The answer is being made. If it fails, the client may try again until the deadline.
    Running {
        deadline: Instant,
    },
    Done,
}

impl HandshakePhase {
    const fn is_running(self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// When the connection is closed if the client has not sent its handshake.
    const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Awaited { deadline } => Some(deadline),
            Self::Running { .. } | Self::Done => None,
        }
    }

    /// The phase after the client has sent its handshake.
    pub(super) const fn started(self) -> Self {
        match self {
            Self::Awaited { deadline } => Self::Running { deadline },
            other => other,
        }
    }

    /// The phase after the handshake was refused.
    pub(super) const fn failed(self) -> Self {
        match self {
            Self::Running { deadline } => Self::Awaited { deadline },
            other => other,
        }
    }
}

/// A message that arrived while the handshake was under way.
struct EarlyMessage {
    message: Message,
    envelope: Box<Envelope>,
    /// The memory that it arrived in, if it is long.
    grant: Option<Grant>,
}

/// A client whose handshake is done.
pub(super) struct IdentifiedClient {
    pub(super) info: Arc<ClientInfo>,
    pub(super) reader: LogReader,
    pub(super) host_messages: mpsc::Receiver<Box<HostMessage>>,
    /// Those who wait for answers of the client, by the id of the request.
    pub(super) asked: HashMap<u64, oneshot::Sender<Result<Bytes, MethodError>>>,
    pub(super) registration: Registration,
    /// The ticket of the answer to its handshake.
    pub(super) handshake_answer: Ticket,
    pub(super) _presence: PresenceGuard,
}

/// Reports to the methods that a client connected, and when dropped that it disconnected, however the connection ended.
pub(super) struct PresenceGuard {
    methods: Arc<dyn Methods>,
    info: Arc<ClientInfo>,
}

impl PresenceGuard {
    pub(super) fn begin(methods: Arc<dyn Methods>, info: &Arc<ClientInfo>) -> Self {
        methods.connected(info);
        Self { methods, info: Arc::clone(info) }
    }
}

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        self.methods.disconnected(&self.info);
    }
}

impl Connection {
    /// Boxed, so that the future of the serving task does not contain the whole connection.
    pub(super) fn new(
        shared: Arc<EndpointInner>,
        link: BoxLink,
        principal: Option<Arc<str>>,
    ) -> Result<Box<Self>, getrandom::Error> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        let mut config = ahp::Config::new(Role::Server, shared.config.limits, seed);
        (config.delivery, config.negotiated) = (Delivery::Settled, shared.negotiated.clone());
        config.charge = Charge::UntilDone;
        let machine = ahp::Connection::new(config, shared.budget.account(principal.as_deref()));
        let driver =
            Driver::new(HandshakeLink::new(link, shared.config.max_hello_bytes, Arc::clone(&shared.traffic)), machine);
        let now = Instant::now();
        Ok(Box::new(Self {
            driver,
            client: None,
            handshake: HandshakePhase::Awaited { deadline: now + shared.config.hello_time },
            early_messages: VecDeque::new(),
            jobs: Jobs::default(),
            reads: Arc::new(Semaphore::new(MOST_READS)),
            pending_subscribes: Vec::new(),
            snapshots_in_progress: 0,
            has_dropped: false,
            unsubscribed: Vec::new(),
            delayed: None,
            unsent: UnsentMessages::new(now),
            memory: shared.outgoing.account(principal.clone()),
            pull: None,
            is_behind: false,
            reserved: None,
            blocked: None,
            under_pressure: shared.outgoing.under_pressure(),
            ending: None,
            activity: Activity::default(),
            references: ReferenceStats::default(),
            gauges: ConnectionGauges::new(Arc::clone(&shared.traffic)),
            stop: shared.stop.subscribe(),
            principal,
            shared,
        }))
    }

    /// Serves the client until the connection ends; returns why it ended.
    pub(super) async fn run(mut self: Box<Self>) -> EndReason {
        loop {
            self.settle();
            self.gauges.show(self.depths());
            let is_open = self.ending.is_none();
            let (due, has_capacity) = (self.due(), self.unsent.bytes < self.shared.config.max_unsent_bytes);
            let takes_answers = is_open && self.unsent.bytes < self.shared.config.max_answer_bytes;
            tokio::select! {
                event = self.driver.next() => match event {
                    Some(Event::Closed(reason)) => return self.closed(reason),
                    Some(event) => self.event(event),
                    None => return self.closed(CloseReason::Normal),
                },
                event = next_client_event(&mut self.client, has_capacity), if is_open => match event {
                    ClientEvent::Pulled(pulled) => self.pulled(pulled),
                    ClientEvent::HostMessage(message) => self.send_host_message(*message),
                    ClientEvent::Fenced => self.end(EndReason::Fenced),
                },
                Some((job, done)) = self.jobs.next(), if takes_answers => self.finish_job(job, done),
                reserved = reserved(&mut self.blocked), if is_open => self.unblock(reserved),
                _ = self.under_pressure.changed(), if is_open => {}
                () = sleep_until(due), if is_open => self.late(),
                () = stopped(&mut self.stop), if is_open => self.end(EndReason::Stopping),
            }
        }
    }

    /// Starts whatever can start now: early messages, dispatches, snapshots, a read from the log.
    fn settle(&mut self) {
        if self.ending.is_some() {
            return;
        }
        while !self.handshake.is_running()
            && let Some(EarlyMessage { message, envelope, grant }) = self.early_messages.pop_front()
        {
            self.message(&message, &envelope, grant);
        }
        self.begin_dispatches();
        let is_much = self.jobs.bytes() > self.shared.config.max_request_bytes;
        let is_over_floor = to_u64(self.jobs.unreserved_bytes()) > self.shared.config.memory.floor_bytes;
        self.driver.set_reading(!self.handshake.is_running() && !is_much && !is_over_floor);
        if self.snapshots_in_progress == 0 && self.pending_subscribes.is_empty() {
            self.unsubscribed.clear();
        }
        let Some(client) = &mut self.client else { return };
        if !self.pending_subscribes.is_empty() {
            if !client.reader.is_idle() {
                return client.reader.interrupt();
            }
            let max_bytes = MOST_READS.saturating_sub(self.snapshots_in_progress).min(self.pending_subscribes.len());
            for (job, request) in self.pending_subscribes.drain(..max_bytes).collect::<Vec<_>>() {
                self.begin_snapshot(job, request);
            }
        } else if self.snapshots_in_progress == 0 && client.reader.is_idle() && self.blocked.is_none() {
            // A connection that has caught up needs no reservation: it reads little at a time.
            let config = &self.shared.config;
            if !self.is_behind {
                self.pull = None;
            } else if self.pull.is_none() {
                self.pull =
                    self.memory.try_reserve(config.max_unsent_bytes).map(|reservation| (reservation, Instant::now()));
            }
            let floor = to_usize(config.memory.floor_bytes).min(config.max_unsent_bytes);
            let max_bytes = if self.pull.is_some() { config.max_unsent_bytes } else { floor };
            let max_bytes = max_bytes.saturating_sub(self.unsent.bytes);
            if max_bytes > 0 {
                return client.reader.begin(max_bytes);
            }
            let behind = self.shared.log.lag(client.reader.position()).unwrap_or(0);
            let limit = self.shared.config.max_lag;
            if behind > limit && !client.reader.subscriptions().is_empty() {
                self.end(EndReason::Lagging { behind, limit });
            }
        }
    }

    fn event(&mut self, event: Event) {
        self.gauges.note(&event);
        match event {
            Event::Message { message, envelope, .. } => {
                let grant = self.driver.machine_mut().take_grant();
                let grant = grant.or_else(|| self.driver.link_mut().receive_memory()?.take_last());
                if self.handshake.is_running() {
                    self.early_messages.push_back(EarlyMessage { message, envelope, grant });
                } else {
                    long_work(message.len(), || self.message(&message, &envelope, grant));
                }
            }
            Event::Sent { ticket } => self.sent(ticket),
            Event::SendFailed { ticket, error, .. } => self.not_sent(ticket, &error),
            Event::Progress(progress) => {
                self.activity.note();
                if matches!(progress.subject, Subject::Outgoing(_)) {
                    self.unsent.moved_at = Instant::now();
                }
            }
            Event::Expired { received, .. } => {
                warn!(reason = "group-expired", received, "an unfinished message was given up");
            }
            other => debug!("{other:?}"),
        }
    }

    /// How much waits on this connection now.
    fn depths(&self) -> QueueDepths {
        let (unsent, unsent_bytes) = (self.unsent.len(), self.unsent.bytes);
        QueueDepths { unsent, unsent_bytes, calls: self.jobs.running(), waiting: self.jobs.waiting() }
    }

    /// The next moment at which something is due.
    fn due(&self) -> Instant {
        let handshake = self.handshake.deadline();
        let stall = (!self.unsent.is_empty()).then(|| self.unsent.moved_at + self.stall_time());
        let delayed = self.delayed.as_ref().map(DelayedDelta::due);
        let pull = self.pull.as_ref().map(|(_, begun)| *begun + PULL_TIME);
        let far = Instant::now() + self.shared.config.stall_time;
        [handshake, stall, delayed, pull].into_iter().flatten().min().unwrap_or(far)
    }

    fn late(&mut self) {
        let now = Instant::now();
        if self.delayed.as_ref().is_some_and(|delayed| delayed.due() <= now) {
            self.flush();
        }
        if let Some((_, begun)) = self.pull.as_mut().filter(|(_, begun)| *begun + PULL_TIME <= now) {
            // The log has nothing more: interrupting the read gives the reservation back.
            *begun = now;
            if let Some(client) = &mut self.client {
                client.reader.interrupt();
            }
        }
        let after = now.saturating_duration_since(self.unsent.moved_at);
        if !self.unsent.is_empty() && after >= self.stall_time() {
            return self.end(EndReason::Stalled { bytes: self.unsent.bytes, after });
        }
        if self.handshake.deadline().is_some_and(|deadline| deadline <= now) {
            self.end(EndReason::NoHandshake(self.shared.config.hello_time));
        }
    }

    /// How long the client may read nothing. Shorter if much waits for it while others wait for that memory.
    fn stall_time(&self) -> Duration {
        let config = &self.shared.config;
        let is_much = to_u64(self.unsent.bytes) > config.memory.floor_bytes;
        if is_much && *self.under_pressure.borrow() {
            config.memory.patience.min(config.stall_time)
        } else {
            config.stall_time
        }
    }

    /// Stops reading the log until there is memory for this long action.
    pub(super) fn block(&mut self, entry: &Entry) {
        let (memory, bytes) = (self.memory.clone(), SharedActions::cost(entry.body.len()));
        let shared = Arc::clone(&self.shared);
        let seq = entry.seq;
        let reserving = async move {
            let mut turn = memory.turn();
            loop {
                if shared.actions.shared(seq).is_some() {
                    return Ok(None);
                }
                if let Some(reservation) = turn.try_reserve(bytes) {
                    return Ok(Some(reservation));
                }
                turn.wait(bytes).await?;
            }
        };
        self.blocked = Some(BlockedAction { reserving: Box::pin(reserving) });
    }

    /// Ends the wait for memory: it is reserved, another connection shares the action, or the time is over.
    fn unblock(&mut self, reserved: Result<Option<Reservation>, NoMemory>) {
        self.blocked = None;
        match reserved {
            Ok(reservation) => self.reserved = reservation,
            Err(error) => self.end(EndReason::NoMemory(error)),
        }
    }

    /// Closes the connection for this reason. A later reason is ignored.
    pub(super) fn end(&mut self, end: EndReason) {
        if self.ending.is_none() {
            self.driver.handle(Input::Close(end.as_close()));
            self.ending = Some(end);
        }
    }

    /// Logs and counts the end of the connection, by the name of its reason.
    fn closed(&mut self, reason: CloseReason) -> EndReason {
        let end = self.ending.take().unwrap_or(EndReason::Link(reason));
        let (counts, machine) = (&self.shared.counts, self.driver.machine());
        machine
            .counters()
            .iter()
            .filter(|(name, _)| *name != end.name())
            .for_each(|(name, times)| counts.add(name, times));
        counts.add(end.name(), 1);
        self.shared.traffic.ends.add(end.name(), 1);
        if let EndReason::Link(CloseReason::Violation(violation)) = &end {
            self.shared.traffic.violations.add(violation.name(), 1);
        }
        let how = match &end {
            EndReason::Link(reason) => self.driver.describe_end(reason),
            other => other.to_string(),
        };
        let Some(client) = &self.client else {
            if let Some(permit) = self.shared.log_limit.permit(end.name()) {
                let (reason, code, left_out) = (end.name(), end.code(), permit.left_out());
                info!(reason, code, left_out, "connection closed before its handshake: {how}");
            }
            return end;
        };
        let (client, seq) = (&*client.info.id, client.reader.position());
        info!(
            client,
            seq,
            unsent_bytes = self.unsent.bytes,
            references = self.references.count,
            reference_bytes = self.references.bytes,
            reason = end.name(),
            code = end.code(),
            "connection closed: {how}"
        );
        end
    }

    /// The frames that the client may send, once it is known whether it segments. A client that does not may send a whole
    /// message in one frame, which is charged to its principal until it is whole.
    pub(super) fn intake(&self) -> Intake {
        let (limits, whole) = (self.shared.config.limits, self.shared.config.max_whole_frame_bytes);
        match (self.driver.machine().peer(), self.principal.as_deref()) {
            (None, Some(name)) => {
                let max_frame_bytes = whole.unwrap_or(limits.max_message_bytes).min(limits.max_message_bytes);
                Intake { max_frame_bytes, account: Some(self.shared.budget.account(Some(name))) }
            }
            _ => {
                let account = self.shared.frames.account(self.principal.as_deref());
                Intake { max_frame_bytes: limits.max_frame_bytes, account: Some(account) }
            }
        }
    }
}

/// A long action that waits for memory.
pub(super) struct BlockedAction {
    reserving: Pin<Box<dyn Future<Output = Result<Option<Reservation>, NoMemory>> + Send>>,
}

/// Resolves when there is memory for the blocked action, or was none in time; never, if no action is blocked. Cancel-safe.
async fn reserved(blocked: &mut Option<BlockedAction>) -> Result<Option<Reservation>, NoMemory> {
    match blocked {
        Some(blocked) => blocked.reserving.as_mut().await,
        None => pending().await,
    }
}

/// Waits until the endpoint stops.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // We hold the sender, so there is no error.
    drop(stop.wait_for(|stop| *stop).await);
}

/// What happens to a client whose handshake is done.
enum ClientEvent {
    Pulled(Result<Vec<Entry>, ReadError>),
    HostMessage(Box<HostMessage>),
    Fenced,
}

/// The next event of the client. Cancel-safe.
async fn next_client_event(client: &mut Option<IdentifiedClient>, has_capacity: bool) -> ClientEvent {
    let Some(IdentifiedClient { reader, host_messages, registration, .. }) = client else { return pending().await };
    tokio::select! {
        () = registration.fenced() => ClientEvent::Fenced,
        pulled = reader.pulled() => ClientEvent::Pulled(pulled),
        Some(message) = host_messages.recv(), if has_capacity => ClientEvent::HostMessage(message),
    }
}
