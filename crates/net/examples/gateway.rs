//! A gateway in front of a host that has never heard of segments: 3 MB each way, where the client's link takes 64 KiB a frame.
//!
//! ```text
//! cargo run -p breakbulk --example gateway
//! ```
//!
//! Everything is inside the process, so that it can be read at once. With sockets, the links come from `Listener` and `Dialer`;
//! `breakbulk bridge` is this, with settings.

use std::future::pending;

use breakbulk::gateway::{Endpoint, Gateway, Passed, SideId};
use breakbulk::{Dialect, Driver, Link, Setup, link};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, BudgetConfig, Capacity, Event, Input, Kind, Limits, Machine, Message, Ticket};

/// The longest frame on the client's link.
const CAP: u64 = 64 << 10;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (client_link, downstream) = link::pair(&Capacity::of(CAP), 8);
    let (upstream, host_link) = link::pair(&Capacity::of(u64::MAX), 8);

    // Towards clients the gateway is a server that speaks in segments; towards the host it is a plain client.
    let near_setup = Setup::new(Dialect::Ahp, Role::Server, Limits::default());
    let far_setup = Setup::new(Dialect::Plain, Role::Client, Limits::default());
    let gateway = Gateway::new(near_setup, far_setup, BudgetConfig::default())?;
    tokio::spawn(async move {
        let (downstream, upstream) = (Endpoint::new(downstream, "the client"), Endpoint::new(upstream, "the host"));
        gateway.join(downstream, upstream, Some("someone"), pending(), Some(Box::new(print))).await
    });

    let account = || Budget::default().account(Some("example"));
    let host = Setup::new(Dialect::Plain, Role::Server, Limits::default()).machine(account())?;
    tokio::spawn(echo(Driver::new(host_link, host)));

    let client = Setup::new(Dialect::Ahp, Role::Client, Limits::default()).machine(account())?;
    let mut client = Driver::new(client_link, client);
    // From this handshake the client and the gateway learn that the other side can put segments together.
    let hello = r#""initialize","params":{"channel":"ahp-root://","protocolVersions":["1.0.0"],"clientId":"example"}"#;
    ask(&mut client, 1, hello).await.ok_or("no answer")?;
    let text = "break bulk ".repeat(3_000_000 / 11);
    let answer = ask(&mut client, 2, &format!(r#""echo","params":{{"text":"{text}"}}"#)).await.ok_or("no answer")?;
    assert!(answer.len() > text.len(), "all of it has come back");
    Ok(())
}

/// Prints a message that has passed the gateway.
fn print(passed: Passed) {
    let (to, frames) = (if passed.to == SideId::Upstream { "host" } else { "client" }, passed.frames);
    let name = passed.method.as_deref().unwrap_or("the response");
    println!(
        "to the {to}: {name}, {} bytes, came in {} frame(s) and left in {}",
        passed.size, frames.received, frames.sent
    );
}

/// Sends a request, and waits for its answer.
async fn ask(client: &mut Driver<impl Link, impl Machine>, id: u64, method: &str) -> Option<Message> {
    client.handle(Input::send(Ticket(id), format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method}}}"#)));
    while let Some(event) = client.next().await {
        if let Event::Message { message, .. } = event {
            return Some(message);
        }
    }
    None
}

/// A host that answers each request with the params of the request.
async fn echo(mut driver: Driver<impl Link, impl Machine>) {
    let mut ticket = 0;
    while let Some(event) = driver.next().await {
        let Event::Message { message, envelope, .. } = event else { continue };
        let (Kind::Request, Some(id), Some(params)) = (envelope.kind(), envelope.id(&message), envelope.params())
        else {
            continue;
        };
        let (id, params) = (String::from_utf8_lossy(&id), message.read(params.span));
        // The answer to `initialize` has to name a version.
        let result = String::from_utf8_lossy(&params).replacen('{', r#"{"protocolVersion":"1.0.0","serverSeq":0,"#, 1);
        ticket += 1;
        driver.handle(Input::send(Ticket(ticket), format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)));
    }
}
