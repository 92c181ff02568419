//! Backpressure, leaving, and an end that everybody hears of.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use bytes::Bytes;
use futures_util::{FutureExt, Sink, SinkExt, Stream, StreamExt};
use tokio::time::timeout;

use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Capacity, Limits, Transmit};

use super::*;
use crate::dialect::{AnyMachine, Dialect};
use crate::link::{Acked, Arrival, InProcessLink, LinkError, LinkStatus, ReceiveMemory, pair};

/// Messages pass as they are, on a link with room for one frame each way.
fn open(max_unsent: u64) -> (Port, InProcessLink) {
    let (near, far) = pair(&Capacity::of(1000), 1);
    (Port::drive(near, machine(), max_unsent), far)
}

fn machine() -> AnyMachine {
    let setup = Setup::new(Dialect::Plain, Role::Client, Limits::default());
    setup.machine(Budget::default().account(None)).unwrap()
}

fn request(n: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"{n:03}","method":"m"}}"#)
}

fn frame(n: usize) -> Transmit {
    Transmit::Frame { tag: Default::default(), bytes: request(n).into(), meta: Default::default() }
}

async fn arrived(far: &mut InProcessLink) -> Option<Bytes> {
    match far.next().await {
        Some(Ok(Arrival::Frame { bytes, .. })) => Some(bytes),
        _ => None,
    }
}

/// How many times something gets done before it has to wait. The clock is paused: a second passes when all wait.
async fn count(mut act: impl AsyncFnMut(usize)) -> usize {
    let mut done = 0;
    while timeout(Duration::from_secs(1), act(done)).await.is_ok() {
        done += 1;
        assert!(done < 1000, "it never waits");
    }
    done
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_that_the_application_does_not_take() {
    let (mut port, mut far) = open(1000);
    let taken = count(async |n| far.send(frame(n)).await.unwrap()).await;
    assert!(taken <= 4, "{taken} were read");
    let mut messages = Vec::new();
    while messages.len() < taken {
        messages.push(port.recv().await.unwrap());
    }
    assert!(messages.into_iter().eq((0..taken).map(|n| Message::from(request(n)))));
}

#[tokio::test(start_paused = true)]
async fn sending_waits_when_the_peer_takes_nothing_and_all_arrives_when_it_does() {
    let (port, mut far) = open(3 * request(0).len() as u64);
    let taken = count(async |n| port.sender().send(request(n).into()).await.unwrap()).await;
    assert!((3..=7).contains(&taken), "{taken} were taken");
    for n in 0..taken {
        assert_eq!(arrived(&mut far).await.unwrap(), request(n));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_dropped_again_and_again_loses_nothing() {
    let (mut port, mut far) = open(1000);
    tokio::spawn(async move {
        for n in 0..100 {
            far.send(frame(n)).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    let mut messages = Vec::new();
    while messages.len() < 100 {
        match port.recv().now_or_never() {
            Some(message) => messages.push(message.unwrap()),
            None => tokio::task::yield_now().await,
        }
    }
    assert!(messages.into_iter().eq((0..100).map(|n| Message::from(request(n)))));
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_all_there_is_room_for_is_not_waited_for() {
    let (mut port, _far) = open(10);
    let long = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{}"}}"#, "m".repeat(2000));
    port.sender().send(long.into()).await.unwrap();
    let answer = port.recv().await.unwrap().to_bytes();
    assert!(answer.starts_with(br#"{"jsonrpc":"2.0","id":7,"error""#), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_goes_out_after_the_application_has_left() {
    let (port, mut far) = open(1_000_000);
    let ended = port.ended().clone();
    for n in 0..20 {
        port.sender().send(request(n).into()).await.unwrap();
    }
    let late = port.sender().clone();
    drop(port);
    for n in 0..20 {
        assert_eq!(arrived(&mut far).await.unwrap(), request(n));
    }
    assert!(matches!(far.next().await, Some(Ok(Arrival::Closed { code: 1000, .. }))));
    assert_eq!(ended.wait().await, CloseReason::Normal);
    assert!(late.send(request(20).into()).await.is_err(), "nothing more is taken");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing_does_not_keep_the_task_for_ever() {
    let (mut port, far) = open(1_000_000);
    for n in 0..20 {
        port.sender().send(request(n).into()).await.unwrap();
    }
    timeout(Duration::from_secs(11), port.close()).await.unwrap();
    assert_eq!(port.ended().reason(), Some(CloseReason::Normal));
    assert!(port.recv().await.is_none());
    drop(far);
}

#[tokio::test(start_paused = true)]
async fn an_application_that_does_not_read_can_send_any_amount_to_a_peer_that_does() {
    let (port, mut far) = open(3 * request(0).len() as u64);
    count(async |n| far.send(frame(n)).await.unwrap()).await;
    for n in 0..50 {
        port.sender().send(request(n).into()).await.unwrap();
        assert_eq!(arrived(&mut far).await.unwrap(), request(n));
    }
}

#[tokio::test(start_paused = true)]
async fn an_application_that_waits_to_send_hears_of_the_end_and_can_still_read_what_came_before() {
    let (mut port, mut far) = open(request(0).len() as u64);
    let came = count(async |n| far.send(frame(n)).await.unwrap()).await;
    count(async |n| port.sender().send(request(n).into()).await.unwrap()).await;
    drop(far);
    assert!(port.sender().send(request(0).into()).await.is_err());
    for n in 0..2 {
        assert_eq!(port.recv().await, Some(request(n).into()), "of {came}");
    }
    while port.recv().await.is_some() {}
    assert_eq!(port.ended().reason(), Some(ABNORMAL));
}

/// A link on which the peer says with a frame that it sends nothing more.
struct HalfOpen(InProcessLink);

impl Link for HalfOpen {
    fn capacity(&self) -> Capacity {
        self.0.capacity()
    }

    fn status(&self) -> LinkStatus {
        self.0.status()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.0.receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.0.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        self.0.end_output()
    }
}

impl Stream for HalfOpen {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx).map_ok(|arrival| match arrival {
            Arrival::Frame { bytes, .. } if bytes == "end" => Arrival::Ended,
            other => other,
        })
    }
}

impl Sink<Transmit> for HalfOpen {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.0.poll_ready_unpin(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        self.0.start_send_unpin(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.0.poll_flush_unpin(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.0.poll_close_unpin(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_nothing_more_still_gets_its_answers() {
    let (near, mut far) = pair(&Capacity::of(1000), 8);
    let mut port = Port::drive(HalfOpen(near), machine(), 1000);
    far.send(frame(0)).await.unwrap();
    far.send(frame(1)).await.unwrap();
    let (tag, meta) = (Default::default(), Default::default());
    far.send(Transmit::Frame { tag, bytes: "end".into(), meta }).await.unwrap();
    assert_eq!(port.recv().await, Some(request(0).into()));
    assert_eq!(port.recv().await, Some(request(1).into()));
    assert!(port.recv().await.is_none() && port.ended().reason().is_none());
    port.sender().send(request(2).into()).await.unwrap();
    port.close().await;
    assert_eq!(arrived(&mut far).await.unwrap(), request(2));
    assert!(matches!(far.next().await, Some(Ok(Arrival::Closed { code: 1000, .. }))));
}

#[test]
fn a_connection_whose_runtime_is_gone_has_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (port, _far) = runtime.block_on(async { open(1000) });
    assert_eq!(port.ended().reason(), None);
    drop(runtime);
    assert_eq!(port.ended().reason(), Some(ABNORMAL));
}
