//! Two ends: what arrives is what was sent.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::{Endpoint, accept, chunk, known, request, response, shuttle, start, transfer};
use crate::budget::{Budget, BudgetConfig};
use crate::cep22::Config;
use crate::machine::{Capacity, Event, Input, Machine, Measure, Overhead, Subject, Ticket, Transmit};
use crate::message::Message;

#[test]
fn a_request_and_its_answer_share_a_token_both_ways_at_once() {
    let (mut a, mut b) = (Endpoint::new(Config::default(), 700), Endpoint::new(Config::default(), 700));
    let ask = request(1, &json!(3), &"ask \" ".repeat(500));
    let answer = response(1, &"answer 漢 ".repeat(500));
    a.send_to(1, ask.clone(), "b");
    shuttle(&mut a, &mut b);
    assert_eq!(b.messages(), [ask]);
    b.send_to(1, answer.clone(), "a");
    // Another request on the same token, while the answer to the first is on its way.
    let again = request(2, &json!(3), &"again ".repeat(500));
    a.send_to(2, again.clone(), "b");
    shuttle(&mut a, &mut b);
    assert_eq!(b.messages(), [again]);
    assert_eq!(a.messages(), [answer]);
}

#[test]
fn thirty_megabytes_pass_at_64_kib() {
    let budget = Budget::new(BudgetConfig::default());
    let mut a = Endpoint::new(known(), 65_536);
    let mut b = Endpoint::with_budget(Config::default(), 65_536, &budget);
    let line = "fn main() { println!(\"漢\\n\"); }\n";
    let whole = request(1, &json!("t"), &line.repeat(31_000_000 / (json!(line).to_string().len() - 2)));
    assert!(whole.len() > 30_000_000 && whole.len() < 32 << 20);
    a.send(1, whole.clone());
    let mut most = 0;
    while let Some(sent) = a.next() {
        assert!(sent.text.len() <= 65_536);
        b.take(sent.text);
        most = most.max(budget.held());
    }
    assert_eq!(b.messages(), std::slice::from_ref(&whole));
    assert!(most < whole.len() as u64 * 101 / 100, "{most}");
    assert_eq!(budget.held(), 0);
}

#[test]
fn progress_is_told_at_most_once_per_transfer_between_polls() {
    let (mut a, mut b) = (Endpoint::new(known(), 600), Endpoint::new(known(), 600));
    a.send(4, request(1, &json!("t"), &"x".repeat(9000)));
    for _ in 0..9 {
        let sent = a.next().unwrap();
        b.take(sent.text);
    }
    for (end, subject) in [(&mut a, Subject::Outgoing(Ticket(4))), (&mut b, Subject::Incoming(0))] {
        let events: Vec<_> = std::iter::from_fn(|| end.machine.poll_event()).collect();
        let [Event::Progress(progress)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(progress.subject, subject);
        assert!(progress.done > 1000 && progress.done < progress.total);
    }
}

#[test]
fn a_frames_memory_is_used_again_once_the_link_has_dropped_it() {
    let mut end = Endpoint::new(known(), 60_000);
    end.send(1, request(1, &json!("t"), &"x".repeat(3_000_000)));
    let mut places = std::collections::HashSet::new();
    while let Some(Transmit::Frame { bytes, .. }) = end.machine.poll_transmit(end.now) {
        if bytes.len() > 10_000 {
            places.insert(bytes.to_bytes().as_ptr() as usize);
        }
    }
    assert!(places.len() <= 2, "{} places", places.len());
}

fn any_text() -> impl Strategy<Value = String> {
    let piece =
        prop_oneof!["[ -~]{0,40}", "[\"\\\\\n\r\t\u{0}-\u{1f}]{0,20}", "[一-龥]{0,20}", "[🀀-🙏]{0,10}", "\\PC{0,20}"];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_arrives_is_what_was_sent(
        pad in any_text(),
        cap in 420_u64..5000,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize), 0..40),
        repeats in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        gated in any::<bool>(),
        escapes in any::<bool>(),
    ) {
        let whole = request(1, &json!("tok\u{e9}n"), &pad);
        let mut a = Endpoint::new(if gated { Config::default() } else { known() }, cap);
        let overhead = if escapes { Overhead::new(|m: Measure| m.escaped - m.bytes) } else { Overhead::default() };
        let capacity = Capacity { cap: if escapes { cap + 120 } else { cap }, overhead };
        a.put(Input::Capacity(capacity.clone()));
        // A rope, cut at any byte.
        let bytes = Bytes::from(whole.clone());
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let parts: Vec<Bytes> = at.windows(2).map(|pair| bytes.slice(pair[0]..pair[1])).collect();
        a.put(Input::send(Ticket(1), parts.into_iter().collect::<Message>()));
        let mut b = Endpoint::new(Config::default(), cap);
        let mut frames = a.frames();
        if gated && frames.len() == 1 && frames[0].kind() == "start" {
            a.take(accept(&json!("tok\u{e9}n")));
            frames.extend(a.frames());
        }
        for sent in &frames {
            let escaped = serde_json::to_string(&sent.text).unwrap().len() as u64 - 2;
            let measure = Measure { bytes: sent.text.len() as u64, escaped };
            prop_assert!(capacity.fits(measure));
        }
        // Any delivery inside the window: chunks swapped by less than it, and repeated.
        let last = frames.len().saturating_sub(1);
        if last > 1 {
            for (index, by) in swaps.iter().take(1) {
                let i = 1 + index.index(last - 1);
                let j = (i + by).min(last - 1);
                frames[i..=j].reverse();
            }
            for index in &repeats {
                let i = 1 + index.index(last - 1);
                let again = frames[i].clone();
                let place = (i + 1).min(frames.len() - 1);
                frames.insert(place, again);
            }
        }
        frames.iter().for_each(|sent| b.take(sent.text.clone()));
        prop_assert_eq!(b.messages(), [whole]);
    }

    #[test]
    fn no_sequence_of_frames_surfaces_anything_else(order in prop::collection::vec(0..8_usize, 0..30), junk in any_text()) {
        let (whole, frames) = transfer(&json!("t"), 5);
        let mut b = Endpoint::new(known(), 9999);
        for i in order {
            let text = frames.get(i).cloned().unwrap_or_else(|| chunk(&json!("t"), 4, &junk));
            b.take(text);
        }
        for got in b.messages() {
            prop_assert_eq!(&got, &whole);
        }
        b.pass(Duration::from_secs(301));
        prop_assert_eq!(b.machine.poll_timeout(), None);
    }

    #[test]
    fn no_frame_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), token in any_text(), progress in any::<u64>(), data in any_text()) {
        let mut end = Endpoint::new(known(), 9999);
        end.put(Input::frame(bytes));
        let token = json!(token);
        end.take(start(&token, &data, progress));
        end.take(chunk(&token, progress, &data));
        end.take(super::end(&token, progress));
        end.take(chunk(&token, u64::MAX, &data));
        end.frames();
        end.events();
        end.pass(Duration::from_secs(3000));
    }
}
