//! Through a bridge: when the host ends, each request that waits gets an error before the close, and the client resumes all the same.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use breakbulk::client::{Client, Config, ConnectError, Events, RequestError};
use breakbulk::gateway::{Endpoint, Gateway};
use breakbulk::link::{self, WebSocket, WebSocketConfig};
use breakbulk::{Dialect, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Capacity};
use tokio::io::duplex;

use super::TERMINAL;
use super::host::{CAP, Host, State, limits};
use super::line::{live, seqs};

/// A client of a host behind a bridge, and how many links it has had. The client is on a WebSocket.
fn client(host: &Host) -> (Client, Events, Arc<AtomicUsize>) {
    let setup = |role| Setup::new(Dialect::Ahp, role, limits());
    let gateway = Gateway::new(setup(Role::Server), setup(Role::Client), BudgetConfig::default()).unwrap();
    let (host, gateway, dials) = (host.clone(), Arc::new(gateway), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&dials);
    let connect = move || {
        count.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = duplex(1 << 20);
        let (upstream, to_host) = link::pair(&Capacity::of(CAP), 4);
        host.serve(to_host);
        let socket = WebSocketConfig { keepalive: None, ..WebSocketConfig::default() };
        let downstream = Endpoint::new(WebSocket::server(theirs, &socket), "the client").proven("someone");
        let (gateway, upstream) = (Arc::clone(&gateway), Endpoint::new(upstream, "the host"));
        tokio::spawn(
            async move { gateway.join(downstream, upstream, Some("someone"), pending(), None).await.unwrap() },
        );
        async move { Ok::<_, ConnectError>(WebSocket::client(ours, &socket)) }
    };
    let mut config = Config::new("me");
    config.subscriptions = vec![TERMINAL.to_owned()];
    config.limits = limits();
    config.seed = Some(1);
    let (client, events) = Client::start(connect, config);
    (client, events, dials)
}

/// How often the host has heard a method.
fn heard(state: &State, method: &str) -> usize {
    state.heard.iter().filter(|(heard, _)| heard == method).count()
}

#[tokio::test(start_paused = true)]
async fn a_client_with_requests_that_are_owed_gets_errors_and_resumes_where_it_was() {
    type End = fn(&Host);
    let ends: [(&str, End); 4] = [
        ("disconnected", Host::cut),
        ("host-ended", |host| host.close(1000)),
        ("host-closed", |host| host.close(1011)),
        ("host-closed", |host| host.close(4123)),
    ];
    for (reason, end) in ends {
        let host = Host::default();
        host.set(|knobs| knobs.silence("echo"));
        let (client, mut events, dials) = client(&host);
        live(&client).await;
        host.publish(TERMINAL, "one");
        assert_eq!(seqs(&mut events, 1).await, [1]);
        let fails = async {
            host.until(|state| heard(state, "echo") == 2).await;
            end(&host);
        };
        let (first, second, ()) = tokio::join!(client.request("echo", "[1]"), client.request("echo", "[2]"), fails);
        for outcome in [first, second] {
            let Err(RequestError::Remote { code: -32603, data: Some(data), .. }) = outcome else {
                panic!("{reason}: {outcome:?}")
            };
            assert!(String::from_utf8_lossy(&data.to_bytes()).contains(reason), "{data:?}");
        }
        host.publish(TERMINAL, "two");
        assert_eq!(seqs(&mut events, 1).await, [2], "{reason}");
        live(&client).await;
        let counts = host.counts();
        assert_eq!((counts["initialize"], counts["reconnect"], counts["echo"]), (1, 1, 2), "{reason}");
        assert_eq!(dials.load(Ordering::Relaxed), 2, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_reconnect_is_owed_asks_again_on_the_next_link() {
    let host = Host::default();
    let (client, mut events, _) = client(&host);
    live(&client).await;
    host.publish(TERMINAL, "one");
    assert_eq!(seqs(&mut events, 1).await, [1]);
    host.set(|knobs| knobs.silence("reconnect"));
    host.cut();
    host.until(|state| heard(state, "reconnect") == 1).await;
    host.publish(TERMINAL, "two");
    host.cut();
    host.until(|state| heard(state, "reconnect") == 2).await;
    host.set(|knobs| knobs.silent.clear());
    host.close(1011);
    assert_eq!(seqs(&mut events, 1).await, [2]);
    live(&client).await;
    host.publish(TERMINAL, "three");
    assert_eq!(seqs(&mut events, 1).await, [3]);
    let counts = host.counts();
    assert_eq!((counts["initialize"], counts["reconnect"]), (1, 3), "it never began anew");
}
