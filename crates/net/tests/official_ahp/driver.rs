//! The host's side of a link: a task that runs the machine, and what the model host is given for it.

use breakbulk::{AnyMachine, Driver, Link};
use breakbulk_proto::{CloseReason, Event, Input, Ticket};
use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

/// An application's side: whole messages.
pub(crate) struct Port {
    pub(crate) tx: UnboundedSender<Bytes>,
    pub(crate) rx: UnboundedReceiver<Bytes>,
}

/// What ends a connection from the host's side.
#[derive(Debug)]
pub(crate) struct Line {
    task: AbortHandle,
    close: UnboundedSender<CloseReason>,
}

impl Line {
    /// Cuts the link, without a close.
    pub(crate) fn cut(&self) {
        self.task.abort();
    }

    /// Closes the link.
    pub(crate) fn close(&self, reason: CloseReason) {
        let _ = self.close.send(reason);
    }
}

/// Runs `machine` between the link and the application that gets the returned port.
pub(crate) fn drive<L: Link + 'static>(link: L, machine: AnyMachine) -> (Port, Line) {
    let (tx, mut from_host) = unbounded_channel();
    let (to_host, rx) = unbounded_channel();
    let (close, mut closing) = unbounded_channel();
    let task = tokio::spawn(async move {
        let mut driver = Driver::new(link, machine);
        let mut ticket = 0;
        loop {
            let input = tokio::select! {
                event = driver.next() => match event {
                    Some(Event::Message { message, .. }) => {
                        let _ = to_host.send(message.to_bytes());
                        continue;
                    }
                    Some(Event::Closed(_)) | None => return,
                    Some(_) => continue,
                },
                Some(message) = from_host.recv() => {
                    ticket += 1;
                    Input::send(Ticket(ticket), Bytes::clone(&message))
                }
                Some(reason) = closing.recv() => Input::Close(reason),
            };
            driver.handle(input);
        }
    });
    (Port { tx, rx }, Line { task: task.abort_handle(), close })
}
