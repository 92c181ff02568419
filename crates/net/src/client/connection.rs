//! One connection of a client: the handshake, then everything that is sent and received until the link ends.

mod handshake;
mod in_flight;

use std::collections::HashMap;
use std::time::Duration;

use breakbulk_proto::ahp::{self, Connection, Delivery, Role};
use breakbulk_proto::{CloseReason, Envelope, Event as MachineEvent, Input, Lane, Message, Meta, SendError, Ticket};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use self::in_flight::{InFlight, SendPurpose};
use super::command::{Command, Request, ResponseSender, SendOrder};
use super::error::RequestError;
use super::event::{Event, LossReason};
use super::responder::{Reply, Responder};
use super::run::{ConnectionEnd, Core, NextAttempt};
use super::state::{Reason, State};
use super::unconfirmed::Dispatched;
use super::wire::{self, Incoming};
use crate::driver::Driver;
use crate::len64;
use crate::link::Link;

/// How many requests may wait for their answers. When there are so many, those whose callers gave up are forgotten.
pub(super) const MAX_REQUESTS: usize = 1024;
/// How many requests of the host may wait for an answer of the application.
pub(super) const MAX_UNANSWERED: usize = 256;
/// How many commands of callers may wait here for their turn. When there are more, they stay in the channel, where commands that
/// may overtake others are not found.
const MAX_PENDING: usize = 16_384;
/// At a close, how long earlier requests and actions have to be sent, and actions to be echoed.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// Longer than any connection lasts.
const FAR: Duration = Duration::from_hours(24 * 365);
/// The close code for a peer that breaks the protocol.
const PROTOCOL_ERROR: u16 = 1002;
/// The error code for a request of the host when too many wait already.
const BUSY: i64 = -32000;

/// One connection.
pub(super) struct LiveConnection<'a, L> {
    core: &'a mut Core,
    driver: Driver<L, Connection>,
    phase: ConnectionPhase,
    /// Requests that wait for their answers, by id.
    requests: HashMap<u64, PendingRequest>,
    in_flight: InFlight,
    handshake: Handshake,
    /// When the handshake, or the close, has taken too long.
    deadline: Instant,
    live_since: Option<Instant>,
    /// What to do after the end of the connection, if the handshake has decided that.
    next: Option<NextAttempt>,
    /// Why the handshake failed, where the end of the link does not say it.
    failure: Option<String>,
}

/// Where a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// The host has yet to answer the handshake.
    Handshake,
    Live,
    /// The client is closed. Earlier commands are still sent; then the link is closed.
    Stopping {
        /// Whether all of it has been taken from the channel.
        drained: bool,
    },
    /// The link is being closed.
    Closing,
}

/// Whether the host has answered the handshake.
#[derive(Debug)]
enum Handshake {
    /// The host has not answered the handshake. Its other messages are kept, because they belong after the answer.
    Unanswered {
        early: Vec<Incoming>,
        early_bytes: u64,
    },
    Done,
}

/// A request that waits for its answer.
#[derive(Debug)]
enum PendingRequest {
    Initialize,
    Reconnect,
    Subscribe(String),
    Request(ResponseSender),
}

impl<'a, L: Link> LiveConnection<'a, L> {
    /// A connection over a fresh link.
    pub(super) fn new(link: L, core: &'a mut Core) -> Result<Self, getrandom::Error> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        let mut config = ahp::Config::new(Role::Client, core.config.limits, seed);
        config.delivery = Delivery::Settled;
        config.negotiated = core.negotiated.clone();
        let account = core.config.budget.account(Some(&core.config.client_id));
        core.connections = core.connections.saturating_add(1);
        Ok(Self {
            driver: Driver::new(link, Connection::new(config, account)),
            deadline: after(core.config.connect_timeout),
            core,
            phase: ConnectionPhase::Handshake,
            requests: HashMap::new(),
            in_flight: InFlight::default(),
            handshake: Handshake::Unanswered { early: Vec::new(), early_bytes: 0 },
            live_since: None,
            next: None,
            failure: None,
        })
    }

    /// Runs until the link has ended.
    pub(super) async fn run(mut self) -> ConnectionEnd {
        self.core.say(State::Replaying);
        self.greet();
        loop {
            let is_fed = self.core.session.feed.try_flush();
            self.advance(is_fed);
            self.driver.set_reading(is_fed);
            let (takes_commands, is_timed) = (self.takes_commands(), self.is_timed(is_fed));
            tokio::select! {
                event = self.driver.next() => match event {
                    Some(MachineEvent::Closed(reason)) => return self.ended(&reason),
                    Some(event) => self.take(event),
                    None => return self.ended(&CloseReason::Normal),
                },
                () = self.core.session.feed.flush(), if !is_fed => self.put_off(),
                Some(reply) = self.core.replies.recv() => self.reply(reply),
                command = self.core.commands.recv(), if takes_commands => self.command(command),
                () = sleep_until(self.deadline), if is_timed => self.too_late(),
                () = self.core.stop.cancelled(), if matches!(self.phase, ConnectionPhase::Handshake | ConnectionPhase::Live) => self.stop(),
            }
        }
    }

