//! One end of a pipe against what the wire form and its peers demand.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::budget::{Budget, BudgetConfig};
use crate::error::{Over, SendError, Violation};
use crate::limits::LimitsConfig;
use crate::machine::{Capacity, Lane, Meta, Progress, Subject, Ticket};
use crate::message::Message;
use crate::rpc;

const ID: &str = "0B4D6F2A-1C3E-4A5B-8C7D-9E0F1A2B3C4D";
const OTHER: &str = "1b4d6f2a-1c3e-4a5b-8c7d-9e0f1a2b3c4d";
const SECOND: Duration = Duration::from_secs(1);

struct End {
    machine: Connection,
    now: Instant,
}

impl End {
    fn new() -> Self {
        Self::with(LimitsConfig::default(), &Budget::default())
    }

    fn with(limits: LimitsConfig, budget: &Budget) -> Self {
        let config = BudgetConfig { process_bytes: u64::MAX, principal_bytes: u64::MAX, floor_bytes: 0 };
        let limits = Limits::prove(limits, &config).unwrap();
        let machine = Connection::new(Config::new(limits, [3; 32]), budget.account(Some("peer")));
        Self { machine, now: Instant::now() }
    }

    fn handle(&mut self, input: Input) {
        self.machine.handle(input, self.now);
    }

    fn send(&mut self, ticket: u64, text: impl Into<Message>) {
        self.handle(Input::send(ticket, text));
    }

    fn line(&mut self) -> Option<Bytes> {
        match self.machine.poll_transmit(self.now)? {
            Transmit::Frame { bytes, .. } => Some(bytes),
            Transmit::Close(reason) => panic!("closed: {reason}"),
        }
    }

    fn lines(&mut self) -> Vec<Bytes> {
        std::iter::from_fn(|| self.line()).collect()
    }

    fn receive(&mut self, line: impl Into<Bytes>) {
        self.handle(Input::frame(line));
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.machine.poll_event()).collect()
    }

    fn messages(&mut self) -> Vec<Bytes> {
        let events = self.events().into_iter();
        events
            .filter_map(
                |event| if let Event::Message { message, .. } = event { Some(message.to_bytes()) } else { None },
            )
            .collect()
    }

    /// The only event, which is a failure.
    fn failure(&mut self) -> (u64, Violation, Option<Message>) {
        match self.events().as_slice() {
            [Event::ReceiveFailed { ordinal, violation, reply }] => (*ordinal, violation.clone(), reply.clone()),
            other => panic!("{other:?}"),
        }
    }
}

fn small_budget(bytes: u64) -> Budget {
    Budget::new(BudgetConfig { process_bytes: bytes, principal_bytes: bytes, floor_bytes: 0 })
}

