//! Frames of a WebSocket, whose header says how long they are.

use std::time::Duration;

use breakbulk::link::{WebSocket, WebSocketConfig};
use breakbulk::{Arrival, Driver, Intake, LinkError, ReceiveMemory};
use breakbulk_proto::Budget;
use futures_util::StreamExt;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

use super::{MB, SOON, arrives, assert_goes, assert_goes_untaken, budget, nothing_arrives, plain, stalls};

const FINAL: u8 = 0x80;
const TEXT: u8 = 0x01;
const MORE: u8 = 0x00;

/// A server's link that takes frames of 2 MB, for which `principal` has room in `budget`; and its client.
fn link(budget: &Budget, principal: &str) -> (WebSocket<DuplexStream>, DuplexStream) {
    let (ours, theirs) = duplex(4 * MB);
    let mut link = WebSocket::server(ours, &WebSocketConfig { keepalive: None, ..WebSocketConfig::default() });
    let account = Some(budget.account(Some(principal)));
    link.set_intake(Intake { max_frame_bytes: 2 * MB as u64, account });
    (link, theirs)
}

/// A client's frame of so many bytes, masked with zeros.
fn frame(kind: u8, len: usize) -> Vec<u8> {
    let head = [&[kind, 0x80 | 127][..], &(len as u64).to_be_bytes(), &[0; 4]].concat();
    [head, vec![b'x'; len]].concat()
}

#[tokio::test]
async fn what_a_link_takes_can_change_between_two_frames() {
    let (ours, mut client) = duplex(4 * MB);
    let config = WebSocketConfig { max_frame_bytes: 70_000, ..WebSocketConfig::default() };
    let mut link = WebSocket::server(ours, &config);
    client.write_all(&[frame(FINAL | TEXT, 66_000), frame(FINAL | TEXT, MB)].concat()).await.unwrap();
    assert_eq!(arrives(&mut link).await, 66_000);
    link.set_intake(Intake { max_frame_bytes: MB as u64, account: None });
    assert_eq!(arrives(&mut link).await, MB);
    link.set_intake(Intake { max_frame_bytes: 100, account: None });
    client.write_all(&frame(FINAL | TEXT, 66_000)[..14]).await.unwrap();
    let refused = link.next().await.unwrap().unwrap_err();
    assert!(matches!(refused, LinkError::FrameTooLarge(over) if over.limit == 100), "{refused}");
}

#[tokio::test]
async fn a_long_frame_is_charged_from_its_header_to_its_end() {
    let budget = budget(9 * MB, 9 * MB);
    let (mut link, mut client) = link(&budget, "one");
    let bytes = frame(FINAL | TEXT, MB);
    client.write_all(&bytes[..100]).await.unwrap();
    nothing_arrives(&mut link).await;
    assert_eq!(budget.held(), MB as u64);
    client.write_all(&bytes[100..]).await.unwrap();
    assert!(link.next().await.is_some_and(|arrival| arrival.is_ok()));
    assert_eq!(budget.held(), MB as u64, "until somebody else pays for it");
    link.release_last();
    assert_eq!(budget.held(), 0);
    client.write_all(&bytes).await.unwrap();
    assert!(link.next().await.is_some_and(|arrival| arrival.is_ok()));
    nothing_arrives(&mut link).await;
    assert_eq!(budget.held(), 0, "who asks for the next has done with the last");
    // What every connection may hold anyway is nobody's affair.
    client.write_all(&frame(FINAL | TEXT, 65_536)[..60_000]).await.unwrap();
    nothing_arrives(&mut link).await;
    assert_eq!(budget.held(), 0);
}

#[tokio::test]
async fn a_frame_that_began_before_anybody_asked_is_charged_too() {
    let budget = budget(9 * MB, 9 * MB);
    let (ours, mut client) = duplex(4 * MB);
    let mut link = WebSocket::server(ours, &WebSocketConfig::default());
    let bytes = [frame(FINAL | TEXT, 66_000), frame(FINAL | TEXT, MB)].concat();
    client.write_all(&bytes[..66_040]).await.unwrap();
    assert_eq!(arrives(&mut link).await, 66_000);
    link.set_intake(Intake { max_frame_bytes: MB as u64, account: Some(budget.account(Some("one"))) });
    nothing_arrives(&mut link).await;
    assert_eq!(budget.held(), MB as u64);
    client.write_all(&bytes[66_040..]).await.unwrap();
    assert_eq!((arrives(&mut link).await, budget.held()), (MB, 0));
}

