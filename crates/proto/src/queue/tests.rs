//! What the queue promises: order, lanes, slots, deadlines, and small before the rest of bulk.

use super::*;

const A: Order = Order::Ordered(LaneKey(1));
const B: Order = Order::Ordered(LaneKey(2));
const SECOND: Duration = Duration::from_secs(1);

/// A queue of named messages: upper case ones are large, `?` waits for limits. Groups need three segments.
struct Bench {
    queue: Queue<char, (char, u32)>,
    now: Instant,
    slots: usize,
    finish: Finish,
}

impl Bench {
    fn new(slots: usize, finish: Finish) -> Self {
        Self { queue: Queue::new(1 << 20), now: Instant::now(), slots, finish }
    }

    fn push(&mut self, items: &[(char, Order)]) {
        for (item, order) in items {
            self.queue.push(*item, 10, *order, Bond::None).unwrap();
        }
    }

    /// What goes next: the message's name, with `.` behind it when it has finished.
    fn step(&mut self) -> Option<String> {
        let fit = |item: &char| match item {
            '?' => Fit::Wait,
            large if large.is_uppercase() => Fit::Group,
            _ => Fit::Frame,
        };
        Some(match self.queue.pick(self.now, self.slots, self.finish, fit)? {
            Pick::Start(entry) if entry.item.is_uppercase() => {
                self.queue.begin_group(entry.rank, (entry.item, 1), self.now, 60 * SECOND);
                entry.item.to_string()
            }
            Pick::Start(entry) => {
                self.queue.settle(entry.rank);
                format!("{}.", entry.item)
            }
            Pick::Continue(place) => {
                let group = self.queue.flight(place).unwrap();
                group.1 += 1;
                let (name, sent) = *group;
                if sent == 3 {
                    self.queue.finish_group(place);
                    format!("{name}.")
                } else {
                    name.to_string()
                }
            }
        })
    }

