//! What is bounded: lines, groups, their age and the bytes that they hold.

use super::*;

#[test]
fn lines_and_groups_are_limited() {
    let limits =
        LimitsConfig { max_groups: 2, max_message_bytes: 1000, max_frame_bytes: 600, ..LimitsConfig::default() };
    let mut end = Endpoint::with(limits, &Budget::default());
    end.receive("x".repeat(1001));
    assert_eq!(end.failure().1, Violation::LineTooLong(Over { size: 1001, limit: 1000 }));
    end.receive(frame(ID, 0, 2, "{"));
    end.receive(frame(OTHER, 0, 2, "{"));
    end.events();
    end.receive(frame(&ID.replace('0', "1"), 0, 2, "{"));
    assert_eq!(end.failure().1, Violation::TooManyGroups(2));
    end.receive(frame(ID, 1, 2, &"x".repeat(1000)));
    assert!(matches!(end.failure().1, Violation::LineTooLong { .. }));
    end.receive(frame(OTHER, 1, 2, "}"));
    assert_eq!(end.failure().1, Violation::MessageNotJsonRpc);
}

#[test]
fn an_old_group_expires_once_and_the_clock_stands_still_while_we_do_not_read() {
    let mut end = Endpoint::new();
    end.receive(frame(ID, 0, 2, "{"));
    end.events();
    end.now += 30 * SECOND;
    end.handle(Input::Paused(true));
    end.now += 100 * SECOND;
    end.handle(Input::Timeout);
    end.handle(Input::Paused(false));
    end.handle(Input::Timeout);
    assert!(end.events().is_empty());
    end.now += 4 * SECOND;
    end.handle(Input::Timeout);
    assert!(end.events().is_empty());
    end.now += SECOND;
    end.handle(Input::Timeout);
    assert!(matches!(end.events().as_slice(), [Event::Expired { ordinal: 0, received: 1 }]));
    assert_eq!(end.machine.poll_timeout(), None);
    end.receive(frame(ID, 1, 2, "}"));
    assert!(end.events().is_empty(), "late frames begin nothing");
    assert_eq!(end.machine.counters().count("group-expired"), 1);
}

#[test]
fn the_timeout_that_is_asked_for_is_never_after_the_deadline() {
    let mut end = Endpoint::new();
    assert_eq!(end.machine.poll_timeout(), None);
    end.receive(frame(ID, 0, 2, "{"));
    let deadline = end.now + 35 * SECOND;
    while let Some(at) = end.machine.poll_timeout() {
        assert!(at <= deadline && at > end.now);
        end.now = at;
        end.handle(Input::Timeout);
    }
    assert_eq!(end.now, deadline);
}

#[test]
fn the_budget_is_held_while_a_group_is_open_and_given_back_after() {
    let budget = Budget::default();
    let mut end = Endpoint::with(LimitsConfig::default(), &budget);
    let text = note(100_000);
    let lines = frames(ID, &text, 10_000);
    for (n, line) in lines.iter().enumerate() {
        end.receive(line.clone());
        let open = n + 1 < lines.len();
        assert_eq!(budget.held() >= 100_000, open, "{n}");
        assert!(budget.held() < 104_000);
    }
    end.receive(frame(OTHER, 0, 1_000_000, "{"));
    assert!(budget.held() > 1_000_000);
    end.handle(Input::Close(CloseReason::Normal));
    assert_eq!(budget.held(), 0);
}

#[test]
fn frames_ahead_of_a_gap_are_counted_and_bounded() {
    let budget = small_budget(60_000);
    let mut end = Endpoint::with(
        LimitsConfig { max_message_bytes: 50_000, max_frame_bytes: 600, ..LimitsConfig::default() },
        &budget,
    );
    for index in 1..1000 {
        end.receive(frame(ID, index, 1000, ""));
        if budget.held() == 0 {
            break;
        }
        assert!(budget.held() >= 64 * index as u64);
    }
    let failed = end
        .events()
        .into_iter()
        .find_map(|event| if let Event::ReceiveFailed { violation, .. } = event { Some(violation) } else { None });
    assert!(matches!(failed, Some(Violation::OverBudget { .. })), "{failed:?}");
    assert_eq!(budget.held(), 0);
}

