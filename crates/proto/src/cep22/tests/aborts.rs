//! Who hears that a transfer was given up, and which transfer that was.

use std::time::Duration;

use serde_json::json;

use super::{Endpoint, abort, acking, known, request, response, text, transfer, value};
use crate::cep22::Config;
use crate::error::{CloseReason, Differs, SendError, Violation};
use crate::machine::{Event, Input, Machine, Refusal, Ticket};

#[test]
fn an_incoming_abort_ends_the_transfer_and_is_not_answered() {
    let (_, frames) = transfer(&json!("t"), 3);
    let mut end = Endpoint::new(known(), 9999);
    frames[..3].iter().for_each(|text| end.take(text.clone()));
    end.frames();
    // Even one without a place.
    end.take(abort(&json!("t")).replace("\"progress\":9,", ""));
    assert_eq!(end.broken(), Violation::Aborted);
    frames[3..].iter().for_each(|text| end.take(text.clone()));
    assert!(end.events().is_empty() && end.frames().is_empty());
}

#[test]
fn an_incoming_abort_ends_our_transfer_and_its_caller_hears_of_it() {
    let mut end = Endpoint::new(known(), 600);
    end.send(1, request(4, &json!(9), &"x".repeat(3000)));
    end.next().unwrap();
    end.next().unwrap();
    end.take(abort(&json!("9")));
    let (error, reply) = end.unsent();
    assert_eq!((error, &reply.unwrap()["id"]), (SendError::Aborted, &json!(4)));
    assert!(end.frames().is_empty());
}

#[test]
fn an_abort_after_our_end_fails_the_request_once() {
    let mut end = Endpoint::new(known(), 600);
    end.send(1, request(4, &json!("t"), &"x".repeat(900)));
    end.frames();
    end.events();
    end.take(abort(&json!("t")));
    let events = end.events();
    let [Event::ReceiveFailed { violation: Violation::Aborted, reply: Some(reply), .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(value(reply)["id"], 4);
    end.take(abort(&json!("t")));
    assert!(end.events().is_empty());
}

#[test]
fn the_abort_of_an_answer_does_not_end_the_upload_of_its_request() {
    let mut end = Endpoint::new(acking(), 600);
    end.send_to(1, request(1, &json!("t"), &"x".repeat(900)), "p");
    let mut last = end.next().unwrap();
    while last.kind() != "end" {
        end.ack_as(last.tag, &format!("ours {}", last.progress()));
        last = end.next().unwrap();
    }
    // The peer has the request, gives its answer up and says so, all before the receipt of `end`.
    end.take_about(abort(&json!("t")), "p", ("e1", "ours 9"));
    assert!(end.events().is_empty());
    end.take_from(response(1, "no answer"), "p", "e2");
    assert_eq!(end.messages(), [response(1, "no answer")]);
    end.ack_as(last.tag, "ours 9");
    assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(1) }]));
}

#[test]
fn a_caller_that_has_its_answer_gets_no_other() {
    for abort_comes in [true, false] {
        let mut end = Endpoint::new(acking(), 600);
        end.send(1, request(1, &json!("t"), &"x".repeat(900)));
        end.up_to_end();
        end.take(response(1, "early"));
        assert_eq!(end.messages(), [response(1, "early")]);
        // The receipt of `end` never comes.
        if abort_comes {
            end.take(abort(&json!("t")));
        } else {
            end.pass(Duration::from_secs(60));
        }
        assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(1) }]));
        end.take(response(1, "again"));
        assert!(end.events().is_empty());
        assert_eq!(end.machine.counters().count("answer-twice"), 1);
    }
    // Nor does one whose request had no token.
    let mut end = Endpoint::new(acking(), 600);
    end.send(1, r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
    end.frames();
    end.take(response(1, ""));
    end.put(Input::Close(CloseReason::Normal));
    let events = end.events();
    assert!(matches!(events.as_slice(), [Event::Message { .. }, Event::Sent { .. }, Event::Closed(_)]), "{events:?}");
}

#[test]
fn an_abort_of_an_earlier_transfer_does_not_end_a_later_one_of_its_token() {
    // Theirs, which answers a request, or is one.
    for (first, second) in [("ask 1", "ask 2"), ("e1", "e2")] {
        let mut end = Endpoint::new(known(), 9999);
        let (whole, frames) = transfer(&json!("t"), 3);
        end.take_about(frames[0].clone(), "p", ("e1", first));
        end.take_about(frames[4].clone(), "p", ("e1 end", first));
        assert_eq!(end.broken(), Violation::ChunksMissing(Differs { got: 0, want: 3 }));
        end.take_about(frames[0].clone(), "p", ("e2", second));
        end.take_about(abort(&json!("t")), "p", ("late", first));
        for (i, text) in frames.iter().enumerate().skip(1) {
            end.take_about(text.clone(), "p", (&format!("e2 {i}"), second));
        }
        assert_eq!(end.messages(), [whole]);
    }
    // Ours.
    let mut end = Endpoint::new(Config { acks: true, ..Config::default() }, 600);
    for round in 1..=2 {
        end.send_to(round, request(round, &json!("t"), &"x".repeat(900)), "p");
        let begun = end.next().unwrap();
        end.ack_as(begun.tag, &format!("ours {round}"));
        end.take_about(abort(&json!("t")), "p", ("abort 1", "ours 1"));
    }
    assert!(matches!(end.events().as_slice(), [Event::SendFailed { ticket: Ticket(1), .. }]));
    end.take_about(abort(&json!("t")), "p", ("abort 2", "ours 1"));
    assert!(end.events().is_empty());
    end.take_about(abort(&json!("t")), "p", ("abort 3", "ours 2"));
    assert!(matches!(end.events().as_slice(), [Event::SendFailed { ticket: Ticket(2), .. }]));
}

