//! Two machines in one thread: what one transmits, the other is handed.

use std::time::Instant;

use breakbulk_proto::{Event, Input, Machine, Message, Meta, Ticket, Transmit};

/// A frame on its way.
pub(crate) type Frame = (bytes::Bytes, Meta);

/// A sender and a receiver, connected.
pub(crate) struct Pair<M> {
    sender: M,
    receiver: M,
    now: Instant,
    /// A request of the receiver's that comes before each message, where only an answer may be large.
    ask: Option<Message>,
}

impl<M: Machine> Pair<M> {
    /// Connects two machines.
    pub(crate) fn new(sender: M, receiver: M, ask: Option<Message>) -> Self {
        Self { sender, receiver, now: Instant::now(), ask }
    }

    /// Hands a message to the sender; returns it as the receiver gives it out, and how many frames it took.
    pub(crate) fn carry(&mut self, message: Message) -> (Message, usize) {
        self.send(message);
        let mut frames = 0;
        let mut arrived = None;
        while let Some(frame) = self.transmit() {
            frames += 1;
            arrived = self.deliver(frame).or(arrived);
        }
        (arrived.expect("the message arrives"), frames)
    }

    /// Hands a message to the sender.
    pub(crate) fn send(&mut self, message: Message) {
        if let Some(ask) = self.ask.clone() {
            self.receiver.handle(Input::send(Ticket(0), ask), self.now);
            while let Some((bytes, meta)) = poll(&mut self.receiver, self.now) {
                self.sender.handle(Input::Frame { bytes, meta }, self.now);
            }
            while self.sender.poll_event().is_some() || self.receiver.poll_event().is_some() {}
        }
        self.sender.handle(Input::send(Ticket(1), message), self.now);
    }

    /// The sender's next frame. What the receiver answers in between is passed back.
    pub(crate) fn transmit(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = poll(&mut self.sender, self.now) {
                return Some(frame);
            }
            let (bytes, meta) = poll(&mut self.receiver, self.now)?;
            self.sender.handle(Input::Frame { bytes, meta }, self.now);
        }
    }

    /// Hands a frame to the receiver; returns the message that it completes.
    pub(crate) fn deliver(&mut self, (bytes, meta): Frame) -> Option<Message> {
        self.receiver.handle(Input::Frame { bytes, meta }, self.now);
        let mut arrived = None;
        while let Some(event) = self.receiver.poll_event() {
            match event {
                Event::Message { message, .. } => arrived = Some(message),
                Event::Progress(_) => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
        while let Some(event) = self.sender.poll_event() {
            assert!(matches!(event, Event::Sent { .. } | Event::Progress(_)), "unexpected: {event:?}");
        }
        arrived
    }
}

fn poll<M: Machine>(machine: &mut M, now: Instant) -> Option<Frame> {
    match machine.poll_transmit(now)? {
        Transmit::Frame { bytes, meta, .. } => Some((bytes.to_bytes(), meta)),
        Transmit::Close(reason) => panic!("closed: {reason}"),
    }
}