    /// Brings everything up to date after an event: sends more, notes the cursor, changes the state.
    fn advance(&mut self, is_fed: bool) {
        if matches!(self.phase, ConnectionPhase::Live | ConnectionPhase::Stopping { .. }) {
            self.core.session.cursor = self.driver.machine().cursor().or(self.core.session.cursor);
            self.hand_over();
        }
        if self.phase == ConnectionPhase::Live && is_fed && self.live_since.is_none() {
            self.live_since = Some(Instant::now());
            self.core.say(State::Live);
        }
        // A link that closes may lose the last messages that it took. So all actions have to be echoed before it is closed.
        let is_idle =
            self.in_flight.is_empty() && self.core.session.unconfirmed.is_empty() && self.core.pending.is_empty();
        if is_idle && self.phase == (ConnectionPhase::Stopping { drained: true }) {
            self.close(CloseReason::Normal);
        }
    }

    /// Gives the machine what waits, up to the window: first actions that are sent again after a reconnect, then new commands.
    fn hand_over(&mut self) {
        while self.in_flight.has_capacity() {
            if let Some(next) = self.core.session.unconfirmed.hand() {
                let (purpose, text) = (SendPurpose::Action(next.client_seq), next.text());
                let lane = next.order.lane();
                self.hand(purpose, text, None, lane);
            } else if let Some(command) = self.core.pending.pop_front() {
                self.act(command);
            } else {
                return;
            }
        }
    }

    /// Whether commands can be taken from the channel now.
    fn takes_commands(&self) -> bool {
        let is_open = matches!(self.phase, ConnectionPhase::Live | ConnectionPhase::Stopping { drained: false });
        is_open && self.core.pending.len() < MAX_PENDING
    }

    /// Whether the deadline counts. Not while we do not read, because then the host is not to blame; and not while the link closes,
    /// because the driver has a deadline of its own for that.
    const fn is_timed(&self, is_fed: bool) -> bool {
        match self.phase {
            ConnectionPhase::Handshake => is_fed,
            ConnectionPhase::Stopping { .. } => true,
            ConnectionPhase::Live | ConnectionPhase::Closing => false,
        }
    }

    fn take(&mut self, event: MachineEvent) {
        self.put_off();
        match event {
            MachineEvent::Message { message, envelope, ordinal, .. } => self.message(&message, &envelope, ordinal),
            MachineEvent::Sent { ticket } => {
                if let Some(SendPurpose::Action(number)) = self.in_flight.done(ticket.0) {
                    self.core.session.sent(number);
                }
            }
            MachineEvent::SendFailed { ticket, error, .. } => {
                if let Some(purpose) = self.in_flight.done(ticket.0) {
                    self.send_failed(purpose, error);
                }
            }
            MachineEvent::Progress(_) => self.core.activity.note(),
            MachineEvent::Expired { received, .. } => {
                warn!(received, "an unfinished message was given up: the host is asked for it again");
                self.close(CloseReason::GroupExpired { received, limit: None });
            }
            _ => {}
        }
    }

    fn message(&mut self, message: &Message, envelope: &Envelope, ordinal: u64) {
        match (Incoming::read(message, envelope), &mut self.handshake) {
            (Incoming::Response { id, outcome }, _) => self.answered(id, outcome, ordinal),
            (Incoming::Other, _) => debug!(bytes = message.len(), "a message that is neither request nor answer"),
            (incoming, Handshake::Done) => self.heard(incoming),
            (incoming, Handshake::Unanswered { early, early_bytes }) => {
                *early_bytes = early_bytes.saturating_add(len64(message.len()));
                early.push(incoming);
                let bytes = *early_bytes;
                if bytes > self.core.config.limits.max_held_bytes {
                    warn!(bytes, "the host sends too much before it answers the handshake");
                    let text = "too much came before the handshake was answered".to_owned();
                    self.close(CloseReason::Program(PROTOCOL_ERROR, text));
                }
            }
        }
    }

