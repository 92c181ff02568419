//! The official `ahp` client with 17 MB messages both ways, over a link that takes frames of 900,000 bytes.
//!
//! ```text
//! cargo run --example ahp_client --features ahp
//! ```
//!
//! The client is the official crate, unmodified; only its transport is ours. The host is a toy inside the process, with
//! our machine in front of it. Over a socket, `Segmented::new` wraps the official WebSocket transport, and
//! `Segmented::over_link` takes our own.

use std::collections::HashMap;

use ahp::{Client, ClientConfig};
use breakbulk::ahp::{Negotiated, Segmented};
use breakbulk::{Dialect, Driver, Link, Setup, link};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, Capacity, Event, Input, Limits, Machine, Message, Ticket};
use serde_json::{Value, json};

/// The longest frame that the link takes: a little less than Azure Web PubSub does.
const CAP: u64 = 900_000;
/// More than the official WebSocket transport takes in one frame, which is 16 MiB.
const SIZE: usize = 17_000_000;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (near, far) = link::pair(&Capacity::of(CAP), 8);
    let setup = Setup::new(Dialect::Ahp, Role::Server, Limits::default());
    let machine = setup.machine(Budget::default().account(Some("the client")))?;
    tokio::spawn(host(Driver::new(far, machine)));

    // This is all that a client needs. Keep `negotiated`, and pass it to the next connection.
    let negotiated = Negotiated::default();
    let transport = Segmented::over_link(near, Limits::default(), negotiated.clone());
    let ended = transport.ended();
    let client = Client::connect(transport, ClientConfig::default()).await?;

    let hello = client.initialize("example".into(), vec!["1.0.0".into()], vec![]).await?;
    println!("connected with version {}", hello.protocol_version);

    let text = "積荷 🚢 ".repeat(SIZE / "積荷 🚢 ".len());
    let file = json!({"channel": "ahp-root://", "uri": "file:///manifest", "data": text, "encoding": "utf-8"});
    client.request::<_, Value>("resourceWrite", file).await?;
    println!("wrote {} bytes, in frames of at most {CAP}", text.len());

    let file = json!({"channel": "ahp-root://", "uri": "file:///manifest"});
    let read: Value = client.request("resourceRead", file).await?;
    assert_eq!(read["data"], text);
    println!("read the same {} bytes back", text.len());

    client.shutdown().await;
    println!("closed: {}", ended.wait().await);
    Ok(())
}

/// A toy host: it answers, and keeps files in memory. It has never heard of segments.
async fn host(mut driver: Driver<impl Link, impl Machine>) {
    let mut files = HashMap::new();
    let mut ticket = 0;
    while let Some(event) = driver.next().await {
        let Event::Message { message, .. } = event else { continue };
        if let Some(answer) = answer(&message, &mut files) {
            ticket += 1;
            driver.handle(Input::send(Ticket(ticket), answer.to_string()));
        }
    }
}

/// The answer to a request; `None` for anything else.
fn answer(message: &Message, files: &mut HashMap<String, Value>) -> Option<Value> {
    let mut request: Value = serde_json::from_slice(&message.to_bytes()).ok()?;
    let uri = request["params"]["uri"].as_str().unwrap_or_default().to_owned();
    let result = match request["method"].as_str()? {
        "initialize" => json!({"protocolVersion": "1.0.0", "serverSeq": 0, "snapshots": []}),
        "resourceWrite" => {
            files.insert(uri, request["params"]["data"].take());
            json!({})
        }
        "resourceRead" => json!({"data": files.get(&uri), "encoding": "utf-8"}),
        _ => Value::Null,
    };
    Some(json!({"jsonrpc": "2.0", "id": request.get("id")?, "result": result}))
}
