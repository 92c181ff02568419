//! What waits for one link: messages of its peer, within a bound, and what became of its own frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use breakbulk::Acked;
use tokio::sync::mpsc;

use crate::event::Incoming;

/// How many bytes of messages may wait for a link. Ten seconds of a fast relay, and eight windows of the largest frames. What comes
/// beyond that is dropped: one peer that is not read must not stop the others, who share its relays.
const MAX_BYTES: usize = 16 << 20;
/// What a message costs beside its text.
const MESSAGE_COST: usize = 512;

/// What waits for a link.
#[derive(Debug)]
pub(crate) enum Item {
    Message(Incoming),
    /// The session is over, for this reason.
    End(&'static str),
}

/// Puts items into an inbox.
#[derive(Debug, Clone)]
pub(crate) struct InboxSender {
    items: mpsc::UnboundedSender<Item>,
    acked: mpsc::UnboundedSender<Acked>,
    held: Arc<AtomicUsize>,
}

/// The items that wait for a link.
#[derive(Debug)]
pub(crate) struct Inbox {
    items: mpsc::UnboundedReceiver<Item>,
    /// Apart from the messages, because a link that is not read still has to know what became of its frames.
    acked: mpsc::UnboundedReceiver<Acked>,
    held: Arc<AtomicUsize>,
}

/// The inbox has no room for a message.
#[derive(Debug)]
pub(crate) struct Full;

pub(crate) fn inbox() -> (InboxSender, Inbox) {
    let (items_sender, items) = mpsc::unbounded_channel();
    let (acked_sender, acked) = mpsc::unbounded_channel();
    let held = Arc::<AtomicUsize>::default();
    let sender = InboxSender { items: items_sender, acked: acked_sender, held: Arc::clone(&held) };
    (sender, Inbox { items, acked, held })
}

impl InboxSender {
    /// Delivers a message. Whoever sends a transfer too fast loses a chunk, and the transfer fails with a named error.
    pub(crate) fn message(&self, message: Incoming) -> Result<(), Full> {
        let cost = message.text.len() + MESSAGE_COST;
        if self.held.fetch_add(cost, Ordering::Relaxed) + cost > MAX_BYTES {
            self.held.fetch_sub(cost, Ordering::Relaxed);
            return Err(Full);
        }
        // A link that is gone needs no messages.
        let _ = self.items.send(Item::Message(message));
        Ok(())
    }

    /// Reports what became of a frame. There are never more reports than frames of the link under way.
    pub(crate) fn acked(&self, acked: Acked) {
        let _ = self.acked.send(acked);
    }

    /// Ends the session.
    pub(crate) fn end(&self, why: &'static str) {
        let _ = self.items.send(Item::End(why));
    }

    /// Whether the link is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.items.is_closed()
    }
}

impl Inbox {
    /// What became of a frame.
    pub(crate) fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        match self.acked.poll_recv(cx) {
            Poll::Ready(Some(acked)) => Poll::Ready(acked),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// The next message, or the end.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.items.poll_recv(cx).map(|item| {
            if let Some(Item::Message(message)) = &item {
                self.held.fetch_sub(message.text.len() + MESSAGE_COST, Ordering::Relaxed);
            }
            item
        })
    }
}
