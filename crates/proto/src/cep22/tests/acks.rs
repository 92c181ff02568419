//! A link that says what became of each frame: windows, pauses, refusals, receipts.

use std::time::Duration;

use serde_json::json;

use super::{Endpoint, accept, acking, request, response};
use crate::cep22::Config;
use crate::error::SendError;
use crate::machine::{Event, Input, Machine, Refusal, Ticket};

#[test]
fn chunks_run_at_most_the_publish_window_ahead_and_end_comes_last() {
    let mut end = Endpoint::new(acking(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(20_000)));
    let first = end.frames();
    assert_eq!(first.len(), 1);
    end.ack(first[0].tag);
    let mut open = end.frames();
    assert_eq!(open.len(), 21);
    end.ack(open[5].tag);
    assert!(end.frames().is_empty(), "the oldest is not confirmed");
    let oldest = open.remove(0);
    open.remove(4);
    end.ack(oldest.tag);
    open.extend(end.frames());
    let mut last = Vec::new();
    while let Some(sent) = open.pop() {
        assert!(last.is_empty() || open.is_empty());
        end.ack(sent.tag);
        let more = end.frames();
        if more.iter().any(|sent| sent.kind() == "end") {
            last = more;
            break;
        }
        open.extend(more);
    }
    assert_eq!((last.len(), open.len()), (1, 0));
    assert!(end.events().is_empty());
    end.ack(last[0].tag);
    assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(1) }]));
}

