//! A relay between many peers: it acknowledges, refuses for size and speed, delays, reorders and repeats.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use breakbulk_proto::{Capacity, Measure, Meta, Overhead, Receipt, Refusal, Tag, json};
use bytes::Bytes;

use crate::sim::rng::Rng;
use crate::sim::tally::Tally;

/// How a relay behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// What it says it takes.
    pub(crate) cap: u64,
    /// What it takes.
    pub(crate) real_cap: u64,
    pub(crate) latency: Duration,
    /// How much later than another one an event may come.
    pub(crate) jitter: Duration,
    /// So many events in a hundred come twice.
    pub(crate) repeats: u64,
    /// Events that it takes from one peer in a second.
    pub(crate) per_second: Option<u64>,
    /// So many events in a hundred are never acknowledged.
    pub(crate) unanswered: u64,
    /// In so many parts of transfers in a hundred a bit flips.
    pub(crate) flips: u64,
}

/// What a relay does to somebody, when its time has come.
#[derive(Debug, Clone)]
pub(crate) enum Deed {
    Deliver { bytes: Bytes, meta: Meta },
    Answer { tag: Tag, result: Result<Receipt, Refusal> },
}

/// A relay, and what is on its way.
#[derive(Debug)]
pub(crate) struct Relay {
    manner: Manner,
    deeds: BTreeMap<(Instant, u64), (Arc<str>, Deed)>,
    events: u64,
    order: u64,
    /// When the second began in which each peer is counted, and how many came.
    counts: BTreeMap<Arc<str>, (Instant, u64)>,
}

impl Relay {
    pub(crate) fn new(manner: Manner) -> Self {
        Self { manner, deeds: BTreeMap::new(), events: 0, order: 0, counts: BTreeMap::new() }
    }

    /// What it says about itself: an event is the text, escaped, and its head.
    pub(crate) fn capacity(&self) -> Capacity {
        let overhead = Overhead::new(|measure| measure.escaped.saturating_sub(measure.bytes) + HEAD);
        Capacity { cap: self.manner.cap, overhead }
    }

    /// A peer publishes an event.
    pub(crate) fn publish(
        &mut self,
        from: &Arc<str>,
        (tag, bytes, meta): (Tag, Bytes, Meta),
        now: Instant,
        rng: &mut Rng,
        tally: &mut Tally,
    ) {
        let measure = Measure { bytes: bytes.len() as u64, escaped: json::escaped_len(&bytes) };
        assert!(self.capacity().fits(measure), "an event of {} bytes is over the relay's cap", bytes.len());
        tally.one("relay events");
        let result = self.judge(from, measure, now);
        if let Err(refusal) = result {
            tally.one(if refusal == Refusal::TooFast {
                "relay refusals: too fast"
            } else {
                "relay refusals: too large"
            });
            return self.later(now + self.manner.latency, from, Deed::Answer { tag, result: Err(refusal) });
        }
        self.events += 1;
        let id: Arc<str> = format!("event-{}", self.events).into();
        if !rng.chance(self.manner.unanswered) {
            let at = now + self.manner.latency + rng.millis(0, self.manner.jitter.as_millis() as u64);
            self.later(at, from, Deed::Answer { tag, result: Ok(Receipt { id: Some(id.clone()) }) });
        }
        let Some(to) = meta.peer.clone() else { return };
        let is_part = bytes.windows(20).any(|window| window == b"\"oversized-transfer\"");
        let meta = Meta { peer: Some(from.clone()), id: Some(id), ..meta };
        let copies = if rng.chance(self.manner.repeats) { 2 } else { 1 };
        tally.add("relay repeats", copies - 1);
        for _ in 0..copies {
            let bytes = if is_part && rng.chance(self.manner.flips) { flipped(&bytes, rng) } else { bytes.clone() };
            let at = now + self.manner.latency + rng.millis(0, self.manner.jitter.as_millis() as u64);
            self.later(at, &to, Deed::Deliver { bytes, meta: meta.clone() });
        }
    }

    /// What happens next, if its time has come.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(Arc<str>, Deed)> {
        let first = self.deeds.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    pub(crate) fn wake(&self) -> Option<Instant> {
        self.deeds.first_key_value().map(|((at, _), _)| *at)
    }

    fn judge(&mut self, from: &Arc<str>, measure: Measure, now: Instant) -> Result<(), Refusal> {
        if measure.escaped + HEAD > self.manner.real_cap {
            return Err(Refusal::TooLarge);
        }
        let (since, count) = self.counts.entry(from.clone()).or_insert((now, 0));
        if now - *since >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if self.manner.per_second.is_some_and(|limit| *count > limit) { Err(Refusal::TooFast) } else { Ok(()) }
    }

    fn later(&mut self, at: Instant, to: &Arc<str>, deed: Deed) {
        self.order += 1;
        self.deeds.insert((at, self.order), (to.clone(), deed));
    }
}

/// Bytes of an event beside its content: id, key, signature, tags.
const HEAD: u64 = 320;

fn flipped(bytes: &Bytes, rng: &mut Rng) -> Bytes {
    let mut bytes = bytes.to_vec();
    let at = rng.below(bytes.len() as u64) as usize;
    bytes[at] ^= 1 << rng.below(8);
    bytes.into()
}
