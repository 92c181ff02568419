//! What is out of the ordinary: links that slow down, limits that change, handshakes and requests written oddly.

use super::*;

#[test]
fn what_would_make_a_group_under_way_late_waits_for_it() {
    let start = Instant::now();
    let wide = |config: &mut Config| {
        config.limits = limits(|limits| limits.max_frame_bytes = 65_536);
        (config.agreed, config.delivery) = (Some(Chunking::from(&config.limits)), Delivery::Settled);
    };
    let (mut server, mut client) = (connection(Role::Server, wide), connection(Role::Client, wide));
    // Forty kilobytes a second: a message of 600,000 bytes takes twenty seconds of the thirty that it has.
    let mut now = start;
    let mut move_all = |server: &mut Connection, client: &mut Connection| {
        while let Some(Transmit::Frame { bytes, .. }) = server.poll_transmit(now) {
            now += Duration::from_micros(bytes.len() as u64 * 25);
            client.handle(Input::frame(bytes.to_bytes()), now);
            client.handle(Input::Timeout, now);
        }
        events(client)
    };
    server.handle(Input::send(Ticket(1), action("z", 1, 300_000)), start);
    move_all(&mut server, &mut client);
    (2..4).for_each(|n| server.handle(Input::send(Ticket(n), action(&n.to_string(), n, 600_000)), start));
    let got = move_all(&mut server, &mut client);
    assert!(matches!(got[..], [Event::Message { ordinal: 1, .. }, Event::Message { ordinal: 2, .. }]), "{got:?}");
}

#[test]
fn what_is_just_in_time_with_a_group_under_way_does_not_wait_for_it() {
    for over in [0, 1] {
        let mut server = connection(Role::Server, |config| {
            config.limits = limits(|limits| limits.max_frame_bytes = 65_536);
            config.agreed = Some(Chunking::from(&config.limits));
        });
        let mut now = Instant::now();
        server.handle(Input::send(Ticket(1), action("a", 1, 300_000)), now);
        while server.poll_transmit(now).is_some() {
            now += 2 * SECOND;
        }
        server.handle(Input::send(Ticket(2), action("b", 2, 200_000)), now);
        assert!(server.poll_transmit(now).is_some());
        let len = server.sender.spare(now) as usize - action("c", 3, 0).len() + over;
        server.handle(Input::send(Ticket(3), action("c", 3, len)), now);
        assert!(server.poll_transmit(now).is_some());
        let is_begun = |event| matches!(event, Event::Progress(Progress { subject: Subject::Outgoing(Ticket(3)), .. }));
        assert_eq!(std::iter::from_fn(|| server.poll_event()).any(is_begun), over == 0);
    }
}

#[test]
fn a_link_that_once_stood_still_takes_large_messages_again() {
    let mut now = Instant::now();
    let mut server = agreed(Role::Server);
    server.handle(Input::send(Ticket(1), action("a", 1, 200_000)), now);
    for stall in [0, 0, 60].into_iter().chain(std::iter::repeat(0)) {
        now += stall * SECOND;
        if server.poll_transmit(now).is_none() {
            break;
        }
    }
    now += 3600 * SECOND;
    server.handle(Input::send(Ticket(2), action("a", 2, 1_000_000)), now);
    assert!(frames(&mut server, now).len() > 1000);
}

#[test]
fn a_large_request_of_a_server_fails_alone_wherever_its_id_stands() {
    let now = Instant::now();
    for request in [
        r#"{"jsonrpc":"2.0","id":7,"method":"resourceRead","params":{"channel":"a","pad":"PAD"}}"#,
        r#"{"jsonrpc":"2.0","method":"resourceRead","params":{"channel":"a","pad":"PAD"},"id":7}"#,
    ] {
        let mut server = agreed(Role::Server);
        server.handle(Input::send(Ticket(1), request.replace("PAD", &"x".repeat(2 << 20))), now);
        assert!(server.poll_transmit(now).is_none(), "{request}");
        assert!(matches!(events(&mut server)[..], [Event::SendFailed { reply: Some(_), .. }]), "{request}");
    }
}