#[test]
fn a_frame_that_came_too_fast_is_sent_again_after_a_growing_pause() {
    let mut end = Endpoint::new(acking(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    let first = end.next().unwrap();
    end.ack(first.tag);
    let frames = end.frames();
    for sent in &frames[1..] {
        end.ack(sent.tag);
    }
    let mut again = frames[0].clone();
    let mut waited = Vec::new();
    for _ in 0..8 {
        end.refuse(again.tag, Refusal::TooFast);
        assert!(end.frames().is_empty());
        let wake = end.machine.poll_timeout().unwrap();
        waited.push((wake - end.now).as_millis());
        end.now = wake;
        end.put(Input::Timeout);
        again = end.next().unwrap();
        assert_eq!(again.text, frames[0].text);
    }
    assert_eq!(waited, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    end.ack(again.tag);
    let last = end.next().unwrap();
    assert_eq!(last.kind(), "end");
    end.ack(last.tag);
    assert!(matches!(end.events().as_slice(), [Event::Sent { .. }]));
}

#[test]
fn a_start_that_came_too_fast_has_its_time_for_accept_again() {
    let mut end = Endpoint::new(Config { acks: true, ..Config::default() }, 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    for _ in 0..8 {
        let first = end.next().unwrap();
        assert_eq!(first.kind(), "start");
        end.refuse(first.tag, Refusal::TooFast);
        end.now = end.machine.poll_timeout().unwrap();
        end.put(Input::Timeout);
    }
    let first = end.next().unwrap();
    end.ack(first.tag);
    end.pass(Duration::from_secs(29));
    assert!(end.events().is_empty());
    end.take(accept(&json!("t")));
    assert_eq!(end.next().unwrap().progress(), 3);
}

#[test]
fn a_link_that_is_too_fast_for_ever_is_given_up() {
    let mut end = Endpoint::new(acking(), 6000);
    end.send(1, request(1, &json!("t"), "x"));
    for _ in 0..13 {
        let sent = end.next().unwrap();
        end.refuse(sent.tag, Refusal::TooFast);
        end.pass(Duration::from_secs(31));
    }
    assert_eq!(end.unsent().0, SendError::Refused);
}

#[test]
fn a_pause_that_is_over_is_not_due_any_more_even_if_the_link_takes_nothing_yet() {
    let mut end = Endpoint::new(acking(), 6000);
    end.send(1, request(1, &json!("t"), "x"));
    let sent = end.next().unwrap();
    end.refuse(sent.tag, Refusal::TooFast);
    end.now = end.machine.poll_timeout().unwrap();
    end.put(Input::Timeout);
    assert!(end.machine.poll_timeout().is_none_or(|at| at > end.now));
}

#[test]
fn a_whole_message_that_was_too_large_after_all_becomes_a_transfer() {
    let mut end = Endpoint::new(acking(), 60_000);
    let whole = request(1, &json!("t"), &"x".repeat(3000));
    end.send(1, whole.clone());
    let sent = end.next().unwrap();
    assert_eq!(sent.text, whole);
    end.refuse(sent.tag, Refusal::TooLarge);
    let first = end.next().unwrap();
    assert_eq!(first.kind(), "start");
    end.ack(first.tag);
    let chunks = end.frames();
    assert!(chunks.len() >= 3 && chunks.iter().all(|sent| sent.text.len() < 1600));
}

#[test]
fn an_ambiguous_refusal_is_never_taken_for_size() {
    let mut end = Endpoint::new(acking(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(3000)));
    let sent = end.next().unwrap();
    end.refuse(sent.tag, Refusal::Other);
    assert!(end.frames().is_empty());
    assert_eq!(end.unsent().0, SendError::Refused);
}

#[test]
fn a_refused_chunk_aborts_its_transfer_and_no_other() {
    for refusal in [Refusal::Other, Refusal::TooLarge] {
        let mut end = Endpoint::new(acking(), 600);
        end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
        let first = end.next().unwrap();
        end.send(2, request(2, &json!("u"), &"x".repeat(900)));
        end.ack(first.tag);
        let frames = end.frames();
        let bad = frames.iter().find(|sent| sent.kind() == "chunk").unwrap();
        let other = frames.iter().find(|sent| sent.kind() == "start").unwrap();
        end.refuse(bad.tag, refusal);
        let (error, reply) = end.unsent();
        assert_eq!((error, &reply.unwrap()["id"]), (SendError::Refused, &json!(1)));
        let aborted = end.next().unwrap();
        assert_eq!((aborted.kind().as_str(), &aborted.json()["params"]["progressToken"]), ("abort", &json!("t")));
        end.ack(other.tag);
        assert!(!end.frames().is_empty());
    }
}

#[test]
fn a_silent_link_is_given_up_after_the_soft_timeout() {
    let mut end = Endpoint::new(acking(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    let first = end.next().unwrap();
    end.pass(Duration::from_secs(50));
    end.ack(first.tag);
    end.frames();
    end.pass(Duration::from_secs(59));
    assert!(end.events().is_empty());
    end.pass(Duration::from_secs(1));
    assert_eq!(end.unsent().0, SendError::Refused);
}

#[test]
fn a_response_that_arrives_before_the_end_frames_receipt_is_not_lost() {
    let mut end = Endpoint::new(acking(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(900)));
    let last = end.up_to_end();
    end.take(response(1, "early"));
    assert_eq!(end.messages(), [response(1, "early")]);
    end.ack(last.tag);
    assert!(matches!(end.events().as_slice(), [Event::Sent { .. }]));
}

#[test]
fn a_frame_that_any_link_takes_teaches_nothing_when_it_is_refused_for_its_size() {
    let mut end = Endpoint::new(acking(), 60_000);
    end.send(1, r#"{"jsonrpc":"2.0","method":"n"}"#);
    let sent = end.next().unwrap();
    end.refuse(sent.tag, Refusal::TooLarge);
    assert_eq!(end.unsent().0, SendError::Refused);
    end.send(2, request(2, &json!("t"), &"x".repeat(5_000_000)));
    end.goes_in_chunks_of(59_000);
}

#[test]
fn what_would_not_pass_in_frames_shorter_than_one_that_was_refused_is_tried_in_longer_ones() {
    let mut end = Endpoint::new(acking(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(600)));
    let sent = end.next().unwrap();
    end.refuse(sent.tag, Refusal::TooLarge);
    let first = end.next().unwrap();
    end.ack(first.tag);
    assert!(end.frames().iter().all(|sent| sent.text.len() <= 512));
    // It has no token, and cannot go in parts.
    let plain = format!(r#"{{"jsonrpc":"2.0","method":"n","params":["{}"]}}"#, "y".repeat(2000));
    end.send(2, plain.clone());
    assert_eq!(end.next().unwrap().text, plain);
    // It would have more chunks than anyone takes.
    end.send(3, request(3, &json!("u"), &"x".repeat(5_000_000)));
    end.goes_in_chunks_of(59_000);
    // They were taken, so the next is as long.
    end.send(4, request(4, &json!("v"), &"x".repeat(70_000)));
    end.goes_in_chunks_of(59_000);
}

#[test]
fn a_message_that_can_go_in_parts_too_is_tried_whole_again_after_a_while() {
    let mut end = Endpoint::new(acking(), 60_000);
    let tries = |end: &mut Endpoint, n: u64| {
        end.frames();
        end.send(n, request(n, &json!(n), &"x".repeat(20_000)));
        end.next().unwrap()
    };
    let whole = tries(&mut end, 1);
    end.refuse(whole.tag, Refusal::TooLarge);
    assert_eq!((end.next().unwrap().kind(), tries(&mut end, 2).kind()), ("start".into(), "start".into()));
    end.pass(Duration::from_secs(599));
    assert_eq!(tries(&mut end, 3).kind(), "start");
    end.pass(Duration::from_secs(1));
    // Still too large: no harm is done, it goes in parts.
    let whole = tries(&mut end, 4);
    end.refuse(whole.tag, Refusal::TooLarge);
    assert_eq!((whole.kind(), end.next().unwrap().kind()), ("-".into(), "start".into()));
    assert_eq!(tries(&mut end, 5).kind(), "start");
    end.pass(Duration::from_secs(600));
    let whole = tries(&mut end, 6);
    end.ack(whole.tag);
    end.events();
    end.send(7, request(7, &json!("t"), &"x".repeat(70_000)));
    end.goes_in_chunks_of(19_000);
}
