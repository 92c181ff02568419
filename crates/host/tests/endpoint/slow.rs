//! Clients that do not read, or not fast enough: what they cost, and how they end.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use breakbulk_host::endpoint::{EndReason, EndpointConfig};
use breakbulk_host::log::{
    AppendError, Batch, Bounds, BoxFuture, Bytes, ChannelInfo, Channels, Entry, Log, LogHealth, MemoryLog, Metrics,
    ReadError, Report, RetentionPolicy, Rows, Save, Seq, Snapshot, Tail, WriteError,
};
use breakbulk_host::test_support::new_endpoint;
use breakbulk_proto::{Budget, CloseReason};
use serde_json::json;
use tokio::sync::watch;

use super::client::Raw;
use super::world::{A, B, World, soon};

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_closed_by_name_and_disturbs_nobody() {
    let world = World::new().await;
    let (link, ended) = world.link(65_536, 1);
    let mut stuck = Raw::new(link);
    stuck.initialize("stuck", &[A]).await;
    let mut other = Raw::new(world.link(65_536, 1).0);
    other.initialize("other", &[A]).await;
    let start = tokio::time::Instant::now();
    for n in 0..100 {
        let seq = world.data(A, &format!("{n:>1000}")).await;
        assert_eq!(other.action().await.0, seq);
    }
    let end = tokio::time::timeout(Duration::from_secs(300), ended).await.unwrap().unwrap();
    let EndReason::Stalled { bytes, after } = end else { panic!("{end:?}") };
    assert!((1000..200_000).contains(&bytes) && after >= Duration::from_secs(60), "{bytes} {after:?}");
    assert!(start.elapsed() < Duration::from_secs(70));
    assert_eq!(world.endpoint.counts().get("endpoint-stalled"), 1);
    let seq = world.data(A, "more").await;
    assert_eq!(other.action().await.0, seq);
    // It comes back, and misses nothing.
    let result = Raw::new(world.link(65_536, 1).0).reconnect("stuck", 3, &[A]).await;
    assert_eq!(result["actions"].as_array().unwrap().len(), 101);
}

#[tokio::test]
async fn of_what_a_client_reads_only_a_few_are_held_until_it_takes_them() {
    let world = World::with(EndpointConfig { max_answer_bytes: 1_000_000, ..EndpointConfig::default() }).await;
    let mut client = Raw::new(world.link(65_536, 1).0);
    client.initialize("me", &[]).await;
    let ids: Vec<u64> = (0..20).map(|_| client.ask("resourceRead", json!({}))).collect();
    let mut most_held = 0;
    for (taken, _) in (1..).zip(&ids) {
        let answer = client.next().await.unwrap();
        assert_eq!(answer["result"].as_str().map(str::len), Some(3_000_000));
        most_held = world.desk.begun.load(Ordering::Relaxed).saturating_sub(taken).max(most_held);
    }
    // Four, beside the one that goes out and the one behind it.
    assert!((1..=6).contains(&most_held), "{most_held}");
    // And others are not kept waiting for it.
    assert_eq!(client.call("echo", json!({})).await.unwrap(), json!({}));
}

#[tokio::test]
async fn of_the_snapshots_that_a_client_asks_for_only_a_few_are_held_until_it_takes_them() {
    let world = World::with(EndpointConfig { max_answer_bytes: 100_000, ..EndpointConfig::default() }).await;
    let mut client = Raw::new(world.link(65_536, 1).0);
    client.initialize("me", &[]).await;
    let seq = world.data(A, &"x".repeat(300_000)).await;
    let ids: Vec<u64> = (0..20).map(|_| client.ask("subscribe", json!({"channel": A}))).collect();
    for _ in &ids {
        let answer = client.next().await.unwrap();
        assert_eq!(answer["result"]["snapshot"]["fromSeq"], seq);
    }
    // It is the same, and as long as one of them is on its way the others share it.
    let taken = world.views.taken.load(Ordering::Relaxed);
    assert!((1..=6).contains(&taken), "{taken}");
    // And then it follows.
    let seq = world.data(A, "more").await;
    assert_eq!(client.action().await.0, seq);
}

#[tokio::test]
async fn a_client_that_is_too_far_behind_is_closed_by_name() {
    let world = World::with(EndpointConfig { max_lag: 10, max_unsent_bytes: 1000, ..EndpointConfig::default() }).await;
    let (link, ended) = world.link(65_536, 1);
    let mut client = Raw::new(link);
    client.initialize("me", &[A]).await;
    for _ in 0..30 {
        world.data(A, &"x".repeat(1000)).await;
    }
    world.state(A).await;
    // It reads, but its connection finds it far behind as soon as its room is full.
    assert_eq!(client.code().await, 4411);
    let end = soon(ended).await.unwrap();
    assert!(matches!(end, EndReason::Lagging { behind: 11..=40, limit: 10 }), "{end:?}");
}

