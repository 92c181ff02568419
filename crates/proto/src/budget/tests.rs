//! What the budget promises: floors, quotas, reservations, and who goes first.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn budget() -> Budget {
    Budget::new(BudgetConfig { process_bytes: 1000, principal_bytes: 600, floor_bytes: 100 })
}

fn schedule(started: Instant) -> Schedule {
    Schedule { started, timeout: 10 * SECOND }
}

#[test]
fn the_floor_is_private_and_the_rest_comes_from_the_process() {
    let (budget, now) = (budget(), schedule(Instant::now()));
    let (one, two) = (budget.account(Some("a")), budget.account(Some("b")));
    let first = one.reserve(100, now).unwrap();
    assert_eq!((budget.used(), budget.held(), first.bytes()), (0, 100, 100));
    let second = one.reserve(50, now).unwrap();
    let third = two.reserve(130, now).unwrap();
    assert_eq!((budget.used(), budget.held()), (80, 280));
    drop(first);
    assert_eq!((budget.used(), budget.held()), (30, 180));
    drop((second, third));
    assert_eq!((budget.used(), budget.held()), (0, 0));
}

#[test]
fn what_it_was_made_from_is_known() {
    let config = budget().config();
    assert_eq!((config.process_bytes, config.principal_bytes, config.floor_bytes), (1000, 600, 100));
}

#[test]
fn a_group_is_judged_from_when_it_began() {
    let (budget, begin) = (Budget::new(BudgetConfig { principal_bytes: 1000, ..budget().config() }), Instant::now());
    let (greedy, other) = (budget.account(Some("a")), budget.account(Some("b")));
    let early = greedy.reserve(300, schedule(begin)).unwrap();
    let late = greedy.reserve(800, schedule(begin + 8 * SECOND)).unwrap();
    // The early one should have 270 bytes by now, the late one 80.
    assert!(other.reserve(200, schedule(begin + 9 * SECOND)).is_err());
    assert!(early.evicted() && !late.evicted());
}

#[test]
fn a_stranger_has_only_the_floor() {
    let (budget, now) = (budget(), schedule(Instant::now()));
    let account = budget.account(None);
    assert_eq!(account.reserve(101, now).unwrap_err(), Full { bytes: 101 });
    let _held = account.reserve(100, now).unwrap();
    assert!(account.reserve(1, now).is_err());
}

#[test]
fn connections_share_the_blocks_that_messages_have_let_go_of() {
    // A small one keeps no blocks.
    let budget = Budget::default();
    let (one, two) = (budget.account(None), budget.account(None));
    let message = |account: &Account| {
        let mut buffer = buffer::Buffer::pooled(account.blocks());
        (0..40).for_each(|_| buffer.extend(&[7; 100_000]));
        buffer.into_message()
    };
    let places = |message: &crate::Message| message.parts().iter().map(|part| part.as_ptr()).collect::<Vec<_>>();
    let first = places(&message(&one));
    // What was merely freed is taken by these.
    let _decoys: Vec<_> = (0..8).map(|_| vec![1_u8; 1 << 20]).collect();
    let second = message(&two);
    assert!(places(&second).last().is_some_and(|place| first.contains(place)));
}

#[test]
fn what_could_never_be_granted_is_known() {
    let budget = budget();
    let (named, stranger) = (budget.account(Some("a")), budget.account(None));
    assert!(named.could_grant(700) && !named.could_grant(701));
    assert!(stranger.could_grant(100) && !stranger.could_grant(101));
}

#[test]
fn connections_of_one_principal_share_its_quota() {
    let (budget, now) = (budget(), schedule(Instant::now()));
    let (one, two, other) = (budget.account(Some("a")), budget.account(Some("a")), budget.account(Some("b")));
    let held = one.reserve(500, now).unwrap();
    assert!(two.reserve(301, now).is_err());
    let _rest = two.reserve(300, now).unwrap();
    assert!(other.reserve(501, now).is_err(), "the process has 400 left beside the floor");
    let _other = other.reserve(500, now).unwrap();
    assert_eq!(budget.used(), 1000);
    drop(held);
    assert!(two.reserve(400, now).is_ok());
}

