//! The whole way: an agent host, our link, our relay, our link, a bridge, and the official AHP client, which knows nothing of all that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use breakbulk::ahp::Negotiated;
use memchr::memmem;
use tempfile::TempDir;

use super::capture::Capture;
use super::relay::Running;
use crate::program::Bridge;
use crate::serve::guest::Guest;
use crate::serve::place::Place;
use crate::serve::way::Way;
use crate::soon;
use crate::text::{Dice, text};
use crate::world::{read, write};

const SESSION: &str = "ahp-session:/relayed";
/// The longest frame that the relay takes.
const CAP: u64 = 1_000_000;
/// How many connections are cut, if `BREAKBULK_INTEROP_DROPS` says no other number.
const DROPS: u64 = 12;
/// The seed, if `BREAKBULK_INTEROP_SEED` says no other.
const SEED: u64 = 21;
/// More memory than a bridge may ever have had.
#[cfg(target_os = "linux")]
const MOST_MEMORY: u64 = 400 << 20;

/// A host that is reached through a relay, and a bridge for clients.
struct World {
    running: Running,
    place: Place,
    bridge: Bridge,
    /// What the relay has sent to them.
    capture: Capture,
    _keys: TempDir,
}

impl World {
    async fn new(keep: Duration) -> Self {
        Self::open(keep, false).await
    }

    /// With links that are private between the host and the bridge, if so.
    async fn open(keep: Duration, is_private: bool) -> Self {
        let running = Running::start(keep).await;
        let capture = Capture::before(running.port()).await;
        let address = running.address_at(capture.port);
        let keys = tempfile::tempdir().unwrap();
        let with = |file: &str| match is_private {
            true => format!("{address}&private={}", keys.path().join(file).display()),
            false => address.clone(),
        };
        let place = Place::new("", &["--via", &with("host.key")]);
        let bridge = Bridge::open("ws://127.0.0.1:0", &with("host.key.pair"));
        Self { running, place, bridge, capture, _keys: keys }
    }

    /// A client through the bridge and the relay.
    async fn guest(&self, id: &str) -> Guest {
        Guest::arrive(Way::Plain.transport(&self.bridge.url, &Negotiated::default()).await.unwrap(), id).await
    }

    /// One whose connection is never cut, since it is another one.
    async fn witness(&self, chat: &str) -> Guest {
        let direct = format!("ws://{}", self.place.authority);
        let witness =
            Guest::arrive(Way::Plain.transport(&direct, &Negotiated::default()).await.unwrap(), "witness").await;
        for channel in [SESSION, chat] {
            witness.follow(channel).await;
        }
        witness
    }

