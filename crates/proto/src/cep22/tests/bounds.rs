//! Time, room and tables: what a peer may make us hold, and for how long.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::{Endpoint, abort, frame, hex, known, request, response, transfer};
use crate::budget::{Budget, BudgetConfig, Schedule};
use crate::cep22::Config;
use crate::error::Violation;
use crate::machine::{Event, Input, Machine, Meta};

#[test]
fn the_soft_timeout_is_refreshed_by_frames_and_the_hard_one_is_not() {
    let (_, frames) = transfer(&json!("t"), 9);
    let mut end = Endpoint::new(known(), 9999);
    end.take(frames[0].clone());
    end.pass(Duration::from_secs(59));
    end.take(frames[1].clone());
    end.pass(Duration::from_secs(59));
    assert!(end.events().is_empty());
    end.pass(Duration::from_secs(1));
    assert!(matches!(end.events().as_slice(), [Event::Expired { ordinal: 0, received }] if *received > 0));
    assert_eq!(end.kinds(), ["accept", "abort"]);

    let mut end = Endpoint::new(known(), 9999);
    let begun = end.now;
    end.take(frames[0].clone());
    for text in &frames[1..7] {
        end.pass(Duration::from_secs(49));
        end.take(text.clone());
    }
    assert!(end.events().is_empty());
    end.now = begun + Duration::from_secs(300);
    end.put(Input::Timeout);
    assert!(matches!(end.events().as_slice(), [Event::Expired { .. }]));
    assert_eq!(end.machine.counters().count("timed-out"), 1);
}

#[test]
fn the_timeout_that_is_asked_for_is_never_after_the_deadline() {
    let mut end = Endpoint::new(known(), 9999);
    end.take(transfer(&json!("t"), 2).1[0].clone());
    let deadline = end.now + Duration::from_secs(60);
    while let Some(at) = end.machine.poll_timeout() {
        assert!(at <= deadline && at > end.now);
        end.now = at;
        end.put(Input::Timeout);
    }
    assert_eq!(end.now, deadline);
}

#[test]
fn an_expired_answer_reaches_its_caller() {
    let mut end = Endpoint::new(known(), 9999);
    end.send(1, request(2, &json!("t"), ""));
    end.frames();
    end.events();
    end.take(transfer(&json!("t"), 2).1[0].clone());
    end.pass(Duration::from_secs(60));
    let events = end.events();
    assert!(
        matches!(
            events.as_slice(),
            [Event::Expired { .. }, Event::ReceiveFailed { violation: Violation::TimedOut { .. }, reply: Some(_), .. }]
        ),
        "{events:?}"
    );
}

