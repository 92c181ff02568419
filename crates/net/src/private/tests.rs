//! Private links over links that somebody in between can change.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use breakbulk_proto::{Capacity, CloseReason, Event, Measure, Message, Meta, Overhead, Tag, Transmit, Violation};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use proptest::prelude::*;

use super::*;
use crate::external::{Acceptor, ExternalPeer};
use crate::link::{Arrival, BoxLink, InProcessLink, Intake, Link, LinkError, pair};
use crate::{AccessPolicy, Address, Dialect, Dialer, Driver, ListenConfig, Listener, Setup};

const MAX: u64 = 1 << 20;
const TEXT: &str = r#"{"jsonrpc":"2.0","method":"note","params":{"text":"nobody in between can read this"}}"#;

fn key() -> HostKey {
    HostKey::generate().unwrap()
}

fn frame(text: impl Into<Bytes>) -> Transmit {
    Transmit::Frame { tag: Tag::default(), bytes: Message::from(text), meta: Meta::default() }
}

fn arrived(text: impl Into<Bytes>) -> Arrival {
    Arrival::Frame { bytes: text.into(), meta: Meta::default() }
}

/// What somebody in between does with the frames of one direction: what goes on in place of each.
type Change = Box<dyn FnMut(usize, Bytes) -> Vec<Bytes> + Send>;

/// Carries frames between two links, and changes those to the second. Returns a record of all that passed.
fn between(
    mut left: InProcessLink,
    mut right: InProcessLink,
    mut change: Change,
) -> tokio::task::JoinHandle<Vec<Bytes>> {
    tokio::spawn(async move {
        let (mut seen, mut count) = (Vec::new(), 0);
        loop {
            let (arrival, to_right) = tokio::select! {
                arrival = left.next() => (arrival, true),
                arrival = right.next() => (arrival, false),
            };
            match (arrival, to_right) {
                (Some(Ok(Arrival::Frame { bytes, .. })), true) => {
                    seen.push(bytes.clone());
                    for bytes in change(count, bytes) {
                        drop(right.send(frame(bytes)).await);
                    }
                    count += 1;
                }
                (Some(Ok(Arrival::Frame { bytes, .. })), false) => {
                    seen.push(bytes.clone());
                    drop(left.send(frame(bytes)).await);
                }
                (Some(Ok(Arrival::Closed { code, text })), to_right) => {
                    let close = Transmit::Close(CloseReason::Program(code, text));
                    drop(if to_right { right.send(close).await } else { left.send(close).await });
                }
                _ => return seen,
            }
        }
    })
}

fn as_it_is() -> Change {
    Box::new(|_, bytes| vec![bytes])
}

/// Both ends of a private link with somebody in between, who sees the frames from the client to the host.
async fn open(change: Change) -> (BoxLink, BoxLink, tokio::task::JoinHandle<Vec<Bytes>>) {
    let key = key();
    let (client, left) = pair(&Capacity::of(u64::MAX), 8);
    let (right, host) = pair(&Capacity::of(u64::MAX), 8);
    let seen = between(left, right, change);
    let code = key.pairing_code();
    let (client, host) = tokio::join!(connect(Box::new(client), &code, MAX), accept(Box::new(host), &key, MAX));
    (client.unwrap(), host.unwrap(), seen)
}

/// The frames of the handshake that go from the client to the host.
const GREETING: usize = 2;

#[tokio::test]
async fn frames_and_the_close_pass_both_ways_and_nobody_in_between_can_read_them() {
    let (mut client, mut host, seen) = open(as_it_is()).await;
    let long = Bytes::from(TEXT.repeat(3_000));
    for text in [Bytes::from(TEXT), long.clone(), Bytes::new()] {
        client.send(frame(text.clone())).await.unwrap();
        assert_eq!(host.next().await.unwrap().unwrap(), arrived(text.clone()));
        host.send(frame(text.clone())).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), arrived(text));
    }
    host.send(Transmit::Close(CloseReason::Program(4411, "too slow to follow".into()))).await.unwrap();
    host.close().await.unwrap();
    let closed = Arrival::Closed { code: 4411, text: "too slow to follow".into() };
    assert_eq!(client.next().await.unwrap().unwrap(), closed);
    assert!(client.next().await.is_none());
    drop((client, host));
    let seen = seen.await.unwrap();
    assert!(seen.len() > GREETING + 1 + 6);
    for text in ["nobody", "jsonrpc", "too slow"] {
        assert!(!seen.iter().any(|frame| memchr::memmem::find(frame, text.as_bytes()).is_some()), "{text}");
    }
}

