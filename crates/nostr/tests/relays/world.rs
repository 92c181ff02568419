//! A server and clients over relays, with the machines that a bridge has.

use std::sync::Arc;
use std::time::Duration;

use breakbulk::external::{Acceptor, Connector, LinkRequest, Scheme};
use breakbulk::{BoxLink, Dialer, Driver};
use breakbulk_nostr::{NostrAcceptor, NostrAddress, NostrConnector};
use breakbulk_proto::{Budget, Event, Input, Limits, LimitsConfig, Message, Ticket, cep22};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server of tools: `get` gives a text of the length that it is asked for, `put` tells the length of the text that it is given.
pub(crate) struct Server {
    pub(crate) key: String,
    /// How many clients have come.
    pub(crate) clients: Arc<std::sync::atomic::AtomicUsize>,
    task: JoinHandle<()>,
    _dir: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn options(more: &[(&str, &str)]) -> Vec<(String, String)> {
    more.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn config() -> cep22::Config {
    let limits = Limits::prove(LimitsConfig::default(), &breakbulk_proto::BudgetConfig::default()).unwrap();
    cep22::Config {
        limits,
        acks: true,
        inject_tokens: true,
        // Short, so that a lost end frame is noticed within a test.
        soft_timeout: Duration::from_secs(5),
        accept_timeout: Duration::from_secs(5),
        ..cep22::Config::default()
    }
}

fn driver(link: BoxLink) -> Driver<BoxLink, cep22::Connection> {
    Driver::new(link, cep22::Connection::new(config(), Budget::default().account(Some("tests"))))
}

fn cap() -> u64 {
    Scheme::find("nostr").unwrap().cap.unwrap()
}

impl Server {
    pub(crate) async fn start(relays: &str, more: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key").to_str().unwrap().to_owned();
        let mut options = options(more);
        options.push(("key".into(), path));
        let address = NostrAddress::parse(relays, &options).unwrap();
        let (mut acceptor, notes) = NostrAcceptor::new(address, Dialer::default(), cap()).await.unwrap();
        let key = notes.iter().find_map(|note| note.split_once("?server=")).unwrap().1.to_owned();
        let clients = Arc::<std::sync::atomic::AtomicUsize>::default();
        let counted = Arc::clone(&clients);
        let task = tokio::spawn(async move {
            while let Some(peer) = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await {
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                tokio::spawn(answer(driver(peer.link)));
            }
        });
        Self { key, clients, task, _dir: dir }
    }

    pub(crate) fn client_count(&self) -> usize {
        self.clients.load(std::sync::atomic::Ordering::SeqCst)
    }
}

async fn answer(mut driver: Driver<BoxLink, cep22::Connection>) {
    let mut ticket = 0;
    while let Some(event) = driver.next().await {
        let Event::Message { message, .. } = event else { continue };
        let Ok(request) = serde_json::from_slice::<Value>(&message.to_bytes()) else { continue };
        let Some(id) = request.get("id") else { continue };
        let result = match request["method"].as_str() {
            Some("get") => {
                let unit = request["params"]["unit"].as_str().unwrap_or("x");
                json!({"text": unit.repeat(usize::try_from(request["params"]["count"].as_u64().unwrap()).unwrap())})
            }
            Some("put") => json!({"len": request["params"]["text"].as_str().map(str::len)}),
            _ => json!({}),
        };
        ticket += 1;
        driver.handle(Input::send(Ticket(ticket), json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()));
    }
}

/// A client, whose connector can be used again.
pub(crate) struct Client {
    driver: Driver<BoxLink, cep22::Connection>,
    next: u64,
}

impl Client {
    pub(crate) async fn connect(relays: &str, server: &str, more: &[(&str, &str)]) -> Self {
        let mut options = options(more);
        options.push(("server".into(), server.into()));
        let address = NostrAddress::parse(relays, &options).unwrap();
        let connector = NostrConnector::new(address, Dialer::default()).unwrap();
        let request = LinkRequest::new(cap(), 4 << 20);
        let link = timeout(PATIENCE, connector.connect(request)).await.unwrap().unwrap();
        Self { driver: driver(link), next: 0 }
    }

    /// Sends a request without waiting for its answer.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        self.driver.handle(Input::send(Ticket(self.next), request.to_string()));
        self.next
    }

    /// Sends a request while nothing is read, and waits until it has left whole.
    pub(crate) async fn send_unread(&mut self, method: &str, params: Value) -> u64 {
        self.driver.set_reading(false);
        let id = self.ask(method, params);
        let sent = timeout(PATIENCE, async {
            loop {
                match self.driver.next().await.expect("the link is open") {
                    Event::Sent { ticket } if ticket == Ticket(id) => return,
                    Event::SendFailed { error, .. } => panic!("{error}"),
                    _ => {}
                }
            }
        });
        sent.await.expect("the request leaves");
        self.driver.set_reading(true);
        id
    }

    /// The answer to a request: its result, or the name of the error that stands for it.
    pub(crate) async fn answer(&mut self, id: u64) -> Result<Value, String> {
        let answer = timeout(PATIENCE, async {
            loop {
                let message = match self.driver.next().await.expect("the link is open") {
                    Event::Message { message, .. } => message,
                    Event::SendFailed { reply: Some(reply), .. } | Event::ReceiveFailed { reply: Some(reply), .. } => {
                        reply
                    }
                    Event::Closed(reason) => panic!("{reason}"),
                    _ => continue,
                };
                let message = parsed(&message);
                if message["id"] == id {
                    return message;
                }
            }
        });
        let answer = answer.await.expect("each request has an answer in time");
        match answer.get("error") {
            Some(error) => {
                Err(error["data"]["reason"].as_str().unwrap_or_else(|| error["message"].as_str().unwrap()).to_owned())
            }
            None => Ok(answer["result"].clone()),
        }
    }

    pub(crate) async fn get(&mut self, unit: &str, count: usize) -> Result<String, String> {
        let id = self.ask("get", json!({"unit": unit, "count": count}));
        Ok(self.answer(id).await?["text"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn put(&mut self, text: &str) -> Result<usize, String> {
        let id = self.ask("put", json!({"text": text}));
        Ok(usize::try_from(self.answer(id).await?["len"].as_u64().unwrap()).unwrap())
    }
}

fn parsed(message: &Message) -> Value {
    serde_json::from_slice(&message.to_bytes()).unwrap()
}