/// A notification of exactly `len` bytes.
fn note(len: usize) -> String {
    let (front, back) = (r#"{"jsonrpc":"2.0","method":"m","params":[""#, r#""]}"#);
    format!("{front}{}{back}", "x".repeat(len - front.len() - back.len()))
}

fn frame(id: &str, index: usize, total: usize, data: &str) -> String {
    format!("{id}:{index}:{total}:{data}")
}

/// The frames of `text` in pieces of `size` bytes.
fn frames(id: &str, text: &str, size: usize) -> Vec<String> {
    let total = text.len().div_ceil(size);
    text.as_bytes()
        .chunks(size)
        .enumerate()
        .map(|(index, data)| frame(id, index, total, std::str::from_utf8(data).unwrap()))
        .collect()
}

#[test]
fn lengths_at_the_edges_are_written_as_swift_agent_kit_writes_them() {
    for (len, lines) in [(61_339, 1), (61_340, 1), (61_341, 1), (61_384, 1), (61_385, 2), (122_768, 2), (122_769, 3)] {
        let mut end = End::new();
        end.send(1, note(len));
        let written = end.lines();
        assert_eq!(written.len(), lines, "{len}");
        assert_eq!(len <= 61_340, written[0].starts_with(b"{"), "{len}");
        if len > 61_340 {
            assert_eq!(&written[0][36..41], format!(":0:{lines}:").as_bytes());
        }
        assert!(written.iter().all(|line| line.len() <= 61_439));
        let events = end.events();
        assert!(matches!(events.as_slice(), [Event::Sent { ticket: Ticket(1) }]), "{events:?}");
    }
}

#[test]
fn each_frame_of_a_text_without_ascii_is_utf8_by_itself() {
    let text = format!(r#"{{"jsonrpc":"2.0","method":"m","params":["{}"]}}"#, "漢".repeat(140_000));
    let mut end = End::new();
    end.send(1, text.clone());
    let lines = end.lines();
    assert!(lines.iter().all(|line| std::str::from_utf8(line).is_ok() && line.len() <= 61_439));
    let mut other = End::new();
    lines.into_iter().rev().for_each(|line| other.receive(line));
    assert_eq!(other.messages(), [text]);
}

#[test]
fn a_pretty_printed_message_is_compacted_and_any_other_keeps_its_bytes() {
    let mut end = End::new();
    end.send(1, "{\n \"jsonrpc\": \"2.0\",\r\n \"method\": \"a b\"\n}\n");
    end.send(2, "{ \"jsonrpc\": \"2.0\", \"method\":\"a\\nb\" }");
    assert_eq!(
        end.lines(),
        ["{\"jsonrpc\":\"2.0\",\"method\":\"a b\"}", "{ \"jsonrpc\": \"2.0\", \"method\":\"a\\nb\" }"]
    );
}

#[test]
fn frames_respect_a_smaller_link_and_a_larger_one_changes_nothing() {
    for (cap, most) in [(1 << 30, 61_439), (100, 100), (59, 59)] {
        let mut end = End::new();
        end.handle(Input::Capacity(Capacity::of(cap)));
        let text = note(70_000);
        end.send(1, text.clone());
        let lines = end.lines();
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= most), "{cap}");
        let mut other = End::new();
        lines.into_iter().for_each(|line| other.receive(line));
        assert_eq!(other.messages(), [text], "{cap}");
    }
}

#[test]
fn a_cap_too_small_for_a_character_or_for_the_count_refuses_the_message() {
    for cap in [10, 58] {
        let mut end = End::new();
        end.handle(Input::Capacity(Capacity::of(cap)));
        end.send(1, note(70_000));
        assert!(end.lines().is_empty());
        let want = SendError::TooManySegments(Over { size: 70_000, limit: 1_000_000 });
        assert!(matches!(end.events().as_slice(), [Event::SendFailed { error, .. }] if *error == want));
    }
    let mut end = End::new();
    end.handle(Input::Capacity(Capacity::of(59)));
    end.send(1, note(4_000_001));
    assert!(end.lines().is_empty());
    assert_eq!(end.machine.counters().count("send-too-many-segments"), 1);
}

#[test]
fn messages_go_first_in_first_out_and_a_free_one_passes() {
    let mut end = End::new();
    end.send(1, note(200_000));
    end.send(2, note(100));
    let first = end.line().unwrap();
    assert_eq!(&first[36..41], b":0:4:");
    let free = Input::Send { ticket: Ticket(3), message: note(90).into(), lane: Lane::Free, meta: Meta::default() };
    end.handle(free);
    let lens: Vec<_> = end.lines().iter().map(|line| (line.starts_with(b"{"), line.len())).collect();
    assert_eq!(lens.iter().map(|(raw, _)| *raw).collect::<Vec<_>>(), [true, false, false, false, true]);
    assert_eq!((lens[0].1, lens[4].1), (90, 100));
    let sent: Vec<_> = end
        .events()
        .into_iter()
        .filter_map(|event| if let Event::Sent { ticket } = event { Some(ticket.0) } else { None })
        .collect();
    assert_eq!(sent, [3, 1, 2]);
}

#[test]
fn progress_out_is_the_newest_and_ends_with_sent() {
    let mut end = End::new();
    end.send(1, note(200_000));
    let _ = (end.line(), end.line());
    let want = Progress { subject: Subject::Outgoing(Ticket(1)), done: 122_768, total: 200_000 };
    assert!(matches!(end.events().as_slice(), [Event::Progress(progress)] if *progress == want));
    end.lines();
    assert!(matches!(end.events().as_slice(), [Event::Sent { .. }]));
}

