//! Between an application and the link: a task that runs the machine, one that runs none, and the official trait.

use std::sync::{Arc, Mutex, PoisonError};

use ahp::{Transport, TransportError, TransportMessage};
use breakbulk_proto::ahp::Connection;
use breakbulk_proto::{Capacity, CloseReason, Event, Input, Machine, Message, Ticket, Transmit};
use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use super::link::LinkEnd;

/// An application's side: whole messages.
pub(crate) struct Port {
    pub(crate) tx: UnboundedSender<Bytes>,
    pub(crate) rx: UnboundedReceiver<Bytes>,
}

/// What one side saw, beyond single connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tape(Arc<Mutex<Record>>);

/// Messages and closes, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    /// Messages that the application gave us.
    pub(crate) accepted: Vec<Bytes>,
    /// Messages that we gave the application.
    pub(crate) delivered: Vec<Bytes>,
    /// Why each connection ended.
    pub(crate) closed: Vec<CloseReason>,
}

impl Tape {
    pub(crate) fn record(&self) -> Record {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, note: impl FnOnce(&mut Record)) {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Runs `machine` between the link and the application that gets the returned port.
pub(crate) fn drive(machine: Connection, cap: Option<u64>, end: LinkEnd, tape: Tape) -> Port {
    let (port, inner) = ports();
    tokio::spawn(Driver { machine, end, port: inner, tape, ticket: 0 }.run(cap));
    port
}

/// Passes messages as they are, as a program does that knows nothing of segments.
pub(crate) fn pass(mut end: LinkEnd, tape: Tape) -> Port {
    let (port, mut inner) = ports();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                frame = end.rx.recv() => {
                    let Some(frame) = frame else { return };
                    tape.note(|record| record.delivered.push(frame.clone()));
                    let _ = inner.tx.send(frame);
                }
                message = inner.rx.recv() => {
                    let Some(message) = message else { return };
                    tape.note(|record| record.accepted.push(message.clone()));
                    let _ = end.tx.send(message).await;
                }
            }
        }
    });
    port
}

fn ports() -> (Port, Port) {
    let (outer_tx, inner_rx) = unbounded_channel();
    let (inner_tx, outer_rx) = unbounded_channel();
    (Port { tx: outer_tx, rx: outer_rx }, Port { tx: inner_tx, rx: inner_rx })
}

struct Driver {
    machine: Connection,
    end: LinkEnd,
    port: Port,
    tape: Tape,
    ticket: u64,
}

impl Driver {
    async fn run(mut self, cap: Option<u64>) {
        if let Some(cap) = cap {
            self.handle(Input::Capacity(Capacity::of(cap)));
        }
        loop {
            let blocked = self.transmit();
            if self.tell().await {
                return;
            }
            self.wait(blocked).await;
        }
    }

    fn handle(&mut self, input: Input) {
        self.machine.handle(input, Instant::now().into_std());
    }

    /// Makes frames while the link takes them. Returns whether the link is full.
    fn transmit(&mut self) -> bool {
        loop {
            let permit = match self.end.tx.try_reserve() {
                Ok(permit) => permit,
                Err(TrySendError::Full(())) => return true,
                Err(TrySendError::Closed(())) => {
                    let gone = Input::Close(CloseReason::Peer { code: 1006 });
                    self.machine.handle(gone, Instant::now().into_std());
                    return false;
                }
            };
            match self.machine.poll_transmit(Instant::now().into_std()) {
                Some(Transmit::Frame { bytes, .. }) => permit.send(bytes.to_bytes()),
                Some(Transmit::Close(_)) | None => return false,
            }
        }
    }

    /// Tells the application what happened. Returns whether that was the last of it.
    async fn tell(&mut self) -> bool {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Message { message, .. } | Event::SendFailed { reply: Some(message), .. } => {
                    self.deliver(&message).await;
                }
                Event::Closed(reason) => {
                    self.tape.note(|record| record.closed.push(reason));
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// The client's broadcast channels skip what they have no room for, so it gets a turn after each message.
    async fn deliver(&mut self, message: &Message) {
        let bytes = message.to_bytes();
        self.tape.note(|record| record.delivered.push(bytes.clone()));
        let _ = self.port.tx.send(bytes);
        tokio::task::yield_now().await;
    }

    /// Waits for the next thing to happen. The time comes last: what has arrived counts before it.
    async fn wait(&mut self, blocked: bool) {
        let due = self.machine.poll_timeout().map(Instant::from_std);
        let input = tokio::select! {
            biased;
            message = self.port.rx.recv() => match message {
                Some(message) => {
                    self.tape.note(|record| record.accepted.push(message.clone()));
                    self.ticket += 1;
                    Some(Input::send(Ticket(self.ticket), message))
                }
                None => Some(Input::Close(CloseReason::Normal)),
            },
            frame = self.end.rx.recv(), if self.machine.wants_frames() => {
                Some(frame.map_or(Input::Close(CloseReason::Peer { code: 1006 }), Input::frame))
            }
            _ = self.end.tx.reserve(), if blocked => None,
            () = sleep_until(due) => Some(Input::Timeout),
        };
        if let Some(input) = input {
            self.handle(input);
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// What the official client is given. It drops `recv` whenever it has something to send, and does not read while it
/// sends: both only touch channels, so neither loses anything nor waits for the other.
impl Transport for Port {
    async fn send(&mut self, message: TransportMessage) -> Result<(), TransportError> {
        let text = match message {
            TransportMessage::Text(text) => text,
            other => panic!("the client sends text: {other:?}"),
        };
        self.tx.send(text.into()).map_err(|_| TransportError::Closed)
    }

    async fn recv(&mut self) -> Result<Option<TransportMessage>, TransportError> {
        let text = |bytes: Bytes| String::from_utf8(bytes.into()).map_err(|e| TransportError::Protocol(e.to_string()));
        self.rx.recv().await.map(text).transpose().map(|text| text.map(TransportMessage::Text))
    }
}