#[tokio::test]
async fn an_action_larger_than_the_client_takes_closes_by_name_and_the_client_comes_back_without_a_loop() {
    let world = World::new().await;
    let (link, ended) = world.link(65_536, 4);
    let mut plain = Raw::plain(link);
    plain.initialize("me", &[A, B]).await;
    world.data(A, &"x".repeat(100_000)).await;
    assert_eq!(plain.code().await, 4413);
    assert!(matches!(soon(ended).await.unwrap(), EndReason::Link(CloseReason::Unsendable { .. })));
    let mut plain = Raw::plain(world.link(65_536, 4).0);
    let result = plain.reconnect("me", 3, &[A, B]).await;
    assert_eq!((&result["type"], &result["missing"]), (&json!("snapshot"), &json!([A])));
    let seq = world.data(B, "still here").await;
    assert_eq!(plain.action().await.0, seq);
}

#[tokio::test]
async fn a_large_action_and_everything_behind_it_arrive_with_a_cap_and_without() {
    for cap in [65_536, u64::MAX] {
        let world = World::new().await;
        let mut client = Raw::new(world.link(cap, 4).0);
        client.initialize("me", &[A]).await;
        let text = "é\"\n".repeat(1_000_000);
        let large = world.data(A, &text).await;
        let small = world.data(A, "small").await;
        let (seq, params) = client.action().await;
        assert!(seq == large && params["action"]["data"] == json!(text));
        assert_eq!(client.action().await.0, small);
    }
}

#[tokio::test]
async fn one_large_action_reaches_many_clients_whatever_cap_each_has() {
    let world = World::new().await;
    let mut clients = Vec::new();
    for (n, cap) in [65_536, 20_000, u64::MAX, 700_001, 65_536, 1_000_003].into_iter().enumerate() {
        let mut client = Raw::new(world.link(cap, 4).0);
        client.initialize(&n.to_string(), &[A]).await;
        clients.push(client);
    }
    let text = "é\"\n".repeat(300_000);
    let large = world.data(A, &text).await;
    let small = world.data(A, "small").await;
    // One after the other, so that some are done before others begin.
    for mut client in clients {
        let (seq, params) = client.action().await;
        assert!(seq == large && params["action"]["data"] == json!(text));
        assert_eq!(client.action().await.0, small);
    }
}

/// Entries that nobody stored: a log of any length that costs nothing, and counts what is taken from it.
struct Endless {
    inner: MemoryLog,
    last: watch::Sender<Seq>,
    handed: Arc<AtomicUsize>,
    body: Bytes,
}

struct EndlessTail {
    position: Seq,
    last: watch::Receiver<Seq>,
    handed: Arc<AtomicUsize>,
    body: Bytes,
}

impl Tail for EndlessTail {
    fn next(&mut self, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, ReadError>> {
        Box::pin(async move {
            let position = self.position;
            let last = *self.last.wait_for(|last| *last > position).await.unwrap();
            let count = 1 + u64::try_from(max_bytes / self.body.len()).unwrap();
            let seqs = position + 1..=last.min(position + count);
            self.position = *seqs.end();
            let entry = |seq| Entry::new(seq, 0, A.into(), self.body.clone());
            let entries: Vec<_> = seqs.map(entry).collect();
            self.handed.fetch_add(entries.len() * self.body.len(), Ordering::Relaxed);
            Ok(entries)
        })
    }

    fn ready(&mut self, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, ReadError>> {
        if self.position >= *self.last.borrow() { Box::pin(async { Ok(Vec::new()) }) } else { self.next(max_bytes) }
    }

    fn position(&self) -> Seq {
        self.position
    }

    fn seek(&mut self, after: Seq) {
        self.position = after;
    }

    fn follow(&mut self, _: Channels) {}
}

impl Log for Endless {
    fn tail(&self, after: Seq, _: Channels) -> Box<dyn Tail> {
        let (last, handed, body) = (self.last.subscribe(), self.handed.clone(), self.body.clone());
        Box::new(EndlessTail { position: after, last, handed, body })
    }

    fn bounds(&self) -> BoxFuture<'_, Result<Bounds, ReadError>> {
        let last = *self.last.borrow();
        Box::pin(async move { Ok(Bounds { first: 1, last }) })
    }

    fn lag(&self, after: Seq) -> Option<u64> {
        self.last.borrow().checked_sub(after)
    }

    fn append(&self, batch: Batch) -> BoxFuture<'_, Result<Vec<Seq>, AppendError>> {
        self.inner.append(batch)
    }