    fn drain(&mut self) -> String {
        std::iter::from_fn(|| self.step()).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn ordered_messages_finish_in_order_for_a_peer_without_a_settled_cursor() {
    let mut bench = Bench::new(8, Finish::InOrder);
    bench.push(&[('X', A), ('b', B), ('Y', B), ('c', A)]);
    assert_eq!(bench.drain(), "X X X. b. Y Y Y. c.");
}

#[test]
fn a_small_message_passes_the_rest_of_a_large_one_on_another_lane() {
    let mut bench = Bench::new(8, Finish::PerLane);
    bench.push(&[('X', A), ('b', B)]);
    assert_eq!(bench.drain(), "X b. X X.");
}

#[test]
fn lane_order_holds_and_the_head_holds_back_all_ordered_ones_behind_it() {
    let mut bench = Bench::new(8, Finish::PerLane);
    bench.push(&[('X', A), ('a', A), ('b', B)]);
    assert_eq!(bench.drain(), "X X X. a. b.");
}

#[test]
fn while_an_ordered_message_waits_for_a_slot_later_ones_wait() {
    let mut bench = Bench::new(1, Finish::PerLane);
    bench.push(&[('X', A), ('Y', B), ('c', Order::Ordered(LaneKey(3)))]);
    assert_eq!(bench.drain(), "X X X. Y c. Y Y.");
}

#[test]
fn a_large_free_message_under_way_holds_no_ordered_one() {
    let mut bench = Bench::new(8, Finish::InOrder);
    bench.push(&[('F', Order::Free)]);
    assert_eq!(bench.step().unwrap(), "F");
    bench.push(&[('a', A)]);
    assert_eq!(bench.drain(), "a. F F.");
}

#[test]
fn free_messages_pass_ordered_ones_and_urgent_ones_pass_all() {
    let mut bench = Bench::new(8, Finish::InOrder);
    bench.push(&[('X', A), ('b', B), ('f', Order::Free), ('u', Order::Urgent)]);
    assert_eq!(bench.drain(), "u. f. X X X. b.");
}

#[test]
fn nothing_accepted_after_a_barrier_starts_before_it_finishes_except_a_ping() {
    let mut bench = Bench::new(8, Finish::PerLane);
    bench.push(&[('f', Order::Free), ('R', Order::Barrier), ('b', B), ('g', Order::Free), ('G', Order::Free)]);
    assert_eq!(bench.step().unwrap(), "f.");
    assert_eq!(bench.step().unwrap(), "R");
    bench.push(&[('u', Order::Urgent)]);
    assert_eq!(bench.drain(), "u. R R. b. g. G G G.");
}

#[test]
fn two_barriers_hold_in_turn() {
    let mut bench = Bench::new(8, Finish::PerLane);
    bench.push(&[('r', Order::Barrier), ('S', Order::Barrier), ('b', B)]);
    assert_eq!(bench.drain(), "r. S S S. b.");
}

#[test]
fn groups_take_turns_and_the_oldest_goes_first_when_its_deadline_nears() {
    let mut bench = Bench::new(8, Finish::PerLane);
    bench.push(&[('X', Order::Free), ('Y', Order::Free)]);
    assert_eq!(bench.drain(), "X Y X Y X. Y.");
    bench.push(&[('X', Order::Free), ('Y', Order::Free)]);
    assert_eq!((bench.step().unwrap(), bench.step().unwrap()), ("X".into(), "Y".into()));
    bench.now += 31 * SECOND;
    assert_eq!(bench.drain(), "X X. Y Y.");
}

#[test]
fn a_stream_of_small_messages_does_not_starve_a_large_one() {
    let mut bench = Bench::new(8, Finish::PerLane);
    bench.push(&[('X', A)]);
    for _ in 0..4 {
        bench.queue.push('b', SMALL_RUN, B, Bond::None).unwrap();
    }
    assert_eq!(bench.drain(), "X b. X b. X. b. b.");
}

#[test]
fn slots_bound_the_groups_under_way_and_go_to_the_oldest() {
    let mut bench = Bench::new(2, Finish::PerLane);
    bench.push(&[('X', Order::Free), ('Y', Order::Free), ('Z', Order::Free)]);
    assert_eq!(bench.drain(), "X Y X Y X. Z Y. Z Z.");
}

#[test]
fn a_message_whose_fit_is_unknown_holds_its_order() {
    let mut bench = Bench::new(2, Finish::PerLane);
    bench.push(&[('?', A), ('b', B), ('f', Order::Free)]);
    assert_eq!(bench.drain(), "f.");
    assert!(bench.queue.has_waiting());
}

#[test]
fn an_urgent_message_that_needs_a_group_becomes_free() {
    let mut bench = Bench::new(2, Finish::PerLane);
    bench.push(&[('U', Order::Urgent), ('a', A)]);
    assert_eq!(bench.drain(), "a. U U U.");
}

#[test]
fn a_lane_is_unfinished_while_a_message_of_it_waits_or_is_under_way() {
    let mut bench = Bench::new(2, Finish::InOrder);
    bench.push(&[('X', A), ('b', B), ('f', Order::Free)]);
    let lanes = |bench: &Bench| (bench.queue.has_unfinished(A), bench.queue.has_unfinished(B));
    assert_eq!(lanes(&bench), (true, true));
    assert_eq!((bench.step().unwrap(), bench.step().unwrap()), ("f.".into(), "X".into()));
    assert_eq!(lanes(&bench), (true, true));
    assert_eq!((bench.step().unwrap(), bench.step().unwrap()), ("X".into(), "X.".into()));
    assert_eq!(lanes(&bench), (false, true));
}

#[test]
fn nothing_lands_at_a_place_that_no_flight_has() {
    let mut queue: Queue<char, ()> = Queue::new(25);
    queue.finish_group(0);
    assert!(queue.flight(0).is_none());
}

#[test]
fn the_queue_is_bounded_in_bytes_except_for_barriers() {
    let mut queue: Queue<char, ()> = Queue::new(25);
    queue.push('a', 10, A, Bond::None).unwrap();
    queue.push('b', 15, Order::Free, Bond::None).unwrap();
    let (item, error) = queue.push('c', 1, Order::Urgent, Bond::None).unwrap_err();
    assert_eq!((item, error), ('c', SendError::QueueFull(Over { size: 1, limit: 25 })));
    queue.push('r', 99, Order::Barrier, Bond::None).unwrap();
    let now = Instant::now();
    let pick = |queue: &mut Queue<char, ()>| match queue.pick(now, 1, Finish::PerLane, |_| Fit::Frame) {
        Some(Pick::Start(entry)) => {
            queue.settle(entry.rank);
            entry.item
        }
        other => panic!("{other:?}"),
    };
    assert_eq!([pick(&mut queue), pick(&mut queue), pick(&mut queue)], ['a', 'b', 'r']);
    queue.push('c', 25, A, Bond::None).unwrap();
}

#[test]
fn a_handshake_goes_before_what_waits_for_it_and_past_the_limit() {
    let mut bench = Bench::new(2, Finish::InOrder);
    bench.push(&[('?', A), ('b', A)]);
    bench.queue.push_first('h', 2 << 20, A);
    assert_eq!(bench.drain(), "h.");
    assert!(bench.queue.push('c', 1 << 20, A, Bond::None).is_err());
    bench.queue.push('c', (1 << 20) - 20, A, Bond::None).unwrap();
}

#[test]
fn clear_returns_what_waited_in_order_and_what_was_under_way() {
    let mut bench = Bench::new(2, Finish::PerLane);
    bench.push(&[('X', A), ('f', Order::Free), ('b', A), ('r', Order::Barrier)]);
    assert_eq!((bench.step().unwrap(), bench.step().unwrap()), ("f.".into(), "X".into()));
    assert_eq!(bench.queue.flights().count(), 1);
    let (waiting, flights) = bench.queue.clear();
    assert_eq!((waiting, flights), (vec!['b', 'r'], vec![('X', 1)]));
    assert!(bench.queue.flights().next().is_none() && !bench.queue.has_waiting());
    bench.push(&[('c', B)]);
    assert_eq!(bench.drain(), "c.");
}

#[test]
fn a_look_at_what_waits_is_not_taken_for_each_small_message() {
    let mut queue: Queue<u32, ()> = Queue::new(u64::MAX);
    for n in 0..10_000 {
        queue.push(n, 100, Order::Free, Bond::None).unwrap();
    }
    let looks = std::cell::Cell::new(0_u32);
    let fit = |_: &u32| {
        looks.set(looks.get() + 1);
        Fit::Frame
    };
    let now = Instant::now();
    let went: Vec<u32> = std::iter::from_fn(|| match queue.pick(now, 8, Finish::PerLane, fit)? {
        Pick::Start(entry) => Some(entry.item),
        Pick::Continue(_) => None,
    })
    .collect();
    assert!(went.iter().copied().eq(0..10_000));
    assert!(looks.get() < 300_000, "{} looks at 10,000 messages", looks.get());
}
