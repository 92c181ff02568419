//! Lines, of which nobody knows how long they are before they end.

use std::time::Duration;

use breakbulk::link::{Exec, ExecConfig, Lines};
use breakbulk::{Arrival, Dialect, Driver, Intake, Link, LinkError, ReceiveMemory, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{
    Budget, Capacity, Event, Input, Lane, Limits, Machine, Message, Meta, Schedule, Ticket, Transmit,
};
use futures_util::StreamExt;
use tokio::io::{AsyncWriteExt, DuplexStream, Sink, duplex, sink};
use tokio::time::{Instant, timeout};

use super::{MB, MOMENT, SOON, arrives, assert_goes, assert_goes_untaken, budget, nothing_arrives, plain, stalls};

/// The longest frame, and what the longest line takes up.
const LONGEST: usize = 4 * MB;
const MAX_LINE_BYTES: u64 = LONGEST as u64 + 2;
/// What a line of more than 64 KiB takes up at first.
const USUAL: u64 = 1 << 20;

type Pipe = Lines<DuplexStream, Sink>;

/// A link that takes lines of 4 MB, for which `principal` has room in `budget`; and what writes to it.
fn link(budget: &Budget, principal: &str) -> (Pipe, DuplexStream) {
    let (ours, theirs) = duplex(64 << 10);
    let mut link = Lines::new(ours, sink(), Capacity::of(u64::MAX), 100);
    link.set_intake(intake(budget, principal));
    (link, theirs)
}

fn intake(budget: &Budget, principal: &str) -> Intake {
    Intake { max_frame_bytes: LONGEST as u64, account: Some(budget.account(Some(principal))) }
}

/// Writes so many bytes of a line while the link reads.
async fn write(link: &mut Pipe, peer: &mut DuplexStream, len: usize) {
    let bytes = vec![b'x'; len];
    tokio::select! {
        written = peer.write_all(&bytes) => written.unwrap(),
        arrived = link.next() => panic!("{arrived:?}"),
    }
    nothing_arrives(link).await;
}

#[tokio::test]
async fn a_long_line_is_charged_in_two_steps_until_its_end() {
    let budget = budget(9 * MB, 9 * MB);
    let (mut link, mut peer) = link(&budget, "one");
    write(&mut link, &mut peer, 30_000).await;
    assert_eq!(budget.held(), 0, "what every connection may hold anyway is nobody's affair");
    write(&mut link, &mut peer, 70_000).await;
    assert_eq!(budget.held(), USUAL);
    write(&mut link, &mut peer, MB).await;
    assert_eq!((budget.held(), link.status().waits_for_memory), (MAX_LINE_BYTES, false));
    peer.write_all(b"\n{}\n").await.unwrap();
    assert!(link.next().await.is_some_and(|arrival| arrival.is_ok()));
    assert_eq!(budget.held(), MAX_LINE_BYTES, "until somebody else pays for it");
    link.release_last();
    assert_eq!(budget.held(), 0);
    assert_eq!(arrives(&mut link).await, 2);
    write(&mut link, &mut peer, 100_000).await;
    assert_eq!(budget.held(), USUAL);
    peer.write_all(b"\n{}\n").await.unwrap();
    assert!(link.next().await.is_some_and(|arrival| arrival.is_ok()));
    assert_eq!(budget.held(), USUAL);
    assert!(link.next().await.is_some_and(|arrival| arrival.is_ok()));
    assert_eq!(budget.held(), 0, "who asks for the next has done with the last");
    write(&mut link, &mut peer, 100_000).await;
    drop(link);
    assert_eq!(budget.held(), 0);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused_and_gives_its_room_back() {
    let budget = budget(9 * MB, 9 * MB);
    let (mut link, mut peer) = link(&budget, "one");
    write(&mut link, &mut peer, LONGEST).await;
    assert_eq!(budget.held(), MAX_LINE_BYTES);
    peer.write_all(b"xx").await.unwrap();
    let refused = link.next().await.unwrap().unwrap_err();
    assert!(matches!(refused, LinkError::FrameTooLarge(over) if over.limit == LONGEST as u64), "{refused}");
    assert_eq!(budget.held(), 0);
}

#[tokio::test]
async fn a_line_that_began_before_anybody_asked_is_charged_too() {
    let budget = budget(9 * MB, 9 * MB);
    let (ours, mut peer) = duplex(64 << 10);
    let mut link = Lines::new(ours, sink(), Capacity::of(u64::MAX), LONGEST as u64);
    write(&mut link, &mut peer, 2 * MB).await;
    link.set_intake(intake(&budget, "one"));
    nothing_arrives(&mut link).await;
    assert_eq!(budget.held(), MAX_LINE_BYTES);
}

#[tokio::test]
async fn without_room_a_line_waits_where_it_is_and_comes_when_there_is_room() {
    let budget = budget(99 * MB, LONGEST + 2 * MB);
    let ((mut first, mut one), (mut second, mut two)) = (link(&budget, "p"), link(&budget, "p"));
    write(&mut first, &mut one, 2 * MB).await;
    let writes = tokio::spawn(async move {
        two.write_all(&vec![b'y'; 2 * MB]).await.unwrap();
        two.write_all(b"\n").await.unwrap();
    });
    nothing_arrives(&mut second).await;
    assert_eq!(budget.held(), MAX_LINE_BYTES, "that it could grow is not sure, so it does not begin");
    assert!(second.status().waits_for_memory && !first.status().waits_for_memory && !writes.is_finished());
    // A short one of somebody else's passes all the while.
    let (mut third, mut three) = link(&budget, "p");
    three.write_all(&[&[b'z'; 60_000][..], b"\n"].concat()).await.unwrap();
    assert_eq!(arrives(&mut third).await, 60_000);
    one.write_all(b"\n").await.unwrap();
    assert_eq!(arrives(&mut first).await, 2 * MB);
    assert_eq!((arrives(&mut second).await, budget.held()), (2 * MB, 0));
    assert!(!second.status().waits_for_memory);
}

#[tokio::test(start_paused = true)]
async fn lines_that_all_grow_at_once_do_not_wait_for_each_other_for_ever() {
    const LINES: usize = 20;
    let budget = budget(99 * MB, 3 * LONGEST);
    let mut readers = Vec::new();
    for _ in 0..LINES {
        let (mut link, mut peer) = link(&budget, "p");
        tokio::spawn(async move {
            for _ in 0..35 {
                peer.write_all(&[b'x'; 100_000]).await.unwrap();
                // So that all of them grow side by side.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            peer.write_all(b"\n").await.unwrap();
        });
        let budget = budget.clone();
        readers.push(tokio::spawn(async move {
            let Arrival::Frame { bytes, .. } = link.next().await.unwrap().unwrap() else { panic!("no frame") };
            assert!(budget.used() <= 3 * LONGEST as u64);
            bytes.len()
        }));
    }
    for reader in readers {
        assert_eq!(timeout(Duration::from_secs(600), reader).await.unwrap().unwrap(), 35 * 100_000);
    }
    assert_eq!(budget.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_stands_still_goes_when_others_need_its_room() {
    let budget = budget(LONGEST + 2 * MB, LONGEST + MB);
    let ((mut idle, mut one), (mut busy, mut two)) = (link(&budget, "idle"), link(&budget, "busy"));
    write(&mut busy, &mut two, 100_000).await;
    write(&mut idle, &mut one, 100_000).await;
    write(&mut idle, &mut one, MB).await;
    assert_eq!(budget.held(), MAX_LINE_BYTES + USUAL);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let writes = tokio::spawn(async move {
        two.write_all(&vec![b'x'; 2 * MB]).await.unwrap();
        two.write_all(b"\n").await.unwrap();
    });
    nothing_arrives(&mut busy).await;
    let gone = timeout(SOON, idle.next()).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(gone, LinkError::OverBudget(_)), "{gone}");
    drop(idle);
    assert_eq!(arrives(&mut busy).await, 2 * MB + 100_000);
    writes.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn so_does_one_that_nobody_reads_at_the_moment() {
    let budget = budget(LONGEST + 2 * MB, LONGEST + MB);
    let ((idle, mut one), (mut busy, mut two)) = (link(&budget, "idle"), link(&budget, "busy"));
    write(&mut busy, &mut two, 100_000).await;
    let mut driver = Driver::new(idle, plain());
    let writes = tokio::spawn(async move {
        one.write_all(&vec![b' '; 2 * MB]).await.unwrap();
        one
    });
    stalls(&mut driver, &budget, MAX_LINE_BYTES).await;
    let busy = async {
        let line = [&vec![b'x'; 2 * MB][..], b"\n"].concat();
        tokio::join!(two.write_all(&line), arrives(&mut busy)).1
    };
    let (arrived, ()) = tokio::join!(busy, assert_goes(driver, writes.await.unwrap()));
    assert_eq!(arrived, 2 * MB + 100_000);
}

#[tokio::test(start_paused = true)]
async fn while_a_line_waits_for_room_the_time_of_the_peers_groups_stands_still() {
    let budget = budget(99 * MB, LONGEST + MB);
    let setup = Setup::new(Dialect::Stdio, Role::Server, Limits::default());
    let machine = || setup.machine(Budget::default().account(Some("p"))).unwrap();
    let message = Message::from(format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(100_000)));
    let chunks = chunks(machine(), message);
    let (link, mut peer) = link(&budget, "p");
    let mut driver = Driver::new(link, machine());
    let schedule = Schedule { started: Instant::now().into_std(), timeout: SOON };
    let all = budget.account(Some("p")).reserve((LONGEST + MB) as u64, schedule).unwrap();
    let long = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "n".repeat(200_000));
    let writes = tokio::spawn(async move {
        for line in [&chunks[0], long.as_bytes(), &chunks[1]] {
            peer.write_all(&[line, b"\n"].concat()).await.unwrap();
        }
        peer
    });
    let mut next = async |time| {
        let message = async {
            loop {
                match driver.next().await.unwrap() {
                    Event::Message { message, .. } => break message.len(),
                    Event::Progress(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        timeout(time, message).await.ok()
    };
    assert_eq!(next(Duration::from_secs(600)).await, None);
    drop(all);
    assert_eq!((next(SOON).await, next(SOON).await), (Some(200_029), Some(100_029)));
    writes.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_line_that_nobody_takes_goes_when_others_need_its_room() {
    let budget = budget(LONGEST + 2 * MB, LONGEST + MB);
    let ((mut idle, mut one), other) = (link(&budget, "idle"), budget.account(Some("other")));
    write(&mut idle, &mut one, 100_000).await;
    write(&mut idle, &mut one, MB).await;
    one.write_all(b"\n").await.unwrap();
    assert!(matches!(idle.next().await, Some(Ok(Arrival::Frame { .. }))));
    assert_goes_untaken(&mut idle, &other, 2 * MB + 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_needs_no_room_although_nobody_reads_on() {
    let budget = budget(9 * MB, 9 * MB);
    let line = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{}\"}}\n", "m".repeat(100_000));
    let (link, mut peer) = link(&budget, "p");
    let mut driver = Driver::new(link, plain());
    let (written, taken) = tokio::join!(peer.write_all(line.as_bytes()), driver.next());
    written.unwrap();
    assert!(matches!(taken, Some(Event::Message { .. })));
    assert_eq!(budget.held(), USUAL);
    driver.set_reading(false);
    assert!(timeout(MOMENT, driver.next()).await.is_err());
    assert_eq!(budget.held(), 0);
}

/// A message in two chunks of a pipe.
fn chunks(mut machine: impl Machine, message: Message) -> Vec<Vec<u8>> {
    let now = Instant::now().into_std();
    machine.handle(Input::Capacity(Capacity::of(64 << 10)), now);
    let (ticket, lane, meta) = (Ticket(1), Lane::Auto, Meta::default());
    machine.handle(Input::Send { ticket, message, lane, meta }, now);
    let frames = std::iter::from_fn(|| machine.poll_transmit(now));
    let chunks = frames.map(|transmit| match transmit {
        Transmit::Frame { bytes, .. } => bytes.to_bytes().to_vec(),
        other => panic!("{other:?}"),
    });
    let chunks: Vec<_> = chunks.collect();
    assert_eq!(chunks.len(), 2);
    chunks
}

#[tokio::test]
async fn what_a_child_wrote_before_it_exited_is_not_given_up_while_it_waits_for_room() {
    let budget = budget(99 * MB, LONGEST + MB);
    let schedule = Schedule { started: Instant::now().into_std(), timeout: SOON };
    let all = budget.account(Some("p")).reserve((LONGEST + MB) as u64, schedule).unwrap();
    let script = "head -c 80000 /dev/zero | tr '\\0' x; echo; echo last";
    let command = ["sh", "-c", script].map(str::to_owned).into();
    let mut link = Exec::spawn(&ExecConfig::new(command, Capacity::of(u64::MAX), 100)).unwrap();
    link.receive_memory().unwrap().set_intake(intake(&budget, "p"));
    nothing_arrives(&mut link).await;
    // All is written, and the child is gone for longer than what holds its pipe has time for.
    tokio::time::sleep(3 * MOMENT).await;
    nothing_arrives(&mut link).await;
    assert!(link.status().waits_for_memory);
    drop(all);
    assert_eq!((arrives(&mut link).await, arrives(&mut link).await), (80_000, 4));
    let closed = link.next().await.unwrap().unwrap();
    assert!(matches!(closed, Arrival::Exited { code: 1000, .. }), "{closed:?}");
}
