//! What a host owes when it ends or fails: whoever asked gets an error that says why, and then the close.

use std::sync::Arc;
use std::time::Duration;

use breakbulk::link::{self, InProcessLink, Keepalive, Lines, WebSocket, WebSocketConfig};
use breakbulk::{Dialect, Gateway, Link, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::plain::Framing;
use breakbulk_proto::{BudgetConfig, Capacity, CloseReason, Input, Limits, LimitsConfig, Message};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex, split};

use crate::world::{App, CAP, INITIALIZE, WELCOME, World, gateways, gateways_of, join, join_until, plain_gateway};

fn asked(id: usize, method: &str) -> Message {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#).into()
}

fn any() -> Arc<Gateway> {
    plain_gateway(Limits::default(), BudgetConfig::default())
}

/// A pipe both ways, of which a link has one end.
fn pipe(max_line: u64) -> (DuplexStream, impl Link + 'static) {
    let (ours, theirs) = duplex(1 << 20);
    let (reader, writer) = split(theirs);
    (ours, Lines::new(reader, writer, Capacity::of(u64::MAX), max_line))
}

/// What a client hears until its link ends, and how that ends.
async fn hear<L: Link>(client: &mut App<L>) -> (Vec<Value>, u16, String) {
    let mut heard = Vec::new();
    loop {
        match client.next().await {
            Ok(message) => heard.push(serde_json::from_slice(&message.to_bytes()).unwrap()),
            Err(reason) => return (heard, reason.code(), client.driver.close_text().unwrap_or_default().to_owned()),
        }
    }
}

fn reasons(heard: &[Value]) -> Vec<(u64, &str)> {
    let mut reasons: Vec<_> = heard
        .iter()
        .map(|answer| (answer["id"].as_u64().unwrap(), answer["error"]["data"]["reason"].as_str().unwrap()))
        .collect();
    reasons.sort_unstable();
    reasons
}