#[test]
fn a_grant_grows_and_gives_back_what_is_not_needed_when_it_is_complete() {
    let (budget, now) = (budget(), Instant::now());
    let account = budget.account(Some("a"));
    let mut grant = account.reserve(150, schedule(now)).unwrap();
    assert_eq!(grant.grow_to(140, now), Ok(()));
    assert_eq!((grant.bytes(), budget.used()), (150, 50));
    assert_eq!(grant.grow_to(400, now), Ok(()));
    assert_eq!((grant.bytes(), budget.used(), budget.held()), (400, 300, 400));
    assert_eq!(grant.grow_to(701, now), Err(Full { bytes: 301 }));
    assert_eq!((grant.bytes(), budget.used()), (400, 300));
    grant.complete(500);
    assert_eq!((grant.bytes(), budget.held()), (400, 400));
    grant.complete(120);
    assert_eq!((grant.bytes(), budget.used(), budget.held()), (120, 20, 120));
    drop(grant);
    assert_eq!((budget.used(), budget.held()), (0, 0));
}

#[test]
fn those_who_may_wait_to_grow_leave_enough_for_one_of_them() {
    let (budget, begin) = (budget(), Instant::now());
    let (now, one, two) = (schedule(begin), budget.account(Some("a")), budget.account(Some("a")));
    // The floors count. Of its quota of 600, each takes 100 and leaves 300.
    let mut grants: Vec<_> = [&one, &two].map(|account| account.reserve_with_headroom(200, 300, now).unwrap()).into();
    assert_eq!(budget.held(), 400, "what is left is not held");
    grants.push(one.reserve_with_headroom(100, 300, now).unwrap());
    assert_eq!(one.reserve_with_headroom(1, 300, now).unwrap_err(), Full { bytes: 1 });
    for mut grant in grants {
        let all = grant.bytes() + 300;
        assert_eq!(grant.grow_to(all, begin), Ok(()));
    }
    assert_eq!(budget.held(), 0);
}

#[test]
fn room_that_is_left_is_the_processs_too_and_who_misses_it_evicts() {
    let (budget, begin) = (budget(), Instant::now());
    let (greedy, other) = (budget.account(Some("a")), budget.account(Some("b")));
    let late = greedy.reserve(700, schedule(begin)).unwrap();
    assert!(other.reserve_with_headroom(200, 300, schedule(begin)).is_ok());
    assert!(!late.evicted());
    assert!(other.reserve_with_headroom(200, 301, schedule(begin + SECOND)).is_err());
    assert!(late.evicted());
}

#[test]
fn within_the_floor_nothing_has_to_be_left() {
    let (budget, now) = (budget(), schedule(Instant::now()));
    let (one, two) = (budget.account(Some("a")), budget.account(Some("a")));
    let _all = one.reserve(700, now).unwrap();
    assert!(two.reserve_with_headroom(100, 1, now).is_ok());
    assert!(two.reserve_with_headroom(101, 1, now).is_err());
}

#[test]
fn a_grant_outlives_its_account_and_the_account_then_goes() {
    let (budget, now) = (budget(), schedule(Instant::now()));
    let account = budget.account(Some("a"));
    let grant = account.reserve(300, now).unwrap();
    drop(account);
    assert_eq!(budget.held(), 300);
    drop(grant);
    drop(budget.account(Some("a")));
    assert_eq!((budget.held(), budget.used()), (0, 0));
    let state = budget.lock();
    assert!(state.accounts.is_empty() && state.principals.is_empty() && state.groups.is_empty());
}

#[test]
fn a_size_beyond_counting_is_refused() {
    let (budget, now) = (budget(), schedule(Instant::now()));
    let account = budget.account(Some("a"));
    let _one = account.reserve(1, now).unwrap();
    assert!(account.reserve(u64::MAX, now).is_err());
    assert_eq!(budget.held(), 1);
}

/// Three groups fill the process: `slow` and `fast` of a greedy principal, and one of a modest principal.
fn pressed(start: Instant) -> (Budget, [Grant; 3]) {
    let budget = budget();
    let [greedy, greedy_too, modest] = ["greedy", "greedy", "modest"].map(|name| budget.account(Some(name)));
    let slow = greedy.reserve(400, schedule(start)).unwrap();
    let fast = greedy_too.reserve(400, schedule(start)).unwrap();
    let other = modest.reserve(500, schedule(start)).unwrap();
    assert_eq!(budget.used(), 1000);
    slow.note_received(10);
    fast.note_received(300);
    (budget, [slow, fast, other])
}