    fn assert_bounded(&self, queued: u64) {
        let stats = self.running.relay.stats();
        println!("{} frames, the longest of {}, at most {queued} bytes queued", stats.frames_in, stats.largest_frame);
        assert!(stats.largest_frame <= CAP, "{stats:?}");
        assert!(queued <= 32_000_000, "two queues of 16 MB");
        assert_eq!(stats.closed.get("queue-full"), None, "no queue was ever full");
        #[cfg(target_os = "linux")]
        assert!(self.bridge.peak() < MOST_MEMORY, "{} bytes", self.bridge.peak());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_megabytes_pass_both_ways_through_the_relay_and_no_frame_is_over_the_cap() {
    there_and_back(&World::new(Duration::from_secs(30)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_megabytes_pass_both_ways_through_private_links_and_the_relay_sees_none_of_their_text() {
    let world = World::open(Duration::from_secs(30), true).await;
    there_and_back(&world).await;
    let seen = world.capture.bytes();
    println!("the relay has sent {} bytes", seen.len());
    assert!(seen.len() > 64_000_000);
    for text in [&*text(1_000), "large.txt", "jsonrpc", "resourceWrite", "initialize"] {
        assert!(!is_seen(&seen, text), "{text}");
    }
    assert!(is_seen(&seen, "breakbulk.host"), "the names of groups, which it needs");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_private_links_the_relay_sees_text() {
    let world = World::new(Duration::from_secs(30)).await;
    let guest = world.guest("one").await;
    let uri = world.place.uri("large.txt");
    soon(guest.client.resource_write(write(&uri, &text(3_000_000)))).await.unwrap();
    let seen = world.capture.bytes();
    for text in [&*text(1_000), "large.txt", "jsonrpc", "resourceWrite", "initialize"] {
        assert!(is_seen(&seen, text), "{text}");
    }
}

async fn there_and_back(world: &World) {
    let guest = world.guest("one").await;
    let (uri, file) = (world.place.uri("large.txt"), text(32_000_000));
    soon(guest.client.resource_write(write(&uri, &file))).await.unwrap();
    assert!(std::fs::read_to_string(world.place.file("large.txt")).unwrap() == file, "what was written");
    assert!(soon(guest.client.resource_read(read(&uri))).await.unwrap().data == file, "what is read");
    world.assert_bounded(0);
}

/// Whether a text was seen: as it is, escaped once or twice, or as base64, which it may have begun at any of three places.
fn is_seen(seen: &[u8], text: &str) -> bool {
    let quoted = |text: &str| serde_json::to_string(text).unwrap().trim_matches('"').to_owned();
    // A message is JSON, the frame of a link through a hub is a JSON string in one.
    let once = quoted(text);
    let forms = [text.to_owned(), once.clone(), quoted(&once)];
    let coded = forms.iter().flat_map(|form| {
        (0..3_usize).map(move |before| {
            let text = [&vec![b' '; before], form.as_bytes()].concat();
            let coded = STANDARD_NO_PAD.encode(&text);
            // Characters that depend on what stands before or behind.
            coded[(before * 4).div_ceil(3)..coded.len() - 2].to_owned()
        })
    });
    let coded: Vec<String> = coded.filter(|coded| coded.len() >= 8).collect();
    forms.iter().chain(&coded).any(|form| memmem::find(seen, form.as_bytes()).is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_loses_repeats_reorders_and_alters_nothing_while_connections_of_the_relay_are_cut() {
    nothing_is_lost(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_loses_repeats_reorders_and_alters_nothing_while_connections_of_the_relay_are_cut_and_links_are_private()
 {
    nothing_is_lost(true).await;
}

async fn nothing_is_lost(is_private: bool) {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (seed, drops) = (number("BREAKBULK_INTEROP_SEED", SEED), number("BREAKBULK_INTEROP_DROPS", DROPS));
    let world = World::open(Duration::from_secs(30), is_private).await;
    let guest = world.guest("one").await;
    let chat = guest.begin(SESSION).await;
    let witness = world.witness(&chat).await;
    let mut dice = Dice(seed);
    let turns = AtomicU64::new(0);
    // One turn after the other, and one file after the other, for as long as connections are cut.
    let talk = async {
        loop {
            let turn = turns.fetch_add(1, Ordering::Relaxed);
            // Not more large ones: the whole chat has to fit what a client takes in one message, or it comes to it by reference.
            let is_large = turn.is_multiple_of(3) && turn < 12;
            let prompt = if is_large { "/big 3MB".to_owned() } else { format!("{turn} {}", text(100_000)) };
            guest.prompt(&chat, &format!("turn-{turn}"), &prompt).await;
            guest.memory.turn(&chat, &format!("turn-{turn}")).await;
        }
    };
    let files = AtomicU64::new(0);
    let store = async {
        loop {
            let file = files.fetch_add(1, Ordering::Relaxed);
            let (uri, data) = (world.place.uri(&format!("{file}.txt")), format!("{file} {}", text(1_500_000)));
            soon(guest.client.resource_write(write(&uri, &data))).await.unwrap();
            assert!(soon(guest.client.resource_read(read(&uri))).await.unwrap().data == data, "file {file}");
        }
    };
    let queued = tokio::select! {
        queued = world.running.cut_some(&mut dice, drops, 400) => queued,
        () = talk => unreachable!("it goes on for ever"),
        () = store => unreachable!("it goes on for ever"),
    };
    let (turns, files) = (turns.into_inner(), files.into_inner());
    guest.memory.turn(&chat, &format!("turn-{}", turns - 1)).await;
    guest.prompt(&chat, "last", "/help").await;
    guest.memory.turn(&chat, "last").await;
    witness.memory.turn(&chat, "last").await;
    let ledger = ledger(&witness.memory.heard(&chat), &guest.memory.heard(&chat));
    let recoveries = world.running.relay.stats().recoveries;
    println!(
        "private: {is_private}, seed {seed}: {drops} drops, {recoveries} recoveries, {turns} turns, {files} files; lost, repeated, reordered, altered: {ledger:?}"
    );
    assert_eq!(ledger, [0, 0, 0, 0], "seed {seed}");
    assert!(recoveries >= drops, "seed {seed}: every connection was recovered");
    let fresh = world.guest("fresh").await;
    guest.memory.assert_as_fresh(&fresh, &chat).await;
    world.assert_bounded(queued);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_connection_cannot_be_recovered_reconnects_and_misses_nothing() {
    const CUTS: usize = 3;
    // A connection that was cut is forgotten at once.
    let world = World::new(Duration::ZERO).await;
    let mut guest = world.guest("one").await;
    let chat = guest.begin(SESSION).await;
    let witness = world.witness(&chat).await;
    for cut in 0..CUTS {
        guest.prompt(&chat, &format!("{cut}"), "/big 2MB").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.running.relay.cut(|_| true);
        let known = guest.leave().await;
        guest = loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let transport = Way::Plain.transport(&world.bridge.url, &Negotiated::default()).await;
            let Ok(transport) = transport else { continue };
            if let Ok((guest, _)) = Guest::come_back(transport, "one", known.clone()).await {
                break guest;
            }
        };
        guest.memory.turn(&chat, &format!("{cut}")).await;
        witness.memory.turn(&chat, &format!("{cut}")).await;
    }
    guest.memory.assert_in_order();
    assert_eq!(ledger(&witness.memory.heard(&chat), &guest.memory.heard(&chat)), [0, 0, 0, 0]);
    assert!(world.running.relay.stats().largest_frame <= CAP);
}

/// How many actions were lost, repeated, reordered and altered on the way to a client, by what a witness has heard.
fn ledger(all: &[(u64, String)], heard: &[(u64, String)]) -> [usize; 4] {
    let mut times = HashMap::<u64, usize>::new();
    heard.iter().for_each(|(seq, _)| *times.entry(*seq).or_default() += 1);
    // The witness came a moment later.
    let first = all.first().map_or(0, |(seq, _)| *seq);
    let known: HashMap<u64, &String> = all.iter().map(|(seq, kind)| (*seq, kind)).collect();
    [
        all.iter().filter(|(seq, _)| !times.contains_key(seq)).count(),
        times.values().map(|times| times - 1).sum(),
        heard.windows(2).filter(|pair| pair[1].0 < pair[0].0).count(),
        heard.iter().filter(|(seq, kind)| *seq >= first && known.get(seq) != Some(&kind)).count(),
    ]
}

#[test]
fn the_ledger_sees_what_is_wrong() {
    let action = |seq: u64| (seq, format!("kind {seq}"));
    let all = [action(1), action(4), action(6)];
    assert_eq!(ledger(&all, &all), [0, 0, 0, 0]);
    assert_eq!(ledger(&all, &[action(1), action(6)]), [1, 0, 0, 0]);
    assert_eq!(ledger(&all, &[action(1), action(4), action(4), action(6)]), [0, 1, 0, 0]);
    assert_eq!(ledger(&all, &[action(4), action(1), action(6)]), [0, 0, 1, 0]);
    assert_eq!(ledger(&all, &[action(1), (4, "another".into()), action(6)]), [0, 0, 0, 1]);
}
