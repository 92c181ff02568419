//! Large messages are let go of where nobody waits for it: to free tens of megabytes takes the system milliseconds.

use breakbulk_proto::{Event, Input, Message, Ticket};
use tokio::runtime::Handle;

use crate::link::Link;
use crate::memory::Reservation;

/// Below this, freeing takes no longer than having it done.
const MIN_DEFERRED_BYTES: usize = 4 << 20;

/// Large messages that a machine sends. SendingMessages until they are sent: else the machine would be the last to hold one, and
/// would free it before it hands out the last frame, and before all that waits behind that.
#[derive(Debug, Default)]
pub(crate) struct SendingMessages(Vec<(Ticket, Message)>);

impl SendingMessages {
    /// Takes hold of what a machine is told to send, if that is large and will be cut. What goes out in one frame is the
    /// link's when the machine is done with it.
    pub(crate) fn note_input(&mut self, input: &Input, link: &impl Link) {
        if let Input::Send { ticket, message, .. } = input
            && message.len() >= MIN_DEFERRED_BYTES
            && u64::try_from(message.len()).is_ok_and(|len| len > link.capacity().cap)
        {
            self.0.push((*ticket, message.clone()));
        }
    }

    /// Lets go of what a machine will not send any more.
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

/// Lets go of a message, in a thread of its own if it is large; and then of its memory, which others take at once.
pub(crate) fn drop_in_background(message: Message, reservation: Reservation) {
    if message.len() >= MIN_DEFERRED_BYTES
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn_blocking(move || (drop(message), drop(reservation)));
    }
}