#[test]
fn the_clock_stands_still_while_we_do_not_read() {
    let (whole, frames) = transfer(&json!("t"), 2);
    let mut end = Endpoint::new(known(), 9999);
    end.take(frames[0].clone());
    end.pass(Duration::from_secs(40));
    end.put(Input::Paused(true));
    end.pass(Duration::from_secs(4000));
    end.put(Input::Paused(false));
    end.pass(Duration::from_secs(19));
    frames[1..].iter().for_each(|text| end.take(text.clone()));
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn declared_sizes_are_set_aside_and_given_back_and_never_allocated() {
    let budget = Budget::new(BudgetConfig { process_bytes: 30 << 20, principal_bytes: 30 << 20, floor_bytes: 0 });
    let mut end = Endpoint::with_budget(known(), 9999, &budget);
    let declare = |token: &str| {
        let digest = format!("sha256:{}", hex(""));
        let cvm = json!({"frameType":"start","digest":digest,"totalBytes":14 << 20,"totalChunks":300});
        frame(&json!(token), 1, &cvm)
    };
    end.take(declare("a"));
    end.take(declare("b"));
    assert!(budget.held() > 28 << 20);
    end.take(declare("c"));
    assert_eq!(end.broken(), Violation::OverBudget(14 << 20));
    assert_eq!(end.kinds(), ["accept", "accept", "abort"]);
    end.take(abort(&json!("a")));
    end.events();
    end.take(declare("c"));
    assert!(end.events().is_empty());
    end.pass(Duration::from_secs(60));
    assert_eq!(budget.held(), 0);
}

#[test]
fn transfers_are_bounded_per_peer_and_in_all() {
    let config = Config { max_transfers: 3, max_transfers_in_all: 5, ..known() };
    let mut end = Endpoint::new(config, 9999);
    for i in 0..4 {
        end.take_from(transfer(&json!(i), 2).1[0].clone(), "p", &format!("p{i}"));
    }
    assert_eq!(end.broken(), Violation::TooManyTransfers(3));
    for i in 0..3 {
        end.take_from(transfer(&json!(i), 2).1[0].clone(), "q", &format!("q{i}"));
    }
    assert_eq!(end.broken(), Violation::TooManyTransfers(5));
    assert_eq!(end.kinds().iter().filter(|kind| *kind == "accept").count(), 5);
}

#[test]
fn a_million_tokens_cost_no_more_than_the_tables_hold() {
    let budget = Budget::new(BudgetConfig::default());
    let mut end = Endpoint::with_budget(known(), 9999, &budget);
    let pattern = transfer(&json!("@@"), 2).1[0].clone();
    for i in 0..1_000_000_u32 {
        end.put(Input::frame(pattern.replace("@@", &i.to_string())));
        if i % 1000 == 0 {
            end.events();
            assert!(end.frames().len() <= 1024);
        }
    }
    assert!(budget.held() < 64 * 4096);
    let counters = end.machine.counters();
    assert_eq!(counters.count("too-many-transfers"), 1_000_000 - 64);
}

#[test]
fn frames_that_are_no_messages_fail_alone() {
    let mut end = Endpoint::new(known(), 9999);
    for (bytes, name) in [
        (&b"\xff"[..], "frame-not-utf8"),
        (b"{", "frame-not-json"),
        (b"[]", "frame-not-object"),
        (b"{}", "message-not-json-rpc"),
        (br#"{"jsonrpc":"2.0","id":1,"id":2,"result":1}"#, "duplicate-key"),
    ] {
        end.put(Input::frame(bytes.to_vec()));
        assert_eq!(end.broken().name(), name);
    }
    end.put(Input::frame(vec![b' '; (4 << 20) + 1]));
    assert_eq!(end.broken().name(), "frame-too-large");
    assert!(end.frames().is_empty());
}

#[test]
fn peers_are_remembered_by_name_and_forgotten_in_bounds() {
    let mut end = Endpoint::new(Config::default(), 600);
    let hello = |peer: Arc<str>| Input::Frame {
        bytes: Bytes::from(response(1, "")),
        meta: Meta { peer: Some(peer), supports_parts: true, ..Meta::default() },
    };
    end.put(hello("p".into()));
    end.send_to(1, request(1, &json!("t"), &"x".repeat(900)), "p");
    end.send_to(2, request(1, &json!("t"), &"x".repeat(900)), "q");
    let frames = end.frames();
    let chunks = frames.iter().filter(|sent| sent.kind() == "chunk");
    assert!(chunks.clone().count() > 1 && chunks.clone().all(|sent| sent.meta.peer.as_deref() == Some("p")));
    for i in 0..5000 {
        end.put(hello(format!("peer {i}").into()));
    }
    end.send_to(3, request(3, &json!("v"), &"x".repeat(900)), "p");
    assert_eq!(end.kinds(), ["start"], "forgotten, so it is asked again");
}

#[test]
fn a_transfer_that_has_to_make_room_does_so_at_once() {
    let budget = Budget::new(BudgetConfig { process_bytes: 40 << 20, principal_bytes: 40 << 20, floor_bytes: 0 });
    let mut end = Endpoint::with_budget(known(), 9999, &budget);
    let digest = format!("sha256:{}", hex(""));
    let cvm = json!({"frameType":"start","digest":digest,"totalBytes":30 << 20,"totalChunks":700});
    end.take(frame(&json!("t"), 1, &cvm));
    let other = budget.account(Some("other"));
    let schedule = |started| Schedule { started, timeout: Duration::from_secs(30) };
    let _some = other.reserve(1 << 20, schedule(end.now)).unwrap();
    assert_eq!(end.machine.poll_timeout(), Some(end.now + known().soft_timeout), "nobody has to look before that");
    end.now += Duration::from_secs(5);
    assert!(end.events().is_empty());
    assert!(other.reserve(18 << 20, schedule(end.now)).is_err(), "it is asked to make room");
    let look = end.machine.poll_timeout().unwrap();
    assert!(look <= end.now);
    // A peer that waits for our reading must not keep the room.
    end.put(Input::Paused(true));
    end.now = end.machine.poll_timeout().unwrap();
    end.put(Input::Timeout);
    assert_eq!(end.broken(), Violation::OverBudget(30 << 20));
    assert!(other.reserve(18 << 20, schedule(end.now)).is_ok());
    assert_eq!(end.machine.poll_timeout(), None);
}

#[test]
fn a_request_is_not_forgotten_for_those_that_were_answered_since() {
    let mut end = Endpoint::new(known(), 600);
    end.take_from(request(1, &json!("slow"), ""), "p", "first");
    for n in 0..5000 {
        end.take_from(request(n, &json!("t"), ""), "q", &format!("event-{n}"));
        end.send_to(n, response(n, ""), "q");
        end.frames();
    }
    end.events();
    end.send_to(9, response(1, &"x".repeat(2000)), "p");
    let sent = end.next().unwrap();
    assert_eq!((sent.kind().as_str(), sent.meta.about.as_deref()), ("start", Some("first")));
}

#[test]
fn aborts_that_wait_for_the_link_are_bounded_and_those_left_out_are_counted() {
    let mut end = Endpoint::new(Config::default(), 9999);
    for n in 0..1030 {
        end.take(frame(&json!(n), 1, &json!({"frameType":"start","completionMode":"other"})));
    }
    assert_eq!(end.events().len(), 1030, "each failure is told");
    assert_eq!(end.machine.counters().count("control-dropped"), 6);
    assert_eq!(end.kinds(), ["abort"; 1024]);
    end.take(frame(&json!("next"), 1, &json!({"frameType":"start","completionMode":"other"})));
    assert_eq!((end.kinds(), end.machine.counters().count("control-dropped")), (vec!["abort".to_owned()], 6));
}