#[test]
fn under_pressure_the_group_furthest_behind_of_those_over_their_share_goes_first() {
    let start = Instant::now();
    let (budget, [slow, fast, other]) = pressed(start);
    let account = budget.account(Some("modest"));
    assert!(account.reserve(110, schedule(start + 5 * SECOND)).is_err());
    assert_eq!((slow.evicted(), fast.evicted(), other.evicted()), (true, false, false));
    assert!(account.reserve(110, schedule(start + 5 * SECOND)).is_err());
    assert!(!fast.evicted(), "enough is on its way");
    drop(slow);
    assert!(account.reserve(110, schedule(start + 5 * SECOND)).is_ok());
}

#[test]
fn a_group_on_schedule_is_never_evicted() {
    let start = Instant::now();
    let (budget, [slow, fast, other]) = pressed(start);
    slow.note_received(200);
    other.note_received(500);
    let account = budget.account(Some("third"));
    assert!(account.reserve(200, schedule(start + 5 * SECOND)).is_err());
    assert!(!slow.evicted() && !fast.evicted() && !other.evicted());
    assert!(account.reserve(200, schedule(start + 6 * SECOND)).is_err());
    assert!(slow.evicted() && !fast.evicted());
}

#[test]
fn a_principal_within_its_share_and_the_one_that_asks_are_spared() {
    let start = Instant::now();
    let budget = budget();
    let (one, two) = (budget.account(Some("a")), budget.account(Some("b")));
    let half = one.reserve(600, schedule(start)).unwrap();
    let _rest = two.reserve(500, schedule(start)).unwrap();
    assert!(two.reserve(150, schedule(start + 9 * SECOND)).is_err());
    assert!(!half.evicted(), "500 of 1,000 is the fair share of one in two");
    drop(half);
    let own = one.reserve(700, schedule(start)).unwrap();
    assert!(one.reserve(10, schedule(start + 9 * SECOND)).is_err());
    assert!(!own.evicted(), "a connection does not evict its own");
}

#[test]
fn who_asks_counts_among_those_who_share() {
    let start = Instant::now();
    let budget = Budget::new(BudgetConfig { process_bytes: 1000, principal_bytes: 960, floor_bytes: 0 });
    let [one, two, newcomer] = ["a", "b", "c"].map(|name| budget.account(Some(name)));
    let halves = [one.reserve(500, schedule(start)).unwrap(), two.reserve(500, schedule(start)).unwrap()];
    assert!(newcomer.reserve(10, schedule(start + SECOND)).is_err());
    assert_eq!(halves.iter().filter(|half| half.evicted()).count(), 1, "a third of 1,000 is less than either has");
    drop(halves);
    let nearly_all = one.reserve(960, schedule(start)).unwrap();
    assert!(newcomer.reserve(100, schedule(start + SECOND)).is_err());
    assert!(nearly_all.evicted());
}

#[test]
fn time_in_which_a_connection_does_not_read_counts_half() {
    let start = Instant::now();
    let (budget, [slow, fast, other]) = pressed(start);
    slow.note_received(200);
    fast.note_received(400);
    other.note_received(500);
    // After four seconds, and half of the next two, half of it should be there.
    slow.account.clock.pause(true, start + 4 * SECOND);
    let account = budget.account(Some("third"));
    assert!(account.reserve(200, schedule(start + 6 * SECOND)).is_err());
    assert!(!slow.evicted());
    assert!(account.reserve(200, schedule(start + 7 * SECOND)).is_err());
    assert!(slow.evicted());
}

