//! Whatever the timing, what a client has is what the log says.

use std::collections::HashMap;
use std::time::Duration;

use breakbulk_host::endpoint::EndpointConfig;
use breakbulk_proto::Limits;
use breakbulk_proto::ahp::{Delivery, Negotiated};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::client::{Mirror, Raw};
use super::world::{A, B, World};

const CHANNELS: [&str; 2] = [A, B];

#[derive(Debug, Clone)]
enum Op {
    /// The host appends output to a channel.
    Append(usize, usize),
    /// The client asks to follow a channel, with or without waiting for more.
    Subscribe(usize, u64),
    Unsubscribe(usize),
    /// The client takes messages that are there, up to so many.
    Receive(usize),
    /// The host gets so many turns, while the client does nothing.
    Yield(usize),
    /// Time passes.
    Pass(u64),
    /// The link breaks, and the client comes back.
    Break,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..2_usize, prop_oneof![Just(3_usize), Just(3000)]).prop_map(|(channel, len)| Op::Append(channel, len)),
        2 => (0..2_usize, prop_oneof![Just(0_u64), Just(20)]).prop_map(|(channel, wait)| Op::Subscribe(channel, wait)),
        1 => (0..2_usize).prop_map(Op::Unsubscribe),
        3 => (1..8_usize).prop_map(Op::Receive),
        3 => (1..30_usize).prop_map(Op::Yield),
        1 => (1..30_u64).prop_map(Op::Pass),
        1 => Just(Op::Break),
    ]
}

/// A client that does as it is told, and a world around it.
struct Run {
    world: World,
    memory: Negotiated,
    delivery: Delivery,
    client: Raw,
    mirror: Mirror,
    /// Subscribes that are not answered.
    asked: HashMap<u64, String>,
    /// The last unsubscribe of each channel, by the number of subscribes asked before.
    left: HashMap<String, u64>,
    asks: u64,
    texts: usize,
}

impl Run {
    async fn new(delivery: Delivery) -> Self {
        let world = World::with(EndpointConfig { max_unsent_bytes: 5000, ..EndpointConfig::default() }).await;
        *world.views.delay.lock().unwrap() = Duration::from_millis(3);
        let memory = Negotiated::default();
        let mut client = Raw::with(world.link(1024, 2).0, &memory, delivery, Limits::default());
        let mut mirror = Mirror::default();
        mirror.greeted(&client.initialize("me", &[A]).await);
        let (asked, left) = (HashMap::new(), HashMap::new());
        Self { world, memory, delivery, client, mirror, asked, left, asks: 0, texts: 0 }
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Append(channel, len) => {
                self.texts += 1;
                self.world.data(CHANNELS[channel], &format!("{:>len$}", self.texts)).await;
            }
            Op::Subscribe(channel, wait) => {
                let channel = CHANNELS[channel];
                let id = self.client.ask("subscribe", json!({"channel": channel, "delivery": {"maxLatencyMs": wait}}));
                self.asked.insert(id, channel.to_owned());
                self.asks = id;
            }
            Op::Unsubscribe(channel) => {
                let channel = CHANNELS[channel];
                self.client.notify("unsubscribe", json!({"channel": channel}));
                self.mirror.forget(channel);
                self.left.insert(channel.to_owned(), self.asks);
            }
            Op::Receive(count) => {
                for _ in 0..count {
                    let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(1), self.client.next()).await
                    else {
                        return;
                    };
                    self.take(&message);
                }
            }
            Op::Yield(turns) => {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            }
            Op::Pass(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            Op::Break => self.come_back().await,
        }
    }

    fn take(&mut self, message: &Value) {
        if message["method"] == "action" {
            let channel = message["params"]["channel"].as_str().unwrap();
            if self.mirror.follows(channel) {
                self.mirror.action(&message["params"]);
            }
            return;
        }
        let id = message["id"].as_u64().unwrap();
        let channel = self.asked.remove(&id).expect("an answer to what was asked");
        if self.left.get(&channel).is_none_or(|before| id > *before) {
            self.mirror.snapshot(&message["result"]["snapshot"]);
        }
    }

    async fn come_back(&mut self) {
        let seen = match self.delivery {
            Delivery::Settled => self.settled(),
            Delivery::StartOrder => self.mirror.seen,
        };
        let followed = self.mirror.followed();
        let names: Vec<&str> = followed.iter().map(String::as_str).collect();
        self.asked.clear();
        self.client = Raw::with(self.world.link(1024, 2).0, &self.memory, self.delivery, Limits::default());
        let result = self.client.reconnect("me", seen.try_into().unwrap(), &names).await;
        self.mirror.greeted(&result);
        self.mirror.seen = self.mirror.seen.max(seen);
        self.asks = 1;
        self.left.clear();
    }

    /// The cursor of this connection, if it saw anything; else what the handshake told.
    fn settled(&self) -> u64 {
        self.client.cursor().unwrap_or(0).max(self.mirror.base)
    }

    /// Waits until everything has arrived, and compares.
    async fn check(mut self) {
        let mut last = HashMap::new();
        for channel in CHANNELS {
            last.insert(channel, self.world.data(channel, "the end").await);
        }
        let is_done = |run: &Self| {
            run.asked.is_empty()
                && run.mirror.followed().iter().all(|name| run.mirror.applied(name) >= last[name.as_str()])
        };
        while !is_done(&self) {
            let message = self.client.next().await.expect("the connection lives");
            self.take(&message);
        }
        for channel in self.mirror.followed() {
            assert_eq!(self.mirror.state(&channel), self.world.state(&channel).await, "{channel}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_timing_a_client_has_what_the_log_says(
        ops in prop::collection::vec(op(), 1..40),
        settled in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut run = Run::new(if settled { Delivery::Settled } else { Delivery::StartOrder }).await;
            for op in ops {
                run.apply(op).await;
            }
            run.check().await;
        });
    }
}
