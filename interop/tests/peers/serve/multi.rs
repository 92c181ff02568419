//! The official client of many hosts: one of two is killed with -9 and begins again, and the client comes back by itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ahp::SubscriptionEvent;
use ahp::hosts::{Backoff, HostConfig, HostEvent, HostEventStream, HostId, MultiHostClient, ReconnectPolicy};
use ahp_types::state::SnapshotState;
use breakbulk::ahp::Negotiated;
use serde_json::{Value, json};

use super::guest::{Guest, ROOT, chat_of, session_of, started, words};
use super::memory::Memory;
use super::place::Place;
use super::way::Way;
use crate::soon;

const SESSION: &str = "ahp-session:/shared-name";

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_two_hosts_outlives_the_kill_of_one_without_a_cap() {
    outlive(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_two_hosts_outlives_the_kill_of_one_through_64_kib() {
    outlive(Way::Capped).await;
}

async fn outlive(way: Way) {
    let mut places = [way.place(SLOW), way.place(SLOW)];
    let mut inbox = Inbox::new(way, &places).await;
    let chats = [inbox.begin("h0").await, inbox.begin("h1").await];
    for (host, chat) in ["h0", "h1"].into_iter().zip(&chats) {
        inbox.prompt(host, chat, "t1", &format!("Hello {host}")).await;
        let turn = inbox.memory(host).turn(chat, "t1").await;
        assert!(words(&turn).contains(&format!("Hello {host}")), "{turn}");
    }
    // One is killed in the middle of an answer; the other goes on.
    inbox.prompt("h0", &chats[0], "t2", "/slow and then?").await;
    let has_begun =
        |state: &SnapshotState| (!chat_of(state).active_turn.as_ref()?.response_parts.is_empty()).then_some(());
    inbox.memory("h0").until(&chats[0], has_begun).await;
    let before = inbox.memory("h0").cursor().0;
    places[0].kill();
    inbox.prompt("h1", &chats[1], "t2", "Are you there?").await;
    assert_eq!(inbox.memory("h1").turn(&chats[1], "t2").await["state"], "complete");
    places[0].again(way.query());
    inbox.connected("h0", 2).await;
    let turn = inbox.memory("h0").turn(&chats[0], "t2").await;
    println!("{way:?}: back after seq {before}; the turn that was under way: {}", turn["state"]);
    assert_eq!(turn["state"], "error", "{turn}");

    inbox.prompt("h0", &chats[0], "t3", "/big 2MB").await;
    let turn = inbox.memory("h0").turn(&chats[0], "t3").await;
    assert_eq!(turn["state"], "complete", "{:.2000}", turn.to_string());
    for (n, (host, chat)) in ["h0", "h1"].into_iter().zip(&chats).enumerate() {
        let url = format!("ws://{}", places[n].authority);
        let fresh = Guest::arrive(way.transport(&url, &Negotiated::default()).await.unwrap(), "fresh").await;
        for channel in [SESSION, chat] {
            inbox.memory(host).assert_as_fresh(&fresh, channel).await;
        }
        inbox.memory(host).assert_in_order();
    }
    let mut hosts: Vec<_> = inbox.client.aggregated_sessions().await;
    hosts.sort_by_key(|listed| listed.host_id.as_str().to_owned());
    let listed: Vec<_> = hosts.iter().map(|it| (it.host_id.as_str(), it.summary.resource.as_str())).collect();
    assert_eq!(listed, [("h0", SESSION), ("h1", SESSION)]);
}

const SLOW: &[&str] = &["--demo-slow-pace", "100ms"];

/// The client, and what it knows of each host.
struct Inbox {
    client: MultiHostClient,
    states: HostEventStream,
    memories: HashMap<String, Arc<Memory>>,
}

impl Inbox {
    async fn new(way: Way, places: &[Place]) -> Self {
        let client = MultiHostClient::new();
        let (mut events, states) = (client.events(), client.host_events());
        let names = (0..places.len()).map(|n| format!("h{n}"));
        let memories: HashMap<_, _> = names.map(|name| (name, Arc::new(Memory::after(0)))).collect();
        let heard = memories.clone();
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                if let SubscriptionEvent::Action(action) = event.event {
                    heard[event.host_id.as_str()].hear(action);
                }
            }
        });
        let mut inbox = Self { client, states, memories };
        for (n, place) in places.iter().enumerate() {
            let name = format!("h{n}");
            inbox.client.add_host(config(way, &name, place)).await.unwrap();
            inbox.connected(&name, 1).await;
        }
        inbox
    }

    fn memory(&self, host: &str) -> &Memory {
        &self.memories[host]
    }

    /// Waits until a host is connected for the n-th time.
    async fn connected(&mut self, host: &str, count: u64) {
        let wait = async {
            loop {
                if let Some(HostEvent::Connected { host_id, generation }) = self.states.recv().await
                    && host_id.as_str() == host
                    && generation >= count
                {
                    return;
                }
            }
        };
        soon(wait).await;
    }

    async fn follow(&self, host: &str, channel: &str) {
        let subscribed = soon(self.client.subscribe(&HostId::new(host), channel.into())).await.unwrap();
        self.memory(host).take(subscribed.snapshot.unwrap());
    }

    /// Makes a session and follows it, and its chat; gives the chat.
    async fn begin(&self, host: &str) -> String {
        let handle = self.client.client(&HostId::new(host)).await.unwrap();
        let params = json!({"channel": SESSION});
        soon(handle.request::<_, Value>("createSession", params)).await.unwrap();
        self.follow(host, SESSION).await;
        let chat = |state: &SnapshotState| session_of(state)["defaultChat"].as_str().map(str::to_owned);
        let chat = self.memory(host).until(SESSION, chat).await;
        self.follow(host, &chat).await;
        chat
    }

    async fn prompt(&self, host: &str, chat: &str, turn: &str, text: &str) {
        let action = serde_json::from_value(started(turn, text)).unwrap();
        soon(self.client.dispatch(&HostId::new(host), chat.into(), action)).await.unwrap();
    }
}

fn config(way: Way, name: &str, place: &Place) -> HostConfig {
    let (url, memory) = (format!("ws://{}", place.authority), Negotiated::default());
    let open = move |_: HostId| {
        let (url, memory) = (url.clone(), memory.clone());
        async move { way.transport(&url, &memory).await }
    };
    let backoff = Backoff::Constant { delay: Duration::from_millis(50) };
    HostConfig::new(name, name, open)
        .with_reconnect_policy(ReconnectPolicy { backoff, ..ReconnectPolicy::default() })
        .with_initial_subscriptions(vec![ROOT.to_owned()])
}
