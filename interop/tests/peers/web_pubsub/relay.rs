//! Our relay in this process, so that tests can cut its connections.

use std::time::Duration;

use breakbulk::listen::ListenConfig;
use breakbulk::{AccessPolicy, Listener};
use breakbulk_webpubsub::relay::{Relay, RelayConfig};
use breakbulk_webpubsub::{AccessKey, ConnectionString, Endpoint};
use tokio_util::sync::CancellationToken;

use crate::text::Dice;

/// A relay that runs until this is dropped.
pub(super) struct Running {
    pub(super) relay: Relay,
    pub(super) connection_string: String,
    stop: CancellationToken,
}

impl Running {
    /// A relay with the limits of the service, that keeps clients for so long.
    pub(super) async fn start(keep: Duration) -> Self {
        let key = AccessKey::generate().unwrap();
        let mut config = RelayConfig::new(key.clone());
        config.keep = keep;
        let cap = config.cap;
        let relay = Relay::new(config);
        let mut listen = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open());
        (listen.gate, listen.pages) = (Some(relay.gate()), Some(relay.pages()));
        listen.link.max_frame_bytes = cap;
        let listener = Listener::bind(listen).await.unwrap();
        let endpoint = Endpoint { is_tls: false, host: "127.0.0.1".into(), port: listener.local_address().port() };
        let (stop, serving) = (CancellationToken::new(), relay.clone());
        let stopping = stop.clone();
        tokio::spawn(async move { serving.serve(listener, stopping).await });
        Self { relay, connection_string: ConnectionString { endpoint, key }.reveal(), stop }
    }

    /// The port on which it listens.
    pub(super) fn port(&self) -> u16 {
        self.connection_string.parse::<ConnectionString>().unwrap().endpoint.port
    }

    /// The address of the hub of the tests, for who connects through another port.
    pub(super) fn address_at(&self, port: u16) -> String {
        let ConnectionString { endpoint, key } = self.connection_string.parse().unwrap();
        let string = ConnectionString { endpoint: Endpoint { port, ..endpoint }, key };
        format!("webpubsub:{}?hub=agents", string.reveal())
    }

    /// Cuts one connection after the other, at moments that the dice choose. Returns the most bytes that ever waited in the relay.
    pub(super) async fn cut_some(&self, dice: &mut Dice, cuts: u64, most_ms: u64) -> u64 {
        let (mut done, mut most) = (0, 0);
        while done < cuts {
            tokio::time::sleep(Duration::from_millis(20 + dice.below(most_ms))).await;
            most = most.max(self.relay.stats().queued_bytes);
            let mut connected = self.relay.connected();
            connected.sort();
            if connected.is_empty() {
                continue;
            }
            let picked = connected.swap_remove(dice.below(connected.len() as u64) as usize);
            done += self.relay.cut(|id| id == picked) as u64;
        }
        most
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
