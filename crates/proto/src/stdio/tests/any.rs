//! Whatever is sent arrives; whatever arrives is survived.

use proptest::prelude::*;

use super::*;

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
        let (mut a, mut b) = (Endpoint::new(), Endpoint::new());
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
        let mut end = Endpoint::with(LimitsConfig::default(), &budget);
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