    /// A notification or a request of the host.
    fn heard(&mut self, incoming: Incoming) {
        let session = &mut self.core.session;
        match incoming {
            Incoming::Action(envelope) => session.action(envelope),
            Incoming::Notification { method, params } => session.feed.push(Event::Notification { method, params }),
            Incoming::Request { id, method, .. } if self.core.unanswered >= MAX_UNANSWERED => {
                warn!(method, "the host asks too much at once");
                self.hand(SendPurpose::Other, wire::error(&id, BUSY, "too many requests wait"), None, Lane::Auto);
            }
            Incoming::Request { id, method, params } => {
                self.core.unanswered = self.core.unanswered.saturating_add(1);
                let (replies, permit) = (self.core.reply_to.clone(), self.core.reply_limit.clone());
                let responder = Responder::new(id, self.core.connections, replies, permit);
                self.core.session.feed.push(Event::Request { method, params, responder });
            }
            Incoming::Response { .. } | Incoming::Other => {}
        }
    }

    fn answered(&mut self, id: u64, outcome: Result<Message, RequestError>, ordinal: u64) {
        match self.requests.remove(&id) {
            Some(PendingRequest::Request(answer)) => drop(answer.send(outcome)),
            Some(PendingRequest::Subscribe(channel)) => self.core.session.subscribed(&channel, outcome),
            // The link is being closed. The next connection begins with a handshake of its own.
            Some(PendingRequest::Initialize | PendingRequest::Reconnect)
                if self.phase != ConnectionPhase::Handshake => {}
            Some(PendingRequest::Initialize) => self.initialized(outcome, ordinal),
            Some(PendingRequest::Reconnect) => self.reconnected(outcome, ordinal),
            None => debug!(id, "an answer that nobody waits for"),
        }
    }

    /// Carries out a command, at once if it may overtake others, else in turn.
    fn command(&mut self, command: Option<Command>) {
        match command {
            None => self.phase = ConnectionPhase::Stopping { drained: true },
            Some(Command::Request(request)) if request.order == SendOrder::Free => self.request(request),
            Some(Command::Dispatch(dispatched)) if self.goes_ahead(&dispatched) => {
                let (purpose, text) = (SendPurpose::Action(dispatched.client_seq), dispatched.text());
                let lane = dispatched.order.lane();
                self.core.session.unconfirmed.hand_ahead(dispatched);
                self.hand(purpose, text, None, lane);
            }
            Some(command) => self.core.pending.push_back(command),
        }
    }

    /// Whether an action may overtake earlier commands.
    fn goes_ahead(&self, dispatched: &Dispatched) -> bool {
        let is_before = |command: &Command| match command {
            Command::Dispatch(before) => before.channel == dispatched.channel,
            _ => false,
        };
        match dispatched.order {
            SendOrder::InOrder => false,
            SendOrder::Free => true,
            SendOrder::Ahead => {
                let kept = &self.core.session.unconfirmed;
                !kept.has_waiting(&dispatched.channel) && !self.core.pending.iter().any(is_before)
            }
        }
    }

    /// Carries out a command whose turn it is.
    fn act(&mut self, command: Command) {
        match command {
            Command::Request(request) => self.request(request),
            Command::Dispatch(dispatched) => self.core.session.unconfirmed.push(dispatched),
            Command::Subscribe { channel, waiter } => {
                self.core.session.want(&channel, waiter);
                self.subscribe(channel);
            }
            Command::Unsubscribe { channel } => {
                self.core.session.unwant(&channel);
                let text = wire::notification("unsubscribe", &wire::of_channel(&channel));
                self.hand(SendPurpose::Other, text, None, Lane::Auto);
            }
        }
    }

    fn request(&mut self, request: Request) {
        let Request { method, params, answer, order, permit } = request;
        if self.requests.len() >= MAX_REQUESTS {
            self.requests
                .retain(|_, pending| !matches!(pending, PendingRequest::Request(answer) if answer.is_closed()));
        }
        // If the caller gave up meanwhile, the request is not sent.
        if !answer.is_closed() {
            self.ask(PendingRequest::Request(answer), &method, &params, Some(permit), order.lane());
        }
    }

    fn subscribe(&mut self, channel: String) {
        let params = wire::of_channel(&channel);
        self.ask(PendingRequest::Subscribe(channel), "subscribe", &params, None, Lane::Auto);
    }

    fn reply(&mut self, reply: Reply) {
        self.core.unanswered = self.core.unanswered.saturating_sub(1);
        if reply.connection == self.core.connections {
            self.hand(SendPurpose::Other, reply.text, reply.permit, Lane::Auto);
        }
    }

