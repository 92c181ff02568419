//! A client that reconnects by itself, of a host that `breakbulk serve` runs.
//!
//! ```text
//! cargo run --release -- serve                            (prints the address with its token)
//! cargo run -p breakbulk --example client -- ADDRESS      (ws://127.0.0.1:4140/ahp#token=TOKEN)
//! ```
//!
//! It follows the list of sessions, prints what happens for a while, asks the host for the sessions, and closes. Stop the host
//! and start it again meanwhile: the client reconnects and goes on where it was.

use std::time::Duration;

use breakbulk::client::{Client, Config, ConnectError, Event, Events};
use breakbulk::{Address, BoxLink, Dialer};

/// The channel that lists agents and sessions.
const ROOT: &str = "ahp-root://";

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: client ADDRESS [SECONDS]; `breakbulk serve` prints the address")?;
    let seconds = arguments.next().map_or(Ok(5), |seconds| seconds.parse())?;
    let address: Address = address.parse()?;

    // Called for each attempt to connect. An error that would come again, such as a wrong token, ends the client.
    let dialer = Dialer::default();
    let dial = move || {
        let (dialer, address) = (dialer.clone(), address.clone());
        async move { Ok::<BoxLink, ConnectError>(dialer.dial(&address).await?) }
    };
    // By its id, and the number of an action, a client tells its own actions from those of others: so it has to be new.
    let mut config = Config::new(format!("example-{}", std::process::id()));
    config.subscriptions = vec![ROOT.into()];
    let (client, events) = Client::start(dial, config);
    // Events have a task of their own, because answers wait behind events that nobody takes.
    let printer = tokio::spawn(print(events));

    let sessions = client.request("listSessions", format!(r#"{{"channel":"{ROOT}"}}"#)).await?;
    println!("the host answers with {} bytes: {}", sessions.len(), front(&sessions.to_bytes()));
    tokio::time::sleep(Duration::from_secs(seconds)).await;

    client.close().await;
    println!("closed: {:?}", *client.state().borrow());
    printer.await?;
    Ok(())
}

/// Prints what happens until the client is closed.
async fn print(mut events: Events) {
    while let Some(event) = events.next().await {
        match event {
            Event::Started { .. } => println!("a conversation begins"),
            Event::Resumed => println!("the connection is back; what was missed follows"),
            Event::Snapshot { channel, from_seq, snapshot } => {
                println!("the state of {channel} as of seq {from_seq}: {} bytes", snapshot.len());
            }
            Event::Action { channel, seq, envelope, .. } => {
                println!("action {seq} on {channel}: {}", front(&envelope.to_bytes()));
            }
            other => println!("{other:?}"),
        }
    }
}

/// The first characters of a text.
fn front(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(120).collect()
}