#[test]
fn who_never_reads_on_has_to_go_in_the_end_and_after_those_who_are_further_behind() {
    let start = Instant::now();
    let (budget, [slow, fast, other]) = pressed(start);
    fast.note_received(399);
    other.note_received(500);
    fast.account.clock.pause(true, start);
    let account = budget.account(Some("third"));
    assert!(account.reserve(110, schedule(start + 19 * SECOND)).is_err());
    assert!(slow.evicted() && !fast.evicted());
    drop(slow);
    let rest = account.reserve(400, schedule(start + 19 * SECOND)).unwrap();
    assert!(account.reserve(110, schedule(start + 20 * SECOND)).is_err());
    assert!(!fast.evicted(), "its principal is within its share now");
    let greedy = budget.account(Some("greedy"));
    drop(rest);
    let _more = greedy.reserve(300, schedule(start + 20 * SECOND)).unwrap();
    assert!(account.reserve(300, schedule(start + 20 * SECOND)).is_err());
    assert!(fast.evicted());
}

#[test]
fn what_has_arrived_whole_never_goes_and_is_no_room_that_is_coming() {
    let start = Instant::now();
    let (budget, [mut slow, fast, other]) = pressed(start);
    other.note_received(500);
    let account = budget.account(Some("third"));
    assert!(account.reserve(110, schedule(start + 5 * SECOND)).is_err());
    assert!(slow.evicted());
    slow.complete(400);
    assert!(account.reserve(110, schedule(start + 9 * SECOND)).is_err());
    assert!(fast.evicted());
}

#[test]
fn a_quota_is_not_a_reason_to_evict() {
    let start = Instant::now();
    let budget = budget();
    let (one, two) = (budget.account(Some("a")), budget.account(Some("a")));
    let held = one.reserve(700, schedule(start)).unwrap();
    assert!(two.reserve(200, schedule(start + 9 * SECOND)).is_err());
    assert!(!held.evicted());
}

#[test]
fn what_may_be_advertised_fits_the_grant() {
    for config in [BudgetConfig::default(), BudgetConfig { process_bytes: 9000, ..BudgetConfig::default() }] {
        let largest = config.largest_message();
        let grant = config.floor_bytes + config.principal_bytes.min(config.process_bytes);
        assert!(group_cost(largest) <= grant && group_cost(largest + largest / 1000 + 4096) > grant);
    }
}

/// Two groups of principals within their fair share, which have brought most of what they declared.
fn within_their_share(start: Instant) -> (Budget, [Grant; 2]) {
    let budget = Budget::new(BudgetConfig { process_bytes: 3 << 20, principal_bytes: 3 << 20, floor_bytes: 0 });
    let schedule = Schedule { started: start, timeout: 512 * SECOND };
    let groups = ["a", "b"].map(|name| budget.account(Some(name)).reserve_group(1 << 20, schedule).unwrap());
    groups.iter().for_each(|group| group.note_progress(900 << 10, start + SECOND));
    (budget, groups)
}

#[test]
fn a_group_that_makes_no_progress_goes_first_even_far_ahead_of_its_schedule_and_within_its_share() {
    let start = Instant::now();
    let (budget, [still, moving]) = within_their_share(start);
    let account = budget.account(Some("third"));
    moving.note_progress((900 << 10) + STEP, start + 20 * SECOND);
    assert!(account.reserve(2 << 20, schedule(start + 30 * SECOND)).is_err());
    assert!(!still.evicted() && !moving.evicted(), "29 s are not long");
    assert!(account.reserve(2 << 20, schedule(start + 31 * SECOND)).is_err());
    assert!(still.evicted() && !moving.evicted());
}

#[test]
fn a_drip_is_no_progress() {
    let start = Instant::now();
    let (budget, [drip, moving]) = within_their_share(start);
    for second in 2..=31 {
        drip.note_progress((900 << 10) + second, start + u32::try_from(second).unwrap() * SECOND);
        moving.note_progress((900 << 10) + 600 * second, start + u32::try_from(second).unwrap() * SECOND);
    }
    assert!(budget.account(Some("third")).reserve(2 << 20, schedule(start + 31 * SECOND)).is_err());
    assert!(drip.evicted() && !moving.evicted());
}

#[test]
fn a_group_whose_connection_we_do_not_read_stands_still_for_no_fault_of_its_own() {
    let start = Instant::now();
    let (budget, [paused, other]) = within_their_share(start);
    other.note_progress(1 << 20, start + 55 * SECOND);
    paused.account.clock.pause(true, start + 10 * SECOND);
    let account = budget.account(Some("third"));
    assert!(account.reserve(2 << 20, schedule(start + 60 * SECOND)).is_err());
    assert!(!paused.evicted());
    paused.account.clock.pause(false, start + 60 * SECOND);
    assert!(account.reserve(2 << 20, schedule(start + 81 * SECOND)).is_err());
    assert!(paused.evicted() && !other.evicted());
}

