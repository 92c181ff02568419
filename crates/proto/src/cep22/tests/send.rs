//! What goes out: whole messages and transfers, whom they wait for, and how they fail.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::{Endpoint, Sent, accept, acking, hex, known, request, response, transfer};
use crate::budget::BudgetConfig;
use crate::cep22::Config;
use crate::error::{CloseReason, Over, SendError};
use crate::limits::{Limits, LimitsConfig};
use crate::machine::{Capacity, Event, Input, Machine, Measure, Meta, Overhead, Refusal, Ticket, Transmit};

#[test]
fn a_message_that_fits_goes_out_as_it_is() {
    let mut end = Endpoint::new(known(), 1000);
    let small = request(1, &json!("t"), "x");
    end.send(7, small.clone());
    let frames = end.frames();
    assert_eq!(frames.iter().map(|sent| &sent.text).collect::<Vec<_>>(), [&small]);
    assert!(frames[0].meta.supports_parts);
    assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(7) }]));
}

#[test]
fn a_large_request_becomes_start_chunks_and_end_in_order() {
    let mut end = Endpoint::new(known(), 600);
    let whole = request(1, &json!("t"), &"quote \" slash \\ ".repeat(200));
    end.send(7, whole.clone());
    let frames = end.frames();
    let first = frames[0].json();
    let cvm = &first["params"]["cvm"];
    assert_eq!(cvm["type"], "oversized-transfer");
    assert_eq!((&cvm["frameType"], &cvm["completionMode"]), (&json!("start"), &json!("render")));
    assert_eq!(cvm["digest"], format!("sha256:{}", hex(&whole)));
    assert_eq!(cvm["totalBytes"], whole.len());
    assert_eq!(cvm["totalChunks"], frames.len() - 2);
    assert_eq!(first["params"]["progressToken"], "t");
    let places: Vec<u64> = frames.iter().map(Sent::progress).collect();
    assert_eq!(places, (1..=frames.len() as u64).collect::<Vec<_>>());
    let data: String =
        frames.iter().filter_map(|sent| Some(sent.json()["params"]["cvm"]["data"].as_str()?.to_owned())).collect();
    assert_eq!(data, whole);
    assert_eq!(frames.last().unwrap().kind(), "end");
    assert!(frames.iter().all(|sent| sent.text.len() <= 600));
    assert!(frames[0].meta.supports_parts && !frames[2].meta.supports_parts);
    assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(7) }]));
}