#[test]
fn an_abort_names_the_frame_that_began_its_transfer() {
    let mut end = Endpoint::new(acking(), 600);
    end.send_to(1, request(1, &json!("t"), &"x".repeat(900)), "p");
    let begun = end.next().unwrap();
    end.ack_as(begun.tag, "ours 1");
    let chunk = end.next().unwrap();
    end.refuse(chunk.tag, Refusal::Other);
    let abort = std::iter::from_fn(|| end.next()).find(|sent| sent.kind() == "abort").unwrap();
    assert_eq!(abort.meta.about.as_deref(), Some("ours 1"));
}

#[test]
fn both_starts_of_one_token_hear_that_they_clash() {
    let mut end = Endpoint::new(known(), 9999);
    end.take_from(transfer(&json!("t"), 3).1[0].clone(), "p", "e1");
    end.frames();
    end.take_from(transfer(&json!("t"), 2).1[0].clone(), "p", "e2");
    assert_eq!(end.broken(), Violation::TransferInFlight);
    let told: Vec<_> = end.frames().into_iter().filter_map(|sent| sent.meta.about).collect();
    assert_eq!(told, ["e2".into(), "e1".into()]);
    // A caller that tries the same again.
    let (_, frames) = transfer(&json!("u"), 3);
    end.take_from(frames[0].clone(), "p", "e3");
    end.take_from(frames[0].clone(), "p", "e4");
    end.frames();
    end.take_from(frames[4].clone(), "p", "e5");
    assert_eq!(end.broken(), Violation::ChunksMissing(Differs { got: 0, want: 3 }));
    assert_eq!(end.next().unwrap().meta.about.as_deref(), Some("e4"));
}

#[test]
fn a_frame_that_a_relay_brings_again_is_not_taken_again() {
    let mut end = Endpoint::new(known(), 9999);
    let (whole, frames) = transfer(&json!("t"), 3);
    let small = request(7, &json!("s"), "");
    for round in ["a", "b"] {
        for (i, text) in frames.iter().enumerate() {
            end.take_from(text.clone(), "p", &format!("{round}{i}"));
            if round == "b" {
                end.take_from(frames[4].clone(), "p", "a4");
            }
        }
        end.take_from(small.clone(), "p", "small");
    }
    assert_eq!(end.messages(), [whole.clone(), small, whole]);
    assert_eq!(end.machine.counters().count("frame-twice"), 6);
}

#[test]
fn an_abort_after_the_answer_is_no_news() {
    let mut end = Endpoint::new(known(), 600);
    end.send(1, request(4, &json!("t"), ""));
    end.frames();
    end.take(response(4, ""));
    assert_eq!(end.events().len(), 2);
    end.take(abort(&json!("t")));
    assert!(end.events().is_empty());
}

#[test]
fn a_late_answer_does_not_count_for_the_next_request_of_its_token() {
    let mut end = Endpoint::new(known(), 9999);
    end.send(1, request(1, &json!("t"), ""));
    end.send(2, request(2, &json!("t"), ""));
    end.frames();
    end.take(response(1, ""));
    end.events();
    end.take(abort(&json!("t")));
    let events = end.events();
    let [Event::ReceiveFailed { reply: Some(reply), .. }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(value(reply)["id"], 2);
}

#[test]
fn a_failed_answer_reaches_the_caller_with_its_own_id() {
    let mut end = Endpoint::new(known(), 9999);
    end.send_to(1, r#"{"jsonrpc":"2.0","id":1.0,"method":"m","params":{"_meta":{"progressToken":7}}}"#, "p");
    end.frames();
    end.events();
    let (_, frames) = transfer(&json!("7"), 3);
    end.take_from(frames[0].clone(), "p", "a");
    end.take_from(frames[4].clone(), "p", "b");
    let events = end.events();
    let [
        Event::ReceiveFailed {
            violation: Violation::ChunksMissing(Differs { got: 0, want: 3 }),
            reply: Some(reply),
            ..
        },
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert!(text(reply).starts_with(r#"{"jsonrpc":"2.0","id":1.0,"error":"#));
    assert_eq!(value(reply)["error"]["data"]["reason"], "chunks-missing");
    assert_eq!(end.kinds(), ["abort"]);
}
