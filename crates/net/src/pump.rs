//! A task that owns a driver, and the channels through which an application talks to it.
//!
//! The official crates may drop a pending read at any time, and do not read while they write. So they only use channels, and the task
//! serves the link whatever they do.

mod ended;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Sleep;
use tracing::{debug, error, info, warn};

use breakbulk_proto::{Account, CloseReason, Event, Input, Machine, Message, Ticket};

use crate::dialect::Setup;
use crate::driver::Driver;
use crate::len64;
use crate::link::Link;

use self::ended::ABNORMAL;

pub use self::ended::Ended;

/// How long accepted messages may still be sent after the application has dropped its end.
const LINGER: Duration = Duration::from_secs(5);

/// How many messages a channel holds in each direction. Only one, because a message may be of any size.
const DEPTH: usize = 1;

/// How many bytes of a line that is no message are logged.
const LOGGED: usize = 512;

/// The application's end: whole messages in both directions. When it is dropped, the task ends after everything was sent.
#[derive(Debug)]
pub(crate) struct Port {
    outgoing: mpsc::Sender<Message>,
    incoming: mpsc::Receiver<Message>,
    /// Dropped to tell the task that the application is done.
    stay: Option<oneshot::Sender<Infallible>>,
    ended: Ended,
}

impl Port {
    /// Starts the task. Sending waits while more bytes are unsent than the limits allow.
    pub(crate) fn open<L: Link + 'static>(link: L, setup: &Setup, account: Account) -> Self {
        match setup.machine(account) {
            Ok(machine) => Self::drive(link, machine, setup.limits.max_queued_bytes),
            Err(error) => {
                error!("no connection without random bytes: {error}");
                let (port, ..) = Self::pair(0);
                port
            }
        }
    }

    /// Starts the task for a machine on a link, with up to `max_unsent` bytes of unsent messages.
    fn drive<L: Link + 'static, M: Machine + Send + 'static>(link: L, machine: M, max_unsent: u64) -> Self {
        let (port, mut pump, ended) = Self::pair(max_unsent);
        let driver = Driver::new(link, machine);
        // The reason is set when the link and all messages are dropped. Who sees the end of the messages can then ask for it.
        tokio::spawn(async move { ended.send_replace(Some(pump.run(driver).await)) });
        port
    }

    fn pair(max_unsent: u64) -> (Self, Pump, watch::Sender<Option<CloseReason>>) {
        let (to_pump, outgoing) = mpsc::channel(DEPTH);
        let (to_port, incoming) = mpsc::channel(DEPTH);
        let (stay, leave) = oneshot::channel();
        let (reason, ended) = watch::channel(None);
        let port = Self { outgoing: to_pump, incoming, stay: Some(stay), ended: Ended(ended) };
        (port, Pump::new(outgoing, to_port, leave, max_unsent), reason)
    }

    /// Sends messages. It may be cloned, and may outlive the port.
    pub(crate) const fn sender(&self) -> &mpsc::Sender<Message> {
        &self.outgoing
    }

    /// The next message; `None` when there will be no more. Then either the connection has ended, and [`Ended::reason`] says why, or the
    /// peer has ended its direction and still reads. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Option<Message> {
        self.incoming.recv().await
    }

    /// Waits until everything was sent, closes the link, and waits for its end: a few seconds at most.
    pub(crate) async fn close(&mut self) {
        self.stay = None;
        self.incoming.close();
        self.ended.wait().await;
    }

    /// How it ends.
    pub(crate) const fn ended(&self) -> &Ended {
        &self.ended
    }
}

/// The state of the task, beside its driver.
struct Pump {
    outgoing: mpsc::Receiver<Message>,
    /// `None` when the peer sends nothing more.
    incoming: Option<mpsc::Sender<Message>>,
    leave: oneshot::Receiver<Infallible>,
    /// A message of the application that waits until fewer bytes are unsent.
    next: Option<Message>,
    /// Messages for the application that do not fit the channel yet. Until they do, the link is not read.
    held: VecDeque<Message>,
    /// Why the connection is over. The task ends when the application has taken all messages.
    closed: Option<CloseReason>,
    /// The bytes of each message that is not sent yet.
    unsent: HashMap<Ticket, u64>,
    unsent_bytes: u64,
    max_unsent: u64,
    tickets: u64,
    stage: Stage,
}

/// Whether the application still has its end.
enum Stage {
    Here,
    /// The application has dropped its end and reads nothing more. Its last messages have this long to be sent.
    Leaving(Pin<Box<Sleep>>),
    /// The machine was told to close.
    Left,
}

impl Stage {
    /// Resolves when the time for sending the rest is over; never while the application has its end.
    async fn is_late(&mut self) {
        match self {
            Self::Leaving(linger) => linger.await,
            Self::Here | Self::Left => pending().await,
        }
    }
}

impl Pump {
    fn new(
        outgoing: mpsc::Receiver<Message>,
        incoming: mpsc::Sender<Message>,
        leave: oneshot::Receiver<Infallible>,
        max_unsent: u64,
    ) -> Self {
        Self {
            outgoing,
            incoming: Some(incoming),
            leave,
            next: None,
            held: VecDeque::new(),
            closed: None,
            unsent: HashMap::new(),
            unsent_bytes: 0,
            max_unsent,
            tickets: 0,
            stage: Stage::Here,
        }
    }

