//! Large messages over slow links: two machines, a fake clock, and a link that takes only so many bytes a second.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail by panicking")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use breakbulk_proto::ahp::{self, Delivery, Negotiated, Role};
use breakbulk_proto::{
    Budget, BudgetConfig, Capacity, CloseReason, Event, Input, Limits, LimitsConfig, Machine, Message, SendError,
    Ticket, Transmit, cep22, stdio,
};
use bytes::Bytes;

/// The large message.
const SIZE: usize = 30_000_000;
/// Bytes that a link holds between its ends: a socket's buffer.
const BUFFER: u64 = 64 << 10;
/// Bytes a second, each with the name that a failure shows.
const RATES: [u64; 3] = [100_000, 300_000, 1_000_000];

/// What passes one way.
#[derive(Default)]
struct Direction {
    /// Frames on the link, each with the time at which its last byte arrives.
    frames: VecDeque<(Instant, Bytes)>,
    bytes: u64,
    free_at: Option<Instant>,
    /// Bytes that were put on it in all.
    carried: u64,
}

/// Two ends and the link between them.
struct World {
    ends: [Box<dyn Machine>; 2],
    /// What each end has sent and the other has not got.
    directions: [Direction; 2],
    events: [Vec<Event>; 2],
    rate: u64,
    now: Instant,
}

impl World {
    fn new(ends: [Box<dyn Machine>; 2], cap: u64, rate: u64, now: Instant) -> Self {
        let mut world = Self { ends, directions: Default::default(), events: Default::default(), rate, now };
        world.ends.iter_mut().for_each(|end| end.handle(Input::Capacity(Capacity::of(cap)), now));
        world
    }

    fn send(&mut self, from: usize, ticket: u64, text: impl Into<Message>) {
        self.ends[from].handle(Input::send(Ticket(ticket), text), self.now);
    }

    /// Runs until nothing moves any more, or either end is closed.
    fn run(&mut self) {
        loop {
            (0..2).for_each(|end| self.fill(end));
            for end in 0..2 {
                while let Some(event) = self.ends[end].poll_event() {
                    self.events[end].push(event);
                }
            }
            if self.events.iter().flatten().any(|event| matches!(event, Event::Closed(_))) {
                return;
            }
            let arrival = |direction: &Direction| direction.frames.front().map(|(at, _)| *at);
            let moves = self.directions.iter().filter_map(arrival).min();
            let timeouts = self.ends.iter().filter_map(|end| end.poll_timeout());
            let Some(next) = moves.into_iter().chain(timeouts).min() else { return };
            self.now = self.now.max(next);
            // What has arrived is drained before a timeout is acted on.
            for to in 0..2 {
                while let Some((_, frame)) = self.directions[1 - to].frames.pop_front_if(|(at, _)| *at <= self.now) {
                    self.directions[1 - to].bytes -= frame.len() as u64;
                    self.ends[to].handle(Input::frame(frame), self.now);
                }
                if self.ends[to].poll_timeout().is_some_and(|at| at <= self.now) {
                    self.ends[to].handle(Input::Timeout, self.now);
                }
            }
        }
    }

    /// Lets an end put frames on the link, as far as that takes them.
    fn fill(&mut self, end: usize) {
        while self.directions[end].bytes < BUFFER {
            match self.ends[end].poll_transmit(self.now) {
                Some(Transmit::Frame { bytes, .. }) => {
                    let (frame, direction) = (bytes.to_bytes(), &mut self.directions[end]);
                    let time = Duration::from_secs_f64(frame.len() as f64 / self.rate as f64);
                    let at = direction.free_at.unwrap_or(self.now).max(self.now) + time;
                    direction.free_at = Some(at);
                    direction.bytes += frame.len() as u64;
                    direction.carried += frame.len() as u64;
                    direction.frames.push_back((at, frame));
                }
                Some(Transmit::Close(reason)) => {
                    // The other end's link tells it.
                    let other = &mut self.ends[1 - end];
                    return other.handle(Input::Close(CloseReason::Peer { code: reason.code() }), self.now);
                }
                None => return,
            }
        }
    }

    /// Messages that have arrived at an end, by length.
    fn arrived(&self, at: usize) -> Vec<usize> {
        let len = |event: &Event| if let Event::Message { message, .. } = event { Some(message.len()) } else { None };
        self.events[at].iter().filter_map(len).collect()
    }