#[test]
fn what_is_over_the_limit_fails_closed() {
    let limits = LimitsConfig { max_message_bytes: 100_000, max_frame_bytes: 1000, ..LimitsConfig::default() };
    let mut end = End::with(limits, &Budget::default());
    let padding = "x".repeat(100_000);
    end.send(1, format!(r#"{{"jsonrpc":"2.0","id":5,"method":"m","params":["{padding}"]}}"#));
    end.send(2, format!(r#"{{"jsonrpc":"2.0","id":"r","result":"{padding}"}}"#));
    end.send(3, format!(r#"{{"jsonrpc":"2.0","method":"m","params":["{padding}"]}}"#));
    end.send(4, "no json");
    let lines = end.lines();
    assert_eq!(lines.len(), 1, "only the answer to the peer");
    let text = String::from_utf8(lines[0].to_vec()).unwrap();
    assert!(text.contains(r#""id":"r","error":{"code":-32011"#) && text.contains(r#""limit":100000"#), "{text}");
    let events = end.events();
    let [
        Event::SendFailed { ticket: Ticket(1), reply: Some(reply), .. },
        Event::SendFailed { ticket: Ticket(2), reply: None, .. },
        Event::SendFailed { ticket: Ticket(3), reply: None, .. },
        Event::SendFailed { ticket: Ticket(4), error: SendError::NotJsonRpc, reply: None },
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert!(String::from_utf8(reply.to_bytes().to_vec()).unwrap().contains(r#""id":5,"error":{"code":-32011"#));
    assert_eq!(end.machine.counters().count("send-too-large"), 3);
}

#[test]
fn a_full_queue_refuses_and_still_answers_the_peer() {
    let limits = LimitsConfig { max_queued_bytes: 150, ..LimitsConfig::default() };
    let mut end = End::with(limits, &Budget::default());
    end.send(1, note(140));
    end.send(2, note(60));
    end.send(3, r#"{"jsonrpc":"2.0","id":9,"result":1}"#);
    let lines = end.lines();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with(br#"{"jsonrpc":"2.0","id":9,"error":{"code":-32011"#));
    assert_eq!(end.machine.counters().count("send-queue-full"), 2);
}

#[test]
fn a_cap_that_shrinks_below_a_started_message_closes() {
    let mut end = End::new();
    end.send(1, note(200_000));
    let _ = end.line();
    end.handle(Input::Capacity(Capacity::of(70_000)));
    assert!(end.line().is_some());
    end.handle(Input::Capacity(Capacity::of(60_000)));
    assert!(matches!(end.machine.poll_transmit(end.now), Some(Transmit::Close(CloseReason::CapShrank))));
    let events = end.events();
    assert!(
        matches!(
            events.as_slice(),
            [Event::SendFailed { error: SendError::Disconnected, .. }, Event::Closed(CloseReason::CapShrank)]
        ),
        "{events:?}"
    );
}

#[test]
fn lines_that_are_messages_frames_and_neither_are_told_apart() {
    let mut end = End::new();
    end.receive(note(100));
    for blank in ["", "\r", "  ", "\t\r"] {
        end.receive(blank);
    }
    let logs = [
        "Server listening",
        "{not json}",
        r#"{"level":"info"}"#,
        "[]",
        "12",
        "\u{fffd}\u{1b}[0m",
        &frame("a1b2c3-4d5e-6f7g-8h9i-j0k1l2m3n4o5", 0, 1, "x"),
    ];
    logs.iter().for_each(|log| end.receive(log.to_string()));
    end.receive(&b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}"[..]);
    end.receive(frame(ID, 0, 1, &note(50)));
    end.receive(format!("{}\r", note(60)));
    let mut ordinals = Vec::new();
    let mut lines = 0;
    for event in end.events() {
        match event {
            Event::Message { message, ordinal, .. } => ordinals.push((ordinal, message.len())),
            Event::Line(_) => lines += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ordinals, [(0, 100), (1, 50), (2, 60)]);
    assert_eq!(lines, logs.len() + 1);
}

#[test]
fn frames_arrive_in_any_order_interleaved_repeated_and_with_carriage_returns() {
    let (a, b) = (note(1000), note(997));
    let mut both: Vec<_> = frames(ID, &a, 37).into_iter().chain(frames(OTHER, &b, 100)).collect();
    both.sort_by_key(|line| line.bytes().rev().map(u32::from).fold(7_u32, |sum, byte| sum.wrapping_mul(31) ^ byte));
    let mut end = End::new();
    for line in &both {
        end.receive(line.clone());
        end.receive(format!("{line}\r"));
        end.receive("");
    }
    both.iter().for_each(|line| end.receive(line.clone()));
    let mut got = end.messages();
    got.sort();
    let mut want = [Bytes::from(a), Bytes::from(b)];
    want.sort();
    assert_eq!(got, want);
    assert!(end.machine.counters().count("late-frame") > 0);
}

#[test]
fn characters_cut_by_the_peer_are_put_together() {
    let text = r#"{"jsonrpc":"2.0","method":"漢字𝄞"}"#;
    let mut end = End::new();
    let total = text.len();
    for (index, byte) in text.bytes().enumerate() {
        let mut line = format!("{ID}:{index}:{total}:").into_bytes();
        line.push(byte);
        end.receive(line);
    }
    assert_eq!(end.messages(), [text]);
}

#[test]
fn a_bad_group_fails_alone_with_its_rule_and_its_later_frames_are_ignored() {
    let front = r#"{"jsonrpc":"2.0","method":"#;
    let cases: Vec<(Vec<String>, &str)> = vec![
        (vec![frame(ID, 0, 3, front), frame(ID, 0, 3, "other")], "chunk-conflict"),
        (vec![frame(ID, 0, 3, front), frame(ID, 0, 3, &format!("{front} "))], "chunk-conflict"),
        (vec![frame(ID, 1, 3, "a"), frame(ID, 1, 3, "b")], "chunk-conflict"),
        (vec![frame(ID, 0, 3, front), frame(ID, 1, 4, "1")], "total-changed"),
        (vec![frame(ID, 0, 3, front), frame(ID, 3, 3, "1")], "frame-numbers-invalid"),
        (vec![frame(ID, 0, 0, front)], "frame-numbers-invalid"),
        (vec![frame(ID, 0, 1_000_001, front)], "frame-numbers-invalid"),
        (vec![format!("{ID}:0:9999999999999999999:x")], "frame-numbers-invalid"),
        (vec![frame(ID, 0, 2, "}")], "message-not-json"),
        (vec![frame(ID, 0, 1, front)], "message-not-json"),
        (vec![frame(ID, 0, 1, "")], "message-not-json"),
        (vec![frame(ID, 0, 1, "[]")], "message-not-json-rpc"),
        (vec![frame(ID, 0, 1, r#"{"level":"info"}"#)], "message-not-json-rpc"),
        (vec![frame(ID, 0, 1, r#"{"jsonrpc":"2.0","method":"a","method":"b"}"#)], "duplicate-key"),
    ];
    for (lines, want) in cases {
        let mut end = End::new();
        lines.iter().for_each(|line| end.receive(line.clone()));
        let (ordinal, violation, reply) = end.failure();
        assert_eq!((ordinal, violation.name(), reply), (0, want, None), "{lines:?}");
        end.receive(frame(ID, 1, 3, "late"));
        end.receive(note(100));
        let events = end.events();
        assert!(matches!(events.as_slice(), [Event::Message { ordinal: 1, .. }]), "{events:?}");
        assert_eq!(end.machine.counters().count(want), 1);
    }
}

#[test]
fn bytes_that_are_not_utf8_fail_the_group() {
    for bytes in [&b"{\"\xff"[..], b"{\"\xe6\xbc\""] {
        let mut end = End::new();
        let mut line = format!("{ID}:0:2:").into_bytes();
        line.extend_from_slice(bytes);
        end.receive(line);
        assert_eq!(end.failure().1, Violation::MessageNotUtf8);
    }
}

#[test]
fn a_failed_answer_to_a_request_of_ours_is_told_to_its_caller() {
    let limits = LimitsConfig { max_message_bytes: 1000, max_frame_bytes: 600, ..LimitsConfig::default() };
    let front = format!(r#"{{"jsonrpc":"2.0","id":"q","result":"{}"#, "x".repeat(600));
    let mut end = End::with(limits, &Budget::default());
    end.receive(frame(ID, 0, 9, &front));
    end.receive(frame(ID, 1, 9, &front));
    let events = end.events();
    let [Event::ReceiveFailed { violation, reply: Some(reply), .. }] = events.as_slice() else { panic!("{events:?}") };
    let size = 2 * front.len() as u64;
    assert_eq!(*violation, Violation::MessageTooLarge(Over { size, limit: 1000 }));
    assert_eq!(*reply, rpc::send_failed(b"\"q\"", &SendError::TooLarge(Over { size, limit: 1000 })));

    end.receive(format!("{front}{}\"}}", "y".repeat(1000)));
    let (_, violation, reply) = end.failure();
    assert!(matches!(violation, Violation::LineTooLong(Over { limit: 1000, .. })));
    assert!(reply.is_some());

    let mut end = End::new();
    end.receive(frame(OTHER, 0, 2, r#"{"jsonrpc":"2.0","id":8,"result":"x"#));
    end.receive(frame(OTHER, 1, 2, "} oh"));
    end.receive(frame(ID, 0, 2, r#"{"jsonrpc":"2.0","id":8,"result":""#));
    end.receive(frame(ID, 1, 3, ""));
    let events = end.events();
    let [Event::ReceiveFailed { reply: Some(_), .. }, Event::ReceiveFailed { reply: Some(reply), .. }] =
        events.as_slice()
    else {
        panic!("{events:?}")
    };
    let text = String::from_utf8(reply.to_bytes().to_vec()).unwrap();
    assert!(text.contains(r#""id":8,"error":{"code":-32603"#) && text.contains("total-changed"), "{text}");
}

#[test]
fn lines_and_groups_are_limited() {
    let limits =
        LimitsConfig { max_groups: 2, max_message_bytes: 1000, max_frame_bytes: 600, ..LimitsConfig::default() };
    let mut end = End::with(limits, &Budget::default());
    end.receive("x".repeat(1001));
    assert_eq!(end.failure().1, Violation::LineTooLong(Over { size: 1001, limit: 1000 }));
    end.receive(frame(ID, 0, 2, "{"));
    end.receive(frame(OTHER, 0, 2, "{"));
    end.events();
    end.receive(frame(&ID.replace('0', "1"), 0, 2, "{"));
    assert_eq!(end.failure().1, Violation::TooManyGroups { limit: 2 });
    end.receive(frame(ID, 1, 2, &"x".repeat(1000)));
    assert!(matches!(end.failure().1, Violation::LineTooLong { .. }));
    end.receive(frame(OTHER, 1, 2, "}"));
    assert_eq!(end.failure().1, Violation::MessageNotJsonRpc);
}

#[test]
fn an_old_group_expires_once_and_the_clock_stands_still_while_we_do_not_read() {
    let mut end = End::new();
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
    let mut end = End::new();
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
    let mut end = End::with(LimitsConfig::default(), &budget);
    let text = note(100_000);
    let lines = frames(ID, &text, 10_000);
    for (n, line) in lines.iter().enumerate() {
        end.receive(line.clone());
        let open = n + 1 < lines.len();
        assert_eq!(budget.held() >= 100_000, open, "{n}");
        assert!(budget.held() < 103_000);
    }
    end.receive(frame(OTHER, 0, 1_000_000, "{"));
    assert!(budget.held() > 1_000_000);
    end.handle(Input::Close(CloseReason::Normal));
    assert_eq!(budget.held(), 0);
}

#[test]
fn frames_ahead_of_a_gap_are_counted_and_bounded() {
    let budget = small_budget(60_000);
    let mut end =
        End::with(LimitsConfig { max_message_bytes: 50_000, max_frame_bytes: 600, ..LimitsConfig::default() }, &budget);
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
    assert!(matches!(failed, Some(Violation::NoRoom { .. })), "{failed:?}");
    assert_eq!(budget.held(), 0);
}

#[test]
fn without_room_a_group_fails_alone_and_reading_goes_on() {
    let budget = small_budget(10_000);
    let mut end = End::with(LimitsConfig::default(), &budget);
    end.receive(frame(ID, 0, 100, &"x".repeat(1000)));
    let (ordinal, violation, reply) = end.failure();
    assert_eq!((ordinal, violation, reply), (0, Violation::NoRoom { size: 100_000 }, None));
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
    let mut end = End::with(LimitsConfig::default(), &budget);
    end.receive(frame(ID, 0, 250, &format!("[\"{}", "x".repeat(998))));
    end.events();
    end.now += 20 * SECOND;
    let other = budget.account(Some("other"));
    let schedule = crate::budget::Schedule { started: end.now, timeout: SECOND };
    let _some = other.reserve(10_000, schedule).unwrap();
    assert!(other.reserve(100_000, schedule).is_err());
    end.handle(Input::Timeout);
    assert_eq!(end.failure().1, Violation::NoRoom { size: 1000 });
    assert!(other.reserve(100_000, schedule).is_ok());
}

#[test]
fn closing_fails_what_waits_and_ends_everything_once() {
    let mut end = End::new();
    end.send(1, note(200_000));
    let _ = end.line();
    end.send(2, r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
    end.events();
    end.handle(Input::Close(CloseReason::Peer { code: 1006 }));
    end.handle(Input::Close(CloseReason::Normal));
    end.receive(note(50));
    end.send(3, note(50));
    let events = end.events();
    let [
        Event::SendFailed { ticket: Ticket(1), reply: None, .. },
        Event::SendFailed { ticket: Ticket(2), reply: Some(_), .. },
        Event::SendFailed { ticket: Ticket(3), error: SendError::Disconnected, .. },
        Event::Closed(CloseReason::Peer { code: 1006 }),
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert!(matches!(end.machine.poll_transmit(end.now), Some(Transmit::Close(CloseReason::Peer { .. }))));
    assert!(end.machine.poll_transmit(end.now).is_none() && end.events().is_empty());
}

#[test]
fn a_flood_of_one_byte_frames_costs_us_less_than_its_sender() {
    let budget = Budget::default();
    let mut end = End::with(LimitsConfig::default(), &budget);
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For any texts, cap, order of arrival and repetition: what arrives is what was sent.
    #[test]
    fn what_arrives_is_what_was_sent(
        bodies in prop::collection::vec("[a-z\"\\\\é漢𝄞\\n]{0,400}", 1..6),
        free in prop::collection::vec(any::<bool>(), 6),
        cap in 59_u64..700,
        pieces in 1_usize..50,
        shuffle in prop::collection::vec(any::<u64>(), 400),
    ) {
        let (mut a, mut b) = (End::new(), End::new());
        a.handle(Input::Capacity(Capacity::of(cap)));
        let mut want = Vec::new();
        for (n, body) in bodies.iter().enumerate() {
            let body = serde_json::to_string(body).unwrap();
            let text = Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{n},"result":{body}}}"#));
            let parts: Vec<_> = (0..text.len())
                .step_by(pieces)
                .map(|at| text.slice(at..text.len().min(at + pieces)))
                .collect();
            let lane = if free[n] { Lane::Free } else { Lane::Auto };
            a.handle(Input::Send { ticket: Ticket(n as u64), message: Message::from_iter(parts), lane, meta: Meta::default() });
            want.push(text);
        }
        let mut lines: Vec<_> = a.lines().into_iter().zip(shuffle.iter().copied().cycle()).collect();
        prop_assert!(lines.iter().all(|(line, _)| line.len() as u64 <= cap && std::str::from_utf8(line).is_ok()));
        lines.sort_by_key(|(_, place)| *place);
        for (line, place) in lines {
            b.receive(line.clone());
            if place % 3 == 0 {
                b.receive(line);
            }
        }
        let mut got = b.messages();
        got.sort();
        // A raw line that is repeated is a second message; frames are not.
        got.dedup();
        want.sort();
        prop_assert_eq!(got, want);
    }

    /// Any bytes at all: no panic, nothing held past its end.
    #[test]
    fn any_lines_are_survived(
        lines in prop::collection::vec((0_usize..3, 0_u32..5, 0_u32..5, prop::collection::vec(any::<u8>(), 0..30), any::<bool>()), 0..60),
    ) {
        let budget = small_budget(20_000);
        let mut end = End::with(LimitsConfig::default(), &budget);
        for (id, index, total, data, framed) in lines {
            let mut line = if framed { format!("{}:{index}:{total}:", [ID, OTHER, "log"][id]).into_bytes() } else { Vec::new() };
            line.extend_from_slice(&data);
            end.receive(line);
            end.now += SECOND;
            end.handle(Input::Timeout);
        }
        end.handle(Input::Close(CloseReason::Normal));
        prop_assert_eq!(budget.held(), 0);
        prop_assert!(matches!(end.events().last(), Some(Event::Closed(_))));
    }
}
