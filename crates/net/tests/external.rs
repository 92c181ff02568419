//! A transport that another crate provides: its addresses, its connector and its acceptor.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use breakbulk::external::{Acceptor, Connecting, Connector, ExternalPeer, LinkRequest};
use breakbulk::gateway::{Downstream, Upstream};
use breakbulk::link::{InProcessLink, pair};
use breakbulk::{Address, DialError, Dialect, Dialer, Gateway, Link, Route, Transport};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Capacity, Limits, Message, Tag, Transmit};
use futures_util::{SinkExt, StreamExt};
use tokio_util::sync::CancellationToken;

const ADDRESS: &str = "webpubsub:Endpoint=https://h.example;AccessKey=c2VjcmV0;Version=1.0;?hub=a%26b&cap=64KiB";

/// Gives out one end of each pair, and keeps the other.
#[derive(Default)]
struct Pairs(Mutex<Vec<(LinkRequest, InProcessLink)>>);

impl Connector for Pairs {
    fn connect(&self, request: LinkRequest) -> Connecting<'_> {
        Box::pin(async move {
            let (ours, theirs) = pair(&Capacity::of(request.cap), 4);
            self.0.lock().unwrap().push((request, theirs));
            Ok(Box::new(ours) as _)
        })
    }
}

/// Brings peers that are there already.
struct Waiting(VecDeque<ExternalPeer>);

impl Acceptor for Waiting {
    fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<Option<ExternalPeer>> {
        Poll::Ready(self.0.pop_front())
    }
}

#[test]
fn an_address_keeps_the_options_of_the_other_crate_and_hides_its_secrets() {
    let address: Address = ADDRESS.parse().unwrap();
    let Transport::External { scheme, target, options } = &address.transport else { panic!("{address}") };
    assert_eq!((scheme.name, options.as_slice()), ("webpubsub", &[("hub".to_owned(), "a&b".to_owned())][..]));
    assert!(target.ends_with("AccessKey=c2VjcmV0;Version=1.0;"));
    assert_eq!((address.effective_dialect(), address.effective_cap()), (Dialect::Ahp, Some(65_536)));
    let shown = "webpubsub:Endpoint=https://h.example;AccessKey=…;Version=1.0;?hub=a%26b&cap=65536";
    assert_eq!(address.to_string(), shown);
    assert!(!format!("{address:?}").contains("c2VjcmV0"));
    assert_eq!("webpubsub:x?hub=h".parse::<Address>().unwrap().effective_cap(), Some(1_000_000));
    let nothing = "webpubsub:?hub=h".parse::<Address>().unwrap_err().to_string();
    assert!(nothing.starts_with("webpubsub: needs an address, such as"), "{nothing}");
}

#[tokio::test]
async fn without_a_connector_such_an_address_cannot_be_dialed() {
    let refused = Dialer::default().dial(&ADDRESS.parse().unwrap()).await.err().unwrap();
    assert!(matches!(refused, DialError::NoConnector("webpubsub")), "{refused}");
}

#[tokio::test]
async fn a_gateway_joins_a_peer_of_an_acceptor_with_a_link_of_a_connector() {
    let address: Address = ADDRESS.parse().unwrap();
    let (mut client, theirs) = pair(&Capacity::of(1 << 20), 4);
    let principal = Some(Arc::from("user:ann"));
    let peers = VecDeque::from([ExternalPeer { link: Box::new(theirs), name: "ann".into(), principal }]);
    let pairs = Arc::new(Pairs::default());
    let dialer = Dialer { connector: Some(Arc::clone(&pairs) as _), ..Dialer::default() };
    let budget = BudgetConfig::default();
    let setup =
        |address: &str, role| Route::prove(address.parse().unwrap(), role, Limits::default(), &budget).unwrap().setup;
    let far = setup("webpubsub:x?hub=h&dialect=plain", Role::Client);
    let gateway = Arc::new(Gateway::new(setup("ws://h", Role::Server), far, budget).unwrap());
    let stop = CancellationToken::new();
    let downstream = Downstream::External(Box::new(Waiting(peers)));
    let (serving, until) = (Arc::clone(&gateway), stop.clone());
    let served =
        tokio::spawn(async move { serving.serve(downstream, Upstream::new(dialer, address), until, || None).await });
    let text = r#"{"jsonrpc":"2.0","method":"ping","id":1}"#;
    let frame = Transmit::Frame { tag: Tag(1), bytes: Message::from(text), meta: Default::default() };
    client.send(frame).await.unwrap();
    let (request, mut host) = loop {
        if let Some(opened) = pairs.0.lock().unwrap().pop() {
            break opened;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((request.cap, host.capacity().cap), (65_536, 65_536));
    let arrived = host.next().await.unwrap().unwrap();
    assert!(format!("{arrived:?}").contains("ping"), "{arrived:?}");
    stop.cancel();
    drop((client, host));
    served.await.unwrap();
}