    fn ask(
        &mut self,
        pending: PendingRequest,
        method: &str,
        params: &Message,
        permit: Option<OwnedSemaphorePermit>,
        lane: Lane,
    ) {
        self.core.last_id = self.core.last_id.saturating_add(1);
        let id = self.core.last_id;
        self.requests.insert(id, pending);
        self.hand(SendPurpose::Request(id), wire::request(id, method, params), permit, lane);
    }

    fn hand(&mut self, purpose: SendPurpose, text: Message, permit: Option<OwnedSemaphorePermit>, lane: Lane) {
        let ticket = Ticket(self.in_flight.add(purpose, text.len(), permit));
        self.driver.handle(Input::Send { ticket, message: text, lane, meta: Meta::default() });
    }

    /// A message was not sent, or not whole.
    fn send_failed(&mut self, purpose: SendPurpose, error: SendError) {
        match purpose {
            SendPurpose::Other => debug!("an answer was not sent: {error}"),
            SendPurpose::Request(id) => match self.requests.remove(&id) {
                Some(PendingRequest::Request(answer)) if error == SendError::Disconnected => {
                    drop(answer.send(Err(RequestError::Disconnected)));
                }
                Some(PendingRequest::Request(answer)) => drop(answer.send(Err(RequestError::Unsendable(error)))),
                Some(PendingRequest::Initialize | PendingRequest::Reconnect) => {
                    self.fail(format!("the handshake was not sent: {error}"), CloseReason::Normal);
                }
                // The channel is still wanted. The next connection subscribes to it.
                Some(PendingRequest::Subscribe(_)) | None => {}
            },
            // The action waits for the next connection.
            SendPurpose::Action(_) if error == SendError::Disconnected => {}
            SendPurpose::Action(number) => {
                let lost = self.core.session.unconfirmed.unsendable(number, LossReason::Unsendable(error));
                self.core.session.lose(lost);
            }
        }
    }

    /// Something has arrived or left, so the handshake makes progress: its deadline begins anew.
    fn put_off(&mut self) {
        if self.phase == ConnectionPhase::Handshake {
            self.deadline = after(self.core.config.connect_timeout);
        }
    }

    fn too_late(&mut self) {
        if self.phase == ConnectionPhase::Handshake {
            let limit = self.core.config.connect_timeout.as_secs_f32();
            self.fail(format!("the handshake was not answered within {limit} s"), CloseReason::Normal);
        } else {
            self.close(CloseReason::Normal);
        }
    }

    /// The client is being closed: takes no new commands, and sends the earlier ones first.
    fn stop(&mut self) {
        self.core.commands.close();
        if self.phase == ConnectionPhase::Live {
            self.phase = ConnectionPhase::Stopping { drained: false };
            self.deadline = after(CLOSE_TIME);
        } else {
            self.close(CloseReason::Normal);
        }
    }

    /// The handshake has failed.
    fn fail(&mut self, why: String, reason: CloseReason) {
        info!("{why}");
        self.failure = Some(why);
        self.close(reason);
    }

    fn close(&mut self, reason: CloseReason) {
        if self.phase != ConnectionPhase::Closing {
            self.phase = ConnectionPhase::Closing;
            self.driver.handle(Input::Close(reason));
        }
    }

    /// The link has ended. Callers that wait for an answer get an error.
    fn ended(mut self, reason: &CloseReason) -> ConnectionEnd {
        for (_, pending) in self.requests.drain() {
            if let PendingRequest::Request(answer) = pending {
                drop(answer.send(Err(RequestError::Disconnected)));
            }
        }
        let lost = self.core.session.unconfirmed.disconnected(reason.code());
        self.core.session.lose(lost);
        let lived = self.live_since.map(|since| since.elapsed());
        info!(code = reason.code(), lived = ?lived, "disconnected: {reason}");
        let never = match reason {
            CloseReason::Peer { code } if self.core.config.never.contains(code) => {
                Some(NextAttempt::Never(Reason::Peer { code: *code }))
            }
            _ => None,
        };
        let asked = self.core.stop.is_cancelled().then_some(NextAttempt::Never(Reason::Asked));
        let next = match self.next {
            Some(next @ NextAttempt::Never(_)) => next,
            decided => never.or(asked).or(decided).unwrap_or(NextAttempt::Wait),
        };
        let failure = match (lived, &next) {
            (Some(_), _) | (None, NextAttempt::AtOnce) => None,
            (None, _) => Some(self.failure.unwrap_or_else(|| self.driver.describe_end(reason))),
        };
        ConnectionEnd { next, lived, failure }
    }
}

/// The time after a duration from now, or in the far future if it cannot be represented.
fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + FAR)
}
