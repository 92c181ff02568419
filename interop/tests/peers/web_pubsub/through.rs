//! The whole way: an agent host, our link, our relay, our link, a bridge, and the official AHP client, which knows nothing of all that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use breakbulk::ahp::Negotiated;

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
}

impl World {
    async fn new(keep: Duration) -> Self {
        let running = Running::start(keep).await;
        let place = Place::new("", &["--via", &running.address()]);
        let bridge = Bridge::open("ws://127.0.0.1:0", &running.address());
        Self { running, place, bridge }
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
    let world = World::new(Duration::from_secs(30)).await;
    let guest = world.guest("one").await;
    let (uri, file) = (world.place.uri("large.txt"), text(32_000_000));
    soon(guest.client.resource_write(write(&uri, &file))).await.unwrap();
    assert!(std::fs::read_to_string(world.place.file("large.txt")).unwrap() == file, "what was written");
    assert!(soon(guest.client.resource_read(read(&uri))).await.unwrap().data == file, "what is read");
    world.assert_bounded(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_loses_repeats_reorders_and_alters_nothing_while_connections_of_the_relay_are_cut() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (seed, drops) = (number("BREAKBULK_INTEROP_SEED", SEED), number("BREAKBULK_INTEROP_DROPS", DROPS));
    let world = World::new(Duration::from_secs(30)).await;
    let guest = world.guest("one").await;
    let chat = guest.begin(SESSION).await;
    let witness = world.witness(&chat).await;
    let mut dice = Dice(seed);
    let turns = AtomicU64::new(0);
    // One turn after the other, and one file after the other, for as long as connections are cut.
    let talk = async {
        loop {
            let turn = turns.fetch_add(1, Ordering::Relaxed);
            let prompt =
                if turn.is_multiple_of(3) { "/big 3MB".to_owned() } else { format!("{turn} {}", text(200_000)) };
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
        "seed {seed}: {drops} drops, {recoveries} recoveries, {turns} turns, {files} files; lost, repeated, reordered, altered: {ledger:?}"
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
