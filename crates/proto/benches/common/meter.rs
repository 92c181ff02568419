//! What each end of a pair allocates while it carries a message.

use allocation_counter::measure;
use breakbulk_proto::{Machine, Message};

use crate::pair::Pair;

/// One end's memory, from the moment that the message was handed over. The message itself is not counted.
#[derive(Default, Clone, Copy, Debug)]
pub(crate) struct Meter {
    pub(crate) allocations: u64,
    /// Bytes held now; negative when more was freed than allocated.
    held: i64,
    /// The most that was held.
    pub(crate) peak: i64,
}

impl Meter {
    fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let mut made = None;
        let info = measure(|| made = Some(work()));
        self.allocations += info.count_total;
        self.peak = self.peak.max(self.held + info.bytes_max as i64);
        self.held += info.bytes_current;
        made.expect("the work was done")
    }
}

/// What one message cost.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) frames: usize,
    pub(crate) sender: Meter,
    pub(crate) receiver: Meter,
    /// The most that the receiver held over what it had received, less what any group costs.
    pub(crate) receiver_excess: f64,
}

/// What the first group of a connection costs beside its bytes: tables, queues, its id, its list of blocks.
const GROUP: f64 = 8192.0;

/// Carries a message and counts. `frames` is how many it will take, so that what has arrived can be told at each.
pub(crate) fn carry<M: Machine>(pair: &mut Pair<M>, message: &Message, frames: usize) -> Cost {
    let (mut sender, mut receiver) = (Meter::default(), Meter::default());
    let (mut count, mut excess, mut arrived) = (0, 0.0_f64, None);
    sender.run(|| pair.send(message.clone()));
    while let Some(frame) = sender.run(|| pair.transmit()) {
        count += 1;
        // Held a moment longer than the receiver needs it, so that the sender's own buffer is charged to the sender.
        let keep = frame.clone();
        arrived = receiver.run(|| pair.deliver(frame)).or(arrived);
        sender.run(|| drop(keep));
        let received = message.len() as f64 * count as f64 / frames as f64;
        excess = excess.max((receiver.peak as f64 - GROUP) / received);
    }
    assert_eq!(arrived.map(|message| message.len()), Some(message.len()), "the message arrives");
    assert_eq!(count, frames, "as many frames as before");
    Cost { frames, sender, receiver, receiver_excess: excess }
}

/// A cold and a warm run: a new pair's first message, and one after several.
pub(crate) fn cold_and_warm<M: Machine>(mut pair: impl FnMut() -> Pair<M>, message: &Message) -> (Cost, Cost) {
    let (_, frames) = pair().carry(message.clone());
    let mut pair = pair();
    let cold = carry(&mut pair, message, frames);
    pair.carry(message.clone());
    (cold, carry(&mut pair, message, frames))
}
