//! Waiting for room: what is fed meanwhile, when the driver is needed, and who wakes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};

use super::*;

/// A connection that may hold little, because another principal has the rest; and what frees that.
fn crowded() -> (Connection, crate::budget::Grant, Instant) {
    let now = Instant::now();
    let config = BudgetConfig { process_bytes: 300_000, principal_bytes: 300_000, floor_bytes: 0 };
    let budget = Budget::new(config);
    let limits = LimitsConfig { max_frame_bytes: 1024, max_message_bytes: 100_000, ..LimitsConfig::default() };
    let limits = Limits::prove(limits, &config).unwrap();
    let mut setup = Config::new(Role::Client, limits, [7; 32]);
    setup.agreed = Some(Chunking::from(&limits));
    let schedule = crate::budget::Schedule { started: now, timeout: SECOND };
    let rest = budget.account(Some("other")).reserve(299_000, schedule).unwrap();
    (Connection::new(setup, budget.account(Some("someone"))), rest, now)
}

fn segment(index: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{{"groupId":"g","index":{index},"total":99,"data":"{}"}}}}"#,
        "ICAg".repeat(200)
    )
}

#[test]
fn what_is_fed_while_nothing_is_wanted_waits_and_is_bounded_by_name() {
    let (mut connection, rest, now) = crowded();
    connection.handle(Input::frame(segment(0)), now);
    assert!(!connection.wants_frames());
    (1..50).for_each(|index| connection.handle(Input::frame(segment(index)), now));
    assert_eq!(connection.poll_timeout(), Some(now + RETRY));
    drop(rest);
    connection.handle(Input::Timeout, now + RETRY);
    assert!(connection.wants_frames(), "{:?}", connection.poll_transmit(now));

    let (mut connection, _rest, now) = crowded();
    (0..200).for_each(|index| connection.handle(Input::frame(segment(index)), now));
    let Some(Transmit::Close(reason)) = connection.poll_transmit(now) else { panic!("all of it is kept") };
    assert!(matches!(reason, CloseReason::Unwanted(crate::error::Over { limit: 100_000, .. })), "{reason}");
    assert_eq!((reason.code(), reason.name()), (1013, "close-unwanted"));
}

#[test]
fn even_empty_frames_are_bounded() {
    let (mut connection, _rest, now) = crowded();
    connection.handle(Input::frame(segment(0)), now);
    (0..10_000).for_each(|_| connection.handle(Input::frame(Bytes::new()), now));
    assert!(matches!(connection.poll_transmit(now), Some(Transmit::Close(CloseReason::Unwanted(_)))));
}

#[test]
fn an_open_group_needs_the_driver_at_its_deadline_and_not_before() {
    let (mut connection, now) = (agreed(Role::Client), Instant::now());
    assert_eq!(connection.poll_timeout(), None);
    connection.handle(Input::frame(segment(0)), now);
    let due = now + limits(|_| {}).sweep_after();
    assert_eq!(connection.poll_timeout(), Some(due));
    connection.handle(Input::frame(segment(1)), now + SECOND);
    assert_eq!(connection.poll_timeout(), Some(due));
    connection.handle(Input::Paused(true), now + SECOND);
    assert_eq!(connection.poll_timeout(), None, "its time stands still");
    connection.handle(Input::Paused(false), now + 3 * SECOND);
    assert_eq!(connection.poll_timeout(), Some(due + 2 * SECOND));
    connection.handle(Input::Timeout, due + 2 * SECOND);
    assert!(
        events(&mut connection).iter().any(|event| matches!(event, Event::Closed(CloseReason::GroupExpired { .. })))
    );
}

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_has_to_make_room_is_woken_and_does_so_at_once() {
    let now = Instant::now();
    let config = BudgetConfig { process_bytes: 300_000, principal_bytes: 300_000, floor_bytes: 0 };
    let budget = Budget::new(config);
    let limits = LimitsConfig { max_frame_bytes: 1024, max_message_bytes: 200_000, ..LimitsConfig::default() };
    let limits = Limits::prove(limits, &config).unwrap();
    let mut setup = Config::new(Role::Client, limits, [7; 32]);
    setup.agreed = Some(Chunking::from(&limits));
    let mut connection = Connection::new(setup, budget.account(Some("greedy")));
    let first = r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"g","index":0,"total":999,"data":"ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg"}}"#;
    connection.handle(Input::frame(first), now);
    let count = Arc::new(Count::default());
    connection.wake_with(&Waker::from(Arc::clone(&count)));
    let later = now + 20 * SECOND;
    let schedule = crate::budget::Schedule { started: later, timeout: SECOND };
    assert!(budget.account(Some("other")).reserve(140_000, schedule).is_err());
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(connection.poll_timeout().is_some_and(|at| at <= later));
    connection.handle(Input::Timeout, later);
    assert!(matches!(connection.poll_transmit(later), Some(Transmit::Close(CloseReason::Evicted))));
    assert!(budget.account(Some("other")).reserve(140_000, schedule).is_ok());
}

#[test]
fn a_boxed_and_a_borrowed_machine_are_machines() {
    fn said(mut machine: impl Machine, now: Instant) -> usize {
        machine.handle(Input::send(Ticket(1), action("a", 1, 10)), now);
        machine.wake_with(Waker::noop());
        assert!(machine.wants_frames() && machine.poll_timeout().is_none());
        std::iter::from_fn(|| machine.poll_transmit(now)).count()
    }
    let now = Instant::now();
    let mut server = agreed(Role::Server);
    assert_eq!(said(&mut server, now), 1);
    let boxed: Box<dyn Machine> = Box::new(server);
    assert_eq!(said(boxed, now), 1);
}
