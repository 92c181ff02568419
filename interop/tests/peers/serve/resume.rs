//! The link is cut in the middle of things, and the official client reconnects: nothing is missing, nothing comes twice.

use std::sync::Arc;
use std::time::Duration;

use ahp::Client;
use ahp_types::state::SnapshotState;
use breakbulk::ahp::Negotiated;

use super::guest::{Guest, calls, chat_of};
use super::way::Way;
use crate::relay::{Cut, Relay};
use crate::soon;
use crate::world::patient;

const SESSION: &str = "ahp-session:/cut";
const LONG: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread")]
async fn a_link_cut_in_a_large_action_and_in_its_replay_loses_and_repeats_nothing_without_a_cap() {
    in_a_large_action(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_cut_in_a_large_action_and_in_its_replay_loses_and_repeats_nothing_through_64_kib() {
    in_a_large_action(Way::Capped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_cut_while_an_answer_streams_lose_and_repeat_nothing_without_a_cap() {
    in_a_stream(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_cut_while_an_answer_streams_lose_and_repeat_nothing_through_64_kib() {
    in_a_stream(Way::Capped).await;
}

async fn in_a_large_action(way: Way) {
    let place = way.place(&[]);
    // Less than the action each time: the first connection ends in it, the next two in the answer to `reconnect`.
    let plan = [2_000_000, 1_000_000, 5_000_000].map(|bytes| Cut { bytes, time: LONG });
    let (relay, memory) = (way.relay(&place, plan).await, Negotiated::default());
    let guest = Guest::arrive(way.transport(&relay.url, &memory).await.unwrap(), "one").await;
    let chat = guest.begin(SESSION).await;
    let witness = witness(way, &place.authority, &chat).await;
    guest.prompt(&chat, "big", "/big 5MB").await;
    cuts(&relay, 1).await;
    let known = guest.leave().await;
    let (seen, channels) = known.cursor();
    for cut in 2..=3 {
        let transport = way.transport(&relay.url, &memory).await.unwrap();
        let client = Client::connect(transport, patient()).await.unwrap();
        soon(client.reconnect("one".into(), seen, channels.clone())).await.unwrap_err();
        cuts(&relay, cut).await;
    }
    let transport = way.transport(&relay.url, &memory).await.unwrap();
    let (guest, missed) = Guest::come_back(transport, "one", known).await.unwrap();
    println!("{way:?}: back after 3 cuts, with {missed:?} actions that it had missed");
    assert!(missed.is_some_and(|count| count > 0), "what was missed is replayed");
    let turn = guest.memory.turn(&chat, "big").await;
    assert_eq!(calls(&turn)[0]["content"][0]["text"].as_str().unwrap().len(), 5_000_000);
    assert_nothing_missing(way, &relay, &guest, &witness, &chat).await;
}

async fn in_a_stream(way: Way) {
    const CUTS: u64 = 6;
    let place = way.place(&["--demo-slow-pace", "60ms"]);
    let plan = (0..CUTS).map(|n| Cut { bytes: u64::MAX, time: Duration::from_millis(300 + 50 * n) });
    let (relay, memory) = (way.relay(&place, plan).await, Negotiated::default());
    let direct = format!("ws://{}", place.authority);
    let guest = Guest::arrive(way.transport(&direct, &memory).await.unwrap(), "one").await;
    let chat = guest.begin(SESSION).await;
    let witness = witness(way, &place.authority, &chat).await;
    guest.prompt(&chat, "slow", "/slow And in the middle of a sentence?").await;
    let has_begun = |state: &SnapshotState| Some(()).filter(|()| chat_of(state).active_turn.is_some());
    guest.memory.until(&chat, has_begun).await;
    let mut known = guest.leave().await;
    let mut missed = Vec::new();
    let guest = loop {
        // It is away for some words.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = relay.cuts();
        let Ok(transport) = way.transport(&relay.url, &memory).await else { continue };
        let Ok((guest, count)) = Guest::come_back(transport, "one", Arc::clone(&known)).await else { continue };
        missed.push(count.expect("a replay"));
        if before == CUTS {
            break guest;
        }
        cuts(&relay, before + 1).await;
        known = guest.leave().await;
    };
    println!("{way:?}: {} cuts, missed and replayed: {missed:?}", relay.cuts());
    assert!(missed.iter().sum::<usize>() > 0, "it missed something");
    guest.memory.turn(&chat, "slow").await;
    assert_nothing_missing(way, &relay, &guest, &witness, &chat).await;
}

/// One whose link is never cut.
async fn witness(way: Way, authority: &str, chat: &str) -> Guest {
    let transport = way.transport(&format!("ws://{authority}"), &Negotiated::default()).await.unwrap();
    let witness = Guest::arrive(transport, "witness").await;
    for channel in [SESSION, chat] {
        witness.follow(channel).await;
    }
    witness
}

/// Waits until the relay has cut so many connections.
async fn cuts(relay: &Relay, count: u64) {
    let wait = async {
        while relay.cuts() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(wait).await;
}

/// Asserts that a client has heard all that one has whose link was never cut, and is where that is.
async fn assert_nothing_missing(way: Way, relay: &Relay, guest: &Guest, witness: &Guest, chat: &str) {
    guest.memory.assert_in_order();
    let transport = way.transport(&relay.url, &Negotiated::default()).await.unwrap();
    let fresh = Guest::arrive(transport, "fresh").await;
    for channel in [SESSION, chat] {
        guest.memory.assert_as_fresh(&fresh, channel).await;
        witness.memory.assert_as_fresh(&fresh, channel).await;
    }
    let (heard, all) = (guest.memory.heard(chat), witness.memory.heard(chat));
    assert_eq!(heard, all, "of the chat");
    println!("{} actions of the chat, all of them", all.len());
    way.assert_kept(relay);
}