#[test]
fn without_known_support_chunks_wait_for_accept_and_leave_it_the_second_place() {
    let mut end = Endpoint::new(Config::default(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    assert_eq!(end.kinds(), ["start"]);
    end.take(accept(&json!("other")));
    assert!(end.kinds().is_empty());
    end.take(accept(&json!("t")));
    let frames = end.frames();
    let places: Vec<u64> = frames.iter().map(Sent::progress).collect();
    assert_eq!(places, (3..3 + frames.len() as u64).collect::<Vec<_>>());
    assert_eq!(frames.last().unwrap().kind(), "end");
    end.take(accept(&json!("t")));
    assert!(end.frames().is_empty());
}

#[test]
fn a_peer_that_advertises_support_meanwhile_need_not_accept() {
    let mut end = Endpoint::new(Config::default(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    assert_eq!(end.kinds(), ["start"]);
    let meta = Meta { supports_parts: true, ..Meta::default() };
    end.put(Input::Frame { bytes: Bytes::from(response(9, "")), meta });
    assert_eq!(end.next().unwrap().progress(), 2);
    let mut second = request(2, &json!("u"), &"x".repeat(2000));
    second.push(' ');
    end.frames();
    end.send(2, second);
    assert_eq!(end.next().unwrap().kind(), "start");
    assert_eq!(end.next().unwrap().kind(), "chunk");
}

#[test]
fn a_transfer_that_nobody_accepts_fails_and_is_aborted() {
    let mut end = Endpoint::new(Config::default(), 600);
    end.send(1, request(5, &json!("t"), &"x".repeat(2000)));
    assert_eq!(end.kinds(), ["start"]);
    end.pass(Duration::from_secs(29));
    assert!(end.events().is_empty());
    end.pass(Duration::from_secs(1));
    let (error, reply) = end.unsent();
    assert_eq!(error, SendError::NotAccepted);
    assert_eq!(reply.unwrap()["id"], 5);
    assert_eq!(end.kinds(), ["abort"]);
    assert_eq!(end.machine.poll_timeout(), None);
}

#[test]
fn a_request_without_a_token_fails_cleanly() {
    let mut end = Endpoint::new(known(), 600);
    end.send(1, json!({"jsonrpc":"2.0","id":"q","method":"m","params":{"pad":"x".repeat(2000)}}).to_string());
    let (error, reply) = end.unsent();
    assert!(matches!(error, SendError::NoToken(Over { limit: 600, .. })));
    let reply = reply.unwrap();
    assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!("q"), &json!(-32011)));
    assert!(reply["error"]["message"].as_str().unwrap().contains("params._meta.progressToken"));
    assert!(end.frames().is_empty());
}

#[test]
fn a_response_to_a_request_without_a_token_is_answered_with_how_to_allow_it() {
    let mut end = Endpoint::new(known(), 600);
    end.take_from(r#"{"jsonrpc":"2.0","id":3,"method":"m"}"#, "p", "event-1");
    end.send_to(1, response(3, &"x".repeat(2000)), "p");
    let sent = end.next().unwrap();
    let error = sent.json();
    assert_eq!((&error["id"], &error["error"]["data"]["reason"]), (&json!(3), &json!("messageTooLarge")));
    assert!(error["error"]["message"].as_str().unwrap().contains("params._meta.progressToken"));
    assert_eq!((sent.meta.peer.as_deref(), sent.meta.about.as_deref()), (Some("p"), Some("event-1")));
    let events = end.events();
    assert!(matches!(
        events.last(),
        Some(Event::SendFailed { error: SendError::NoToken { .. }, reply: None, ticket: Ticket(1) })
    ));
}

#[test]
fn a_large_response_uses_its_requests_token_and_names_its_frame() {
    let mut end = Endpoint::new(known(), 600);
    end.take_from(request(3, &json!(42), ""), "p", "event-1");
    end.take_from(request(3, &json!("other"), ""), "q", "event-2");
    end.send_to(1, response(3, &"x".repeat(2000)), "p");
    let frames = end.frames();
    assert!(frames.len() > 4);
    for sent in frames {
        assert_eq!(sent.json()["params"]["progressToken"], "42");
        assert_eq!((sent.meta.peer.as_deref(), sent.meta.about.as_deref()), (Some("p"), Some("event-1")));
    }
}

#[test]
fn the_answer_to_a_transferred_request_names_its_end_frame() {
    let mut end = Endpoint::new(known(), 600);
    let (whole, frames) = transfer(&json!("t"), 3);
    for (i, text) in frames.iter().enumerate() {
        end.take_from(text.clone(), "p", &format!("event-{i}"));
    }
    assert_eq!(end.messages(), [whole]);
    end.frames();
    end.send_to(1, response(1, ""), "p");
    assert_eq!(end.next().unwrap().meta.about.as_deref(), Some("event-4"));
}

#[test]
fn transfers_take_turns_and_small_messages_pass_them() {
    let mut end = Endpoint::new(known(), 600);
    end.send(1, request(1, &json!("a"), &"x".repeat(3000)));
    end.send(2, request(2, &json!("b"), &"x".repeat(3000)));
    let mut tokens = Vec::new();
    for i in 0..8 {
        if i == 5 {
            let small = r#"{"jsonrpc":"2.0","method":"small"}"#;
            end.send(3, small);
            assert_eq!(end.next().unwrap().text, small);
        }
        tokens.push(end.next().unwrap().json()["params"]["progressToken"].as_str().unwrap().to_owned());
    }
    assert_eq!(tokens, ["a", "b", "a", "b", "a", "b", "a", "b"]);
}

#[test]
fn a_token_carries_one_transfer_at_a_time() {
    let mut end = Endpoint::new(known(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(900)));
    end.send(2, request(2, &json!("t"), &"x".repeat(900)));
    let kinds = end.kinds();
    let half = kinds.len() / 2;
    assert_eq!(kinds[..half], kinds[half..]);
    assert_eq!((kinds[0].as_str(), kinds[half - 1].as_str()), ("start", "end"));
}

#[test]
fn a_message_of_more_chunks_than_anyone_takes_is_refused_before_it_begins() {
    let mut end = Endpoint::new(Config { max_chunks: 10, ..known() }, 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(9000)));
    assert!(end.frames().is_empty());
    assert!(matches!(end.unsent().0, SendError::TooManySegments(Over { limit: 10, .. })));
    let mut tiny = Endpoint::new(known(), 200);
    tiny.send(1, request(1, &json!("t"), &"x".repeat(9000)));
    assert!(tiny.frames().is_empty());
    assert!(matches!(tiny.unsent().0, SendError::TooManySegments { .. }));
}

#[test]
fn what_is_not_json_rpc_is_not_sent() {
    for text in ["", "[]", "{", "{}", "1", r#"{"jsonrpc":"2.0","id":1}"#] {
        let mut end = Endpoint::new(known(), 600);
        end.send(1, text);
        assert_eq!(end.unsent().0, SendError::NotJsonRpc, "{text}");
    }
    let mut end = Endpoint::new(known(), 600);
    let mut bytes = request(1, &json!("t"), &"x".repeat(2000)).into_bytes();
    let at = bytes.iter().position(|byte| *byte == b'x').unwrap();
    bytes[at] = 0xff;
    end.put(Input::send(Ticket(1), bytes));
    assert!(end.frames().is_empty());
    assert_eq!(end.unsent().0, SendError::NotJsonRpc);
}

#[test]
fn who_waits_for_what_is_not_json_rpc_hears_so() {
    let mut end = Endpoint::new(known(), 9999);
    end.send(1, format!(r#"{{"jsonrpc":"2.0","id":7,"method":"m","params":{{"a":"{}","#, "x".repeat(5000)));
    assert_eq!(end.unsent().1.map(|reply| reply["id"].clone()), Some(json!(7)));
    end.send(2, r#"{"jsonrpc":"2.0","id":7,"error":null}"#);
    assert_eq!(end.unsent(), (SendError::NotJsonRpc, None));
    assert!(end.next().unwrap().text.contains(r#""id":7,"error":{"#), "the peer waits for it");
}

#[test]
fn a_full_queue_refuses_and_empties_again() {
    let limits = LimitsConfig { max_queued_bytes: 3000, ..LimitsConfig::default() };
    let limits = Limits::prove(limits, &BudgetConfig::default()).unwrap();
    let mut end = Endpoint::new(Config { limits, ..known() }, 600);
    let large = request(1, &json!("t"), &"x".repeat(2000));
    end.send(1, large.clone());
    end.send(2, large.clone());
    assert!(matches!(end.unsent().0, SendError::QueueFull(Over { limit: 3000, .. })));
    end.frames();
    end.send(3, large);
    assert!(end.frames().len() > 3);
}

#[test]
fn every_frame_fits_a_link_that_escapes_again() {
    let nostr = Overhead::new(|m: Measure| m.escaped - m.bytes + 700);
    let whole = request(1, &json!("t\"\\"), &"\"\\\n\u{1}漢字🦀 plain ".repeat(3000));
    for (cap, overhead) in
        [(2000, nostr.clone()), (65_536, nostr), (3000, Overhead::new(|m: Measure| m.bytes / 3 + 90))]
    {
        let mut end = Endpoint::new(known(), 1);
        let capacity = Capacity { cap, overhead };
        end.put(Input::Capacity(capacity.clone()));
        end.send(1, whole.clone());
        let frames = end.frames();
        let sizes: Vec<u64> = frames
            .iter()
            .map(|sent| {
                let escaped = serde_json::to_string(&sent.text).unwrap().len() as u64 - 2;
                let measure = Measure { bytes: sent.text.len() as u64, escaped };
                assert!(capacity.fits(measure), "{measure:?} at {cap}");
                measure.bytes + capacity.overhead.of(measure)
            })
            .collect();
        assert!(sizes.len() > 3);
        let used = sizes[1] as f64 / cap as f64;
        assert!(used > 0.9 || sizes.len() < 6, "{used} of {cap}");
        let mut other = Endpoint::new(Config::default(), cap);
        frames.iter().for_each(|sent| other.take(sent.text.clone()));
        assert_eq!(other.messages(), std::slice::from_ref(&whole));
    }
}

#[test]
fn a_cap_that_shrinks_turns_waiting_messages_into_transfers() {
    let mut end = Endpoint::new(known(), u64::MAX);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    end.put(Input::Capacity(Capacity::of(600)));
    assert_eq!(end.next().unwrap().kind(), "start");
}

#[test]
fn a_cap_that_shrinks_under_a_transfer_ends_it_alone_and_nothing_longer_goes_out() {
    let mut end = Endpoint::new(known(), 60_000);
    end.take_from(request(3, &json!("u"), ""), "p", "event-1");
    end.send(1, request(1, &json!("t"), &"x".repeat(200_000)));
    end.send_to(2, response(3, &"x".repeat(200_000)), "p");
    assert_eq!((end.next().unwrap().kind(), end.next().unwrap().kind()), ("start".into(), "start".into()));
    assert_eq!(end.next().unwrap().kind(), "chunk");
    end.events();
    end.put(Input::Capacity(Capacity::of(1000)));
    let frames = end.frames();
    assert!(frames.iter().all(|sent| sent.text.len() <= 1000));
    let kinds: Vec<_> = frames.iter().map(|sent| (sent.kind(), sent.meta.peer.as_deref())).collect();
    assert_eq!(kinds, [("abort".into(), Some("p")), ("-".into(), Some("p")), ("abort".into(), None)]);
    let answer = frames[1].json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(3), &json!(-32011)));
    let events = end.events();
    let [Event::SendFailed { reply: None, .. }, Event::SendFailed { error, reply: Some(_), .. }] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert!(matches!(error, SendError::TooManySegments(Over { limit: 4, .. })), "{error}");
    end.send(3, request(4, &json!("t"), &"x".repeat(2000)));
    assert_eq!(end.kinds(), ["start", "chunk", "chunk", "chunk", "end"]);
}

#[test]
fn a_transfer_whose_rest_fits_a_smaller_cap_goes_on() {
    let text = request(1, &json!("t"), &"x".repeat(1000));
    let mut end = Endpoint::new(known(), 600);
    end.send(1, text.clone());
    let frames = end.frames();
    let rest = &frames[frames.len() - 2..];
    let cap = rest.iter().map(|sent| sent.text.len()).max().unwrap();
    assert!(cap < 500 && rest[0].kind() == "chunk");
    let mut end = Endpoint::new(known(), 600);
    end.send(1, text);
    (2..frames.len()).for_each(|_| assert!(end.next().is_some()));
    end.put(Input::Capacity(Capacity::of(cap as u64)));
    assert_eq!(end.kinds(), ["chunk", "end"]);
    assert!(matches!(end.events().as_slice(), [Event::Sent { ticket: Ticket(1) }]));
}

#[test]
fn a_transfer_that_has_not_started_is_cut_for_the_cap_that_there_is_when_it_does() {
    let mut end = Endpoint::new(known(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(70_000)));
    end.send(2, request(2, &json!("u"), &"x".repeat(70_000)));
    assert_eq!(end.next().unwrap().kind(), "start");
    end.put(Input::Capacity(Capacity::of(1000)));
    let frames = end.frames();
    assert!(frames.iter().all(|sent| sent.text.len() <= 1000));
    assert!(matches!(
        end.events().as_slice(),
        [Event::SendFailed { ticket: Ticket(1), .. }, Event::Sent { ticket: Ticket(2) }]
    ));
}

#[test]
fn what_waits_again_or_is_of_our_own_making_does_not_go_out_over_a_cap_that_shrank() {
    let mut end = Endpoint::new(acking(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    let sent = end.next().unwrap();
    end.refuse(sent.tag, Refusal::TooFast);
    end.put(Input::Capacity(Capacity::of(600)));
    end.pass(Duration::from_secs(1));
    assert_eq!(end.kinds(), ["start"]);

    let mut end = Endpoint::new(known(), 600);
    end.take(transfer(&json!("t"), 2).1[0].clone());
    end.put(Input::Capacity(Capacity::of(100)));
    assert!(end.frames().is_empty(), "no room for accept");
    end.put(Input::Capacity(Capacity::of(600)));
    end.send(1, r#"{"jsonrpc":"2.0","method":"m"}"#);
    assert_eq!(end.frames().len(), 1);
}

#[test]
fn small_messages_pass_a_transfer_only_in_runs() {
    let mut end = Endpoint::new(known(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(200_000)));
    let small = format!(r#"{{"jsonrpc":"2.0","method":"n","params":["{}"]}}"#, "y".repeat(30_000));
    let mut kinds = String::new();
    for n in 0..24 {
        end.send(n + 10, small.clone());
        kinds.push(end.next().unwrap().kind().chars().next().unwrap());
    }
    assert_eq!(kinds, "---s---c---c---c---c---e");
    assert!(end.events().iter().any(|event| matches!(event, Event::Sent { ticket: Ticket(1) })));
}

#[test]
fn a_transfer_that_has_to_wait_keeps_no_small_message_waiting() {
    let mut end = Endpoint::new(Config::default(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(200_000)));
    assert_eq!(end.kinds(), ["start"]);
    let small = format!(r#"{{"jsonrpc":"2.0","method":"n","params":["{}"]}}"#, "y".repeat(30_000));
    (0..20).for_each(|n| end.send(n + 10, small.clone()));
    assert_eq!(end.frames().len(), 20);
}

#[test]
fn closing_fails_what_is_unsent_and_tells_each_side_once() {
    let mut end = Endpoint::new(known(), 600);
    end.send(1, request(1, &json!("t"), &"x".repeat(2000)));
    end.next().unwrap();
    end.send(2, request(2, &json!("u"), "small"));
    end.put(Input::Close(CloseReason::Normal));
    end.put(Input::Close(CloseReason::Restart));
    let events = end.events();
    assert!(
        matches!(
            events.as_slice(),
            [
                Event::SendFailed { error: SendError::Disconnected, reply: Some(_), ticket: Ticket(2) },
                Event::SendFailed { error: SendError::Disconnected, reply: Some(_), ticket: Ticket(1) },
                Event::Closed(CloseReason::Normal)
            ]
        ),
        "{events:?}"
    );
    assert!(matches!(end.machine.poll_transmit(end.now), Some(Transmit::Close(CloseReason::Normal))));
    assert!(end.machine.poll_transmit(end.now).is_none());
    assert!(end.machine.poll_timeout().is_none());
}

#[test]
fn a_message_after_the_end_fails_and_its_caller_hears() {
    let mut end = Endpoint::new(known(), 600);
    end.put(Input::Close(CloseReason::Normal));
    end.send(1, request(5, &json!("t"), "x"));
    let events = end.events();
    let [Event::SendFailed { error: SendError::Disconnected, reply: Some(reply), .. }, Event::Closed(_)] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert!(reply.to_bytes().starts_with(br#"{"jsonrpc":"2.0","id":5,"error""#));
}
