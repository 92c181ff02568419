//! One connection at work: everything that happens on it, one thing at a time.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use breakbulk::{Activity, BoxLink, Driver, Intake, Link as _};
use breakbulk_proto::ahp::{self, Charge, Delivery, Role};
use breakbulk_proto::{CloseReason, Event, Grant, Input, Machine, Message, Subject, Ticket};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::Shared;
use super::actions::Actions;
use super::clients::{Order, Registration};
use super::coalesce::Held;
use super::end::End;
use super::feed::Feed;
use super::jobs::{Job, Jobs, Wish};
use super::memory::{AnswerMemory, NoMemory, Payment};
use super::methods::{ClientInfo, Methods};
use super::outbox::Sending;
use super::room::{narrow, wide};
use super::threshold::Threshold;
use super::traffic::{Depths, Part};
use super::views::Moved;
use crate::error::MethodError;
use crate::log::{Entry, ReadError};
use crate::long_work::long_work;

/// Contents that a client has asked for and that are held until they can be sent, and as many snapshots. Further ones are
/// not made meanwhile: each may be as long as the largest file, and a client may ask for many at once.
const MOST_READS: usize = 4;

/// How long memory for much is kept while the log has nothing more.
const PULL_TIME: Duration = Duration::from_millis(100);

/// One AHP connection.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) driver: Driver<Threshold, ahp::Connection>,
    pub(super) principal: Option<Arc<str>>,
    /// Who it is, once that is known.
    pub(super) present: Option<Present>,
    /// A handshake is under way.
    pub(super) is_greeting: bool,
    /// What came while a handshake was under way. Nothing is read then, so it is little.
    early: VecDeque<(Message, Option<Grant>)>,
    /// When somebody must have introduced themselves.
    pub(super) hello_due: Instant,
    pub(super) jobs: Jobs,
    /// Leave to hold what a client reads: see [`MOST_READS`].
    pub(super) reads: Arc<Semaphore>,
    /// A notification was dropped, and the log says so: once is enough for what a client may do a thousand times a second.
    pub(super) has_dropped: bool,
    /// Subscribes that wait for the tail to come back, and how many snapshots are being made: nothing is pulled meanwhile.
    pub(super) wishes: Vec<(Job, Wish)>,
    pub(super) shots: usize,
    /// Channels that were left while their snapshot was being made.
    pub(super) left: Vec<Arc<str>>,
    pub(super) held: Option<Held>,
    pub(super) sending: Sending,
    /// What is sent to the client is paid for with this.
    pub(super) memory: AnswerMemory,
    /// Pays for pulling more than the floor at once, and when that pull began.
    pull: Option<(Payment, Instant)>,
    /// The last pull brought something, so there may be more.
    pub(super) is_behind: bool,
    /// Pays for the long action that is pulled next.
    pub(super) paid: Option<Payment>,
    /// A long action for which there is no memory yet. Nothing is pulled meanwhile.
    pub(super) blocked: Option<Blocked>,
    /// Others wait for memory.
    pressed: watch::Receiver<bool>,
    pub(super) ending: Option<End>,
    /// Parts of long messages that pass, either way.
    pub(super) activity: Activity,
    /// What was sent by reference.
    pub(super) moved: Moved,
    part: Part,
    stop: watch::Receiver<bool>,
}

/// A client that has introduced itself.
pub(super) struct Present {
    pub(super) info: Arc<ClientInfo>,
    pub(super) feed: Feed,
    pub(super) orders: mpsc::Receiver<Order>,
    /// Who waits for the client's answers, by the id of the request.
    pub(super) asked: HashMap<u64, oneshot::Sender<Result<Bytes, MethodError>>>,
    pub(super) registration: Registration,
    /// The answer to its handshake.
    pub(super) hello: Ticket,
    pub(super) _presence: Presence,
}

/// Tells the methods that a client is here, and when it is dropped that it is gone: also where a connection is cut off in
/// the middle.
pub(super) struct Presence {
    methods: Arc<dyn Methods>,
    info: Arc<ClientInfo>,
}