#[test]
fn a_frame_limit_that_shrinks_below_a_group_under_way_closes_the_link() {
    let now = Instant::now();
    let negotiated = Negotiated::default();
    let client = || connection(Role::Client, |config| config.negotiated = negotiated.clone());
    let mut first = client();
    first.handle(Input::send(Ticket(1), INITIALIZE), now);
    frames(&mut first, now);
    let limits = r#""capabilities":{"chunking":{"maxIncomingFrameBytes":FRAME,"maxIncomingMessageBytes":900000}}"#;
    let welcome = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":"0.3.0",{limits}}}}}"#);
    first.handle(Input::frame(welcome.replace("FRAME", "65536")), now);

    let mut second = client();
    second.handle(Input::send(Ticket(1), RECONNECT), now);
    second.handle(Input::frame(ASKED), now);
    second.handle(Input::send(Ticket(2), answer(200_000)), now);
    assert!((0..2).all(|_| second.poll_transmit(now).is_some()));
    let back = format!(r#"{{"jsonrpc":"2.0","id":2,"result":{{{limits}}}}}"#).replace("FRAME", "1024");
    second.handle(Input::frame(back), now);
    assert!(matches!(second.poll_transmit(now), Some(Transmit::Close(CloseReason::CapShrank))));
}

/// A question of the server, and our answer to it.
const ASKED: &str = r#"{"jsonrpc":"2.0","id":9,"method":"resourceRead","params":{"channel":"a"}}"#;
fn answer(len: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":9,"result":"{}"}}"#, "x".repeat(len))
}

const RECONNECT: &str = r#"{"jsonrpc":"2.0","id":2,"method":"reconnect","params":{"clientId":"c1"}}"#;
const RECONNECTED: &str = r#"{"jsonrpc":"2.0","id":2,"result":{"type":"replay","actions":[],"capabilities":{"chunking":{"maxIncomingFrameBytes":600,"maxIncomingMessageBytes":9000}}}}"#;

#[test]
fn after_a_reconnect_the_limits_that_the_server_has_now_are_waited_for() {
    let (now, negotiated) = (Instant::now(), Negotiated::default());
    let larger = INITIALIZED.replace(
        r#""serverSeq""#,
        r#""capabilities":{"chunking":{"maxIncomingFrameBytes":900,"maxIncomingMessageBytes":9000}},"serverSeq""#,
    );
    // With limits in memory, which are too large by now, and with none.
    for handshakes in [vec![(INITIALIZE, &*larger), (RECONNECT, RECONNECTED)], vec![(RECONNECT, RECONNECTED)]] {
        let negotiated = if handshakes.len() == 1 { Negotiated::default() } else { negotiated.clone() };
        for (request, answer) in handshakes {
            let mut client = connection(Role::Client, |config| config.negotiated = negotiated.clone());
            client.handle(Input::send(Ticket(1), request), now);
            client.handle(Input::send(Ticket(2), action("a", 1, 700)), now);
            assert_eq!(frames(&mut client, now).len(), 1, "only the handshake");
            client.handle(Input::frame(answer.to_owned()), now);
            let limit = if request == RECONNECT { 600 } else { 900 };
            let lens: Vec<usize> = frames(&mut client, now).iter().map(Bytes::len).collect();
            assert!(!lens.is_empty() && lens.iter().all(|len| *len <= limit), "{lens:?}");
        }
    }
}

#[test]
fn a_server_that_is_asked_to_reconnect_knows_what_its_client_takes_and_one_that_is_greeted_does_not() {
    let (capable, now) = (
        r#""capabilities":{"chunking":{"maxIncomingFrameBytes":600,"maxIncomingMessageBytes":9000}},"clientId""#,
        Instant::now(),
    );
    for (request, goes) in [(RECONNECT, true), (INITIALIZE, false)] {
        let mut server = connection(Role::Server, |_| {});
        server.handle(Input::frame(request.replace(r#""clientId""#, capable)), now);
        server.handle(Input::send(Ticket(1), action("a", 1, 700)), now);
        assert_eq!(!frames(&mut server, now).is_empty(), goes, "{request}");
    }
}

#[test]
fn an_answer_does_not_wait_for_a_handshake_that_may_wait_for_it() {
    let (mut client, now) = (connection(Role::Client, |_| {}), Instant::now());
    client.handle(Input::send(Ticket(1), RECONNECT), now);
    client.handle(Input::frame(ASKED), now);
    client.handle(Input::send(Ticket(2), answer(900)), now);
    assert_eq!(frames(&mut client, now).len(), 2);
}

#[test]
fn a_message_that_waits_is_measured_anew_when_the_link_counts_otherwise() {
    let now = Instant::now();
    let mut server = agreed(Role::Server);
    let quotes = action("a", 1, 400).replace('x', "\\\"");
    server.handle(Input::send(Ticket(1), quotes), now);
    let overhead = crate::machine::Overhead::new(|measure| measure.escaped - measure.bytes);
    server.handle(Input::Capacity(Capacity { cap: 1000, overhead }), now);
    let sent = frames(&mut server, now);
    assert!(sent.len() > 1 && sent.iter().all(|frame| crate::json::escaped_len(frame) <= 1000), "{sent:?}");
}

#[test]
fn an_error_in_place_of_an_answer_waits_for_the_answer_to_a_reconnect() {
    let now = Instant::now();
    let mut server = connection(Role::Server, |config| config.limits = limits(|limits| limits.max_queued_bytes = 9000));
    server.handle(Input::frame(r#"{"jsonrpc":"2.0","id":1,"method":"reconnect","params":{"clientId":"c","capabilities":{"chunking":{"maxIncomingFrameBytes":1024,"maxIncomingMessageBytes":9000}}}}"#), now);
    server.handle(Input::frame(r#"{"jsonrpc":"2.0","id":2,"method":"m"}"#), now);
    server
        .handle(Input::send(Ticket(1), format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(5000))), now);
    assert!(server.poll_transmit(now).is_some());
    server.handle(
        Input::send(Ticket(2), format!(r#"{{"jsonrpc":"2.0","id":2,"result":"{}"}}"#, "x".repeat(20_000))),
        now,
    );
    let rest = frames(&mut server, now);
    let is_error = |frame: &Bytes| frame.starts_with(br#"{"jsonrpc":"2.0","id":2,"error""#);
    assert!(rest.last().is_some_and(is_error) && rest.iter().filter(|frame| is_error(frame)).count() == 1, "{rest:?}");
}

#[test]
fn clients_that_do_not_say_who_they_are_are_not_taken_for_each_other() {
    let now = Instant::now();
    let negotiated = Negotiated::default();
    let server = || connection(Role::Server, |config| config.negotiated = negotiated.clone());
    let mut first = server();
    first.handle(
        Input::frame(INITIALIZE.replace(
            r#""clientId":"c1""#,
            r#""capabilities":{"chunking":{"maxIncomingFrameBytes":1024,"maxIncomingMessageBytes":9000}}"#,
        )),
        now,
    );
    first.handle(Input::send(Ticket(1), INITIALIZED), now);
    assert!(first.peer().is_some());
    let mut second = server();
    second.handle(Input::frame(r#"{"jsonrpc":"2.0","id":1,"method":"reconnect","params":{}}"#), now);
    assert_eq!(second.peer(), None);
}

#[test]
fn a_handshake_that_nobody_can_answer_is_none() {
    let now = Instant::now();
    let mut server = agreed(Role::Server);
    server.handle(Input::frame(INITIALIZE.replace(r#""id":1,"#, "")), now);
    server.handle(Input::send(Ticket(1), action("a", 1, 900)), now);
    assert_eq!(frames(&mut server, now).len(), 1);
}

#[test]
fn what_is_no_json_rpc_is_not_sent_and_who_waits_for_it_hears_so() {
    let now = Instant::now();
    let mut client = agreed(Role::Client);
    let error = |id: u8| {
        let error = r#"{"code":-32603,"message":"not a JSON-RPC message","data":{"reason":"send-not-json-rpc"}}"#;
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
    };
    let requests = [("{}", None), (r#"{"a":1}"#, None), (r#"{"id":7,"method":"m"}"#, Some(error(7)))];
    let answers = [r#"{"id":8,"result":1}"#, r#"{"jsonrpc":"2.0","id":9,"error":null}"#].map(|text| (text, None));
    for (text, answer) in requests.into_iter().chain(answers) {
        client.handle(Input::send(Ticket(1), text), now);
        let [Event::SendFailed { error: SendError::NotJsonRpc, reply, .. }] = &events(&mut client)[..] else {
            panic!("{text}")
        };
        assert_eq!(reply.as_ref().map(|reply| String::from_utf8(reply.to_bytes().into()).unwrap()), answer);
    }
    // It is the peer that waits for an answer.
    assert_eq!(frames(&mut client, now), [error(8), error(9)]);
}
