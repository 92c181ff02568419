//! Frees large messages in a background thread, because to free tens of megabytes takes the system milliseconds.

use breakbulk_proto::{Event, Input, Message, Ticket};
use tokio::runtime::Handle;

use crate::link::Link;
use crate::memory::Reservation;

/// Shorter messages are freed at once: that takes no longer than to hand them to a thread.
const MIN_DEFERRED_BYTES: usize = 4 << 20;

/// Large messages that a machine is sending. They are kept here until they are sent. Otherwise the machine would hold the last copy,
/// and free it before it returns the last frame, while that frame and everything after it wait.
#[derive(Debug, Default)]
pub(crate) struct SendingMessages(Vec<(Ticket, Message)>);

impl SendingMessages {
    /// Keeps a copy of a message that a machine is told to send, if it is large and will be cut. A message that is sent in one frame
    /// is passed to the link, and not freed by the machine.
    pub(crate) fn note_input(&mut self, input: &Input, link: &impl Link) {
        if let Input::Send { ticket, message, .. } = input
            && message.len() >= MIN_DEFERRED_BYTES
            && u64::try_from(message.len()).is_ok_and(|len| len > link.capacity().cap)
        {
            self.0.push((*ticket, message.clone()));
        }
    }

    /// Frees a message when the machine reports that it was sent, or will not be.
    pub(crate) fn note_event(&mut self, event: &Event) {
        let done = match event {
            _ if self.0.is_empty() => return,
            Event::Sent { ticket } | Event::SendFailed { ticket, .. } => Some(*ticket),
            Event::Closed(_) => None,
            _ => return,
        };
        let is_done = |(ticket, _): &mut (Ticket, Message)| done.is_none_or(|done| *ticket == done);
        self.0.extract_if(.., is_done).for_each(|(_, message)| drop_in_background(message, Reservation::default()));
    }
}

/// Frees a message, in a background thread if it is large. Its reservation is given back only after that, because others use the
/// memory at once.
pub(crate) fn drop_in_background(message: Message, reservation: Reservation) {
    if message.len() >= MIN_DEFERRED_BYTES
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn_blocking(move || (drop(message), drop(reservation)));
    }
}
