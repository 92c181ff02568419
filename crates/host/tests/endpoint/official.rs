//! The official client, unmodified: in memory with a cap of 64 KiB, and over WebSockets with a cap and without.

use std::sync::Arc;

use ahp::hosts::{HostConfig, HostEvent, HostId, MultiHostClient};
use ahp::transport::BoxedTransport;
use ahp::{Client, ClientConfig, ClientError, ResourceRequestHandlers, SubscriptionEvent, Transport, TransportError};
use ahp_types::actions::{ActionEnvelope, StateAction, TerminalDataAction};
use ahp_types::commands::{ContentEncoding, ReconnectResult, ResourceReadResult, SubscribeView};
use ahp_types::state::SnapshotState;
use ahp_ws::WebSocketTransport;
use breakbulk::ahp::{Negotiated, Segmented};
use breakbulk::{AccessPolicy, Dialer, ListenConfig, Listener};
use breakbulk_host::endpoint::{EndReason, EndpointConfig};
use breakbulk_proto::{CloseReason, Limits};
use serde_json::{Value, json};

use super::world::{A, B, CHAT, World, reduce, soon};

/// Listens on loopback with a cap; the URL to connect to.
async fn listen(world: &World, cap: u64) -> String {
    let mut config = ListenConfig::new(([127, 0, 0, 1], 0).into(), AccessPolicy::open());
    config.link.cap = cap;
    let mut listener = Listener::bind(config).await.unwrap();
    let url = format!("ws://{}/", listener.local_address());
    let endpoint = world.endpoint.clone();
    tokio::spawn(async move {
        loop {
            let (endpoint, link) = (endpoint.clone(), listener.accept().await.link);
            tokio::spawn(async move { endpoint.serve(link, Some("someone".into())).await });
        }
    });
    url
}

async fn client_on(transport: impl Transport) -> Client {
    soon(Client::connect(transport, ClientConfig::default())).await.unwrap()
}

fn versions() -> Vec<String> {
    ahp_types::SUPPORTED_PROTOCOL_VERSIONS.iter().map(|version| (*version).to_owned()).collect()
}

fn data(text: &str) -> StateAction {
    StateAction::TerminalData(TerminalDataAction { data: text.to_owned() })
}

/// A whole conversation: handshake, snapshot, stream, an action each way, a large one, a request back.
async fn converse(world: &World, client: &Client) {
    world.data(A, "before ").await;
    let hello = soon(client.initialize("official".into(), versions(), vec![B.into()])).await.unwrap();
    assert_eq!((hello.protocol_version.as_str(), hello.snapshots.len()), ("1.0.0", 1));
    soon(client.ping()).await.unwrap();
    let (subscribed, mut stream) = soon(client.subscribe(A.into())).await.unwrap();
    let snapshot = subscribed.snapshot.unwrap();
    let mut state = snapshot.state;
    assert!(matches!(state, SnapshotState::Terminal(_)), "the untagged union is read as what it is");
    world.data(A, &"large ".repeat(500_000)).await;
    soon(client.dispatch(A.into(), data("mine "))).await.unwrap();
    let mut last = snapshot.from_seq;
    for n in 0..2 {
        let Some(SubscriptionEvent::Action(ActionEnvelope { server_seq, action, origin, .. })) =
            soon(stream.recv()).await
        else {
            panic!("an action");
        };
        assert!(i64::try_from(server_seq).unwrap() > last);
        last = server_seq.try_into().unwrap();
        assert_eq!(
            origin.map(|origin| (origin.client_id, origin.client_seq)),
            (n == 1).then(|| ("official".into(), 1))
        );
        reduce(&mut state, &action);
    }
    assert!(serde_json::to_value(&state).unwrap() == world.state(A).await);
    let view = SubscribeView { turns: Some(1) };
    let (chat, _) = soon(client.subscribe_with_options(CHAT.into(), None, Some(view))).await.unwrap();
    let SnapshotState::Chat(chat) = chat.snapshot.unwrap().state else { panic!("a chat") };
    assert_eq!((chat.turns.len(), chat.turns_next_cursor.as_deref()), (1, Some("3")));

    let contents = "x".repeat(300_000);
    let answer = ResourceReadResult { data: contents.clone(), encoding: ContentEncoding::Utf8, ..empty_read() };
    client.set_resource_request_handlers(ResourceRequestHandlers::new().on_resource_read(move |_| {
        let answer = answer.clone();
        async move { Ok(answer) }
    }));
    let handle = world.endpoint.clients().get(Some(&"someone".into()), "official").unwrap();
    let params = json!({"channel": "ahp-root://", "uri": "client:/x"});
    let read = soon(handle.ask("resourceRead", &params)).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&read).unwrap()["data"].as_str().unwrap().len(), contents.len());
    match soon(client.request::<_, Value>("nothing", json!({}))).await {
        Err(ClientError::Rpc(error)) => assert_eq!(error.code, -32601),
        other => panic!("{other:?}"),
    }
}

