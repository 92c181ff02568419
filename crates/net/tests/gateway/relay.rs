//! Ways that close: at frames over a cap that nobody declared, or at random.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use breakbulk::gateway::Gateway;
use breakbulk::link::{self, InProcessLink};
use breakbulk::{Acked, Arrival, Link, LinkError, LinkStatus, ReceiveMemory};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Capacity, CloseReason, Limits, Message, Transmit};
use futures_core::Stream;
use futures_sink::Sink;
use tokio::time::{Instant, Sleep};

use crate::world::{App, INITIALIZE, WELCOME, gateways, join, join_as, plain_gateway, request};

/// The longest frame that each gateway takes.
const MAX_FRAME: u64 = 900_000;

/// What makes a way close.
#[derive(Clone, Copy)]
enum Trap {
    /// A frame longer than this; with a close that says so, or without a word.
    Cap {
        bytes: usize,
        says: bool,
    },
    /// The same, with a close that says so three seconds later.
    Late(usize),
    /// So many frames.
    After(usize),
    /// So many bytes.
    AfterBytes(usize),
    Never,
}

/// A link with a trap in it.
struct Trapped {
    link: InProcessLink,
    trap: Trap,
    frames: usize,
    bytes: usize,
    sprung: bool,
    /// When it is said that a frame was too long.
    timer: Pin<Box<Sleep>>,
}

impl Trapped {
    fn new(link: InProcessLink, trap: Trap) -> Self {
        Self { link, trap, frames: 0, bytes: 0, sprung: false, timer: Box::pin(tokio::time::sleep(Duration::ZERO)) }
    }
}

impl Link for Trapped {
    fn capacity(&self) -> Capacity {
        self.link.capacity()
    }

    fn status(&self) -> LinkStatus {
        self.link.status()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.link.receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.link.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        self.link.end_output()
    }
}

impl Stream for Trapped {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match (self.sprung, self.trap) {
            (true, Trap::Cap { says: true, .. } | Trap::Late(_)) => {
                ready!(self.timer.as_mut().poll(cx));
                Poll::Ready(Some(Ok(Arrival::Closed { code: 1009, text: String::new() })))
            }
            (true, _) => Poll::Ready(None),
            (false, _) => Pin::new(&mut self.link).poll_next(cx),
        }
    }
}

impl Sink<Transmit> for Trapped {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.sprung { Poll::Ready(Ok(())) } else { Pin::new(&mut self.link).poll_ready(cx) }
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if let Transmit::Frame { bytes, .. } = &item {
            self.frames += 1;
            self.bytes += bytes.len();
            self.sprung |= match self.trap {
                Trap::Cap { bytes: cap, .. } => bytes.len() > cap,
                Trap::Late(cap) if bytes.len() > cap => {
                    self.timer.as_mut().reset(Instant::now() + Duration::from_secs(3));
                    true
                }
                Trap::Late(_) => self.sprung,
                Trap::After(frames) => self.frames > frames,
                Trap::AfterBytes(bytes) => self.bytes > bytes,
                Trap::Never => false,
            };
        }
        if self.sprung { Ok(()) } else { Pin::new(&mut self.link).start_send(item) }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_close(cx)
    }
}

/// Which gateway's frames meet the trap.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    ToHost,
    ToClient,
}

/// Client and host, connected once more through the same gateways, with a trap on the way.
fn connect(gateways: &[Arc<Gateway>; 2], place: Where, trap: Trap) -> (App, App) {
    connect_as("someone", gateways, place, trap)
}

fn connect_as(
    principal: &'static str,
    [beside_client, beside_host]: &[Arc<Gateway>; 2],
    place: Where,
    trap: Trap,
) -> (App, App) {
    let any = Capacity::of(u64::MAX);
    let ((client, downstream), (upstream, host)) = (link::pair(&any, 4), link::pair(&any, 4));
    // The gateways tell each other how long frames may be; nobody has declared a cap of the way between them.
    let (left, right) = link::pair(&Capacity::of(u64::MAX), 4);
    let trapped = |link, here| {
        let trap = if here == place { trap } else { Trap::Never };
        Trapped::new(link, trap)
    };
    join_as(principal, beside_client, downstream, trapped(left, Where::ToHost), pending());
    join_as(principal, beside_host, trapped(right, Where::ToClient), upstream, pending());
    (App::new(client, Role::Client), App::new(host, Role::Server))
}

