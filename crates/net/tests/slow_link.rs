//! Thirty megabytes over real sockets that take a megabyte a second. It takes a minute, so it has a command:
//! `cargo xtask slow`. The same with a fake clock, at more rates, is in `breakbulk-proto`.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "../benches/common/throttle.rs"]
mod throttle;

use breakbulk::Driver;
use breakbulk::link::{WebSocket, WebSocketConfig, tune};
use breakbulk_proto::ahp::{self, Connection, Delivery, Role};
use breakbulk_proto::{Budget, Event, Input, Limits, LimitsConfig, Message, Ticket};
use tokio::net::{TcpListener, TcpStream};

const CAP: u64 = 900_000;
const RATE: f64 = 1e6;

type Endpoint = Driver<WebSocket<TcpStream>, Connection>;

async fn ends() -> [Endpoint; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = throttle::throttle(listener.local_addr().unwrap(), RATE).await;
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap().0);
    let config = WebSocketConfig { max_frame_bytes: CAP, cap: CAP, ..WebSocketConfig::default() };
    tune(&client, &config);
    tune(&server, &config);
    let budget = Budget::default();
    let limits = LimitsConfig { max_frame_bytes: CAP, ..LimitsConfig::default() };
    let limits = Limits::prove(limits, &budget.config()).unwrap();
    let machine = |role| {
        let mut config = ahp::Config::new(role, limits, [7; 32]);
        (config.agreed, config.delivery) = (Some((&limits).into()), Delivery::Settled);
        Connection::new(config, budget.account(Some("peer")))
    };
    let (near, far) = (machine(Role::Client), machine(Role::Server));
    [Driver::new(WebSocket::client(client, &config), near), Driver::new(WebSocket::server(server, &config), far)]
}

/// Carries a message from one end to the other.
async fn carry(from: &mut Endpoint, to: &mut Endpoint, message: Message) {
    from.handle(Input::send(Ticket(1), message.clone()));
    loop {
        tokio::select! {
            event = from.next() => match event.unwrap() {
                Event::Sent { .. } | Event::Progress(_) => {}
                other => panic!("{other:?}"),
            },
            event = to.next() => match event.unwrap() {
                Event::Message { message: arrived, .. } => return assert!(arrived == message),
                Event::Progress(_) => {}
                other => panic!("{other:?}"),
            },
        }
    }
}

#[tokio::test]
#[ignore = "takes more than a minute of real time"]
async fn thirty_megabytes_pass_a_link_of_a_megabyte_a_second_both_ways() {
    let [mut client, mut server] = ends().await;
    let text = "x".repeat(30_000_000);
    let request = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"resourceWrite","params":["{text}"]}}"#);
    let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":["{text}"]}}"#);
    carry(&mut client, &mut server, request.into()).await;
    carry(&mut server, &mut client, answer.into()).await;
}