#[tokio::test(start_paused = true)]
async fn a_host_that_closes_with_any_code_or_is_gone_leaves_an_error_for_each_request_and_then_the_close() {
    for (close, code, reason, text) in [
        (Some((1011, "because")), 1011, "host-closed", r#"the host closed with 1011: "because""#),
        (Some((4123, "of the \u{1b} moon")), 4123, "host-closed", r#"the host closed with 4123: "of the \u{1b} moon""#),
        (None, 1014, "disconnected", "the host is disconnected: "),
    ] {
        let ((client, downstream), (upstream, host)) =
            (link::pair(&Capacity::of(u64::MAX), 4), link::pair(&Capacity::of(u64::MAX), 4));
        join(&any(), downstream, upstream);
        let (mut client, mut host) = (App::new(client, Role::Client), App::new(host, Role::Server));
        (1..=2).for_each(|id| client.send(asked(id, "m")));
        let host = tokio::spawn(async move {
            host.next().await.unwrap();
            host.next().await.unwrap();
            if let Some((code, text)) = close {
                host.driver.handle(Input::Close(CloseReason::Program(code, text.into())));
                host.end().await;
            }
        });
        let (heard, ended, told) = hear(&mut client).await;
        assert_eq!((reasons(&heard), ended), (vec![(1, reason), (2, reason)], code));
        assert!(told.starts_with(text), "{told}");
        if reason == "host-closed" {
            assert_eq!(heard[0]["error"]["data"]["closeCode"], code);
            assert_eq!(heard[0]["error"]["message"], told);
        }
        host.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn of_three_hundred_requests_before_a_drop_each_gets_one_error() {
    let ((client, downstream), (upstream, host)) =
        (link::pair(&Capacity::of(u64::MAX), 4), link::pair(&Capacity::of(u64::MAX), 4));
    join(&any(), downstream, upstream);
    let (mut client, mut host) = (App::new(client, Role::Client), App::new(host, Role::Server));
    (0..300).for_each(|id| client.send(asked(id, "m")));
    tokio::spawn(async move {
        for _ in 0..7 {
            host.next().await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
    let (heard, code, _) = hear(&mut client).await;
    let wanted: Vec<_> = (0..300).map(|id| (id, "disconnected")).collect();
    assert_eq!((reasons(&heard), code), (wanted, 1014));
}

#[tokio::test(start_paused = true)]
async fn a_client_on_a_pipe_hears_of_a_host_that_is_gone() {
    let (mut client, downstream) = pipe(32 << 20);
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    let ended = join(&any(), downstream, upstream);
    let mut host = App::new(host, Role::Server);
    client.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n").await.unwrap();
    host.next().await.unwrap();
    drop(host);
    let mut heard = String::new();
    client.read_to_string(&mut heard).await.unwrap();
    assert_eq!(reasons(&[heard.parse().unwrap()]), [(1, "disconnected")]);
    assert_eq!(ended.await.unwrap().losses.answers, 1);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_longer_than_a_message_may_be_leaves_errors() {
    let config = LimitsConfig { max_frame_bytes: CAP, max_message_bytes: 1 << 20, ..LimitsConfig::default() };
    let limits = Limits::prove(config, &BudgetConfig::default()).unwrap();
    let setup = |role| {
        let mut setup = Setup::new(Dialect::Plain, role, limits);
        setup.framing = Framing::Lines;
        setup
    };
    let gateway = Arc::new(Gateway::new(setup(Role::Server), setup(Role::Client), BudgetConfig::default()).unwrap());
    let ((mut client, downstream), (host, upstream)) = (pipe(1 << 20), pipe(1 << 20));
    let ended = join(&gateway, downstream, upstream);
    for id in 1..=2 {
        client.write_all(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"m\"}}\n").as_bytes()).await.unwrap();
    }
    tokio::spawn(async move {
        let mut host = BufReader::new(host);
        for _ in 0..2 {
            host.read_line(&mut String::new()).await.unwrap();
        }
        let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"{}\"}}\n", "x".repeat(2 << 20));
        let _ = host.write_all(long.as_bytes()).await;
        let _ = host.read_to_end(&mut Vec::new()).await;
    });
    let mut heard = String::new();
    client.read_to_string(&mut heard).await.unwrap();
    let heard: Vec<Value> = heard.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(reasons(&heard), [(1, "too-large"), (2, "too-large")]);
    assert_eq!(ended.await.unwrap().losses.answers, 2);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_falls_silent_leaves_errors() {
    let (client, downstream) = link::pair(&Capacity::of(u64::MAX), 4);
    let (ours, _silent) = duplex(1 << 20);
    let keepalive = Keepalive::within(Duration::from_secs(4));
    let config = WebSocketConfig { keepalive: Some(keepalive), ..WebSocketConfig::default() };
    join(&any(), downstream, WebSocket::client(ours, &config));
    let mut client = App::new(client, Role::Client);
    client.send(asked(1, "m"));
    let (heard, code, text) = hear(&mut client).await;
    assert_eq!((reasons(&heard), code), (vec![(1, "timed-out")], 1014));
    assert!(text.contains("silent for 4 s"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_stops_in_the_middle_of_a_message_leaves_errors_that_say_so() {
    let config = LimitsConfig {
        max_frame_bytes: CAP,
        group_timeout: Some(Duration::from_secs(5)),
        grace: Duration::ZERO,
        ..LimitsConfig::default()
    };
    let (gateway, _) = gateways_of(Limits::prove(config, &BudgetConfig::default()).unwrap());
    let ((client, downstream), (upstream, host)) =
        (link::pair(&Capacity::of(u64::MAX), 4), link::pair(&Capacity::of(u64::MAX), 4));
    join(&gateway, downstream, upstream);
    let (mut client, mut host) = (App::new(client, Role::Client), App::new(host, Role::Server));
    client.send(INITIALIZE);
    let host = tokio::spawn(async move {
        host.next().await.unwrap();
        host.send(WELCOME);
        for _ in 0..2 {
            host.next().await.unwrap();
        }
        // The front of an action: what comes after it may depend on it, so the link is given up.
        let segment = r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"g","index":0,"total":2,"data":"eyJqc29ucnBjIjoiMi4wIiwibWV0aG9kIjoiYWN0aW9uIiwi"}}"#;
        host.send_as_it_is(segment).await;
        host.end().await
    });
    client.next().await.unwrap();
    (2..=3).for_each(|id| client.send(asked(id, "m")));
    let (heard, _, _) = hear(&mut client).await;
    assert_eq!(reasons(&heard), [(2, "timed-out"), (3, "timed-out")]);
    assert_eq!(host.await.unwrap().code(), 4408);
}

/// A client on a WebSocket, and a host that has read its requests.
async fn asks(requests: &[Message]) -> (App<WebSocket<DuplexStream>>, App<InProcessLink>) {
    let (ours, theirs) = duplex(1 << 20);
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    join(&any(), WebSocket::server(theirs, &WebSocketConfig::default()), upstream);
    let mut client = App::new(WebSocket::client(ours, &WebSocketConfig::default()), Role::Client);
    let mut host = App::new(host, Role::Server);
    for request in requests {
        client.send(request.clone());
        tokio::select! { asked = host.next() => asked.unwrap(), end = client.next() => panic!("{end:?}") };
    }
    (client, host)
}

#[tokio::test(start_paused = true)]
async fn an_ahp_client_gets_errors_but_for_what_it_repeats_on_its_next_link() {
    let requests = [
        Message::from(INITIALIZE),
        asked(2, "listSessions"),
        asked(3, "subscribe"),
        asked(4, "reconnect"),
        asked(5, "resourceRead"),
    ];
    let (mut client, host) = asks(&requests).await;
    drop(host);
    let (heard, code, _) = hear(&mut client).await;
    assert_eq!((reasons(&heard), code), (vec![(2, "disconnected"), (5, "disconnected")], 1014));
    // A client that has never said who it is does not resume.
    let (mut client, host) = asks(&[asked(1, "initialize")]).await;
    drop(host);
    assert_eq!(reasons(&hear(&mut client).await.0), [(1, "disconnected")]);
}

#[tokio::test(start_paused = true)]
async fn an_id_behind_megabytes_of_params_counts_and_one_that_was_answered_does_not() {
    let ((client, downstream), (upstream, host)) = (duplex(1 << 20), duplex(1 << 20));
    let config = WebSocketConfig::default();
    join(&gateways(CAP).0, WebSocket::server(downstream, &config), WebSocket::client(upstream, &config));
    let mut client = App::new(WebSocket::client(client, &config), Role::Client);
    let mut host = App::new(WebSocket::server(host, &config), Role::Server);
    let long = "x".repeat(10_000);
    for id in 1..=2 {
        client.send(format!(r#"{{"method":"m","params":["{long}"],"jsonrpc":"2.0","id":{id}}}"#));
        tokio::select! { asked = host.next() => asked.unwrap(), end = client.next() => panic!("{end:?}") };
    }
    host.send(format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":1}}"#));
    tokio::select! { heard = client.next() => heard.unwrap(), end = host.next() => panic!("{end:?}") };
    drop(host);
    assert_eq!(reasons(&hear(&mut client).await.0), [(2, "disconnected")]);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_stops_answers_what_the_host_has_not_begun_to_answer_at_once() {
    for half_closes in [false, true] {
        let (client, downstream) = pipe(32 << 20);
        let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let ended = join_until(&any(), downstream, upstream, async { stopped.await.unwrap() });
        let mut host = App::new(host, Role::Server);
        let (mut reader, mut writer) = split(client);
        writer.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n").await.unwrap();
        host.next().await.unwrap();
        if half_closes {
            writer.shutdown().await.unwrap();
            tokio::time::timeout(Duration::from_secs(1), host.next()).await.unwrap_err();
        }
        stop.send(()).unwrap();
        let began = tokio::time::Instant::now();
        let mut heard = String::new();
        let (heard, _) = tokio::join!(
            async {
                reader.read_to_string(&mut heard).await.unwrap();
                heard
            },
            host.end()
        );
        assert_eq!(reasons(&[heard.parse().unwrap()]), [(1, "restarting")], "{half_closes}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        ended.await.unwrap();
    }
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn shallow(max_depth: u32, cap: u64) -> Limits {
    let config = LimitsConfig { max_frame_bytes: cap, max_depth, ..LimitsConfig::default() };
    Limits::prove(config, &BudgetConfig::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn between_plain_links_what_is_nested_too_deep_is_answered_replaced_or_closes_once() {
    let gateway = plain_gateway(shallow(1000, 900_000), BudgetConfig::default());
    let connect = || {
        let ((client, downstream), (upstream, host)) =
            (link::pair(&Capacity::of(u64::MAX), 4), link::pair(&Capacity::of(u64::MAX), 4));
        join(&gateway, downstream, upstream);
        (App::new(client, Role::Client), App::new(host, Role::Server))
    };
    let deep = nested(5000);
    let (mut client, mut host) = connect();
    client.send(format!(r#"{{"jsonrpc":"2.0","id":5,"method":"m","params":{deep}}}"#));
    let answer = tokio::select! { answer = client.next() => answer.unwrap(), end = host.next() => panic!("{end:?}") };
    let answer: Value = serde_json::from_slice(&answer.to_bytes()).unwrap();
    assert_eq!(reasons(&[answer]), [(5, "send-too-deep")]);
    client.send(asked(6, "m"));
    tokio::select! { asked = host.next() => asked.unwrap(), end = client.next() => panic!("{end:?}") };
    host.send(format!(r#"{{"jsonrpc":"2.0","id":6,"result":{deep}}}"#));
    let answer = tokio::select! { answer = client.next() => answer.unwrap(), end = host.next() => panic!("{end:?}") };
    let answer: Value = serde_json::from_slice(&answer.to_bytes()).unwrap();
    assert_eq!(reasons(&[answer]), [(6, "send-too-deep")]);
    let action = |x: &str| Message::from(format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"x":{x}}}}}"#));
    for round in 0..3 {
        let (mut client, mut host) = connect();
        host.send(action(&deep));
        if round == 0 {
            let (downstream, upstream) = tokio::join!(client.end(), host.end());
            assert_eq!((downstream.code(), upstream.code()), (4422, 4422));
        } else {
            host.send(action("1"));
            let heard =
                tokio::select! { heard = client.next() => heard.unwrap(), end = host.next() => panic!("{end:?}") };
            assert_eq!(heard, action("1"));
        }
    }
    assert_eq!(gateway.counts().get("dropped-unsendable"), Some(&2));
}

/// Each gateway has its own limit; the one beside the client takes less than the one beside the host, or more.
#[tokio::test(start_paused = true)]
async fn gateways_with_different_limits_of_nesting_do_not_loop() {
    for (client_depth, host_depth) in [(1000, 1_000_000), (1_000_000, 1000)] {
        let setup = |dialect, role, depth| Setup::new(dialect, role, shallow(depth, CAP));
        let gateway =
            |downstream, upstream| Arc::new(Gateway::new(downstream, upstream, BudgetConfig::default()).unwrap());
        let beside_client =
            gateway(setup(Dialect::Plain, Role::Server, client_depth), setup(Dialect::Ahp, Role::Client, client_depth));
        let beside_host =
            gateway(setup(Dialect::Ahp, Role::Server, host_depth), setup(Dialect::Plain, Role::Client, host_depth));
        let action = |x: &str| {
            Message::from(format!(
                r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"c","serverSeq":7,"x":{x}}}}}"#
            ))
        };
        for round in 0..3 {
            let mut world = World::with(&beside_client, &beside_host, CAP);
            world.greet().await;
            world.host.send(action(&nested(5000)));
            if round == 0 {
                let (downstream, upstream) = tokio::join!(world.client.end(), world.host.end());
                assert_eq!((downstream.code(), upstream.code()), (4422, 4422), "{downstream} {upstream}");
            } else {
                world.host.send(action("1"));
                assert_eq!(world.client_hears().await, action("1"), "round {round}");
            }
        }
        let mut world = World::with(&beside_client, &beside_host, CAP);
        world.greet().await;
        world.client.send(format!(r#"{{"jsonrpc":"2.0","id":9,"method":"m","params":{}}}"#, nested(5000)));
        let answer: Value = serde_json::from_slice(&world.client_hears().await.to_bytes()).unwrap();
        assert_eq!(reasons(&[answer]), [(9, "send-too-deep")]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_comes_again_has_nothing_answered_twice() {
    let (beside_client, beside_host) = gateways(CAP);
    for _ in 0..2 {
        let mut world = World::with(&beside_client, &beside_host, CAP);
        world.client.send(INITIALIZE);
        world.host_hears().await;
        world.host.send(WELCOME);
        assert_eq!(world.client_hears().await, Message::from(WELCOME));
        world.client.send(asked(2, "m"));
        world.host_hears().await;
        drop(world.host);
        let (heard, _, _) = hear(&mut world.client).await;
        assert_eq!(reasons(&heard), [(2, "disconnected")]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_result_and_error_becomes_an_error_for_its_caller() {
    let setup = |role| {
        let mut setup = Setup::new(Dialect::Plain, role, Limits::default());
        setup.framing = Framing::Lines;
        setup
    };
    let gateway = Arc::new(Gateway::new(setup(Role::Server), setup(Role::Client), BudgetConfig::default()).unwrap());
    let ((client, downstream), (host, upstream)) = (pipe(32 << 20), pipe(32 << 20));
    join(&gateway, downstream, upstream);
    let mut client = BufReader::new(client);
    let mut host = BufReader::new(host);
    for answer in ["{\"jsonrpc\":\"2.0\",\"id\":ID}\n", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":null}\n"] {
        client.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n").await.unwrap();
        while !line(&mut host).await.contains(r#""method":"m""#) {}
        // Nobody has asked the first.
        for id in ["7", "1"] {
            host.write_all(answer.replace("ID", id).as_bytes()).await.unwrap();
        }
        let heard: Value = line(&mut client).await.parse().unwrap();
        assert_eq!((&heard["id"], &heard["error"]["code"]), (&1.into(), &(-32603).into()), "{answer}");
        assert_eq!(heard["error"]["data"]["reason"], "line-not-json-rpc");
    }
    // What could also be a request is answered. What can only be an answer is not.
    host.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"n\"}\n").await.unwrap();
    assert!(line(&mut client).await.contains(r#""method":"n""#));
    client.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":9,\"error\":null}\n").await.unwrap();
    let heard: Value = line(&mut host).await.parse().unwrap();
    assert_eq!((&heard["id"], &heard["error"]["code"]), (&9.into(), &(-32603).into()));
}

/// The next line.
async fn line(from: &mut BufReader<impl tokio::io::AsyncRead + Unpin>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).await.unwrap();
    line
}
