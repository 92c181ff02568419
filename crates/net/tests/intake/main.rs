//! Long frames that are not whole yet: which ones a link takes, and who has room for them.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod lines;
mod ws;

use std::future::poll_fn;
use std::time::Duration;

use breakbulk::{Arrival, Driver, Link, LinkError};
use breakbulk_proto::{Account, Budget, BudgetConfig, Event, Limits, Schedule, plain};
use futures_util::{FutureExt, StreamExt};
use tokio::io::DuplexStream;
use tokio::time::{Instant, timeout};

const MB: usize = 1_000_000;
const SOON: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(300);

fn budget(process: usize, principal: usize) -> Budget {
    let (process_bytes, principal_bytes) = (process as u64, principal as u64);
    Budget::new(BudgetConfig { process_bytes, principal_bytes, floor_bytes: 0 })
}

fn plain() -> plain::Connection {
    plain::Connection::new(plain::Config::new(Limits::default()))
}

/// The length of the next frame, for which somebody else pays from then on.
async fn arrives(link: &mut impl Link) -> usize {
    let arrival = timeout(SOON, link.next()).await.unwrap().unwrap().unwrap();
    link.receive_memory().unwrap().release_last();
    match arrival {
        Arrival::Frame { bytes, .. } => bytes.len(),
        other => panic!("{other:?}"),
    }
}

async fn nothing_arrives(link: &mut impl Link) {
    assert!(timeout(MOMENT, link.next()).await.is_err(), "it is not whole, or has no room");
}

/// Reads until so much is held, and then no more for a while.
async fn stalls(driver: &mut Driver<impl Link, plain::Connection>, budget: &Budget, held: u64) {
    assert!(timeout(MOMENT, driver.next()).await.is_err(), "it is not whole");
    assert!(budget.held() >= held);
    driver.set_reading(false);
    assert!(timeout(Duration::from_secs(20), driver.next()).await.is_err(), "nobody needs its room");
}

/// What has begun to come in is given up, and the peer is told if it can be.
async fn assert_goes(mut driver: Driver<impl Link, plain::Connection>, peer: DuplexStream) {
    let ended = async { (driver.next().await, drop(peer)).0 };
    let event = timeout(SOON, ended).await.unwrap();
    assert!(matches!(event, Some(Event::Closed(reason)) if reason.code() == 1013));
}

/// What has come in whole, and is not taken, stays until somebody else needs so much room, and goes then.
async fn assert_goes_untaken(link: &mut impl Link, other: &Account, bytes: usize) {
    tokio::time::sleep(Duration::from_secs(20)).await;
    let memory = link.receive_memory().unwrap();
    assert!(poll_fn(|cx| memory.poll_evicted(cx)).now_or_never().is_none(), "nobody needs its room");
    let schedule = Schedule { started: Instant::now().into_std(), timeout: SOON };
    assert!(other.reserve(bytes as u64, schedule).is_err());
    let gone = timeout(SOON, poll_fn(|cx| memory.poll_evicted(cx))).await.unwrap();
    assert!(matches!(gone, LinkError::OverBudget(_)), "{gone}");
}
