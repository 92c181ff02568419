//! What goes out: raw lines and frames, their order, and what is refused.

use super::*;

#[test]
fn lengths_at_the_edges_are_written_as_swift_agent_kit_writes_them() {
    for (len, lines) in [(61_339, 1), (61_340, 1), (61_341, 1), (61_384, 1), (61_385, 2), (122_768, 2), (122_769, 3)] {
        let mut end = Endpoint::new();
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
    let mut end = Endpoint::new();
    end.send(1, text.clone());
    let lines = end.lines();
    assert!(lines.iter().all(|line| std::str::from_utf8(line).is_ok() && line.len() <= 61_439));
    let mut other = Endpoint::new();
    lines.into_iter().rev().for_each(|line| other.receive(line));
    assert_eq!(other.messages(), [text]);
}

#[test]
fn a_pretty_printed_message_is_compacted_and_any_other_keeps_its_bytes() {
    let mut end = Endpoint::new();
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
        let mut end = Endpoint::new();
        end.handle(Input::Capacity(Capacity::of(cap)));
        let text = note(70_000);
        end.send(1, text.clone());
        let lines = end.lines();
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= most), "{cap}");
        let mut other = Endpoint::new();
        lines.into_iter().for_each(|line| other.receive(line));
        assert_eq!(other.messages(), [text], "{cap}");
    }
}

#[test]
fn a_cap_too_small_for_a_character_or_for_the_count_refuses_the_message() {
    for cap in [10, 58] {
        let mut end = Endpoint::new();
        end.handle(Input::Capacity(Capacity::of(cap)));
        end.send(1, note(70_000));
        assert!(end.lines().is_empty());
        let want = SendError::TooManySegments(Over { size: 70_000, limit: 1_000_000 });
        assert!(matches!(end.events().as_slice(), [Event::SendFailed { error, .. }] if *error == want));
    }
    let mut end = Endpoint::new();
    end.handle(Input::Capacity(Capacity::of(59)));
    end.send(1, note(4_000_001));
    assert!(end.lines().is_empty());
    assert_eq!(end.machine.counters().count("send-too-many-segments"), 1);
}

#[test]
fn messages_go_first_in_first_out_and_a_free_one_passes() {
    let mut end = Endpoint::new();
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
    let mut end = Endpoint::new();
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
    let mut end = Endpoint::with(limits, &Budget::default());
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
    let mut end = Endpoint::with(limits, &Budget::default());
    end.send(1, note(140));
    end.send(2, note(60));
    end.send(3, r#"{"jsonrpc":"2.0","id":9,"result":1}"#);
    let lines = end.lines();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with(br#"{"jsonrpc":"2.0","id":9,"error":{"code":-32603,"message":"message of"#));
    assert_eq!(end.machine.counters().count("send-queue-full"), 2);
}

#[test]
fn a_cap_that_shrinks_below_a_started_message_closes() {
    let mut end = Endpoint::new();
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
fn closing_fails_what_waits_and_ends_everything_once() {
    let mut end = Endpoint::new();
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