    /// Moves messages until the connection has ended. Returns why it ended.
    async fn run<L: Link, M: Machine>(&mut self, mut driver: Driver<L, M>) -> CloseReason {
        loop {
            self.admit(&mut driver);
            let is_held = !self.held.is_empty();
            if let Some(reason) = self.closed.take_if(|_| !is_held) {
                return reason;
            }
            let (is_open, is_free) = (self.closed.is_none(), self.next.is_none());
            let (is_here, is_heard) = (matches!(self.stage, Stage::Here), self.incoming.is_some());
            driver.set_reading(!is_held);
            tokio::select! {
                step = poll_fn(|cx| poll_driver(&mut driver, is_heard && !is_held, cx)), if is_open => match step {
                    DriverStep::Event(event) => self.note(event),
                    DriverStep::Ended => self.incoming = None,
                },
                Some(message) = self.outgoing.recv(), if is_open && is_free => self.next = Some(message),
                // The official client passes messages on through channels that drop what does not fit. So other tasks get a turn before the
                // next message.
                () = hand(self.incoming.as_ref(), &mut self.held), if is_held => tokio::task::yield_now().await,
                _ = &mut self.leave, if is_here => self.begin_to_leave(),
                () = self.stage.is_late() => self.left(&mut driver),
            }
        }
    }

    /// Gives the machine the application's next message, if not too many bytes are unsent.
    fn admit<L: Link, M: Machine>(&mut self, driver: &mut Driver<L, M>) {
        let left = self.max_unsent.saturating_sub(self.unsent_bytes);
        // A message that is larger than the limit is passed on when nothing else waits, so that the machine refuses it. It would wait
        // for ever otherwise.
        let fits = |message: &mut Message| self.unsent.is_empty() || len64(message.len()) <= left;
        if let Some(message) = self.next.take_if(fits) {
            self.tickets = self.tickets.wrapping_add(1);
            let len = len64(message.len());
            self.unsent.insert(Ticket(self.tickets), len);
            self.unsent_bytes = self.unsent_bytes.saturating_add(len);
            driver.handle(Input::send(Ticket(self.tickets), message));
        }
        let is_drained = self.next.is_none() && self.outgoing.is_empty() && self.unsent.is_empty();
        if is_drained && matches!(self.stage, Stage::Leaving(_)) {
            self.left(driver);
        }
    }

    /// Handles an event. A message for the application is put into `held`.
    fn note(&mut self, event: Event) {
        let message = match event {
            Event::Message { message, .. } => Some(message),
            Event::Sent { ticket } => {
                self.settle(ticket);
                None
            }
            Event::SendFailed { ticket, error, reply } => {
                warn!(reason = error.name(), "message not sent: {error}");
                self.settle(ticket);
                reply
            }
            Event::ReceiveFailed { violation, reply, .. } => {
                warn!(reason = violation.name(), "message not received: {violation}");
                reply
            }
            Event::Expired { received, .. } => {
                warn!(reason = "group-expired", received, "an unfinished message was given up");
                None
            }
            Event::Closed(reason) => {
                info!(reason = reason.name(), code = reason.code(), "connection closed: {reason}");
                // A caller that waits to send gets an error at once, even if nobody reads.
                self.outgoing.close();
                (self.next, self.closed) = (None, Some(reason));
                None
            }
            Event::Line(line) => {
                let text = String::from_utf8_lossy(line.get(..LOGGED).unwrap_or(&line));
                info!(bytes = line.len(), "peer's log: {text}");
                None
            }
            other => {
                debug!("{other:?}");
                None
            }
        };
        self.held.extend(message.filter(|_| matches!(self.stage, Stage::Here)));
    }

    fn settle(&mut self, ticket: Ticket) {
        let len = self.unsent.remove(&ticket).unwrap_or(0);
        self.unsent_bytes = self.unsent_bytes.saturating_sub(len);
    }

    fn begin_to_leave(&mut self) {
        self.outgoing.close();
        self.held.clear();
        self.stage = Stage::Leaving(Box::pin(tokio::time::sleep(LINGER)));
    }

    fn left<L: Link, M: Machine>(&mut self, driver: &mut Driver<L, M>) {
        self.stage = Stage::Left;
        driver.handle(Input::Close(CloseReason::Normal));
    }
}

/// What a driver reports.
enum DriverStep {
    Event(Event),
    /// The peer sends nothing more.
    Ended,
}

/// The driver's next event, or that the peer sends nothing more, if `tells` is set.
fn poll_driver<L: Link, M: Machine>(driver: &mut Driver<L, M>, tells: bool, cx: &mut Context<'_>) -> Poll<DriverStep> {
    match driver.poll_next(cx) {
        Poll::Ready(event) => Poll::Ready(DriverStep::Event(event.unwrap_or(Event::Closed(ABNORMAL)))),
        Poll::Pending if tells && driver.has_ended() => Poll::Ready(DriverStep::Ended),
        Poll::Pending => Poll::Pending,
    }
}

/// Gives the application the first held message, as soon as it fits the channel. Cancel-safe.
async fn hand(incoming: Option<&mpsc::Sender<Message>>, held: &mut VecDeque<Message>) {
    let permit = match incoming {
        Some(incoming) => incoming.reserve().await.ok(),
        None => None,
    };
    // Without a permit the application is gone, and the message is dropped.
    if let (Some(message), Some(permit)) = (held.pop_front(), permit) {
        permit.send(message);
    }
}
