//! A task that owns a driver, and the channels through which an application talks to it.
//!
//! The official crates drop a pending read at will and do not read while they write. So they only ever touch channels,
//! and the link is served whatever they do.

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
use crate::driver::{self, Driver};
use crate::link::Link;

/// How long messages that were accepted may still go out after the application has left.
const LINGER: Duration = Duration::from_secs(5);

/// Messages that wait in a channel, each way. They may be of any size, so there is no room for more.
const DEPTH: usize = 1;

/// The most bytes of a stray line that go to the log.
const LOGGED: usize = 512;

/// What a connection that ended without a word counts as.
const ABNORMAL: CloseReason = CloseReason::Peer { code: driver::ABNORMAL };

/// An application's end: whole messages, both ways. Dropping it ends the task, once what was sent is out.
#[derive(Debug)]
pub(crate) struct Port {
    outgoing: mpsc::Sender<Message>,
    incoming: mpsc::Receiver<Message>,
    /// Dropped to leave.
    stay: Option<oneshot::Sender<Infallible>>,
    ended: Ended,
}

impl Port {
    /// Starts the task. Sending waits while more is under way than the limits let queue up.
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

    /// Starts the task for a machine on a link, with up to `max_unsent` bytes of messages under way.
    fn drive<L: Link + 'static, M: Machine + Send + 'static>(link: L, machine: M, max_unsent: u64) -> Self {
        let (port, mut pump, ended) = Self::pair(max_unsent);
        let driver = Driver::new(link, machine);
        // Whoever hears that there is no more can ask why, and the link and what was held are gone by then.
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

    /// What sends messages. It may be cloned, and lives on without the port.
    pub(crate) const fn sender(&self) -> &mpsc::Sender<Message> {
        &self.outgoing
    }

    /// The next message; `None` when there will be no more. Then either [`Ended::reason`] says why, or the peer sends
    /// nothing more but still reads. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Option<Message> {
        self.incoming.recv().await
    }

    /// Lets what was sent go out, closes the link, and waits for the end: some seconds at most.
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

/// How a connection ended, or that it has not. Cloning shares it; it outlives the transport that it came from.
#[derive(Debug, Clone)]
pub struct Ended(watch::Receiver<Option<CloseReason>>);

impl Ended {
    /// Why the connection ended; its [`code`](CloseReason::code) is the link's close code. `None` while it lasts.
    #[must_use]
    pub fn reason(&self) -> Option<CloseReason> {
        let reason = self.0.borrow().clone();
        reason.or_else(|| self.0.has_changed().is_err().then_some(ABNORMAL))
    }

    /// Waits until the connection has ended. Cancel-safe.
    pub async fn wait(&self) -> CloseReason {
        let mut reason = self.0.clone();
        // An error means that the task ended without a word, because its runtime did.
        let _ = reason.wait_for(Option::is_some).await;
        self.reason().unwrap_or(ABNORMAL)
    }
}

/// What the task knows beside its driver.
struct Pump {
    outgoing: mpsc::Receiver<Message>,
    /// `None` when the peer sends nothing more.
    incoming: Option<mpsc::Sender<Message>>,
    leave: oneshot::Receiver<Infallible>,
    /// A message of the application's for which there is no room yet.
    next: Option<Message>,
    /// Messages for the application, which has no room yet. Until it has, nothing more is read from the link.
    held: VecDeque<Message>,
    /// The connection is over, once the application has taken what is held.
    closed: Option<CloseReason>,
    /// Bytes of each message that is not out yet.
    unsent: HashMap<Ticket, u64>,
    unsent_bytes: u64,
    max_unsent: u64,
    tickets: u64,
    stage: Stage,
}

/// How far the application is on its way out.
enum Stage {
    Here,
    /// It has left, and nobody reads any more; what it sent has this long to go out.
    Leaving(Pin<Box<Sleep>>),
    /// The machine was told to close.
    Left,
}

impl Stage {
    /// The time is up for what was sent. Never, for an application that is here.
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