#[tokio::test]
async fn without_room_a_frame_waits_where_it_is_and_comes_when_there_is_room() {
    let budget = budget(9 * MB, MB + MB / 2);
    let ((mut first, mut one), (mut second, mut two)) = (link(&budget, "p"), link(&budget, "p"));
    let bytes = frame(FINAL | TEXT, MB);
    one.write_all(&bytes[..MB / 2]).await.unwrap();
    nothing_arrives(&mut first).await;
    two.write_all(&bytes).await.unwrap();
    nothing_arrives(&mut second).await;
    assert_eq!(budget.held(), MB as u64);
    // A short one of somebody else's passes all the while.
    let (mut third, mut three) = link(&budget, "p");
    three.write_all(&frame(FINAL | TEXT, 65_536)).await.unwrap();
    assert_eq!(arrives(&mut third).await, 65_536);
    one.write_all(&bytes[MB / 2..]).await.unwrap();
    assert_eq!(arrives(&mut first).await, MB);
    assert_eq!((arrives(&mut second).await, budget.held()), (MB, 0));
}

#[tokio::test]
async fn messages_in_parts_of_which_only_one_can_go_on_all_arrive_in_turn() {
    let budget = budget(9 * MB, 4 * MB);
    let (mut links, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (link, client) = link(&budget, "p");
        links.push(link);
        clients.push(client);
    }
    // Each may become 2 MB: with so much left for the last, three have room for their first part.
    for (link, client) in links.iter_mut().zip(&mut clients) {
        client.write_all(&frame(TEXT, MB)).await.unwrap();
        nothing_arrives(link).await;
    }
    assert_eq!(budget.held(), 3 * MB as u64);
    for client in &mut clients {
        client.write_all(&[frame(MORE, MB / 2), frame(FINAL | MORE, 70_000)].concat()).await.unwrap();
    }
    let arrivals = links.into_iter().map(|mut link| tokio::spawn(async move { arrives(&mut link).await }));
    for arrival in arrivals.collect::<Vec<_>>() {
        assert_eq!(timeout(SOON, arrival).await.unwrap().unwrap(), MB + MB / 2 + 70_000);
    }
    assert_eq!(budget.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_stands_still_goes_when_others_need_its_room() {
    let budget = budget(2 * MB + MB / 2, 2 * MB);
    let ((mut idle, mut one), (mut busy, mut two)) = (link(&budget, "idle"), link(&budget, "busy"));
    // Who has something under way has a share of the whole.
    let (mut other, mut three) = link(&budget, "busy");
    three.write_all(&frame(FINAL | TEXT, 100_000)[..100]).await.unwrap();
    nothing_arrives(&mut other).await;
    one.write_all(&frame(FINAL | TEXT, 2 * MB)[..100]).await.unwrap();
    nothing_arrives(&mut idle).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    two.write_all(&frame(FINAL | TEXT, MB)).await.unwrap();
    nothing_arrives(&mut busy).await;
    let gone = timeout(SOON, idle.next()).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(gone, LinkError::OverBudget(bytes) if bytes == 2 * MB as u64), "{gone}");
    drop(idle);
    assert_eq!(arrives(&mut busy).await, MB);
}

#[tokio::test(start_paused = true)]
async fn so_does_one_that_nobody_reads_at_the_moment() {
    let budget = budget(2 * MB + MB / 2, 2 * MB);
    let ((idle, mut one), (mut busy, mut two)) = (link(&budget, "idle"), link(&budget, "busy"));
    let mut driver = Driver::new(idle, plain());
    one.write_all(&frame(FINAL | TEXT, 2 * MB)[..100]).await.unwrap();
    stalls(&mut driver, &budget, 2 * MB as u64).await;
    two.write_all(&frame(FINAL | TEXT, MB)).await.unwrap();
    nothing_arrives(&mut busy).await;
    assert_goes(driver, one).await;
    assert_eq!(arrives(&mut busy).await, MB);
}

#[tokio::test(start_paused = true)]
async fn so_does_one_that_nobody_takes() {
    let budget = budget(2 * MB + MB / 2, 2 * MB);
    let ((mut idle, mut one), other) = (link(&budget, "idle"), budget.account(Some("other")));
    one.write_all(&frame(FINAL | TEXT, 2 * MB)).await.unwrap();
    assert!(matches!(idle.next().await, Some(Ok(Arrival::Frame { .. }))));
    assert_goes_untaken(&mut idle, &other, MB).await;
}