#[test]
fn without_room_a_group_fails_alone_and_reading_goes_on() {
    let budget = small_budget(10_000);
    let mut end = Endpoint::with(LimitsConfig::default(), &budget);
    end.receive(frame(ID, 0, 100, &"x".repeat(1000)));
    let (ordinal, violation, reply) = end.failure();
    assert_eq!((ordinal, violation, reply), (0, Violation::OverBudget(100_000), None));
    assert!(end.machine.wants_frames());
    end.receive(note(50));
    end.receive(frame(ID, 1, 100, "late"));
    assert_eq!(end.messages(), [note(50)]);
    assert_eq!((end.machine.counters().count("late-frame"), budget.held()), (1, 0));
    frames(OTHER, &note(5000), 1000).into_iter().for_each(|line| end.receive(line));
    assert_eq!(end.messages(), [note(5000)], "what has room arrives");
}

#[test]
fn a_group_that_has_to_make_room_fails_alone() {
    let config = BudgetConfig { process_bytes: 300_000, principal_bytes: 300_000, floor_bytes: 0 };
    let budget = Budget::new(config);
    let mut end = Endpoint::with(LimitsConfig::default(), &budget);
    end.receive(frame(ID, 0, 250, &format!("[\"{}", "x".repeat(998))));
    end.events();
    end.now += 20 * SECOND;
    let other = budget.account(Some("other"));
    let schedule = crate::budget::Schedule { started: end.now, timeout: SECOND };
    let _some = other.reserve(10_000, schedule).unwrap();
    assert!(other.reserve(100_000, schedule).is_err());
    end.handle(Input::Timeout);
    assert_eq!(end.failure().1, Violation::OverBudget(1000));
    assert!(other.reserve(100_000, schedule).is_ok());
}

#[test]
fn a_flood_of_one_byte_frames_costs_us_less_than_its_sender() {
    let budget = Budget::default();
    let mut end = Endpoint::with(LimitsConfig::default(), &budget);
    let text = note(50_000);
    let lines = frames(ID, &text, 1);
    let mut sent = crate::budget::GROUP_COST;
    for line in &lines[..lines.len() - 1] {
        sent += line.len() as u64;
        end.receive(line.clone());
        assert!(2 * budget.held() < sent + 130_000, "{} for {sent}", budget.held());
    }
    end.receive(lines[lines.len() - 1].clone());
    assert_eq!(end.messages(), [text]);
}

#[test]
fn the_callers_of_an_answer_and_of_a_request_that_expire_hear_of_it() {
    let mut end = Endpoint::new();
    let front = r#"{"jsonrpc":"2.0","id":7,"result":{"#;
    end.receive(frame(ID, 0, 2, front));
    end.receive(frame(OTHER, 0, 2, r#"{"jsonrpc":"2.0","id":8,"method":"m""#));
    end.events();
    end.now += 35 * SECOND;
    end.handle(Input::Timeout);
    let events = end.events();
    let [
        Event::Expired { ordinal: 0, .. },
        Event::ReceiveFailed { ordinal: 0, violation, reply: Some(reply) },
        Event::Expired { ordinal: 1, .. },
        Event::ReceiveFailed { ordinal: 1, violation: _, reply: None },
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!(*violation, Violation::TimedOut(front.len() as u64));
    assert_eq!(*reply, rpc::error_response(b"7", &violation.to_string(), "timed-out"));
    assert_eq!(end.machine.counters().count("group-expired"), 2);
    let asked = Violation::TimedOut(r#"{"jsonrpc":"2.0","id":8,"method":"m""#.len() as u64);
    let answer = rpc::error_response(b"8", &asked.to_string(), "timed-out");
    assert_eq!(end.lines(), [answer.to_bytes()]);
}
