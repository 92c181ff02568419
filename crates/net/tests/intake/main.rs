//! Long frames that are not whole yet: which ones a link takes, and who has room for them.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod lines;
mod ws;

use std::time::Duration;

use breakbulk::{Arrival, Driver, Link};
use breakbulk_proto::{Budget, BudgetConfig, Event, Limits, plain};
use futures_util::StreamExt;
use tokio::io::DuplexStream;
use tokio::time::timeout;

const MB: usize = 1_000_000;
const SOON: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(300);

fn budget(process: usize, principal: usize) -> Budget {
    let (process_bytes, principal_bytes) = (process as u64, principal as u64);
    Budget::new(BudgetConfig { process_bytes, principal_bytes, floor_bytes: 0 })
}

fn plain() -> plain::Connection {
    plain::Connection::new(plain::Config { limits: Limits::default(), one_line: false, front_only: false })
}

/// The length of the next frame, for which somebody else pays from then on.
async fn arrives(link: &mut impl Link) -> usize {
    let arrival = timeout(SOON, link.next()).await.unwrap().unwrap().unwrap();
    link.release_room();
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
