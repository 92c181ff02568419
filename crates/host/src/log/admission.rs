//! How many bytes may wait for the writer: limits in all and for each source, for small batches apart from large ones.
//!
//! So a source with much to append waits only for itself: small batches have a share of their own, and each source may use
//! only a part of all bytes. Batches of one source and channel are admitted in their order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use super::Batch;
use crate::lock::lock;

/// About what an entry costs in addition to its body.
const ENTRY: usize = 256;
/// A batch up to this counts against the share of small ones.
pub(super) const SMALL: usize = 64 << 10;
/// With more sources than this, those that have nothing waiting are removed.
const SOURCES: usize = 64;

/// What a batch costs: its bytes, about.
pub(super) fn cost(batch: &Batch) -> usize {
    batch.bytes().saturating_add(batch.entries.len().saturating_mul(ENTRY)).max(ENTRY)
}

/// The bytes that may wait.
pub(super) struct AdmissionControl {
    all: Shares,
    sources: Mutex<HashMap<Arc<str>, Arc<SourceLimits>>>,
}

/// The limits of one source.
struct SourceLimits {
    shares: Shares,
    /// Locked by the batch of a channel that is admitted next.
    channels: Mutex<HashMap<Arc<str>, Arc<AsyncMutex<()>>>>,
}

/// A limit for small batches and one for large ones.
struct Shares {
    small: Limit,
    large: Limit,
}

struct Limit {
    bytes: Arc<Semaphore>,
    most: u32,
}

/// The permits of a batch, until it is answered.
pub(super) struct AdmissionPermit {
    _of_all: OwnedSemaphorePermit,
    _of_source: OwnedSemaphorePermit,
    _source: Arc<SourceLimits>,
}

/// Keeps later batches of the same source and channel back, until this one is in the queue.
pub(super) struct OrderGuard {
    _guard: OwnedMutexGuard<()>,
}

impl AdmissionControl {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { all: Shares::new(max_bytes), sources: Mutex::default() }
    }

    /// Waits until a batch may enter the queue. One that is larger than its limit enters when nothing else waits. `None` if the
    /// log is closed.
    pub(super) async fn acquire(&self, batch: &Batch) -> Option<(OrderGuard, AdmissionPermit)> {
        let (source, cost) = (self.source(batch.source()), cost(batch));
        let order = OrderGuard { _guard: source.channel(batch.channel()).lock_owned().await };
        let of_source = source.shares.of(cost).take(cost).await?;
        let of_all = self.all.of(cost).take(cost).await?;
        Some((order, AdmissionPermit { _of_all: of_all, _of_source: of_source, _source: source }))
    }

    pub(super) fn close(&self) {
        self.all.close();
        lock(&self.sources).values().for_each(|source| source.shares.close());
    }

    /// About how many bytes wait.
    pub(super) fn used(&self) -> u64 {
        self.all.small.used().saturating_add(self.all.large.used())
    }

    fn source(&self, name: Arc<str>) -> Arc<SourceLimits> {
        let mut sources = lock(&self.sources);
        if sources.len() > SOURCES {
            sources.retain(|_, source| Arc::strong_count(source) > 1);
        }
        // Half of what large batches may have, and a quarter of what small ones may.
        let most = |limit: &Limit, part: u32| Limit::new((limit.most / part).max(1));
        let source = sources.entry(name).or_insert_with(|| {
            let shares = Shares { small: most(&self.all.small, 4), large: most(&self.all.large, 2) };
            Arc::new(SourceLimits { shares, channels: Mutex::default() })
        });
        source.clone()
    }
}

impl SourceLimits {
    fn channel(&self, name: Arc<str>) -> Arc<AsyncMutex<()>> {
        let mut channels = lock(&self.channels);
        if channels.len() > SOURCES {
            channels.retain(|_, channel| Arc::strong_count(channel) > 1);
        }
        channels.entry(name).or_default().clone()
    }
}

impl Shares {
    fn new(max_bytes: usize) -> Self {
        let small = max_bytes / 4;
        let limit = |bytes: usize| Limit::new(u32::try_from(bytes).unwrap_or(u32::MAX).max(1));
        Self { small: limit(small), large: limit(max_bytes.saturating_sub(small)) }
    }

    fn of(&self, cost: usize) -> &Limit {
        if cost <= SMALL { &self.small } else { &self.large }
    }

    fn close(&self) {
        self.small.bytes.close();
        self.large.bytes.close();
    }
}

impl Limit {
    fn new(most: u32) -> Self {
        Self { bytes: Arc::new(Semaphore::new(usize::try_from(most).unwrap_or(usize::MAX >> 3))), most }
    }

    async fn take(&self, cost: usize) -> Option<OwnedSemaphorePermit> {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX).min(self.most);
        self.bytes.clone().acquire_many_owned(cost).await.ok()
    }

    fn used(&self) -> u64 {
        u64::from(self.most).saturating_sub(self.bytes.available_permits() as u64)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn batch(source: &str, channel: &str, bytes: usize) -> Batch {
        Batch::new().from_source(source).entry(channel, vec![b'x'; bytes])
    }

    fn poll<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_source_that_waits_for_room_keeps_nobody_else_from_entering() {
        let admission = AdmissionControl::new(4 << 20);
        let (large, small, other) = (batch("a", "x", 2 << 20), batch("b", "y", 300), batch("c", "z", 512 << 10));
        let mut held = Vec::new();
        let mut first = Box::pin(admission.acquire(&large));
        let Poll::Ready(Some((order, admitted))) = poll(&mut first) else { panic!("there is room") };
        drop(order);
        held.push(admitted);
        let mut waiting: Vec<_> = (0..40).map(|_| Box::pin(admission.acquire(&large))).collect();
        assert!(waiting.iter_mut().all(|waiting| poll(waiting).is_pending()));
        assert!(poll(&mut Box::pin(admission.acquire(&small))).is_ready());
        assert!(poll(&mut Box::pin(admission.acquire(&other))).is_ready());
        // Nor does it wait for ever.
        held.clear();
        assert!(poll(&mut waiting[0]).is_ready());
    }

    #[test]
    fn batches_of_one_source_and_channel_enter_in_their_order_and_others_pass() {
        let admission = AdmissionControl::new(1 << 20);
        let (large, small, aside) = (batch("a", "x", 700_000), batch("a", "x", 300), batch("a", "y", 300));
        let mut first = Box::pin(admission.acquire(&large));
        let Poll::Ready(Some((_, admitted))) = poll(&mut first) else { panic!("there is room") };
        let (mut second, mut third) = (Box::pin(admission.acquire(&large)), Box::pin(admission.acquire(&small)));
        assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
        assert!(poll(&mut Box::pin(admission.acquire(&aside))).is_ready());
        drop(admitted);
        let Poll::Ready(Some((order, _admitted))) = poll(&mut second) else { panic!("there is room again") };
        assert!(poll(&mut third).is_pending(), "the one before is not in the queue yet");
        drop(order);
        assert!(poll(&mut third).is_ready());
    }

    #[test]
    fn sources_without_anything_waiting_are_forgotten() {
        let admission = AdmissionControl::new(1 << 20);
        for n in 0..1_000 {
            let admitted = poll(&mut Box::pin(admission.acquire(&batch(&n.to_string(), "x", 10))));
            assert!(admitted.is_ready());
        }
        assert!(admission.sources.lock().unwrap().len() <= SOURCES + 1);
        assert_eq!(admission.used(), 0);
    }
}
