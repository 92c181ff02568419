//! Machines on a link, and what passes between them.

use std::time::Duration;

use breakbulk::link::Link;
use breakbulk::{AnyMachine, Arrival, Dialect, Driver, LinkError, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, BudgetConfig, Event, Input, Limits, LimitsConfig, Message, Tag, Ticket, Transmit};
use futures_util::{SinkExt, StreamExt};

/// Longer than anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Above any frame here.
pub(crate) const MAX_FRAME: u64 = 64 << 20;

pub(crate) fn machine(dialect: Dialect) -> AnyMachine {
    let limits = Limits::prove(LimitsConfig::default(), &BudgetConfig::default()).unwrap();
    let mut setup = Setup::new(dialect, Role::Client, limits);
    setup.framing = breakbulk_proto::plain::Framing::Lines;
    setup.machine(Budget::default().account(Some("someone"))).unwrap()
}

/// A request of so many bytes, over several lines.
pub(crate) fn request(n: usize, len: usize) -> Message {
    let text = "break bulk ".repeat(len / 11);
    format!("{{\"jsonrpc\":\"2.0\",\n \"id\":{n},\"method\":\"m\",\"params\":{{\"text\":\"{text}\"}}}}").into()
}

/// Sends messages, and gathers as many.
pub(crate) async fn exchange<L: Link>(link: L, dialect: Dialect, lens: &[usize]) -> Vec<Message> {
    let mut driver = Driver::new(link, machine(dialect));
    for (n, len) in lens.iter().enumerate() {
        driver.handle(Input::send(Ticket(n as u64), request(n, *len)));
    }
    let (mut arrived, mut sent) = (Vec::new(), 0);
    while arrived.len() < lens.len() || sent < lens.len() {
        match driver.next().await.expect("the link is open") {
            Event::Message { message, .. } => arrived.push(message),
            Event::Sent { .. } => sent += 1,
            Event::Progress(_) => {}
            other => panic!("{other:?}"),
        }
    }
    arrived
}

/// Whether these are the requests that were sent, whatever their order, and but for their line ends.
pub(crate) fn assert_arrived(arrived: &[Message], lens: &[usize]) {
    let compact = |message: &Message| -> serde_json::Value { serde_json::from_slice(&message.to_bytes()).unwrap() };
    let mut arrived: Vec<_> = arrived.iter().map(compact).collect();
    arrived.sort_by_key(|message| message["id"].as_u64());
    let want: Vec<_> = lens.iter().enumerate().map(|(n, len)| compact(&request(n, *len))).collect();
    assert!(arrived == want, "{} of {} arrived, or other bytes", arrived.len(), want.len());
}

pub(crate) fn frame(text: impl Into<Message>) -> Transmit {
    Transmit::Frame { tag: Tag::default(), bytes: text.into(), meta: Default::default() }
}

pub(crate) async fn send(link: &mut (impl Link + ?Sized), text: &'static str) {
    tokio::time::timeout(LONG, link.send(frame(text))).await.unwrap().unwrap();
}

/// The next thing that a link brings.
pub(crate) async fn next(link: &mut (impl Link + ?Sized)) -> Result<Arrival, LinkError> {
    tokio::time::timeout(LONG, link.next()).await.unwrap().expect("the link is open")
}

/// The next frame, as text.
pub(crate) async fn next_text(link: &mut (impl Link + ?Sized)) -> String {
    match next(link).await.unwrap() {
        Arrival::Frame { bytes, .. } => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// All frames up to the close, and the close.
pub(crate) async fn rest(link: &mut (impl Link + ?Sized)) -> (Vec<String>, u16, String) {
    let mut frames = Vec::new();
    loop {
        match next(link).await.unwrap() {
            Arrival::Frame { bytes, .. } => frames.push(String::from_utf8(bytes.to_vec()).unwrap()),
            Arrival::Closed { code, text } | Arrival::Exited { code, text } => return (frames, code, text),
            Arrival::Ended => return (frames, 1000, String::new()),
            other => panic!("{other:?}"),
        }
    }
}