async fn pass(from: &mut App, to: &mut App, message: Message) -> Result<(), CloseReason> {
    from.send(message.clone());
    tokio::select! {
        heard = to.next() => heard.map(|heard| assert!(heard == message)),
        // An error in place of the answer comes before the close.
        heard = from.next() => Err(match heard {
            Ok(_) => from.end().await,
            Err(end) => end,
        }),
    }
}

/// How often a client must connect until a message of `len` bytes, its own or its host's, has passed.
async fn connects_until_served(place: Where, trap: Trap, len: usize) -> usize {
    let (beside_client, beside_host) = gateways(MAX_FRAME);
    let gateways = [beside_client, beside_host];
    for connects in 1..20 {
        let (mut client, mut host) = connect(&gateways, place, trap);
        pass(&mut client, &mut host, Message::from(INITIALIZE)).await.unwrap();
        pass(&mut host, &mut client, Message::from(WELCOME)).await.unwrap();
        let large = request(&connects.to_string(), len);
        let passed = match place {
            Where::ToHost => pass(&mut client, &mut host, large).await,
            Where::ToClient => pass(&mut host, &mut client, large).await,
        };
        if passed.is_ok() {
            return connects;
        }
    }
    panic!("never served");
}

#[tokio::test]
async fn a_peer_with_an_undeclared_cap_is_served_within_five_reconnects() {
    // Segments of 120 KiB pass the first at once; what fits one frame does not. The last needs two halves.
    for (bytes, len, sizes) in [(300_000, 3_000_000, 0), (300_000, 880_000, 1), (60_000, 3_000_000, 2)] {
        for place in [Where::ToHost, Where::ToClient] {
            for says in [true, false] {
                let connects = connects_until_served(place, Trap::Cap { bytes, says }, len).await;
                assert!(connects <= 6, "{connects} connects");
                // Without a word, the first half takes three closes in a row, and each further close halves again.
                let closes = if says || sizes == 0 { sizes } else { 2 + sizes };
                assert_eq!(connects, 1 + closes, "{len} bytes at {bytes}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_its_time_to_say_that_a_frame_was_too_long_is_believed() {
    for place in [Where::ToHost, Where::ToClient] {
        assert_eq!(connects_until_served(place, Trap::Late(300_000), 880_000).await, 2);
    }
}

#[tokio::test]
async fn a_host_that_crashes_at_the_first_message_of_each_connection_is_sent_it_again_when_it_is_well() {
    let gateway = plain_gateway(Limits::default(), BudgetConfig::default());
    for connects in 0..12 {
        let trap = if connects < 10 { Trap::After(0) } else { Trap::Never };
        let (client, downstream) = link::pair(&Capacity::of(u64::MAX), 4);
        let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
        join(&gateway, downstream, Trapped::new(upstream, trap));
        let (mut client, mut host) = (App::new(client, Role::Client), App::new(host, Role::Server));
        let passed = pass(&mut client, &mut host, request("1", 40_000)).await;
        assert_eq!(passed.is_ok(), connects >= 10, "{connects}");
    }
}

#[tokio::test]
async fn a_short_message_at_which_a_peer_says_that_it_is_too_long_is_answered_with_an_error() {
    let (beside_client, beside_host) = gateways(MAX_FRAME);
    let gateways = [beside_client, beside_host];
    for connects in 1..=3 {
        let (mut client, mut host) = connect(&gateways, Where::ToHost, Trap::Cap { bytes: 8_000, says: true });
        pass(&mut client, &mut host, Message::from(INITIALIZE)).await.unwrap();
        pass(&mut host, &mut client, Message::from(WELCOME)).await.unwrap();
        client.send(request("\"short\"", 12_000));
        let heard = tokio::select! { heard = client.next() => heard, _ = host.next() => client.next().await };
        // It is worth coming again.
        let heard = if connects == 1 { Err(client.end().await) } else { heard };
        match heard {
            Ok(answer) => {
                let answer: serde_json::Value = serde_json::from_slice(&answer.to_bytes()).unwrap();
                assert_eq!((answer["id"].as_str(), answer["error"]["code"].as_i64()), (Some("short"), Some(-32011)));
                pass(&mut client, &mut host, request("3", 2_000)).await.unwrap();
            }
            Err(reason) => assert_eq!((connects, reason.code()), (1, 1012)),
        }
    }
}

/// Dice that fall the same way every time.
fn dice() -> impl FnMut(u64) -> u64 {
    let mut dice = 7_u64;
    move |sides| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    }
}

#[tokio::test]
async fn a_message_that_is_sent_again_after_each_random_cut_passes_all_the_while() {
    let mut roll = dice();
    for place in [Where::ToHost, Where::ToClient] {
        let (beside_client, beside_host) = gateways(MAX_FRAME);
        let gateways = [beside_client, beside_host];
        let action = format!(r#"{{"jsonrpc":"2.0","method":"action","params":["{}"]}}"#, "a".repeat(3_000_000));
        let mut passed = [0; 5];
        for cut in 0..50 {
            let (mut client, mut host) =
                connect(&gateways, place, Trap::AfterBytes(100_000 * (1 + roll(200) as usize)));
            pass(&mut client, &mut host, Message::from(INITIALIZE)).await.unwrap();
            pass(&mut host, &mut client, Message::from(WELCOME)).await.unwrap();
            let (from, to) = if place == Where::ToHost { (&mut client, &mut host) } else { (&mut host, &mut client) };
            while pass(from, to, Message::from(action.clone())).await.is_ok() {
                passed[cut / 10] += 1;
            }
        }
        assert!(passed.iter().all(|passed| *passed > 0), "{passed:?}");
    }
}

#[tokio::test]
async fn a_link_that_is_cut_at_random_is_served_all_the_while_and_its_frames_are_halved_a_few_times_only() {
    let mut roll = dice();
    let (beside_client, beside_host) = gateways(MAX_FRAME);
    let gateways = [beside_client, beside_host];
    let mut passed = [0; 5];
    for cut in 0..50 {
        let trap = Trap::AfterBytes(500 + 20_000 * roll(400) as usize);
        let (mut client, mut host) = connect(&gateways, Where::ToHost, trap);
        let mut id = 0;
        let end = loop {
            id += 1;
            // The same few lengths again and again, as an agent's prompts and files are.
            let large = request(&id.to_string(), [3_000_000, 900, 1_200_000, 40_000][roll(4) as usize]);
            let first = if id == 1 { Message::from(INITIALIZE) } else { large };
            if let Err(end) = pass(&mut client, &mut host, first).await {
                break end;
            }
            let answer = if id == 1 { WELCOME.into() } else { format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#) };
            pass(&mut host, &mut client, Message::from(answer)).await.unwrap();
            passed[cut / 10] += 1;
        };
        assert!(matches!(end.code(), 1001 | 1012 | 1014), "{end}");
    }
    assert!(passed.iter().all(|passed| *passed > 0), "{passed:?}");
    let halvings = gateways[0].counts().get("frame-limit-halved").copied();
    assert!(halvings < Some(20), "{halvings:?} in 50 cuts");
}

#[tokio::test]
async fn after_16_mib_frames_have_their_full_length_again_on_the_same_link() {
    let (beside_client, beside_host) = gateways(MAX_FRAME);
    let gateways = [beside_client, beside_host];
    for trap in [Trap::After(3), Trap::After(3), Trap::After(3), Trap::Never, Trap::Cap { bytes: 115_000, says: true }]
    {
        let (mut client, mut host) = connect(&gateways, Where::ToHost, trap);
        pass(&mut client, &mut host, Message::from(INITIALIZE)).await.unwrap();
        pass(&mut host, &mut client, Message::from(WELCOME)).await.unwrap();
        let passed = pass(&mut client, &mut host, request("2", 3_000_000)).await;
        assert_eq!(passed.is_ok(), matches!(trap, Trap::Never));
        if passed.is_ok() {
            assert_eq!(gateways[0].counts().get("frame-limit-halved"), Some(&1));
            pass(&mut client, &mut host, request("3", 16_000_000)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_peer_with_a_real_limit_is_not_closed_again_after_every_16_mib() {
    let (beside_client, beside_host) = gateways(MAX_FRAME);
    let gateways = [beside_client, beside_host];
    let (mut closes, mut passed) = (0, 0);
    while passed < 100 {
        let (mut client, mut host) = connect(&gateways, Where::ToHost, Trap::Cap { bytes: 100_000, says: true });
        pass(&mut client, &mut host, Message::from(INITIALIZE)).await.unwrap();
        pass(&mut host, &mut client, Message::from(WELCOME)).await.unwrap();
        while passed < 100 && pass(&mut client, &mut host, request("2", 2_000_000)).await.is_ok() {
            passed += 1;
        }
        closes += 1;
    }
    // 200 MB are twelve times 16 MiB.
    assert!(closes <= 5, "{closes} closes");
}

#[tokio::test]
async fn a_client_that_calls_itself_like_another_does_not_shrink_the_frames_of_that_one() {
    let (beside_client, beside_host) = gateways(MAX_FRAME);
    let gateways = [beside_client, beside_host];
    let trap = Trap::Cap { bytes: 115_000, says: true };
    for (principal, passes) in [("token:1", false), ("token:1", true), ("token:2", false)] {
        let (mut client, mut host) = connect_as(principal, &gateways, Where::ToClient, trap);
        pass(&mut client, &mut host, Message::from(INITIALIZE)).await.unwrap();
        pass(&mut host, &mut client, Message::from(WELCOME)).await.unwrap();
        // The trap springs at frames that are as long as they may be, and lets those pass that have shrunk.
        let passed = pass(&mut host, &mut client, request("2", 3_000_000)).await;
        assert_eq!(passed.is_ok(), passes, "{principal}");
    }
}

#[tokio::test]
async fn a_client_that_is_closed_because_the_way_to_its_host_was_cut_is_sent_as_long_frames_as_before() {
    let (beside_client, beside_host) = gateways(MAX_FRAME);
    let gateways = [beside_client, beside_host];
    let large = || request("\"of the host\"", 60_000);
    for trap in [Trap::After(1), Trap::After(1), Trap::Never] {
        let (mut client, mut host) = connect(&gateways, Where::ToHost, trap);
        pass(&mut client, &mut host, Message::from(INITIALIZE)).await.unwrap();
        pass(&mut host, &mut client, Message::from(WELCOME)).await.unwrap();
        // The client takes no segments: what does not fit one frame does not reach it at all.
        pass(&mut host, &mut client, large()).await.unwrap();
        let cut = pass(&mut client, &mut host, request("2", 100)).await;
        assert_eq!(cut.is_ok(), matches!(trap, Trap::Never));
    }
}

#[tokio::test]
async fn a_message_that_even_the_smallest_frames_do_not_carry_is_answered_with_an_error() {
    let (beside_client, beside_host) = gateways(MAX_FRAME);
    let gateways = [beside_client, beside_host];
    for connects in 1..12 {
        let (mut client, mut host) = connect(&gateways, Where::ToHost, Trap::Cap { bytes: 10_000, says: true });
        pass(&mut client, &mut host, Message::from(INITIALIZE)).await.unwrap();
        pass(&mut host, &mut client, Message::from(WELCOME)).await.unwrap();
        client.send(request("\"large\"", 3_000_000));
        let heard = tokio::select! { heard = client.next() => heard, _ = host.next() => continue };
        if let Ok(answer) = heard {
            let answer: serde_json::Value = serde_json::from_slice(&answer.to_bytes()).unwrap();
            assert_eq!(answer["id"], "large");
            if answer["error"]["data"]["reason"] == "host-closed" {
                continue;
            }
            assert_eq!(answer["error"]["code"], -32011);
            // 120 KiB is halved twice, and the floor is tried once.
            assert_eq!(connects, 5);
            return pass(&mut client, &mut host, request("3", 2_000)).await.unwrap();
        }
    }
    panic!("never answered");
}
