//! The bare machine: a message of 3 MB from one machine to another, in frames of at most 64 KiB, without a socket.
//!
//! ```text
//! cargo run -p breakbulk-proto --example machine
//! ```
//!
//! A machine does no IO. This program is the driver of both: it takes frames out of the one with `poll_transmit`, passes them
//! to the other with `handle`, and polls for events. It also answers the handshake, from which both machines learn that the
//! other side can put segments together.

use std::time::Instant;

use breakbulk_proto::ahp::{Config, Connection, Role};
use breakbulk_proto::{Budget, Capacity, Event, Input, Kind, Limits, Machine, Message, Ticket, Transmit};

/// The longest frame that the link between the two takes.
const CAP: u64 = 64 << 10;

pub(crate) fn main() {
    let budget = Budget::default();
    let machine = |role, principal| {
        // The seed makes the names of groups; a real program uses random bytes.
        let config = Config::new(role, Limits::default(), [7; 32]);
        let mut machine = Connection::new(config, budget.account(Some(principal)));
        machine.handle(Input::Capacity(Capacity::of(CAP)), Instant::now());
        machine
    };
    let mut client = machine(Role::Client, "the client");
    let mut server = machine(Role::Server, "the server");

    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","protocolVersions":["1.0.0"],"clientId":"example"}}"#;
    client.handle(Input::send(Ticket(1), hello), Instant::now());
    carry("client to server", &mut client, &mut server);
    let welcome = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":0,"snapshots":[]}}"#;
    server.handle(Input::send(Ticket(1), welcome), Instant::now());
    carry("server to client", &mut server, &mut client);

    let text = "break bulk ".repeat(3_000_000 / 11);
    let action = format!(
        r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"ahp-chat:/1","serverSeq":1,"action":{{"type":"chat/delta","content":"{text}"}}}}}}"#
    );
    server.handle(Input::send(Ticket(2), action.clone()), Instant::now());
    let arrived = carry("server to client", &mut server, &mut client);
    assert_eq!(arrived, [Message::from(action)], "what was sent has arrived, byte for byte");
    println!("the client may resume from seq {:?}", client.cursor());
}

/// Moves frames from one machine to the other until there are no more, and returns the messages that arrived.
fn carry(direction: &str, from: &mut Connection, to: &mut Connection) -> Vec<Message> {
    let (mut frames, mut longest, mut arrived) = (0, 0, Vec::new());
    while let Some(Transmit::Frame { bytes, .. }) = from.poll_transmit(Instant::now()) {
        frames += 1;
        longest = longest.max(bytes.len());
        to.handle(Input::frame(bytes.to_bytes()), Instant::now());
        while let Some(event) = to.poll_event() {
            if let Event::Message { message, envelope, .. } = event {
                let name = match envelope.kind() {
                    Kind::Response => "the response".into(),
                    _ => envelope.method(&message).unwrap_or_default(),
                };
                println!(
                    "{direction}: {name}, {} bytes in {frames} frame(s) of at most {longest} bytes",
                    message.len()
                );
                arrived.push(message);
            }
        }
    }
    // What the sender reports, such as `Event::Sent`, has to be polled too.
    while from.poll_event().is_some() {}
    arrived
}