    /// How sending failed at an end, with the error that its caller gets.
    fn failed(&self, at: usize) -> Vec<(SendError, Option<String>)> {
        let text = |reply: &Message| String::from_utf8(reply.to_bytes().to_vec()).unwrap();
        let failed = |event: &Event| match event {
            Event::SendFailed { error, reply, .. } => Some((error.clone(), reply.as_ref().map(text))),
            _ => None,
        };
        self.events[at].iter().filter_map(failed).collect()
    }
}

fn limits(change: impl FnOnce(&mut LimitsConfig)) -> Limits {
    let mut config = LimitsConfig::default();
    change(&mut config);
    Limits::prove(config, &BudgetConfig::default()).unwrap()
}

/// A request of `len` bytes and more, with what allows it to go in parts in any dialect.
fn request(id: u32, len: usize) -> String {
    let text = "large ".repeat(len / 6);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":{{"_meta":{{"progressToken":"t{id}"}},"text":"{text}"}}}}"#
    )
}

fn response(id: u32, len: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#, "large ".repeat(len / 6))
}

fn end(dialect: &str, role: Role, seed: u8) -> Box<dyn Machine> {
    let (account, limits) = (Budget::default().account(Some("peer")), Limits::default());
    match dialect {
        "ahp" => {
            let mut config = ahp::Config::new(role, limits, [seed; 32]);
            (config.agreed, config.delivery) = (Some((&limits).into()), Delivery::Settled);
            Box::new(ahp::Connection::new(config, account))
        }
        "cep22" => Box::new(cep22::Connection::new(cep22::Config { limits, ..cep22::Config::default() }, account)),
        _ => Box::new(stdio::Connection::new(stdio::Config::new(limits, [seed; 32]), account)),
    }
}

/// 30 MB arrive, as a request and as the answer to one, from either end, however slow the link.
fn all_arrives(dialect: &str, cap: u64) {
    for rate in RATES {
        for from in 0..2 {
            let ends = [(Role::Client, 1), (Role::Server, 2)].map(|(role, seed)| end(dialect, role, seed));
            let (to, start) = (1 - from, Instant::now());
            let mut world = World::new(ends, cap, rate, start);
            world.send(from, 1, request(1, SIZE));
            world.run();
            assert_eq!(world.arrived(to), [request(1, SIZE).len()], "{dialect} at {rate} from {from}: the request");
            world.send(to, 1, response(1, SIZE));
            world.run();
            assert_eq!(world.arrived(from), [response(1, SIZE).len()], "{dialect} at {rate} to {from}: the answer");
            let failures: Vec<_> = world
                .events
                .iter()
                .flatten()
                .filter(|event| !is_normal(event))
                .map(|event| format!("{event:?}"))
                .collect();
            assert!(failures.is_empty(), "{dialect} at {rate}: {failures:?}");
            let took = world.now.duration_since(start).as_secs_f64();
            assert!(took >= 2.0 * SIZE as f64 / rate as f64, "{dialect} at {rate}: the link was faster than that");
        }
    }
}

fn is_normal(event: &Event) -> bool {
    matches!(event, Event::Message { .. } | Event::Sent { .. } | Event::Progress(_))
}

#[test]
fn ahp_carries_30_mb_over_slow_links_both_ways() {
    all_arrives("ahp", 900_000);
}

#[test]
fn cep22_carries_30_mb_over_slow_links_both_ways() {
    all_arrives("cep22", 65_536);
}

#[test]
fn stdio_carries_30_mb_over_slow_links_both_ways() {
    all_arrives("stdio", u64::MAX);
}

/// A link between a client and a server that has told it that a group may take 30 s, after their handshake.
fn to_impatient_server(memories: &[Negotiated; 2], rate: u64, now: Instant) -> World {
    let patience = [Duration::from_secs(512), Duration::from_secs(30)];
    let ends = [0, 1].map(|at| {
        let role = [Role::Client, Role::Server][at];
        let limits = limits(|limits| limits.group_timeout = Some(patience[at]));
        let mut config = ahp::Config::new(role, limits, [at as u8; 32]);
        (config.negotiated, config.delivery) = (memories[at].clone(), Delivery::Settled);
        Box::new(ahp::Connection::new(config, Budget::default().account(Some("peer")))) as Box<dyn Machine>
    });
    let mut world = World::new(ends, 900_000, rate, now);
    let hello =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"c","protocolVersions":["1.0.0"]}}"#;
    world.send(0, 1, hello);
    world.run();
    world.send(1, 1, r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":0,"snapshots":[]}}"#);
    world.run();
    world
}

