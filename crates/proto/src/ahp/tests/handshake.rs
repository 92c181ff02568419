//! What passes before the handshake is answered.

use super::*;

/// A `reconnect` that is too long for a frame.
fn reconnect() -> String {
    let channels: Vec<_> = (0..200).map(|n| format!(r#""ahp-session:/{n}""#)).collect();
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"reconnect","params":{{"clientId":"c1","lastSeenServerSeq":5,"subscriptions":[{}]}}}}"#,
        channels.join(",")
    )
}

const RECONNECTED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"type":"replay","actions":[],"missing":[]}}"#;

/// What a client remembers that has met a server with segments.
fn met(server: &mut Connection) -> Negotiated {
    let (now, negotiated) = (Instant::now(), Negotiated::default());
    let mut client = connection(Role::Client, |config| config.negotiated = negotiated.clone());
    client.handle(Input::send(Ticket(1), INITIALIZE), now);
    pass(&mut client, server, now);
    server.handle(Input::send(Ticket(1), INITIALIZED), now);
    pass(server, &mut client, now);
    assert!(client.peer().is_some());
    negotiated
}

#[test]
fn a_restarted_server_takes_a_reconnect_in_segments() {
    let now = Instant::now();
    let negotiated = met(&mut connection(Role::Server, |_| {}));
    // A server that remembers nothing.
    let mut server = connection(Role::Server, |_| {});
    let mut client = connection(Role::Client, |config| config.negotiated = negotiated);
    client.handle(Input::send(Ticket(1), reconnect()), now);
    let lens = pass(&mut client, &mut server, now);
    assert!(lens.len() > 1 && lens.iter().all(|len| *len <= 1024), "{lens:?}");
    assert_eq!(messages(&mut server), [reconnect()]);
    server.handle(Input::send(Ticket(1), RECONNECTED), now);
    server.handle(Input::send(Ticket(2), action("a", 6, 5000)), now);
    let lens = pass(&mut server, &mut client, now);
    assert!(lens.iter().all(|len| *len <= 1024), "{lens:?}");
    assert_eq!(messages(&mut client).len(), 2);
}

#[test]
fn a_client_without_segments_may_begin_with_a_long_frame_whoever_came_before() {
    let now = Instant::now();
    let shared = Negotiated::default();
    met(&mut connection(Role::Server, |config| config.negotiated = shared.clone()));
    let mut server = connection(Role::Server, |config| config.negotiated = shared);
    let hello = INITIALIZE.replace("\"c1\"", &format!(r#""c2","title":"{}""#, "x".repeat(5000)));
    server.handle(Input::frame(hello.clone()), now);
    assert_eq!(messages(&mut server), [hello]);
    server.handle(Input::send(Ticket(1), INITIALIZED), now);
    assert_eq!(frames(&mut server, now), [INITIALIZED], "no capability for one who has none");
    let long = action("a", 1, 5000);
    server.handle(Input::frame(long.clone()), now);
    assert_eq!(messages(&mut server), [long]);
    let segment =
        r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"g","index":0,"total":1,"data":""}}"#;
    server.handle(Input::frame(segment), now);
    let Some(Transmit::Close(reason)) = server.poll_transmit(now) else { panic!("a segment is taken") };
    assert_eq!(reason.name(), "uninvited-segment");
}

#[test]
fn a_client_that_was_told_of_our_limit_keeps_to_it() {
    let now = Instant::now();
    let mut server = connection(Role::Server, |_| {});
    met(&mut server);
    server.handle(Input::frame(action("a", 1, 5000)), now);
    let Some(Transmit::Close(reason)) = server.poll_transmit(now) else { panic!("a long frame is taken") };
    assert_eq!(reason.code(), 1009);
}

#[test]
fn before_its_handshake_is_answered_a_client_sends_no_more_than_a_message() {
    let now = Instant::now();
    let mut server = connection(Role::Server, |_| {});
    server.handle(Input::frame(vec![b' '; (1 << 20) + 1]), now);
    let Some(Transmit::Close(reason)) = server.poll_transmit(now) else { panic!("it is taken") };
    assert_eq!(reason.code(), 1009);
}

#[test]
fn an_answer_that_would_overtake_the_handshake_waits_for_what_the_client_takes() {
    let now = Instant::now();
    let (mut client, mut server) = (connection(Role::Client, |_| {}), connection(Role::Server, |_| {}));
    client.handle(Input::send(Ticket(1), INITIALIZE), now);
    client.handle(
        Input::send(Ticket(2), r#"{"jsonrpc":"2.0","id":2,"method":"resourceRead","params":{"uri":"file:///a"}}"#),
        now,
    );
    client.handle(
        Input::send(Ticket(3), r#"{"jsonrpc":"2.0","id":3,"method":"subscribe","params":{"channel":"a"}}"#),
        now,
    );
    pass(&mut client, &mut server, now);
    assert_eq!(messages(&mut server).len(), 3);
    let answer = |id: u32, len: usize| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#, "x".repeat(len));
    server.handle(Input::send(Ticket(1), answer(2, 5000)), now);
    server.handle(Input::send(Ticket(2), answer(3, 5000)), now);
    assert!(frames(&mut server, now).is_empty(), "nobody has said what the client takes");
    server.handle(Input::send(Ticket(3), INITIALIZED), now);
    let lens = pass(&mut server, &mut client, now);
    assert!(lens.iter().all(|len| *len <= 1024), "{lens:?}");
    let got = messages(&mut client);
    assert!(got.len() == 3 && got.contains(&answer(2, 5000)) && got.contains(&answer(3, 5000)));
}

#[test]
fn an_answer_that_any_client_takes_does_not_wait() {
    let now = Instant::now();
    let (mut client, mut server) = (connection(Role::Client, |_| {}), connection(Role::Server, |_| {}));
    client.handle(Input::send(Ticket(1), INITIALIZE), now);
    pass(&mut client, &mut server, now);
    server.handle(Input::send(Ticket(1), r#"{"jsonrpc":"2.0","id":2,"result":"short"}"#), now);
    assert_eq!(frames(&mut server, now).len(), 1);
}
