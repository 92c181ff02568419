//! Chunks in any order and spelling become the message that was declared.

use serde_json::{Value, json};

use super::{Endpoint, abort, breaks, chunk, end, hex, known, request, start, transfer};
use crate::cep22::Config;
use crate::error::Violation;
use crate::machine::Machine;

#[test]
fn a_transfer_surfaces_whole_after_its_end_and_not_before() {
    let mut end = Endpoint::new(known(), 9999);
    let (whole, frames) = transfer(&json!("t"), 7);
    let (last, others) = frames.split_last().unwrap();
    for text in others {
        end.take(text.clone());
        assert!(end.events().is_empty());
    }
    end.take(last.clone());
    assert_eq!(end.messages(), [whole]);
    assert_eq!(end.kinds(), ["accept"]);
}

#[test]
fn a_transfer_is_accepted_unless_it_answers_a_request_of_ours() {
    let mut end = Endpoint::new(known(), 9999);
    end.send_to(1, request(1, &json!(5), ""), "p");
    assert!(end.next().unwrap().meta.supports_parts);
    let (_, frames) = transfer(&json!("5"), 2);
    end.take_from(frames[0].clone(), "p", "e1");
    assert!(end.frames().is_empty());
    end.take_from(frames[0].clone(), "q", "e2");
    let accept = end.next().unwrap();
    assert_eq!((accept.kind().as_str(), accept.progress()), ("accept", 2));
    assert_eq!((accept.meta.peer.as_deref(), accept.meta.about.as_deref()), (Some("q"), Some("e2")));
    assert!(accept.meta.supports_parts);
}

#[test]
fn the_same_token_from_two_peers_is_two_transfers() {
    let mut end = Endpoint::new(known(), 9999);
    let (whole, frames) = transfer(&json!("t"), 3);
    let other = request(8, &json!("t"), "other");
    let others = [start(&json!("t"), &other, 1), chunk(&json!("t"), 2, &other), super::end(&json!("t"), 3)];
    for (i, text) in frames.iter().enumerate() {
        end.take_from(text.clone(), "p", &format!("p{i}"));
        if let Some(text) = others.get(i) {
            end.take_from(text.clone(), "q", &format!("q{i}"));
        }
    }
    assert_eq!(end.messages(), [other, whole]);
}

#[test]
fn a_number_and_its_string_are_one_token() {
    let mut peer = Endpoint::new(known(), 9999);
    let whole = request(1, &json!(17), "x");
    let (half, rest) = whole.split_at(40);
    peer.take(start(&json!(17), &whole, 2));
    peer.take(chunk(&json!("17"), 2, half));
    peer.take(chunk(&json!(17.0), 3, rest));
    peer.take(end(&json!("17"), 4));
    assert_eq!(peer.messages(), [whole]);
}