fn empty_read() -> ResourceReadResult {
    serde_json::from_value(json!({"data": "", "encoding": "utf-8"})).unwrap()
}

#[tokio::test]
async fn the_official_client_converses_through_a_cap_of_64_kib() {
    let world = World::new().await;
    let (link, ended) = world.link(65_536, 2);
    let client = client_on(Segmented::over_link(link, Limits::default(), Negotiated::default())).await;
    converse(&world, &client).await;
    client.shutdown().await;
    assert_eq!(soon(ended).await.unwrap(), EndReason::Link(CloseReason::Peer { code: 1000 }));
}

#[tokio::test]
async fn the_official_client_converses_over_a_websocket_with_a_cap() {
    let world = World::new().await;
    let url = listen(&world, 65_536).await;
    let address = format!("{url}?cap=65536").parse().unwrap();
    let link = soon(Dialer::default().dial(&address)).await.unwrap();
    let client = client_on(Segmented::over_link(link, Limits::default(), Negotiated::default())).await;
    converse(&world, &client).await;
}

#[tokio::test]
async fn the_official_client_with_its_own_transport_converses_without_a_cap() {
    let world = World::new().await;
    let url = listen(&world, u64::MAX).await;
    let client = client_on(soon(WebSocketTransport::connect(&url)).await.unwrap()).await;
    converse(&world, &client).await;
}

#[tokio::test]
async fn the_official_client_reconnects_to_a_replay_and_to_snapshots() {
    let world = World::with(EndpointConfig { max_replay: 2, ..EndpointConfig::default() }).await;
    let seen = i64::try_from(world.data(A, "one").await).unwrap();
    let url = listen(&world, u64::MAX).await;
    for (missed, is_replayed) in [(1, true), (2, true), (3, false)] {
        let last = i64::try_from(world.data(A, &format!("{missed}")).await).unwrap();
        let client = client_on(soon(WebSocketTransport::connect(&url)).await.unwrap()).await;
        let mut stream = client.attach_subscription(A).await;
        let result = soon(client.reconnect("official".into(), seen, vec![A.into(), "gone".into()])).await.unwrap();
        match result {
            ReconnectResult::Replay(replay) => {
                assert!(is_replayed);
                assert_eq!((replay.actions.len(), replay.missing), (missed, vec!["gone".to_owned()]));
            }
            ReconnectResult::Snapshot(shown) => {
                assert!(!is_replayed);
                assert_eq!((shown.snapshots.len(), shown.snapshots[0].from_seq), (1, last));
            }
        }
        if missed == 3 {
            let live = world.data(A, "live").await;
            let Some(SubscriptionEvent::Action(action)) = soon(stream.recv()).await else { panic!("an action") };
            assert_eq!(action.server_seq, live);
        }
    }
}

#[tokio::test]
async fn the_official_multi_host_client_comes_back_by_itself_and_hears_everything_once() {
    let world = World::new().await;
    let memory = Negotiated::default();
    let links: Arc<std::sync::Mutex<Vec<tokio::task::JoinHandle<EndReason>>>> = Arc::default();
    let open = {
        let (world, links) = (world.clone(), links.clone());
        move |_: HostId| {
            let (link, served) = world.link(65_536, 2);
            links.lock().unwrap().push(served);
            let transport = Segmented::over_link(link, Limits::default(), memory.clone());
            async move { Ok::<_, TransportError>(BoxedTransport::new(transport)) }
        }
    };
    let host = HostConfig::new("h", "the host", open).with_initial_subscriptions(vec![A.into()]);
    let client = MultiHostClient::new();
    let (mut actions, mut states) = (client.events(), client.host_events());
    soon(client.add_host(host)).await.unwrap();
    let mut expected = Vec::new();
    for round in 0..4 {
        loop {
            if let HostEvent::Connected { .. } = soon(states.recv()).await.unwrap() {
                break;
            }
        }
        for n in 0..3 {
            expected.push(world.data(A, &format!("{round} {n} {}", "x".repeat(100_000))).await);
        }
        // The link is cut somewhere in the middle of it.
        if round < 3 {
            let event = soon(actions.recv()).await.unwrap();
            let SubscriptionEvent::Action(action) = event.event else { panic!("an action") };
            assert_eq!(action.server_seq, expected.remove(0));
            links.lock().unwrap().last().unwrap().abort();
        }
    }
    for seq in expected {
        let event = soon(actions.recv()).await.unwrap();
        let SubscriptionEvent::Action(action) = event.event else { panic!("an action") };
        assert_eq!(action.server_seq, seq);
    }
}