    fn read<'a>(&'a self, c: &'a str, range: Range<Seq>, max: usize) -> BoxFuture<'a, Result<Vec<Entry>, ReadError>> {
        self.inner.read(c, range, max)
    }

    fn channels<'a>(&'a self, session: Option<&'a str>) -> BoxFuture<'a, Result<Vec<ChannelInfo>, ReadError>> {
        self.inner.channels(session)
    }

    fn save(&self, save: Save) -> BoxFuture<'_, Result<(), WriteError>> {
        self.inner.save(save)
    }

    fn snapshot<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Option<Snapshot>, ReadError>> {
        self.inner.snapshot(channel)
    }

    fn rows<'a>(&'a self, channel: &'a str, range: Range<u64>, max: usize) -> BoxFuture<'a, Result<Rows, ReadError>> {
        self.inner.rows(channel, range, max)
    }

    fn row_bytes<'a>(
        &'a self,
        channel: &'a str,
        index: u64,
        range: Range<usize>,
    ) -> BoxFuture<'a, Result<Option<Bytes>, ReadError>> {
        self.inner.row_bytes(channel, index, range)
    }

    fn trim<'a>(&'a self, channel: &'a str, before: Seq) -> BoxFuture<'a, Result<u64, WriteError>> {
        self.inner.trim(channel, before)
    }

    fn retain(&self, policy: RetentionPolicy) -> BoxFuture<'_, Result<u64, WriteError>> {
        self.inner.retain(policy)
    }

    fn erase<'a>(&'a self, session: &'a str) -> BoxFuture<'a, Result<u64, WriteError>> {
        self.inner.erase(session)
    }

    fn verify(&self) -> BoxFuture<'_, Result<Report, ReadError>> {
        self.inner.verify()
    }

    fn health(&self) -> watch::Receiver<LogHealth> {
        self.inner.health()
    }

    fn metrics(&self) -> &Metrics {
        self.inner.metrics()
    }
}

/// A world whose log has a million actions from the moment that the returned sender says so.
async fn endless(config: EndpointConfig) -> (World, watch::Sender<Seq>, Arc<AtomicUsize>, usize) {
    let mut world = World::with(config.clone()).await;
    let inner = MemoryLog::new();
    let body =
        Bytes::from(json!({"channel": A, "action": {"type": "terminal/data", "data": "x".repeat(900)}}).to_string());
    let (last, handed, len) = (watch::Sender::new(3), Arc::new(AtomicUsize::new(0)), body.len());
    let log = Arc::new(Endless { inner, last: last.clone(), handed: handed.clone(), body });
    world.endpoint = new_endpoint(log, world.views.clone(), world.desk.clone(), config, Budget::default());
    (world, last, handed, len)
}

#[tokio::test]
async fn a_client_a_million_actions_behind_costs_no_more_than_its_room() {
    let config = EndpointConfig { max_unsent_bytes: 64 << 10, ..EndpointConfig::default() };
    let (world, last, handed, len) = endless(config).await;
    let mut client = Raw::new(world.link(65_536, 2).0);
    client.initialize("me", &[A]).await;
    last.send_replace(1_000_003);
    // It does not read, and the host has all the time.
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    let most = (64 << 10) + 8 * len;
    assert!(handed.load(Ordering::Relaxed) <= most, "{}", handed.load(Ordering::Relaxed));
    for n in 0..5_000 {
        assert_eq!(client.action().await.0, n + 4);
        let read = (usize::try_from(n).unwrap() + 1) * len;
        // What is on the link and in the client is not the host's.
        let held = handed.load(Ordering::Relaxed).saturating_sub(read);
        assert!(held <= most + 8 * len, "{held} after {n}");
    }
}

#[tokio::test]
async fn a_reconnect_from_a_million_actions_behind_reads_no_more_than_it_may_replay() {
    let (world, last, handed, len) = endless(EndpointConfig::default()).await;
    last.send_replace(1_000_003);
    let mut client = Raw::new(world.link(65_536, 2).0);
    // The snapshot is of a state that ends at 3; what the test's log claims beyond is not in it.
    world.views.pretend(1_000_003);
    let result = client.reconnect("me", 3, &[A]).await;
    assert_eq!(result["type"], "snapshot");
    assert!(handed.load(Ordering::Relaxed) <= 17 * 1024 * len, "{}", handed.load(Ordering::Relaxed));
}
