//! A relay in this process, and links through it.

use std::time::Duration;

use breakbulk::external::{Acceptor, ExternalPeer};
use breakbulk::listen::ListenConfig;
use breakbulk::{AccessPolicy, Address, Arrival, BoxLink, DialError, Dialer, Listener};
use breakbulk_proto::{Message, Meta, Tag, Transmit};
use breakbulk_webpubsub::link::{WebPubSubAcceptor, WebPubSubAddress, WebPubSubConnector};
use breakbulk_webpubsub::relay::{Relay, RelayConfig};
use breakbulk_webpubsub::{AccessKey, ConnectionString, Endpoint};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio_util::sync::CancellationToken;

/// A relay that runs until this is dropped.
pub(crate) struct Running {
    pub(crate) relay: Relay,
    pub(crate) string: ConnectionString,
    stop: CancellationToken,
}

impl Running {
    /// Starts a relay with what `change` makes of the default limits.
    pub(crate) async fn start(change: impl FnOnce(&mut RelayConfig)) -> Self {
        let key = AccessKey::generate().unwrap();
        let mut config = RelayConfig::new(key.clone());
        change(&mut config);
        let max_frame_bytes = if config.oversize_code == 1009 { config.cap } else { config.cap * 2 };
        let relay = Relay::new(config);
        let mut listen = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open());
        (listen.gate, listen.pages) = (Some(relay.gate()), Some(relay.pages()));
        listen.link.max_frame_bytes = max_frame_bytes;
        let listener = Listener::bind(listen).await.unwrap();
        let endpoint = Endpoint { is_tls: false, host: "127.0.0.1".into(), port: listener.local_address().port() };
        let (stop, serving) = (CancellationToken::new(), relay.clone());
        let stopping = stop.clone();
        tokio::spawn(async move { serving.serve(listener, stopping).await });
        Self { relay, string: ConnectionString { endpoint, key }, stop }
    }

    /// An address of the hub `agents`, with these options.
    pub(crate) fn address(&self, options: &str) -> WebPubSubAddress {
        let text = format!("webpubsub:{}?hub=agents{options}", self.string.reveal());
        WebPubSubAddress::try_from(&text.parse::<Address>().unwrap()).unwrap()
    }

    /// A host that accepts clients.
    pub(crate) async fn host(&self, options: &str) -> WebPubSubAcceptor {
        WebPubSubAcceptor::start(self.address(options), &Dialer::default(), CAP).await.unwrap()
    }

    /// A link of a client.
    pub(crate) async fn dial(&self, options: &str) -> Result<BoxLink, DialError> {
        let connector = WebPubSubConnector::new(self.address(options), Dialer::default()).unwrap();
        let mut dialer = Dialer { connector: Some(std::sync::Arc::new(connector)), ..Dialer::default() };
        dialer.timeout = Duration::from_secs(60);
        dialer.dial(&format!("webpubsub:x?hub=agents&cap={CAP}").parse().unwrap()).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The cap of the relay and of the links.
pub(crate) const CAP: u64 = 1_000_000;

/// The next client of a host.
pub(crate) async fn accept(host: &mut WebPubSubAcceptor) -> ExternalPeer {
    within(std::future::poll_fn(|cx| host.poll_accept(cx))).await.expect("a client")
}

/// Fails if something takes far too long, even on a busy machine.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(180), work).await.expect("it happens in time")
}

pub(crate) async fn send(link: &mut BoxLink, text: impl Into<Message>) {
    let frame = Transmit::Frame { tag: Tag::default(), bytes: text.into(), meta: Meta::default() };
    within(link.send(frame)).await.unwrap();
}

/// The next frame.
pub(crate) async fn receive(link: &mut BoxLink) -> Bytes {
    match within(link.next()).await {
        Some(Ok(Arrival::Frame { bytes, .. })) => bytes,
        other => panic!("no frame: {other:?}"),
    }
}
