//! A client that says what a test wants it to say, and reads only when the test does.

use std::time::Duration;

use breakbulk::{AnyMachine, BoxLink, Dialect, Driver, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, CloseReason, Event, Input, Limits, Message, Ticket};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::host::Host;

/// A client of a host.
pub(crate) struct Client {
    driver: Driver<BoxLink, AnyMachine>,
    ids: u64,
}

impl Client {
    /// Connects and introduces itself.
    pub(crate) async fn new(host: &Host, dialect: Dialect, id: &str) -> Self {
        let setup = Setup::new(dialect, Role::Client, Limits::default());
        let machine = setup.machine(Budget::default().account(Some("host"))).unwrap();
        let mut client = Self { driver: Driver::new(host.dial().await, machine), ids: 0 };
        let hello = json!({"channel": "ahp-root://", "clientId": id, "protocolVersions": ["1.0.0"]});
        client.call("initialize", hello).await.unwrap();
        client
    }

    /// Makes a session, and says the name of its chat.
    pub(crate) async fn session(&mut self, session: &str) -> String {
        self.call("createSession", json!({"channel": session})).await.unwrap();
        let shown = self.call("subscribe", json!({"channel": session})).await.unwrap();
        self.call("unsubscribe", json!({"channel": session})).await.unwrap();
        shown["snapshot"]["state"]["defaultChat"].as_str().unwrap().to_owned()
    }

    /// Asks, and returns the id by which the answer is known.
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> u64 {
        self.ask_with(method, Message::from(params.to_string()))
    }

    /// As [`ask`](Self::ask), with params that may share their bytes with others.
    pub(crate) fn ask_with(&mut self, method: &str, params: Message) -> u64 {
        self.ids += 1;
        let front = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":"#, self.ids);
        let parts = [Bytes::from(front)].into_iter().chain(params.parts().iter().cloned());
        let message: Message = parts.chain([Bytes::from_static(b"}")]).collect();
        self.driver.handle(Input::send(Ticket(self.ids), message));
        self.ids
    }

    /// Asks, and passes over everything but the answer.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value, String> {
        let id = self.ask(method, &params);
        self.answer(id).await
    }

    /// The answer to what was asked; what went wrong, if it is an error or the link was closed.
    pub(crate) async fn answer(&mut self, id: u64) -> Result<Value, String> {
        loop {
            let event = tokio::time::timeout(Duration::from_secs(120), self.driver.next()).await;
            match event.map_err(|_| "no answer in two minutes".to_owned())? {
                Some(Event::Message { message, .. }) => {
                    let mut answer: Value = serde_json::from_slice(&message.to_bytes()).unwrap();
                    if answer.get("method").is_none() && answer["id"] == json!(id) {
                        return answer.get_mut("result").map(Value::take).ok_or_else(|| answer["error"].to_string());
                    }
                }
                Some(Event::Closed(reason)) => return Err(closed(&reason)),
                Some(_) => {}
                None => return Err("closed".into()),
            }
        }
    }

    /// Writes what it has to say and reads nothing, for so long.
    pub(crate) async fn do_not_read(&mut self, time: Duration) {
        self.driver.set_reading(false);
        let sending = async { while self.driver.next().await.is_some() {} };
        drop(tokio::time::timeout(time, sending).await);
    }
}

/// Why a link was closed, as the peer said it.
fn closed(reason: &CloseReason) -> String {
    format!("closed: {} {reason}", reason.code())
}
