//! A v2 client on a WebSocket.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;

use breakbulk::{Arrival, BoxLink, Dialer};
use breakbulk_proto::{Message, Meta, Tag, Transmit};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use serde_json::{Value, json};

/// One client.
pub(crate) struct Client(BoxLink);

impl Client {
    /// One that has said hello.
    pub(crate) async fn dial(address: SocketAddr) -> Self {
        let address = format!("ws://{address}/").parse().unwrap();
        let mut client = Self(Dialer::default().dial(&address).await.unwrap());
        client.say(json!({"type": "hello", "protocolVersion": 2})).await;
        client.until(|event| event["type"] == "client_id").await;
        client
    }

    pub(crate) async fn say(&mut self, command: Value) {
        let bytes = Message::from(command.to_string());
        let frame = Transmit::Frame { tag: Tag::default(), bytes, meta: Meta::default() };
        std::future::poll_fn(|cx| {
            let mut link = Pin::new(&mut self.0);
            std::task::ready!(link.as_mut().poll_ready(cx))?;
            link.as_mut().start_send(frame.clone())?;
            link.poll_flush(cx)
        })
        .await
        .unwrap();
    }

    /// The next event, as it came; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        match std::future::poll_fn(|cx| Pin::new(&mut self.0).poll_next(cx)).await {
            Some(Ok(Arrival::Frame { bytes, .. })) => Some(bytes),
            _ => None,
        }
    }

    /// Takes what comes until it is this.
    pub(crate) async fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let event = serde_json::from_slice(&self.next().await.unwrap()).unwrap();
            if is_it(&event) {
                return event;
            }
        }
    }

    /// Makes a session with the scripted agent.
    pub(crate) async fn open(&mut self, dir: &Path) -> String {
        self.say(json!({"type": "open", "agent": "claude", "cwd": dir.join("root")})).await;
        let ack = self.until(|event| event["type"] == "ack").await;
        ack["sessionId"].as_str().unwrap().to_owned()
    }

    /// Watches a session from nothing, and has all of it.
    pub(crate) async fn watch(&mut self, session: &str) {
        self.say(json!({"type": "watch", "sessionId": session})).await;
        self.until(|event| event["seq"].is_u64() && event["more"].is_null()).await;
    }
}
