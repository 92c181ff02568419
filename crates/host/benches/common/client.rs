//! A client: a machine on a WebSocket, and what it asks for.

use std::net::SocketAddr;

use breakbulk::{AnyMachine, BoxLink, Dialect, Dialer, Driver, Setup};
use breakbulk_proto::ahp::{Delivery, Role};
use breakbulk_proto::plain::Check;
use breakbulk_proto::{Budget, BudgetConfig, Event, Input, Limits, LimitsConfig, Message, Ticket};
use serde_json::{Value, json};

/// The longest frame that a client takes.
pub(crate) const CAP: u64 = 900_000;

/// One client.
pub(crate) struct Client {
    driver: Driver<BoxLink, AnyMachine>,
    asked: u64,
}

impl Client {
    /// One that takes segments, of at most [`CAP`].
    pub(crate) async fn dial(address: SocketAddr) -> Self {
        let limits = LimitsConfig { max_frame_bytes: CAP, ..LimitsConfig::default() };
        let limits = Limits::prove(limits, &BudgetConfig::default()).unwrap();
        let mut setup = Setup::new(Dialect::Ahp, Role::Client, limits);
        setup.delivery = Delivery::Settled;
        Self::with(address, &setup).await
    }

    /// One that takes whole messages, and reads only the front of each, or checks all of it.
    pub(crate) async fn plain(address: SocketAddr, front_only: bool) -> Self {
        let mut setup = Setup::new(Dialect::Plain, Role::Client, Limits::default());
        setup.check = if front_only { Check::Front } else { Check::Whole };
        Self::with(address, &setup).await
    }

    async fn with(address: SocketAddr, setup: &Setup) -> Self {
        let address = format!("ws://{address}/").parse().unwrap();
        let link = Dialer::default().dial(&address).await.unwrap();
        let machine = setup.machine(Budget::default().account(Some("host"))).unwrap();
        Self { driver: Driver::new(link, machine), asked: 0 }
    }

    /// Introduces itself, and follows these channels.
    pub(crate) async fn initialize(&mut self, id: &str, channels: &[&str]) -> Message {
        let params = json!({"channel": "ahp-root://", "protocolVersions": ["1.0.0"], "clientId": id,
            "initialSubscriptions": channels});
        self.call("initialize", &params).await
    }

    /// Asks for something, and waits for the answer; what comes before that is passed over.
    pub(crate) async fn call(&mut self, method: &str, params: &Value) -> Message {
        self.asked += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params});
        self.driver.handle(Input::send(Ticket(self.asked), request.to_string()));
        loop {
            let message = self.next().await.unwrap();
            // Whoever writes these is our own host.
            let mut front = [0; 64];
            let len = copy_front(&message, &mut front);
            if !contains(&front[..len], b"\"method\"") {
                return message;
            }
        }
    }

    /// The next message; `None` when the link is closed.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            match self.driver.next().await? {
                Event::Message { message, .. } => return Some(message),
                Event::SendFailed { error, .. } => panic!("not sent: {error}"),
                _ => {}
            }
        }
    }
}

fn copy_front(message: &Message, front: &mut [u8]) -> usize {
    let mut len = 0;
    for slice in message.slices() {
        let part = slice.len().min(front.len() - len);
        front[len..len + part].copy_from_slice(&slice[..part]);
        len += part;
    }
    len
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}
