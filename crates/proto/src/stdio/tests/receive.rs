//! What comes in: messages, frames of groups and lines for the log, and how a bad group fails.

use super::*;

#[test]
fn lines_that_are_messages_frames_and_neither_are_told_apart() {
    let mut end = Endpoint::new();
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
            Event::ReceiveFailed { ordinal, violation, reply: None } => {
                assert_eq!((ordinal, violation.name()), (1, "line-not-utf8"));
            }
            Event::Line(_) => lines += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ordinals, [(0, 100), (2, 50), (3, 60)]);
    assert_eq!(lines, logs.len());
}

#[test]
fn whoever_sent_a_request_that_is_no_message_is_answered() {
    let limits = LimitsConfig { max_depth: 100, ..LimitsConfig::default() };
    let mut end = Endpoint::with(limits, &Budget::default());
    let deep = format!(r#"{{"jsonrpc":"2.0","id":3,"method":"m","params":{}{}}}"#, "[".repeat(100), "]".repeat(100));
    let wide = format!(r#"{{"jsonrpc":"2.0","id":6,"method":"m","params":["{}",NaN]}}"#, "x".repeat(100_000));
    for (lines, id, code, reason) in [
        (vec![r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[NaN]}"#.into()], "1", -32700, "line-not-json"),
        (vec![b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"\xe9\"}".to_vec()], "2", -32700, "line-not-utf8"),
        (vec![deep.clone().into_bytes()], "3", -32600, "line-too-deep"),
        (vec![r#"[{"jsonrpc":"2.0","id":4,"method":"m"}]"#.into()], "4", -32600, "line-batch"),
        (vec![r#"{"id":5,"method":"m"}"#.into()], "5", -32600, "line-not-json-rpc"),
        (frames(ID, &deep, 90).into_iter().map(String::into_bytes).collect(), "3", -32600, "too-deep"),
        (frames(OTHER, &wide, 50_000).into_iter().map(String::into_bytes).collect(), "6", -32700, "message-not-json"),
    ] {
        lines.into_iter().for_each(|line| end.receive(line));
        let answers = end.lines();
        assert_eq!(answers.len(), 1, "{reason}");
        let answer: serde_json::Value = serde_json::from_slice(&answers[0]).unwrap();
        assert_eq!((answer["id"].to_string(), answer["error"]["code"].as_i64()), (id.into(), Some(code)), "{answer}");
        assert_eq!(answer["error"]["data"]["reason"], reason, "{answer}");
        let failed = |event: &Event| matches!(event, Event::ReceiveFailed { reply: None, .. });
        assert_eq!(end.events().iter().filter(|event| failed(event)).count(), 1, "{reason}");
    }
}

#[test]
fn a_peer_that_does_not_read_its_answers_is_not_read() {
    let mut end = Endpoint::new();
    let bad = r#"{"id":1,"method":"m"}"#;
    (0..63).for_each(|_| end.receive(bad));
    assert!(end.machine.wants_frames());
    end.receive(bad);
    assert!(!end.machine.wants_frames());
    assert_eq!(end.lines().len(), 64);
    assert!(end.machine.wants_frames());
}

#[test]
fn frames_arrive_in_any_order_interleaved_repeated_and_with_carriage_returns() {
    let (a, b) = (note(1000), note(997));
    let mut both: Vec<_> = frames(ID, &a, 37).into_iter().chain(frames(OTHER, &b, 100)).collect();
    both.sort_by_key(|line| line.bytes().rev().map(u32::from).fold(7_u32, |sum, byte| sum.wrapping_mul(31) ^ byte));
    let mut end = Endpoint::new();
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
    let mut end = Endpoint::new();
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
        let mut end = Endpoint::new();
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
        let mut end = Endpoint::new();
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
    let mut end = Endpoint::with(limits, &Budget::default());
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

    let mut end = Endpoint::new();
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