#[test]
fn any_spelling_of_a_frame_is_read() {
    let whole = request(1, &json!("t"), "a");
    let (half, rest) = whole.split_at(20);
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let mut end = Endpoint::new(known(), 9999);
    end.take(format!(
        r#" {{ "params" : {{"cvm":{{"totalChunks":2.0,"totalBytes":{}e0,"digest":"sha256:{}","frameType":"st\u0061rt","type":"oversized-transfer"}},
        "message":"m","total":9,"progress":1.0,"progressToken":"\u0074"}},"method":"notifications\/progress","jsonrpc":"2.0"}}"#,
        whole.len(),
        hex(&whole).to_uppercase()
    ));
    end.take(format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"cvm":{{"data":{},"frameType":"chunk","type":"oversized-transfer"}},"progress":2,"progressToken":"t"}}}}"#,
        quoted(half)
    ));
    let escaped: String = rest.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    end.take(chunk(&json!("t"), 3, "@@").replace("@@", &escaped));
    end.take(super::end(&json!("t"), 4));
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn members_after_data_do_not_confuse_the_quick_reader() {
    let t = json!("t");
    let whole = request(1, &t, "a");
    let quick = |text: &str, more: &str| {
        let data = serde_json::to_string(text).unwrap();
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"t","progress":2,"cvm":{{"type":"oversized-transfer","frameType":"chunk","data":{data}{more}}}}}}}"#
        )
    };
    for more in ["", r#","note":"more""#, r#", "x" : "\"""#] {
        let mut peer = Endpoint::new(known(), 9999);
        peer.take(start(&t, &whole, 1));
        peer.take(quick(&whole, more));
        peer.take(end(&t, 3));
        assert_eq!(peer.messages(), std::slice::from_ref(&whole), "{more}");
    }
    let twice = [start(&t, &whole, 1), quick(&whole, r#","data":"""#)];
    assert_eq!(breaks(known(), &twice), Violation::DuplicateKey("data"));
}

#[test]
fn chunks_arrive_in_any_order_inside_the_window() {
    let mut end = Endpoint::new(known(), 9999);
    let (whole, frames) = transfer(&json!("t"), 40);
    end.take(frames[0].clone());
    frames[1..41].iter().rev().for_each(|text| end.take(text.clone()));
    end.take(frames[41].clone());
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn gaps_in_the_numbering_are_no_failure() {
    let token = json!("t");
    let (whole, frames) = transfer(&token, 100);
    for number in [|i: u64| 2 * i, |i: u64| i + 2, |i: u64| i * i + 7] {
        let mut end = Endpoint::new(known(), 9999);
        end.take(frames[0].clone());
        for (i, text) in (1..).zip(&frames[1..101]) {
            let data: Value = serde_json::from_str(text).unwrap();
            end.take(chunk(&token, number(i), data["params"]["cvm"]["data"].as_str().unwrap()));
        }
        end.take(super::end(&token, 1 << 40));
        assert_eq!(end.messages(), std::slice::from_ref(&whole));
    }
}

#[test]
fn a_chunk_later_than_the_window_fails_the_transfer() {
    let t = json!("t");
    let whole = request(1, &t, &"x".repeat(100));
    let at = whole.find("xxx").unwrap();
    let mut frames = vec![start(&t, &whole, 12), chunk(&t, 2, &whole[..at])];
    frames.extend((0..10).map(|i| chunk(&t, 3 + i, &"x".repeat(10))));
    let config = Config { window: 4, ..known() };
    // The text stays JSON without it.
    let order = [0, 1, 3, 4, 5, 6, 7, 2].map(|i| frames[i].clone());
    assert_eq!(breaks(config.clone(), &order), Violation::OutsideWindow { at: 3, window: 4 });
    // It does not.
    let order = [0, 3, 4, 5, 6, 7].map(|i| frames[i].clone());
    assert_eq!(breaks(config, &order), Violation::OutsideWindow { at: 2, window: 4 });
}

#[test]
fn identical_duplicates_are_ignored_and_different_ones_fail() {
    let (whole, frames) = transfer(&json!("t"), 6);
    let mut end = Endpoint::new(known(), 9999);
    for i in [0, 0, 1, 1, 3, 3, 1, 2, 3, 2, 4, 5, 6, 6, 5, 7, 7, 0, 3] {
        end.take_from(frames[i].clone(), "p", &format!("e{i}"));
    }
    assert_eq!(end.messages(), [whole]);
    for (held, at) in [(false, 2), (true, 4)] {
        let mut end = Endpoint::new(known(), 9999);
        end.take(frames[0].clone());
        end.take(frames[if held { 3 } else { 1 }].clone());
        end.take(chunk(&json!("t"), at, "other"));
        assert_eq!(end.broken(), Violation::ChunkConflict(at));
    }
}

#[test]
fn an_old_duplicate_is_ignored_even_when_its_mark_is_gone() {
    let (whole, frames) = transfer(&json!("t"), 60);
    let mut end = Endpoint::new(known(), 9999);
    frames[..50].iter().for_each(|text| end.take(text.clone()));
    end.take(frames[1].clone());
    frames[50..].iter().for_each(|text| end.take(text.clone()));
    assert_eq!(end.messages(), [whole]);
}

#[test]
fn frames_before_start_and_after_the_end_are_ignored() {
    let (whole, frames) = transfer(&json!("t"), 2);
    let mut end = Endpoint::new(known(), 9999);
    end.take(frames[1].clone());
    end.take(frames[3].clone());
    end.take(abort(&json!("t")));
    frames.iter().for_each(|text| end.take(text.clone()));
    end.take(frames[1].clone());
    end.take(frames[3].clone());
    assert_eq!(end.messages(), [whole]);
    assert_eq!(end.machine.counters().count("part-of-no-transfer"), 5);
    assert_eq!(end.kinds(), ["accept"]);
}

#[test]
fn a_new_start_opens_an_ended_token_again_but_the_same_frame_does_not() {
    let (whole, frames) = transfer(&json!("t"), 2);
    let mut end = Endpoint::new(known(), 9999);
    for round in 0..2 {
        for (i, text) in frames.iter().enumerate() {
            end.take_from(text.clone(), "p", &format!("round {round}, {i}"));
        }
        end.take_from(frames[0].clone(), "p", &format!("round {round}, 0"));
    }
    assert_eq!(end.messages(), [whole.clone(), whole]);
    assert_eq!(end.machine.poll_timeout(), None);
}