#[tokio::test]
async fn a_frame_that_was_changed_on_its_way_ends_the_link_by_name() {
    /// What is done to the first frame, and to the second.
    type Attack = (&'static str, fn(usize, Bytes, &mut Vec<Bytes>) -> Vec<Bytes>);
    let attacks: [Attack; 7] = [
        ("a flipped bit", |_, bytes, _| vec![[&bytes[..9], &[bytes[9] ^ 1], &bytes[10..]].concat().into()]),
        ("a frame that is cut off", |_, bytes, _| vec![bytes.slice(..bytes.len() - 4)]),
        ("a frame that comes twice", |_, bytes, _| vec![bytes.clone(), bytes]),
        ("a lost frame", |at, bytes, _| if at == 0 { Vec::new() } else { vec![bytes] }),
        ("frames in another order", |at, bytes, held| {
            held.push(bytes);
            if at == 0 { Vec::new() } else { held.drain(..).rev().collect() }
        }),
        ("a plain frame", |_, _, _| vec![Bytes::from(TEXT)]),
        ("two frames as one", |at, bytes, held| {
            held.push(bytes);
            if at == 0 { Vec::new() } else { vec![held.concat().into()] }
        }),
    ];
    for (name, attack) in attacks {
        let mut held = Vec::new();
        let change: Change = Box::new(move |at, bytes| match at.checked_sub(GREETING) {
            None => vec![bytes],
            Some(at) => attack(at, bytes, &mut held),
        });
        let (mut client, host, _) = open(change).await;
        for _ in 0..2 {
            client.send(frame(TEXT)).await.unwrap();
        }
        let machine =
            Setup::new(Dialect::Plain, breakbulk_proto::ahp::Role::Server, breakbulk_proto::Limits::default())
                .machine(breakbulk_proto::Budget::default().account(None))
                .unwrap();
        let mut driver = Driver::new(host, machine);
        let reason = loop {
            match driver.next().await.unwrap() {
                Event::Closed(reason) => break reason,
                Event::Message { message, .. } => assert_eq!(message.to_bytes(), TEXT, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        };
        assert_eq!(reason, CloseReason::Violation(Violation::FrameNotAuthentic), "{name}");
        assert_eq!((reason.name(), reason.code()), ("frame-not-authentic", 4400));
        // The host's own direction is whole, so that the client hears why.
        let heard = client.next().await.unwrap().unwrap();
        let text = "invalid message: frame-not-authentic".to_owned();
        assert_eq!(heard, Arrival::Closed { code: 4400, text }, "{name}");
    }
}

#[tokio::test]
async fn a_close_that_is_not_the_peers_is_a_connection_that_broke() {
    let key = key();
    let (client, mut left) = pair(&Capacity::of(u64::MAX), 8);
    let (mut right, host) = pair(&Capacity::of(u64::MAX), 8);
    let carry = async {
        for _ in 0..GREETING {
            let Some(Ok(Arrival::Frame { bytes, .. })) = left.next().await else { panic!() };
            right.send(frame(bytes)).await.unwrap();
            if let Some(Some(Ok(Arrival::Frame { bytes, .. }))) = futures_util::FutureExt::now_or_never(right.next()) {
                left.send(frame(bytes)).await.unwrap();
            } else if let Ok(Some(Ok(Arrival::Frame { bytes, .. }))) =
                tokio::time::timeout(Duration::from_millis(200), right.next()).await
            {
                left.send(frame(bytes)).await.unwrap();
            }
        }
    };
    let code = key.pairing_code();
    let (client, host, ()) =
        tokio::join!(connect(Box::new(client), &code, MAX), accept(Box::new(host), &key, MAX), carry);
    let (mut client, mut host) = (client.unwrap(), host.unwrap());
    left.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
    let closed = client.next().await.unwrap().unwrap();
    assert!(matches!(closed, Arrival::Closed { code: 1006, .. }), "{closed:?}");
    drop(right);
    assert!(host.next().await.is_none(), "a link that ends without a close");
}

/// The outcome of a handshake on both sides.
async fn handshake(code: &PairingCode, key: &HostKey) -> (Option<PrivateError>, Option<PrivateError>) {
    let (client, host) = pair(&Capacity::of(u64::MAX), 8);
    let (client, host) = tokio::join!(connect(Box::new(client), code, MAX), accept(Box::new(host), key, MAX));
    (client.err(), host.err())
}

#[tokio::test]
async fn another_pairing_code_is_refused_by_name_on_both_sides() {
    let (ours, other) = (key(), key());
    let (public, secret) = (ours.pairing_code().public, ours.pairing_code().secret);
    let codes = [
        other.pairing_code(),
        PairingCode { public, secret: other.secret },
        PairingCode { public: other.pairing_code().public, secret },
    ];
    for code in codes {
        let (client, host) = handshake(&code, &ours).await;
        assert!(matches!(host, Some(PrivateError::WrongPairingCode)), "{host:?}");
        let Some(error @ PrivateError::Ended { code: 4401, .. }) = client else { panic!("{client:?}") };
        assert!(error.is_final() && error.to_string().contains("wrong-pairing-code"), "{error}");
    }
    assert!(matches!(handshake(&ours.pairing_code(), &ours).await, (None, None)));
}

#[tokio::test]
async fn a_host_without_the_key_is_refused_by_its_client() {
    let (client, mut impostor) = pair(&Capacity::of(u64::MAX), 8);
    let code = key().pairing_code();
    let answer = async {
        let Some(Ok(Arrival::Frame { bytes, .. })) = impostor.next().await else { panic!() };
        // Of the same form, but not made with the host's key.
        impostor.send(frame(bytes)).await.unwrap();
        impostor.next().await.unwrap().unwrap()
    };
    let (client, closed) = tokio::join!(connect(Box::new(client), &code, MAX), answer);
    assert!(matches!(client.err().unwrap(), PrivateError::WrongHostKey));
    assert_eq!(closed, Arrival::Closed { code: 4401, text: "private link refused: wrong-host-key".into() });
}

/// The first frame of a client, recorded.
async fn first_frame(code: &PairingCode) -> Bytes {
    let (client, mut recorder) = pair(&Capacity::of(u64::MAX), 8);
    let code = code.clone();
    let connecting = tokio::spawn(async move { connect(Box::new(client), &code, MAX).await.map(drop) });
    let Some(Ok(Arrival::Frame { bytes, .. })) = recorder.next().await else { panic!() };
    connecting.abort();
    bytes
}

#[tokio::test(start_paused = true)]
async fn a_repeated_greeting_opens_no_link() {
    let key = key();
    let recorded = first_frame(&key.pairing_code()).await;
    for goes_on in [true, false] {
        let (mut replayer, host) = pair(&Capacity::of(u64::MAX), 8);
        replayer.send(frame(recorded.clone())).await.unwrap();
        if goes_on {
            replayer.send(frame("A".repeat(23))).await.unwrap();
        }
        let error = accept(Box::new(host), &key, MAX).await.err().unwrap();
        match goes_on {
            true => assert!(matches!(error, PrivateError::HandshakeRepeated), "{error}"),
            false => assert!(matches!(error, PrivateError::HandshakeTimedOut(_)), "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_side_that_knows_nothing_of_private_links_is_named_and_nobody_waits_for_ever() {
    let key = key();
    let long = format!("{TEXT}{}", " ".repeat(100_000));
    for text in [TEXT, "", "breakbulk-private-1 ?", "breakbulk-private-2 AAAA", &long] {
        let (mut client, host) = pair(&Capacity::of(u64::MAX), 8);
        client.send(frame(text.to_owned())).await.unwrap();
        let error = accept(Box::new(host), &key, MAX).await.err().unwrap();
        assert!(matches!(error, PrivateError::NotPrivate), "{error}");
        let told = client.next().await.unwrap().unwrap();
        assert_eq!(told, Arrival::Closed { code: 4401, text: "private link refused: not-private".into() });
    }
    let code = key.pairing_code();
    let (client, mut host) = pair(&Capacity::of(u64::MAX), 8);
    host.send(Transmit::Close(CloseReason::Violation(Violation::FrameNotObject))).await.unwrap();
    let error = connect(Box::new(client), &code, MAX).await.err().unwrap();
    assert!(matches!(error, PrivateError::Ended { code: 4400, .. }), "{error}");
    let (client, _silent) = pair(&Capacity::of(u64::MAX), 8);
    let error = connect(Box::new(client), &code, MAX).await.err().unwrap();
    assert!(matches!(error, PrivateError::HandshakeTimedOut(HANDSHAKE_TIMEOUT)), "{error}");
    let (client, gone) = pair(&Capacity::of(u64::MAX), 8);
    drop(gone);
    assert!(matches!(connect(Box::new(client), &code, MAX).await.err(), Some(PrivateError::Link(_))));
}

/// Brings peers that are there already.
struct Waiting(VecDeque<ExternalPeer>);

impl Acceptor for Waiting {
    fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<Option<ExternalPeer>> {
        Poll::Ready(self.0.pop_front())
    }
}

#[tokio::test(start_paused = true)]
async fn an_acceptor_brings_peers_whose_handshake_succeeds_and_silent_ones_delay_nobody() {
    let key = key();
    let (mut peers, mut clients) = (VecDeque::new(), Vec::new());
    for name in ["silent", "wrong", "right"] {
        let (client, host) = pair(&Capacity::of(u64::MAX), 8);
        peers.push_back(ExternalPeer { link: Box::new(host), name: name.into(), principal: None });
        clients.push(client);
    }
    let (right, wrong) = (clients.pop().unwrap(), clients.pop().unwrap());
    let code = key.pairing_code();
    let other = HostKey::generate().unwrap().pairing_code();
    let mut acceptor = PrivateAcceptor::new(Box::new(Waiting(peers)), key, MAX);
    let (wrong, right, accepted) = tokio::join!(
        connect(Box::new(wrong), &other, MAX),
        connect(Box::new(right), &code, MAX),
        poll_fn(|cx| acceptor.poll_accept(cx)),
    );
    assert!(wrong.is_err() && right.is_ok());
    assert_eq!(accepted.unwrap().name, "right");
    // The silent one is given up in time, and then nobody is left.
    assert!(poll_fn(|cx| acceptor.poll_accept(cx)).await.is_none());
}

async fn listener(key: Option<HostKey>) -> (Listener, Address) {
    let mut config = ListenConfig::new("127.0.0.1:0".parse().unwrap(), AccessPolicy::open());
    (config.private, config.link.max_frame_bytes) = (key, MAX);
    let listener = Listener::bind(config).await.unwrap();
    let address = format!("ws://{}", listener.local_address()).parse().unwrap();
    (listener, address)
}

#[tokio::test]
async fn a_listener_and_a_dialer_speak_privately_by_files_and_by_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.key");
    let loaded = PrivateOption::File(path.clone()).host_key().unwrap();
    let (mut listener, plain) = listener(Some(loaded.key.clone())).await;
    let code = loaded.key.pairing_code().reveal();
    for value in [code, path.display().to_string(), loaded.pairing_file.display().to_string()] {
        let address: Address = format!("{plain}?private={value}").parse().unwrap();
        let mut dialer = Dialer::default();
        dialer.link.max_frame_bytes = MAX;
        let (client, accepted) = tokio::join!(dialer.dial(&address), listener.accept());
        let (mut client, mut host) = (client.unwrap(), accepted.link);
        // The longest frame that either side accepts, which is longer when it is sealed.
        let longest = Bytes::from("x".repeat(MAX as usize));
        let (sent, heard) = tokio::join!(client.send(frame(longest.clone())), host.next());
        sent.unwrap();
        assert_eq!(heard.unwrap().unwrap(), arrived(longest.clone()));
        let one_more = Bytes::from("x".repeat(MAX as usize + 3));
        // Nothing of it is read beyond its length, so that sending it does not end.
        let heard = tokio::select! {
            heard = client.next() => heard,
            _ = host.send(frame(one_more)) => client.next().await,
        };
        assert!(matches!(heard, Some(Err(LinkError::FrameTooLarge(_)))), "{heard:?}");
    }
}

#[tokio::test]
async fn a_plain_client_of_a_private_listener_hears_why_it_is_refused() {
    let (mut listener, address) = listener(Some(key())).await;
    let accepting = tokio::spawn(async move { listener.accept().await.peer });
    let mut client = Dialer::default().dial(&address).await.unwrap();
    client.send(frame(TEXT)).await.unwrap();
    let closed = client.next().await.unwrap().unwrap();
    assert_eq!(closed, Arrival::Closed { code: 4401, text: "private link refused: not-private".into() });
    assert!(!accepting.is_finished(), "no link was accepted");
    accepting.abort();
}

#[tokio::test]
async fn nothing_is_dialed_without_a_pairing_code() {
    let address: Address = "ws://127.0.0.1:1?private=/nowhere/host.key".parse().unwrap();
    let error = Dialer::default().dial(&address).await.err().unwrap();
    assert!(error.to_string().contains("/nowhere/host.key"), "{error}");
}

#[tokio::test]
async fn the_memory_of_a_private_link_is_the_one_under_it() {
    let (client, server) = crate::link::pair(&Capacity::of(64), 1);
    drop((client, server));
    let key = key();
    let (mut listener, address) = listener(Some(key.clone())).await;
    let code = key.pairing_code().reveal();
    let address: Address = format!("{address}?private={code}").parse().unwrap();
    let dialer = Dialer::default();
    let (client, accepted) = tokio::join!(dialer.dial(&address), listener.accept());
    let (mut client, mut host) = (client.unwrap(), accepted.link);
    let memory = host.receive_memory().unwrap();
    memory.set_intake(Intake { max_frame_bytes: 1_000, account: None });
    client.send(frame("x".repeat(1_000))).await.unwrap();
    assert!(matches!(host.next().await, Some(Ok(Arrival::Frame { .. }))));
    client.send(frame("x".repeat(1_010))).await.unwrap();
    assert!(matches!(host.next().await, Some(Err(LinkError::FrameTooLarge(_)))));
    let mut in_process = open(as_it_is()).await.0;
    assert!(in_process.receive_memory().is_none());
}

/// A link that escapes texts and adds to them, as one through Web PubSub does.
fn escaping(cap: u64, around: u64) -> Capacity {
    let overhead = move |measure: Measure| measure.escaped - measure.bytes + around;
    Capacity { cap, overhead: Overhead::new(overhead) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_is_over_the_cap_of_the_link_and_none_that_fits_is_refused(
        cap in prop_oneof![150_u64..2_000, 80_000..400_000_u64],
        around in 0_u64..100,
        off in -3_i64..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let key = key();
            let inner = escaping(cap, around);
            let (client, host) = pair(&inner, 8);
            let code = key.pairing_code();
            let (client, host) =
                tokio::join!(connect(Box::new(client), &code, MAX), accept(Box::new(host), &key, MAX));
            let (mut client, host) = (client.unwrap(), host.unwrap());
            // Around the longest that fits.
            let len = longest_within(cap - around).saturating_add_signed(off);
            let text = "\"".repeat(usize::try_from(len).unwrap());
            let measure = Measure { bytes: len, escaped: 2 * len };
            let before = client.status().moved.outward;
            client.send(frame(text)).await.unwrap();
            let sealed = client.status().moved.outward - before;
            prop_assert_eq!(client.capacity().fits(measure), sealed + around <= cap, "{} {}", len, sealed);
            prop_assert_eq!(client.capacity().overhead.of(measure) + len, sealed + around);
            drop(host);
            Ok(())
        })?;
    }
}