/// Shares of 1000 bytes, of which 200 and 300 are reserved for the first two, and none for the others.
fn shares(principal_bytes: u64) -> [Budget; SHARES] {
    Budget::split(BudgetConfig { process_bytes: 1000, principal_bytes, floor_bytes: 0 }, [200, 300, 0, 0])
}

#[test]
fn what_is_reserved_for_a_share_is_left_for_it_by_the_others() {
    let (shares, now) = (shares(1000), schedule(Instant::now()));
    let [first, second, third, _] = shares.each_ref().map(|share| share.account(Some("a")));
    assert!(third.reserve(501, now).is_err());
    let _third = third.reserve(500, now).unwrap();
    assert!(second.reserve(301, now).is_err());
    let _second = second.reserve(300, now).unwrap();
    assert!(first.reserve(201, now).is_err() && second.reserve(1, now).is_err());
    let first = first.reserve(200, now).unwrap();
    assert_eq!(shares.each_ref().map(Budget::held), [200, 300, 500, 0]);
    assert_eq!(shares.each_ref().map(Budget::used), [200, 300, 500, 0]);
    // What one share has given back is still its own.
    drop(first);
    assert!(third.reserve(1, now).is_err());
}

#[test]
fn a_share_may_use_what_nobody_has_reserved() {
    let (shares, now) = (shares(1000), schedule(Instant::now()));
    let first = shares[0].account(Some("a"));
    let most = first.reserve(700, now).unwrap();
    assert!(first.reserve(1, now).is_err());
    assert!(first.could_grant(700) && !first.could_grant(701));
    drop(most);
    let stranger = shares[0].account(None);
    assert!(!stranger.could_grant(1));
}

#[test]
fn a_principals_quota_has_the_same_shares() {
    let (shares, now) = (shares(600), schedule(Instant::now()));
    let [first, second, third, _] = shares.each_ref().map(|share| share.account(Some("a")));
    assert!(third.reserve(101, now).is_err());
    let _third = third.reserve(100, now).unwrap();
    let _second = second.reserve(300, now).unwrap();
    assert!(first.reserve(201, now).is_err());
    let _first = first.reserve(200, now).unwrap();
    // Another principal has what is left of the process's bytes.
    let other = shares[0].account(Some("b"));
    assert!(other.reserve(301, now).is_err() && other.reserve(300, now).is_ok());
}

#[test]
fn only_bytes_that_the_asking_share_would_get_are_evicted() {
    let (shares, begin) = (shares(1000), Instant::now());
    let late = schedule(begin + 9 * SECOND);
    let other = shares[0].account(Some("b"));
    let within = shares[1].account(Some("a")).reserve(300, schedule(begin)).unwrap();
    let beyond = shares[2].account(Some("a")).reserve(400, schedule(begin)).unwrap();
    assert!(other.reserve(400, late).is_err());
    assert!(beyond.evicted() && !within.evicted());
}

#[test]
fn what_has_arrived_and_waits_for_something_else_may_have_to_go_again() {
    let (budget, begin) = (Budget::new(BudgetConfig { principal_bytes: 1000, ..budget().config() }), Instant::now());
    let (greedy, other) = (budget.account(Some("a")), budget.account(Some("b")));
    let mut grant = greedy.reserve(1000, schedule(begin)).unwrap();
    grant.complete(900);
    assert!(other.reserve(400, schedule(begin + 20 * SECOND)).is_err());
    assert!(!grant.evicted());
    grant.wait(schedule(begin + 20 * SECOND));
    // Time counts although the connection that it came on is not read.
    greedy.clock().pause(true, begin + 20 * SECOND);
    grant.note_received(500);
    assert!(other.reserve(400, schedule(begin + 25 * SECOND)).is_err());
    assert!(!grant.evicted(), "it is ahead of its time");
    assert!(other.reserve(400, schedule(begin + 29 * SECOND)).is_err());
    assert!(grant.evicted() && grant.bytes() == 900);
    drop(grant);
    assert_eq!((budget.held(), budget.used()), (0, 0));
}