impl Presence {
    pub(super) fn begin(methods: Arc<dyn Methods>, info: &Arc<ClientInfo>) -> Self {
        methods.came(info);
        Self { methods, info: Arc::clone(info) }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.methods.gone(&self.info);
    }
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        link: BoxLink,
        principal: Option<Arc<str>>,
    ) -> Result<Self, getrandom::Error> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        let mut config = ahp::Config::new(Role::Server, shared.config.limits, seed);
        (config.delivery, config.negotiated) = (Delivery::Settled, shared.negotiated.clone());
        config.charge = Charge::UntilDone;
        let machine = ahp::Connection::new(config, shared.budget.account(principal.as_deref()));
        let driver =
            Driver::new(Threshold::new(link, shared.config.max_hello_bytes, Arc::clone(&shared.traffic)), machine);
        let now = Instant::now();
        Ok(Self {
            driver,
            present: None,
            is_greeting: false,
            early: VecDeque::new(),
            hello_due: now + shared.config.hello_time,
            jobs: Jobs::default(),
            reads: Arc::new(Semaphore::new(MOST_READS)),
            wishes: Vec::new(),
            shots: 0,
            has_dropped: false,
            left: Vec::new(),
            held: None,
            sending: Sending::new(now),
            memory: shared.outgoing.account(principal.clone()),
            pull: None,
            is_behind: false,
            paid: None,
            blocked: None,
            pressed: shared.outgoing.pressed(),
            ending: None,
            activity: Activity::default(),
            moved: Moved::default(),
            part: Part::new(Arc::clone(&shared.traffic)),
            stop: shared.stop.subscribe(),
            principal,
            shared,
        })
    }

    /// Serves the client until the connection ends, and says how.
    pub(super) async fn run(mut self: Box<Self>) -> End {
        loop {
            self.settle();
            self.part.show(self.depths());
            let is_open = self.ending.is_none();
            let (due, has_room) = (self.due(), self.sending.bytes < self.shared.config.room_bytes);
            let takes_answers = is_open && self.sending.bytes < self.shared.config.max_answer_bytes;
            tokio::select! {
                event = self.driver.next() => match event {
                    Some(Event::Closed(reason)) => return self.closed(reason),
                    Some(event) => self.event(event),
                    None => return self.closed(CloseReason::Normal),
                },
                happened = happens(&mut self.present, has_room), if is_open => match happened {
                    Happened::Pulled(pulled) => self.pulled(pulled),
                    Happened::Order(order) => self.order(order),
                    Happened::Fenced => self.end(End::Fenced),
                },
                Some((job, done)) = self.jobs.next(), if takes_answers => self.done(job, done),
                paid = paid(&mut self.blocked), if is_open => self.unblock(paid),
                _ = self.pressed.changed(), if is_open => {}
                () = sleep_until(due), if is_open => self.late(),
                () = stopped(&mut self.stop), if is_open => self.end(End::Stopping),
            }
        }
    }

    /// Begins what can begin now.
    fn settle(&mut self) {
        if self.ending.is_some() {
            return;
        }
        while !self.is_greeting
            && let Some((message, grant)) = self.early.pop_front()
        {
            self.message(&message, grant);
        }
        self.begin_dispatches();
        let is_much = self.jobs.bytes() > self.shared.config.max_request_bytes;
        let is_unpaid = wide(self.jobs.unpaid_bytes()) > self.shared.config.memory.floor_bytes;
        self.driver.set_reading(!self.is_greeting && !is_much && !is_unpaid);
        if self.shots == 0 && self.wishes.is_empty() {
            self.left.clear();
        }
        let Some(present) = &mut self.present else { return };
        if !self.wishes.is_empty() {
            if !present.feed.is_idle() {
                return present.feed.recall();
            }
            let room = MOST_READS.saturating_sub(self.shots).min(self.wishes.len());
            for (job, wish) in self.wishes.drain(..room).collect::<Vec<_>>() {
                self.begin_snapshot(job, wish);
            }
        } else if self.shots == 0 && present.feed.is_idle() && self.blocked.is_none() {
            // Who has caught up needs nothing: what comes is little at a time.
            let config = &self.shared.config;
            if !self.is_behind {
                self.pull = None;
            } else if self.pull.is_none() {
                self.pull = self.memory.try_reserve(config.room_bytes).map(|payment| (payment, Instant::now()));
            }
            let floor = narrow(config.memory.floor_bytes).min(config.room_bytes);
            let room = if self.pull.is_some() { config.room_bytes } else { floor };
            let room = room.saturating_sub(self.sending.bytes);
            if room > 0 {
                return present.feed.begin(room);
            }
            let behind = self.shared.log.lag(present.feed.position()).unwrap_or(0);
            let limit = self.shared.config.max_lag;
            if behind > limit && !present.feed.subscriptions().is_empty() {
                self.end(End::Lagging { behind, limit });
            }
        }
    }

    fn event(&mut self, event: Event) {
        self.part.note(&event);
        match event {
            Event::Message { message, .. } => {
                let grant = self.driver.machine_mut().take_grant();
                let grant = grant.or_else(|| self.driver.link_mut().receive_memory()?.take_last());
                if self.is_greeting {
                    self.early.push_back((message, grant));
                } else {
                    long_work(message.len(), || self.message(&message, grant));
                }
            }
            Event::Sent { ticket } => self.sent(ticket),
            Event::SendFailed { ticket, error, .. } => self.not_sent(ticket, &error),
            Event::Progress(progress) => {
                self.activity.note();
                if matches!(progress.subject, Subject::Outgoing(_)) {
                    self.sending.moved_at = Instant::now();
                }
            }
            Event::Expired { received, .. } => {
                warn!(reason = "group-expired", received, "an unfinished message was given up");
            }
            other => debug!("{other:?}"),
        }
    }

    /// What waits here now.
    fn depths(&self) -> Depths {
        let (unsent, unsent_bytes) = (self.sending.len(), self.sending.bytes);
        Depths { unsent, unsent_bytes, calls: self.jobs.running(), waiting: self.jobs.waiting() }
    }

    /// The next moment at which something is due.
    fn due(&self) -> Instant {
        let hello = (self.present.is_none() && !self.is_greeting).then_some(self.hello_due);
        let stall = (!self.sending.is_empty()).then(|| self.sending.moved_at + self.stall_time());
        let held = self.held.as_ref().map(Held::due);
        let pull = self.pull.as_ref().map(|(_, begun)| *begun + PULL_TIME);
        let far = Instant::now() + self.shared.config.stall_time;
        [hello, stall, held, pull].into_iter().flatten().min().unwrap_or(far)
    }

    fn late(&mut self) {
        let now = Instant::now();
        if self.held.as_ref().is_some_and(|held| held.due() <= now) {
            self.flush();
        }
        if let Some((_, begun)) = self.pull.as_mut().filter(|(_, begun)| *begun + PULL_TIME <= now) {
            // Nothing is there any more, so nothing has to be paid for. What is there comes again.
            *begun = now;
            if let Some(present) = &mut self.present {
                present.feed.recall();
            }
        }
        let after = now.saturating_duration_since(self.sending.moved_at);
        if !self.sending.is_empty() && after >= self.stall_time() {
            return self.end(End::Stalled { bytes: self.sending.bytes, after });
        }
        if self.present.is_none() && !self.is_greeting && self.hello_due <= now {
            self.end(End::NoHandshake(self.shared.config.hello_time));
        }
    }

    /// For how long the client may take nothing: not for long if much waits for it, and others wait for the memory of that.
    fn stall_time(&self) -> Duration {
        let config = &self.shared.config;
        let is_much = wide(self.sending.bytes) > config.memory.floor_bytes;
        if is_much && *self.pressed.borrow() {
            config.memory.patience.min(config.stall_time)
        } else {
            config.stall_time
        }
    }

    /// An action is too long for what memory there is: nothing is pulled until there is enough.
    pub(super) fn block(&mut self, entry: &Entry) {
        let (memory, bytes) = (self.memory.clone(), Actions::cost(entry.body.len()));
        let shared = Arc::clone(&self.shared);
        let seq = entry.seq;
        let paying = async move {
            let mut turn = memory.turn();
            loop {
                if shared.actions.shared(seq).is_some() {
                    return Ok(None);
                }
                if let Some(payment) = turn.try_reserve(bytes) {
                    return Ok(Some(payment));
                }
                turn.wait(bytes).await?;
            }
        };
        self.blocked = Some(Blocked { paying: Box::pin(paying) });
    }

    /// There is memory for the action, or somebody else has paid for it; or there was none in time.
    fn unblock(&mut self, paid: Result<Option<Payment>, NoMemory>) {
        self.blocked = None;
        match paid {
            Ok(payment) => self.paid = payment,
            Err(error) => self.end(End::NoMemory(error)),
        }
    }

    /// Ends the connection, for this reason.
    pub(super) fn end(&mut self, end: End) {
        if self.ending.is_none() {
            self.driver.handle(Input::Close(end.as_close()));
            self.ending = Some(end);
        }
    }

    /// The connection is over: one line, and counters by name.
    fn closed(&mut self, reason: CloseReason) -> End {
        let end = self.ending.take().unwrap_or(End::Link(reason));
        let (counts, machine) = (&self.shared.counts, self.driver.machine());
        machine
            .counters()
            .iter()
            .filter(|(name, _)| *name != end.name())
            .for_each(|(name, times)| counts.add(name, times));
        counts.add(end.name(), 1);
        self.shared.traffic.ends.add(end.name(), 1);
        if let End::Link(CloseReason::Violation(violation)) = &end {
            self.shared.traffic.violations.add(violation.name(), 1);
        }
        let how = match &end {
            End::Link(reason) => self.driver.describe_end(reason),
            other => other.to_string(),
        };
        let Some(present) = &self.present else {
            if let Some(permit) = self.shared.log_limit.permit(end.name()) {
                let (reason, code, left_out) = (end.name(), end.code(), permit.left_out());
                info!(reason, code, left_out, "connection closed before its handshake: {how}");
            }
            return end;
        };
        let (client, seq) = (&*present.info.id, present.feed.position());
        info!(
            client,
            seq,
            unsent_bytes = self.sending.bytes,
            references = self.moved.count,
            reference_bytes = self.moved.bytes,
            reason = end.name(),
            code = end.code(),
            "connection closed: {how}"
        );
        end
    }

    /// Which frames the client may send, now that it is known whether it segments. One that does not may send a whole
    /// message in one frame, and whoever the door let in pays for it until it is whole.
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
pub(super) struct Blocked {
    paying: Pin<Box<dyn Future<Output = Result<Option<Payment>, NoMemory>> + Send>>,
}

/// When there is memory for what is blocked, or was none in time; never, if nothing is. Cancel-safe.
async fn paid(blocked: &mut Option<Blocked>) -> Result<Option<Payment>, NoMemory> {
    match blocked {
        Some(blocked) => blocked.paying.as_mut().await,
        None => pending().await,
    }
}

/// Waits until the endpoint stops.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // We hold the sender, so there is no error.
    drop(stop.wait_for(|stop| *stop).await);
}

/// What happens to a client that is present.
enum Happened {
    Pulled(Result<Vec<Entry>, ReadError>),
    Order(Order),
    Fenced,
}

/// The next thing. Cancel-safe.
async fn happens(present: &mut Option<Present>, has_room: bool) -> Happened {
    let Some(Present { feed, orders, registration, .. }) = present else { return pending().await };
    tokio::select! {
        () = registration.fenced() => Happened::Fenced,
        pulled = feed.pulled() => Happened::Pulled(pulled),
        Some(order) = orders.recv(), if has_room => Happened::Order(order),
    }
}
