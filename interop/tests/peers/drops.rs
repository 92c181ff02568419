//! The official client that reconnects by itself, while the link between two bridges is cut at seeded moments.

use std::collections::HashMap;
use std::time::Duration;

use ahp::hosts::{Backoff, HostConfig, HostEvent, HostId, HostSubscriptionStream, MultiHostClient, ReconnectPolicy};
use ahp::{BoxedTransport, ClientConfig, SubscriptionEvent, TransportError};
use ahp_types::actions::ActionEnvelope;
use ahp_types::commands::ResourceWriteResult;
use ahp_ws::WebSocketTransport;

use super::relay::Cut;
use super::soon;
use super::text::{Dice, text};
use super::world::{World, write};

const CHANNELS: [&str; 2] = ["ahp-terminal:/a", "ahp-terminal:/b"];
const DROPS: u64 = 20;
/// The seed, if `BREAKBULK_INTEROP_SEED` says no other.
const SEED: u64 = 20;
/// All of them together fit one replay.
const MOST_ACTIONS: u64 = 300;
/// Every so many actions, one is large.
const LARGE: u64 = 25;

#[tokio::test(flavor = "multi_thread")]
async fn twenty_drops_lose_duplicate_reorder_and_alter_nothing() {
    let seed = std::env::var("BREAKBULK_INTEROP_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    let mut dice = Dice(seed);
    let world = World::new(plan(&mut dice)).await;
    let client = MultiHostClient::new();
    let (events, mut states) = (client.events(), client.host_events());
    // To this client a seq of 0 is no cursor: it would begin anew. What was published before is in its first snapshot.
    world.host.publish(CHANNELS[0], "before");
    client.add_host(config(&world.client_bridge.url)).await.unwrap();
    while !matches!(soon(states.recv()).await.unwrap(), HostEvent::Connected { .. }) {}

    let (written, ()) = tokio::join!(write_until_quiet(&world, &client), publish_until_quiet(&world, &mut dice));
    world.host.publish(CHANNELS[0], "the last");
    let log = world.host.log();
    let got = collect(events, log.len() as u64).await;
    let log = &log[1..];

    let ledger = Ledger::of(log, &got);
    println!("seed {seed}: {} drops, {} actions, {written} writes, {ledger:?}", world.relay.cuts(), log.len());
    assert_eq!(world.relay.cuts(), DROPS, "seed {seed}");
    assert_eq!(ledger, Ledger::default(), "seed {seed}: {:?}", seqs(&got));
    assert!(log.len() > 20 && written > 5, "there was traffic all the while");
    world.assert_capped();
}

/// Some drops in the handshake, some in the middle of large messages, some in silence.
fn plan(dice: &mut Dice) -> Vec<Cut> {
    let cut = |_| {
        let most = [300, 20_000, 2_000_000, 8_000_000][dice.below(4) as usize];
        Cut { bytes: 1 + dice.below(most), time: Duration::from_millis(200 + dice.below(1000)) }
    };
    (0..DROPS).map(cut).collect()
}

fn config(url: &str) -> HostConfig {
    let url = url.to_owned();
    let open = move |_: HostId| {
        let url = url.clone();
        async move {
            let transport = WebSocketTransport::connect(&url).await;
            let transport = transport.map_err(|error| TransportError::Io(error.to_string()))?;
            Ok::<_, TransportError>(BoxedTransport::new(transport))
        }
    };
    let backoff = Backoff::Constant { delay: Duration::from_millis(20) };
    // A request whose link was cut is given up soon, and made again.
    let patience = Some(Duration::from_secs(10));
    HostConfig::new("h", "the host", open)
        .with_client_config(ClientConfig { default_request_timeout: patience, ..ClientConfig::default() })
        .with_reconnect_policy(ReconnectPolicy { backoff, ..ReconnectPolicy::default() })
        .with_initial_subscriptions(CHANNELS.map(str::to_owned).to_vec())
}

/// Publishes actions of all sizes for as long as the link drops.
async fn publish_until_quiet(world: &World, dice: &mut Dice) {
    let drops = async {
        for n in 0.. {
            let size = if n % LARGE == 0 { 900_000 } else { [20, 2_000, 60_000][dice.below(3) as usize] };
            if n < MOST_ACTIONS {
                world.host.publish(CHANNELS[dice.below(2) as usize], &format!("{n} {}", text(size)));
            }
            tokio::time::sleep(Duration::from_millis(1 + dice.below(60))).await;
            if world.relay.cuts() == DROPS {
                return;
            }
        }
    };
    soon(drops).await;
}

/// Writes one file after the other for as long as the link drops. What was acknowledged is there; says how many.
async fn write_until_quiet(world: &World, client: &MultiHostClient) -> u64 {
    let mut written = 0;
    while world.relay.cuts() < DROPS {
        let (uri, data) = (format!("file:///{written}"), format!("{written} {}", text(100_000)));
        let Some(handle) = client.client(&HostId::new("h")).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        // If it fails, the link is gone, and the next one is on its way.
        let wrote = handle.request::<_, ResourceWriteResult>("resourceWrite", write(&uri, &data)).await;
        if wrote.is_ok() {
            assert!(world.host.file(&uri) == Some(data), "write {written} was acknowledged");
            written += 1;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    written
}

/// The client's actions up to the last.
async fn collect(mut events: HostSubscriptionStream, last: u64) -> Vec<ActionEnvelope> {
    let mut got = Vec::new();
    let all = async {
        while let Some(event) = events.recv().await {
            let SubscriptionEvent::Action(envelope) = event.event else { continue };
            let is_last = envelope.server_seq == last;
            got.push(envelope);
            if is_last {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(60), all).await;
    got
}

/// What became of the actions.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ledger {
    lost: usize,
    duplicated: usize,
    reordered: usize,
    altered: usize,
}

impl Ledger {
    fn of(log: &[ActionEnvelope], got: &[ActionEnvelope]) -> Self {
        let mut times = HashMap::<u64, usize>::new();
        got.iter().for_each(|envelope| *times.entry(envelope.server_seq).or_default() += 1);
        let is_altered = |envelope: &&ActionEnvelope| !log.contains(envelope);
        Self {
            lost: log.iter().filter(|envelope| !times.contains_key(&envelope.server_seq)).count(),
            duplicated: times.values().map(|times| times - 1).sum(),
            reordered: got.windows(2).filter(|pair| pair[1].server_seq < pair[0].server_seq).count(),
            altered: got.iter().filter(is_altered).count(),
        }
    }
}

fn seqs(actions: &[ActionEnvelope]) -> Vec<u64> {
    actions.iter().map(|envelope| envelope.server_seq).collect()
}

#[test]
fn the_ledger_sees_what_is_wrong() {
    let host = super::host::Host::default();
    (0..4).for_each(|n| _ = host.publish(CHANNELS[0], &n.to_string()));
    let log = host.log();
    let pick = |picked: &[usize]| Ledger::of(&log, &picked.iter().map(|&n| log[n].clone()).collect::<Vec<_>>());
    assert_eq!(pick(&[0, 1, 2, 3]), Ledger::default());
    assert_eq!(pick(&[0, 1, 3]), Ledger { lost: 1, ..Ledger::default() });
    assert_eq!(pick(&[0, 1, 1, 2, 3]), Ledger { duplicated: 1, ..Ledger::default() });
    assert_eq!(pick(&[0, 2, 1, 3]), Ledger { reordered: 1, ..Ledger::default() });
    let mut got = log.clone();
    got[2].channel.push('!');
    assert_eq!(Ledger::of(&log, &got), Ledger { altered: 1, ..Ledger::default() });
}