    /// Moves messages until the connection has ended, and says why.
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
                moved = poll_fn(|cx| poll_moved(&mut driver, is_heard && !is_held, cx)), if is_open => match moved {
                    Moved::Event(event) => self.note(event),
                    Moved::Ended => self.incoming = None,
                },
                Some(message) = self.outgoing.recv(), if is_open && is_free => self.next = Some(message),
                // Whoever gets it hands it on through channels that skip what they have no room for. So everybody else
                // gets a turn before the next one.
                () = hand(self.incoming.as_ref(), &mut self.held), if is_held => tokio::task::yield_now().await,
                _ = &mut self.leave, if is_here => self.begin_to_leave(),
                () = self.stage.is_late() => self.left(&mut driver),
            }
        }
    }

    /// Gives the machine the application's next message, if there is room for it.
    fn admit<L: Link, M: Machine>(&mut self, driver: &mut Driver<L, M>) {
        let room = self.max_unsent.saturating_sub(self.unsent_bytes);
        // One that is larger than all the room there is must be refused by the machine, and not wait for ever.
        let fits = |message: &mut Message| self.unsent.is_empty() || len64(message.len()) <= room;
        if let Some(message) = self.next.take_if(fits) {
            self.tickets = self.tickets.wrapping_add(1);
            let len = len64(message.len());
            self.unsent.insert(Ticket(self.tickets), len);
            self.unsent_bytes = self.unsent_bytes.saturating_add(len);
            driver.handle(Input::send(self.tickets, message));
        }
        let is_drained = self.next.is_none() && self.outgoing.is_empty() && self.unsent.is_empty();
        if is_drained && matches!(self.stage, Stage::Leaving(_)) {
            self.left(driver);
        }
    }

    /// Takes note of an event. What the application should hear waits for it in `held`.
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
                // Whoever waits to send must hear of it, and not wait until somebody reads.
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

/// What a driver brings.
enum Moved {
    Event(Event),
    /// The peer sends nothing more.
    Ended,
}

/// The driver's next event, or, if that is still to be told, that the peer sends nothing more.
fn poll_moved<L: Link, M: Machine>(driver: &mut Driver<L, M>, tells: bool, cx: &mut Context<'_>) -> Poll<Moved> {
    match driver.poll_next(cx) {
        Poll::Ready(event) => Poll::Ready(Moved::Event(event.unwrap_or(Event::Closed(ABNORMAL)))),
        Poll::Pending if tells && driver.has_ended() => Poll::Ready(Moved::Ended),
        Poll::Pending => Poll::Pending,
    }
}

/// Gives the application the first that is held, as soon as it has room. Cancel-safe.
async fn hand(incoming: Option<&mpsc::Sender<Message>>, held: &mut VecDeque<Message>) {
    let permit = match incoming {
        Some(incoming) => incoming.reserve().await.ok(),
        None => None,
    };
    // Without a permit there is nobody who would take it.
    if let (Some(message), Some(permit)) = (held.pop_front(), permit) {
        permit.send(message);
    }
}

fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::{FutureExt, Sink, SinkExt, Stream, StreamExt};
    use tokio::time::timeout;

    use breakbulk_proto::ahp::Role;
    use breakbulk_proto::{Budget, Capacity, Limits, Transmit};

    use super::*;
    use crate::dialect::{AnyMachine, Dialect};
    use crate::link::{Arrival, LinkError, Memory, pair};

    /// Messages pass as they are, on a link with room for one frame each way.
    fn open(max_unsent: u64) -> (Port, Memory) {
        let (near, far) = pair(&Capacity::of(1000), 1);
        (Port::drive(near, machine(), max_unsent), far)
    }

    fn machine() -> AnyMachine {
        let setup = Setup::new(Dialect::Plain, Role::Client, Limits::default());
        setup.machine(Budget::default().account(None)).unwrap()
    }

    fn request(n: usize) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":"{n:03}","method":"m"}}"#)
    }

    fn frame(n: usize) -> Transmit {
        Transmit::Frame { tag: Default::default(), bytes: request(n).into(), meta: Default::default() }
    }

    async fn arrived(far: &mut Memory) -> Option<Bytes> {
        match far.next().await {
            Some(Ok(Arrival::Frame { bytes, .. })) => Some(bytes),
            _ => None,
        }
    }

    /// How many times something gets done before it has to wait. The clock is paused: a second passes when all wait.
    async fn count(mut act: impl AsyncFnMut(usize)) -> usize {
        let mut done = 0;
        while timeout(Duration::from_secs(1), act(done)).await.is_ok() {
            done += 1;
            assert!(done < 1000, "it never waits");
        }
        done
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_that_the_application_does_not_take() {
        let (mut port, mut far) = open(1000);
        let taken = count(async |n| far.send(frame(n)).await.unwrap()).await;
        assert!(taken <= 4, "{taken} were read");
        let mut messages = Vec::new();
        while messages.len() < taken {
            messages.push(port.recv().await.unwrap());
        }
        assert!(messages.into_iter().eq((0..taken).map(|n| Message::from(request(n)))));
    }

    #[tokio::test(start_paused = true)]
    async fn sending_waits_when_the_peer_takes_nothing_and_all_arrives_when_it_does() {
        let (port, mut far) = open(3 * request(0).len() as u64);
        let taken = count(async |n| port.sender().send(request(n).into()).await.unwrap()).await;
        assert!((3..=7).contains(&taken), "{taken} were taken");
        for n in 0..taken {
            assert_eq!(arrived(&mut far).await.unwrap(), request(n));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_is_dropped_again_and_again_loses_nothing() {
        let (mut port, mut far) = open(1000);
        tokio::spawn(async move {
            for n in 0..100 {
                far.send(frame(n)).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut messages = Vec::new();
        while messages.len() < 100 {
            match port.recv().now_or_never() {
                Some(message) => messages.push(message.unwrap()),
                None => tokio::task::yield_now().await,
            }
        }
        assert!(messages.into_iter().eq((0..100).map(|n| Message::from(request(n)))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_larger_than_all_there_is_room_for_is_not_waited_for() {
        let (mut port, _far) = open(10);
        let long = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{}"}}"#, "m".repeat(2000));
        port.sender().send(long.into()).await.unwrap();
        let answer = port.recv().await.unwrap().to_bytes();
        assert!(answer.starts_with(br#"{"jsonrpc":"2.0","id":7,"error""#), "{answer:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_goes_out_after_the_application_has_left() {
        let (port, mut far) = open(1_000_000);
        let ended = port.ended().clone();
        for n in 0..20 {
            port.sender().send(request(n).into()).await.unwrap();
        }
        let late = port.sender().clone();
        drop(port);
        for n in 0..20 {
            assert_eq!(arrived(&mut far).await.unwrap(), request(n));
        }
        assert!(matches!(far.next().await, Some(Ok(Arrival::Closed { code: 1000, .. }))));
        assert_eq!(ended.wait().await, CloseReason::Normal);
        assert!(late.send(request(20).into()).await.is_err(), "nothing more is taken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_does_not_keep_the_task_for_ever() {
        let (mut port, far) = open(1_000_000);
        for n in 0..20 {
            port.sender().send(request(n).into()).await.unwrap();
        }
        timeout(Duration::from_secs(11), port.close()).await.unwrap();
        assert_eq!(port.ended().reason(), Some(CloseReason::Normal));
        assert!(port.recv().await.is_none());
        drop(far);
    }

    #[tokio::test(start_paused = true)]
    async fn an_application_that_does_not_read_can_send_any_amount_to_a_peer_that_does() {
        let (port, mut far) = open(3 * request(0).len() as u64);
        count(async |n| far.send(frame(n)).await.unwrap()).await;
        for n in 0..50 {
            port.sender().send(request(n).into()).await.unwrap();
            assert_eq!(arrived(&mut far).await.unwrap(), request(n));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_application_that_waits_to_send_hears_of_the_end_and_can_still_read_what_came_before() {
        let (mut port, mut far) = open(request(0).len() as u64);
        let came = count(async |n| far.send(frame(n)).await.unwrap()).await;
        count(async |n| port.sender().send(request(n).into()).await.unwrap()).await;
        drop(far);
        assert!(port.sender().send(request(0).into()).await.is_err());
        for n in 0..2 {
            assert_eq!(port.recv().await, Some(request(n).into()), "of {came}");
        }
        while port.recv().await.is_some() {}
        assert_eq!(port.ended().reason(), Some(ABNORMAL));
    }

    /// A link on which the peer says with a frame that it sends nothing more.
    struct HalfOpen(Memory);

    impl Link for HalfOpen {
        fn capacity(&self) -> Capacity {
            self.0.capacity()
        }
    }

    impl Stream for HalfOpen {
        type Item = Result<Arrival, LinkError>;

        fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.0.poll_next_unpin(cx).map_ok(|arrival| match arrival {
                Arrival::Frame { bytes, .. } if bytes == "end" => Arrival::Ended,
                other => other,
            })
        }
    }

    impl Sink<Transmit> for HalfOpen {
        type Error = LinkError;

        fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
            self.0.poll_ready_unpin(cx)
        }

        fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
            self.0.start_send_unpin(item)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
            self.0.poll_flush_unpin(cx)
        }

        fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
            self.0.poll_close_unpin(cx)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_nothing_more_still_gets_its_answers() {
        let (near, mut far) = pair(&Capacity::of(1000), 8);
        let mut port = Port::drive(HalfOpen(near), machine(), 1000);
        far.send(frame(0)).await.unwrap();
        far.send(frame(1)).await.unwrap();
        let (tag, meta) = (Default::default(), Default::default());
        far.send(Transmit::Frame { tag, bytes: "end".into(), meta }).await.unwrap();
        assert_eq!(port.recv().await, Some(request(0).into()));
        assert_eq!(port.recv().await, Some(request(1).into()));
        assert!(port.recv().await.is_none() && port.ended().reason().is_none());
        port.sender().send(request(2).into()).await.unwrap();
        port.close().await;
        assert_eq!(arrived(&mut far).await.unwrap(), request(2));
        assert!(matches!(far.next().await, Some(Ok(Arrival::Closed { code: 1000, .. }))));
    }

    #[test]
    fn a_connection_whose_runtime_is_gone_has_ended() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (port, _far) = runtime.block_on(async { open(1000) });
        assert_eq!(port.ended().reason(), None);
        drop(runtime);
        assert_eq!(port.ended().reason(), Some(ABNORMAL));
    }
}