#[test]
fn what_a_peer_with_less_time_cannot_take_is_begun_on_one_link_only_and_each_caller_gets_an_error() {
    let memories = [Negotiated::default(), Negotiated::default()];
    let mut first = to_impatient_server(&memories, 300_000, Instant::now());
    first.send(0, 2, request(2, SIZE));
    first.run();
    // Nobody knew the rate: the server gave the group up, and the next segment of it ended the link.
    let failed = first.failed(0);
    assert!(matches!(failed[..], [(SendError::Disconnected, Some(_))]), "{failed:?}");
    assert!(first.directions[0].carried > 8_000_000);

    let later = first.now + Duration::from_secs(60);
    let mut second = to_impatient_server(&memories, 300_000, later);
    let before = second.directions[0].carried;
    second.send(0, 2, request(2, SIZE));
    second.run();
    assert_eq!(second.directions[0].carried, before, "nothing of it is sent");
    let failed = second.failed(0);
    let [(SendError::TooSlow { size, needed_ms, limit_ms, rate, retry_after_ms }, Some(reply))] = &failed[..] else {
        panic!("{failed:?}")
    };
    assert_eq!((*size, *limit_ms), (request(2, SIZE).len() as u64, 30_000));
    assert!((290_000..310_000).contains(rate) && (125_000..145_000).contains(needed_ms), "{rate} {needed_ms}");
    assert!((1..=240_000).contains(retry_after_ms), "{retry_after_ms}");
    assert!(reply.contains(&format!(r#""retryAfterMs":{retry_after_ms}"#)), "{reply}");
    assert!(reply.contains(&format!("{rate} bytes/s")) && reply.contains(&format!("{needed_ms} ms")), "{reply}");
    // The link lives, and what can finish in time passes.
    second.send(0, 3, request(3, 3_000_000));
    second.run();
    assert_eq!(second.arrived(1).last(), Some(&request(3, 3_000_000).len()));
}

#[test]
fn a_link_that_is_fast_again_takes_a_long_message_once_a_smaller_one_has_passed() {
    let memories = [Negotiated::default(), Negotiated::default()];
    let mut first = to_impatient_server(&memories, 300_000, Instant::now());
    first.send(0, 2, request(2, SIZE));
    first.run();
    let mut second = to_impatient_server(&memories, 50_000_000, first.now);
    second.send(0, 2, request(2, SIZE));
    second.run();
    assert!(matches!(second.failed(0)[..], [(SendError::TooSlow { .. }, Some(_))]), "nothing has shown it yet");
    second.send(0, 3, request(3, 700_000));
    second.run();
    // The next link to the same peer knows it.
    let mut third = to_impatient_server(&memories, 50_000_000, second.now);
    for world in [&mut second, &mut third] {
        world.send(0, 4, request(4, SIZE));
        world.run();
        assert_eq!(world.arrived(1).last(), Some(&request(4, SIZE).len()));
    }
}

#[test]
fn a_server_remembers_how_fast_its_client_was() {
    let memories = [Negotiated::default(), Negotiated::default()];
    let mut first = to_impatient_server(&memories, 300_000, Instant::now());
    // The client is the patient one: 9 MB pass in 40 s, and show the server the rate.
    first.send(
        1,
        2,
        format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"text":"{}"}}}}"#, "x".repeat(9_000_000)),
    );
    first.run();
    assert_eq!(first.arrived(0).len(), 2);
    let mut impatient = limits(|limits| limits.group_timeout = Some(Duration::from_secs(10)));
    let mut config = ahp::Config::new(Role::Server, std::mem::take(&mut impatient), [9; 32]);
    config.negotiated = memories[1].clone();
    let mut server = ahp::Connection::new(config, Budget::default().account(Some("peer")));
    let now = first.now;
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"reconnect","params":{"clientId":"c","capabilities":{"chunking":{"maxIncomingFrameBytes":900000,"maxIncomingMessageBytes":33554432,"groupTimeoutMs":10000}}}}"#;
    server.handle(Input::Capacity(Capacity::of(900_000)), now);
    server.handle(Input::frame(hello), now);
    server.handle(Input::send(Ticket(1), response(1, 9_000_000)), now);
    let mut frames = 0;
    while let Some(Transmit::Frame { bytes, .. }) = server.poll_transmit(now) {
        let text = String::from_utf8(bytes.to_bytes().to_vec()).unwrap();
        assert!(text.contains("-32011") && text.contains("bytesPerSecond"), "{}", &text[..200.min(text.len())]);
        frames += 1;
    }
    assert_eq!(frames, 1, "an error goes in the answer's place");
}
