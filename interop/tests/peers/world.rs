//! A plain AHP host and two bridges: plain, then frames of at most 900,000 bytes, then plain again.

use std::time::Duration;

use ahp::{Client, ClientConfig, Transport};
use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::commands::{ContentEncoding, ResourceReadParams, ResourceWriteParams};

use super::host::Host;
use super::program::Bridge;
use super::relay::{Cut, Relay};
use super::{server, soon};

/// The longest frame between the bridges.
pub(crate) const CAP: u64 = 900_000;

/// All that lies between a client and the host.
pub(crate) struct World {
    pub(crate) host: Host,
    /// Where the host listens.
    pub(crate) server: String,
    /// Beside the host. It lives as long as the rest.
    _host_bridge: Bridge,
    pub(crate) relay: Relay,
    /// Beside the client.
    pub(crate) client_bridge: Bridge,
}

impl World {
    /// With a client's side that is plain.
    pub(crate) async fn new(plan: impl IntoIterator<Item = Cut>) -> Self {
        Self::listening("ws://127.0.0.1:0", plan).await
    }

    /// With a client's side as `listen` says.
    pub(crate) async fn listening(listen: &str, plan: impl IntoIterator<Item = Cut>) -> Self {
        let host = Host::default();
        let server = server::serve(&host).await;
        let host_bridge = Bridge::open(&format!("ws://127.0.0.1:0?cap={CAP}"), &server);
        let relay = Relay::to(&host_bridge.url, plan).await;
        let client_bridge = Bridge::open(listen, &format!("{}?cap={CAP}", relay.url));
        Self { host, server, _host_bridge: host_bridge, relay, client_bridge }
    }

    /// Asserts that no frame between the bridges was longer than it may be, and that large messages went through.
    pub(crate) fn assert_capped(&self) {
        let longest = (self.relay.longest_frame(), self.relay.longest_message());
        println!("{} frames between the bridges, the longest of {} bytes", self.relay.frames(), longest.0);
        assert!(longest.0 <= CAP && longest.1 <= CAP, "{longest:?}");
        // Segments of 64 KiB, where short messages have just gone.
        assert!(longest.0 > 60_000, "the frames carry large messages: {longest:?}");
    }
}

/// The official client on a transport, initialized.
pub(crate) async fn client_on(transport: impl Transport) -> Client {
    let client = Client::connect(transport, patient()).await.unwrap();
    let offered = ahp_types::SUPPORTED_PROTOCOL_VERSIONS.iter().map(|&version| version.into()).collect();
    soon(client.initialize("one-client".into(), offered, vec![])).await.unwrap();
    client
}

/// With time enough for a busy machine.
pub(crate) fn patient() -> ClientConfig {
    ClientConfig { default_request_timeout: Some(Duration::from_secs(80)), ..ClientConfig::default() }
}

pub(crate) fn write(uri: &str, data: &str) -> ResourceWriteParams {
    ResourceWriteParams {
        channel: ROOT_RESOURCE_URI.into(),
        meta: None,
        uri: uri.into(),
        data: data.into(),
        encoding: ContentEncoding::Utf8,
        content_type: None,
        create_only: None,
        mode: None,
        position: None,
        if_match: None,
    }
}

pub(crate) fn read(uri: &str) -> ResourceReadParams {
    ResourceReadParams { channel: ROOT_RESOURCE_URI.into(), meta: None, uri: uri.into(), encoding: None }
}
